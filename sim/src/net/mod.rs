//! The network between clients and servers: connections, what is on its way on them, and what goes wrong.
//!
//! Everything that is on its way is an event with a time, in one queue. One task takes the events out, each at
//! its time. Invariant: a connection delivers in order, in each direction.

mod dial;
mod event;
mod faults;
mod inbox;
mod moments;
mod pump;
mod resp;
mod serve;
mod servers;
mod state;
mod stream;
mod wire;

pub(crate) use self::event::{Direction, Moment};
pub(crate) use self::state::{Net, State};
pub(crate) use self::stream::Sockets;

//! One hold at the server and everything local that belongs to it.
//!
//! [`state`] is the state machine of a hold, a plain value. [`shell`] carries out its effects. A guard keeps a
//! [`Share`], a [`bundle`](bundle::Bundle) of shares, or a share of a [`quorum`]. The modules below do not know about
//! holds: the core of a client, its locks and queues, and the undoing of abandoned attempts.

pub(crate) mod bound;
pub(crate) mod bundle;
pub(crate) mod core;
pub(crate) mod deferred_downgrade;
mod event;
pub(crate) mod gained;
pub(crate) mod grant_message;
pub(crate) mod handoff;
mod join;
mod keep;
pub(crate) mod local;
mod member;
mod open_read;
mod operations;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod quorum;
mod readers;
pub(crate) mod recall;
mod recalls;
pub(crate) mod reenter;
pub(crate) mod registry;
mod release_call;
mod releasing;
mod server_lease;
mod settle;
mod share;
mod share_lease;
mod shared;
mod shell;
pub(crate) mod silence;
mod state;
mod sticky;
mod sticky_slot;
mod sticky_span;
pub(crate) mod subscribing;
pub(crate) mod subscription;
pub(crate) mod terms;
pub(crate) mod timing;
mod tokens;
pub(crate) mod told;
mod transfer;
mod turns;
pub(crate) mod undo;
pub(crate) mod unguarded;

pub(crate) use event::NewHold;
pub(crate) use member::Group;
pub(crate) use share::Share;
pub(crate) use share_lease::{ShareLease, local_deadline};
pub(crate) use shell::Hold;

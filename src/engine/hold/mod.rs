//! One hold at the server and everything local that belongs to it.
//!
//! [`state`] is the state machine of a hold, a plain value. [`shell`] carries out its effects. A guard keeps a
//! [`Share`], or a [`bundle`](bundle::Bundle) of shares. The modules below do not know about
//! holds: the core of a client, its locks and queues, and the undoing of abandoned attempts.
//!
//! ```text
//! state.rs        pure: the state of a hold: held -> released or lost; event.rs: its events
//!   counts.rs       pure: its shares, here and at the server; readers.rs: readers that have it together
//!   lease.rs        pure: its local deadline, when to renew it, and how long the server may have it
//!   passing.rs      pure: who has it, and who may have it next
//! share_lease.rs  pure: the lease of each share
//! shell.rs        the mutex and the I/O around the state
//! share.rs        a guard's share of a hold; bundle.rs: shares that stand and fall together, for a multi-lock
//! settle.rs       the ends of shares; settling.rs: the server is asked until it agrees; release.rs: the commands
//! reenter.rs      one more share, mostly without the server, and a token after the grant
//! join.rs         readers take shares in memory; transfer.rs: a hold passes to the next task
//! facts.rs        what a hold notes of itself, and the reason of an operator who took it away
//! recall.rs       requests of waiters elsewhere, in both directions
//! local.rs        a client's state of one lock: registry.rs: its holds as other tasks see them
//! queue.rs        the local queue, which skips a head that is not polled; queue/places.rs: its places
//! followers.rs    waiters of this client in a queue at the server: hand-offs, and heartbeats for all
//! turns.rs        turns between clients: how long this one goes on, and when it asks again
//! subscription.rs the channels that a client listens to
//! bound.rs        the limits of one call, and since when the server is silent
//! undo.rs         what callers that are gone left at the servers
//! core.rs         the state that a client shares; protocol.rs: the trait of a primitive
//! ```

pub(crate) mod bound;
pub(crate) mod bundle;
pub(crate) mod core;
mod event;
pub(crate) mod facts;
pub(crate) mod followers;
pub(crate) mod join;
pub(crate) mod local;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod recall;
pub(crate) mod reenter;
pub(crate) mod registry;
mod release;
mod settle;
mod settling;
mod share;
mod share_lease;
mod shell;
mod state;
pub(crate) mod subscription;
mod transfer;
pub(crate) mod turns;
pub(crate) mod undo;

pub(crate) use event::{NewHold, Tokens};
pub(crate) use registry::{LossListener, ShareView, SharedHold};
pub(crate) use share::Share;
pub(crate) use share_lease::{ShareLease, local_deadline};
pub(crate) use shell::Hold;

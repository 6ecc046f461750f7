//! One hold at the server and everything local that belongs to it.
//!
//! [`lock`] is the state of one lock in one client, a plain value: its grants, each with a [`state`], the tasks that wait,
//! and the turn of the client. [`local`] keeps it under one mutex. [`shell`] carries out the effects on a hold. A guard
//! keeps a [`Share`], or a [`bundle`](bundle::Bundle) of shares. The modules below do not know about
//! holds: the core of a client, its locks and queues, and the undoing of abandoned attempts.
//!
//! ```text
//! lock.rs         pure: one lock in one client: which task has it, and which is next
//!   grants.rs       pure: the holds of one lock; queue.rs: the local queue; a head that is not polled
//!                   is passed over; turns.rs: turns between clients
//!   followers.rs    pure: waiters of this client in a queue at the server: hand-offs, and heartbeats for all
//! state.rs        pure: the state of a hold: held -> released or lost; effects.rs: what a change
//!                   needs, and its effects
//!   counts.rs       pure: its shares, here and at the server; readers.rs: readers that share it
//!   lease.rs        pure: its local deadline, when to renew it, and how long the server may have it
//!   passing.rs      pure: which task has it, and which may have it next
//! share_lease.rs  pure: the lease of each share
//! local.rs        the mutex of a lock, and the tasks that its state wakes; queue/place.rs: a task's place in the queue
//! shell.rs        a hold, and the I/O around its state
//! share.rs        a guard's share of a hold; bundle.rs: shares that are kept and lost together, for a multi-lock
//! settle.rs       the ends of shares; settling.rs: the server is asked until it agrees; release.rs: the commands
//! reenter.rs      one more share, mostly without the server, and a token after the grant
//! transfer.rs     a hold passes from task to task, and readers share it; handoff.rs: a share on its way to the next task
//! loss.rs         the loss of a hold; facts.rs: facts that are noted about it, and an operator's reason
//! recall.rs       requests of waiters elsewhere, in both directions
//! subscription.rs the channels that a client listens to
//! bound.rs        the limits of one call, and since when the server is silent
//! undo.rs         undoes what abandoned calls left at the servers
//! core.rs         the state that a client shares; protocol.rs: the trait of a primitive
//! ```

pub(crate) mod bound;
pub(crate) mod bundle;
pub(crate) mod core;
mod effects;
pub(crate) mod facts;
pub(crate) mod followers;
mod grants;
pub(crate) mod handoff;
pub(crate) mod local;
mod lock;
mod loss;
pub(crate) mod protocol;
pub(crate) mod queue;
pub(crate) mod recall;
pub(crate) mod reenter;
mod release;
mod settle;
mod settling;
mod share;
mod share_lease;
mod shell;
mod state;
pub(crate) mod subscription;
pub(crate) mod transfer;
pub(crate) mod turns;
pub(crate) mod undo;

pub(crate) use effects::{NewHold, Phase, Tokens};
pub(crate) use loss::{LossListener, ShareView, SharedHold};
pub(crate) use share::Share;
pub(crate) use share_lease::{ShareLease, local_deadline};
pub(crate) use shell::Hold;

//! The wait engine: it takes one lock or several for a call, or leaves nothing behind.
//!
//! A handle makes a [`LockRequest`]. [`one`] waits for a single request (`wait.rs`), [`several`] for the requests of a
//! multi-lock. Each attempt goes to the server through `attempt.rs` and `asked.rs`, and `grant.rs` makes a hold of a
//! grant. A Redlock, which asks several servers at once, uses [`attempt_once`].
//!
//! ```text
//! request.rs      the request of a call, its outcome, and grants that came too late
//! wait.rs         the loop: local ways in, attempt, pause, sleep until a hint or a timer, again
//!   pauses.rs       how long a waiter pauses; following.rs: the queue at the server, within this client
//! local.rs        ways without the server: a hand-off, a sticky hold, an owner's own hold, a reader's join
//! attempt.rs      the attempts of a call; asked.rs: one command, which goes on without the caller
//! grant.rs        from a server's grant to a hold, or to the undo of a grant that is not taken
//! waiter.rs       a waiter and its subscription
//! several.rs      several locks: all or none; a single attempt, for one round of a Redlock
//! ```

mod asked;
mod attempt;
mod grant;
mod local;
mod request;
mod several;
#[cfg(test)]
mod tests;
mod wait;
mod waiter;

pub(crate) use local::{Turn, turn};
pub(crate) use request::{ExpiredGrants, LockRequest, QueueNumber, bound};
pub(crate) use several::{attempt_once, prepare_several, several};
pub(crate) use wait::one;
pub(crate) use waiter::{Marks, Waiter, Woken};

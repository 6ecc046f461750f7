//! The wait engine: it takes one lock or several for a call, or leaves nothing behind.
//!
//! A handle makes a [`LockRequest`]. [`one`] waits for a single request (`wait.rs`), [`several`] for the requests of a
//! multi-lock. Each attempt goes to the server through `attempt.rs`, and `holders.rs` makes a hold of a grant. A
//! Redlock, which asks several servers at once, uses [`attempt_once`] and [`Subscriber`].
//!
//! ```text
//! request.rs      the request of a call, its outcome, and grants that came too late
//! wait.rs         the loop: local ways in, attempt, plan, sleep until a hint or a timer, again
//!   yielding.rs     waiters that go first; following.rs: the queue at the server, within this client
//! local.rs        ways without the server: a hand-off, a sticky hold, an owner's own hold, a reader's join
//! attempt.rs      one attempt; holders.rs: its holder ids, and the undo of a grant that is not taken
//! confirm.rs      a grant that replicas have to confirm first
//! handover.rs     a lock that the server handed over by a notification
//! heartbeats.rs   keeps the places of all waiters of a client in a queue at the server
//! recall.rs       asks another client for a lock
//! waiter.rs       a waiter and its subscription; subscriber.rs: a listener that does not wait; ends subscriptions
//! plan.rs         pure: what next, after a refusal?
//! several.rs      several locks: all or none
//! attempt_once.rs one attempt for one round of a Redlock
//! ```

mod attempt;
mod attempt_once;
mod confirm;
mod handover;
mod heartbeats;
mod holders;
mod local;
mod plan;
mod recall;
mod request;
mod several;
mod subscriber;
#[cfg(test)]
mod tests;
mod wait;
mod waiter;

pub(crate) use attempt_once::{attempt_once, one_or_remaining};
pub(crate) use local::{Turn, turn};
pub(crate) use request::{Attempted, ExpiredGrants, LockRequest, QueueNumber, WaitLimit, bound};
pub(crate) use several::{prepare_several, several};
pub(crate) use subscriber::Subscriber;
pub(crate) use wait::one;
pub(crate) use waiter::{Marks, Waiter, Woken};

//! The wait engine: it takes one lock or several for a call, or leaves nothing behind.
//!
//! A handle makes a [`LockRequest`]. [`one`] waits for a single request (`wait.rs`), [`several`] for the requests of a
//! multi-lock. Each attempt goes to the server through `attempt.rs`, and `holders.rs` makes a hold of a grant. A
//! Redlock, which asks several servers at once, uses [`attempt_once`] and [`subscribe()`].
//!
//! ```text
//! request.rs      the request of a call, and its outcome
//! wait.rs         the loop: local ways in, attempt, plan, sleep until a hint or a timer, again
//!   yielding.rs     waiters that go first; following.rs: the queue at the server, within this client
//! local.rs        ways without the server: a hand-off, a sticky hold, an owner's own hold, a reader's join
//! attempt.rs      one attempt; holders.rs: its holder ids, and the undo of a grant that is not taken
//! confirm.rs      a grant that replicas have to confirm first
//! handover.rs     a lock that the server handed over by a notification
//! recall.rs       asks another client for a lock
//! queue_number.rs  the queue number of a call, for reports of long waits
//! waiter.rs       a waiter and its subscription; subscribe.rs: the end of the subscription
//! plan.rs         pure: what next, after a refusal?
//! expired.rs      grants that came too late; several.rs: all or none
//! attempt_once.rs one attempt for one round of a Redlock; subscriber.rs: its subscription
//! ```

mod attempt;
mod attempt_once;
mod confirm;
mod expired;
mod handover;
mod holders;
mod local;
mod plan;
mod queue_number;
mod recall;
mod request;
mod several;
mod subscribe;
mod subscriber;
#[cfg(test)]
mod tests;
mod wait;
mod waiter;

pub(crate) use attempt_once::{attempt_once, one_or_remaining};
pub(crate) use local::{Turn, turn};
pub(crate) use queue_number::QueueNumber;
pub(crate) use request::{Attempted, LockRequest, WaitLimit, bound};
pub(crate) use several::several;
pub(crate) use subscriber::Subscriber;
pub(crate) use wait::one;
pub(crate) use waiter::{Marks, Waiter, Woken};

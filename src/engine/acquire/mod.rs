//! The wait engine: it takes one lock or several for a call, or leaves nothing behind.
//!
//! A handle makes a [`LockRequest`]. [`one`] waits for a single request (`wait.rs`), [`several`] for the requests of a
//! multi-lock. Each attempt goes to the server through `attempt.rs`, and `holders.rs` makes a hold of a grant. A
//! Redlock, which asks several servers at once, uses [`attempt_once`] and [`subscribe()`].

mod attempt;
mod attempt_once;
mod confirm;
mod expired;
mod handover;
mod holders;
mod local;
mod plan;
mod queued;
mod recall;
mod request;
mod several;
mod subscribe;
mod subscriber;
#[cfg(test)]
mod tests;
mod wait;
mod waiter;

pub(crate) use attempt_once::attempt_once;
pub(crate) use local::{Turn, turn};
pub(crate) use queued::Queued;
pub(crate) use request::{LockRequest, Outcome, Wait, bound};
pub(crate) use several::several;
pub(crate) use subscriber::Subscriber;
pub(crate) use wait::{one, one_or_remaining};
pub(crate) use waiter::{Marks, Waiter, Woken};

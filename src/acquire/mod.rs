//! The wait engine: takes one lock or several for a call, or leaves nothing behind.
//!
//! A handle makes a [`LockRequest`]; [`one`] waits for it (`wait.rs`), and
//! [`several`] for those of a multi-lock; each attempt goes to the
//! server through `attempt.rs`; a grant becomes a hold in `holders.rs`. Redlock, which asks several
//! servers at once, uses [`attempt_once`] and [`subscribe()`].

mod attempt;
mod attempt_once;
mod confirm;
mod expired;
mod handover;
mod holders;
mod join;
mod local;
mod plan;
mod queued;
mod recall;
mod request;
mod several;
mod sticky;
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
pub(crate) use subscriber::subscribe;
pub(crate) use wait::{one, one_or_remaining};
pub(crate) use waiter::{Marks, Waiter};

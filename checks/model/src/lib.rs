//! The protocol of lockset as models that are explored to their end.
//!
//! [`lock`] is one lock on one server: reentrant or fair, with tokens, hand-offs and handovers. [`rwlock`] is one
//! that is read and written. [`redlock`] is one lock on three servers, and [`semaphore`] the permits of one semaphore.
//! Time is relative: a state has what is left of a lease, never a moment. So time has
//! no bound, and what bounds a model is how many attempts and faults it has ([`lock::Bounds`]).
//!
//! Invariants: every action may happen at any moment, which is what delays and pauses are; a rule of the
//! protocol has a switch, and a test shows that the model finds a violation without it.

pub mod cases;
pub mod explore;
pub mod lock;
pub mod progress;
pub mod redlock;
pub mod rwlock;
pub mod semaphore;

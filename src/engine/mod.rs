//! The engine: what a client does between a call and the scripts.
//!
//! Invariant: the engine knows no primitive. A primitive tells it what to send through `hold::Protocol`.

pub(crate) mod acquire;
pub(crate) mod clock;
pub(crate) mod counts;
pub(crate) mod hint;
pub(crate) mod hold;
pub(crate) mod keys;
pub(crate) mod listen;
pub(crate) mod replicas;
pub(crate) mod synchronizer;

/// A list that nearly always has one element, with room for that without an allocation.
pub(crate) type Few<T> = smallvec::SmallVec<[T; 1]>;

//! The engine: what a client does between a call and the scripts.
//!
//! Invariant: the engine knows no primitive. A primitive implements `hold::Protocol`, which makes the calls to send.

pub(crate) mod acquire;
pub(crate) mod clock;
pub(crate) mod counts;
pub(crate) mod hint;
pub(crate) mod hold;
pub(crate) mod keys;
pub(crate) mod listen;
pub(crate) mod replicas;
pub(crate) mod synchronizer;

use std::ops::Deref;

/// A list that nearly always has one element. One element needs no allocation.
pub(crate) type Few<T> = smallvec::SmallVec<[T; 1]>;

/// A value that is usually the default. The default takes the memory of a pointer.
#[derive(Clone, Debug, Hash)]
pub(crate) struct Seldom<T>(Option<Box<T>>);

/// The default of a [`Seldom`].
pub(crate) trait Usual: Clone + 'static {
    const USUAL: &'static Self;
}

impl<T> Default for Seldom<T> {
    fn default() -> Self {
        Self(None)
    }
}

impl<T: Usual> Seldom<T> {
    /// Returns the value for a change. Allocates it if it was the default.
    pub(crate) fn change(&mut self) -> &mut T {
        self.0.get_or_insert_with(|| Box::new(T::USUAL.clone()))
    }

    /// Returns the value for a change, or `None` if it is the default.
    pub(crate) fn if_changed(&mut self) -> Option<&mut T> {
        self.0.as_deref_mut()
    }
}

impl<T: Usual> Deref for Seldom<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.as_deref().unwrap_or(T::USUAL)
    }
}

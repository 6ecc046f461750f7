//! Access to a state under its mutex, and the tasks that it wakes.
//!
//! Invariant: a task is woken while the mutex is free. A waker may do anything, and the task is about to lock the state
//! itself.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

use crate::engine::Few;

/// A state that collects the tasks to wake.
pub(crate) trait Wakes {
    /// `None` if there are none.
    fn woken(&mut self) -> Option<&mut Few<Waker>>;
}

pub(crate) struct Locked<'a, S: Wakes>(MutexGuard<'a, S>);

impl<'a, S: Wakes> Locked<'a, S> {
    #[inline]
    pub(crate) fn new(state: &'a Mutex<S>) -> Self {
        Self(state.lock())
    }

    #[cold]
    fn wake(&mut self) {
        let woken = self.0.woken().map(mem::take).unwrap_or_default();
        MutexGuard::unlocked(&mut self.0, || woken.into_iter().for_each(Waker::wake));
    }
}

impl<S: Wakes> Deref for Locked<'_, S> {
    type Target = S;

    #[inline]
    fn deref(&self) -> &S {
        &self.0
    }
}

impl<S: Wakes> DerefMut for Locked<'_, S> {
    #[inline]
    fn deref_mut(&mut self) -> &mut S {
        &mut self.0
    }
}

impl<S: Wakes> Drop for Locked<'_, S> {
    #[inline]
    fn drop(&mut self) {
        if self.0.woken().is_some_and(|woken| !woken.is_empty()) {
            self.wake();
        }
    }
}

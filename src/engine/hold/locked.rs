//! Access to a state under its mutex, and the tasks that it wakes.
//!
//! Invariant: a task is woken while the mutex is free. A waker may do anything, and the task is about to lock the state
//! itself.

use std::mem;
use std::ops::{Deref, DerefMut};
use std::task::Waker;

use parking_lot::{Mutex, MutexGuard};

/// Room for this many tasks is kept.
const KEPT_MAX: usize = 4;

/// A state that collects the tasks to wake.
pub(crate) trait Wakes {
    fn woken(&mut self) -> &mut Vec<Waker>;
}

pub(crate) struct Locked<'a, S: Wakes>(MutexGuard<'a, S>);

impl<'a, S: Wakes> Locked<'a, S> {
    #[inline]
    pub(crate) fn new(state: &'a Mutex<S>) -> Self {
        Self(state.lock())
    }

    #[cold]
    fn wake(&mut self) {
        let mut woken = mem::take(self.0.woken());
        MutexGuard::unlocked(&mut self.0, || woken.drain(..).for_each(Waker::wake));
        if woken.capacity() <= KEPT_MAX {
            // The next one needs no allocation. There is none now: each access wakes those that it collects.
            *self.0.woken() = woken;
        }
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
        if !self.0.woken().is_empty() {
            self.wake();
        }
    }
}

//! A call whose future is dropped, or no longer polled, while it runs.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::Mutex;

/// What happens to the future of the present call of a task.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Care {
    #[default]
    Polled,
    Dropped,
    /// It is kept, and not polled.
    Left,
}

#[derive(Debug, Default)]
struct State {
    care: Care,
    waiting: Option<Waker>,
}

/// Interrupts the calls of one task.
#[derive(Debug, Default)]
pub(super) struct Interrupt(Mutex<State>);

impl Interrupt {
    fn set(&self, care: Care) {
        let mut state = self.0.lock();
        state.care = care;
        let waiting = state.waiting.take();
        drop(state);
        waiting.into_iter().for_each(Waker::wake);
    }

    /// The present call is dropped; if there is none, the next.
    pub(super) fn drop_call(&self) {
        self.set(Care::Dropped);
    }

    /// The present call is not polled until [`poll_again`](Self::poll_again).
    pub(super) fn leave_call(&self) {
        self.set(Care::Left);
    }

    pub(super) fn poll_again(&self) {
        self.set(Care::Polled);
    }

    /// Runs a call; `None` if it was dropped.
    pub(super) fn run<F: Future>(self: &Arc<Self>, call: Pin<Box<F>>) -> Interruptible<F> {
        Interruptible {
            interrupt: Arc::clone(self),
            call,
        }
    }
}

pub(super) struct Interruptible<F> {
    interrupt: Arc<Interrupt>,
    call: Pin<Box<F>>,
}

impl<F: Future> Future for Interruptible<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        {
            let mut state = self.interrupt.0.lock();
            match state.care {
                Care::Polled => {}
                Care::Dropped => {
                    state.care = Care::Polled;
                    return Poll::Ready(None);
                }
                Care::Left => {
                    state.waiting = Some(context.waker().clone());
                    return Poll::Pending;
                }
            }
            state.waiting = Some(context.waker().clone());
        }
        self.call.as_mut().poll(context).map(Some)
    }
}

//! A call that waits for long: whoever observes the client is told once, and of who is in the way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;

use crate::acquire::Wait;
use crate::busy::Busy;
use crate::clock::Tick;
use crate::events::Event;
use crate::hold::core::Core;

/// What a call waits for.
pub(crate) struct Waited<'a, W, B> {
    /// As it was given to the client.
    name: &'a str,
    /// How many calls of this client wait for it.
    waiters: W,
    /// Asks who is in the way.
    busy: B,
}

impl<'a, W, B> Waited<'a, W, B> {
    pub(crate) fn new(name: &'a str, waiters: W, busy: B) -> Self {
        Self {
            name,
            waiters,
            busy,
        }
    }
}

/// Drives `call`, which began then, and tells whoever observes the client if it waits for long.
pub(crate) async fn told_if_long<T, B: Future<Output = Busy>>(
    core: &Core,
    wait: Wait,
    began: Tick,
    waited: Waited<'_, impl Fn() -> usize, impl Fn() -> B>,
    mut call: Pin<&mut impl Future<Output = T>>,
) -> T {
    if matches!(wait, Wait::Never) || !core.observed().is_on() {
        return call.await;
    }
    // Most calls do not wait at all, and few for long.
    let (mut waiting, mut telling, mut is_told) = (None, None, false);
    poll_fn(|context| {
        let done = call.as_mut().poll(context);
        if done.is_ready() {
            return done;
        }
        match &waiting {
            None if !is_told => waiting = Some(core.note_wait(began, context.waker())),
            Some(wait) if wait.is_long(context.waker()) => {
                (waiting, is_told) = (None, true);
                telling = Some(Box::pin(tell(core, began, &waited)));
            }
            _ => {}
        }
        if let Some(told) = &mut telling
            && told.as_mut().poll(context).is_ready()
        {
            telling = None;
        }
        Poll::Pending
    })
    .await
}

async fn tell<B: Future<Output = Busy>>(
    core: &Core,
    began: Tick,
    waited: &Waited<'_, impl Fn() -> usize, impl Fn() -> B>,
) {
    let busy = (waited.busy)().await;
    core.observed().tell(|| Event::LongWait {
        lock: waited.name.into(),
        waited: began.until(core.clock.now()),
        busy: busy.holder.is_some().then_some(busy),
        waiters: (waited.waiters)(),
    });
}

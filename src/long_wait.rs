//! A call that waits for long: whoever observes the client is told once, and of who is in the way.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::task::Poll;
use std::time::Duration;

use crate::acquire::Wait;
use crate::busy::Busy;
use crate::events::Event;
use crate::hold::core::Core;

/// Calls that wait for longer are told of.
const LONG_WAIT: Duration = Duration::from_secs(1);

/// Drives `call`, and tells whoever observes the client if it waits for long. `busy` asks who is in the way.
pub(crate) async fn told_if_long<T, B: Future<Output = Busy>>(
    core: &Core,
    wait: Wait,
    name: &str,
    busy: impl FnOnce() -> B,
    mut call: Pin<&mut impl Future<Output = T>>,
) -> T {
    if matches!(wait, Wait::Never) || !core.observed().is_on() {
        return call.await;
    }
    // Most calls do not wait at all, and need none of it.
    let (mut busy, mut telling) = (Some(busy), None);
    let done = poll_fn(|context| {
        if let Poll::Ready(done) = call.as_mut().poll(context) {
            return Poll::Ready(Some(done));
        }
        if let Some(busy) = busy.take() {
            telling = Some(Box::pin(tell(core, name, busy)));
        }
        let told = telling.as_mut().map(|told| told.as_mut().poll(context));
        told.unwrap_or(Poll::Pending).map(|()| None)
    });
    match done.await {
        Some(done) => done,
        None => {
            drop(telling);
            call.await
        }
    }
}

async fn tell<B: Future<Output = Busy>>(core: &Core, name: &str, busy: impl FnOnce() -> B) {
    let began = core.clock.now();
    core.clock.sleep_until(began.after(LONG_WAIT)).await;
    let busy = busy().await;
    core.observed().tell(|| Event::LongWait {
        lock: name.into(),
        waited: began.until(core.clock.now()),
        busy: busy.holder.is_some().then_some(busy),
    });
}

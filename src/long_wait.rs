//! A call that waits for long: whoever observes the client is told once, and of who is in the way.

use std::future::Future;
use std::pin::Pin;
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
    tokio::select! {
        biased;
        done = &mut call => return done,
        () = Box::pin(tell(core, name, busy)) => {}
    }
    call.await
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

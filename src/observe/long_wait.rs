//! The report of calls that wait for long: once per lock and ten seconds, with the holder in their way.

use std::future::{Future, poll_fn};
use std::hash::BuildHasher;
use std::pin::Pin;
use std::task::{Poll, Waker};
use std::time::Duration;

use rustc_hash::FxBuildHasher;

use crate::api::busy::Busy;
use crate::api::holder::HolderId;
use crate::conn::Lane;
use crate::engine::acquire::{LockRequest, Wait};
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::observe::events::{Event, Place};
use crate::script::reply;

/// The lock that a call waits for, and how to describe the wait.
pub(crate) struct Waited<'a, W, P, B> {
    /// The name as it was given to the client.
    name: &'a str,
    /// How long a wait goes on until it is reported.
    after: Duration,
    /// Counts the calls of this client that wait for the lock.
    waiters: W,
    /// Finds the place of the call.
    place: P,
    /// Asks for the holder in the way.
    busy: B,
}

impl<'a, W, P, B> Waited<'a, W, P, B> {
    pub(crate) fn new((name, after): (&'a str, Duration), waiters: W, place: P, busy: B) -> Self {
        Self {
            name,
            after,
            waiters,
            place,
            busy,
        }
    }
}

/// Drives `call`, which began then, and reports it to the observer of the client if it waits for long.
pub(crate) async fn told_if_long<T, P, B>(
    core: &Core,
    wait: Wait,
    began: Tick,
    waited: Waited<'_, impl Fn() -> usize, impl Fn() -> P, impl Fn() -> B>,
    mut call: Pin<&mut impl Future<Output = T>>,
) -> T
where
    P: Future<Output = Option<Place>>,
    B: Future<Output = Busy>,
{
    if matches!(wait, Wait::Never) || !core.observed().is_on() {
        return call.await;
    }
    // Most calls do not wait at all, and few for long.
    let (mut waiting, mut telling) = (None, None);
    let note = |due, waker: &Waker| {
        let lock = FxBuildHasher.hash_one(waited.name);
        Some(core.note_wait(lock, began, due, waker))
    };
    poll_fn(|context| {
        let done = call.as_mut().poll(context);
        if done.is_ready() {
            return done;
        }
        match &waiting {
            None => waiting = note(began.after(waited.after), context.waker()),
            Some(wait) if wait.is_long(context.waker()) => {
                let (longest, next) = wait.take_report(core.clock.now());
                if let Some(began) = longest {
                    telling = Some(Box::pin(tell(core, began, &waited)));
                }
                waiting = note(next, context.waker());
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

/// Reports the waits for the lock, of which the longest began then. Asks for the place and the holder in one round trip.
async fn tell<P, B>(
    core: &Core,
    began: Tick,
    waited: &Waited<'_, impl Fn() -> usize, impl Fn() -> P, impl Fn() -> B>,
) where
    P: Future<Output = Option<Place>>,
    B: Future<Output = Busy>,
{
    let (place, busy) = tokio::join!((waited.place)(), (waited.busy)());
    core.observed().tell(|| Event::LongWait {
        lock: waited.name.into(),
        waited: began.until(core.clock.now()),
        busy: busy.holder.is_some().then_some(busy),
        waiters: (waited.waiters)(),
        place,
    });
}

/// Finds the place of the call with this request, if the server answers within the time of one reply.
pub(crate) async fn place_of(request: &LockRequest) -> Option<Place> {
    let (core, number) = (&request.core, request.queued.number()?);
    let holder = HolderId::new(core.id(), number);
    let Some(ask) = request.protocol.place(&request.name, &holder) else {
        return request.local.queue.place_of(number).map(Place::Client);
    };
    let budget = core.call_budget(core.timing.reply);
    let answer = core.scripts.run(Lane::Command, &ask, budget).await.ok()?;
    reply::place(&answer.value).map(Place::Server)
}

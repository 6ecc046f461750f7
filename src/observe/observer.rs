//! The one place where a client notes facts about itself, and its observer.
//!
//! A value that is kept with a waiting call or with a guard notes its end. Invariants: the engine never waits for an
//! observer, and holds no mutex while one runs; every failure in the background has a count and an event.

use std::convert::Infallible;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use tokio::sync::Notify;
#[cfg(feature = "tracing")]
use tracing::{Level, Span, debug_span, enabled, level_enabled};

use crate::api::fencing::FencingToken;
use crate::engine::clock::{Clock, Tick};
use crate::observe::counts::{CountedKind, Counts, Fact, PUBLISHED_EVERY};
use crate::observe::events::Event;
use crate::observe::group::Group;
#[cfg(feature = "metrics")]
use crate::observe::meter::Meter;
use crate::observe::waits::{LongWaits, WaitToken};

/// The most events that wait for a slow observer. Later ones are dropped, and counted.
const EVENTS_MAX: usize = 1024;

/// An observer of a client's events; set with [`ClientBuilder::observer`](crate::ClientBuilder::observer).
///
/// It is called on a thread of its own, with one event after the other, in their order. The client never waits for it:
/// if it is slow, up to 1024 events wait for it, and later ones are dropped and counted in
/// [`Totals::events_dropped`](crate::Totals::events_dropped). If it panics, it still gets the next event (unless the
/// program aborts on panic). The thread ends with the client, once it has delivered what came before.
///
/// ```no_run
/// # async fn doc() -> lockset::Result<()> {
/// use lockset::{Event, Observer};
///
/// struct ToLog;
///
/// impl Observer for ToLog {
///     fn on(&self, event: &Event<'_>) {
///         match event {
///             Event::Lost { lock, reason, held, .. } => eprintln!("lost {lock} after {held:?}: {reason}"),
///             event => eprintln!("{event}"),
///         }
///     }
/// }
///
/// let client = lockset::Client::builder("redis://127.0.0.1:6379").observer(ToLog).build().await?;
/// # drop(client); Ok(()) }
/// ```
pub trait Observer: Send + Sync + 'static {
    /// Handles an event.
    fn on(&self, event: &Event<'_>);
}

/// A function of an event is an observer.
impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on(&self, event: &Event<'_>) {
        self(event);
    }
}

/// Notes what a client does: counts it, and passes it to the observer, `tracing` and the recorder of metrics.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) counts: Counts,
    #[cfg(feature = "metrics")]
    meter: Meter,
    /// Notified when there is something to publish, or a call to watch.
    counted: Notify,
    /// Waiting calls, if long waits are reported.
    pub(super) waits: LongWaits,
    /// The channel to the observer's thread, if there is one.
    events: Option<SyncSender<Event<'static>>>,
}

impl Observed {
    /// Starts the thread of an observer.
    ///
    /// # Errors
    /// If the system has no thread to give.
    pub(crate) fn by(observer: Box<dyn Observer>) -> std::io::Result<Self> {
        let mut observed = Self::default();
        let (events, inbox) = sync_channel(EVENTS_MAX);
        let thread = std::thread::Builder::new().name("lockset-observer".to_owned());
        thread.spawn(move || tell_all(&*observer, &inbox))?;
        observed.events = Some(events);
        Ok(observed)
    }

    /// Whether events have a receiver.
    pub(crate) fn is_on(&self) -> bool {
        // Some events cost a question to the server, so they need a subscriber.
        #[cfg(feature = "tracing")]
        if enabled!(target: "lockset", Level::WARN) {
            return true;
        }
        self.events.is_some()
    }

    /// Notes a fact, once. Call it while no mutex is held: code of the program runs here, and may ask the client and
    /// its guards anything. Neither blocks nor panics.
    #[inline]
    pub(crate) fn note(&self, fact: Fact<'_>) {
        #[cfg(feature = "metrics")]
        self.meter.look_for(&fact, &self.counts);
        self.counts.note(&fact);
        #[cfg(feature = "metrics")]
        self.meter.note(&fact, &self.counted);
        if let Fact::Event(event, _) = fact {
            self.tell(event);
        }
    }

    fn tell(&self, event: Event<'_>) {
        // A panic of the subscriber would otherwise end the calling task: the watchdog's, or a caller's.
        #[cfg(feature = "tracing")]
        let _is_traced = catch_unwind(AssertUnwindSafe(|| event.trace()));
        if let Some(events) = &self.events
            && events.try_send(event.into_owned()).is_err()
        {
            self.note(Fact::EventDropped);
        }
    }

    /// Returns the group of this name, for locks. Reports the first name over the limit.
    pub(crate) fn group(&self, name: &str) -> Group {
        let (group, is_first_over) = Group::named(name);
        if is_first_over {
            self.note(Fact::event(Event::TooManyGroups { group: name.into() }));
        }
        group
    }

    /// Notes the reply to a command that was sent at `sent` on this lane, if round trips are timed at the moment.
    #[inline]
    pub(crate) fn answered(&self, lane: usize, sent: Tick, clock: Clock) {
        if self.counts.times(lane, sent) {
            let took = sent.until(clock.now());
            self.note(Fact::Answered { lane, took });
        }
    }

    /// Whether a call that begins now is timed. Looks for a recorder if that is due.
    #[inline]
    pub(crate) fn times_calls(&self, _now: Tick) -> bool {
        #[cfg(feature = "metrics")]
        return self.meter.is_on_at(_now, &self.counts);
        #[cfg(not(feature = "metrics"))]
        false
    }

    /// Passes all unpublished counts to the recorder of metrics.
    pub(crate) fn publish(&self) {
        #[cfg(feature = "metrics")]
        self.meter.publish(&self.counts);
    }

    /// Lists a call that has to wait for the lock with this hash, and that began at `began`. It is woken at `due`.
    pub(crate) fn list_wait(&self, lock: u64, began: Tick, due: Tick) -> WaitToken<'_> {
        let wait = self.waits.enter(lock, began, due);
        self.counted.notify_one();
        wait
    }

    /// Publishes new counts a short time after the first of them, and wakes calls that have waited for long. Never
    /// returns.
    pub(crate) async fn keep_publishing(&self, clock: Clock) -> Infallible {
        loop {
            if self.waits.is_empty() {
                self.counted.notified().await;
            }
            clock.sleep_until(clock.now().after(PUBLISHED_EVERY)).await;
            self.publish();
            self.waits.wake_due(clock.now());
        }
    }
}

#[cfg(feature = "metrics")]
impl Drop for Observed {
    fn drop(&mut self) {
        self.publish();
    }
}

fn tell_all(observer: &dyn Observer, inbox: &Receiver<Event<'static>>) {
    for event in inbox {
        // The program's panic hook has reported the panic.
        let _is_told = catch_unwind(AssertUnwindSafe(|| observer.on(&event)));
    }
}

/// A counted wait of a call, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct CountedWait<'a>(&'a Observed, Group);

impl<'a> CountedWait<'a> {
    pub(crate) fn begin(observed: &'a Observed, group: Group) -> Self {
        observed.note(Fact::WaitBegan(group));
        Self(observed, group)
    }
}

impl Drop for CountedWait<'_> {
    fn drop(&mut self) {
        self.0.note(Fact::WaitEnded(self.1));
    }
}

/// The labels under which the end of a timed guard is counted. The owner of the guard ends it once. Small, because
/// guards are moved often.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTimer {
    pub(crate) kind: CountedKind,
    pub(crate) group: Group,
}

impl HoldTimer {
    /// Notes the end of a guard that had its lock for `held`.
    pub(crate) fn ends(self, observed: &Observed, held: Duration) {
        let Self { kind, group } = self;
        observed.note(Fact::GuardEnded { kind, group, held });
    }
}

/// Notes the end of a guard when this is dropped. Empty for a guard that no call has made.
#[derive(Debug, Default)]
pub(crate) struct GuardTimer(Option<(Arc<Observed>, HoldTimer, Tick, Clock)>);

impl GuardTimer {
    /// Returns the timer of a guard that a call has made.
    pub(crate) fn of(
        timed: Option<(HoldTimer, Tick)>,
        observed: &Arc<Observed>,
        clock: Clock,
    ) -> Self {
        Self(timed.map(|(timer, since)| (Arc::clone(observed), timer, since, clock)))
    }
}

impl Drop for GuardTimer {
    fn drop(&mut self) {
        if let Some((observed, timer, since, clock)) = &self.0 {
            timer.ends(observed, since.until(clock.now()));
        }
    }
}

/// The fields of the span of a guard: its name, its holder id and its token.
type HoldFields<'a> = (&'a str, &'a str, Option<FencingToken>);

/// The time that a guard holds a lock, as a span of `tracing`. It follows from the span of its call.
#[derive(Debug, Default)]
pub(crate) struct HoldSpan {
    /// Boxed, because most guards have no span, and guards are moved often.
    #[cfg(feature = "tracing")]
    _span: Option<Box<Span>>,
}

impl HoldSpan {
    #[inline]
    #[cfg_attr(not(feature = "tracing"), expect(unused_variables))]
    pub(crate) fn begin<'a>(of: impl FnOnce() -> HoldFields<'a>) -> Self {
        #[cfg(feature = "tracing")]
        if has_spans() {
            let _span = hold_span(of());
            return Self { _span };
        }
        Self::default()
    }
}

/// Begins the span of a guard, if it is wanted. It follows from the span of its call.
#[cfg(feature = "tracing")]
#[cold]
fn hold_span((name, holder, token): HoldFields<'_>) -> Option<Box<Span>> {
    let span = debug_span!(
        target: "lockset", parent: None, "lockset.hold",
        lockset.name = name, lockset.holder = holder,
        lockset.token = token.map(FencingToken::get)
    );
    if span.is_disabled() {
        return None;
    }
    span.follows_from(Span::current());
    Some(Box::new(span))
}

/// Whether spans may be wanted. Costs nothing if they are not.
#[cfg(feature = "tracing")]
pub(super) fn has_spans() -> bool {
    level_enabled!(Level::DEBUG)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    fn forced(lock: &str) -> Fact<'_> {
        Fact::event(Event::Forced { lock: lock.into() })
    }

    #[test]
    fn an_observer_that_panics_gets_the_next_event() {
        let (seen, inbox) = std::sync::mpsc::channel();
        let observer = move |event: &Event<'_>| {
            seen.send(event.to_string()).unwrap();
            assert!(!event.to_string().contains("first"), "on purpose");
        };
        let observed = Observed::by(Box::new(observer)).unwrap();
        assert!(observed.is_on());
        for lock in ["first", "second"] {
            observed.note(forced(lock));
        }
        let wait = Duration::from_secs(5);
        assert!(inbox.recv_timeout(wait).unwrap().contains("first"));
        assert!(inbox.recv_timeout(wait).unwrap().contains("second"));
        // Its thread ends when the sender is dropped.
        drop(observed);
        assert!(inbox.recv_timeout(wait).is_err());
    }

    #[test]
    fn a_blocked_observer_holds_up_nobody() {
        let gate = Arc::new((Mutex::new(false), Condvar::new()));
        let behind = Arc::clone(&gate);
        let observer = move |_: &Event<'_>| {
            let (open, opened) = &*behind;
            let open = open.lock().unwrap();
            drop(opened.wait_while(open, |open| !*open).unwrap());
        };
        let observed = Observed::by(Box::new(observer)).unwrap();
        let told = EVENTS_MAX + 10;
        for _ in 0..told {
            observed.note(forced("x"));
        }
        // The observer may be handling one more event.
        let dropped = observed.counts.totals().events_dropped;
        assert!((9..=10).contains(&dropped), "{dropped} were dropped");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    }
}

//! Counts and events of a client that no caller learns of.
//!
//! Invariants: the engine never waits for an observer, and none of its locks is held while one runs; every failure in
//! the background has a count and an event.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::Duration;

use crate::api::lost::LostReason;
use crate::engine::clock::{Clock, Tick};
use crate::observe::events::Event;
use crate::observe::group::Group;
use crate::observe::meter::{Meter, WaitCount};
use crate::observe::totals::{CountedKind, Counters, GrantedBy, count};
use crate::observe::trace;
use crate::observe::waits::Waits;

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

/// Counts what a client does, and passes events to its observer and counts to the recorder of metrics.
#[derive(Debug, Default)]
pub(crate) struct Observed {
    pub(crate) counters: Counters,
    pub(crate) meter: Meter,
    /// Waiting calls, if long waits are reported.
    pub(crate) waits: Arc<Waits>,
    /// The channel to the observer's thread, if there is one.
    events: Option<SyncSender<Event<'static>>>,
}

impl Observed {
    /// Starts the thread of an observer.
    ///
    /// # Errors
    /// If the system has no thread to give.
    pub(crate) fn by(observer: Box<dyn Observer>) -> std::io::Result<Self> {
        let (events, inbox) = sync_channel(EVENTS_MAX);
        let thread = std::thread::Builder::new().name("lockset-observer".to_owned());
        thread.spawn(move || tell_all(&*observer, &inbox))?;
        Ok(Self {
            events: Some(events),
            ..Self::default()
        })
    }

    /// Whether events have a receiver.
    pub(crate) fn is_on(&self) -> bool {
        self.events.is_some() || trace::is_on()
    }

    /// Reports an event if events have a receiver. Neither blocks nor panics.
    pub(crate) fn tell<'a>(&self, event: impl FnOnce() -> Event<'a>) {
        if self.events.is_none() && !cfg!(feature = "tracing") {
            return;
        }
        let event = event();
        trace::tell(&event);
        if let Some(events) = &self.events
            && events.try_send(event.into_owned()).is_err()
        {
            count(&self.counters.events_dropped);
            self.meter.event_dropped();
        }
    }

    /// Returns the group of this name, for locks. Reports the first name over the limit.
    pub(crate) fn group(&self, name: &str) -> Group {
        let (group, is_first_over) = Group::named(name);
        if is_first_over {
            self.tell(|| Event::TooManyGroups { group: name.into() });
        }
        group
    }

    /// Counts a call that got a lock.
    #[inline]
    pub(crate) fn granted(&self, kind: CountedKind, by: GrantedBy, group: Group) {
        self.counters.granted(kind, by);
        self.meter.granted(kind, by, group);
    }

    /// Counts a call that ended without a lock, because others held it.
    pub(crate) fn refused(&self, group: Group) {
        count(&self.counters.refusals);
        self.meter.refused(group);
    }

    /// Counts a call that has to wait. The result is kept for as long as it does.
    pub(crate) fn waits(&self, group: Group) -> WaitCount<'_> {
        count(&self.counters.waits);
        self.meter.waits(group)
    }

    /// Counts a lost hold.
    pub(crate) fn lost(&self, reason: LostReason, group: Group) {
        self.counters.lost(reason);
        self.meter.lost(reason, group);
    }

    /// Counts a renewal that left this much of a lease. Returns true if it was late.
    pub(crate) fn renewed(&self, left: Duration, lease: Duration) -> bool {
        let is_late = self.counters.renewed(left, lease);
        self.meter.renewed(left, is_late);
        is_late
    }

    pub(crate) fn renewal_failed(&self) {
        count(&self.counters.renewals_failed);
        self.meter.renewal_failed();
    }

    /// Measures the reply to a command that was sent then over the lane at this place.
    pub(crate) fn answered(&self, lane: usize, sent: Tick, clock: Clock) {
        if let Some(took) = self.counters.answered(lane, sent, clock) {
            self.meter.answered(lane, took);
        }
    }

    pub(crate) fn reconnected(&self, lane: &str) {
        self.counters.reconnected(lane);
        self.meter.reconnected(lane);
    }

    /// Counts a release in the background that was refused or abandoned.
    pub(crate) fn background_failed(&self) {
        count(&self.counters.background_failures);
        self.meter.background_failed();
    }

    /// Counts a call of a script that failed.
    pub(crate) fn script_failed(&self) {
        count(&self.counters.script_errors);
        self.meter.script_failed();
    }
}

fn tell_all(observer: &dyn Observer, inbox: &Receiver<Event<'static>>) {
    for event in inbox {
        // The program's panic hook has reported the panic.
        let _is_told = catch_unwind(AssertUnwindSafe(|| observer.on(&event)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};
    use std::time::Duration;

    fn forced(lock: &str) -> Event<'_> {
        Event::Forced { lock: lock.into() }
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
            observed.tell(|| forced(lock));
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
            observed.tell(|| forced("x"));
        }
        // One may be with the observer.
        let dropped = observed.counters.totals().events_dropped;
        assert!((9..=10).contains(&dropped), "{dropped} were dropped");
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    }

    #[cfg(not(feature = "tracing"))]
    #[test]
    fn without_an_observer_nothing_is_made() {
        let observed = Observed::default();
        observed.tell(|| unreachable!("nobody is told"));
        assert_eq!(observed.counters.totals().events_dropped, 0);
    }
}

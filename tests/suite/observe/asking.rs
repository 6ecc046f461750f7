//! Code of the program runs where facts are noted: an observer, a subscriber, a recorder. It may ask the client and its
//! guards anything there, because no mutex is held.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lockset::{Client, Event, LostReason, MultiLock};
use lockset_testkit::{Server, eventually, within};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event as Traced, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::traced::subscribe;
use crate::support::{LEASE, PATIENCE, SOON, command};

type Question = Arc<dyn Fn() + Send + Sync>;

/// Everything to ask, and how often each adapter has asked.
#[derive(Default)]
struct Asks {
    questions: Mutex<Vec<Question>>,
    by_observer: AtomicUsize,
    by_subscriber: AtomicUsize,
    by_recorder: AtomicUsize,
}

static ASKS: OnceLock<Asks> = OnceLock::new();

fn asks() -> &'static Asks {
    ASKS.get_or_init(Asks::default)
}

fn ask(by: &AtomicUsize) {
    // A question may lead to another fact, so the mutex is free while it is asked.
    let questions = asks().questions.lock().unwrap().clone();
    for question in questions {
        question();
        by.fetch_add(1, Ordering::Relaxed);
    }
}

fn may_ask(question: impl Fn() + Send + Sync + 'static) {
    asks().questions.lock().unwrap().push(Arc::new(question));
}

struct Subscribed;

impl<S: Subscriber> Layer<S> for Subscribed {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        ask(&asks().by_subscriber);
    }

    fn on_record(&self, _: &Id, _: &Record<'_>, _: Context<'_, S>) {
        ask(&asks().by_subscriber);
    }

    fn on_event(&self, _: &Traced<'_>, _: Context<'_, S>) {
        ask(&asks().by_subscriber);
    }

    fn on_enter(&self, _: &Id, _: Context<'_, S>) {
        ask(&asks().by_subscriber);
    }

    fn on_close(&self, _: Id, _: Context<'_, S>) {
        ask(&asks().by_subscriber);
    }
}

/// The recorder, and each of its handles.
struct Recorded;

impl CounterFn for Recorded {
    fn increment(&self, _: u64) {
        ask(&asks().by_recorder);
    }

    fn absolute(&self, _: u64) {}
}

impl GaugeFn for Recorded {
    fn increment(&self, _: f64) {
        ask(&asks().by_recorder);
    }

    fn decrement(&self, _: f64) {
        ask(&asks().by_recorder);
    }

    fn set(&self, _: f64) {}
}

impl HistogramFn for Recorded {
    fn record(&self, _: f64) {
        ask(&asks().by_recorder);
    }
}

/// Asks, too. It has a field, because a recorder without one passes for none.
struct Asking(#[expect(dead_code, reason = "a size")] u8);

impl Recorder for Asking {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        ask(&asks().by_recorder);
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        ask(&asks().by_recorder);
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        ask(&asks().by_recorder);
    }

    fn register_counter(&self, _: &Key, _: &Metadata<'_>) -> Counter {
        ask(&asks().by_recorder);
        Counter::from_arc(Arc::new(Recorded))
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        ask(&asks().by_recorder);
        Gauge::from_arc(Arc::new(Recorded))
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        ask(&asks().by_recorder);
        Histogram::from_arc(Arc::new(Recorded))
    }
}

/// Keeps the guard, and asks all its views from now on.
macro_rules! ask_guard {
    ($guard:expr) => {{
        let guard = Arc::new($guard);
        let (weak, loss) = (Arc::downgrade(&guard), guard.loss());
        may_ask(move || {
            let _ = (loss.is_lost(), loss.reason(), loss.remaining());
            if let Some(guard) = weak.upgrade() {
                let _ = (guard.is_lost(), guard.remaining(), guard.loss().reason());
                let _ = format!("{guard:?}");
            }
        });
        guard
    }};
}

/// One client with a guard of each kind: facts of calls, renewals, long waits, reconnects, losses.
async fn a_client_that_is_asked() {
    let server = Server::start();
    let _subscriber = subscribe(Subscribed);
    let _recorder = metrics::set_default_local_recorder(&Asking(0));
    let observer = |_: &Event<'_>| ask(&asks().by_observer);
    let builder = Client::builder(&server.url()).lease(LEASE * 3);
    let builder = builder.give_up_after(PATIENCE).observer(observer);
    let client = builder.build().await.unwrap();
    let of = client.clone();
    may_ask(move || {
        let _ = (of.stats().totals, format!("{of:?}"));
        drop(of.lock("x").group("asked"));
    });
    let lock = client.lock("x").group("first");
    let held = ask_guard!(lock.lock().await.unwrap());
    let fair = ask_guard!(client.fair_lock("fair").lock().await.unwrap());
    let read = ask_guard!(client.rw_lock("rw").read().await.unwrap());
    let permits = client.semaphore("permits").permits(3);
    let permit = ask_guard!(permits.acquire().await.unwrap());
    let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let both = ask_guard!(both.lock().await.unwrap());
    // The others are renewed before it ends.
    let short = client.lock("short").fixed_lease(LEASE * 2);
    let short = ask_guard!(short.lock().await.unwrap());
    assert!(lock.try_lock().await.unwrap().is_none());
    let waiter = lock.clone().report_wait_after(Duration::from_millis(50));
    let waited = waiter.try_lock_for(Duration::from_millis(200)).await;
    assert!(waited.unwrap().is_none());
    assert_eq!(within(SOON, short.lost()).await, LostReason::Expired);
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    command(&server, &kill).await;
    client
        .lock("y")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    command(&server, &["FLUSHALL"]).await;
    assert_eq!(within(SOON, held.lost()).await, LostReason::Revoked);
    within(SOON, fair.lost()).await;
    within(SOON, read.lost()).await;
    within(SOON, permit.lost()).await;
    within(SOON, both.lost()).await;
    let last = ask_guard!(client.lock("last").lock().await.unwrap());
    client.shutdown().await.unwrap();
    assert_eq!(within(SOON, last.lost()).await, LostReason::Closed);
    eventually(SOON, "each has asked", async || {
        let asks = asks();
        let by = [&asks.by_observer, &asks.by_subscriber, &asks.by_recorder];
        by.iter().all(|by| by.load(Ordering::Relaxed) > 0)
    })
    .await;
}

/// On a thread of its own with a time limit, because locking a mutex twice would hang.
#[test]
fn every_adapter_may_ask_every_view() {
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().build().unwrap();
        runtime.block_on(a_client_that_is_asked());
        asks().questions.lock().unwrap().clear();
        ended.send(()).unwrap();
    });
    end.recv_timeout(SOON * 8).expect("it ends");
}

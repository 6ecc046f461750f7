//! Metrics recorded through the facade `metrics`, read from an exporter's page.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use lockset::{Client, LostReason, locked};
use lockset_testkit::{Server, eventually, within};
use metrics::{
    Counter, CounterFn, Gauge, GaugeFn, Histogram, HistogramFn, Key, KeyName, Metadata, Recorder,
    SharedString, Unit,
};
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle, PrometheusRecorder};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{
    LEASE, SOON, client, client_with_lease, command, idle, nothing_left, patient_client,
};

/// A recorder for the test's thread, on which its runtime runs.
pub(super) fn recorder() -> (PrometheusRecorder, Page) {
    let recorder = PrometheusBuilder::new().build_recorder();
    let page = Page(recorder.handle(), RefCell::default());
    (recorder, page)
}

/// The page of an exporter. Clients flush their counts before the page is rendered.
pub(super) struct Page(PrometheusHandle, RefCell<Vec<Client>>);

impl Page {
    pub(super) fn serves(&self, client: &Client) {
        self.1.borrow_mut().push(client.clone());
    }

    pub(super) fn render(&self) -> String {
        for client in &*self.1.borrow() {
            let _ = client.stats();
        }
        self.0.render()
    }

    /// The value of the series with this name and all these labels, or `None`.
    pub(super) fn value(&self, name: &str, labels: &[(&str, &str)]) -> Option<f64> {
        let page = self.render();
        let has_all = |line: &&str| {
            let is_it = line.split(['{', ' ']).next() == Some(name);
            is_it
                && labels
                    .iter()
                    .all(|(label, value)| line.contains(&format!("{label}=\"{value}\"")))
        };
        let mut found = page.lines().filter(has_all);
        let line = found.next()?;
        assert_eq!(found.next(), None, "one series of {name} {labels:?}");
        let (_, value) = line.rsplit_once(' ').expect("a value");
        Some(value.parse().expect("a number"))
    }

    /// Like `value`, for a series that must exist.
    #[track_caller]
    pub(super) fn of(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        let value = self.value(name, labels);
        value.unwrap_or_else(|| panic!("{name} {labels:?} in {}", self.render()))
    }
}

/// The name of a kind of lock in metrics.
fn kind_of<P: Primitive>() -> &'static str {
    let name = std::any::type_name::<P>();
    let kinds = [
        ("ReentrantLock", "reentrant"),
        ("FairLock", "fair"),
        ("ReadSide", "read"),
        ("WriteSide", "write"),
        ("Multi", "multi"),
        ("RedlockLock", "redlock"),
    ];
    let kind = kinds.iter().find(|(lock, _)| name.ends_with(lock));
    kind.expect("a kind of lock").1
}

/// A granted call, a refused call and a dropped call, and the hold time.
async fn a_call_and_its_hold_by_kind_and_group<P: Primitive>() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    let rival = P::rival(&client, "secret").group("tests");
    let lock = P::of(&client, "secret").group("tests");
    let labels = [("kind", kind_of::<P>()), ("group", "tests")];
    let calls = |outcome| {
        let labels = [labels[0], labels[1], ("outcome", outcome)];
        page.value("lockset_acquire_seconds_count", &labels)
    };
    let guard = lock.lock().await.unwrap();
    assert_eq!(calls("granted"), Some(1.0));
    assert_eq!(page.of("lockset_held", &labels), 1.0);
    assert_eq!(page.of("lockset_hold_seconds_count", &labels), 0.0);
    // Longer than the asserted time, by more than rounding can take away.
    tokio::time::sleep(Duration::from_millis(55)).await;
    guard.release().await.unwrap();
    assert_eq!(page.of("lockset_held", &labels), 0.0);
    assert_eq!(page.of("lockset_hold_seconds_count", &labels), 1.0);
    let held = page.of("lockset_hold_seconds_sum", &labels);
    assert!((0.05..SOON.as_secs_f64()).contains(&held), "{held}");

    let other = rival.lock().await.unwrap();
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(calls("refused"), Some(1.0));
    {
        let mut call = std::pin::pin!(lock.lock());
        assert!(call.as_mut().now_or_never().is_none());
        // The wait has begun. It is longer than the asserted time, by more than rounding can take
        // away.
        let wait = tokio::time::sleep(Duration::from_millis(55));
        tokio::select! {
            _ = call => unreachable!("it is held"),
            () = wait => {}
        }
    }
    assert_eq!(calls("cancelled"), Some(1.0));
    let waited = [labels[0], labels[1], ("outcome", "cancelled")];
    let waited = page.of("lockset_acquire_seconds_sum", &waited);
    assert!((0.05..SOON.as_secs_f64()).contains(&waited), "{waited}");
    drop(other);
    idle(&client).await;
    // Metrics do not reveal the names of locks.
    assert!(!page.render().contains("secret"));
}

for_every_primitive!("current_thread": a_call_and_its_hold_by_kind_and_group a_guard_that_is_the_last_of_its_client);
for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    a_call_and_its_hold_by_kind_and_group a_guard_that_is_the_last_of_its_client
}

/// The counts of a client are flushed when the client ends, including the end of this guard.
async fn a_guard_that_is_the_last_of_its_client<P: Primitive>() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let labels = [("kind", kind_of::<P>()), ("group", "last")];
    for (count, forgets) in [(1.0, false), (2.0, true)] {
        let client = patient_client(&server.url()).await;
        let guard = P::of(&client, &format!("x{count}"))
            .group("last")
            .lock()
            .await
            .unwrap();
        drop(client);
        if forgets {
            guard.forget()
        } else {
            drop(guard)
        }
        eventually(SOON, "its end is recorded", async || {
            page.value("lockset_held", &labels) == Some(0.0)
                && page.value("lockset_hold_seconds_count", &labels) == Some(count)
        })
        .await;
    }
}

#[tokio::test]
async fn who_waits_and_what_is_granted() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    let lock = client.lock("x").group("who waits");
    let group = ("group", "who waits");
    let guard = lock.lock().await.unwrap();
    let next = lockset_testkit::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    });
    eventually(SOON, "one waits", async || {
        page.value("lockset_waiting", &[group]) == Some(1.0)
    })
    .await;
    guard.release().await.unwrap();
    let next = within(SOON, next).await.unwrap();
    assert_eq!(page.of("lockset_waiting", &[group]), 0.0);
    assert_eq!(page.of("lockset_waits_total", &[group]), 1.0);
    let grants = |path| {
        let labels = [("kind", "reentrant"), ("path", path), group];
        page.value("lockset_grants_total", &labels)
    };
    // In memory, unless the client has used up its turns.
    let all = ["server", "memory"].map(|path| grants(path).unwrap_or_default());
    assert!(all[0] >= 1.0 && all[0] + all[1] == 2.0, "{all:?}");
    assert!(lock.try_lock().await.unwrap().is_none());
    assert_eq!(page.of("lockset_refusals_total", &[group]), 1.0);
    drop(next);
}

/// A constant works like a literal.
const ATTRIBUTE: &str = "attribute";

#[locked("x", group = ATTRIBUTE)]
async fn one(_locks: &Client) -> lockset::Result<()> {
    Ok(())
}

#[locked(all("x", fair "y"), group = "attributes")]
async fn several(_locks: &Client) -> lockset::Result<()> {
    Ok(())
}

#[tokio::test]
async fn the_group_of_a_function_under_a_lock() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    one(&client).await.unwrap();
    several(&client).await.unwrap();
    let holds = |kind, group| {
        let labels = [("kind", kind), ("group", group)];
        page.of("lockset_hold_seconds_count", &labels)
    };
    assert_eq!(holds("reentrant", "attribute"), 1.0);
    assert_eq!(holds("multi", "attributes"), 1.0);
    for kind in ["reentrant", "fair"] {
        let labels = [("kind", kind), ("group", "attributes")];
        assert_eq!(page.of("lockset_grants_total", &labels), 1.0, "{kind}");
    }
}

/// The facade keeps nothing for a recorder that is installed later. The client checks for a
/// recorder now and then.
#[tokio::test]
async fn a_recorder_that_comes_after_the_client() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = client.lock("x");
    let before = lock.lock().await.unwrap();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    page.serves(&client);
    let kind = [("kind", "reentrant")];
    let held = || page.value("lockset_held", &kind);
    let mut unseen = 1.0;
    let other = client.lock("y");
    let guard = loop {
        let guard = other.lock().await.unwrap();
        if held().is_some() {
            break guard;
        }
        guard.release().await.unwrap();
        unseen += 1.0;
        tokio::time::sleep(Duration::from_millis(10)).await;
        assert!(unseen < 1_000.0, "it does not look");
    };
    assert_eq!(held(), Some(1.0));
    // The call was not recorded, so its end is not either.
    before.release().await.unwrap();
    assert_eq!(held(), Some(1.0));
    guard.release().await.unwrap();
    assert_eq!(held(), Some(0.0));
    assert_eq!(page.of("lockset_grants_total", &kind), 1.0);
    let by_server = u32::try_from(client.stats().totals.reentrant.by_server).unwrap();
    assert_eq!(f64::from(by_server), unseen + 1.0);
}

/// Without a call to the client, counts reach the page by a timer, and the rest when the client
/// ends.
#[tokio::test]
async fn counts_are_flushed_soon_and_once() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    let lock = client.lock("x");
    let calls = [("kind", "reentrant"), ("outcome", "granted")];
    let told = |name| page.value(name, &calls).unwrap_or_default();
    for round in 1..=3 {
        lock.lock().await.unwrap().release().await.unwrap();
        eventually(SOON, "the tick", async || {
            told("lockset_calls_total") == f64::from(round)
        })
        .await;
        assert_eq!(told("lockset_acquire_seconds_count"), f64::from(round));
    }
    lock.lock().await.unwrap().release().await.unwrap();
    client.shutdown().await.unwrap();
    assert_eq!(told("lockset_calls_total"), 4.0, "with its end");
    drop(lock);
}

/// More calls than an exporter should store times of: all are counted, and some are timed.
#[tokio::test]
async fn more_calls_than_an_exporter_can_keep() {
    const CALLS: u32 = 10_000;
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    let lock = client.lock("x").sticky(lockset::STICKY_MAX);
    let calls = [("kind", "reentrant"), ("outcome", "granted")];
    let began = std::time::Instant::now();
    for _ in 0..CALLS {
        lock.lock().await.unwrap().release().await.unwrap();
    }
    let all = f64::from(CALLS);
    assert_eq!(page.of("lockset_calls_total", &calls), all);
    assert_eq!(page.of("lockset_held", &calls[..1]), 0.0);
    let timed = page.of("lockset_acquire_seconds_count", &calls);
    // Other ticks may have passed, each with its own budget of timed calls.
    let ticks = f64::from(u32::try_from(began.elapsed().as_millis() / 250 + 2).unwrap());
    assert!(
        timed >= 1.0 && timed <= (5_000.0 * ticks).min(all),
        "{timed}"
    );
    let sum = page.of("lockset_acquire_seconds_sum", &calls);
    assert!(sum > 0.0 && sum < began.elapsed().as_secs_f64(), "{sum}");
}

#[tokio::test]
async fn renewals_losses_and_round_trips() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    // An answer that takes a sixth of it is a failure.
    let lease = LEASE * 5;
    let client = client_with_lease(&server.url(), lease).await;
    page.serves(&client);
    let guard = client.lock("x").group("losses").lock().await.unwrap();
    eventually(SOON, "a renewal", async || {
        page.value("lockset_renewal_margin_seconds_count", &[]) > Some(0.0)
    })
    .await;
    let renewals = |outcome| page.of("lockset_renewals_total", &[("outcome", outcome)]);
    assert!(renewals("in_time") + renewals("late") > 0.0);
    assert_eq!(renewals("failed"), 0.0);
    let count = page.of("lockset_renewal_margin_seconds_count", &[]);
    let mean = page.of("lockset_renewal_margin_seconds_sum", &[]) / count;
    assert!((0.0..lease.as_secs_f64()).contains(&mean), "{mean}");
    let round_trips = |lane| page.of("lockset_round_trip_seconds_count", &[("lane", lane)]);
    assert!(round_trips("command") > 0.0 && round_trips("renewal") > 0.0);
    let lost = |reason, group| {
        let labels = [("reason", reason), ("group", group)];
        page.of("lockset_lost_total", &labels)
    };
    // The series exist before anything is lost, so that the first loss is seen as an increase.
    for reason in ["expired", "revoked", "closed", "max_hold"] {
        assert_eq!((lost(reason, ""), lost(reason, "losses")), (0.0, 0.0));
    }
    command(&server, &["DEL", "x"]).await;
    assert_eq!(within(SOON, guard.lost()).await, LostReason::Revoked);
    eventually(SOON, "it is counted", async || {
        lost("revoked", "losses") == 1.0
    })
    .await;
    assert_eq!(lost("revoked", ""), 0.0);
    drop(guard);
}

/// A refused release, a broken connection, and a key that is not a lock.
#[tokio::test]
async fn what_goes_wrong() {
    let server = Server::start();
    let acl = "ACL SETUSER weak on >pass ~* &* +@all -hdel -del -unlink -hincrby";
    command(&server, &acl.split(' ').collect::<Vec<_>>()).await;
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let url = format!("redis://weak:pass@{}/", server.addr());
    let client = Client::connect(&url).await.unwrap();
    page.serves(&client);
    drop(client.lock("x").lock().await.unwrap());
    let failures = "lockset_background_failures_total";
    eventually(SOON, "the refusal", async || page.of(failures, &[]) == 1.0).await;
    assert!(page.of("lockset_script_errors_total", &[]) >= 1.0);
    let kill = ["CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes"];
    command(&server, &kill).await;
    assert!(client.lock("y").try_lock().await.unwrap().is_some());
    let lane = [("lane", "command")];
    assert_eq!(page.of("lockset_reconnects_total", &lane), 1.0);
    command(&server, &["SET", "text", "1"]).await;
    assert!(client.lock("text").try_lock().await.is_err());
    let errors = [("kind", "reentrant"), ("outcome", "error")];
    assert_eq!(page.of("lockset_acquire_seconds_count", &errors), 1.0);
}

/// A hold keeps its labels when it is handed off to another task.
#[tokio::test]
async fn a_hand_off_to_another_group() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    let mut tries = 0;
    // A client that has used up its turns hands nothing off.
    let next = loop {
        let guard = client.lock("x").group("first").lock().await.unwrap();
        let next = lockset_testkit::spawn({
            let lock = client.lock("x").group("second");
            async move { lock.lock().await.unwrap() }
        });
        tokio::task::yield_now().await;
        guard.release().await.unwrap();
        let next = within(SOON, next).await.unwrap();
        if client.stats().totals.reentrant.in_memory > 0 {
            break next;
        }
        next.release().await.unwrap();
        tries += 1;
        assert!(tries < 100, "{:?}", client.stats());
    };
    let memory = [("path", "memory"), ("group", "second")];
    assert_eq!(page.of("lockset_grants_total", &memory), 1.0);
    assert!(client.lock("x").force_unlock().await.unwrap());
    let lost = [("reason", "revoked"), ("group", "second")];
    assert_eq!(page.of("lockset_lost_total", &lost), 1.0);
    drop(next);
}

/// Each metric has a description, and no label grows with the program's data.
#[tokio::test]
async fn every_metric_is_described_and_bounded() {
    let server = Server::start();
    let (recorder, page) = recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let client = patient_client(&server.url()).await;
    page.serves(&client);
    let cycle = async |name: String| {
        let guard = client.lock(name).lock().await.unwrap();
        guard.release().await.unwrap();
    };
    cycle("first".to_owned()).await;
    let series = || page.render().lines().count();
    let before = series();
    for lock in 0..50 {
        cycle(format!("lock:{lock}")).await;
    }
    assert_eq!(series(), before, "{}", page.render());
    let rendered = page.render();
    let types = rendered.lines().filter_map(|line| {
        let line = line.strip_prefix("# TYPE ")?;
        line.split(' ').next()
    });
    let mut seen = 0;
    for name in types {
        assert!(rendered.contains(&format!("# HELP {name} ")), "{name}");
        seen += 1;
    }
    assert!(seen > 8, "{rendered}");
}

/// Panics on everything except grants, and optionally when asked for a handle.
struct Broken {
    has_handles: bool,
    grants: Arc<AtomicU64>,
}

struct BrokenHandle;

const BROKEN: &str = "the recorder is broken";

impl CounterFn for BrokenHandle {
    fn increment(&self, _by: u64) {
        panic!("{BROKEN}")
    }

    fn absolute(&self, _value: u64) {
        panic!("{BROKEN}")
    }
}

impl GaugeFn for BrokenHandle {
    fn increment(&self, _by: f64) {
        panic!("{BROKEN}")
    }

    fn decrement(&self, _by: f64) {
        panic!("{BROKEN}")
    }

    fn set(&self, _value: f64) {
        panic!("{BROKEN}")
    }
}

impl HistogramFn for BrokenHandle {
    fn record(&self, _value: f64) {
        panic!("{BROKEN}")
    }
}

impl Broken {
    fn handle(&self) -> Arc<BrokenHandle> {
        assert!(self.has_handles, "{BROKEN}");
        Arc::new(BrokenHandle)
    }
}

impl Recorder for Broken {
    fn describe_counter(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.handle();
    }

    fn describe_gauge(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.handle();
    }

    fn describe_histogram(&self, _: KeyName, _: Option<Unit>, _: SharedString) {
        self.handle();
    }

    fn register_counter(&self, key: &Key, _: &Metadata<'_>) -> Counter {
        let handle = self.handle();
        if key.name() == "lockset_grants_total" {
            return Counter::from_arc(Arc::clone(&self.grants));
        }
        Counter::from_arc(handle)
    }

    fn register_gauge(&self, _: &Key, _: &Metadata<'_>) -> Gauge {
        Gauge::from_arc(self.handle())
    }

    fn register_histogram(&self, _: &Key, _: &Metadata<'_>) -> Histogram {
        Histogram::from_arc(self.handle())
    }
}

/// Renewals, releases and waiters continue, and the other metrics are recorded.
#[tokio::test]
async fn a_recorder_that_panics_affects_no_lock() {
    for has_handles in [true, false] {
        let server = Server::start();
        let grants = Arc::new(AtomicU64::new(0));
        let recorder = Broken {
            has_handles,
            grants: Arc::clone(&grants),
        };
        let _recorder = metrics::set_default_local_recorder(&recorder);
        let ours = client(&server.url()).await;
        let guard = ours.lock("x").group("broken").lock().await.unwrap();
        assert!(tokio::time::timeout(LEASE * 2, guard.lost()).await.is_err());
        let lock = ours.lock("x");
        let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
        eventually(SOON, "it waits", async || ours.stats().waiters == 1).await;
        drop(guard);
        drop(within(SOON, waiter).await.unwrap());
        idle(&ours).await;
        nothing_left(&server).await;
        within(SOON, ours.shutdown()).await.unwrap();
        let told = if has_handles { 2 } else { 0 };
        assert_eq!(grants.load(Ordering::Relaxed), told);
    }
}

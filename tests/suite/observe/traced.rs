//! The spans and events of the feature `tracing`.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock, Mutex};

use lockset::{Client, Loss, MultiLock, Owner, Redlock};
use lockset_testkit::{Server, eventually};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::DefaultGuard;
use tracing::{Dispatch, Event, Instrument, Subscriber, info_span};
use tracing_subscriber::layer::{Context, SubscriberExt};
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::{Layer, Registry};

use crate::support::{LEASE, SOON, client, command, patient_client};

/// The output of a subscriber, one line per span or event.
#[derive(Clone, Default)]
pub(super) struct Seen(Arc<Mutex<Vec<String>>>);

/// Fields as `name=value`.
#[derive(Default)]
struct Fields(String);

impl Visit for Fields {
    fn record_str(&mut self, field: &Field, value: &str) {
        write!(self.0, " {}={value}", field.name()).unwrap();
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, " {}={value:?}", field.name()).unwrap();
    }
}

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Seen {
    fn on_new_span(&self, attributes: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        if attributes.metadata().target() == "lockset" {
            let mut fields = Fields::default();
            attributes.record(&mut fields);
            self.push(format!("{}{}", attributes.metadata().name(), fields.0));
        }
    }

    fn on_record(&self, id: &Id, values: &Record<'_>, context: Context<'_, S>) {
        let mut fields = Fields::default();
        values.record(&mut fields);
        let span = context.span(id).expect("a span that is open");
        if span.metadata().target() == "lockset" {
            self.push(format!("{}{}", span.name(), fields.0));
        }
    }

    fn on_follows_from(&self, id: &Id, follows: &Id, context: Context<'_, S>) {
        let [span, first] = [id, follows].map(|id| context.span(id).expect("a span that is open"));
        if span.metadata().target() == "lockset" {
            self.push(format!("{} follows from {}", span.name(), first.name()));
        }
    }

    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        if event.metadata().target() == "lockset" {
            let mut fields = Fields::default();
            event.record(&mut fields);
            let metadata = event.metadata();
            self.push(format!(
                "{} {}{}",
                metadata.level(),
                metadata.name(),
                fields.0
            ));
        }
    }

    fn on_close(&self, id: Id, context: Context<'_, S>) {
        let span = context.span(&id).expect("it is closing");
        if span.metadata().target() == "lockset" {
            self.push(format!("end {}", span.name()));
        }
    }
}

impl Seen {
    fn push(&self, line: String) {
        self.0.lock().unwrap().push(line);
    }

    /// The lines since the last call.
    pub(super) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

/// Sets a subscriber for this thread, on which the test's runtime runs.
pub(super) fn subscribe(layer: impl Layer<Registry> + Send + Sync) -> DefaultGuard {
    // With a single subscriber, `tracing` caches the interest of a call site from the first thread
    // to reach it, which may belong to another test without a subscriber. A second one prevents
    // that.
    static ANOTHER: LazyLock<Dispatch> =
        LazyLock::new(|| Dispatch::new(tracing_subscriber::registry()));
    LazyLock::force(&ANOTHER);
    tracing::subscriber::set_default(tracing_subscriber::registry().with(layer))
}

pub(super) fn seen() -> (Seen, DefaultGuard) {
    let seen = Seen::default();
    (seen.clone(), subscribe(seen))
}

#[tokio::test]
async fn a_span_for_the_call_and_one_for_the_hold() {
    let server = Server::start();
    let (seen, _default) = seen();
    let client = patient_client(&server.url()).await;
    let lock = client.fair_lock("x").fenced();
    let guard = lock.lock().await.unwrap();
    let token = guard.fencing_token().unwrap().get();
    let holder = guard.holder_id().to_owned();
    assert_eq!(
        seen.take(),
        [
            "lockset.acquire lockset.kind=fair lockset.name=x".to_owned(),
            format!("lockset.hold lockset.name=x lockset.holder={holder} lockset.token={token}"),
            "lockset.hold follows from lockset.acquire".to_owned(),
            "lockset.acquire lockset.outcome=granted".to_owned(),
            "end lockset.acquire".to_owned(),
        ]
    );
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(
        seen.take()
            .contains(&"lockset.acquire lockset.outcome=refused".to_owned())
    );
    guard.release().await.unwrap();
    assert_eq!(seen.take(), ["end lockset.hold"]);

    let read = client.rw_lock("rw").owner(&Owner::new());
    let reading = read.read().await.unwrap();
    assert!(read.write().await.is_err());
    let lines = seen.take();
    assert!(lines.contains(&"lockset.acquire lockset.kind=write lockset.name=rw".to_owned()));
    assert!(lines.contains(&"lockset.acquire lockset.outcome=error".to_owned()));
    drop(reading);
}

/// Also where the call was made in a span of the program.
#[tokio::test]
async fn a_hold_follows_from_its_call() {
    let servers = [Server::start(), Server::start(), Server::start()];
    let (seen, _default) = seen();
    let mut clients = Vec::new();
    for server in &servers {
        clients.push(patient_client(&server.url()).await);
    }
    let client = clients[0].clone();
    let redlock = Redlock::builder(clients).persistent_nodes();
    let (quorum, seats) = (redlock.build().unwrap(), client.semaphore("seats"));
    let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let follows = || {
        let lines = seen.take();
        let follows: Vec<_> = lines
            .iter()
            .filter_map(|l| l.strip_prefix("lockset.hold "))
            .collect();
        let (follows, holds): (Vec<_>, Vec<_>) = follows
            .into_iter()
            .partition(|line| line.starts_with("follows from "));
        assert!(
            follows
                .iter()
                .all(|line| *line == "follows from lockset.acquire"),
            "{lines:?}"
        );
        assert_eq!(follows.len(), holds.len(), "{lines:?}");
        holds.len()
    };
    let work = async {
        let guard = client.rw_lock("rw").write().await.unwrap();
        assert_eq!(follows(), 1);
        guard.release().await.unwrap();
        let guard = both.lock().await.unwrap();
        assert_eq!(follows(), 2);
        guard.release().await.unwrap();
        let guard = seats.permits(2).acquire().await.unwrap();
        assert_eq!(follows(), 1);
        guard.release().await.unwrap();
        let guard = quorum.lock("q").lock().await.unwrap();
        assert!(follows() >= 2);
        guard.release().await.unwrap();
    };
    work.instrument(info_span!("of the program")).await;
}

#[tokio::test]
async fn a_multi_lock_has_a_hold_for_each_member() {
    let server = Server::start();
    let (seen, _default) = seen();
    let client = patient_client(&server.url()).await;
    let both = MultiLock::new([client.lock("a"), client.lock("b")]).unwrap();
    let guard = both.lock().await.unwrap();
    let holds =
        |lines: &[String], start: &str| lines.iter().filter(|line| line.starts_with(start)).count();
    let lines = seen.take();
    assert_eq!(holds(&lines, "lockset.hold lockset.name="), 2, "{lines:?}");
    assert_eq!(holds(&lines, "end lockset.hold"), 0, "{lines:?}");
    guard.release().await.unwrap();
    assert_eq!(holds(&seen.take(), "end lockset.hold"), 2);
}

#[tokio::test]
async fn a_loss_is_a_warning() {
    let server = Server::start();
    let (seen, _default) = seen();
    let client = client(&server.url()).await;
    let guard = client.lock("x").lease(LEASE * 3).lock().await.unwrap();
    command(&server, &["DEL", "x"]).await;
    let lines = Mutex::new(Vec::new());
    eventually(SOON, "the warning", async || {
        let mut lines = lines.lock().unwrap();
        lines.extend(seen.take());
        lines.iter().any(|line: &String| {
            line.starts_with("WARN lockset.lost ")
                && line.contains(" lockset.name=x ")
                && line.contains("lockset.reason=Revoked")
        })
    })
    .await;
    drop(guard);
}

/// Checks at each span whether a guard is lost, and counts how often it was not.
#[derive(Clone, Default)]
struct Asks {
    of: Arc<Mutex<Option<Loss>>>,
    held: Arc<AtomicUsize>,
}

impl<S: Subscriber> Layer<S> for Asks {
    fn on_new_span(&self, _: &Attributes<'_>, _: &Id, _: Context<'_, S>) {
        let of = self.of.lock().unwrap().clone();
        if of.is_some_and(|loss| !loss.is_lost()) {
            self.held.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// A late vote is reported like any other hold. The subscriber may then check whether all holds are
/// lost.
#[test]
fn a_subscriber_may_query_guards_during_a_late_vote() {
    let asked = async || {
        let asks = Asks::default();
        let _default = subscribe(asks.clone());
        let servers = [Server::start(), Server::start(), Server::start()];
        let mut clients: Vec<Client> = Vec::new();
        for server in &servers {
            clients.push(patient_client(&server.url()).await);
        }
        let redlock = Redlock::builder(clients.clone()).persistent_nodes();
        let lock = redlock.build().unwrap().lock("x");
        servers[2].stop();
        let guard = lock.lock().await.unwrap();
        *asks.of.lock().unwrap() = Some(guard.loss());
        servers[2].cont();
        eventually(SOON, "the third has joined", async || {
            clients[2].stats().holds == 1
        })
        .await;
        guard.release().await.unwrap();
        assert!(
            asks.held.load(Ordering::Relaxed) > 0,
            "the subscriber was called"
        );
    };
    let (ended, end) = std::sync::mpsc::channel();
    // On a separate thread with a time limit, because locking a mutex twice would hang.
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.unwrap().block_on(asked());
        ended.send(()).unwrap();
    });
    end.recv_timeout(SOON * 4).expect("it ends");
}

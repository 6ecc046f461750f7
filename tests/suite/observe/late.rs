//! A renewal that comes late: the event, the metric and the line of the log.

use std::time::Duration;

use lockset::{Client, Event, ReentrantGuard};
use lockset_testkit::{Proxy, Server, eventually};
use tracing_subscriber::layer::{Context, Layer};

use super::observed::Told;
use super::{metered, traced};
use crate::support::{SOON, ask, client_with_lease};

const LONGER: Duration = Duration::from_millis(7_200);

/// A hold whose server cannot be reached until less than a third of the lease is left.
async fn renewed_late(server: &Server, proxy: &Proxy, client: &Client) -> ReentrantGuard {
    let guard = client.lock("x").lock().await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    let mut admin = server.admin().await;
    eventually(SOON, "less than a third is left", async || {
        let left: u64 = ask(&mut admin, &["PTTL", "x"]).await;
        Duration::from_millis(left) < LONGER / 3
    })
    .await;
    proxy.refuse(false);
    guard
}

#[tokio::test]
async fn a_late_renewal_is_counted_and_told() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let (seen, _default) = traced::seen();
    let (recorder, page) = metered::recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let (told, lease) = (Told::default(), LONGER);
    let client = told.client(&proxy.url(), lease).await;
    page.serves(&client);
    let guard = renewed_late(&server, &proxy, &client).await;
    told.of("it is late", |event| {
        let Event::RenewalLate {
            lock,
            left,
            lease: of,
            ..
        } = event
        else {
            return false;
        };
        lock == "x" && *left < lease / 3 && *of == lease
    })
    .await;
    assert_eq!(
        page.of("lockset_renewals_total", &[("outcome", "late")]),
        1.0
    );
    let lines = seen.take();
    let is_it = |line: &&String| {
        line.starts_with("WARN lockset.renewal_late ") && line.contains(" lockset.name=x ")
    };
    assert_eq!(lines.iter().filter(is_it).count(), 1, "{lines:?}");
    guard.release().await.unwrap();
}

/// A lock that was handed over has a short lease until its first renewal, which is due at once.
#[tokio::test]
async fn the_first_renewal_after_a_handover_is_not_late() {
    let server = Server::start();
    let client = async || client_with_lease(&server.url(), LONGER * 4).await;
    let (ours, theirs) = (client().await, client().await);
    let lock = theirs.fair_lock("x");
    let totals = || theirs.stats().totals;
    eventually(SOON, "it is handed over, and renewed", async || {
        let held = ours.fair_lock("x").lock().await.unwrap();
        let waiter = lockset_testkit::spawn({
            let lock = lock.clone();
            async move { lock.lock().await.unwrap() }
        });
        eventually(SOON, "it waits", async || {
            lock.waiters().await.unwrap().len() == 1
        })
        .await;
        held.release().await.unwrap();
        let guard = waiter.await.unwrap();
        // A full lease comes from the server, or from that renewal.
        eventually(SOON, "a full lease", async || guard.remaining() > LONGER).await;
        guard.release().await.unwrap();
        totals().fair.handed_over > 0 && totals().renewals.renewed > 0
    })
    .await;
    let renewals = totals().renewals;
    assert_eq!(renewals.late, 0, "{renewals:?}");
    let least = renewals.least_left_percent.unwrap();
    assert!(least > 33, "{renewals:?}");
}

/// A layer that panics when a renewal is late.
struct Panics;

impl<S: tracing::Subscriber> Layer<S> for Panics {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        assert_ne!(
            event.metadata().name(),
            "lockset.renewal_late",
            "on purpose"
        );
    }
}

#[tokio::test]
async fn a_subscriber_that_panics_ends_no_renewals() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let _default = traced::subscribe(Panics);
    let client = client_with_lease(&proxy.url(), LONGER).await;
    let guard = renewed_late(&server, &proxy, &client).await;
    let renewals = || client.stats().totals.renewals;
    eventually(SOON, "it is late", async || renewals().late == 1).await;
    // Three of them in each lease.
    let renewed = renewals().renewed;
    eventually(LONGER * 3, "it lives for two more leases", async || {
        assert!(!guard.is_lost());
        renewals().renewed >= renewed + 6
    })
    .await;
    guard.release().await.unwrap();
}

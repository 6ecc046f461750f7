//! A renewal that comes late: the event, the metric and the line of the log.

use std::time::Duration;

use lockset::Event;
use lockset_testkit::{Proxy, Server, eventually};

use super::observed::Told;
use super::{metered, traced};
use crate::support::{LEASE, SOON, ask};

/// Its server cannot be reached until a third of the lease is left.
#[tokio::test]
async fn a_late_renewal_is_counted_and_told() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let (seen, _default) = traced::seen();
    let (recorder, page) = metered::recorder();
    let _recorder = metrics::set_default_local_recorder(&recorder);
    let (told, lease) = (Told::default(), LEASE * 4);
    let client = told.client(&proxy.url(), lease).await;
    page.serves(&client);
    let guard = client.lock("x").lock().await.unwrap();
    proxy.refuse(true);
    proxy.cut();
    let mut admin = server.admin().await;
    eventually(SOON, "less than a third is left", async || {
        let left: u64 = ask(&mut admin, &["PTTL", "x"]).await;
        Duration::from_millis(left) < lease / 3
    })
    .await;
    proxy.refuse(false);
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

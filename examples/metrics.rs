//! Serves what a client counts as `/metrics`, for Prometheus. The dashboard and the alerts of
//! `docs/observability` are written for these names.
//!
//! ```sh
//! cargo run --example metrics                     # does some work, reads its own page, ends
//! cargo run --example metrics -- 127.0.0.1:9464   # serves until it is stopped
//! ```

use std::fmt::{Display, Write};
use std::io;
use std::time::Duration;

use lockset::{Client, ClientStats, Event, LostReason, Wait};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// A page in the text format of Prometheus.
#[derive(Default)]
struct Page(String);

impl Page {
    fn metric<L: Display>(&mut self, kind: &str, name: &str, help: &str, values: &[(L, u64)]) {
        let page = &mut self.0;
        writeln!(page, "# HELP {name} {help}\n# TYPE {name} {kind}").expect("a String takes it");
        for (labels, value) in values {
            writeln!(page, "{name}{labels} {value}").expect("a String takes it");
        }
    }

    fn gauge(&mut self, name: &str, help: &str, value: usize) {
        self.metric("gauge", name, help, &[("", value as u64)]);
    }

    fn counter<L: Display>(&mut self, name: &str, help: &str, values: &[(L, u64)]) {
        self.metric("counter", name, help, values);
    }
}

fn page(stats: &ClientStats) -> String {
    let mut page = Page::default();
    page.gauge(
        "lockset_locks",
        "Locks held, waited for or being released",
        stats.locks,
    );
    page.gauge("lockset_holds", "Holds under the watchdog", stats.holds);
    page.gauge(
        "lockset_waiters",
        "Calls that wait for a lock",
        stats.waiters,
    );
    page.gauge(
        "lockset_subscriptions",
        "Channels subscribed to",
        stats.subscriptions,
    );
    page.gauge(
        "lockset_background",
        "Unfinished background work",
        stats.background,
    );
    let totals = &stats.totals;
    let kinds = [
        ("reentrant", totals.reentrant),
        ("fair", totals.fair),
        ("read", totals.read),
        ("write", totals.write),
    ];
    let grants: Vec<_> = kinds
        .iter()
        .flat_map(|(kind, grants)| {
            let label = move |path| format!("{{kind=\"{kind}\",path=\"{path}\"}}");
            [
                (label("server"), grants.by_server),
                (label("handover"), grants.handed_over),
                (label("memory"), grants.in_memory),
                (label("reentry"), grants.reentered),
            ]
        })
        .collect();
    page.counter("lockset_grants_total", "Locks that calls got", &grants);
    page.counter(
        "lockset_refusals_total",
        "Calls that got no lock",
        &[("", totals.refusals)],
    );
    page.counter(
        "lockset_waits_total",
        "Calls that had to wait",
        &[("", totals.waits)],
    );
    let lost = |reason| totals.losses.of(reason);
    let losses = [
        ("{reason=\"expired\"}", lost(LostReason::Expired)),
        ("{reason=\"revoked\"}", lost(LostReason::Revoked)),
        ("{reason=\"closed\"}", lost(LostReason::Closed)),
    ];
    page.counter("lockset_lost_total", "Holds that were lost", &losses);
    let renewals = &totals.renewals;
    let outcomes = [
        ("{outcome=\"in_time\"}", renewals.renewed - renewals.late),
        ("{outcome=\"late\"}", renewals.late),
        ("{outcome=\"failed\"}", renewals.failed),
    ];
    page.counter("lockset_renewals_total", "Renewals", &outcomes);
    let least = renewals.least_left_percent.unwrap_or(100);
    let help = "The least that a renewal left of its lease, in percent";
    page.gauge("lockset_lease_left_least_percent", help, least.into());
    let lanes = [
        ("{lane=\"command\"}", totals.reconnects.command),
        ("{lane=\"renewal\"}", totals.reconnects.renewal),
        ("{lane=\"push\"}", totals.reconnects.push),
        ("{lane=\"confirm\"}", totals.reconnects.confirm),
    ];
    page.counter("lockset_reconnects_total", "Connections made anew", &lanes);
    let failures = [("", totals.background_failures)];
    let help = "Releases in the background that failed";
    page.counter("lockset_background_failures_total", help, &failures);
    let errors = [("", totals.script_errors)];
    page.counter(
        "lockset_script_errors_total",
        "Scripts that ended with an error",
        &errors,
    );
    page.0
}

async fn answer(client: Client, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let (status, body) = if request.starts_with("GET /metrics ") {
        ("200 OK", page(&client.stats()))
    } else {
        ("404 Not Found", String::new())
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\n\
         Connection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(format!("{head}{body}").as_bytes()).await
}

async fn serve(client: Client, listener: TcpListener) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // Whoever does not read its answer holds up nobody else.
        tokio::spawn(answer(client.clone(), stream));
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let builder = Client::builder(&url).key_prefix("shop:");
    let client = builder
        .observer(|event: &Event<'_>| eprintln!("{event}"))
        .build()
        .await?;
    let given = std::env::args().nth(1);
    let address = given.as_deref().unwrap_or("127.0.0.1:0");
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?;
    println!("http://{address}/metrics");
    let serving = tokio::spawn(serve(client.clone(), listener));
    if given.is_some() {
        return Ok(serving.await??);
    }
    let lock = client.lock("metrics");
    for _ in 0..3 {
        let work = async |_: &_| {
            tokio::time::sleep(Duration::from_millis(5)).await;
            Ok::<_, io::Error>(())
        };
        lock.with(Wait::Forever, work).await?;
    }
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
        .await?;
    let mut page = String::new();
    stream.read_to_string(&mut page).await?;
    let line = "lockset_grants_total{kind=\"reentrant\",path=\"server\"} 3";
    assert!(page.contains(line), "{page}");
    println!("{line}");
    serving.abort();
    client.shutdown().await?;
    Ok(())
}

//! Serves lockset's metrics from the facade `metrics` at `/metrics`, for Prometheus. The dashboard
//! and the alerts of `docs/observability` use these names.
//!
//! ```sh
//! cargo run --features metrics --example metrics                     # does some work, reads its own page, ends
//! cargo run --features metrics --example metrics -- 127.0.0.1:9464   # serves until it is stopped
//! ```

use std::io;
use std::time::Duration;

use lockset::{Client, Event, Wait};
use metrics::{describe_gauge, gauge};
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};

/// The upper bounds of the buckets in seconds: the first are for round trips, the last for holds
/// and leases.
const BUCKETS: [f64; 14] = [
    0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 30.0, 300.0,
];

/// The gauges that are read from the client.
fn describe_gauges() {
    describe_gauge!("lockset_locks", "Locks held, waited for or being released");
    describe_gauge!("lockset_subscriptions", "Channels subscribed to");
    describe_gauge!("lockset_background", "Unfinished background work");
}

fn page(client: &Client, recorded: &PrometheusHandle) -> String {
    let stats = client.stats();
    for (name, value) in [
        ("lockset_locks", stats.locks),
        ("lockset_subscriptions", stats.subscriptions),
        ("lockset_background", stats.background),
    ] {
        gauge!(name).set(u32::try_from(value).unwrap_or(u32::MAX));
    }
    recorded.render()
}

async fn answer(client: Client, recorded: PrometheusHandle, stream: TcpStream) -> io::Result<()> {
    let mut stream = BufReader::new(stream);
    let mut request = String::new();
    stream.read_line(&mut request).await?;
    let (status, body) = if request.starts_with("GET /metrics ") {
        ("200 OK", page(&client, &recorded))
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

async fn serve(
    client: Client,
    recorded: PrometheusHandle,
    listener: TcpListener,
) -> io::Result<()> {
    loop {
        let (stream, _) = listener.accept().await?;
        // On a task, because a slow reader of its answer must not delay others.
        tokio::spawn(answer(client.clone(), recorded.clone(), stream));
    }
}

/// The exporter keeps recorded values until it is scraped. This drains them without a scrape.
async fn tidy(recorded: PrometheusHandle) {
    let mut every = tokio::time::interval(Duration::from_secs(5));
    loop {
        every.tick().await;
        recorded.run_upkeep();
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let seconds = Matcher::Suffix("_seconds".to_owned());
    let recorder = PrometheusBuilder::new().set_buckets_for_metric(seconds, &BUCKETS)?;
    let recorded = recorder.install_recorder()?;
    tokio::spawn(tidy(recorded.clone()));
    describe_gauges();

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
    let serving = tokio::spawn(serve(client.clone(), recorded, listener));
    if given.is_some() {
        return Ok(serving.await??);
    }
    let lock = client.lock("metrics").group("examples");
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
    let line = "lockset_grants_total{kind=\"reentrant\",path=\"server\",group=\"examples\"} 3";
    assert!(page.contains(line), "{page}");
    println!("{line}");
    serving.abort();
    client.shutdown().await?;
    Ok(())
}

//! A cluster of three, six and nine primaries: what a grant takes of all servers together.
//!
//! All run on this machine, so the rate says little about machines of their own: it is bounded by the processors here.
//! The processor time of a grant is what stays the same when shards are added, and what a machine more would bring.

mod support;

use std::time::{Duration, Instant};

use lockset::ReentrantLock;
use lockset_testkit::{Cluster, Server};
use tokio::runtime::Runtime;

use support::arguments::{Arguments, Effort};
use support::rounds::{note, report, rounds};
use support::{Flavour, in_a_task, lockset_client, place};

const NAME: &str = "shards";

const PRIMARIES: [usize; 3] = [3, 6, 9];

/// How many tasks there are on this number of primaries. With fewer tasks for each, fewer commands go in one write.
const LOADS: [(&str, fn(usize) -> usize); 2] = [
    ("32 tasks each", |primaries| 32 * primaries),
    ("64 tasks", |_| 64),
];
/// Locks of each task, so that all shards have as many.
const LOCKS: usize = 64;

const ROUNDS: usize = 7;
const SPAN: Duration = Duration::from_millis(600);

fn main() {
    let arguments = Arguments::of_this_run();
    if arguments.listed(&[NAME]) || !arguments.wants(NAME) {
        return;
    }
    let (span, sizes) = match arguments.effort {
        Effort::Test => (Duration::from_millis(20), &PRIMARIES[..1]),
        _ => (SPAN, &PRIMARIES[..]),
    };
    // Their servers' processes are started before any thread has its place.
    let start = Flavour::CurrentThread.runtime();
    let clusters: Vec<Cluster> = sizes
        .iter()
        .map(|&primaries| {
            let cluster = Cluster::builder().primaries(primaries).replicas(0);
            start.block_on(cluster.node_timeout(Duration::from_secs(15)).start())
        })
        .collect();
    let servers = clusters.iter().flat_map(Cluster::nodes);
    let pids: Vec<u32> = servers.map(Server::pid).collect();
    let place = place::take_places(&pids).unwrap_or_else(|why| why.to_owned());
    eprintln!("{} servers; {place}", pids.len());
    let runtime = Flavour::MultiThread.runtime();
    for (load, tasks) in LOADS {
        let tasks: Vec<usize> = sizes.iter().map(|&primaries| tasks(primaries)).collect();
        compare(&arguments, &runtime, &clusters, load, &tasks, span);
    }
}

fn compare(
    arguments: &Arguments,
    runtime: &Runtime,
    clusters: &[Cluster],
    load: &str,
    tasks: &[usize],
    span: Duration,
) {
    let locks: Vec<Vec<ReentrantLock>> = clusters
        .iter()
        .zip(tasks)
        .map(|(cluster, tasks)| {
            let client = runtime.block_on(lockset_client(&cluster.url()));
            let names = (0..tasks * LOCKS).map(|name| format!("shards:{name}"));
            names.map(|name| client.lock(name)).collect()
        })
        .collect();
    let results = rounds(arguments, ROUNDS, NAME, |_| {
        let sizes = clusters.iter().zip(&locks);
        sizes
            .map(|(cluster, locks)| round(runtime, cluster, locks, span))
            .collect::<Vec<_>>()
    });
    let of = |figure: &dyn Fn(&[Round]) -> f64| -> Vec<f64> {
        results.iter().map(|sizes| figure(sizes)).collect()
    };
    for (size, cluster) in clusters.iter().enumerate() {
        let subject = format!("{NAME}/{} primaries, {load}", cluster.nodes().len());
        let note = |what: &str, figures: &[f64]| note(arguments, &subject, what, figures);
        note("grants/s", &of(&|sizes| sizes[size].rate));
        let what = "server CPU a grant, microseconds";
        note(what, &of(&|sizes| sizes[size].servers));
        let what = "client CPU a grant, microseconds";
        note(what, &of(&|sizes| sizes[size].client));
        let what = "busiest shard, its time/a fair share";
        note(what, &of(&|sizes| sizes[size].busiest));
        let ratios = of(&|sizes| sizes[size].servers / sizes[0].servers);
        let what = "server CPU a grant, against 3 primaries";
        report(arguments, &subject, what, &ratios);
    }
}

/// What a grant with its release took in one round.
struct Round {
    rate: f64,
    /// Microseconds of processors: of all servers, and of this process.
    servers: f64,
    client: f64,
    /// The processor time of the busiest server, in times of its fair share.
    busiest: f64,
}

fn round(runtime: &Runtime, cluster: &Cluster, locks: &[ReentrantLock], span: Duration) -> Round {
    // Where the kernel does not say, all that is 0.
    let of_servers = || -> Vec<f64> {
        let nodes = cluster.nodes().iter();
        nodes
            .map(|node| place::cpu::of_server(node).unwrap_or(0) as f64 / 1e3)
            .collect()
    };
    let of_client = || place::cpu::of_clients().unwrap_or(0) as f64 / 1e3;
    let (servers, client, started) = (of_servers(), of_client(), Instant::now());
    let locks = locks.to_vec();
    let grants = in_a_task(runtime, async move {
        let tasks: Vec<_> = locks
            .chunks(LOCKS)
            .map(|own| tokio::spawn(cycles(own.to_vec(), span)))
            .collect();
        let mut grants = 0;
        for task in tasks {
            grants += task.await.expect("no task panics");
        }
        grants as f64
    });
    let elapsed = started.elapsed().as_secs_f64();
    let client = of_client() - client;
    let now = of_servers();
    let each: Vec<f64> = now
        .iter()
        .zip(&servers)
        .map(|(now, before)| now - before)
        .collect();
    let all: f64 = each.iter().sum();
    let busiest = each.iter().copied().fold(0.0, f64::max);
    Round {
        rate: grants / elapsed,
        servers: all / grants,
        client: client / grants,
        busiest: busiest * each.len() as f64 / all,
    }
}

/// Takes these locks in turn, and returns how often.
async fn cycles(own: Vec<ReentrantLock>, span: Duration) -> usize {
    let started = Instant::now();
    let mut grants = 0;
    while started.elapsed() < span {
        let guard = own[grants % own.len()].lock().await.expect("the lock");
        guard.release().await.expect("a hold that was kept");
        grants += 1;
    }
    grants
}

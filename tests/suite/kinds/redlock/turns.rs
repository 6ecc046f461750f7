//! Two processes that both want one lock all the time, near its servers and far from them.
//!
//! With `LOCKSET_PROBE_SECONDS=8` and `--nocapture`, the shares of a Redlock and of a plain lock at several distances.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use lockset::{Client, Redlock};
use lockset_testkit::Proxy;

use super::{LONG, servers};

/// The environment variable with the addresses of the servers, in a process that takes the lock.
const SERVERS: &str = "LOCKSET_TURNS_SERVERS";
const SECONDS: &str = "LOCKSET_PROBE_SECONDS";
const THIS: &str = "kinds::redlock::turns::two_processes_have_a_lock_in_turns";
const TASKS: usize = 4;

/// At each distance they have the lock more often than this.
const GRANTS_MIN: usize = 12;

/// Takes the lock again and again with some tasks. Prints when it began, and when it got the lock.
async fn take_all_the_time(urls: &str, span: Duration) {
    let clients = join_all(urls.split_whitespace().map(async |url| {
        let builder = Client::builder(url).lease(LONG);
        builder.build().await.unwrap()
    }));
    let clients = clients.await;
    let plain = (clients.len() == 1).then(|| clients[0].lock("turns"));
    let redlock = Redlock::builder(clients)
        .persistent_nodes()
        .build()
        .unwrap();
    let redlock = redlock.lock("turns");
    let now = || SystemTime::UNIX_EPOCH.elapsed().unwrap();
    let began = now();
    println!("got {}", began.as_micros());
    let each = (0..TASKS).map(async |_| {
        let mut at = Vec::new();
        while now() < began + span {
            // One of the two has a guard.
            match &plain {
                Some(plain) => {
                    let guard = plain.lock().await.unwrap();
                    at.push(now());
                    guard.release().await.unwrap();
                }
                None => {
                    let guard = redlock.lock().await.unwrap();
                    at.push(now());
                    guard.release().await.unwrap();
                }
            }
        }
        at
    });
    for at in join_all(each).await.concat() {
        println!("got {}", at.as_micros());
    }
}

fn process(urls: &str, seconds: &str) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", THIS, "--test-threads", "1", "--nocapture"]);
    child.env(SERVERS, urls).env(SECONDS, seconds);
    child.stdout(Stdio::piped()).spawn().unwrap()
}

/// The number of grants of each of two processes while both want the lock, and the longest run.
fn grants(urls: &str, seconds: &str) -> ([usize; 2], usize) {
    let both = [(); 2].map(|()| process(urls, seconds));
    let both = both.map(|process| {
        let output = process.wait_with_output().unwrap();
        assert!(output.status.success());
        let said = String::from_utf8(output.stdout).unwrap();
        let times = said.lines().filter_map(|line| line.split_once("got "));
        let times: Vec<u128> = times.map(|(_, at)| at.parse().unwrap()).collect();
        times
    });
    let from = both[0][0].max(both[1][0]);
    let last = |times: &Vec<u128>| *times.iter().max().unwrap();
    let to = last(&both[0]).min(last(&both[1]));
    let mut all = Vec::new();
    for (process, times) in both.iter().enumerate() {
        let times = times.iter().filter(|at| (from..=to).contains(*at));
        all.extend(times.map(|at| (*at, process)));
    }
    all.sort_unstable();
    let shares = [0, 1].map(|process| all.iter().filter(|(_, of)| *of == process).count());
    let runs = all.chunk_by(|(_, one), (_, next)| one == next);
    (shares, runs.map(<[_]>::len).max().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn two_processes_have_a_lock_in_turns() {
    let seconds = std::env::var(SECONDS).ok();
    if let Ok(urls) = std::env::var(SERVERS) {
        let span = Duration::from_secs(seconds.unwrap().parse().unwrap());
        return take_all_the_time(&urls, span).await;
    }
    let servers = servers(3);
    let mut proxies = Vec::new();
    for server in &servers {
        proxies.push(Proxy::start(server.addr()).await);
    }
    let trips: &[u64] = if seconds.is_some() {
        &[0, 5, 20, 50, 100]
    } else {
        &[20]
    };
    let seconds = seconds.unwrap_or_else(|| "3".to_owned());
    println!("| round trip | plain lock | longest run | Redlock | longest run |");
    for trip in trips {
        for proxy in &proxies {
            proxy.delay_replies(Duration::from_millis(*trip));
        }
        let mut row = format!("| {trip} ms |");
        for count in [1, servers.len()] {
            let urls: Vec<_> = proxies[..count].iter().map(Proxy::url).collect();
            let urls = urls.join(" ");
            let seconds = seconds.clone();
            let measured = tokio::task::spawn_blocking(move || grants(&urls, &seconds));
            let ([one, other], longest) = measured.await.unwrap();
            row += &format!(" {one} and {other} | {longest} |");
            assert!(one.min(other) * 4 >= one.max(other), "{row}");
            assert!(one + other >= GRANTS_MIN, "{row}");
            assert!(longest * 2 <= one + other, "{row}");
        }
        println!("{row}");
    }
}

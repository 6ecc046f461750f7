//! Tests `docs/rights.md`: the listed rights are enough, and each of them is needed.

pub(crate) mod doc;
mod synchronizers;
mod work;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lockset::Error;
use lockset_testkit::{Cluster, Sentinels, Server, unique_name};

use self::doc::{Rights, commands, row, rows};
use self::work::{Desk, Done, Trouble};
use crate::world::{Alone, BehindSentinels, OnCluster, World};

const PLAIN: &[&str] = &["every lock", "fenced locks, also"];
const FAIR: &[&str] = &["fair locks, also", "`FairLock::waiters`, also"];
const READ_WRITE: &[&str] = &["read-write locks, also"];
const LATCH: &[&str] = &["latches, also"];
const PERMITS: &[&str] = &["semaphores, also"];
const SEMAPHORE: &[&str] = &["plain semaphores, also"];
const ELECTION: &[&str] = &["elections, with those of fenced locks, also"];
const BARRIER: &[&str] = &["barriers, also"];
const LEFT_OUT: &[&str] = &[
    "waking those who wait",
    "recalls",
    "late commands made impossible",
    "scripts loaded with their first call",
    "names in `CLIENT LIST`",
    "being shown to operators",
    "care for a fair queue",
    "locks taken by plain commands",
];

/// How many users work at a time.
const AT_ONCE: usize = 6;

/// Creates a user on these servers, with these rights on names that begin with the user's own name.
async fn user(servers: &[Server], name: &str, rights: &Rights) {
    let prefix = format!("{name}:");
    let rights = rights.iter().map(|right| right.replace("app:", &prefix));
    let rights: Vec<String> = rights.collect();
    for server in servers {
        let mut admin = server.admin().await;
        let mut user = redis::cmd("ACL");
        user.arg(&["SETUSER", name, "reset", "on", ">pass", "resetchannels"]);
        let _: () = user
            .arg("-@all")
            .arg(&rights)
            .query_async(&mut admin)
            .await
            .unwrap();
    }
}

/// The URL with another user.
fn url_of(url: &str, name: &str) -> String {
    let (scheme, rest) = url.split_once("://").expect("a URL");
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}://{name}:pass@{hosts}")
}

/// A kind of lock and the work it is used for.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Reentrant,
    Fair,
    ReadWrite,
    Latch,
    Permits,
    Semaphore,
    Election,
    Barrier,
}

impl Kind {
    async fn work<W: World>(self, world: &W, url: &str, name: &str) -> Done {
        let desk = Desk::new(world, url_of(url, name), format!("{name}:"));
        match self {
            Self::Reentrant => desk.reentrant().await,
            Self::Fair => desk.fair().await,
            Self::ReadWrite => desk.read_write().await,
            Self::Latch => desk.latch().await,
            Self::Permits => desk.permits().await,
            Self::Semaphore => desk.semaphore().await,
            Self::Election => desk.election().await,
            Self::Barrier => desk.barrier().await,
        }
    }
}

/// Does the work as a user of one server with these rights.
async fn ends(server: &Alone, kind: Kind, rights: &Rights) -> Done {
    let [alone] = &*server.primaries().await else {
        panic!("one server");
    };
    let mut tries = 0;
    loop {
        let name = unique_name("user");
        user(std::slice::from_ref(alone), &name, rights).await;
        tries += 1;
        match kind.work(server, &alone.url(), &name).await {
            // This tells nothing about the rights: the machine was too busy to answer in time.
            Err(Trouble::Told(error)) if error.is_io() && tries < 4 => {}
            done => return done,
        }
    }
}

fn names_it(error: &Error, right: &str) -> bool {
    let told = error.to_string();
    match right.strip_prefix('+') {
        Some(command) => {
            let mut words = told.split([' ', '(', ')']);
            told.contains(&format!("'{command}'")) || words.any(|word| word == right)
        }
        // The text before the prefix or after the name.
        None => {
            let words = right.split(['~', '{', '}', '*', ':']);
            let word = words.max_by_key(|word| word.len()).unwrap_or_default();
            told.contains("keys are") && (word == "app" || told.contains(word))
        }
    }
}

/// Half of the shortest time on which the work depends: a free lock is kept for readers for 100 ms.
const STALL_MIN: Duration = Duration::from_millis(50);

/// The longest time for which the machine left a task of this test waiting.
struct Stalls {
    longest_ms: Arc<AtomicU64>,
    watch: tokio::task::JoinHandle<()>,
}

impl Stalls {
    fn watch() -> Self {
        let longest_ms = Arc::new(AtomicU64::new(0));
        let seen = Arc::clone(&longest_ms);
        let watch = lockset_testkit::spawn(async move {
            loop {
                let began = Instant::now();
                tokio::time::sleep(Duration::from_millis(20)).await;
                let took = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
                seen.fetch_max(took, Ordering::Relaxed);
            }
        });
        Self { longest_ms, watch }
    }

    fn longest(&self) -> Duration {
        Duration::from_millis(self.longest_ms.load(Ordering::Relaxed))
    }
}

impl Drop for Stalls {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

/// Without any one of the needed rights, the work fails with an error that names the right.
async fn each_is_needed(kind: Kind, needed: &Rights, taken: &Rights) {
    // Without these rights there is no error, because the cleanup after a waiter runs in the
    // background.
    const UNTOLD: &[&str] = &["+lrem", "+zrem"];
    let server = Alone::start().await;
    let all = ends(&server, kind, needed).await;
    assert!(all.is_ok(), "{kind:?} with all of them: {all:?}");
    let without = async |right: &String| {
        let mut rest = needed.clone();
        rest.remove(right);
        let mut tries = 0;
        loop {
            let stalls = Stalls::watch();
            tries += 1;
            match ends(&server, kind, &rest).await {
                // A waiter may have come too late, or its place may have ended before a script looked at it.
                Ok(()) if stalls.longest() >= STALL_MIN && tries < 6 => {}
                done => return (right.clone(), done),
            }
        }
    };
    let endings = futures_util::stream::iter(taken).map(without);
    let endings: Vec<_> = endings.buffer_unordered(AT_ONCE).collect().await;
    assert_eq!(endings.len(), taken.len());
    for (right, done) in endings {
        match done {
            Err(Trouble::Told(error)) => {
                assert!(error.is_denied(), "{right}: {error}");
                assert!(names_it(&error, &right), "{right}: {error}");
            }
            Err(Trouble::Missed(what)) if UNTOLD.contains(&&*right) => {
                eprintln!("without {right}: {what}");
            }
            other => panic!("{kind:?} without {right}: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_a_lock_is_needed_and_named() {
    let needed = rows(PLAIN);
    each_is_needed(Kind::Reentrant, &needed, &needed).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_a_fair_lock_is_needed_and_named() {
    let mine = rows(FAIR);
    each_is_needed(Kind::Fair, &(&rows(PLAIN) | &mine), &mine).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_a_read_write_lock_is_needed_and_named() {
    let mine = rows(READ_WRITE);
    each_is_needed(Kind::ReadWrite, &(&rows(PLAIN) | &mine), &mine).await;
}

/// Kinds of synchronizers that are not locks.
#[tokio::test(flavor = "multi_thread")]
async fn each_right_of_a_synchronizer_is_needed_and_named() {
    for (kind, mine) in [
        (Kind::Latch, LATCH),
        (Kind::Permits, PERMITS),
        (Kind::Semaphore, SEMAPHORE),
        (Kind::Election, ELECTION),
        (Kind::Barrier, BARRIER),
    ] {
        let mine = rows(mine);
        each_is_needed(kind, &(&rows(PLAIN) | &mine), &mine).await;
    }
}

/// The work succeeds with these rights, on all kinds of locks.
async fn works_with(server: &Alone, rights: &Rights) {
    let (plain, fair, read_write) = futures_util::future::join3(
        ends(server, Kind::Reentrant, rights),
        ends(server, Kind::Fair, rights),
        ends(server, Kind::ReadWrite, rights),
    )
    .await;
    let done = plain.and(fair).and(read_write);
    let all = commands("One server").remove(0);
    let without: Vec<&String> = all.difference(rights).collect();
    assert!(done.is_ok(), "without {without:?}: {done:?}");
}

/// The work succeeds without any one of the rights that only save time. These are dealt to several tests, because each
/// takes seconds.
mod optional_rights_can_be_omitted {
    use super::*;

    const TESTS: usize = 5;

    async fn each_of_the_hand(hand: usize) {
        let server = Alone::start().await;
        let all = commands("One server").remove(0);
        // A read-write lock needs these rights.
        let needed = ["+exists", "+zmscore"];
        let optional = rows(LEFT_OUT)
            .into_iter()
            .filter(|one| !needed.contains(&&**one));
        let mine = optional.skip(hand).step_by(TESTS);
        let lists = mine.map(|right| all.iter().filter(|one| **one != right).cloned().collect());
        futures_util::stream::iter(lists)
            .for_each_concurrent(AT_ONCE / 3, async |rights| {
                works_with(&server, &rights).await
            })
            .await;
    }

    macro_rules! hands {
        ($($name:ident $hand:literal)*) => {
            const _: () = assert!([$($hand),*].len() == TESTS);
            $(
                #[tokio::test(flavor = "multi_thread")]
                async fn $name() {
                    each_of_the_hand($hand).await;
                }
            )*
        };
    }
    hands!(first 0 second 1 third 2 fourth 3 fifth 4);

    #[tokio::test(flavor = "multi_thread")]
    async fn none_omitted() {
        let server = Alone::start().await;
        works_with(&server, &commands("One server").remove(0)).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_at_once() {
        let server = Alone::start().await;
        let bare = &(&rows(PLAIN) | &rows(FAIR)) | &rows(READ_WRITE);
        works_with(&server, &bare).await;
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn all_at_once_and_those_of_a_fair_lock() {
        let server = Alone::start().await;
        let fair = &(&rows(PLAIN) | &rows(FAIR)) - &row("care for a fair queue");
        let done = ends(&server, Kind::Fair, &fair).await;
        assert!(done.is_ok(), "a fair lock with the least: {done:?}");
    }
}

/// The listed rights match the commands to copy, and the commands that the scripts call.
#[test]
fn the_page_agrees_with_itself_and_with_the_scripts() {
    let locks = &(&rows(PLAIN) | &rows(FAIR)) | &rows(READ_WRITE);
    let others = [LATCH, PERMITS, SEMAPHORE, ELECTION, BARRIER].concat();
    let locks = &locks | &rows(&others);
    let one = &locks | &rows(LEFT_OUT);
    assert_eq!(commands("One server"), std::slice::from_ref(&one));
    let elsewhere = &one - &row("waking those who wait");
    let cluster = &(&elsewhere | &row("a cluster, also")) | &row("recalls");
    let cluster = &cluster | &row("the same in a cluster, instead");
    let cluster = &cluster | &row("a node's own word in a cluster");
    assert_eq!(commands("A cluster"), [cluster]);
    let role = row("a server's own word behind sentinels");
    assert_eq!(commands("Sentinels")[0], role);

    let (mut called, mut of_operators) = (BTreeSet::new(), BTreeSet::new());
    let lua = Path::new(env!("CARGO_MANIFEST_DIR")).join("lua");
    for folder in [lua.join("includes"), lua] {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|extension| extension == "lua") {
                let text = std::fs::read_to_string(&path).unwrap();
                let calls = text.split("call('").skip(1);
                let names = calls.map(|behind| behind.split('\'').next().unwrap());
                let rights = names.map(|name| format!("+{}", name.to_ascii_lowercase()));
                // Only operators run these scripts, so the page lists their rights separately.
                let name = path.file_name().unwrap().to_string_lossy();
                if name.starts_with("purge_") {
                    of_operators.extend(rights);
                } else {
                    called.extend(rights);
                }
            }
        }
    }
    let sent = ["+eval", "+evalsha"].map(str::to_owned);
    let in_scripts = &locks | &row("care for a fair queue");
    let in_scripts = in_scripts
        .into_iter()
        .filter(|right| right.starts_with('+'));
    let in_scripts: Rights = in_scripts.filter(|right| !sent.contains(right)).collect();
    assert_eq!(in_scripts, called);
    assert_eq!(
        &of_operators - &called,
        Rights::from(["+pubsub".to_owned()])
    );
}

async fn works_in<W: World>(world: &W, url: &str, name: &str) {
    let locks = [Kind::Reentrant, Kind::Fair, Kind::ReadWrite];
    let others = [
        Kind::Latch,
        Kind::Permits,
        Kind::Semaphore,
        Kind::Election,
        Kind::Barrier,
    ];
    // After the locks, which check that nothing is left: the record of a repeated call stays for a
    // while.
    for kinds in [&locks[..], &others[..]] {
        let all = kinds.iter().map(|kind| kind.work(world, url, name));
        for (kind, done) in kinds.iter().zip(futures_util::future::join_all(all).await) {
            assert!(done.is_ok(), "{kind:?}: {done:?}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_list_of_a_cluster_is_enough() {
    let world = OnCluster::start().await;
    let cluster = Cluster::shared().await;
    let mut rights = commands("A cluster").remove(0);
    if cluster.node(0).version().starts_with("6.") {
        rights =
            &(&rights - &row("the same in a cluster, instead")) | &row("waking those who wait");
    }
    let name = unique_name("user");
    user(cluster.nodes(), &name, &rights).await;
    works_in(&world, &cluster.url(), &name).await;

    // Without the slot map, no node can be reached.
    let name = unique_name("user");
    rights.remove("+cluster|slots");
    user(cluster.nodes(), &name, &rights).await;
    let done = Kind::Reentrant.work(&world, &cluster.url(), &name).await;
    let Err(Trouble::Told(error)) = done else {
        panic!("without the map: {done:?}");
    };
    assert!(error.to_string().contains("cluster|slots"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lists_of_sentinels_are_enough() {
    let world = BehindSentinels::start().await;
    let sentinels = Sentinels::shared().await;
    let [role, watcher] = &*commands("Sentinels") else {
        panic!("two commands");
    };
    let rights = &commands("One server").remove(0) | role;
    let name = unique_name("user");
    user(sentinels.servers(), &name, &rights).await;
    user(sentinels.sentinels(), &name, watcher).await;
    let url = format!(
        "{}?sentinel_user={name}&sentinel_password=pass",
        sentinels.url()
    );
    works_in(&world, &url, &name).await;
}

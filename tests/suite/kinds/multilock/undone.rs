//! Calls and processes that end halfway: no member stays held, and no place in a queue is kept.
//!
//! The generic cancellation suite drops futures at each of their polls.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use lockset::{Client, MultiLock};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use super::{KINDS, Kind, held, mixed, names};
use crate::support::{
    BY_MESSAGE, LEASE, SOON, client, command, idle, nothing_left, patient_client, took_less,
    waiting,
};

const URL: &str = "LOCKSET_TEST_URL";
const NAMES: &str = "LOCKSET_TEST_NAMES";

/// Another process that holds a multi-lock or waits for it. Killed when dropped.
struct OtherProcess(Child);

impl OtherProcess {
    /// `mixed` creates the members from these names.
    fn start(server: &Server, names: &[String]) -> Self {
        let this = "kinds::multilock::undone::other_process";
        let process = Command::new(std::env::current_exe().unwrap())
            .args(["--ignored", "--exact", this, "--nocapture"])
            .env(URL, server.url())
            .env(NAMES, names.join(" "))
            .stdout(Stdio::piped())
            .spawn();
        Self(process.unwrap())
    }

    /// Waits until the process reports that it holds all members.
    fn holds(&mut self) {
        let mut lines = BufReader::new(self.0.stdout.take().unwrap()).lines();
        let told = lines.any(|line| line.unwrap().contains("answer:held"));
        assert!(told, "the process ended without the locks");
    }

    fn kill(mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for OtherProcess {
    fn drop(&mut self) {
        // The test may have killed it already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
#[ignore = "not a test: the other process of the tests in this module"]
fn other_process() {
    let (Ok(url), Ok(names)) = (std::env::var(URL), std::env::var(NAMES)) else {
        return;
    };
    let names: Vec<String> = names.split(' ').map(str::to_owned).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let client = client(&url).await;
        let _guard = mixed(&client, &names, 0).lock().await.unwrap();
        println!("answer:held");
        // A process that is not killed exits after the test.
        tokio::time::sleep(Duration::from_secs(60)).await;
    });
}

#[tokio::test]
async fn a_killed_holder_frees_all_members_with_their_leases() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let names = names(4);
    let mut process = OtherProcess::start(&server, &names);
    process.holds();
    let lock = mixed(&ours, &names, 0);
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    tokio::time::sleep(LEASE * 2).await;
    assert!(!waiter.is_finished(), "it is alive and renews");
    process.kill();
    let killed = Instant::now();
    let guard = within(SOON, waiter).await.unwrap();
    took_less(killed, LEASE * 2);
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// Killed while it has a place, in the queue of the fair member or among the writers.
#[tokio::test]
async fn a_killed_waiter_is_passed_over() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    for at in [1, 3] {
        let names = names(4);
        let name = &names[at];
        let held_up = KINDS[at].keep_out(&ours, name).await;
        let process = OtherProcess::start(&server, &names);
        let place = match KINDS[at] {
            Kind::Fair => format!("redisson_lock_queue:{{{name}}}"),
            _ => format!("lockset_rw_waiting:{{{name}}}"),
        };
        eventually(SOON, "it has a place", async || {
            server.keys().await.contains(&place)
        })
        .await;
        assert_eq!(held(&server, &names).await, [&**name]);
        process.kill();
        held_up.release().await;
        // Three polls, at least a second.
        let next = KINDS[at].keep_out(&ours, name);
        within(Duration::from_secs(3), next).await.release().await;
        let all = mixed(&ours, &names, 0);
        within(SOON, all.lock())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        nothing_left(&server).await;
    }
}

#[tokio::test]
async fn a_lost_reply_counts_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    for first in 0..KINDS.len() {
        let names = names(4);
        let marker = names[3].as_bytes();
        let lock = mixed(&ours, &names, first).fenced();
        let fired = proxy.fired();
        proxy.swallow_reply_to(marker);
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert_eq!(held(&server, &names).await, names);
        let inner = within(SOON, guard.reenter()).await.unwrap();
        assert_eq!(inner.hold_count(), 2);
        within(SOON, inner.release()).await.unwrap();
        assert_eq!(guard.hold_count(), 1);
        assert_eq!(held(&server, &names).await, names);
        proxy.swallow_reply_to(marker);
        within(SOON, guard.release()).await.unwrap();
        assert_eq!(proxy.fired(), fired + 2, "every reply was lost");
        nothing_left(&server).await;
        idle(&ours).await;
    }
}

/// The reply to the grant is lost, and before the retry another client acquires one member: the
/// other members must be released.
#[tokio::test]
async fn a_lost_grant_with_a_lost_member_is_undone() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let theirs = patient_client(&server.url()).await;
    for first in 0..KINDS.len() {
        for stolen in 0..4 {
            let names = names(4);
            let lock = mixed(&ours, &names, first).give_up_after(SOON);
            proxy.drop_replies();
            let lost_before = proxy.dropped();
            let waiter = lockset_testkit::spawn(async move { lock.try_lock().await });
            eventually(SOON, "it was granted", async || {
                held(&server, &names).await == names
            })
            .await;
            let kind = KINDS[(first + stolen) % KINDS.len()];
            eventually(SOON, "its reply is lost", async || {
                proxy.dropped() > lost_before
            })
            .await;
            command(&server, &["DEL", &names[stolen]]).await;
            let theirs = kind.keep_out(&theirs, &names[stolen]).await;
            proxy.pass();
            let got = within(SOON, waiter).await.unwrap();
            assert!(matches!(got, Ok(None)), "{got:?}");
            eventually(SOON, "the rest is undone", async || {
                held(&server, &names).await == [&*names[stolen]]
            })
            .await;
            theirs.release().await;
            idle(&ours).await;
            // A deleted read hold leaves its lease behind.
            command(&server, &["FLUSHALL"]).await;
        }
    }
}

/// A multi-lock waits in the queue of its fair member only. When another member blocks it, it
/// leaves the queue and the next waiter is served.
#[tokio::test]
async fn a_place_is_kept_only_at_the_member_that_is_waited_for() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    let stem = unique_name("multi");
    let fair = [format!("{stem}-1"), format!("{stem}-3")];
    let plain = format!("{stem}-0");
    let lock = MultiLock::new([
        Kind::Reentrant.member(&ours, &plain),
        Kind::Fair.member(&ours, &fair[0]),
        Kind::Write.member(&ours, &format!("{stem}-2")),
        Kind::Fair.member(&ours, &fair[1]),
    ])
    .unwrap();
    let queued = async |name: &str| theirs.fair_lock(name).waiters().await.unwrap().len();
    let one = theirs.fair_lock(&fair[0]).lock().await.unwrap();
    let two = theirs.fair_lock(&fair[1]).lock().await.unwrap();
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    eventually(SOON, "it waits for the first", async || {
        queued(&fair[0]).await == 1
    })
    .await;
    assert_eq!(queued(&fair[1]).await, 0);
    one.release().await.unwrap();
    eventually(SOON, "it waits for the second", async || {
        (queued(&fair[0]).await, queued(&fair[1]).await) == (0, 1)
    })
    .await;
    // The first member stays free for others.
    let one = theirs.fair_lock(&fair[0]).try_lock().await.unwrap();
    one.expect("it is free").release().await.unwrap();
    // Another caller queues behind it.
    let behind = theirs.fair_lock(&fair[1]);
    let behind = lockset_testkit::spawn(async move { behind.lock().await.unwrap() });
    eventually(SOON, "another is queued", async || {
        queued(&fair[1]).await == 2
    })
    .await;
    let other = theirs.lock(&plain).lock().await.unwrap();
    let released = Instant::now();
    two.release().await.unwrap();
    // The multi-lock was the head of the queue but could not take the lock.
    let behind = within(SOON, behind).await.unwrap();
    took_less(released, BY_MESSAGE);
    eventually(SOON, "it waits for the plain one", async || {
        queued(&fair[1]).await == 0
    })
    .await;
    behind.release().await.unwrap();
    assert!(!waiter.is_finished());
    other.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
    idle(&ours).await;
}

/// This client holds the blocking member, so the server is not asked about it.
#[tokio::test]
async fn the_queue_is_left_for_a_member_held_in_this_client() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let stem = unique_name("multi");
    let (plain, fair) = (format!("{stem}-0"), format!("{stem}-1"));
    let first = ours.fair_lock(&fair).lock().await.unwrap();
    let lock = MultiLock::new([
        Kind::Reentrant.member(&ours, &plain),
        Kind::Fair.member(&ours, &fair),
    ])
    .unwrap();
    let waiter = lockset_testkit::spawn(async move { lock.lock().await.unwrap() });
    eventually(SOON, "it has a place", async || {
        ours.fair_lock(&fair).waiters().await.unwrap().len() == 1
    })
    .await;
    let other = ours.lock(&plain).lock().await.unwrap();
    first.release().await.unwrap();
    let next = within(SOON, ours.fair_lock(&fair).lock()).await.unwrap();
    next.release().await.unwrap();
    assert!(!waiter.is_finished());
    assert_eq!(ours.fair_lock(&fair).waiters().await.unwrap().len(), 0);
    other.release().await.unwrap();
    within(SOON, waiter).await.unwrap().release().await.unwrap();
    nothing_left(&server).await;
    idle(&ours).await;
}

/// The call times out or is dropped while it waits for each member in turn.
#[tokio::test]
async fn an_abandoned_wait_leaves_nothing() {
    let server = Server::start();
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    );
    for by in [&ours, &theirs] {
        for first in 0..KINDS.len() {
            for busy in 0..4 {
                let names = names(4);
                let kind = KINDS[(first + busy) % KINDS.len()];
                let blocker = kind.keep_out(by, &names[busy]).await;
                let before = server.keys().await;
                let lock = mixed(&ours, &names, first);
                let wait = Duration::from_millis(15);
                assert!(lock.try_lock_for(wait).await.unwrap().is_none());
                let waiter = lockset_testkit::spawn(async move { lock.lock().await });
                waiting(&ours, 1).await;
                tokio::time::sleep(Duration::from_millis(3 * busy as u64)).await;
                waiter.abort();
                assert!(waiter.await.unwrap_err().is_cancelled());
                nothing_in_the_background(&ours).await;
                assert_eq!(server.keys().await, before, "{kind:?} {busy}");
                blocker.release().await;
                nothing_left(&server).await;
            }
        }
    }
}

async fn nothing_in_the_background(client: &Client) {
    eventually(SOON, "nothing in the background", async || {
        let stats = client.stats();
        (stats.background, stats.waiters) == (0, 0)
    })
    .await;
}

//! Finding and removing fencing-token counters that have not been used for a long time.

use std::time::Duration;

use lockset::Client;
use lockset_operator::{Survey, TokenCounter, TokenPurge, purge_token};
use lockset_testkit::{Cluster, Server, within};
use redis::aio::MultiplexedConnection;

use crate::support::{SOON, ask, client, listening, waiting};

const DAY: Duration = Duration::from_secs(24 * 60 * 60);

/// Creates a counter whose last grant was this long ago, as a program with an endless retention
/// leaves it.
async fn counter(admin: &mut MultiplexedConnection, lock: &str, age: Duration) -> u64 {
    let now: (u64, u64) = ask(admin, &["TIME"]).await;
    let then = now.0 * 1_000_000 + now.1 - u64::try_from(age.as_micros()).unwrap();
    let token = then - then % 64;
    let key = format!("redisson_lock_token:{lock}");
    let (): () = ask(admin, &["SET", &key, &token.to_string()]).await;
    token
}

async fn unused(client: &Client, pattern: &str, for_long: Duration) -> Vec<TokenCounter> {
    let mut scan = Survey::new(client).matching(pattern).tokens(for_long);
    let mut all = Vec::new();
    while let Some(counters) = within(SOON, scan.next()).await.unwrap() {
        all.extend(counters);
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    all
}

fn names(counters: &[TokenCounter]) -> Vec<&str> {
    counters.iter().map(|counter| &*counter.name).collect()
}

#[tokio::test]
async fn long_unused_counters_are_found_and_removed() {
    let server = Server::start();
    let ours = Client::builder(&server.url()).key_prefix("app:");
    let ours = ours.build().await.unwrap();
    let mut admin = server.admin().await;
    let old = counter(&mut admin, "{app:old}", DAY * 100).await;
    for (lock, days) in [
        ("app:{tagged}:1", 100),
        ("{app:newer}", 80),
        ("{other:old}", 100),
    ] {
        counter(&mut admin, lock, DAY * days).await;
    }
    // Redisson starts with 1, as a clock that was set back might.
    let _: u64 = ask(&mut admin, &["INCR", "redisson_lock_token:{app:java}"]).await;
    let (): () = ask(
        &mut admin,
        &["SET", "redisson_lock_token:{app:ahead}", "9000000000000000"],
    )
    .await;
    let guard = ours.lock("used").fenced().lock().await.unwrap();

    let found = unused(&ours, "*", DAY * 90).await;
    assert_eq!(names(&found), ["old", "{tagged}:1"]);
    assert_eq!(found[0].token.get(), old);
    assert_eq!(found[0].key, "redisson_lock_token:{app:old}");
    assert!(found[0].unused_for >= DAY * 100 && found[0].unused_for < DAY * 101);
    assert_eq!(found[0].kept_for, None);
    assert!(!found[0].in_use && !found[1].in_use);
    assert_eq!(names(&unused(&ours, "{*", DAY * 90).await), ["{tagged}:1"]);
    assert_eq!(names(&unused(&ours, "*", DAY * 70).await).len(), 3);

    for (name, became) in [
        ("old", TokenPurge::Purged),
        ("old", TokenPurge::Absent),
        ("{tagged}:1", TokenPurge::Purged),
        ("newer", TokenPurge::UsedSince),
        ("java", TokenPurge::Stays),
        ("ahead", TokenPurge::Stays),
        ("used", TokenPurge::UsedSince),
        ("never", TokenPurge::Absent),
    ] {
        let purged = purge_token(&ours, name, DAY * 90).await.unwrap();
        assert_eq!(purged, became, "{name}");
    }
    let again = ours.lock("old").fenced().lock().await.unwrap();
    assert!(again.fencing_token().unwrap().get() > old, "tokens grow");
    let brief = Duration::from_secs(60);
    let error = purge_token(&ours, "old", brief).await.unwrap_err();
    assert!(
        error.is_invalid() && error.lock_name() == Some("old"),
        "{error}"
    );
    again.release().await.unwrap();
    guard.release().await.unwrap();
    let commands = server.commandstats().await;
    assert!(!commands.contains_key("keys"), "{commands:?}");
}

#[tokio::test]
async fn the_number_of_kept_counters_is_reported() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let mut admin = server.admin().await;
    let _: u64 = ask(&mut admin, &["INCR", "redisson_lock_token:{java}"]).await;
    counter(&mut admin, "{old}", DAY * 100).await;
    let mut scan = Survey::new(&ours).tokens(DAY * 90);
    let mut found = 0;
    while let Some(counters) = scan.next().await.unwrap() {
        found += counters.len();
    }
    assert_eq!((found, scan.passed_over()), (1, 1));
}

/// Using either of two locks that share a counter counts as a use.
#[tokio::test]
async fn the_counter_of_a_lock_that_is_held_or_waited_for_stays() {
    let server = Server::start();
    let [holder, waiter] = [client(&server.url()).await, client(&server.url()).await];
    let mut admin = server.admin().await;
    for held in ["a", "{a}"] {
        counter(&mut admin, "{a}", DAY * 2).await;
        let guard = holder.lock(held).lock().await.unwrap();
        for name in ["a", "{a}"] {
            assert!(unused(&holder, "*", DAY).await[0].in_use);
            let purged = purge_token(&holder, name, DAY).await.unwrap();
            assert_eq!(purged, TokenPurge::InUse, "{name} while {held} is held");
        }
        guard.release().await.unwrap();
        assert!(!unused(&holder, "*", DAY).await[0].in_use);
    }
    // Another lock with the same channel is held and has a waiter.
    let guard = holder.lock("{a}").lock().await.unwrap();
    let waits = lockset_testkit::spawn({
        let lock = waiter.lock("{a}");
        async move { lock.lock().await }
    });
    waiting(&waiter, 1).await;
    listening(&server).await;
    let (): () = ask(&mut admin, &["RENAME", "{a}", "aside"]).await;
    assert_eq!(
        purge_token(&holder, "a", DAY).await.unwrap(),
        TokenPurge::InUse,
        "a client is subscribed"
    );
    drop(guard);
    drop(within(SOON, waits).await.unwrap().unwrap());
}

#[tokio::test]
async fn counters_of_all_nodes_of_a_cluster_are_found_and_removed() {
    let cluster = Cluster::start().await;
    let ours = client(&cluster.url()).await;
    let mut names_of_all: Vec<String> = (0..30).map(|number| format!("lock:{number}")).collect();
    names_of_all.sort();
    for name in &names_of_all {
        let mut admin = cluster.primary_of(name).await.admin().await;
        counter(&mut admin, &format!("{{{name}}}"), DAY * 100).await;
    }
    let guard = ours.lock("lock:7").lock().await.unwrap();
    let found = unused(&ours, "lock:*", DAY * 90).await;
    assert_eq!(names(&found), names_of_all);
    for counter in found {
        let purged = purge_token(&ours, &counter.name, DAY * 90).await.unwrap();
        let is_held = counter.name == "lock:7";
        assert_eq!(counter.in_use, is_held);
        let expected = if is_held {
            TokenPurge::InUse
        } else {
            TokenPurge::Purged
        };
        assert_eq!(purged, expected, "{}", counter.name);
    }
    assert_eq!(names(&unused(&ours, "*", DAY * 90).await), ["lock:7"]);
    guard.release().await.unwrap();
}

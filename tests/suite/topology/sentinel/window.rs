//! The window in which two clients may hold a lock: the old primary keeps granting after the
//! promotion of a replica, until its clients learn of it.

use std::time::{Duration, Instant};

use lockset::{Client, Error, LostReason};
use lockset_testkit::{Sentinels, unique_name, within};
use tokio::task::JoinSet;
use tokio::time::{interval, timeout};

use super::{SETTLED, client, command};

/// The documented bound while sentinels are reachable: clients ask them every two seconds even
/// without an announcement, for at most a second, and then ask the server for as long.
const PROMISED: Duration = Duration::from_secs(4);

/// The bound where an announcement arrives: less than the time until a client asks by itself.
const ANNOUNCED: Duration = Duration::from_millis(500);

/// How often the two clients request a new lock.
const TICK: Duration = Duration::from_millis(20);

/// The time during which a guard was valid.
#[derive(Clone, Copy, Debug)]
struct Grant {
    from: Instant,
    until: Instant,
    is_lost: bool,
}

/// Holds a lock until it is lost, or until the window must have ended.
async fn hold(client: Client, name: String) -> Option<Grant> {
    let lock = client.lock(&name);
    // Some calls meet the failover itself.
    let may_fail = |error: Error| assert!(error.is_transient(), "{error}");
    let guard = lock.try_lock_for(PROMISED).await.map_err(may_fail).ok()??;
    let from = Instant::now();
    let lost = timeout(PROMISED * 2, guard.lost()).await;
    let grant = Grant {
        from,
        until: Instant::now(),
        is_lost: lost.is_ok(),
    };
    assert_ne!(lost, Ok(LostReason::Expired), "it is renewed or lost");
    drop(guard);
    Some(grant)
}

/// Two clients request the same locks while the primary changes. Returns the longest overlap.
async fn overlap(sentinels: &Sentinels, clients: [Client; 2]) -> Duration {
    let mut pairs = JoinSet::new();
    let want = async {
        let mut ticks = interval(TICK);
        loop {
            ticks.tick().await;
            let name = unique_name("lock");
            let [ours, theirs] = clients.clone();
            pairs.spawn(async move { tokio::join!(hold(ours, name.clone()), hold(theirs, name)) });
        }
    };
    tokio::select! {
        () = want => {}
        _ = sentinels.fail_over() => {}
    }
    let (mut longest, mut lost, mut had) = (Duration::ZERO, 0, [0, 0]);
    for pair in within(SETTLED * 2, pairs.join_all()).await {
        let (ours, theirs) = pair;
        had[0] += usize::from(ours.is_some());
        had[1] += usize::from(theirs.is_some());
        let grants: Vec<_> = [ours, theirs].into_iter().flatten().collect();
        lost += grants.iter().filter(|grant| grant.is_lost).count();
        if let [one, other] = *grants {
            let end = one.until.min(other.until);
            let together = end.saturating_duration_since(one.from.max(other.from));
            longest = longest.max(together);
        }
    }
    println!("they had {had:?}, {lost} were lost; two held one for {longest:?} at most");
    assert!(
        had.iter().all(|had| *had > 0) && lost > 0,
        "{had:?}, {lost} lost"
    );
    longest
}

#[tokio::test]
async fn two_hold_a_lock_for_a_moment_at_most_when_sentinels_announce_the_failover() {
    let sentinels = Sentinels::start().await;
    let clients = [client(&sentinels).await, client(&sentinels).await];
    let longest = overlap(&sentinels, clients).await;
    assert!(longest < ANNOUNCED, "{longest:?}");
}

#[tokio::test]
async fn two_clients_hold_a_lock_for_seconds_at_most_without_an_announcement() {
    let sentinels = Sentinels::start().await;
    for sentinel in sentinels.sentinels() {
        command(sentinel, "ACL SETUSER deaf on >pass ~* +@all -subscribe").await;
    }
    let url = sentinels.url();
    let url = format!("{url}?sentinel_user=deaf&sentinel_password=pass");
    let deaf = Client::connect(&url).await.unwrap();
    let longest = overlap(&sentinels, [deaf, client(&sentinels).await]).await;
    assert!(longest < PROMISED, "{longest:?}");
}

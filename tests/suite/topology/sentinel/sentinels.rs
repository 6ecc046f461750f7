//! Sentinels that are down, frozen or out of date.

use lockset::Client;
use lockset_testkit::{ClientKind, Sentinels, Server, eventually, within};

use super::{SETTLED, client, replicated};
use crate::support::{LEASE, PATIENCE, SOON};

/// A URL with only the first `count` sentinels.
fn url_of_some(sentinels: &Sentinels, count: usize) -> String {
    let addrs = sentinels.sentinels()[..count].iter();
    let addrs: Vec<String> = addrs.map(|server| server.addr().to_string()).collect();
    format!("redis+sentinel://{}/main", addrs.join(","))
}

/// The number of lockset connections to a sentinel.
async fn listeners(sentinel: &Server) -> usize {
    let clients = sentinel.clients(ClientKind::All).await;
    let ours = clients
        .iter()
        .filter(|line| line.name.starts_with("lockset-sentinel-"));
    ours.count()
}

/// Waits until a client that keeps acquiring locks has asked this sentinel twice more.
async fn asked_twice(sentinel: &Server, client: &Client) {
    let idle = async || {
        let clients = sentinel.clients(ClientKind::All).await;
        let ours = clients
            .iter()
            .find(|line| line.name.starts_with("lockset-sentinel-"));
        ours.and_then(|line| line.field("idle")?.parse::<u64>().ok())
    };
    for _ in 0..2 {
        for is_asked in [false, true] {
            eventually(SETTLED, "it is asked now and then", async || {
                let guard = within(SOON, client.lock("other").lock()).await.unwrap();
                guard.release().await.unwrap();
                idle()
                    .await
                    .is_some_and(|seconds| (seconds == 0) == is_asked)
            })
            .await;
        }
    }
}

/// A sentinel listed under two names counts once: the others know it by its address.
#[tokio::test]
async fn a_sentinel_named_by_host_counts_once() {
    let sentinels = Sentinels::start().await;
    let [named, others @ ..] = sentinels.sentinels() else {
        panic!("there are sentinels");
    };
    let url = format!("redis+sentinel://localhost:{}/main", named.port());
    let ours = Client::connect(&url).await.unwrap();
    for sentinel in others {
        eventually(SETTLED, "the others are learnt", async || {
            listeners(sentinel).await == 1
        })
        .await;
        asked_twice(sentinel, &ours).await;
    }
    assert_eq!(listeners(named).await, 1);
}

/// It monitors another primary of the same name, with a later epoch.
#[tokio::test]
async fn a_sentinel_of_another_deployment_is_not_believed() {
    let (sentinels, others) = tokio::join!(Sentinels::start(), Sentinels::start());
    replicated(others.primary().await, 2).await;
    others.fail_over().await;
    let stranger = &others.sentinels()[0];
    let url = url_of_some(&sentinels, 3);
    let url = url.replace("/main", &format!(",{}/main", stranger.addr()));
    let ours = Client::connect(&url).await.unwrap();
    let held = ours.lock("held").lock().await.unwrap();
    assert!(
        sentinels
            .primary()
            .await
            .keys()
            .await
            .contains(&"held".to_owned())
    );
    let primary = others.primary().await;
    primary.reset_stats().await;
    // Not even if no other sentinel answers.
    for sentinel in sentinels.sentinels() {
        sentinel.kill();
    }
    asked_twice(stranger, &ours).await;
    let ran = primary.commandstats().await;
    assert!(
        !ran.contains_key("evalsha") && !ran.contains_key("eval"),
        "{ran:?}"
    );
    held.release().await.unwrap();
}

/// The URL names only one sentinel, and that one dies.
#[tokio::test]
async fn sentinels_missing_from_the_url_are_discovered() {
    let sentinels = Sentinels::start().await;
    let ours = Client::connect(&url_of_some(&sentinels, 1)).await.unwrap();
    let held = ours.lock("held").lock().await.unwrap();
    for sentinel in sentinels.sentinels() {
        eventually(SETTLED, "it listens to every sentinel", async || {
            // To both announcements.
            let clients = sentinel.clients(ClientKind::PubSub).await;
            let ours = clients
                .iter()
                .filter(|line| line.name.starts_with("lockset-sentinel-"));
            ours.map(|line| line.sub).eq([2])
        })
        .await;
    }
    replicated(sentinels.primary().await, 2).await;
    sentinels.sentinels()[0].kill();
    sentinels.fail_over().await;
    within(SETTLED, held.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    held.release().await.unwrap();
    drop(ours);
    for sentinel in &sentinels.sentinels()[1..] {
        eventually(SOON, "no client is subscribed", async || {
            listeners(sentinel).await == 0
        })
        .await;
    }
}

/// The primary is alive, so holders continue. When the sentinels return, the client subscribes
/// again.
#[tokio::test]
async fn locks_go_on_without_sentinels() {
    let sentinels = Sentinels::start().await;
    let ours = Client::builder(&sentinels.url()).lease(LEASE * 2);
    let ours = ours.give_up_after(PATIENCE).build().await.unwrap();
    let held = ours.lock("held").lock().await.unwrap();
    for sentinel in sentinels.sentinels() {
        sentinel.kill();
    }
    assert!(tokio::time::timeout(LEASE * 3, held.lost()).await.is_err());
    for _ in 0..20 {
        let guard = within(SOON, ours.lock("other").lock()).await.unwrap();
        guard.release().await.unwrap();
    }
    let late = Client::connect(&sentinels.url()).await.unwrap_err();
    assert!(
        late.is_io() && late.to_string().contains("sentinels are up"),
        "{late}"
    );
    for sentinel in sentinels.sentinels() {
        sentinel.restart();
    }
    for sentinel in sentinels.sentinels() {
        eventually(SETTLED, "it listens again", async || {
            listeners(sentinel).await == 1
        })
        .await;
    }
    sentinels.is_well().await;
    let guard = ours.lock("long").lease(SETTLED).lock().await.unwrap();
    replicated(sentinels.primary().await, 2).await;
    sentinels.fail_over().await;
    within(SETTLED, async { while guard.reenter().await.is_err() {} }).await;
    assert!(!guard.is_lost());
}

/// The frozen sentinel accepts connections and never answers: the others are enough.
#[tokio::test]
async fn a_frozen_sentinel_delays_no_caller() {
    let sentinels = Sentinels::start().await;
    let frozen = &sentinels.sentinels()[0];
    let early = client(&sentinels).await;
    let held = early.lock("held").lock().await.unwrap();
    frozen.stop();
    let ours = within(SOON, client(&sentinels)).await;
    let waiter = lockset_testkit::spawn({
        let lock = ours.lock("held");
        async move { lock.lock().await }
    });
    let old = sentinels.primary().await;
    replicated(old, 2).await;
    old.kill();
    within(SETTLED, held.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    held.release().await.unwrap();
    let guard = within(SETTLED, waiter).await.unwrap().unwrap();
    guard.release().await.unwrap();
    frozen.cont();
}

/// A sentinel that missed a failover and is the only one left names the old primary, which the
/// client must not use.
#[tokio::test]
async fn an_old_view_is_not_believed() {
    let sentinels = Sentinels::start().await;
    let ours = client(&sentinels).await;
    let held = ours.lock("held").lock().await.unwrap();
    let [behind, others @ ..] = sentinels.sentinels() else {
        panic!("there are sentinels");
    };
    let old = sentinels.primary().await;
    replicated(old, 2).await;
    behind.kill();
    sentinels.fail_over().await;
    within(SETTLED, held.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    for sentinel in others {
        sentinel.kill();
    }
    behind.restart();
    let named = redis::cmd("SENTINEL")
        .arg("GET-MASTER-ADDR-BY-NAME")
        .arg("main")
        .query_async(&mut behind.admin().await)
        .await;
    let (_, named): (String, u16) = named.unwrap();
    assert_eq!(named, old.port(), "it has an old view");
    old.reset_stats().await;
    // The client asks it repeatedly, and keeps using the current primary.
    asked_twice(behind, &ours).await;
    let ran = old.commandstats().await;
    assert!(
        !ran.contains_key("evalsha") && !ran.contains_key("eval"),
        "{ran:?}"
    );
    held.release().await.unwrap();
}

//! Sentinels and servers that deny access or report errors.

use std::time::Duration;

use lockset::{Client, Error};
use lockset_testkit::{Sentinels, Server, eventually, within};

use super::{SETTLED, client, command, replicated};
use crate::support::LEASE;

/// The documented rights: for sentinels, and at servers beyond those for locks.
const SENTINEL_RIGHTS: &str = "-@all +sentinel|master +sentinel|get-master-addr-by-name \
    +sentinel|sentinels +hello +client|setname +subscribe resetchannels &+switch-master \
    &+promoted-slave";
const SENTINEL_RIGHTS_NEEDED: &str = "-@all +sentinel|master +sentinel|get-master-addr-by-name";

/// The error of the first call of a client that connects with it.
async fn first_error(url: &str) -> Error {
    let builder = Client::builder(url).give_up_after(Duration::from_millis(500));
    let client = builder.lazy().build().await.unwrap();
    client.lock("a").lock().await.unwrap_err()
}

#[tokio::test]
async fn a_wrong_name_is_reported_at_once() {
    let sentinels = Sentinels::shared().await;
    let url = sentinels.url().replace("/main", "/mian");
    assert!(first_error(&url).await.is_invalid());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.is_invalid(), "{error}");
    let text = error.to_string();
    assert!(
        text.contains("\"mian\"") && text.contains("name after the /"),
        "{text}"
    );
    assert!(
        text.contains(&sentinels.sentinels()[0].addr().to_string()),
        "{text}"
    );
}

#[tokio::test]
async fn a_server_is_no_sentinel() {
    let server = Server::start();
    let url = format!("redis+sentinel://{}/main", server.addr());
    let error = Client::connect(&url).await.unwrap_err();
    assert!(
        error.is_invalid() && error.to_string().contains("not a sentinel"),
        "{error}"
    );
}

#[tokio::test]
async fn passwords_of_sentinels_and_servers_are_separate_and_never_shown() {
    let sentinels = Sentinels::builder()
        .replicas(1)
        .password("s3rver")
        .sentinel_password("s3ntinel")
        .start()
        .await;
    let url = |server: &str, sentinel: &str| {
        let url = sentinels.url().replace("//", &format!("//:{server}@"));
        format!("{url}?sentinel_password={sentinel}")
    };
    let ours = Client::connect(&url("s3rver", "s3ntinel")).await.unwrap();
    let guard = ours.lock("held").lock().await.unwrap();
    replicated(sentinels.primary().await, 1).await;
    sentinels.fail_over().await;
    within(SETTLED, guard.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    guard.release().await.unwrap();
    for (server, sentinel, hint) in [
        ("s3rver", "wr0ng", "sentinel_password"),
        ("wr0ng", "s3ntinel", "check user and password\""),
    ] {
        let url = url(server, sentinel);
        let at_once = Client::connect(&url).await.unwrap_err();
        for error in [at_once, first_error(&url).await] {
            let text = format!("{error} {error:?} {ours:?}");
            assert!(error.is_denied() && text.contains(hint), "{text}");
            for secret in ["s3rver", "s3ntinel", "wr0ng"] {
                assert!(!text.contains(secret), "{text}");
            }
        }
    }
    let missing = Client::connect(&sentinels.url()).await.unwrap_err();
    assert!(missing.is_denied(), "{missing}");
}

/// With all documented rights, and with the minimum.
#[tokio::test]
async fn the_documented_rights_are_enough() {
    let locks = "~* &* -@all +eval +evalsha +pttl +pexpire +hset +hdel +hexists +hgetall +hlen +del \
                 +get +set +time";
    for (at_sentinels, at_servers) in [
        (SENTINEL_RIGHTS, "+role +hello"),
        (SENTINEL_RIGHTS_NEEDED, ""),
    ] {
        let sentinels = Sentinels::start().await;
        for sentinel in sentinels.sentinels() {
            command(
                sentinel,
                &format!("ACL SETUSER watcher on >watch {at_sentinels}"),
            )
            .await;
        }
        for server in sentinels.servers() {
            let user = format!("ACL SETUSER locker on >lock {locks} {at_servers}");
            command(server, user.trim()).await;
        }
        let url = sentinels.url().replace("//", "//locker:lock@");
        let url = format!("{url}?sentinel_user=watcher&sentinel_password=watch");
        let ours = Client::connect(&url).await.unwrap();
        let held = ours.lock("held").lock().await.unwrap();
        replicated(sentinels.primary().await, 2).await;
        sentinels.fail_over().await;
        within(SETTLED, held.reenter())
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
        assert_ne!(
            sentinels.primary().await.addr(),
            sentinels.servers()[0].addr()
        );
        held.release().await.unwrap();
    }
}

/// The error names a missing right and the server that denied it.
#[tokio::test]
async fn a_right_that_is_missing_at_the_sentinels_is_named() {
    let sentinels = Sentinels::builder().replicas(1).start().await;
    for sentinel in sentinels.sentinels() {
        command(sentinel, "ACL SETUSER watcher on >watch -@all +subscribe").await;
    }
    let url = format!(
        "{}?sentinel_user=watcher&sentinel_password=watch",
        sentinels.url()
    );
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.is_denied(), "{error}");
    let text = error.to_string().to_lowercase();
    let addr = sentinels.sentinels()[0].addr().to_string();
    assert!(
        text.contains("noperm") && text.contains("sentinel_user") && text.contains(&addr),
        "{text}"
    );
}

/// Demoted by hand, without an announcement from a sentinel.
#[tokio::test]
async fn a_primary_that_says_that_it_is_a_replica_is_not_used() {
    let sentinels = Sentinels::start().await;
    let ours = Client::builder(&sentinels.url()).lease(LEASE);
    let ours = ours.build().await.unwrap();
    let patient = client(&sentinels).await;
    let held = patient.lock("held").lock().await.unwrap();
    let primary = sentinels.primary().await;
    replicated(primary, 2).await;
    command(primary, "REPLICAOF 127.0.0.1 1").await;
    let mut told = String::new();
    eventually(SETTLED, "the error comes", async || {
        let error = ours.lock("other").try_lock().await.err();
        told = error.map(|error| error.to_string()).unwrap_or_default();
        told.contains("but it is a replica")
    })
    .await;
    assert!(told.contains(&primary.addr().to_string()), "{told}");
    command(primary, "REPLICAOF NO ONE").await;
    within(SETTLED, async {
        while ours.lock("other").try_lock().await.is_err() {}
    })
    .await;
    within(SETTLED, held.reenter())
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    held.release().await.unwrap();
}

/// The old primary has lost its replicas and refuses writes: the call waits for the new primary.
#[tokio::test]
async fn a_call_refused_without_replicas_waits_for_the_failover() {
    let sentinels = Sentinels::start().await;
    let ours = client(&sentinels).await;
    command(
        sentinels.primary().await,
        "CONFIG SET min-replicas-to-write 3",
    )
    .await;
    let call = lockset_testkit::spawn({
        let lock = ours.lock("asked");
        async move { lock.lock().await }
    });
    sentinels.fail_over().await;
    let guard = within(SETTLED, call).await.unwrap().unwrap();
    guard.release().await.unwrap();
}

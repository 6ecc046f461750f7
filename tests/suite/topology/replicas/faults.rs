//! Interrupted waits for replicas: an unconfirmed grant leaves nothing behind.

use std::time::Duration;

use lockset::{Client, ReentrantLock};
use lockset_testkit::{ClientKind, Proxy, Server, eventually, unique_name, within};

use super::{BRIEFLY, Group, WITHIN, waits};
use crate::support::{SOON, ask, command, idle, nothing_left};

/// Waits until `count` clients are blocked in `WAIT`.
async fn blocked(server: &Server, count: u64) {
    let is_blocked = async || {
        let says: String = ask(&mut server.admin().await, &["INFO", "clients"]).await;
        let line = format!("blocked_clients:{count}");
        says.lines().any(|said| said == line)
    };
    eventually(SOON, "a client waits for replicas", is_blocked).await;
}

#[tokio::test]
async fn a_timeout_while_waiting_for_a_member_leaves_nothing() {
    let group = Group::of(1).await;
    let client = group.client().await;
    group.links[0].hold_replies();
    let name = unique_name("lock");
    let lock = client.lock(&name).replicated(1, WITHIN);
    let call = lockset_testkit::spawn(async move { lock.lock().await });
    blocked(&group.primary, 1).await;
    call.abort();
    nothing_left(&group.primary).await;
    blocked(&group.primary, 1).await;
    // The next caller does not wait for the rest of the first wait.
    let next = client.lock(&name).try_lock().await.unwrap();
    next.expect("it is free").release().await.unwrap();
    group.links[0].pass();
    idle(&client).await;
}

/// Dropped at every moment between the request and its confirmation.
#[tokio::test]
async fn a_call_dropped_at_any_moment_leaves_nothing() {
    let group = Group::of(1).await;
    let client = group.client().await;
    group.links[0].delay_replies(Duration::from_millis(3));
    let name = unique_name("lock");
    let (mut granted, mut given_up) = (0, 0);
    // On a busy machine, the first grant may take more than sixty steps.
    for step in 0.. {
        if step >= 60 && granted > 0 {
            break;
        }
        let lock = client.lock(&name).replicated(1, WITHIN);
        let patience = Duration::from_micros(150 * step);
        assert!(patience < SOON, "{given_up} attempts, and no grant");
        match tokio::time::timeout(patience, lock.lock()).await {
            Ok(guard) => {
                granted += 1;
                drop(guard.unwrap());
            }
            Err(_) => given_up += 1,
        }
    }
    assert!(given_up > 0, "{granted} grants");
    nothing_left(&group.primary).await;
    idle(&client).await;
}

/// The answer is lost with its connection: the wait is repeated on another.
#[tokio::test]
async fn a_lost_answer_is_asked_for_again() {
    let group = Group::of(1).await;
    let proxy = Proxy::start(group.primary.addr()).await;
    let client = Client::connect(&proxy.url()).await.unwrap();
    let lock = client.lock(unique_name("lock")).replicated(1, WITHIN);
    drop(lock.lock().await.unwrap());
    proxy.swallow_reply_to(b"WAIT");
    let guard = within(SOON * 2, lock.lock()).await.unwrap();
    assert_eq!(proxy.fired(), 1);
    assert_eq!(waits(&group.primary).await, 3);
    guard.release().await.unwrap();
    nothing_left(&group.primary).await;
    idle(&client).await;
}

/// A new connection has written nothing, so every replica would confirm its writes.
#[tokio::test]
async fn a_new_connection_does_not_confirm_what_another_one_wrote() {
    let group = Group::of(1).await;
    let client = group.client().await;
    let lock = client.lock(unique_name("lock")).replicated(1, WITHIN);
    lock.lock().await.unwrap().release().await.unwrap();
    let lock = lock.replicated(1, BRIEFLY);
    group.links[0].hold_replies();
    for _ in 0..10 {
        let clients = group.primary.clients(ClientKind::All).await;
        let confirming = clients
            .iter()
            .filter(|line| line.name.contains("-confirm-"));
        let ids: Vec<_> = confirming.map(|line| line.id.to_string()).collect();
        assert_eq!(ids.len(), 1, "{clients:?}");
        for id in ids {
            let mut admin = group.primary.admin().await;
            let mut kill = redis::cmd("CLIENT");
            kill.arg("KILL").arg("ID").arg(id);
            let _: u64 = kill.query_async(&mut admin).await.unwrap();
        }
        let error = lock.lock().await.unwrap_err();
        // The error does not come from the connection, which is replaced.
        assert!(error.is_not_replicated(), "{error}");
        let other = lock.lock().await.unwrap_err();
        assert!(other.is_not_replicated(), "{other}");
    }
    nothing_left(&group.primary).await;
}

#[tokio::test]
async fn a_server_that_forgot_its_scripts_is_sent_them() {
    let group = Group::of(1).await;
    let client = group.client().await;
    let lock = client.lock(unique_name("lock")).replicated(1, WITHIN);
    lock.lock().await.unwrap().release().await.unwrap();
    command(&group.primary, &["SCRIPT", "FLUSH"]).await;
    lock.lock().await.unwrap().release().await.unwrap();
    group.links[0].hold_replies();
    command(&group.primary, &["SCRIPT", "FLUSH"]).await;
    let error = lock.replicated(1, BRIEFLY).lock().await.unwrap_err();
    assert!(error.is_not_replicated(), "{error}");
}

#[tokio::test]
async fn a_user_without_the_wait_right_gets_an_error_naming_it() {
    let group = Group::of(1).await;
    let rights = ["on", ">secret", "~*", "&*", "+@all", "-wait"];
    let rights = [&["ACL", "SETUSER", "locker"], &rights[..]].concat();
    command(&group.primary, &rights).await;
    let url = format!("redis://locker:secret@{}", group.primary.addr());
    let client = Client::connect(&url).await.unwrap();
    let lock = client.lock(unique_name("lock"));
    let error = lock.clone().replicated(1, WITHIN).lock().await.unwrap_err();
    assert!(error.is_denied() && error.is_invalid(), "{error}");
    assert!(error.to_string().contains("+wait"), "{error}");
    assert!(
        !format!("{error} {error:?}").contains("secret"),
        "{error:?}"
    );
    nothing_left(&group.primary).await;
    lock.lock().await.unwrap().release().await.unwrap();
}

/// The primary is demoted during the wait: its grant does not count.
#[tokio::test]
async fn a_primary_demoted_during_the_wait_confirms_nothing() {
    let group = Group::of(1).await;
    let client = group.client().await;
    group.links[0].hold_replies();
    let name = unique_name("lock");
    let lock: ReentrantLock = client.lock(&name).replicated(1, WITHIN);
    let call = lockset_testkit::spawn(async move { lock.lock().await });
    blocked(&group.primary, 1).await;
    group.promote(0).await;
    let port = group.replicas[0].port().to_string();
    command(&group.primary, &["REPLICAOF", "127.0.0.1", &port]).await;
    let error = within(SOON * 4, call).await.unwrap().unwrap_err();
    assert!(error.is_refused() || error.is_io(), "{error}");
    let now = Client::connect(&group.replicas[0].url()).await.unwrap();
    assert!(now.lock(&name).try_lock().await.unwrap().is_some());
}

#[tokio::test]
async fn a_client_shut_down_during_the_call_leaves_nothing() {
    let group = Group::of(1).await;
    let client = group.client().await;
    group.links[0].hold_replies();
    let lock = client.lock(unique_name("lock")).replicated(1, WITHIN);
    let call = lockset_testkit::spawn(async move { lock.lock().await });
    blocked(&group.primary, 1).await;
    let closing = lockset_testkit::spawn(client.shutdown());
    let error = within(SOON, call).await.unwrap().unwrap_err();
    assert!(error.is_closed(), "{error}");
    nothing_left(&group.primary).await;
    group.links[0].pass();
    within(SOON, closing).await.unwrap().unwrap();
}

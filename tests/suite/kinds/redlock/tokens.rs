//! Fencing tokens grow with every grant, by any majority.

use lockset_testkit::{eventually, unique_name, within};

use super::{Nodes, held_on_exactly};
use crate::support::{SOON, command};

#[tokio::test]
async fn tokens_grow_over_differing_majorities() {
    let nodes = Nodes::start(5).await;
    let name = unique_name("redlock");
    let lock = nodes.redlock.lock(&name).fenced();
    let mut last = 0;
    for round in 0..20 {
        // Two other servers each time, so that some majorities share only one server.
        let away = [round % 5, (round + 1 + round / 5) % 5];
        for at in away {
            nodes.servers[at].stop();
        }
        let guard = within(SOON, lock.lock()).await.unwrap();
        let token = guard.fencing_token().expect("it asked for one").get();
        assert!(token > last, "{token} after {last}");
        last = token;
        guard.release().await.unwrap();
        for at in away {
            nodes.servers[at].cont();
        }
    }
    nodes.nothing_left().await;
}

/// One server is far ahead of the others: later grants have larger tokens than the server's.
#[tokio::test]
async fn the_largest_token_is_made_known_to_a_majority() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let key = format!("redisson_lock_token:{{{name}}}");
    let ahead = 8_000_000_000_000_000_u64;
    command(&nodes.servers[0], &["SET", &key, &ahead.to_string()]).await;
    let lock = nodes.redlock.lock(&name).fenced();
    // With the first and the second server.
    nodes.servers[2].stop();
    let guard = lock.lock().await.unwrap();
    let first = guard.fencing_token().unwrap().get();
    assert_eq!(first, ahead + 1);
    nodes.servers[2].cont();
    // The third server joins, and only counts with the token.
    held_on_exactly(3, &nodes.servers, &name).await;
    eventually(SOON, "the third knows it", async || {
        let known = command(&nodes.servers[2], &["GET", &key]).await;
        known == redis::Value::BulkString(first.to_string().into_bytes())
    })
    .await;
    guard.release().await.unwrap();
    // Without the first server.
    nodes.servers[0].kill();
    let guard = within(SOON, lock.lock()).await.unwrap();
    assert_eq!(guard.fencing_token().unwrap().get(), ahead + 2);
    guard.release().await.unwrap();
}

/// A majority has invalid counters: the call fails at once.
#[tokio::test]
async fn a_foreign_counter_is_reported() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let key = format!("redisson_lock_token:{{{name}}}");
    for server in &nodes.servers[..2] {
        command(server, &["SET", &key, "no number"]).await;
    }
    let lock = nodes.redlock.lock(&name).fenced();
    let error = within(SOON, lock.lock()).await.unwrap_err();
    assert!(error.is_quorum() && error.is_wrong_type(), "{error}");
    assert!(error.to_string().contains(&key), "{error}");
    held_on_exactly(0, &nodes.servers, &name).await;
}

#[tokio::test]
async fn a_re_entry_with_a_token_gives_the_hold_its_token() {
    let nodes = Nodes::start(3).await;
    let name = unique_name("redlock");
    let owner = lockset::Owner::new();
    let lock = nodes.redlock.lock(&name).owner(&owner);
    let plain = lock.lock().await.unwrap();
    assert_eq!(plain.fencing_token(), None);
    let fenced = lock.clone().fenced().lock().await.unwrap();
    let token = fenced.fencing_token();
    assert!(
        token.is_some() && plain.fencing_token() == token,
        "of the hold"
    );
    let again = lock.fenced().lock().await.unwrap();
    assert_eq!(again.fencing_token(), token, "a hold has one");
    for guard in [plain, fenced, again] {
        guard.release().await.unwrap();
    }
    let next = nodes.redlock.lock(&name).fenced().lock().await.unwrap();
    assert!(next.fencing_token() > token);
    next.release().await.unwrap();
    nodes.nothing_left().await;
}

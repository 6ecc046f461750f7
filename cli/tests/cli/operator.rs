//! Taking locks away: `free` and `release`.

use std::time::Duration;

use lockset::{Client, Event, LostReason};
use lockset_testkit::{Server, eventually, within};

use crate::support::{BOUND, Running, Terminal, ended, lockset};

#[tokio::test]
async fn free_takes_a_lock_away_and_lets_waiters_go_on() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let other = Client::connect(&server.url()).await.unwrap();
    let lock = client.lock("a").lease(Duration::from_secs(3));
    let guard = lock.lock().await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("a").lock().await });
    let arguments = [
        "free",
        "a",
        "--reason",
        "the host is gone",
        "--yes",
        "--json",
    ];
    let freed = ended(&mut lockset(&server.url(), &arguments)).await;
    let said: serde_json::Value = serde_json::from_str(&freed.out).unwrap();
    assert_eq!(
        (freed.status, &said["freed"]),
        (0, &true.into()),
        "{freed:?}"
    );
    assert_eq!(said["reason"], "the host is gone");
    assert_eq!(said["evicted"][0]["holder"], guard.holder_id());
    assert!(freed.err.contains(guard.holder_id()), "{freed:?}");
    let next = within(BOUND, waiting).await.unwrap().unwrap();
    assert_eq!(within(BOUND, guard.lost()).await, LostReason::Revoked);
    assert!(!next.is_lost());
}

/// The program that had it says why, and so does `run`.
#[tokio::test]
async fn the_holder_learns_the_reason() {
    let server = Server::start();
    let (told, mut reasons) = tokio::sync::mpsc::unbounded_channel();
    let observer = move |event: &Event<'_>| {
        if let Event::Freed { lock, reason, .. } = event {
            told.send(format!("{lock}: {reason}")).unwrap();
        }
    };
    let builder = Client::builder(&server.url()).lease(Duration::from_secs(3));
    let client = builder.observer(observer).build().await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    let free = |name: &'static str| {
        let arguments = ["free", name, "--reason", "ticket 4711\x1b[2J", "--yes"];
        lockset(&server.url(), &arguments)
    };
    assert_eq!(ended(&mut free("a")).await.status, 0);
    assert_eq!(within(BOUND, guard.lost()).await, LostReason::Revoked);
    let told = within(BOUND, reasons.recv()).await.unwrap();
    assert_eq!(told, "a: ticket 4711\x1b[2J");

    let arguments = [
        "run",
        "b",
        "--lease",
        "3s",
        "--",
        "sh",
        "-c",
        "echo up; sleep 1000",
    ];
    let mut running = Running::start(&mut lockset(&server.url(), &arguments));
    assert_eq!(running.line().await, "up");
    assert_eq!(ended(&mut free("b")).await.status, 0);
    let ended = running.ended().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    let said = "taken away by an operator: ticket 4711\\u{1b}[2J";
    assert_eq!(ended.err.matches(said).count(), 1, "{ended:?}");
    drop(guard);
}

#[tokio::test]
async fn free_hands_a_fair_lock_over_and_ends_every_reader() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let fair = client.fair_lock("f");
    let guard = fair.lock().await.unwrap();
    let waiting = tokio::spawn({
        let fair = Client::connect(&server.url()).await.unwrap().fair_lock("f");
        async move { fair.lock().await }
    });
    let waits = async || fair.waiters().await.unwrap().len() == 1;
    eventually(BOUND, "it waits", waits).await;
    let config = client.rw_lock("r");
    let readers = [config.read().await.unwrap(), config.read().await.unwrap()];
    for name in ["f", "r", "r"] {
        let arguments = ["free", name, "--reason", "test", "--yes"];
        let freed = ended(&mut lockset(&server.url(), &arguments)).await;
        assert_eq!(freed.status, 0, "{freed:?}");
    }
    let next = within(BOUND, waiting).await.unwrap().unwrap();
    let writer = config.try_write().await.unwrap();
    assert!(!next.is_lost() && writer.is_some(), "nobody reads");
    drop((guard, readers));
}

#[tokio::test]
async fn free_asks_where_it_can_and_refuses_where_it_cannot() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    let refused = ended(&mut lockset(
        &server.url(),
        &["free", "a", "--reason", "test"],
    ))
    .await;
    assert_eq!(refused.status, 64, "{refused:?}");
    assert!(refused.err.contains("--yes"), "{refused:?}");
    let no_reason = ended(&mut lockset(&server.url(), &["free", "a", "--yes"])).await;
    assert_eq!(no_reason.status, 64, "{no_reason:?}");
    assert!(client.lock("a").is_locked().await.unwrap());

    let mut terminal = Terminal::open(&server.url()).await;
    for (answer, status) in [("n", 1), ("", 1), ("y", 0)] {
        terminal.enter("$L free a --reason test; echo sta''tus $?");
        terminal.shows(guard.holder_id()).await;
        terminal.shows("[y/N]").await;
        terminal.enter(answer);
        terminal.shows(&format!("status {status}")).await;
    }
    assert!(!client.lock("a").is_locked().await.unwrap());
}

#[tokio::test]
async fn free_takes_nothing_from_a_holder_that_it_did_not_show() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    let mut terminal = Terminal::open(&server.url()).await;
    terminal.enter("$L free a --reason test; echo sta''tus $?");
    terminal.shows("[y/N]").await;
    guard.release().await.unwrap();
    let next = client.lock("a").lock().await.unwrap();
    terminal.enter("y");
    terminal.shows("changed hands in between").await;
    terminal.shows("status 75").await;
    next.release().await.expect("it was not taken away");
}

#[tokio::test]
async fn free_says_from_which_process_it_takes_a_lock() {
    let server = Server::start();
    let builder = Client::builder(&server.url()).announce_every(Duration::from_millis(200));
    let client = builder.build().await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    let pid = std::process::id().to_string();
    let refused = ["free", "a", "--reason", "test"];
    eventually(BOUND, "it says who", async || {
        let refused = ended(&mut lockset(&server.url(), &refused)).await;
        let said = refused.err.lines().next().unwrap_or_default();
        said.contains(guard.holder_id()) && said.split(' ').any(|word| word == pid)
    })
    .await;
    guard.release().await.unwrap();
}

#[tokio::test]
async fn release_ends_one_hold_and_no_other() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let config = client.rw_lock("r");
    // Of another client: readers of one may have one hold together.
    let theirs = Client::connect(&server.url()).await.unwrap().rw_lock("r");
    let (one, two) = (config.read().await.unwrap(), theirs.read().await.unwrap());
    let release = async |id: &str| {
        let arguments = ["release", "r", "--holder", id];
        ended(&mut lockset(&server.url(), &arguments)).await.status
    };
    assert_eq!(release("nobody:1").await, 1);
    assert_eq!(release(one.holder_id()).await, 0);
    assert_eq!(release(one.holder_id()).await, 1, "once");
    let left = config.read_side().holders().await.unwrap();
    assert_eq!(left.len(), 1);
    assert_eq!(left[0].id, two.holder_id());
}

#[tokio::test]
async fn a_key_that_is_no_lock_is_not_freed() {
    let server = Server::start();
    let admin = redis::Client::open(server.admin_url()).unwrap();
    let mut admin = admin.get_multiplexed_async_connection().await.unwrap();
    redis::cmd("HSET")
        .arg(&["a", "state", "shipped"])
        .exec_async(&mut admin)
        .await
        .unwrap();
    for arguments in [
        &["free", "a", "--reason", "test", "--yes"][..],
        &["release", "a", "--holder", "state"],
    ] {
        let ended = ended(&mut lockset(&server.url(), arguments)).await;
        assert_eq!(ended.status, 65, "{ended:?}");
    }
    let kept: i64 = redis::cmd("HLEN")
        .arg("a")
        .query_async(&mut admin)
        .await
        .unwrap();
    assert_eq!(kept, 1);
}

/// Looking costs the server time.
#[tokio::test]
async fn a_list_that_is_read_no_further_ends_its_pass() {
    const FILL: &str = "for i = 1, 20000 do redis.call('HSET', 'user' .. i, 'name', i) end \
        for i = 1, 1000 do \
        redis.call('HSET', 'lock' .. i, '9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:' .. i, 1) \
        redis.call('PEXPIRE', 'lock' .. i, 600000) \
        redis.call('SET', 'redisson_lock_token:{old' .. i .. '}', '1700000000000000') end";
    let server = Server::start();
    let mut admin = server.admin().await;
    let mut fill = redis::cmd("EVAL");
    fill.arg(FILL).arg(0);
    let _: redis::Value = fill.query_async(&mut admin).await.unwrap();
    for verb in ["list", "tokens"] {
        server.reset_stats().await;
        let arguments = [verb, "--json", "--budget", "5"];
        let mut running = Running::start(&mut lockset(&server.url(), &arguments));
        running.line().await;
        let ended = running.ended_unread().await;
        assert_eq!((ended.status, &*ended.err), (0, ""), "{verb}");
        let scans = server.commandstats().await["scan"];
        assert!(scans < 15, "{verb}: {scans} of more than 20 slices");
    }
}

//! Locks that are taken with a token and without a script: which way is taken when, and that tokens grow whatever
//! becomes of the counter, the connection, or the rights.

use std::time::Duration;

use futures_util::future::join_all;
use lockset::{Client, NativePath, ReentrantGuard, ReentrantLock};
use lockset_testkit::{Proxy, Server, eventually, within};

use crate::support::{LEASE, SOON, ask, command, idle, nothing_left, user_without};

const COUNTER: &str = "redisson_lock_token:{x}";

async fn native(url: &str) -> Client {
    Client::connect(url).await.unwrap()
}

async fn scripts_only(url: &str) -> Client {
    Client::builder(url).native(false).build().await.unwrap()
}

fn token_of(guard: &ReentrantGuard) -> u64 {
    guard.fencing_token().expect("it is fenced").get()
}

/// Taken and released; its token.
async fn cycle(lock: &ReentrantLock) -> u64 {
    let guard = within(SOON, lock.lock()).await.unwrap();
    let token = token_of(&guard);
    guard.release().await.unwrap();
    token
}

/// A lock whose next grant is without a script.
async fn warm(client: &Client) -> (ReentrantLock, u64) {
    let lock = client.lock("x").fenced();
    let token = cycle(&lock).await;
    (lock, token)
}

/// How often scripts and transactions have been called since the last look.
async fn ways(server: &Server) -> [u64; 2] {
    let calls = server.commandstats().await;
    server.reset_stats().await;
    ["evalsha", "exec"].map(|command| calls.get(command).copied().unwrap_or(0))
}

#[tokio::test]
async fn a_warm_cycle_takes_no_script() {
    let server = Server::start();
    let client = native(&server.admin_url()).await;
    let (lock, mut last) = warm(&client).await;
    server.reset_stats().await;
    for _ in 0..100 {
        let token = cycle(&lock).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    idle(&client).await;
    let commands = server.commandstats().await;
    for command in ["multi", "restore", "incrby", "exec", "hdel", "publish"] {
        assert_eq!(commands.get(command), Some(&100), "{command}: {commands:?}");
    }
    assert!(!commands.contains_key("evalsha"), "{commands:?}");
    assert_eq!(client.stats().native_fenced, NativePath::On);
}

#[tokio::test]
async fn what_the_server_has_is_what_the_script_makes() {
    let server = Server::start();
    let client = native(&server.url()).await;
    let (lock, _) = warm(&client).await;
    let mut admin = server.admin().await;
    let guard = lock.lock().await.unwrap();
    let counter: String = ask(&mut admin, &["GET", COUNTER]).await;
    assert_eq!(counter, token_of(&guard).to_string());
    let kept: i64 = ask(&mut admin, &["PTTL", COUNTER]).await;
    let retention = 30 * 24 * 60 * 60 * 1_000;
    assert!((retention - 60_000..=retention).contains(&kept), "{kept}");
    let held: Vec<String> = ask(&mut admin, &["HVALS", "x"]).await;
    assert_eq!(held, ["1"]);
    let inner = guard.reenter().await.unwrap();
    assert_eq!(token_of(&inner), token_of(&guard));
    inner.release().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

/// Whoever takes it, and by whichever way.
#[tokio::test]
async fn tokens_grow_from_client_to_client() {
    let server = Server::start();
    let clients = [
        native(&server.url()).await,
        scripts_only(&server.url()).await,
        native(&server.url()).await,
    ];
    let locks = clients.each_ref().map(|client| client.lock("x").fenced());
    let mut last = 0;
    for round in 0..60 {
        for lock in &locks {
            for _ in 0..=round % 4 {
                let token = cycle(lock).await;
                assert!(token > last, "{token} after {last}");
                last = token;
            }
        }
    }
    let [_, by_transaction] = ways(&server).await;
    assert!(by_transaction > 100, "{by_transaction}");
}

/// Tasks of one client pass the lock on, each with a token of its own.
#[tokio::test]
async fn tokens_of_tasks_grow_too() {
    let server = Server::start();
    let client = native(&server.url()).await;
    let (lock, first) = warm(&client).await;
    let last = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(first));
    let tasks: Vec<_> = (0..8)
        .map(|_| {
            let (lock, last) = (lock.clone(), last.clone());
            tokio::spawn(async move {
                for _ in 0..50 {
                    let guard = within(SOON, lock.lock()).await.unwrap();
                    let token = token_of(&guard);
                    let before = last.swap(token, std::sync::atomic::Ordering::SeqCst);
                    assert!(token > before, "{token} after {before}");
                    guard.release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
}

/// What a counter may have been made by others: the script is asked, and knows what to do.
#[tokio::test]
async fn a_counter_that_was_touched_is_left_to_the_script() {
    let server = Server::start();
    let client = native(&server.url()).await;
    let (lock, mut last) = warm(&client).await;
    let ahead = (last + 64 * 1_000_000).to_string();
    for touch in [
        &["DEL", COUNTER][..],
        &["SET", COUNTER, "0"],
        &["SET", COUNTER, "640"],
        &["INCRBY", COUNTER, "-128"],
        &["SET", COUNTER, &ahead],
        // Redisson's.
        &["INCR", COUNTER],
    ] {
        // With what is known, and without.
        for _ in 0..2 {
            last = last.max(cycle(&lock).await);
        }
        command(&server, touch).await;
        for _ in 0..3 {
            let token = cycle(&lock).await;
            assert!(token > last, "{token} after {last}, {touch:?}");
            last = token;
        }
        nothing_left(&server).await;
    }
}

/// It begins with the clock again, and has an end.
#[tokio::test]
async fn a_counter_that_was_lost_is_as_before() {
    let server = Server::start();
    let client = native(&server.url()).await;
    let (lock, _) = warm(&client).await;
    command(&server, &["DEL", COUNTER]).await;
    let token = cycle(&lock).await;
    assert_eq!(token % 64, 0, "it does not count as one of Redisson's");
    let mut admin = server.admin().await;
    let kept: i64 = ask(&mut admin, &["PTTL", COUNTER]).await;
    assert!(kept > 0, "{kept}");
    cycle(&lock).await;
    server.reset_stats().await;
    cycle(&lock).await;
    assert_eq!(ways(&server).await, [0, 1]);
}

/// It is made anew by who is refused the lock, and has no end then: the next one who gets a token mends that.
#[tokio::test]
async fn a_counter_that_is_lost_while_the_lock_is_held_is_as_before() {
    let server = Server::start();
    let (ours, theirs) = (native(&server.url()).await, native(&server.url()).await);
    let (lock, last) = warm(&ours).await;
    let held = theirs.lock("x").lock().await.unwrap();
    command(&server, &["DEL", COUNTER]).await;
    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    crate::support::listening(&server).await;
    let mut admin = server.admin().await;
    let made: String = ask(&mut admin, &["GET", COUNTER]).await;
    assert_eq!(made, "64", "by the transaction");
    held.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    let token = token_of(&guard);
    assert!(token > last);
    assert_eq!(token % 64, 0, "it does not count as one of Redisson's");
    let kept: i64 = ask(&mut admin, &["PTTL", COUNTER]).await;
    assert!(kept > 0, "{kept}");
    guard.release().await.unwrap();
}

/// The lock is taken in the same step in which that turns out, and is given up.
#[tokio::test]
async fn a_foreign_counter_costs_nobody_the_lock() {
    let server = Server::start();
    let client = native(&server.url()).await;
    let (lock, _) = warm(&client).await;
    for touch in [&["SET", COUNTER, "x"][..], &["RPUSH", COUNTER, "x"]] {
        cycle(&lock).await;
        cycle(&lock).await;
        command(&server, &["DEL", COUNTER]).await;
        command(&server, touch).await;
        let refused = within(SOON, lock.lock()).await.unwrap_err();
        assert!(refused.is_wrong_type(), "{refused}");
        idle(&client).await;
        nothing_left(&server).await;
        command(&server, &["DEL", COUNTER]).await;
    }
}

/// Another server may answer there, which lacks some tokens.
#[tokio::test]
async fn on_a_new_connection_a_script_comes_first() {
    let server = Server::start();
    let client = native(&server.url()).await;
    let (lock, mut last) = warm(&client).await;
    for _ in 0..5 {
        command(&server, &["CLIENT", "KILL", "TYPE", "normal"]).await;
        // As it would be at a server that lacks the last of them.
        command(&server, &["INCRBY", COUNTER, "-64"]).await;
        let other = within(SOON, client.lock("y").lock()).await.unwrap();
        other.release().await.unwrap();
        server.reset_stats().await;
        let token = cycle(&lock).await;
        assert!(token > last, "{token} after {last}");
        assert_eq!(ways(&server).await, [1, 0]);
        // That was in the place of a transaction, which could not be sent: a script that was meant is known.
        last = cycle(&lock).await;
        assert_eq!(ways(&server).await, [1, 0]);
        last = last.max(cycle(&lock).await);
        assert_eq!(ways(&server).await, [0, 1]);
    }
}

#[tokio::test]
async fn a_lock_that_is_not_free_is_waited_for() {
    let server = Server::start();
    let (ours, theirs) = (native(&server.url()).await, native(&server.url()).await);
    let (lock, _) = warm(&ours).await;
    let held = theirs.lock("x").fenced().lock().await.unwrap();
    server.reset_stats().await;
    let waiter = {
        let lock = lock.clone();
        tokio::spawn(async move { lock.lock().await.unwrap() })
    };
    crate::support::listening(&server).await;
    let token = token_of(&held);
    held.release().await.unwrap();
    let guard = within(SOON, waiter).await.unwrap();
    assert!(token_of(&guard) > token);
    guard.release().await.unwrap();
    idle(&ours).await;
    let [_, by_transaction] = ways(&server).await;
    assert_eq!(by_transaction, 1, "once refused, it goes by script");
    nothing_left(&server).await;
}

/// An operator frees it; the next holder has the larger token.
#[tokio::test]
async fn after_a_forced_unlock_tokens_grow() {
    let server = Server::start();
    let (ours, theirs) = (native(&server.url()).await, native(&server.url()).await);
    let (lock, _) = warm(&ours).await;
    let (rival, _) = warm(&theirs).await;
    for _ in 0..10 {
        let held = lock.lock().await.unwrap();
        assert!(rival.force_unlock().await.unwrap());
        let next = within(SOON, rival.lock()).await.unwrap();
        assert!(token_of(&next) > token_of(&held));
        assert!(held.release().await.unwrap_err().is_not_held());
        next.release().await.unwrap();
    }
}

/// Of each right and each command: noticed once, told, and no call fails.
#[tokio::test]
async fn without_a_right_or_a_command_scripts_take_the_lock() {
    for name in ["incrby", "multi", "exec"] {
        let without = Server::builder().args(["--rename-command", name, ""]);
        let denied = Server::start();
        let url = user_without(&denied, name).await;
        let unknown = without.start();
        for (server, url, path) in [
            (&denied, url, NativePath::Denied),
            (&unknown, unknown.url(), NativePath::Unknown),
        ] {
            let client = native(&url).await;
            let (lock, mut last) = warm(&client).await;
            for _ in 0..3 {
                let token = cycle(&lock).await;
                assert!(token > last, "{token} after {last}");
                last = token;
            }
            let stats = client.stats();
            assert_eq!(stats.native_fenced, path, "{name}");
            assert_eq!(stats.native, NativePath::On, "{name}");
            // Without a token it still needs none.
            server.reset_stats().await;
            client
                .lock("y")
                .lock()
                .await
                .unwrap()
                .release()
                .await
                .unwrap();
            assert_eq!(ways(server).await[0], 0, "{name}");
            cycle(&lock).await;
            let calls = server.commandstats().await;
            assert_eq!(calls.get("incrby"), None, "{name}: {calls:?}");
            nothing_left(server).await;
        }
    }
}

#[tokio::test]
async fn without_restore_it_is_not_asked_for_either() {
    let server = Server::start();
    let client = native(&user_without(&server, "restore").await).await;
    let (lock, _) = warm(&client).await;
    cycle(&lock).await;
    let stats = client.stats();
    assert_eq!([stats.native, stats.native_fenced], [NativePath::Denied; 2]);
    nothing_left(&server).await;
}

async fn behind_a_proxy() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::builder(&proxy.url()).lease(LEASE * 10);
    let client = client.build().await.unwrap();
    (server, proxy, client)
}

/// The reply is lost: the script knows its holder again and gives a token of its own, and there is one hold.
#[tokio::test]
async fn a_grant_without_a_reply_is_found_again() {
    let (server, proxy, client) = behind_a_proxy().await;
    let (lock, mut last) = warm(&client).await;
    for _ in 0..10 {
        last = last.max(cycle(&lock).await);
        last = last.max(cycle(&lock).await);
        proxy.swallow_reply_to(b"RESTORE");
        let guard = within(SOON, lock.lock()).await.unwrap();
        assert!(token_of(&guard) > last);
        last = token_of(&guard);
        let mut admin = server.admin().await;
        let counter: u64 = ask(&mut admin, &["GET", COUNTER]).await;
        assert_eq!(counter, last, "the script's, not that of the transaction");
        let holders: Vec<(String, String)> = ask(&mut admin, &["HGETALL", "x"]).await;
        assert_eq!(holders.len(), 1, "{holders:?}");
        assert_eq!(holders[0].1, "1");
        guard.release().await.unwrap();
    }
    assert_eq!(proxy.fired(), 10);
    nothing_left(&server).await;
}

/// It arrives when its caller is gone, and what undoes it with it.
#[tokio::test]
async fn a_grant_that_comes_late_is_undone() {
    let (server, proxy, client) = behind_a_proxy().await;
    let (lock, mut last) = warm(&client).await;
    for round in 0..10 {
        last = last.max(cycle(&lock).await);
        last = last.max(cycle(&lock).await);
        proxy.hold_request_containing(b"RESTORE");
        let call = tokio::time::timeout(LEASE / 20, lock.lock()).await;
        assert!(call.is_err(), "it was answered");
        eventually(SOON, "it is on its way", async || proxy.held() == 1).await;
        if round % 2 == 0 {
            proxy.cut();
        }
        proxy.release_held();
        idle(&client).await;
        nothing_left(&server).await;
        let token = cycle(&lock).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
}

/// A server without `EXEC` goes on gathering: nothing of another call is lost in there.
#[tokio::test]
async fn a_transaction_that_does_not_end_takes_its_connection_with_it() {
    let server = Server::builder()
        .args(["--rename-command", "exec", ""])
        .start();
    let client = native(&server.url()).await;
    let (lock, _) = warm(&client).await;
    let guard = within(SOON, lock.lock()).await.unwrap();
    for name in ["a", "b"] {
        let other = within(SOON, client.lock(name).lock()).await.unwrap();
        let is_there: bool = ask(&mut server.admin().await, &["EXISTS", name]).await;
        assert!(is_there);
        other.release().await.unwrap();
    }
    guard.release().await.unwrap();
    idle(&client).await;
    nothing_left(&server).await;
}

/// What others send meanwhile is gathered with it, and is not executed: they ask again.
#[tokio::test]
async fn a_transaction_that_does_not_end_fails_nobody_else() {
    let server = Server::builder()
        .args(["--rename-command", "exec", ""])
        .start();
    let client = native(&server.url()).await;
    let (lock, _) = warm(&client).await;
    let scripts = scripts_only(&server.url()).await;
    let others: Vec<_> = (0..50)
        .map(|number| {
            let name = format!("other:{number}");
            match number % 2 {
                0 => client.lock(name),
                // By script.
                _ => client.lock(name).fenced(),
            }
        })
        .collect();
    // Sent in one go, the transaction first.
    let all = join_all(others.iter().map(ReentrantLock::lock));
    let (first, all) = tokio::join!(biased; lock.lock(), all);
    for guard in all.into_iter().chain([first]) {
        let guard = guard.unwrap();
        assert!(
            scripts
                .lock(guard.name())
                .try_lock()
                .await
                .unwrap()
                .is_none()
        );
        guard.release().await.unwrap();
    }
    idle(&client).await;
    nothing_left(&server).await;
}

/// No transaction was begun: the connection is as it was.
#[tokio::test]
async fn a_transaction_that_does_not_begin_costs_no_connection() {
    let neither = ["multi", "exec"].map(|name| ["--rename-command", name, ""]);
    let unknown = Server::builder().args(neither.concat()).start();
    let denied = Server::start();
    let url = user_without(&denied, "multi exec").await;
    for (server, url) in [(&unknown, unknown.url()), (&denied, url)] {
        let client = native(&url).await;
        let (lock, mut last) = warm(&client).await;
        for _ in 0..2 {
            let token = cycle(&lock).await;
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        assert_ne!(client.stats().native_fenced, NativePath::On);
        assert_eq!(client.stats().totals.reconnects.command, 0, "{url}");
        nothing_left(server).await;
    }
}

/// Until nobody may say that the counter is there.
#[tokio::test]
async fn a_counter_that_is_kept_for_long_enough_only() {
    let server = Server::start();
    let retention = Duration::from_secs(60);
    let client = Client::builder(&server.url()).token_retention(retention);
    let client = client.build().await.unwrap();
    let (lock, _) = warm(&client).await;
    server.reset_stats().await;
    cycle(&lock).await;
    assert_eq!(ways(&server).await, [0, 1]);
    let mut admin = server.admin().await;
    let kept: i64 = ask(&mut admin, &["PTTL", COUNTER]).await;
    assert!((1..=60_000).contains(&kept), "{kept}");
}

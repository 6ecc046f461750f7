//! Members acquired by one script and released by plain commands: the commands sent, and faults
//! between them.

use futures_util::StreamExt;
use lockset::{Client, MultiLock};
use lockset_testkit::{Proxy, Server, eventually, within};

use super::{held, names};
use crate::support::{LEASE, SOON, command, idle, nothing_left, user_without};

fn plain(client: &Client, names: &[String]) -> MultiLock {
    let members = names.iter().map(|name| client.lock(name));
    MultiLock::new(members).unwrap()
}

async fn behind_a_proxy() -> (Server, Proxy, Client) {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let client = Client::builder(&proxy.url()).lease(LEASE * 10);
    let client = client.build().await.unwrap();
    (server, proxy, client)
}

/// Subscribes to the release messages of these locks.
async fn messages(server: &Server, names: &[String]) -> redis::aio::PubSub {
    let client = redis::Client::open(server.admin_url()).unwrap();
    let mut messages = client.get_async_pubsub().await.unwrap();
    for name in names {
        let channel = format!("redisson_lock__channel:{{{name}}}");
        messages.subscribe(&channel).await.unwrap();
    }
    messages
}

/// The channels of the next messages, ordered by name.
async fn told(messages: &mut redis::aio::PubSub, count: usize) -> Vec<String> {
    let messages = messages.on_message().take(count);
    let channels = messages.map(|message| message.get_channel_name().to_owned());
    let mut channels: Vec<String> = within(SOON, channels.collect()).await;
    channels.sort();
    channels
}

fn channels(names: &[String]) -> Vec<String> {
    let channel = |name| format!("redisson_lock__channel:{{{name}}}");
    let mut channels: Vec<String> = names.iter().map(channel).collect();
    channels.sort();
    channels
}

/// One script acquires all, and two commands release each member, in every way of releasing.
#[tokio::test]
async fn plain_members_are_released_by_plain_commands() {
    const CYCLES: u64 = 20;
    let server = Server::start();
    let names = names(10);
    for (is_native, scripts) in [(true, CYCLES), (false, 2 * CYCLES)] {
        let client = Client::builder(&server.url()).native(is_native);
        let client = client.build().await.unwrap();
        let lock = plain(&client, &names);
        let mut messages = messages(&server, &names).await;
        server.reset_stats().await;
        for cycle in 0..CYCLES {
            let guard = lock.lock().await.unwrap();
            assert_eq!(held(&server, &names).await, names);
            match cycle % 2 {
                0 => guard.release().await.unwrap(),
                _ => drop(guard),
            }
            idle(&client).await;
            assert_eq!(told(&mut messages, 10).await, channels(&names));
        }
        let stats = server.commandstats().await;
        assert_eq!(stats["evalsha"], scripts, "{stats:?}");
        // Calls by scripts count as well.
        for command in ["hdel", "publish"] {
            assert_eq!(stats[command], 10 * CYCLES, "{stats:?}");
        }
        drop(messages);
        nothing_left(&server).await;
    }
}

/// The commands were executed and their replies lost: all are released, and no loss is reported.
#[tokio::test]
async fn a_release_without_a_reply_is_no_loss() {
    let (server, proxy, client) = behind_a_proxy().await;
    for _ in 0..10 {
        let names = names(4);
        let guard = plain(&client, &names).lock().await.unwrap();
        proxy.swallow_reply_to(b"HDEL");
        within(SOON, guard.release()).await.unwrap();
        nothing_left(&server).await;
    }
    assert_eq!(proxy.fired(), 10);
}

/// The connection is cut after some releases and before any message: all messages are still
/// published.
#[tokio::test]
async fn a_release_cut_in_two_still_publishes_for_all() {
    let (server, proxy, client) = behind_a_proxy().await;
    for round in 0..10 {
        let names = names(4);
        let guard = plain(&client, &names).lock().await.unwrap();
        let mut messages = messages(&server, &names).await;
        // Simulates the loss of the second half.
        proxy.hold_request_containing(b"HDEL");
        let release = lockset_testkit::spawn(guard.release());
        eventually(SOON, "it is on its way", async || proxy.held() == 1).await;
        for name in &names[..round % 4] {
            let _: redis::Value = command(&server, &["DEL", name]).await;
        }
        proxy.cut();
        let released = within(SOON, release).await;
        assert!(released.is_ok_and(|released| released.is_ok()), "{round}");
        assert_eq!(told(&mut messages, 4).await, channels(&names));
        proxy.release_held();
        idle(&client).await;
        drop(messages);
        nothing_left(&server).await;
    }
}

/// A member now held by another client is reported and left alone. The others are released with
/// messages.
#[tokio::test]
async fn a_lost_member_does_not_keep_the_others() {
    let server = Server::start();
    let ours = Client::connect(&server.url()).await.unwrap();
    let theirs = Client::connect(&server.url()).await.unwrap();
    for lost in 0..4 {
        let names = names(4);
        let guard = plain(&ours, &names).lock().await.unwrap();
        let _: redis::Value = command(&server, &["DEL", &names[lost]]).await;
        let rival = theirs.lock(&names[lost]).lock().await.unwrap();
        let error = guard.release().await.unwrap_err();
        assert!(error.is_not_held(), "{error}");
        assert_eq!(error.lock_name(), Some(&*names[lost]));
        assert_eq!(held(&server, &names).await, [&*names[lost]]);
        assert!(!rival.is_lost());
        rival.release().await.unwrap();
        idle(&ours).await;
    }
}

/// Without the right to publish, the members are still released.
#[tokio::test]
async fn a_multi_release_works_without_the_right_to_publish() {
    let server = Server::start();
    let url = user_without(&server, "publish").await;
    let client = Client::connect(&url).await.unwrap();
    let names = names(4);
    let guard = plain(&client, &names).lock().await.unwrap();
    guard.release().await.unwrap();
    nothing_left(&server).await;
}

//! Names and prefixes with braces of their own: keys and channels of each kind are in one slot.

use std::time::Instant;

use futures_util::future::BoxFuture;
use futures_util::{FutureExt, StreamExt};
use lockset::Client;
use lockset_testkit::{Cluster, unique_name, within};

use super::listened_to_at;
use crate::support::{BY_MESSAGE, SOON, idle, took_less};

/// What waits, and what ends that.
type Wait = (BoxFuture<'static, ()>, BoxFuture<'static, ()>);

/// A guard keeps the call from what it waits for.
macro_rules! waits {
    ($held:expr, $handle:expr, $call:ident) => {{
        let (held, handle) = ($held.await.unwrap(), $handle);
        let waits = async move { drop(handle.$call().await.unwrap()) };
        (
            waits.boxed(),
            async move { held.release().await.unwrap() }.boxed(),
        )
    }};
}

/// A wait for each kind.
async fn wait_of(kind: usize, ours: &Client, theirs: &Client, name: &str) -> Option<Wait> {
    let seats = |client: &Client| client.semaphore(name).permits(1);
    let plain = |client: &Client| client.plain_semaphore(name).permits(1);
    Some(match kind {
        0 => waits!(ours.lock(name).lock(), theirs.lock(name), lock),
        1 => waits!(ours.fair_lock(name).lock(), theirs.fair_lock(name), lock),
        2 => waits!(ours.rw_lock(name).write(), theirs.rw_lock(name), read),
        3 => waits!(ours.rw_lock(name).read(), theirs.rw_lock(name), write),
        4 => waits!(seats(ours).acquire(), seats(theirs), acquire),
        5 => waits!(seats(ours).acquire(), seats(theirs).fair(), acquire),
        6 => waits!(plain(ours).acquire(), plain(theirs), acquire),
        7 => {
            let (latch, waits) = (ours.latch(name), theirs.latch(name));
            latch.init(1).await.unwrap();
            let waits = async move { waits.wait().await.unwrap() };
            (
                waits.boxed(),
                async move { latch.count_down().await.unwrap() }.boxed(),
            )
        }
        8 => {
            let both = [ours, theirs].map(|client| client.barrier(name, 2));
            let [last, first] = both.map(|party| async move { party.wait().await.unwrap() });
            (first.map(drop).boxed(), last.map(drop).boxed())
        }
        9 => {
            let leads = ours.election(name).value("a").campaign().await.unwrap();
            let mut leaders = theirs.election(name).observe();
            leaders.next().await.unwrap().unwrap();
            let waits = async move { drop(leaders.next().await.unwrap().unwrap()) };
            let ends = async move { leads.resign().await.unwrap() };
            (waits.boxed(), ends.boxed())
        }
        _ => return None,
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_of_every_kind_wake_who_waits_for_a_name_with_braces() {
    let cluster = Cluster::shared().await;
    // With braces around it once more, the name would be in a slot of another node.
    let tag = loop {
        let tag = unique_name("tag");
        let (inside, outside) = (format!("{{{tag}}}"), format!("{{{tag}"));
        let [inside, outside] = [
            cluster.primary_of(&inside).await,
            cluster.primary_of(&outside).await,
        ];
        if inside.addr() != outside.addr() {
            break tag;
        }
    };
    for (prefix, name) in [
        (String::new(), format!("{{{tag}}}:")),
        (format!("x:{{{tag}}}:"), String::new()),
    ] {
        let client = async || {
            let builder = Client::builder(&cluster.url()).key_prefix(&prefix);
            builder.build().await.unwrap()
        };
        let (ours, theirs) = (client().await, client().await);
        let mut kinds = 0;
        loop {
            let name = format!("{name}{kinds}");
            let Some((waits, ends)) = wait_of(kinds, &ours, &theirs, &name).await else {
                break;
            };
            let waits = lockset_testkit::spawn(waits);
            let key = format!("{prefix}{name}");
            listened_to_at(cluster.primary_of(&key).await, &key).await;
            let since = Instant::now();
            ends.await;
            within(SOON, waits).await.unwrap();
            took_less(since, BY_MESSAGE);
            kinds += 1;
        }
        assert_eq!(theirs.stats().totals.reconnects.push, 0);
        idle(&ours).await;
        idle(&theirs).await;
    }
}

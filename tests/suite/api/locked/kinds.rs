//! Each kind of lock with the attribute, and what the body can access.

use std::future::Future;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;
use lockset::{Client, Owner, locked};
use lockset_testkit::{Server, within};

use super::{Failed, is_held, start};
use crate::support::{SOON, client, hold_counts, nothing_left, patient_client};

/// Counts how many callers are in a section at once.
#[derive(Default)]
struct Section {
    inside: AtomicU32,
    most: AtomicU32,
}

impl Section {
    async fn pass(&self) {
        let inside = self.inside.fetch_add(1, Ordering::SeqCst) + 1;
        self.most.fetch_max(inside, Ordering::SeqCst);
        tokio::task::yield_now().await;
        self.inside.fetch_sub(1, Ordering::SeqCst);
    }

    fn most(&self) -> u32 {
        self.most.load(Ordering::SeqCst)
    }
}

#[locked("x")]
async fn reentrant(_locks: &Client, section: &Section) -> Result<(), Failed> {
    section.pass().await;
    Ok(())
}

#[locked("x", fair)]
async fn fair(_locks: &Client, section: &Section) -> Result<(), Failed> {
    section.pass().await;
    Ok(())
}

#[locked(write "x")]
async fn write(_locks: &Client, section: &Section) -> Result<(), Failed> {
    section.pass().await;
    Ok(())
}

#[locked(all("x", fair "y", read "z"))]
async fn all(_locks: &Client, section: &Section) -> Result<(), Failed> {
    section.pass().await;
    Ok(())
}

macro_rules! excludes {
    ($($kind:ident)*) => {$(
        mod $kind {
            use super::*;

            #[tokio::test]
            async fn one_at_a_time() {
                let (server, client) = start().await;
                let other = crate::support::client(&server.url()).await;
                let section = Section::default();
                let calls = (0..20).map(|i| {
                    super::$kind(if i % 2 == 0 { &client } else { &other }, &section)
                });
                for done in within(SOON, join_all(calls)).await {
                    done.unwrap();
                }
                assert_eq!(section.most(), 1);
                nothing_left(&server).await;
            }
        }
    )*};
}

excludes!(reentrant fair write all);

/// Waits until `count` callers are inside.
#[locked(read "x")]
async fn read(_locks: &Client, together: &tokio::sync::Barrier) -> Result<(), Failed> {
    together.wait().await;
    Ok(())
}

#[tokio::test]
async fn readers_share_the_lock_and_keep_a_writer_out() {
    #[locked("x", write, try, busy = skip)]
    async fn try_write(_locks: &Client) -> Result<Option<()>, Failed> {
        Ok(Some(()))
    }

    // Readers of one client may share a hold.
    let (server, ours) = start().await;
    let theirs = client(&server.url()).await;
    let together = tokio::sync::Barrier::new(3);
    let inside = async {
        let reading = async {
            lockset_testkit::eventually(SOON, "both read", async || {
                hold_counts(&server, &["x".to_owned()])
                    .await
                    .iter()
                    .sum::<u32>()
                    == 2
            })
            .await;
            assert!(try_write(&ours).await.unwrap().is_none());
            together.wait().await;
        };
        within(SOON, reading).await;
    };
    let (one, other, ()) = tokio::join!(read(&ours, &together), read(&theirs, &together), inside);
    one.unwrap();
    other.unwrap();
    assert!(try_write(&ours).await.unwrap().is_some());
    nothing_left(&server).await;
}

#[tokio::test]
async fn all_names_are_held_and_one_token_is_bound() {
    #[locked(all("order:{id}", fair "stock"), fenced = token, guard = g, wait = "5s")]
    async fn place(locks: &Client, id: u64) -> Result<u64, Failed> {
        assert!(is_held(locks, &format!("order:{id}")).await);
        assert!(locks.fair_lock("stock").is_locked().await?);
        assert_eq!(g.names().len(), 2);
        let tokens = g.fencing_tokens();
        assert_eq!(tokens.into_iter().flatten().max(), Some(token));
        Ok(token.get())
    }

    let (server, client) = start().await;
    let first = place(&client, 7).await.unwrap();
    assert!(place(&client, 7).await.unwrap() > first, "tokens grow");
    nothing_left(&server).await;
}

#[tokio::test]
async fn the_guard_and_the_token_are_in_the_body() {
    #[locked("x", lease = "20s", fenced = token, guard = g)]
    async fn look(_locks: &Client) -> Result<u64, Failed> {
        assert_eq!(g.name(), "x");
        assert_eq!(g.fencing_token(), Some(token));
        assert!(!g.is_lost());
        let left = g.remaining();
        assert!(
            left > Duration::from_secs(15) && left <= Duration::from_secs(20),
            "{left:?}"
        );
        Ok(token.get())
    }

    let (server, client) = start().await;
    let first = look(&client).await.unwrap();
    assert!(look(&client).await.unwrap() > first);
    nothing_left(&server).await;
}

#[tokio::test]
async fn an_owner_enters_again() {
    #[locked("x", owner = me, guard = g)]
    async fn outer(locks: &Client, me: &Owner) -> Result<(u32, u32), Failed> {
        let inner = inner(locks, me.clone()).await?;
        Ok((inner, g.hold_count()))
    }

    #[locked("x", owner = &me, guard = g)]
    async fn inner(_locks: &Client, me: Owner) -> Result<u32, Failed> {
        Ok(g.hold_count())
    }

    let (server, client) = start().await;
    let called = within(SOON, outer(&client, &Owner::new())).await;
    assert_eq!(called.unwrap(), (2, 1));
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_fixed_lease_and_computed_times() {
    #[locked("x", fixed_lease = lease, wait = lease / 2, guard = g)]
    async fn hold(_locks: &Client, lease: Duration) -> Result<Duration, Failed> {
        Ok(g.remaining())
    }

    let (server, client) = start().await;
    let left = hold(&client, Duration::from_secs(9)).await.unwrap();
    assert!(
        left > Duration::from_secs(7) && left <= Duration::from_secs(9),
        "{left:?}"
    );
    nothing_left(&server).await;
}

#[locked("x", permits = 3)]
async fn permits(_locks: &Client, section: &Section) -> Result<(), Failed> {
    section.pass().await;
    Ok(())
}

#[locked("x", permits = PERMITS, fair)]
async fn fair_permits(_locks: &Client, section: &Section) -> Result<(), Failed> {
    section.pass().await;
    Ok(())
}

const PERMITS: u32 = 3;

#[tokio::test]
async fn as_many_at_once_as_there_are_permits() {
    let (server, ours) = start().await;
    let theirs = client(&server.url()).await;
    let section = Section::default();
    let clients = [&ours, &theirs].into_iter().cycle();
    let calls = clients.take(20).map(async |client| {
        permits(client, &section).await.unwrap();
        fair_permits(client, &section).await.unwrap();
    });
    within(SOON, join_all(calls)).await;
    assert!(
        (1..=PERMITS).contains(&section.most()),
        "{}",
        section.most()
    );
    let x = ours.semaphore("x");
    assert_eq!(x.available().await.unwrap(), PERMITS, "all are released");
}

#[tokio::test]
async fn permits_that_others_have() {
    #[locked("x", permits = 1, busy = skip)]
    async fn or_skip(_locks: &Client) -> Result<Option<()>, Failed> {
        Ok(Some(()))
    }

    #[locked("x", permits = 1, wait = "10ms")]
    async fn or_error(_locks: &Client) -> Result<(), Failed> {
        Ok(())
    }

    #[locked("x", permits = 1, try, busy = |busy| Ok(busy.holder))]
    async fn or_holder(_locks: &Client) -> Result<Option<String>, Failed> {
        Ok(None)
    }

    #[locked("x", permits = 1, lease = "20s", guard = g)]
    async fn alone(_locks: &Client) -> Result<u32, Failed> {
        assert!(g.remaining() > Duration::from_secs(15) && !g.is_lost());
        Ok(g.count())
    }

    let server = Server::start();
    // Who has it is asked within the time of one reply.
    let (ours, theirs) = (
        patient_client(&server.url()).await,
        client(&server.url()).await,
    );
    let held = theirs.semaphore("x").permits(1).acquire().await.unwrap();
    let holder = held.holder_ids().next().unwrap().to_owned();
    assert_eq!(or_skip(&ours).await.unwrap(), None);
    let error = or_error(&ours).await.unwrap_err().lock();
    assert!(error.is_busy(), "{error:?}");
    let busy = error.busy().expect("the holder");
    assert_eq!(busy.holder.as_deref(), Some(&*holder));
    assert_eq!(or_holder(&ours).await.unwrap(), Some(holder));
    held.release().await.unwrap();
    assert_eq!(or_skip(&ours).await.unwrap(), Some(()));
    assert_eq!(alone(&ours).await.unwrap(), 1);
}

/// The body is dropped when the permit is lost, and a declared number that differs is an error.
#[tokio::test]
async fn a_lost_permit_and_another_number() {
    #[locked("x", permits = 1, fixed_lease = "60ms")]
    async fn endless(_locks: &Client) -> Result<(), Failed> {
        std::future::pending().await
    }

    #[locked("x", permits = 2)]
    async fn otherwise(_locks: &Client) -> Result<(), Failed> {
        panic!("it ran");
    }

    let (_server, client) = start().await;
    let error = within(SOON, endless(&client)).await.unwrap_err().lock();
    assert!(error.is_not_held(), "{error:?}");
    let error = otherwise(&client).await.unwrap_err().lock();
    assert!(error.is_invalid(), "{error:?}");
}

/// Counts how often it is formatted.
struct Counted<'a>(&'a AtomicU32);

impl std::fmt::Display for Counted<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let shown = self.0.fetch_add(1, Ordering::SeqCst);
        write!(f, "{shown}")
    }
}

#[tokio::test]
async fn the_key_is_made_once_and_before_the_lock_is_asked_for() {
    #[locked("x:{id}", wait = "5s")]
    async fn by(_locks: &Client, id: Counted<'_>) -> Result<u32, Failed> {
        Ok(id.0.load(Ordering::SeqCst))
    }

    let (server, client) = start().await;
    let shown = AtomicU32::new(0);
    let held = client.lock("x:0").lock().await.unwrap();
    let mut call = Box::pin(by(&client, Counted(&shown)));
    assert!((&mut call).now_or_never().is_none());
    assert_eq!(
        shown.load(Ordering::SeqCst),
        1,
        "it waits for a lock of that name"
    );
    held.release().await.unwrap();
    assert_eq!(within(SOON, call).await.unwrap(), 1);
    nothing_left(&server).await;
}

#[tokio::test]
async fn an_invalid_name_is_an_error_of_the_function() {
    #[locked("{name}")]
    async fn named(_locks: &Client, name: &str) -> Result<(), Failed> {
        panic!("it ran under {name:?}");
    }

    #[locked(all("x", "{name}"))]
    async fn among_others(_locks: &Client, name: &str) -> Result<(), Failed> {
        panic!("it ran under {name:?}");
    }

    let (_server, client) = start().await;
    for name in ["", "a{b"] {
        let error = named(&client, name).await.unwrap_err().lock();
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some(name));
        let error = among_others(&client, name).await.unwrap_err().lock();
        assert!(error.is_invalid(), "{error}");
    }
}

#[locked(each(write names), give_up_after = "5s", guard = g)]
async fn rename(_locks: &Client, names: &[String], server: &Server) -> Result<Vec<String>, Failed> {
    assert_eq!(hold_counts(server, names).await, [1, 1, 1]);
    Ok(g.names().into_iter().map(str::to_owned).collect())
}

#[tokio::test]
async fn all_locks_of_a_list_are_held() {
    let (server, client) = start().await;
    let names = ["a", "b", "c"].map(str::to_owned);
    let held = rename(&client, &names, &server).await.unwrap();
    assert_eq!(held, names);
    let none = rename(&client, &[], &server).await.unwrap_err();
    assert!(
        matches!(&none, Failed::Lock(error) if error.is_invalid()),
        "{none:?}"
    );
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_grant_without_replicas_is_none() {
    #[locked("x", replicated(1, "50ms"))]
    async fn confirmed(_locks: &Client) -> Result<(), Failed> {
        panic!("no replica has confirmed it");
    }

    let (server, client) = start().await;
    let error = confirmed(&client).await.unwrap_err().lock();
    assert!(error.is_not_replicated(), "{error}");
    nothing_left(&server).await;
}

struct Quorum {
    quorum: lockset::Redlock,
}

impl Quorum {
    #[locked("x", redlock = self.quorum, try, busy = skip)]
    async fn alone(&self, inside: impl Future<Output = ()>) -> Result<Option<()>, Failed> {
        inside.await;
        Ok(Some(()))
    }
}

#[tokio::test]
async fn a_redlock_excludes() {
    let (server, client) = start().await;
    let quorum = lockset::Redlock::builder([client])
        .persistent_nodes()
        .build()
        .unwrap();
    let app = Quorum { quorum };
    let inside = async {
        let other = app.alone(std::future::ready(())).await.unwrap();
        assert!(other.is_none(), "it is held");
    };
    assert!(app.alone(inside).await.unwrap().is_some());
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_sticky_lock_needs_the_server_once() {
    #[locked("x", sticky = "5s")]
    async fn count(_locks: &Client, counted: &mut u32) -> Result<(), Failed> {
        *counted += 1;
        Ok(())
    }

    let (server, client) = start().await;
    let mut counted = 0;
    for _ in 0..3 {
        count(&client, &mut counted).await.unwrap();
    }
    assert_eq!(counted, 3);
    assert!(is_held(&client, "x").await, "it stays with the client");
    assert_eq!(client.stats().totals.reentrant.in_memory, 2);
    client.shutdown().await.unwrap();
    nothing_left(&server).await;
}

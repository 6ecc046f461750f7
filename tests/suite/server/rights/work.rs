//! The operations of a typical program on each kind of lock, and how they end for a user who lacks
//! a right.

use std::time::Duration;

use lockset::{Client, Error, FairLock, ReadSide, ReentrantLock, Result, WriteSide};
use lockset_testkit::within;
use tokio::time::timeout;

use crate::primitive::{Guard, Primitive};
use crate::support::SOON;
use crate::world::World;

/// Many users work at once on a busy machine, so the reply timeout is one second.
const CLIENT_LEASE: Duration = Duration::from_secs(6);

/// Long enough for a machine that stalls, and short enough for a test that waits for its end.
const RENEWED_LEASE: Duration = Duration::from_secs(3);

/// Why a user's work could not be completed.
#[derive(Debug)]
pub(super) enum Trouble {
    /// A call returned an error.
    Told(Error),
    /// No call failed, but an expected effect is missing.
    Missed(&'static str),
}

impl From<Error> for Trouble {
    fn from(error: Error) -> Self {
        Self::Told(error)
    }
}

pub(super) type Done = std::result::Result<(), Trouble>;

/// Two clients of one user, and a check of what they leave behind.
pub(super) struct Desk<'a, W> {
    world: &'a W,
    url: String,
    prefix: String,
}

impl<'a, W: World> Desk<'a, W> {
    /// For the user of this URL, who may use names with this prefix.
    pub(super) fn new(world: &'a W, url: String, prefix: String) -> Self {
        Self { world, url, prefix }
    }

    pub(super) async fn client(&self) -> Result<Client> {
        let builder = Client::builder(&self.url).key_prefix(&self.prefix);
        builder.lease(CLIENT_LEASE).build().await
    }

    /// Waits for an effect of the background work.
    pub(super) async fn in_the_end(
        &self,
        what: &'static str,
        mut is_so: impl AsyncFnMut() -> bool,
    ) -> Done {
        let so = async {
            while !is_so().await {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let ended = timeout(SOON * 2, so).await;
        ended.map_err(|_| Trouble::Missed(what))
    }

    async fn nothing_is_left(&self) -> Done {
        let counters = format!("redisson_lock_token:{{{}", self.prefix);
        self.in_the_end("something is left", async || {
            let keys = self.world.keys(&self.prefix).await;
            keys.iter().all(|key| key.starts_with(&counters))
        })
        .await
    }

    /// The operations common to all kinds.
    async fn of_all<P: Primitive>(&self, name: &str) -> Done {
        let (ours, theirs) = (self.client().await?, self.client().await?);
        let lock = P::of(&ours, name).lease(RENEWED_LEASE);
        // The error of a release names the right that it needs.
        lock.lock().await?.release().await?;
        let guard = lock.lock().await?;
        guard.reenter().await?.release().await?;
        let rival = P::rival(&theirs, name);
        assert!(P::of(&theirs, name).is_locked().await?);
        assert!(rival.try_lock().await?.is_none());
        let gives_up = rival.try_lock_for(Duration::from_millis(30));
        assert!(gives_up.await?.is_none());
        let waiter = lockset_testkit::spawn(async move { rival.lock().await });
        self.in_the_end("nobody waits", async || {
            waiter.is_finished() || theirs.stats().waiters == 1
        })
        .await?;
        if timeout(RENEWED_LEASE * 5 / 4, guard.lost()).await.is_ok() {
            return Err(Trouble::Missed("it was not renewed"));
        }
        guard.release().await?;
        let next = within(SOON * 2, waiter).await.expect("no panic")?;
        assert!(P::rival(&ours, name).force_unlock().await?);
        next.forget();
        drop(lock.lock().await?);
        self.nothing_is_left().await
    }

    async fn fenced<P: Primitive>(&self, name: &str) -> Done {
        let ours = self.client().await?;
        let lock = P::of(&ours, name).fenced();
        let guard = lock.lock().await?;
        let token = guard.fencing_token();
        guard.release().await?;
        let guard = lock.lock().await?;
        assert!(guard.fencing_token() > token);
        Ok(guard.release().await?)
    }

    pub(super) async fn reentrant(&self) -> Done {
        self.of_all::<ReentrantLock>("x").await?;
        self.fenced::<ReentrantLock>("y").await
    }

    pub(super) async fn fair(&self) -> Done {
        self.of_all::<FairLock>("x").await?;
        self.fenced::<FairLock>("y").await?;
        let (ours, theirs) = (self.client().await?, self.client().await?);
        let lock = ours.fair_lock("z");
        let queue = format!("redisson_lock_queue:{{{}z}}", self.prefix);
        let held = lock.lock().await?;
        assert_eq!(lock.waiters().await?, [""; 0]);

        // A waiter that leaves is removed from the queue, though it is not the head.
        let (first, gives_up) = (theirs.fair_lock("z"), theirs.fair_lock("z"));
        let first = lockset_testkit::spawn(async move { first.lock().await });
        self.in_the_end("nobody queues", async || {
            first.is_finished() || lock.waiters().await.is_ok_and(|all| all.len() == 1)
        })
        .await?;
        assert!(
            gives_up
                .try_lock_for(Duration::from_millis(100))
                .await?
                .is_none()
        );
        self.in_the_end("one who gave up is in the queue", async || {
            first.is_finished() || lock.waiters().await.is_ok_and(|all| all.len() == 1)
        })
        .await?;
        // A waiter whose place is removed queues again.
        let mut admin = self.world.server_of(&queue).await.admin().await;
        let _: () = redis::cmd("DEL")
            .arg(&queue)
            .query_async(&mut admin)
            .await
            .unwrap();
        self.in_the_end("a lost place is not taken again", async || {
            first.is_finished() || lock.waiters().await.is_ok_and(|all| all.len() == 1)
        })
        .await?;
        assert_eq!(lock.waiters().await?.len(), 1);
        held.release().await?;
        within(SOON * 2, first)
            .await
            .expect("no panic")?
            .release()
            .await?;
        self.nothing_is_left().await
    }

    pub(super) async fn read_write(&self) -> Done {
        self.of_all::<WriteSide>("w").await?;
        self.of_all::<ReadSide>("r").await?;
        self.fenced::<WriteSide>("y").await?;
        let (ours, theirs) = (self.client().await?, self.client().await?);
        let (lock, same) = (ours.rw_lock("z"), theirs.rw_lock("z"));
        let writing = lock.write().await?;
        // Some callers wait, and some time out.
        let reader = lockset_testkit::spawn({
            let same = same.clone();
            async move { same.read().await?.release().await }
        });
        let writer = lockset_testkit::spawn({
            let same = same.clone();
            async move { same.write().await?.release().await }
        });
        let give_up = Duration::from_millis(100);
        assert!(lock.try_read_for(give_up).await?.is_none());
        assert!(lock.try_write_for(give_up).await?.is_none());
        assert!(lock.write_side().holder().await?.is_some());
        let reading = writing.downgrade().await?;
        // The writer may have come before the reader, who then queues behind it.
        reading.release().await?;
        within(SOON * 2, reader).await.expect("no panic")?;
        within(SOON * 2, writer).await.expect("no panic")?;
        self.nothing_is_left().await
    }
}

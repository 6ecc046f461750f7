//! The work with latches, semaphores, elections and barriers, and the rights it needs.

use std::time::Duration;

use super::work::{Desk, Done, Trouble};
use crate::world::World;

fn is_so(what: &'static str, so: bool) -> Done {
    if so {
        Ok(())
    } else {
        Err(Trouble::Missed(what))
    }
}

impl<W: World> Desk<'_, W> {
    pub(super) async fn latch(&self) -> Done {
        let client = self.client().await?;
        let latch = client.latch("latch");
        latch.init(2).await?;
        is_so("two are left", latch.count().await? == 2)?;
        is_so("it counted", latch.count_down_as("a").await?)?;
        latch.count_down().await?;
        latch.wait().await?;
        latch.init(1).await?;
        is_so("it was closed", latch.delete().await?)
    }

    pub(super) async fn permits(&self) -> Done {
        let client = self.client().await?;
        let (lease, short) = (Duration::from_millis(1_500), Duration::from_millis(300));
        let semaphore = client.semaphore("permits").permits(2).lease(lease);
        let held = semaphore.acquire().await?;
        is_so("one is free", semaphore.available().await? == 1)?;
        let fair = semaphore.clone().fair().many(2);
        // Longer than the lease, which is renewed.
        let waited = fair.try_acquire_for(lease + short).await?;
        is_so("one is taken", waited.is_none() && !held.is_lost())?;
        held.release().await?;
        let expired = semaphore.clone().fixed_lease(short).acquire().await?;
        fair.acquire().await?.release().await?;
        drop(expired);
        semaphore.resize(3).await?;
        let free = || semaphore.available();
        is_so("three are free", free().await? == 3)
    }

    pub(super) async fn semaphore(&self) -> Done {
        let client = self.client().await?;
        let semaphore = client.plain_semaphore("semaphore").permits(1);
        semaphore.acquire().await?.release().await?;
        is_so("it is there", !semaphore.try_set(3).await?)?;
        is_so("it is there", semaphore.release(1).await?)?;
        is_so("two are available", semaphore.available().await? == 2)
    }

    pub(super) async fn election(&self) -> Done {
        let client = self.client().await?;
        let election = client.election("election").value("a");
        let leadership = election.campaign().await?;
        leadership.proclaim("b").await?;
        let leader = election.leader().await?;
        is_so("it leads", leader.is_some_and(|leader| leader.value == "b"))?;
        leadership.resign().await?;
        is_so("nobody leads", election.leader().await?.is_none())
    }

    pub(super) async fn barrier(&self) -> Done {
        let (ours, theirs) = (self.client().await?, self.client().await?);
        let (one, two) = (ours.barrier("barrier", 2), theirs.barrier("barrier", 2));
        let (one_leads, two_leads) = futures_util::future::try_join(one.wait(), two.wait()).await?;
        is_so("one leads", one_leads != two_leads)?;
        match one.wait_for(Duration::ZERO).await {
            Err(error) if error.is_broken() => {}
            other => {
                return other
                    .map_err(Trouble::Told)
                    .and(is_so("nobody came", false));
            }
        }
        // The party is withdrawn.
        let dropped = tokio::time::timeout(Duration::from_millis(100), one.wait()).await;
        is_so("nobody came", dropped.is_err())?;
        // Before its lease would end.
        let alone = theirs.barrier("barrier", 1);
        let alone = async {
            while alone.wait().await.is_err() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        let withdrawn = tokio::time::timeout(Duration::from_secs(3), alone).await;
        withdrawn.map_err(|_| Trouble::Missed("a party is left"))
    }
}

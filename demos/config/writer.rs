//! The writer: changes both parts now and then, and checks what it wrote.

use std::time::{Duration, Instant};

use lockset::{Client, RwLock};
use tokio::time::sleep;

use crate::CHANGES;
use crate::parts::Parts;
use crate::support::Result;
use crate::support::server::LockServer;

/// The pause between two changes, and between the two parts of a change.
const PAUSE: Duration = Duration::from_millis(20);
const BETWEEN: Duration = Duration::from_millis(2);

#[derive(Default)]
pub(crate) struct Writes {
    /// The waits for the lock. Empty without a lock.
    waits: Vec<Duration>,
    /// The number of changes that were read back unchanged.
    pub(crate) confirmed: u64,
    /// The version at the end.
    pub(crate) last: u64,
    /// The largest number of concurrent readers.
    pub(crate) readers_at_once: usize,
}

impl Writes {
    pub(crate) fn median_wait(&self) -> Duration {
        let mut sorted = self.waits.clone();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied().unwrap_or_default()
    }

    pub(crate) fn longest_wait(&self) -> Duration {
        self.waits.iter().max().copied().unwrap_or_default()
    }
}

/// Makes all changes while the readers read.
pub(crate) async fn change(
    server: &LockServer,
    parts: Parts,
    lock: Option<&str>,
) -> Result<Writes> {
    let client = Client::connect(&server.url).await?;
    let mut writes = Writes::default();
    for version in 1..=CHANGES {
        sleep(PAUSE).await;
        match lock {
            None => write_both(&parts, version).await?,
            Some(name) => with_lock(&client.rw_lock(name), &parts, version, &mut writes).await?,
        }
    }
    writes.last = parts.read(1).await?;
    client.shutdown().await?;
    Ok(writes)
}

async fn write_both(parts: &Parts, version: u64) -> Result<()> {
    parts.write(0, version).await?;
    sleep(BETWEEN).await;
    parts.write(1, version).await
}

async fn with_lock(lock: &RwLock, parts: &Parts, version: u64, writes: &mut Writes) -> Result<()> {
    let readers = lock.read_side().holders().await?.len();
    writes.readers_at_once = writes.readers_at_once.max(readers);

    let asked = Instant::now();
    let writing = lock.write().await?;
    writes.waits.push(asked.elapsed());
    // `run` drops the work as soon as the lock is lost.
    writing.run(write_both(parts, version)).await??;

    // From now on others may read, and no other writer came in between, so the parts must be as
    // written.
    let reading = writing.downgrade().await?;
    let read = [parts.read(0).await?, parts.read(1).await?];
    writes.confirmed += u64::from(read == [version; 2]);
    reading.release().await?;
    Ok(())
}

//! A process of readers: each reads both parts repeatedly, until a stop order.

use std::io::{Write as _, stdout};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use lockset::{Client, RwLock};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::READERS;
use crate::parts::Parts;
use crate::support::Result;
use crate::support::worker::{Orders, server_url};

/// The work between reading one part and the other.
const WORK: Duration = Duration::from_millis(1);

#[derive(Default)]
pub(crate) struct Reads {
    pub(crate) all: usize,
    pub(crate) torn: usize,
}

impl Reads {
    /// Adds a process's report, such as `120 reads 3 torn`.
    pub(crate) fn add(&mut self, line: &str) -> Result<()> {
        let words: Vec<&str> = line.split(' ').collect();
        let [all, "reads", torn, "torn"] = words[..] else {
            return Err(format!("a process of readers said {line:?}").into());
        };
        self.all += all.parse::<usize>()?;
        self.torn += torn.parse::<usize>()?;
        Ok(())
    }
}

pub(crate) async fn open(config: &str, lock: Option<&str>) -> Result<()> {
    let url = server_url()?;
    let redis = redis::Client::open(&*url)?;
    let parts = Parts::new(redis.get_multiplexed_async_connection().await?, config);
    let client = Client::connect(&url).await?;
    let lock = lock.map(|name| client.rw_lock(name));

    let mut orders = Orders::take()?;
    let stop = Arc::new(AtomicBool::new(false));
    let mut readers = JoinSet::new();
    for _ in 0..READERS {
        readers.spawn(reader(parts.clone(), lock.clone(), Arc::clone(&stop)));
    }
    while orders.next().await?.is_some() {}
    stop.store(true, Ordering::Relaxed);
    while let Some(reads) = readers.join_next().await {
        let Reads { all, torn } = reads??;
        writeln!(stdout(), "{all} reads {torn} torn")?;
    }
    client.shutdown().await?;
    Ok(())
}

async fn reader(parts: Parts, lock: Option<RwLock>, stop: Arc<AtomicBool>) -> Result<Reads> {
    let mut reads = Reads::default();
    while !stop.load(Ordering::Relaxed) {
        let is_whole = match &lock {
            None => read_both(&parts).await?,
            Some(lock) => {
                let guard = lock.read().await?;
                let is_whole = read_both(&parts).await?;
                // An error would mean that the lease ended before the last part was read.
                guard.release().await?;
                is_whole
            }
        };
        reads.all += 1;
        reads.torn += usize::from(!is_whole);
    }
    Ok(reads)
}

/// Whether both parts have the same version.
async fn read_both(parts: &Parts) -> Result<bool> {
    let first = parts.read(0).await?;
    sleep(WORK).await;
    Ok(parts.read(1).await? == first)
}

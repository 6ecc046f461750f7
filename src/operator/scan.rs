//! Locks that are held, found by a pass over the keys of all servers.

use std::collections::HashSet;
use std::time::Duration;

use super::ask::Asking;
use super::info::LockInfo;
use super::pass::{Pass, times};
use super::read::Reader;
use crate::api::error::Result;

/// The server's time to read a hash: 0.98 s for 98 000, a tenth of them locks.
const READ_COST: Duration = Duration::from_micros(10);

/// A pass over all keys that finds locks; from [`Survey::scan`](crate::Survey::scan).
#[derive(Debug)]
pub struct LockScan {
    pass: Pass,
    reader: Reader,
    /// The locks found so far: `SCAN` may name a key more than once.
    found: HashSet<String>,
}

impl LockScan {
    pub(super) fn new(asking: &Asking, reader: Reader, glob: String, share: f64) -> Self {
        Self {
            pass: Pass::new(asking, glob, "hash", share),
            reader,
            found: HashSet::new(),
        }
    }

    /// Returns the locks of the next slice, often none; `None` when all keys have been looked at.
    ///
    /// Each call makes a few round trips. It sleeps first, so that the pass as a whole takes at most its
    /// [share](crate::Survey::share) of the server's time.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next call looks at the same slice.
    ///
    /// # Errors
    /// As for [`Survey::locks`](crate::Survey::locks).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let mut scan = client.survey().scan();
    /// while let Some(locks) = scan.next().await? {
    ///     for lock in locks {
    ///         println!("{} {:?}", lock.name, lock.remaining);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Vec<LockInfo>>> {
        let Some(slice) = self.pass.slice().await? else {
            return Ok(None);
        };
        let new = slice.keys.iter().filter(|key| !self.found.contains(*key));
        let new: Vec<String> = new.cloned().collect();
        let busy = times(READ_COST, new.len());
        let locks = self.reader.read_some(new).await?;
        self.pass.done(&slice, busy);
        self.found.extend(locks.iter().map(|lock| lock.key.clone()));
        Ok(Some(locks))
    }

    /// Returns about how many keys have been looked at.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.pass.looked_at()
    }
}

//! Locks that are held and permits that are taken, found by two passes over the keys of all servers.

use std::collections::HashSet;
use std::time::Duration;

use lockset::Result;
use lockset::operator::Servers;

use crate::info::LockInfo;
use crate::pass::{Pass, times};
use crate::read::Reader;
use crate::{counted, glob};

/// The server's time to read a hash: 0.98 s for 98 000, a tenth of them locks.
const READ_COST: Duration = Duration::from_micros(10);

/// Two passes over all keys that find locks, then semaphores; from [`Survey::scan`](crate::Survey::scan).
#[derive(Debug)]
pub struct LockScan {
    pass: Pass,
    reader: Reader,
    /// The pass over the sorted sets of semaphores, until it begins.
    permits: Option<Pass>,
    glob: String,
    /// The locks found so far: `SCAN` may name a key more than once.
    found: HashSet<String>,
}

impl LockScan {
    pub(crate) fn new(servers: &Servers, reader: Reader, glob: String, share: f64) -> Self {
        let permits = counted::GLOB.to_owned();
        Self {
            pass: Pass::new(servers, glob.clone(), "hash", share),
            permits: Some(Pass::new(servers, permits, counted::KEY_TYPE, share)),
            glob,
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
    /// let mut scan = lockset_operator::Survey::new(&client).scan();
    /// while let Some(locks) = scan.next().await? {
    ///     for lock in locks {
    ///         println!("{} {:?}", lock.name, lock.remaining);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Vec<LockInfo>>> {
        let Some(slice) = self.pass.slice().await? else {
            let Some(permits) = self.permits.take() else {
                return Ok(None);
            };
            self.pass = permits.after(&self.pass);
            return Ok(Some(Vec::new()));
        };
        let is_of_permits = self.permits.is_none();
        let keys = if is_of_permits {
            let keys = slice.keys.iter().flat_map(|key| counted::keys_of(key));
            keys.filter(|key| glob::matches(&self.glob, key)).collect()
        } else {
            slice.keys.clone()
        };
        let new = keys.into_iter().filter(|key| !self.found.contains(key));
        let new: Vec<String> = new.collect();
        let busy = times(READ_COST, new.len());
        let locks = if is_of_permits {
            self.reader.read_counted(new).await?
        } else {
            self.reader.read_some(new).await?
        };
        self.pass.done(&slice, busy);
        self.found.extend(locks.iter().map(|lock| lock.key.clone()));
        Ok(Some(locks))
    }

    /// Leaves out the rest of the server that the last call of [`next`](Self::next) asked, after its error: a node that is
    /// away does not hide the locks of the others.
    pub fn leave_out(&mut self) {
        self.pass.leave_out();
    }

    /// Returns about how many keys have been looked at.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.pass.looked_at()
    }
}

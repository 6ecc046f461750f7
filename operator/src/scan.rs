//! Locks that are held and permits that are taken, found by two passes over the keys of all servers; or those that are
//! waited for, found by their channels.

use std::collections::HashSet;
use std::time::Duration;

use lockset::Result;
use lockset::operator::Servers;

use crate::contended::Contended;
use crate::info::LockInfo;
use crate::pass::{Pass, times};
use crate::read::Reader;
use crate::{counted, glob};

/// The server's time to read a hash: 0.98 s for 98 000, a tenth of them locks.
const READ_COST: Duration = Duration::from_micros(10);

/// A search for locks, part by part: two passes over all keys, for locks, then for semaphores, from
/// [`Survey::scan`](crate::Survey::scan); or a look at the channels of waiters, from
/// [`Survey::scan_contended`](crate::Survey::scan_contended).
#[derive(Debug)]
pub struct LockScan {
    way: Way,
    reader: Reader,
    /// The locks found so far: `SCAN` may name a key more than once.
    found: HashSet<String>,
}

#[derive(Debug)]
enum Way {
    Keys(Box<Keys>),
    /// With the pattern of the names.
    Channels(Contended, String),
}

#[derive(Debug)]
struct Keys {
    pass: Pass,
    /// The pass over the sorted sets of semaphores, until it begins.
    permits: Option<Pass>,
    glob: String,
}

impl LockScan {
    pub(crate) fn new(servers: &Servers, reader: Reader, glob: String, share: f64) -> Self {
        let permits = counted::GLOB.to_owned();
        let keys = Keys {
            pass: Pass::new(servers, glob.clone(), "hash", share),
            permits: Some(Pass::new(servers, permits, counted::KEY_TYPE, share)),
            glob,
        };
        Self::of(Way::Keys(Box::new(keys)), reader)
    }

    pub(crate) fn of_contended(reader: Reader, contended: Contended, pattern: String) -> Self {
        Self::of(Way::Channels(contended, pattern), reader)
    }

    fn of(way: Way, reader: Reader) -> Self {
        Self {
            way,
            reader,
            found: HashSet::new(),
        }
    }

    /// Returns the locks of the next slice, often none; `None` when all has been looked at.
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
        let locks = match &mut self.way {
            Way::Keys(keys) => keys.next(&self.reader, &self.found).await?,
            Way::Channels(contended, pattern) => {
                let locks = contended.next(&self.reader).await?;
                // Elsewhere this pattern is the server's own kind of pattern.
                locks.map(|mut locks| {
                    locks.retain(|lock| glob::matches(pattern, &lock.name));
                    locks
                })
            }
        };
        Ok(locks.map(|mut locks| {
            locks.retain(|lock| self.found.insert(lock.key.clone()));
            locks
        }))
    }

    pub(crate) async fn all(mut self) -> Result<Vec<LockInfo>> {
        let mut all = Vec::new();
        while let Some(locks) = self.next().await? {
            all.extend(locks);
        }
        Ok(all)
    }

    /// Leaves out the rest of the server that the last call of [`next`](Self::next) asked, after its error: a node that is
    /// away does not hide the locks of the others.
    pub fn leave_out(&mut self) {
        match &mut self.way {
            Way::Keys(keys) => keys.pass.leave_out(),
            Way::Channels(contended, _) => contended.leave_out(),
        }
    }

    /// Returns about how many keys have been looked at; 0 for a look at channels.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        match &self.way {
            Way::Keys(keys) => keys.pass.looked_at(),
            Way::Channels(..) => 0,
        }
    }
}

impl Keys {
    /// Returns the locks of the next slice that were not found before.
    async fn next(
        &mut self,
        reader: &Reader,
        found: &HashSet<String>,
    ) -> Result<Option<Vec<LockInfo>>> {
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
        let new = keys.into_iter().filter(|key| !found.contains(key));
        let new: Vec<String> = new.collect();
        let busy = times(READ_COST, new.len());
        let locks = if is_of_permits {
            reader.read_counted(new).await?
        } else {
            reader.read_some(new).await?
        };
        self.pass.done(&slice, busy);
        Ok(Some(locks))
    }
}

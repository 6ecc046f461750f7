//! Locks that are held, permits that are taken and parties that wait, found by passes over the keys of all servers; or
//! locks with waiters, found by their channels.

use std::collections::HashSet;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{HOLDS_OF_PERMITS, LockName, Servers};

use crate::contended::Contended;
use crate::info::LockInfo;
use crate::pass::{Pass, times};
use crate::read::Reader;
use crate::recognize::name_behind;
use crate::{barrier, counted, glob};

/// The server's time to read a hash: 0.98 s for 98 000, a tenth of them locks.
const READ_COST: Duration = Duration::from_micros(10);

/// A search for locks, part by part: passes over all keys, for locks, then for semaphores, then for plain semaphores and
/// barriers, from [`Survey::scan`](crate::Survey::scan); or a look at the channels of waiters, from
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
    sought: Sought,
    /// The passes that are still to be made, the next one last.
    later: Vec<(Sought, Pass)>,
    /// Of the keys of locks.
    glob: String,
}

/// The kind of the keys of a pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sought {
    /// Hashes that may be locks.
    Locks,
    /// The permits of semaphores that are taken.
    Permits,
    /// Keys beside plain semaphores and barriers.
    Notes,
}

/// A pattern that matches the notes, and few other keys.
const NOTES: &str = "lockset_[sb]*";

impl LockScan {
    pub(crate) fn new(servers: &Servers, reader: Reader, glob: String, share: f64) -> Self {
        let pass = |glob: &str, kind| Pass::new(servers, glob.to_owned(), kind, share);
        let keys = Keys {
            pass: pass(&glob, "hash"),
            sought: Sought::Locks,
            later: vec![
                (Sought::Notes, pass(NOTES, "")),
                (Sought::Permits, pass(counted::GLOB, counted::KEY_TYPE)),
            ],
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
            let Some((sought, pass)) = self.later.pop() else {
                return Ok(None);
            };
            self.sought = sought;
            self.pass = pass.after(&self.pass);
            return Ok(Some(Vec::new()));
        };
        let wanted = |key: &String| glob::matches(&self.glob, key) && !found.contains(key);
        let keys: Vec<String> = match self.sought {
            Sought::Locks => slice.keys.clone(),
            Sought::Permits => slice
                .keys
                .iter()
                .flat_map(|key| counted::keys_of(key))
                .collect(),
            Sought::Notes => names_behind(HOLDS_OF_PERMITS, &slice.keys),
        };
        let keys: Vec<String> = keys.into_iter().filter(wanted).collect();
        let mut busy = times(READ_COST, keys.len());
        let mut locks = match self.sought {
            Sought::Locks => reader.read_some(keys).await?,
            Sought::Permits | Sought::Notes => reader.read_counted(keys).await?,
        };
        if self.sought == Sought::Notes {
            let barriers = names_behind(barrier::ARRIVALS, &slice.keys).into_iter();
            let barriers = barriers.filter(|key| glob::matches(&self.glob, key));
            let barriers: Vec<LockName> = barriers.filter_map(|key| reader.name(&key)).collect();
            busy += times(READ_COST, barriers.len());
            let waiting = reader.read_barriers(barriers).await?;
            locks.extend(waiting.into_iter().map(|found| found.lock));
        }
        self.pass.done(&slice, busy);
        Ok(Some(locks))
    }
}

/// Returns the keys that these helpers belong to.
fn names_behind(prefix: &str, helpers: &[String]) -> Vec<String> {
    let keys = helpers
        .iter()
        .filter_map(|helper| name_behind(prefix, helper));
    keys.map(str::to_owned).collect()
}

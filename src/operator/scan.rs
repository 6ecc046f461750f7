//! A pass over the keys of all servers, slice by slice, at a bounded part of their time.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use super::ask::{Asking, command};
use super::info::LockInfo;
use super::read::Reader;
use super::values::{integer, list, texts};
use crate::clock::Tick;
use crate::error::Result;

/// Keys that one call looks at. A call of 100 costs the server 40 % more for each key, and one of 10 000
/// holds it up for 7 to 25 ms.
const SLICE_KEYS: &str = "1000";

/// What looking at a hash takes of a server's time: 0.98 s for 98 000, a tenth of them locks.
const READ_COST: Duration = Duration::from_micros(10);

const PAUSE_MAX: Duration = Duration::from_secs(1);

/// A pass over all keys that finds locks; from [`Survey::scan`](crate::Survey::scan).
#[derive(Debug)]
pub struct LockScan {
    asking: Asking,
    reader: Reader,
    glob: String,
    share: f64,
    /// Servers that are still to be asked, the current one first.
    servers: VecDeque<Arc<str>>,
    cursor: String,
    /// What was found: a key may be named more than once.
    found: HashSet<String>,
    next_at: Tick,
    looked_at: u64,
}

impl LockScan {
    pub(super) fn new(asking: &Asking, reader: Reader, glob: String, share: f64) -> Self {
        Self {
            servers: asking.servers().into(),
            asking: asking.clone(),
            reader,
            glob,
            share,
            cursor: "0".to_owned(),
            found: HashSet::new(),
            next_at: Tick::ZERO,
            looked_at: 0,
        }
    }

    /// The locks of the next slice, often none; `None` when all keys have been looked at.
    ///
    /// Each call makes a few round trips. It sleeps first, so that the pass as a whole takes no more than its
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
        let Some(server) = self.servers.front().cloned() else {
            return Ok(None);
        };
        let clock = self.asking.core.clock;
        clock.sleep_until(self.next_at).await;
        let began = clock.now();
        let slice = command(&[
            "SCAN",
            &self.cursor,
            "MATCH",
            &self.glob,
            "COUNT",
            SLICE_KEYS,
            "TYPE",
            "hash",
        ]);
        let reply = self.asking.ask(&server, &slice).await?;
        let (cursor, keys) = match list(&reply) {
            [cursor, keys] => (integer(cursor).unwrap_or(0), texts(keys)),
            _ => (0, Vec::new()),
        };
        let new = keys.into_iter().filter(|key| !self.found.contains(key));
        let new: Vec<String> = new.collect();
        let count = u32::try_from(new.len()).unwrap_or(u32::MAX);
        let busy = began.until(clock.now()) + READ_COST * count;
        let locks = self.reader.read_some(new).await?;
        self.next_at = clock.now().after(pause(busy, self.share));
        self.found.extend(locks.iter().map(|lock| lock.key.clone()));
        self.looked_at += 1000;
        self.cursor = cursor.to_string();
        if cursor == 0 {
            self.servers.pop_front();
        }
        Ok(Some(locks))
    }

    /// About how many keys have been looked at.
    #[must_use]
    pub fn looked_at(&self) -> u64 {
        self.looked_at
    }
}

/// How long to leave a server alone after a call that took it `busy` at most.
fn pause(busy: Duration, share: f64) -> Duration {
    busy.mul_f64((1.0 / share - 1.0).clamp(0.0, 1000.0))
        .min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_leaves_the_server_its_time() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(2), 0.5), ms(2));
        assert_eq!(pause(ms(2), 0.125), ms(14));
        assert_eq!(pause(ms(2), 1.0), ms(0));
        assert_eq!(pause(ms(900), 0.01), PAUSE_MAX);
        assert_eq!(pause(ms(900), 0.0), PAUSE_MAX);
    }
}

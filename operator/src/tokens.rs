//! Counters of fencing tokens that have long been unused.
//!
//! The number in a counter of ours is the time of its last grant, so it shows how long it has been unused.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{LockName, Servers, within_braces};
use redis::Value;

use crate::ask::{Question, ask_all, command, integer, microseconds};
use crate::glob;
use crate::info::TokenCounter;
use crate::pass::{Pass, times};
use crate::read::Reader;

/// The pattern of the keys of counters.
pub(crate) const GLOB: &str = "redisson_lock_token:*";

/// The server's time to read a counter, estimated from the time to read a hash.
const READ_COST: Duration = Duration::from_micros(4);

/// The number in a counter of ours is a multiple of this.
const STEP: u64 = 64;

/// The lowest time of a grant, in microseconds since 1970: in 2001. Redisson counts from 1.
const TIME_MIN: u64 = 1_000_000_000_000_000;

/// A pass over all keys that finds unused counters of fencing tokens; from
/// [`Survey::tokens`](crate::Survey::tokens).
#[derive(Debug)]
pub struct TokenScan {
    pass: Pass,
    servers: Servers,
    reader: Reader,
    pattern: String,
    unused_for: Duration,
    /// The counters found so far: `SCAN` may name a key more than once.
    found: HashSet<String>,
    passed_over: u64,
}

impl TokenScan {
    pub(crate) fn new(
        pass: Pass,
        reader: Reader,
        servers: &Servers,
        pattern: &str,
        unused_for: Duration,
    ) -> Self {
        Self {
            pass,
            servers: servers.clone(),
            reader,
            pattern: pattern.to_owned(),
            unused_for,
            found: HashSet::new(),
            passed_over: 0,
        }
    }

    /// Returns the counters of the next slice, often none; `None` when all keys have been looked at.
    ///
    /// It sleeps first, so that the pass as a whole takes at most its [share](crate::Survey::share) of
    /// the server's time. Ages are by the clock of the server that has the counter.
    ///
    /// # Cancel safety
    /// If the future is dropped, the next call looks at the same slice.
    ///
    /// # Errors
    /// As for [`Survey::locks`](crate::Survey::locks).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let quarter = std::time::Duration::from_secs(90 * 24 * 60 * 60);
    /// let mut scan = lockset_operator::Survey::new(&client).matching("order:*").tokens(quarter);
    /// while let Some(counters) = scan.next().await? {
    ///     for counter in counters {
    ///         println!("{} was not used for {:?}", counter.name, counter.unused_for);
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Option<Vec<TokenCounter>>> {
        let Some(slice) = self.pass.slice().await? else {
            return Ok(None);
        };
        let now = self.now_us(&slice.server).await?;
        let new = slice.keys.iter().filter(|key| !self.found.contains(*key));
        let named: Vec<(String, LockName)> = new
            .filter_map(|key| Some((key.clone(), self.name(key)?)))
            .collect();
        let busy = times(READ_COST, named.len());
        let counters = self.read(&named).await?;
        let stay = counters
            .iter()
            .filter(|(_, token, _)| !is_time(*token, now));
        let stay = stay.count() as u64;
        let unused = counters.into_iter().filter_map(|(name, token, kept)| {
            let unused_for = Duration::from_micros(now.checked_sub(token)?);
            (is_time(token, now) && unused_for >= self.unused_for).then(|| {
                let counter = TokenCounter {
                    name: name.as_str().to_owned(),
                    key: name.token_key(),
                    token: token.into(),
                    unused_for,
                    kept_for: kept,
                    in_use: false,
                };
                (name, counter)
            })
        });
        let unused = self.with_use(unused.collect()).await?;
        self.pass.done(&slice, busy);
        self.passed_over += stay;
        let keys = unused.iter().map(|counter| counter.key.clone());
        self.found.extend(keys);
        Ok(Some(unused))
    }

    /// Leaves out the rest of the server that the last call of [`next`](Self::next) asked, after its error: a node that is
    /// away does not hide the counters of the others.
    pub fn leave_out(&mut self) {
        self.pass.leave_out();
    }

    /// Returns about how many counters were passed over so far, because their numbers are not known to be times:
    /// Redisson uses them too, or they are ahead of the server's clock, which was set back. These are never purged.
    #[must_use]
    pub fn passed_over(&self) -> u64 {
        self.passed_over
    }

    /// Returns the name of the lock that uses this counter, if it is wanted.
    fn name(&self, token_key: &str) -> Option<LockName> {
        let name = lock_of_token_key(token_key)?.strip_prefix(self.servers.prefix())?;
        let name = self.servers.name(name).ok()?;
        glob::matches(&self.pattern, name.as_str()).then_some(name)
    }

    async fn now_us(&self, server: &str) -> Result<u64> {
        let time = self.servers.ask(server, &command(&["TIME"])).await?;
        Ok(u64::try_from(microseconds(&time)).unwrap_or_default())
    }

    /// Reads each counter: its number, and how long it is kept if it stays unused.
    async fn read(
        &self,
        named: &[(String, LockName)],
    ) -> Result<Vec<(LockName, u64, Option<Duration>)>> {
        let questions = named.iter().flat_map(|(key, name)| {
            let ask = |words: &[&str]| (Arc::clone(name.key()), command(words));
            [ask(&["GET", key]), ask(&["PTTL", key])]
        });
        let answers = ask_all(&self.servers, &questions.collect::<Vec<_>>()).await;
        let mut counters = Vec::new();
        for ((_, name), answers) in named.iter().zip(answers.chunks_exact(2)) {
            let number =
                |answer: &Result<Value>| answer.as_ref().map_err(Clone::clone).map(integer);
            let (token, kept) = (number(&answers[0])?, number(&answers[1])?);
            // It has gone in the meantime, or is not a number.
            let Some(token) = token.and_then(|token| u64::try_from(token).ok()) else {
                continue;
            };
            let kept = kept.and_then(|ms| u64::try_from(ms).ok());
            counters.push((name.clone(), token, kept.map(Duration::from_millis)));
        }
        Ok(counters)
    }

    /// Adds whether the locks of the counters are held or waited for.
    async fn with_use(&self, unused: Vec<(LockName, TokenCounter)>) -> Result<Vec<TokenCounter>> {
        let questions: Vec<Question> = unused
            .iter()
            .map(|(name, _)| {
                let mut exists = command(&["EXISTS"]);
                exists.arg(name.keys_in_use());
                (Arc::clone(name.key()), exists)
            })
            .collect();
        let answers = ask_all(&self.servers, &questions).await;
        let channels = unused.iter().flat_map(|(name, _)| {
            [name.lock_channel(), name.rw_channel()]
                .map(|channel| (Arc::clone(name.key()), channel))
        });
        let listening = self.reader.subscribers(&channels.collect::<Vec<_>>()).await;
        let is_heard = |channel: String| listening.get(&channel).is_some_and(|count| *count > 0);
        let mut counters = Vec::new();
        for ((name, mut counter), answer) in unused.into_iter().zip(answers) {
            counter.in_use = integer(&answer?) > Some(0)
                || is_heard(name.lock_channel())
                || is_heard(name.rw_channel());
            counters.push(counter);
        }
        Ok(counters)
    }
}

/// Returns the key of the lock whose tokens this key counts, if there is one. `x` and `{x}` share theirs.
fn lock_of_token_key(token_key: &str) -> Option<&str> {
    let rest = token_key.strip_prefix("redisson_lock_token:")?;
    within_braces(rest).or_else(|| rest.contains('{').then_some(rest))
}

/// Whether a number in a counter is the time of its last grant.
fn is_time(token: u64, now: u64) -> bool {
    token.is_multiple_of(STEP) && (TIME_MIN..=now).contains(&token)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_time_that_has_passed_says_when_a_counter_was_used() {
        let now = 1_790_000_000_000_000;
        assert!(is_time(now - now % 64, now));
        for other in [0, 1, 64, 6_400, now + 64, now - now % 64 - 63] {
            assert!(!is_time(other, now), "{other}");
        }
    }

    #[test]
    fn a_counter_leads_back_to_its_lock() {
        let holder = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:7";
        for (name, lock) in [
            ("abc", "abc"),
            ("{abc}", "abc"),
            ("a{b}c", "a{b}c"),
            (&format!("a{{b}}:{holder}"), &format!("a{{b}}:{holder}")),
        ] {
            let name = LockName::new("", name).unwrap();
            assert_eq!(lock_of_token_key(&name.token_key()), Some(lock));
        }
        for other in [
            "redisson_lock_token:abc",
            "redisson_lock_queue:{abc}",
            "abc",
        ] {
            assert_eq!(lock_of_token_key(other), None, "{other}");
        }
    }
}

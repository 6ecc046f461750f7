//! Removes unused counters of fencing tokens, for operators.
//!
//! Invariant: a counter is removed only if its last token is a time that is so old by the server's clock that the next
//! token is larger. The script decides that when it removes the counter.

use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::fencing::TokenPurge;
use crate::client::Client;
use crate::conn::Channels;
use crate::engine::keys::LockName;
use crate::script::{Answer, Call, catalog, reply};

const OPERATION: &str = "purge_token";

/// No clock is set back by this much to correct it.
const UNUSED_MIN: Duration = Duration::from_secs(60 * 60);

impl Client {
    /// Removes the counter of a lock's [fencing tokens](crate::FencingToken) if it has issued no token for
    /// `unused_for`, at least an hour. For operators, where counters are kept for longer than that
    /// ([`token_retention`](crate::ClientBuilder::token_retention)); [`Survey::tokens`](crate::Survey::tokens) finds
    /// them.
    ///
    /// The last token is the time of its grant, and the next token is the time of the next grant. So tokens grow
    /// without the counter as long as the server's clock does. A lock that was handed off between tasks of one client
    /// counts as used at its first grant, so a counter may be removed a moment after the last of these tasks released
    /// the lock. **It is not safe if that clock is set back by more than `unused_for` later on**, or if another server
    /// takes over whose clock is behind by more than that: then a new token may be smaller than a token that a resource
    /// has seen, and the resource refuses the new holder until the clock has caught up.
    ///
    /// When it removes the counter, the server checks again whether a token was issued since, and whether a lock that
    /// uses the counter is held, queued for, or listened for. In a cluster without sharded channels (Redis 6.2) it sees
    /// only listeners at the same server. Redisson begins with 1 where there is no counter. A counter that Redisson was
    /// seen to raise stays, but not every raise can be seen: **do not purge counters that its `RFencedLock` uses.**
    ///
    /// The user needs the right `+pubsub|numsub` (with sharded channels `+pubsub|shardnumsub`) in addition to the
    /// rights of a program with fenced locks.
    ///
    /// # Cancel safety
    /// If the future is dropped, the counter may or may not be removed. The call may be repeated.
    ///
    /// # Errors
    /// As for [`lock`](crate::ReentrantLock::lock), and [`is_invalid`](crate::Error::is_invalid) if
    /// `unused_for` is less than an hour.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// use std::time::Duration;
    ///
    /// let quarter = Duration::from_secs(90 * 24 * 60 * 60);
    /// let mut scan = client.survey().tokens(quarter);
    /// while let Some(counters) = scan.next().await? {
    ///     for counter in counters {
    ///         let became = client.purge_token(&counter.name, quarter).await?;
    ///         println!("{}: {}", counter.name, became.as_str());
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn purge_token(
        &self,
        name: impl AsRef<str>,
        unused_for: Duration,
    ) -> Result<TokenPurge> {
        let lock = self.lock(name);
        if unused_for < UNUSED_MIN {
            let message = "a counter is purged after an hour without a token, or more".to_owned();
            let invalid = Error::invalid("unused_for", message);
            return Err(invalid.during(OPERATION).of_lock(lock.name()));
        }
        let number = match self.core().channels() {
            Channels::Plain => "NUMSUB",
            Channels::Sharded => "SHARDNUMSUB",
        };
        let call = |name: &LockName| purge(name, unused_for, number);
        let read = |answer: &Answer| {
            Ok(match reply::purged(&answer.value)? {
                // A repeat finds no counter if an earlier attempt without an answer has removed it.
                TokenPurge::Absent if answer.repeated => TokenPurge::Purged,
                became => became,
            })
        };
        lock.0.query(OPERATION, call, read).await
    }
}

fn purge(name: &LockName, unused_for: Duration, number: &str) -> Call {
    let keys: Vec<String> = [name.token_key()]
        .into_iter()
        .chain(name.keys_in_use())
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let unused_us = u64::try_from(unused_for.as_micros()).unwrap_or(u64::MAX);
    Call::new(&catalog::PURGE_TOKEN, name.key(), &keys)
        .arg(unused_us)
        .arg(number)
        .arg(name.lock_channel())
        .arg(name.rw_channel())
}

//! Removes unused counters of fencing tokens, and unused semaphores, for operators.
//!
//! Invariants: a counter is removed only if its last token is a time that is so old by the server's clock that the next
//! token is larger; a semaphore only if all permits that its operator says it has are free and no call waits. The script
//! decides that when it removes the key.

use std::time::Duration;

use lockset::operator::{Channels, Holds, Servers, within_braces};
use lockset::{Client, Result};

/// The operation, and the script that does it.
const OPERATION: &str = "purge_token";

/// No clock is set back by this much to correct it.
const UNUSED_MIN: Duration = Duration::from_secs(60 * 60);

/// The outcome of purging a counter of fencing tokens; from [`purge_token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TokenPurge {
    /// The counter was removed. A hand-off issues no token of its own, so a task may have had one of the last tokens a
    /// moment ago. Later tokens are larger all the same.
    Purged,
    /// There is no counter.
    Absent,
    /// The server granted the lock with a token within `unused_for`. The counter is left as it is.
    UsedSince,
    /// The lock is held or waited for. The counter is left as it is.
    InUse,
    /// The counter has to stay: Redisson uses it too and would begin with 1 again, or it is ahead of the server's
    /// clock, which was set back.
    Stays,
}

impl TokenPurge {
    /// Returns it as one word: `purged`, `absent`, `used-since`, `in-use`, `stays`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Purged => "purged",
            Self::Absent => "absent",
            Self::UsedSince => "used-since",
            Self::InUse => "in-use",
            Self::Stays => "stays",
        }
    }
}

/// Removes the counter of a lock's [fencing tokens](lockset::FencingToken) if it has issued no token for
/// `unused_for`, at least an hour. For operators, where counters are kept for longer than that
/// ([`token_retention`](lockset::ClientBuilder::token_retention)); [`Survey::tokens`](crate::Survey::tokens) finds
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
/// The user needs the right `+pubsub|numsub` (with sharded channels `+pubsub|shardnumsub`) in addition to the rights of
/// a program with fenced locks; with a key prefix `app:` also `~{app:*}`, because `x` and `{x}` share a counter.
///
/// # Cancel safety
/// If the future is dropped, the counter may or may not be removed. The call may be repeated.
///
/// # Errors
/// As for [`lock`](lockset::ReentrantLock::lock), and [`is_invalid`](lockset::Error::is_invalid) if
/// `unused_for` is less than an hour.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// use std::time::Duration;
///
/// use lockset_operator::{Survey, purge_token};
///
/// let quarter = Duration::from_secs(90 * 24 * 60 * 60);
/// let mut scan = Survey::new(&client).tokens(quarter);
/// while let Some(counters) = scan.next().await? {
///     for counter in counters {
///         let became = purge_token(&client, &counter.name, quarter).await?;
///         println!("{}: {}", counter.name, became.as_str());
///     }
/// }
/// # Ok(()) }
/// ```
pub async fn purge_token(
    client: &Client,
    name: impl AsRef<str>,
    unused_for: Duration,
) -> Result<TokenPurge> {
    let lock = client.lock(&name);
    let counter = Holds::from(&lock);
    if unused_for < UNUSED_MIN {
        let message = "a counter is purged after an hour without a token, or more";
        return Err(counter.invalid(OPERATION, message));
    }
    let servers = Servers::of(client);
    let name = servers.name(name.as_ref())?;
    let keys: Vec<String> = [name.token_key()]
        .into_iter()
        .chain(name.keys_in_use())
        .collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let unused_us = u64::try_from(unused_for.as_micros()).unwrap_or(u64::MAX);
    let arguments = [
        &*unused_us.to_string(),
        listeners(&servers),
        &name.lock_channel(),
        &name.rw_channel(),
    ];
    counter.purge(OPERATION, &keys, &arguments, became).await
}

/// The question for the number of listeners of a channel.
fn listeners(servers: &Servers) -> &'static str {
    match servers.channels() {
        Channels::Plain => "NUMSUB",
        Channels::Sharded => "SHARDNUMSUB",
    }
}

/// Reads the status of the script. A repeat finds no counter if an earlier attempt without an answer has removed it.
fn became(status: i64, repeated: bool) -> Option<TokenPurge> {
    Some(match status {
        1 => TokenPurge::Purged,
        0 if repeated => TokenPurge::Purged,
        0 => TokenPurge::Absent,
        -1 => TokenPurge::UsedSince,
        -2 => TokenPurge::InUse,
        -3 => TokenPurge::Stays,
        _ => return None,
    })
}

/// The outcome of purging a semaphore; from [`purge_semaphore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SemaphorePurge {
    /// The semaphore was removed.
    Purged,
    /// There is no semaphore.
    Absent,
    /// It has another number of permits. Of a plain semaphore, some may be taken.
    OtherNumber,
    /// A permit is taken or waited for, or the number is known to be something else than a semaphore.
    InUse,
}

impl SemaphorePurge {
    /// Returns it as one word: `purged`, `absent`, `other-number`, `in-use`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Purged => "purged",
            Self::Absent => "absent",
            Self::OtherNumber => "other-number",
            Self::InUse => "in-use",
        }
    }
}

/// Removes a semaphore, of either kind, that has this many permits, if all of them are free and no call waits. For
/// operators: a semaphore has no lease, and is never removed otherwise.
///
/// **A semaphore whose permits are all free is a number like any other**, so nothing at the server tells it from the
/// value of an application. The caller does, by its name and by the number of its permits. When it removes the
/// semaphore, the server checks that number again, and that no permit has a lease that runs, that no client of this
/// library has one of a plain semaphore, that no client listens or has a place, and that no other semaphore shares the
/// leases (`x` and `{x}` do). A permit of a plain semaphore that Redisson took is only seen by the number: with 0
/// permits, Redisson may have all of them, because none is noted. In a cluster without sharded channels (Redis 6.2) the
/// server sees only its own listeners.
///
/// Afterwards it is as if the semaphore had never been made. Handles with [`permits`](lockset::Semaphore::permits) make
/// it again with their next acquire. Without, a call on a [`semaphore`](lockset::Client::semaphore) fails. Calls on a
/// [`plain_semaphore`](lockset::Client::plain_semaphore), and Redisson's, wait until a client declares the number
/// again.
///
/// The user needs the right `+pubsub|numsub` (with sharded channels `+pubsub|shardnumsub`) in addition to the
/// rights of a program with latches and semaphores of both kinds; with a key prefix `app:` also `~{app:*}`, for `{x}`.
///
/// # Cancel safety
/// If the future is dropped, the semaphore may or may not be removed. The call may be repeated.
///
/// # Errors
/// As for [`lock`](lockset::ReentrantLock::lock), and [`is_wrong_type`](lockset::Error::is_wrong_type) if the key holds
/// something else than a number.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// use lockset_operator::{SemaphorePurge, purge_semaphore};
///
/// if purge_semaphore(&client, "licences:2025", 3).await? != SemaphorePurge::Purged {
///     println!("it stays");
/// }
/// # Ok(()) }
/// ```
pub async fn purge_semaphore(
    client: &Client,
    name: impl AsRef<str>,
    permits: u32,
) -> Result<SemaphorePurge> {
    let lock = client.lock(&name);
    let servers = Servers::of(client);
    let name = servers.name(name.as_ref())?;
    let mut keys = vec![
        name.key().to_string(),
        name.semaphore_timeouts_key(),
        name.semaphore_queue_key(),
        name.semaphore_alive_key(),
        name.semaphore_holds_key(),
        name.latch_opened_key(),
    ];
    // `x` and `{x}` share the leases of their permits.
    keys.extend(match within_braces(name.key()) {
        Some(inner) => Some(inner.to_owned()),
        None => (!name.key().contains('{')).then(|| format!("{{{}}}", name.key())),
    });
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let has_slot = servers.channels() == Channels::Sharded;
    let arguments = [
        &*permits.to_string(),
        listeners(&servers),
        &name.semaphore_channel(),
        &name.latch_channel(has_slot),
    ];
    let holds = Holds::from(&lock);
    let purged = holds.purge("purge_semaphore", &keys, &arguments, semaphore_became);
    purged.await
}

/// Reads the status of the script. A repeat finds no semaphore if an earlier attempt without an answer has removed it.
fn semaphore_became(status: i64, repeated: bool) -> Option<SemaphorePurge> {
    Some(match status {
        1 => SemaphorePurge::Purged,
        0 if repeated => SemaphorePurge::Purged,
        0 => SemaphorePurge::Absent,
        -1 => SemaphorePurge::OtherNumber,
        -2 => SemaphorePurge::InUse,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Operators' scripts compare these words.
    #[test]
    fn what_became_of_a_counter_is_one_word() {
        let all = [
            (TokenPurge::Purged, "purged"),
            (TokenPurge::Absent, "absent"),
            (TokenPurge::UsedSince, "used-since"),
            (TokenPurge::InUse, "in-use"),
            (TokenPurge::Stays, "stays"),
        ];
        for (became, word) in all {
            assert_eq!(became.as_str(), word);
        }
    }

    #[test]
    fn every_status_of_a_semaphore_is_known() {
        let expected = [
            (1, SemaphorePurge::Purged, "purged"),
            (0, SemaphorePurge::Absent, "absent"),
            (-1, SemaphorePurge::OtherNumber, "other-number"),
            (-2, SemaphorePurge::InUse, "in-use"),
        ];
        for (status, purge, word) in expected {
            assert_eq!(semaphore_became(status, false), Some(purge));
            assert_eq!(purge.as_str(), word);
        }
        assert_eq!(semaphore_became(0, true), Some(SemaphorePurge::Purged));
        assert_eq!(semaphore_became(2, false), None);
    }

    #[test]
    fn every_status_of_the_script_is_known() {
        let purges = [1, 0, -1, -2, -3].map(|status| became(status, false).unwrap());
        let expected = [
            TokenPurge::Purged,
            TokenPurge::Absent,
            TokenPurge::UsedSince,
            TokenPurge::InUse,
            TokenPurge::Stays,
        ];
        assert_eq!(purges, expected);
        assert_eq!(became(0, true), Some(TokenPurge::Purged));
        assert_eq!((became(2, false), became(-4, false)), (None, None));
    }
}

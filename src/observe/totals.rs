//! The public view of the counts of a client.

use std::time::Duration;

use crate::api::loss::LostReason;

/// The work of a client since it was built; from [`ClientStats`](crate::ClientStats).
///
/// A multi-lock counts once for each member, by the member's kind. A Redlock counts at each of its clients, as a
/// reentrant lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// Reentrant locks that calls got.
    pub reentrant: Grants,
    /// Fair locks that calls got.
    pub fair: Grants,
    /// Read sides of read-write locks that calls got.
    pub read: Grants,
    /// Write sides of read-write locks that calls got.
    pub write: Grants,
    /// Permits of semaphores that calls got: one for each call, however many permits it took.
    pub semaphore: Grants,
    /// Calls that ended without a lock or permits, because others held them. Calls of a Redlock are not counted here.
    pub refusals: u64,
    /// Calls that had to wait: behind others of this client, or after the server had refused the lock.
    pub waits: u64,
    /// Holds and permits that were lost, each permit for itself.
    pub losses: Losses,
    /// Renewals of holds and permits.
    pub renewals: Renewals,
    /// Connections that replaced one that had broken.
    pub reconnects: Reconnects,
    /// How long the server took to answer.
    pub round_trips: RoundTrips,
    /// Releases and cancellations in the background that the server refused, or that were abandoned. Their holds end
    /// with their leases.
    pub background_failures: u64,
    /// Calls of scripts, renewals included, that ended with an error or without an answer.
    pub script_errors: u64,
    /// Events that the [`Observer`](crate::Observer) was too slow for.
    pub events_dropped: u64,
}

impl Totals {
    /// Locks of all kinds, and permits, that calls got.
    #[must_use]
    pub fn grants(&self) -> u64 {
        let all = [
            self.reentrant,
            self.fair,
            self.read,
            self.write,
            self.semaphore,
        ];
        all.iter().map(Grants::total).sum()
    }
}

/// How calls got their locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Grants {
    /// The server granted it when it was asked.
    pub by_server: u64,
    /// The server handed it over with a notification.
    pub handed_over: u64,
    /// Another task of this client handed it off, or the call joined a reader.
    pub in_memory: u64,
    /// Its owner held it already.
    pub reentered: u64,
}

impl Grants {
    /// All of them.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.by_server + self.handed_over + self.in_memory + self.reentered
    }
}

/// How many holds were lost, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Losses(pub(crate) [u64; REASONS]);

/// The number of reasons.
pub(crate) const REASONS: usize = 4;

impl Losses {
    /// For this reason.
    #[must_use]
    pub fn of(&self, reason: LostReason) -> u64 {
        self.0[reason as usize]
    }

    /// For any reason. The holds of a client that was shut down count too.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
}

/// The outcomes of renewals.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Renewals {
    /// Confirmed by the server, late ones included.
    pub renewed: u64,
    /// Confirmed when less than a third of the lease was left; in time, about two thirds are left.
    pub late: u64,
    /// Without an answer, or answered with an error. Each is repeated until the lease ends.
    pub failed: u64,
    /// The least that any renewal left of its lease, in percent; `None` if there was none.
    pub least_left_percent: Option<u8>,
}

/// Connections that replaced broken ones, by what they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reconnects {
    /// Commands of callers.
    pub command: u64,
    /// Renewals.
    pub renewal: u64,
    /// Notifications.
    pub push: u64,
    /// Waits for replicas.
    pub confirm: u64,
}

impl Reconnects {
    /// Of all connections.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.command + self.renewal + self.push + self.confirm
    }
}

/// The times of calls of scripts, or of plain commands in their place: from sending them to their replies.
///
/// Up to a thousand calls a second are timed on each connection, and no others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RoundTrips {
    /// Calls that were timed.
    pub timed: u64,
    /// The sum of their times.
    pub total: Duration,
    /// The longest of their times.
    pub longest: Duration,
}

impl RoundTrips {
    /// Returns the mean time; `None` if no call was timed.
    #[must_use]
    pub fn mean(&self) -> Option<Duration> {
        let total = u64::try_from(self.total.as_nanos()).unwrap_or(u64::MAX);
        total.checked_div(self.timed).map(Duration::from_nanos)
    }
}

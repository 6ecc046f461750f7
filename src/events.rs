//! What can happen in a client that no caller is told of, and how it is said.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::busy::Busy;
use crate::error::Error;
use crate::lost::LostReason;

/// Something that happened in a client. `Display` says it in a line for a log.
///
/// Names of locks are as they were given to the client. More events and more fields may come.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A hold was lost. A hold of a client that is shut down is one of them.
    #[non_exhaustive]
    Lost {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// The holder id it had at the server.
        holder: Cow<'a, str>,
        /// Why it was lost.
        reason: LostReason,
        /// How long it was held.
        held: Duration,
    },
    /// A renewal was confirmed when less than a third of its lease was left. Either the server, the network or
    /// this program is slow.
    #[non_exhaustive]
    RenewalLate {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// What was left of the lease.
        left: Duration,
        /// The lease.
        lease: Duration,
    },
    /// A renewal got no answer, or an error. It is tried again until the lease ends.
    #[non_exhaustive]
    RenewalFailed {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// What is left of the lease.
        left: Duration,
    },
    /// A release in the background was refused, or had no answer until the end of the lease. A refused one is
    /// tried again until then; what it does not free ends by itself.
    #[non_exhaustive]
    ReleaseFailed {
        /// The name of the lock; of several in one release, all of them. `None` for what a call that was
        /// dropped or had no answer left behind: the error says which server refused to undo it.
        lock: Option<Cow<'a, str>>,
        /// Why.
        error: Error,
    },
    /// A call has waited for longer than a second.
    #[non_exhaustive]
    LongWait {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// For how long by now.
        waited: Duration,
        /// Who is in the way, if the server said so.
        busy: Option<Busy>,
        /// How many calls of this client wait for it by now, this one included. Of a multi-lock, for the member
        /// that most of them wait for.
        waiters: usize,
        /// Where it stands; of a multi-lock, in the queue of the member that it waits for. `None` if that is not
        /// known: the server did not say, or a thousand or more are before it.
        place: Option<Place>,
    },
    /// A connection was made anew after it had broken.
    #[non_exhaustive]
    Reconnected {
        /// Host and port of the server.
        server: Cow<'a, str>,
        /// What the connection carries: `command`, `renewal`, `push` or `confirm`.
        lane: &'static str,
    },
    /// Another server answers for some keys from now on, or the same one after a restart. All holds are
    /// checked at once; those that are gone there are lost.
    #[non_exhaustive]
    Failover {
        /// How many holds are checked.
        holds: usize,
    },
    /// An operator took a hold of this client away, and left the reason: `lockset free NAME --reason TEXT`, or
    /// [`force_unlock_because`](crate::ReentrantLock::force_unlock_because). It follows [`Lost`](Self::Lost), or
    /// the error of the release that found it gone, once the server was asked for it. Not there if no reason was
    /// left, or it could not be asked for.
    #[non_exhaustive]
    Freed {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// The holder id it had at the server.
        holder: Cow<'a, str>,
        /// What the operator wrote.
        reason: Cow<'a, str>,
    },
    /// A lock was freed by [`force_unlock`](crate::ReentrantLock::force_unlock) of this client.
    #[non_exhaustive]
    Forced {
        /// The name of the lock.
        lock: Cow<'a, str>,
    },
    /// This process has named more than 64 [groups](crate::ReentrantLock::group). This one and later ones are
    /// counted together, as `other`. Told once in the life of the process, by the client that was first.
    #[non_exhaustive]
    TooManyGroups {
        /// The first name too many.
        group: Cow<'a, str>,
    },
}

/// Where a call stands in the queue for a lock, from 1: of [`Event::LongWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// Among the calls of its client that wait for the lock, in the order in which they came. Only the first asks the
    /// server for it; of others the server knows nothing, nor they of waiters of other clients. Readers who are
    /// granted the lock together have a place each.
    Client(usize),
    /// Of a [`FairLock`](crate::FairLock): in its queue at the server, with the waiters of all clients and of
    /// Redisson. Waiters that died count until they are passed over, and so do those of the other lock with this
    /// queue, where there are `x` and `{x}`.
    Server(usize),
}

impl Place {
    /// The number alone.
    #[must_use]
    pub fn number(self) -> usize {
        let (Self::Client(number) | Self::Server(number)) = self;
        number
    }

    /// Whose queue it is, for a log.
    pub(crate) fn queue(self) -> &'static str {
        match self {
            Self::Client(_) => "client",
            Self::Server(_) => "server",
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "place {} in the queue of the {}",
            self.number(),
            self.queue()
        )
    }
}

impl Event<'_> {
    /// The same event, to be kept.
    #[must_use]
    pub fn into_owned(self) -> Event<'static> {
        fn own(text: Cow<'_, str>) -> Cow<'static, str> {
            Cow::Owned(text.into_owned())
        }
        match self {
            Event::Lost {
                lock,
                holder,
                reason,
                held,
            } => Event::Lost {
                lock: own(lock),
                holder: own(holder),
                reason,
                held,
            },
            Event::RenewalLate { lock, left, lease } => Event::RenewalLate {
                lock: own(lock),
                left,
                lease,
            },
            Event::RenewalFailed { lock, left } => Event::RenewalFailed {
                lock: own(lock),
                left,
            },
            Event::ReleaseFailed { lock, error } => Event::ReleaseFailed {
                lock: lock.map(own),
                error,
            },
            Event::LongWait {
                lock,
                waited,
                busy,
                waiters,
                place,
            } => Event::LongWait {
                lock: own(lock),
                waited,
                busy,
                waiters,
                place,
            },
            Event::Reconnected { server, lane } => Event::Reconnected {
                server: own(server),
                lane,
            },
            Event::Failover { holds } => Event::Failover { holds },
            Event::Freed {
                lock,
                holder,
                reason,
            } => Event::Freed {
                lock: own(lock),
                holder: own(holder),
                reason: own(reason),
            },
            Event::Forced { lock } => Event::Forced { lock: own(lock) },
            Event::TooManyGroups { group } => Event::TooManyGroups { group: own(group) },
        }
    }
}

impl fmt::Display for Event<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Names are quoted, so that one with line breaks cannot forge a line of a log.
        match self {
            Event::Lost {
                lock,
                holder,
                reason,
                held,
            } => write!(
                f,
                "lock {lock:?} of {holder} was lost after {held:?}: {reason}"
            ),
            Event::RenewalLate { lock, left, lease } => write!(
                f,
                "lock {lock:?} was renewed late: {left:?} were left of {lease:?}"
            ),
            Event::RenewalFailed { lock, left } => write!(
                f,
                "a renewal of lock {lock:?} got no answer; {left:?} are left to try again"
            ),
            Event::ReleaseFailed { lock: None, error } => {
                write!(f, "what a call left behind could not be undone: {error}")
            }
            Event::ReleaseFailed { error, .. } => {
                write!(f, "a release in the background failed: {error}")
            }
            Event::LongWait {
                lock,
                waited,
                busy,
                waiters,
                place,
            } => {
                write!(f, "a call has waited for {waited:?} for lock {lock:?}")?;
                place
                    .iter()
                    .try_for_each(|place| write!(f, ", at {place}"))?;
                if *waiters > 1 {
                    write!(f, ", one of {waiters} in this client")?;
                }
                busy.iter()
                    .try_for_each(|busy| write!(f, ", {}", busy.says()))
            }
            Event::Reconnected { server, lane } => {
                write!(f, "the {lane} connection to {server} was made anew")
            }
            Event::Failover { holds } => write!(
                f,
                "another server, or a restarted one, answers; holds that are checked: {holds}"
            ),
            Event::Freed {
                lock,
                holder,
                reason,
            } => write!(
                f,
                "lock {lock:?} was taken away from {holder} by an operator: {reason:?}"
            ),
            Event::Forced { lock } => write!(f, "lock {lock:?} was freed by force"),
            Event::TooManyGroups { group } => write!(
                f,
                "group {group:?} is counted as \"other\", and later ones too: 64 are in use"
            ),
        }
    }
}

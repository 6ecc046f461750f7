//! Events of a client that no caller learns of: their texts, and their fields for `tracing`.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use crate::api::error::Error;
use crate::api::holder::Busy;
use crate::api::loss::LostReason;
use crate::engine::clock::Rounded;

/// Something that happened in a client. `Display` writes it as one line for a log.
///
/// Names of locks are as they were given to the client. More events and more fields may come.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A hold was lost. Holds of a client that is shut down are among them.
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
    /// Renewals were confirmed when less than a third of their leases was left. Either the server, the network or
    /// this program is slow. Reported at the first of them, then every ten seconds at most for as long as they are late:
    /// once for all holds at the server.
    #[non_exhaustive]
    RenewalLate {
        /// The name of the lock; of several that were renewed together, that with the least time left.
        lock: Cow<'a, str>,
        /// The time left of the lease.
        left: Duration,
        /// The lease.
        lease: Duration,
    },
    /// Renewals at a server get no answer, or an error. They are repeated until the leases end. Reported at the first
    /// failure, then every ten seconds for as long as it lasts: once for all holds at the server.
    #[non_exhaustive]
    RenewalFailed {
        /// The name of the lock whose lease ends first.
        lock: Cow<'a, str>,
        /// The time left of that lease.
        left: Duration,
        /// How many holds have not been renewed, as far as their renewals have failed yet.
        holds: usize,
        /// Host and port of the server.
        server: Cow<'a, str>,
        /// How long renewals have failed.
        since: Duration,
        /// Why the last renewal failed.
        error: Error,
    },
    /// A release in the background was refused, or got no answer until the end of the lease. A refused release is
    /// repeated until then. If none succeeds, the hold ends with its lease.
    #[non_exhaustive]
    ReleaseFailed {
        /// The name of the lock; of several in one release, each has an event. `None` for the undo of a call that was
        /// dropped or got no answer. The error then names the server that refused the undo, or that left too many of
        /// them unanswered, so that the oldest were abandoned. One event may be about several.
        lock: Option<Cow<'a, str>>,
        /// The reason of the failure.
        error: Error,
    },
    /// Calls have waited for a lock for longer than a second, or than
    /// [`report_wait_after`](crate::ReentrantLock::report_wait_after). Reported once for all calls of this client, then
    /// every ten seconds for as long as one waits. If calls wait for more than 64 locks, 64 of these are reported in
    /// ten seconds.
    #[non_exhaustive]
    LongWait {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// How long the call that has waited longest has waited so far.
        waited: Duration,
        /// The holder in the way, if the server named it.
        busy: Option<Busy>,
        /// How many calls of this client wait for the lock now. For a multi-lock, the calls for the member with the
        /// most.
        waiters: usize,
        /// The place of one of these calls; for a multi-lock, in the queue of the member that it waits for. `None` if
        /// that is not known: the server did not say, or a thousand or more waiters are before it.
        place: Option<Place>,
    },
    /// A connection was made again after it had broken.
    #[non_exhaustive]
    Reconnected {
        /// Host and port of the server.
        server: Cow<'a, str>,
        /// What the connection carries: `command`, `renewal`, `push` or `confirm`.
        lane: &'static str,
    },
    /// Another server answers for some keys now, or the same server after a restart. All holds are checked at once;
    /// holds that are gone there are lost.
    #[non_exhaustive]
    Failover {
        /// How many holds are checked.
        holds: usize,
    },
    /// An operator took a hold of this client away and left the reason: `lockset free NAME --reason TEXT`, or
    /// `force_unlock_because` of the crate `lockset-operator`. This event follows [`Lost`](Self::Lost),
    /// or the error of the release that found the hold gone, once the client has asked the server for the reason. There
    /// is no event if no reason was left, or the server did not answer.
    #[non_exhaustive]
    Freed {
        /// The name of the lock.
        lock: Cow<'a, str>,
        /// The holder id it had at the server.
        holder: Cow<'a, str>,
        /// The text that the operator wrote.
        reason: Cow<'a, str>,
    },
    /// A lock was freed by [`force_unlock`](crate::ReentrantLock::force_unlock) of this client.
    #[non_exhaustive]
    Forced {
        /// The name of the lock.
        lock: Cow<'a, str>,
    },
    /// This process has named more than 64 [groups](crate::ReentrantLock::group). This group and later ones are counted
    /// together, as `other`. Reported once in the life of the process, by the client that was first.
    #[non_exhaustive]
    TooManyGroups {
        /// The first name over the limit.
        group: Cow<'a, str>,
    },
}

/// The place of a call in the queue for a lock, from 1: in [`Event::LongWait`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Place {
    /// Among the calls of its client that wait for the lock, in order of arrival. Only the first asks the
    /// server for it. The server does not know the others, and they do not know waiters of other clients. Readers that
    /// are granted the lock together have a place each.
    Client(usize),
    /// In the queue of a [`FairLock`](crate::FairLock) at the server, with the waiters of all clients and of Redisson.
    /// Dead waiters count until they are passed over. Locks called `x` and `{x}` share a queue, and waiters of both
    /// count.
    Server(usize),
}

impl Place {
    /// Returns the number without the queue.
    #[must_use]
    pub fn number(self) -> usize {
        let (Self::Client(number) | Self::Server(number)) = self;
        number
    }

    /// Names the side that keeps the queue, for a log.
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

/// Makes an event that owns its texts. Lists of each variant first the fields that are texts, then the others.
macro_rules! owned {
    ($event:expr; $($variant:ident { $($text:ident)* ; $($other:ident)* })*) => {
        match $event {
            $(Event::$variant { $($text,)* $($other,)* } => Event::$variant {
                $($text: own($text),)*
                $($other,)*
            },)*
            Event::ReleaseFailed { lock, error } => Event::ReleaseFailed {
                lock: lock.map(own),
                error,
            },
        }
    };
}

fn own(text: Cow<'_, str>) -> Cow<'static, str> {
    Cow::Owned(text.into_owned())
}

impl Event<'_> {
    /// Converts the event into one that can be kept.
    #[must_use]
    pub fn into_owned(self) -> Event<'static> {
        owned! { self;
            Lost { lock holder; reason held }
            RenewalLate { lock; left lease }
            RenewalFailed { lock server; left holds since error }
            LongWait { lock; waited busy waiters place }
            Reconnected { server; lane }
            Failover { ; holds }
            Freed { lock holder reason; }
            Forced { lock; }
            TooManyGroups { group; }
        }
    }
}

/// Events with their fields: for each its line of a log, and the level, the name and the fields for `tracing`.
macro_rules! events {
    ($f:ident: $($event:ident { $($field:ident),* } =>
        $line:expr, $level:ident $name:literal { $($told:tt)* })*) => {
        impl fmt::Display for Event<'_> {
            fn fmt(&self, $f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Event::$event { $($field),* } => $line,)*
                }
            }
        }

        #[cfg(feature = "tracing")]
        impl Event<'_> {
            /// Passes the event to `tracing`.
            pub(super) fn trace(&self) {
                match self {
                    $(Event::$event { $($field),* } => {
                        tracing::$level!(name: $name, target: "lockset", { $($told)* }, "{}", self)
                    })*
                }
            }
        }
    };
}

// Names are quoted, so that a name with line breaks cannot forge a line of a log.
events! { f:
    Lost { lock, holder, reason, held } => write!(
        f, "lock {lock:?} of {holder} was lost after {}: {reason}", Rounded(*held)
    ),
    warn "lockset.lost" {
        lockset.name = %lock, lockset.holder = %holder, lockset.reason = ?reason,
        lockset.held_seconds = seconds(held)
    }

    RenewalLate { lock, left, lease } => write!(
        f, "lock {lock:?} was renewed late: {} were left of {}", Rounded(*left), Rounded(*lease)
    ),
    warn "lockset.renewal_late" {
        lockset.name = %lock, lockset.left_seconds = seconds(left), lockset.lease_seconds = seconds(lease)
    }

    RenewalFailed { lock, left, holds, server, since, error } => write!(
        f,
        "{holds} hold{} at {server} not renewed for {}; the first, lock {lock:?}, is lost in {}: {error}",
        if *holds == 1 { "" } else { "s" },
        Rounded(*since),
        Rounded(*left)
    ),
    warn "lockset.renewal_failed" {
        lockset.name = %lock, lockset.left_seconds = seconds(left), lockset.holds = holds,
        lockset.since_seconds = seconds(since), server.address = %server, error.type = ?error.kind()
    }

    ReleaseFailed { lock, error } => match lock {
        None => write!(f, "what a call left behind could not be undone: {error}"),
        Some(_) => write!(f, "a release in the background failed: {error}"),
    },
    warn "lockset.release_failed" {
        lockset.name = lock.as_deref(), error.type = ?error.kind()
    }

    LongWait { lock, waited, busy, waiters, place } => {
        let waited = Rounded(*waited);
        match waiters {
            0 | 1 => write!(f, "a call has waited for {waited} for lock {lock:?}")?,
            _ => write!(f, "{waiters} calls wait for lock {lock:?}, the longest for {waited}")?,
        }
        match place {
            Some(place) if *waiters > 1 => write!(f, ", one at {place}")?,
            Some(place) => write!(f, ", at {place}")?,
            None => {}
        }
        busy.iter().try_for_each(|busy| write!(f, ", {}", busy.says()))
    },
    warn "lockset.long_wait" {
        lockset.name = %lock, lockset.waited_seconds = seconds(waited),
        lockset.holder = busy.as_ref().and_then(|busy| busy.holder.as_deref()),
        lockset.waiters = waiters, lockset.place = place.map(Place::number),
        lockset.queue = place.map(Place::queue)
    }

    Reconnected { server, lane } => write!(f, "the {lane} connection to {server} was made anew"),
    info "lockset.reconnected" { server.address = %server, lockset.lane = lane }

    Failover { holds } => write!(
        f, "another server, or a restarted one, answers; holds that are checked: {holds}"
    ),
    warn "lockset.failover" { lockset.holds = holds }

    Freed { lock, holder, reason } => write!(
        f, "lock {lock:?} was taken away from {holder} by an operator: {reason:?}"
    ),
    warn "lockset.freed" { lockset.name = %lock, lockset.holder = %holder, lockset.reason = %reason }

    Forced { lock } => write!(f, "lock {lock:?} was freed by force"),
    info "lockset.forced" { lockset.name = %lock }

    TooManyGroups { group } => write!(
        f, "group {group:?} is counted as \"other\", and later ones too: 64 are in use"
    ),
    warn "lockset.too_many_groups" { lockset.group = %group }
}

#[cfg(feature = "tracing")]
fn seconds(span: &Duration) -> f64 {
    span.as_secs_f64()
}

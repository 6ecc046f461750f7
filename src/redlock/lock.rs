//! The handle on a lock of several servers.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::Electorate;
use super::ballot::Ballot;
use super::guard::RedlockGuard;
use super::seek::Seeker;
use super::votes::{Said, Tally};
use crate::acquire::Wait;
use crate::counts::Mode;
use crate::error::{Error, Result};
use crate::handle::{Handle, Holder, option_methods};
use crate::hold::protocol::Protocol;
use crate::keys::LockName;
use crate::options::Options;
use crate::owner::Owner;
use crate::reentrant::{self, PROTOCOL};

/// The local queue is one of its own: the members are reentrant locks.
const KIND: &str = "redlock";

/// A server has a sixth of the lease to answer, within these bounds.
const LIMIT_PART: u32 = 6;
const LIMIT_MIN: Duration = Duration::from_millis(50);
const LIMIT_MAX: Duration = Duration::from_millis(500);

/// A lock for one owner at a time on several independent servers; see [`Redlock`](crate::Redlock).
///
/// A handle: cheap to make and to clone, holds nothing. Options set on a handle concern what is taken
/// through it. Waiters of one process are served first come, first served; between processes chance
/// decides. Who has this lock also has the [`ReentrantLock`](crate::ReentrantLock) of this name on a
/// majority of the servers.
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct RedlockLock(Servers);

#[derive(Clone)]
struct Servers {
    electorate: Arc<Electorate>,
    /// One for each server.
    handles: Arc<[Handle]>,
    options: Options,
}

impl Servers {
    fn given_name(&self) -> &str {
        self.handles[0].given_name()
    }

    fn addresses(&self) -> impl Iterator<Item = &str> {
        let handles = self.handles.iter();
        handles.map(|handle| handle.core().scripts.transport.address())
    }

    /// What there is to say about it, on one line.
    fn show(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        shown.field("name", &self.given_name());
        shown.field("servers", &self.addresses().collect::<Vec<_>>());
        self.options.show(&mut shown);
        shown.finish()
    }
}

option_methods!(RedlockLock);

impl RedlockLock {
    pub(super) fn new(electorate: &Arc<Electorate>, name: &str) -> Self {
        let clients = electorate.clients.iter();
        let handles = clients.map(|client| Handle::new(client, name, &PROTOCOL, Mode::Exclusive));
        Self(Servers {
            electorate: Arc::clone(electorate),
            handles: handles.collect(),
            options: Options::new(),
        })
    }

    /// Takes the lock, waiting as long as it takes.
    ///
    /// One round trip to all servers at once if it is free, two if it is fenced; a minority that is
    /// slow or dead is not waited for. If it is held elsewhere, asks again when a server tells of a
    /// release, and after a random time of up to 200 ms.
    ///
    /// # Cancel safety
    /// Dropping the future gives up the place in the queue. Grants that are under way are released in
    /// the background, on every server.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum) if for a third of the client's lease fewer than a
    /// majority of the servers have a vote (they are out of reach, refuse it, or were restarted less
    /// than a lease ago), or at once if that cannot change; the message says what became of the vote of
    /// each. [`is_invalid`](crate::Error::is_invalid) for a name or option that cannot work, or a key
    /// that holds something else on too many servers. That the lock is held is not an error.
    pub async fn lock(&self) -> Result<RedlockGuard> {
        // Without a deadline the wait ends with the lock or with an error, so there is one turn.
        loop {
            if let Some(guard) = self.take("lock", Wait::Forever).await? {
                return Ok(guard);
            }
        }
    }

    /// Takes the lock if it is free (or held by the same owner). `None`: others have it, or nobody
    /// got a majority just now.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock), after one round.
    pub async fn try_lock(&self) -> Result<Option<RedlockGuard>> {
        self.take("try_lock", Wait::Never).await
    }

    /// Takes the lock, waiting at most `wait`; `None`: it did not become free in time. Asks once more
    /// at the deadline.
    ///
    /// # Cancel safety
    /// As for [`lock`](Self::lock).
    ///
    /// # Errors
    /// As for [`lock`](Self::lock); also if too few servers have a vote at the deadline.
    pub async fn try_lock_for(&self, wait: Duration) -> Result<Option<RedlockGuard>> {
        let deadline = self.0.handles[0].core().clock.now().after(wait);
        self.take("try_lock_for", Wait::Until(deadline)).await
    }

    /// Whether a majority of the servers says that the lock is held, by whomever. One round trip; the
    /// answer may be outdated when it arrives.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum) if too few servers answer within a third of the client's
    /// lease.
    pub async fn is_locked(&self) -> Result<bool> {
        Ok(!self.holders("is_locked").await?.is_empty())
    }

    /// Who holds the lock, if a majority of the servers says that it is held. Each of them knows the
    /// holder by an id of its own: that of the first who answers is given, with the smallest hold count
    /// and the shortest rest of a lease that a majority has. One round trip; the answer may be outdated
    /// when it arrives.
    ///
    /// # Cancel safety
    /// Cancel safe.
    ///
    /// # Errors
    /// As for [`is_locked`](Self::is_locked).
    pub async fn holder(&self) -> Result<Option<Holder>> {
        let holders = self.holders("holder").await?.into_iter();
        Ok(holders.reduce(|first, other| Holder {
            id: first.id,
            hold_count: first.hold_count.min(other.hold_count),
            remaining: first.remaining.min(other.remaining),
        }))
    }

    /// Those whom a majority of the servers names; nobody if there is none.
    async fn holders(&self, operation: &'static str) -> Result<Vec<Holder>> {
        let (servers, need) = (self.0.handles.len(), self.need());
        let mut tally = Tally::new(servers, need);
        let asked = self.0.handles.iter().enumerate();
        let mut answers: FuturesUnordered<_> =
            asked
                .map(|(server, handle)| async move {
                    (server, reentrant::inspect(handle, operation).await)
                })
                .collect();
        let (mut held, mut free) = (Vec::new(), 0);
        while let Some((server, answer)) = answers.next().await {
            match answer {
                Ok(Some(holder)) => {
                    tally.note(server, Said::Elsewhere(None));
                    held.push(holder);
                }
                Ok(None) => {
                    tally.note(server, Said::Free);
                    free += 1;
                }
                Err(error) => tally.note(server, Said::Failed(error)),
            }
            if held.len() >= need {
                return Ok(held);
            }
            if servers - free < need {
                return Ok(Vec::new());
            }
        }
        drop(answers);
        if held.len() + free >= need {
            // No majority either way, and the others do not answer.
            return Ok(Vec::new());
        }
        Err(self.error(operation, &tally)?)
    }

    /// Frees the lock on every server, whoever holds it; `false` if nobody did. For operators; as
    /// [`ReentrantLock::force_unlock`](crate::ReentrantLock::force_unlock), and on each server.
    ///
    /// # Cancel safety
    /// If the future is dropped, the lock may or may not be freed.
    ///
    /// # Errors
    /// [`is_quorum`](crate::Error::is_quorum) if it could not be freed on a majority of the servers
    /// within a third of the client's lease.
    pub async fn force_unlock(&self) -> Result<bool> {
        let each = join_all(self.0.handles.iter().map(reentrant::force)).await;
        let mut tally = Tally::new(each.len(), self.need());
        let mut freed = false;
        for (server, answer) in each.into_iter().enumerate() {
            match answer {
                Ok(was_held) => {
                    tally.note(server, Said::Free);
                    freed |= was_held;
                }
                Err(error) => tally.note(server, Said::Failed(error)),
            }
        }
        match tally.is_unable() {
            true => Err(self.error("force_unlock", &tally)?),
            false => Ok(freed),
        }
    }

    fn need(&self) -> usize {
        self.0.handles.len() / 2 + 1
    }

    fn name_for(&self, operation: &'static str) -> Result<&str> {
        let name = self.0.handles[0].name();
        name.map(LockName::as_str)
            .map_err(|error| error.during(operation))
    }

    fn error(&self, operation: &'static str, tally: &Tally) -> Result<Error> {
        let name = self.name_for(operation)?;
        Ok(tally.error(operation, name, self.0.addresses()))
    }

    async fn take(&self, operation: &'static str, wait: Wait) -> Result<Option<RedlockGuard>> {
        let seeker = self.seeker(operation)?;
        let seat = seeker.take(wait).await?;
        Ok(seat.map(|seat| RedlockGuard {
            seat,
            ballot: seeker.ballot,
        }))
    }

    fn seeker(&self, operation: &'static str) -> Result<Seeker> {
        let Servers {
            electorate,
            handles,
            options,
        } = &self.0;
        let leases = handles.iter().map(|handle| handle.core().timing.lease);
        let term = options.term(leases.min().unwrap_or_default());
        let name = self.name_for(operation)?;
        let term = term.map_err(|error| error.during(operation).of_lock(name))?;
        // An owner of its own: whoever takes one of the members alone is somebody else.
        let voter = Owner::new();
        let asks = handles.iter().map(|handle| {
            let mut handle = handle.clone();
            handle.options = Options {
                owner: Some(voter.clone()),
                term: Some(term),
                fenced: options.fenced,
                replication: options.replication.or(handle.options.replication),
            };
            handle.ask(operation)
        });
        let lease = term.lease();
        let meeting = &handles[electorate.meeting];
        let core = Arc::clone(meeting.core());
        // Whoever asks after a restart goes by this, and knows nothing of the lease of this handle.
        let floor = electorate.longest_lease;
        if let Some(longest) = floor.filter(|longest| lease > *longest) {
            let message = format!(
                "a lease of {lease:?} outlasts the {longest:?} after which a server that was restarted \
                 votes again; give RedlockBuilder::longest_lease the longest that anybody uses"
            );
            return Err(Error::invalid(operation, message).of_lock(name));
        }
        Ok(Seeker {
            ballot: Ballot {
                asks: asks.collect::<Result<_>>()?,
                need: self.need(),
                limit: (lease / LIMIT_PART)
                    .clamp(LIMIT_MIN, LIMIT_MAX)
                    .min(lease / 3),
                // Clocks differ in rate by up to a hundredth.
                floor: floor.map(|floor| floor + floor / 100),
            },
            owner: options.owner.clone(),
            local: core.locals.enter(KIND, meeting.name()?.key()),
            member: core.locals.enter(PROTOCOL.kind(), meeting.name()?.key()),
            core,
        })
    }
}

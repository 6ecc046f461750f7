//! The locks that a verb holds while a command runs: one, several as one, or one of a quorum.

use std::convert::Infallible;
use std::future::pending;
use std::io::{self, IsTerminal};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use lockset::{Client, Error, Guard, Lock, Member, MultiLock, SemaphoreGuard};
use serde::Serialize;
use tokio::time::{Instant, sleep};

use crate::blocker::{Blocker, BlockerFact};
use crate::connect::{Context, Servers};
use crate::failure::Failure;
use crate::outage::Until;
use crate::output::{complain, quoted};

/// A wait that is shorter than this gets no message.
const WAITING_AFTER: Duration = Duration::from_secs(1);

/// The time between two checks for the first renewal.
const SETTLE_LOOK: Duration = Duration::from_millis(2);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Plain,
    Fair,
    Read,
    Write,
}

/// How long to wait for a lock.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Patience {
    /// Until this moment. One attempt is made, even after it.
    Until(Instant),
    Unbounded,
}

impl Patience {
    /// How long to wait for servers.
    pub(crate) fn until(self) -> Until {
        match self {
            Self::Until(deadline) => Until::Deadline(deadline),
            Self::Unbounded => Until::Default,
        }
    }
}

/// The locks to acquire, and how.
#[derive(Debug)]
pub(crate) struct Asked {
    pub(crate) locks: Vec<(Kind, String)>,
    /// How many permits the semaphore has, if one of them is asked for instead of a lock.
    pub(crate) permits: Option<u32>,
    pub(crate) lease: Duration,
    /// A release before this time leaves the hold until then.
    pub(crate) at_least: Option<Duration>,
    /// The longest time that the lock is renewed.
    pub(crate) max_hold: Option<Duration>,
    pub(crate) fenced: bool,
    pub(crate) patience: Patience,
}

/// The locks that are held.
pub(crate) struct Held {
    taken: Taken,
    names: Vec<String>,
    holders: Vec<String>,
    tokens: Vec<String>,
}

enum Taken {
    Locks(Box<dyn Guard>),
    Permit(SemaphoreGuard),
}

/// A lock that another client holds.
#[derive(Serialize)]
struct Blocked<'a> {
    event: &'static str,
    name: &'a str,
    #[serde(flatten)]
    blocker: BlockerFact<'a>,
}

/// The options and the waiting of any kind of lock.
async fn take<L: Lock>(lock: L, asked: &Asked) -> Result<Option<L::Guard>, Error> {
    let lock = lock.lease(asked.lease);
    let lock = match asked.at_least {
        Some(span) => lock.at_least(span),
        None => lock,
    };
    let lock = match asked.max_hold {
        Some(span) => lock.max_hold(span),
        None => lock,
    };
    let lock = if asked.fenced { lock.fenced() } else { lock };
    match asked.patience {
        Patience::Unbounded => lock.lock().await.map(Some),
        Patience::Until(deadline) => {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                lock.try_lock().await
            } else {
                lock.try_lock_for(left).await
            }
        }
    }
}

impl Held {
    /// `None` if another client holds them, after a message about it. Dropping the future leaves every queue;
    /// [`Servers::end`] waits until the server knows.
    pub(crate) async fn acquire(
        context: &Context,
        servers: &Servers,
        asked: &Asked,
    ) -> Result<Option<Self>, Failure> {
        let held = tokio::select! {
            held = Self::granted(servers, asked) => held?,
            never = say_waiting(context, servers, asked) => match never {},
        };
        if held.is_none() {
            say_busy(context, servers, asked).await;
        }
        Ok(held)
    }

    async fn granted(servers: &Servers, asked: &Asked) -> Result<Option<Self>, Failure> {
        if let Some(permits) = asked.permits {
            return Self::permit(servers, asked, permits).await;
        }
        Ok(match (servers, &*asked.locks) {
            (Servers::One(client), [(kind, name)]) => Self::one(client, asked, *kind, name).await?,
            (Servers::One(client), several) => Self::several(client, asked, several).await?,
            (Servers::Quorum(quorum, _), [(Kind::Plain, name)]) => {
                take(quorum.lock(name), asked).await?.map(Self::of)
            }
            (Servers::Quorum(..), _) => {
                return Err(Failure::usage(
                    "a quorum of several servers has plain locks, one at a time: give one name and \
                     no kind, or one URL",
                ));
            }
        })
    }

    async fn permit(
        servers: &Servers,
        asked: &Asked,
        permits: u32,
    ) -> Result<Option<Self>, Failure> {
        let (Servers::One(client), [(kind, name)]) = (servers, &*asked.locks) else {
            return Err(Failure::usage(
                "a semaphore is on one server and is not taken with a lock: give one name and one URL",
            ));
        };
        let semaphore = client.semaphore(name).permits(permits).lease(asked.lease);
        let semaphore = match kind {
            Kind::Fair => semaphore.fair(),
            _ => semaphore,
        };
        let guard = match asked.patience {
            Patience::Unbounded => semaphore.acquire().await.map(Some),
            Patience::Until(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                semaphore.try_acquire_for(left).await
            }
        };
        match guard {
            Ok(guard) => Ok(guard.map(Self::of_permit)),
            // No verb does what the library advises.
            Err(error) if error.is_invalid() => Err(Failure::usage(
                error.to_string().replace(", or `resize` it", ""),
            )),
            Err(error) => Err(error.into()),
        }
    }

    async fn one(
        client: &Client,
        asked: &Asked,
        kind: Kind,
        name: &str,
    ) -> Result<Option<Self>, Error> {
        let rw = || client.rw_lock(name);
        Ok(match kind {
            Kind::Plain => take(client.lock(name), asked).await?.map(Self::of),
            Kind::Fair => take(client.fair_lock(name), asked).await?.map(Self::of),
            Kind::Read => take(rw().read_side(), asked).await?.map(Self::of),
            Kind::Write => take(rw().write_side(), asked).await?.map(Self::of),
        })
    }

    async fn several(
        client: &Client,
        asked: &Asked,
        locks: &[(Kind, String)],
    ) -> Result<Option<Self>, Error> {
        let members = locks.iter().map(|(kind, name)| match kind {
            Kind::Plain => Member::from(client.lock(name)),
            Kind::Fair => client.fair_lock(name).into(),
            Kind::Read => client.rw_lock(name).read_side().into(),
            Kind::Write => client.rw_lock(name).write_side().into(),
        });
        let Some(guard) = take(MultiLock::new(members)?, asked).await? else {
            return Ok(None);
        };
        let owned = |texts: Vec<&str>| texts.into_iter().map(str::to_owned).collect();
        let tokens = guard.fencing_tokens().into_iter().flatten();
        Ok(Some(Self {
            names: owned(guard.names()),
            holders: owned(guard.holder_ids()),
            tokens: tokens.map(|token| token.to_string()).collect(),
            taken: Taken::Locks(Box::new(guard)),
        }))
    }

    fn of(guard: impl Guard) -> Self {
        let token = guard.fencing_token();
        Self {
            names: vec![guard.name().to_owned()],
            holders: vec![guard.holder_id().to_owned()],
            tokens: token.iter().map(ToString::to_string).collect(),
            taken: Taken::Locks(Box::new(guard)),
        }
    }

    fn of_permit(guard: SemaphoreGuard) -> Self {
        Self {
            names: vec![guard.name().to_owned()],
            holders: guard.holder_ids().map(str::to_owned).collect(),
            tokens: Vec::new(),
            taken: Taken::Permit(guard),
        }
    }

    /// The names in quotes, for messages.
    pub(crate) fn name(&self) -> String {
        let names: Vec<_> = self.names.iter().map(|name| quoted(name)).collect();
        names.join(", ")
    }

    pub(crate) fn is_lost(&self) -> bool {
        match &self.taken {
            Taken::Locks(guard) => guard.is_lost(),
            Taken::Permit(guard) => guard.is_lost(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match &self.taken {
            Taken::Locks(guard) => guard.remaining(),
            Taken::Permit(guard) => guard.remaining(),
        }
    }

    /// Waits until enough of the lease is left for a command to begin. A lock that was handed over comes with
    /// the rest of its waiter's heartbeat, and is renewed at once.
    pub(crate) async fn settled(&self, enough: Duration) {
        while self.remaining() < enough && !self.is_lost() {
            sleep(SETTLE_LOOK).await;
        }
    }

    /// Completes when the lock is lost.
    pub(crate) async fn lost(&self) {
        match &self.taken {
            Taken::Locks(guard) => guard.lost().await,
            Taken::Permit(guard) => guard.lost().await,
        };
    }

    /// The environment of the command.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
        let deadline = since_epoch.unwrap_or_default() + self.remaining();
        let mut told = vec![
            ("LOCKSET_NAME", self.names.join("\n")),
            ("LOCKSET_HOLDER", self.holders.join("\n")),
            ("LOCKSET_DEADLINE", deadline.as_millis().to_string()),
        ];
        if !self.tokens.is_empty() {
            told.push(("LOCKSET_TOKEN", self.tokens.join("\n")));
        }
        told
    }

    /// Releases the locks; returns whether they were held until then. A release without confirmation leads to a
    /// message only: the command has done its work while the lock was held.
    pub(crate) async fn release(self) -> bool {
        let released = match self.taken {
            Taken::Locks(guard) => guard.release().await,
            Taken::Permit(guard) => guard.release().await,
        };
        match released {
            Ok(()) => true,
            Err(error) if error.is_not_held() => false,
            Err(error) => {
                complain(&format!("{error}; it ends by itself with its lease"));
                true
            }
        }
    }
}

/// Writes the `busy` message, with the holder of the first lock that is held.
async fn say_busy(context: &Context, servers: &Servers, asked: &Asked) {
    let blocker = blocker(servers, asked).await;
    let fact = fact("busy", asked, blocker.as_ref());
    let text = match &blocker {
        Some(blocker) => blocker.sentence(),
        None => {
            let what = asked.permits.map_or("lock", |_| "semaphore");
            format!("{what} {} is held by another client", quoted(fact.name))
        }
    };
    context.output.tell(&fact, &format!("busy: {text}"));
}

/// After a second on a terminal: writes which holder the call waits for. Never returns.
async fn say_waiting(context: &Context, servers: &Servers, asked: &Asked) -> Infallible {
    if io::stderr().is_terminal() {
        sleep(WAITING_AFTER).await;
        let blocker = blocker(servers, asked).await;
        let fact = fact("waiting", asked, blocker.as_ref());
        let name = quoted(fact.name);
        let text = match &blocker {
            Some(blocker) => format!("waiting for {name}, {}", blocker.brief()),
            None => format!("waiting for {name}"),
        };
        context.output.tell(&fact, &text);
    }
    pending().await
}

async fn blocker(servers: &Servers, asked: &Asked) -> Option<Blocker> {
    let names = asked.locks.iter().map(|(_, name)| name.as_str());
    match servers {
        Servers::One(client) => Blocker::of(client, names).await,
        Servers::Quorum(..) => None,
    }
}

fn fact<'a>(event: &'static str, asked: &'a Asked, blocker: Option<&'a Blocker>) -> Blocked<'a> {
    let first = asked.locks.first().map_or("", |(_, name)| name);
    Blocked {
        event,
        name: blocker.map_or(first, |blocker| &blocker.name),
        blocker: blocker.map(Into::into).unwrap_or_default(),
    }
}

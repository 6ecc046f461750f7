//! One task of one process: its calls, one after the other, and what it does with its guards.

mod known;
mod once;
mod operator;
mod permits;
mod rounds;

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockset::{
    Client, Error, Guard, Lock, LostReason, Member, MultiGuard, MultiLock, Owner, Redlock, Result,
};
use parking_lot::Mutex;
use tokio::time::Instant;

use self::known::{Registered, Waits};
use super::checks::Checks;
use super::held::Grant;
use super::interrupt::Interrupt;
use super::left::ToBeKept;
use super::names::names;
use super::plan::{End, Kind, LEASE, OWNERS, Op, Verb};
use crate::deployment::Deployment;

pub(super) struct Actor {
    pub(super) process: usize,
    pub(super) client: Client,
    /// Where there are several servers.
    pub(super) redlock: Option<Redlock>,
    pub(super) checks: Arc<Mutex<Checks>>,
    pub(super) deployment: Arc<Deployment>,
    /// The owners of its process.
    pub(super) owners: [Owner; OWNERS],
    pub(super) interrupt: Arc<Interrupt>,
}

/// A replica that cannot confirm within this has the grant refused.
const CONFIRMED_WITHIN: Duration = Duration::from_millis(60);

/// After the clock says that a hold is lost, its guard has to say so within the grain of a timer.
const NOTICE_MAX: Duration = Duration::from_millis(5);

/// Time enough for some round trips.
const PATIENT_MIN: Duration = Duration::from_millis(200);

/// No time for some round trips.
const HASTY_MAX: Duration = Duration::from_millis(20);

/// A sticky hold stays with its process for this time.
const STICKY: Duration = Duration::from_millis(200);

/// The name of a lock, and the server's holder id.
type NameAndHolder = (String, String);

/// A guard of one lock, and what it holds.
fn of_one(guard: impl Guard) -> (Vec<NameAndHolder>, Box<dyn Guard>) {
    let holds = (guard.name().to_owned(), guard.holder_id().to_owned());
    (vec![holds], Box::new(guard))
}

/// Like [`of_one`], for several locks.
fn of_several(guard: MultiGuard) -> (Vec<NameAndHolder>, Box<dyn Guard>) {
    let holds = guard.names().into_iter().zip(guard.holder_ids());
    let holds = holds.map(|(name, holder)| (name.to_owned(), holder.to_owned()));
    (holds.collect(), Box::new(guard))
}

/// A handle with the time limit of the call: this method is no part of `Lock`.
macro_rules! patient {
    ($lock:expr, $op:expr) => {
        match $op.terms.give_up {
            Some(span) => $lock.give_up_after(span),
            None => $lock,
        }
    };
}
use patient;

/// A sticky handle: this method is no part of `Lock`.
macro_rules! sticky {
    ($lock:expr, $span:expr) => {
        match $span {
            Some(span) => $lock.sticky(span),
            None => $lock,
        }
    };
}

/// The identity of a guard, and the guard.
type Granted = (Vec<NameAndHolder>, Box<dyn Guard>);

impl Actor {
    pub(super) async fn run(self, ops: Vec<Op>) {
        for op in ops {
            tokio::time::sleep(op.pause).await;
            match op.verb {
                Verb::Force => {
                    self.force(&op).await;
                    continue;
                }
                Verb::Evict => {
                    self.evict(&op).await;
                    continue;
                }
                _ => {}
            }
            let call = self.interrupt.run(Box::pin(self.call(&op)));
            let done = match op.cancel {
                None => call.await,
                Some(limit) => tokio::time::timeout(limit, call).await.ok().flatten(),
            };
            let note = |what: String| {
                self.checks
                    .lock()
                    .note(|| format!("process {}: {what}", self.process))
            };
            match done {
                None => note(format!("a call of {op:?} was dropped")),
                Some(Ok(())) => {}
                Some(Err(error)) => self.failed(&op, &error),
            }
        }
    }

    fn failed(&self, op: &Op, error: &Error) {
        let is_hasty = op.terms.give_up.is_some_and(|span| span < HASTY_MAX);
        let names = names(op.kind, op.lock);
        self.checks.lock().failed(&names, error, is_hasty);
    }

    /// Counts a call, if it is not dropped before its end.
    async fn ended<T>(&self, call: impl Future<Output = T>) -> T {
        let result = call.await;
        self.checks.lock().calls += 1;
        result
    }

    /// Acquires, holds, releases.
    async fn call(&self, op: &Op) -> Result<()> {
        let names = names(op.kind, op.lock);
        let (name, client, asked) = (&names[0], &self.client, Instant::now());
        let granted = match op.kind {
            Kind::Reentrant => {
                let lock = sticky!(patient!(client.lock(name), op), self.sticky(op));
                self.acquire(lock, op).await?.map(of_one)
            }
            Kind::Fair => {
                let lock = patient!(client.fair_lock(name), op);
                self.acquire(lock, op).await?.map(of_one)
            }
            Kind::Read => {
                let lock = patient!(client.rw_lock(name).read_side(), op);
                self.acquire(lock, op).await?.map(of_one)
            }
            Kind::Write => {
                let lock = patient!(client.rw_lock(name).write_side(), op);
                let lock = sticky!(lock, self.sticky(op));
                match self.acquire(lock, op).await? {
                    Some(guard) if op.end == End::Downgrade => {
                        return self.downgrade(op, asked, guard).await;
                    }
                    guard => guard.map(of_one),
                }
            }
            Kind::Redlock => {
                let redlock = self.redlock.as_ref().expect("several servers");
                let lock = patient!(redlock.lock(name), op);
                self.acquire(lock, op).await?.map(of_one)
            }
            Kind::Multi => {
                let members = [
                    Member::from(client.lock(name)),
                    Member::from(client.fair_lock(&names[1])),
                    Member::from(client.rw_lock(&names[2]).write_side()),
                ];
                let lock = patient!(MultiLock::new(members)?, op);
                self.acquire(lock, op).await?.map(of_several)
            }
            Kind::Once => return self.claim(op).await,
            Kind::Permits => return self.take_permits(op).await,
            Kind::Lead => return self.lead(op).await,
            Kind::Latch => return self.count(op).await,
            Kind::Barrier => return self.meet(op).await,
        };
        match granted {
            Some(granted) => self.hold(op, asked, granted).await,
            None => Ok(()),
        }
    }

    /// For how long its hold stays with this client. Every second process wants its locks again soon.
    fn sticky(&self, op: &Op) -> Option<Duration> {
        let is_sticky = self.process % 2 == 1 && op.fixed.is_none();
        op.terms.sticky.or(is_sticky.then_some(STICKY))
    }

    async fn acquire<L: Lock>(&self, lock: L, op: &Op) -> Result<Option<L::Guard>> {
        let _waits = self.waits(op);
        let lock = if op.is_fenced { lock.fenced() } else { lock };
        let lock = match (op.fixed, op.terms.lease) {
            (Some(lease), _) => lock.fixed_lease(lease),
            (None, Some(lease)) => lock.lease(lease),
            (None, None) => lock,
        };
        let lock = match op.replicas {
            0 => lock,
            replicas => lock.replicated(replicas, CONFIRMED_WITHIN),
        };
        let lock = self.on_terms(lock, op);
        match op.verb {
            Verb::Try => self.ended(lock.try_lock()).await,
            Verb::TryFor(wait) => self.ended(lock.try_lock_for(wait)).await,
            Verb::Lock | Verb::Force | Verb::Evict => self.ended(lock.lock()).await.map(Some),
        }
    }

    fn on_terms<L: Lock>(&self, lock: L, op: &Op) -> L {
        let lock = match op.terms.owner {
            Some(owner) => lock.owner(&self.owners[owner]),
            None => lock,
        };
        let lock = match op.terms.at_least {
            Some(span) => lock.at_least(span),
            None => lock,
        };
        match op.terms.max_hold {
            Some(span) => lock.max_hold(span),
            None => lock,
        }
    }

    /// Counts as a waiter for a lock until it is dropped. Does not count for several locks, which are waited for in
    /// turn, nor if the call gives up before a connection is made and it is subscribed. Such a call still has a place
    /// in a fair queue.
    fn waits(&self, op: &Op) -> Option<Waits> {
        let is_patient = op.terms.give_up.is_none_or(|span| span >= PATIENT_MIN);
        if op.verb == Verb::Try || matches!(op.kind, Kind::Multi | Kind::Redlock) {
            return None;
        }
        let is_polling = match op.kind {
            Kind::Fair => !is_patient,
            _ if is_patient => false,
            _ => return None,
        };
        let name = names(op.kind, op.lock).remove(0);
        let number = self.checks.lock().wakes.begins(&name, is_polling);
        Some(Waits {
            name,
            number,
            checks: Arc::clone(&self.checks),
        })
    }

    fn granted(
        &self,
        op: &Op,
        asked: Instant,
        holds: &[NameAndHolder],
        guard: &dyn Guard,
    ) -> Vec<Registered> {
        let token = guard.fencing_token().map(lockset::FencingToken::get);
        let token = token.filter(|_| holds.len() == 1);
        let register = |(name, holder): &NameAndHolder| {
            if let Some(span) = op.terms.at_least {
                // A read lock may outlast its readers, by no more than the longest lease.
                let longest = if op.may_be_left_to_read() {
                    LEASE
                } else {
                    span
                };
                self.checks.lock().left.may_last(name, longest);
            }
            let grant = Grant {
                kind: op.kind,
                process: self.process,
                owner: op.terms.owner,
                asked,
                loss: guard.loss(),
                token,
                holder: holder.clone(),
                // Re-entry does not wait for replicas.
                replicas: op.terms.owner.map_or(op.replicas, |_| 0),
                is_fixed: op.fixed.is_some(),
                max_hold: op.terms.max_hold,
            };
            let number = self.checks.lock().granted(name, grant, &self.deployment);
            Registered {
                name: name.clone(),
                number,
                checks: Arc::clone(&self.checks),
            }
        };
        holds.iter().map(register).collect()
    }

    async fn hold(&self, op: &Op, asked: Instant, (holds, guard): Granted) -> Result<()> {
        let since = Instant::now();
        // Declared behind the guard, so that it is dropped before it, however this ends.
        let held = self.granted(op, asked, &holds, &*guard);
        if let Some(reason) = self.work(op, &*guard).await {
            Registered::lost(held, reason);
            return Ok(());
        }
        let more = match op.end {
            End::Reenter => match self.ended(guard.reenter()).await {
                Ok(more) => Some(more),
                Err(error) => {
                    self.failed(op, &error);
                    None
                }
            },
            _ => None,
        };
        if let Some(more) = more {
            self.ended(more.release()).await?;
        }
        drop(held);
        if op.end == End::Drop {
            return Ok(());
        }
        self.ended(guard.release()).await?;
        self.is_kept(op, since, holds);
        Ok(())
    }

    async fn downgrade(&self, op: &Op, asked: Instant, guard: lockset::WriteGuard) -> Result<()> {
        let since = Instant::now();
        let holds = vec![(guard.name().to_owned(), guard.holder_id().to_owned())];
        let held = self.granted(op, asked, &holds, &guard);
        if let Some(reason) = self.work(op, &guard).await {
            Registered::lost(held, reason);
            return Ok(());
        }
        self.checks.lock().downgrades(&held[0].name, held[0].number);
        let reads = self.ended(guard.downgrade()).await;
        drop(held);
        self.ended(reads?.release()).await?;
        self.is_kept(op, since, holds);
        Ok(())
    }

    /// Notes that a released hold stays for some time, if the call asked for it.
    fn is_kept(&self, op: &Op, since: Instant, holds: Vec<NameAndHolder>) {
        let Some(span) = op.terms.at_least else {
            return;
        };
        for (name, holder) in holds {
            let kept = ToBeKept {
                holder,
                is_shared: op.may_be_left_to_read(),
                since,
                span,
            };
            self.checks.lock().keeps(&name, &kept);
        }
    }

    /// Works for a while; why the hold was lost, if it was.
    async fn work(&self, op: &Op, guard: &dyn Guard) -> Option<LostReason> {
        // One for the whole time, which is polled only when it is woken.
        let mut told = FuturesUnordered::from_iter([guard.lost()]);
        tokio::select! {
            biased;
            reason = told.next() => reason,
            () = guard.recalled(), if op.terms.ends_when_recalled => None,
            () = tokio::time::sleep(op.hold) => {
                if !guard.is_lost() {
                    return None;
                }
                self.told_in_time(guard.name(), told.next()).await
            }
        }
    }
}

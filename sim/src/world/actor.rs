//! One task of one process: its calls, one after the other, and what it does with its guards.

use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, Guard, Lock, Member, MultiGuard, MultiLock, Redlock, Result};
use parking_lot::Mutex;

use super::checks::{Checks, Grant};
use super::plan::{End, Kind, Op, Verb};
use crate::deployment::Deployment;

pub(super) struct Actor {
    pub(super) process: usize,
    pub(super) client: Client,
    /// Where there are several servers.
    pub(super) redlock: Option<Redlock>,
    pub(super) checks: Arc<Mutex<Checks>>,
    pub(super) deployment: Arc<Deployment>,
}

/// A replica that cannot confirm within this has the grant refused.
const CONFIRMED_WITHIN: Duration = Duration::from_millis(60);

/// After the clock says that a hold is lost, its guard has to say so within the grain of a timer.
const NOTICE_MAX: Duration = Duration::from_millis(5);

/// For so long a hold stays with a process whose locks are sticky.
const STICKY: Duration = Duration::from_millis(200);

pub(super) fn names(kind: Kind, lock: usize) -> Vec<String> {
    match kind {
        Kind::Reentrant => vec![format!("plain:{lock}")],
        Kind::Fair => vec![format!("fair:{lock}")],
        Kind::Read | Kind::Write => vec![format!("rw:{lock}")],
        Kind::Multi => vec![
            "plain:0".to_owned(),
            format!("fair:{lock}"),
            "rw:1".to_owned(),
        ],
        Kind::Redlock => vec![format!("redlock:{lock}")],
    }
}

/// The name of a lock, and the holder id by which a server knows who has it.
type NameAndHolder = (String, String);

/// A guard of one lock, and what it holds.
fn of_one(guard: impl Guard) -> (Vec<NameAndHolder>, Box<dyn Guard>) {
    let holds = (guard.name().to_owned(), guard.holder_id().to_owned());
    (vec![holds], Box::new(guard))
}

/// The same of several.
fn of_several(guard: MultiGuard) -> (Vec<NameAndHolder>, Box<dyn Guard>) {
    let holds = guard.names().into_iter().zip(guard.holder_ids());
    let holds = holds.map(|(name, holder)| (name.to_owned(), holder.to_owned()));
    (holds.collect(), Box::new(guard))
}

impl Actor {
    pub(super) async fn run(self, ops: Vec<Op>) {
        for op in ops {
            tokio::time::sleep(op.pause).await;
            if op.verb == Verb::Force {
                self.force(&op).await;
                continue;
            }
            let call = self.call(&op);
            let done = match op.cancel {
                None => Some(call.await),
                Some(limit) => tokio::time::timeout(limit, call).await.ok(),
            };
            let note = |what: String| {
                self.checks
                    .lock()
                    .note(|| format!("process {}: {what}", self.process))
            };
            match done {
                None => note(format!("a call of {op:?} was dropped")),
                Some(Ok(())) => {}
                Some(Err(error)) => note(error.to_string()),
            }
        }
    }

    /// Counts a call, if it is not dropped before its end.
    async fn ended<T>(&self, call: impl Future<Output = T>) -> T {
        let result = call.await;
        self.checks.lock().calls += 1;
        result
    }

    async fn force(&self, op: &Op) {
        let name = &names(op.kind, op.lock)[0];
        self.checks.lock().forces(name);
        let freed = async {
            match op.kind {
                Kind::Fair => self.client.fair_lock(name).force_unlock().await,
                Kind::Read => self.client.rw_lock(name).read_side().force_unlock().await,
                Kind::Write => self.client.rw_lock(name).write_side().force_unlock().await,
                _ => self.client.lock(name).force_unlock().await,
            }
        };
        let freed = self.ended(freed).await;
        let mut checks = self.checks.lock();
        checks.note(|| format!("process {} forces {name}: {freed:?}", self.process));
        if freed.is_ok() {
            checks.forced(name);
        }
    }

    /// Acquires, holds, gives back.
    async fn call(&self, op: &Op) -> Result<()> {
        let names = names(op.kind, op.lock);
        match op.kind {
            Kind::Reentrant => {
                let lock = self.client.lock(&names[0]);
                let lock = if self.is_sticky(op) {
                    lock.sticky(STICKY)
                } else {
                    lock
                };
                let guard = self.acquire(lock, op).await?;
                self.hold(op, guard.map(of_one)).await
            }
            Kind::Fair => {
                let guard = self.acquire(self.client.fair_lock(&names[0]), op).await?;
                self.hold(op, guard.map(of_one)).await
            }
            Kind::Read => {
                let guard = self
                    .acquire(self.client.rw_lock(&names[0]).read_side(), op)
                    .await?;
                self.hold(op, guard.map(of_one)).await
            }
            Kind::Write => {
                let lock = self.client.rw_lock(&names[0]).write_side();
                let lock = if self.is_sticky(op) {
                    lock.sticky(STICKY)
                } else {
                    lock
                };
                let guard = self.acquire(lock, op).await?;
                match guard {
                    Some(guard) if op.end == End::Downgrade => self.downgrade(op, guard).await,
                    guard => self.hold(op, guard.map(of_one)).await,
                }
            }
            Kind::Redlock => {
                let redlock = self.redlock.as_ref().expect("several servers");
                let guard = self.acquire(redlock.lock(&names[0]), op).await?;
                self.hold(op, guard.map(of_one)).await
            }
            Kind::Multi => {
                let members = [
                    Member::from(self.client.lock(&names[0])),
                    Member::from(self.client.fair_lock(&names[1])),
                    Member::from(self.client.rw_lock(&names[2]).write_side()),
                ];
                let guard = self.acquire(MultiLock::new(members)?, op).await?;
                self.hold(op, guard.map(of_several)).await
            }
        }
    }

    /// Every second process wants its locks again soon.
    fn is_sticky(&self, op: &Op) -> bool {
        self.process % 2 == 1 && op.fixed.is_none()
    }

    async fn acquire<L: Lock>(&self, lock: L, op: &Op) -> Result<Option<L::Guard>> {
        let _waits = self.waits(op);
        let lock = if op.is_fenced { lock.fenced() } else { lock };
        let lock = match op.fixed {
            Some(lease) => lock.fixed_lease(lease),
            None => lock,
        };
        let lock = match op.replicas {
            0 => lock,
            replicas => lock.replicated(replicas, CONFIRMED_WITHIN),
        };
        match op.verb {
            Verb::Lock | Verb::Force => self.ended(lock.lock()).await.map(Some),
            Verb::Try => self.ended(lock.try_lock()).await,
            Verb::TryFor(wait) => self.ended(lock.try_lock_for(wait)).await,
        }
    }

    /// Counts as somebody who waits for a lock, until it is dropped: not of several, which are waited for in
    /// turn.
    fn waits(&self, op: &Op) -> Option<Waits> {
        if op.verb == Verb::Try || matches!(op.kind, Kind::Multi | Kind::Redlock) {
            return None;
        }
        let name = names(op.kind, op.lock).remove(0);
        let number = self.checks.lock().wakes.begins(&name);
        Some(Waits {
            name,
            number,
            checks: Arc::clone(&self.checks),
        })
    }

    fn granted(&self, op: &Op, holds: Vec<NameAndHolder>, guard: &dyn Guard) -> Vec<Registered> {
        let token = guard.fencing_token().map(lockset::FencingToken::get);
        let token = token.filter(|_| holds.len() == 1);
        let register = |(name, holder): NameAndHolder| {
            let grant = Grant {
                kind: op.kind,
                process: self.process,
                loss: guard.loss(),
                token,
                holder,
                is_confirmed: op.replicas > 0,
                is_renewed: op.fixed.is_none(),
            };
            let number = self.checks.lock().granted(&name, grant, &self.deployment);
            Registered {
                name,
                number,
                checks: Arc::clone(&self.checks),
            }
        };
        holds.into_iter().map(register).collect()
    }

    async fn hold(
        &self,
        op: &Op,
        granted: Option<(Vec<NameAndHolder>, Box<dyn Guard>)>,
    ) -> Result<()> {
        let Some((holds, guard)) = granted else {
            return Ok(());
        };
        // Declared behind the guard, so that it is dropped before it, however this ends.
        let held = self.granted(op, holds, &*guard);
        if self.work(op, &*guard).await {
            held.into_iter().for_each(Registered::lost);
            return Ok(());
        }
        let more = match op.end {
            End::Reenter => self.ended(guard.reenter()).await.ok(),
            _ => None,
        };
        drop(held);
        if let Some(more) = more {
            self.ended(more.release()).await?;
        }
        match op.end {
            End::Drop => {
                drop(guard);
                Ok(())
            }
            _ => self.ended(guard.release()).await,
        }
    }

    async fn downgrade(&self, op: &Op, guard: lockset::WriteGuard) -> Result<()> {
        let holds = (guard.name().to_owned(), guard.holder_id().to_owned());
        let held = self.granted(op, vec![holds], &guard);
        if self.work(op, &guard).await {
            held.into_iter().for_each(Registered::lost);
            return Ok(());
        }
        self.checks.lock().downgrades(&held[0].name, held[0].number);
        let reads = self.ended(guard.downgrade()).await;
        drop(held);
        self.ended(reads?.release()).await
    }

    /// Works for a while; true if the hold was lost.
    async fn work(&self, op: &Op, guard: &dyn Guard) -> bool {
        tokio::select! {
            biased;
            _ = guard.lost() => true,
            () = tokio::time::sleep(op.hold) => {
                if !guard.is_lost() {
                    return false;
                }
                if tokio::time::timeout(NOTICE_MAX, guard.lost()).await.is_err() {
                    let what = format!("{} is lost, and its guard does not say so", guard.name());
                    self.checks.lock().violate(what);
                }
                true
            }
        }
    }
}

/// A guard that the checks know; they forget it when this is dropped, which is before the guard is.
struct Registered {
    name: String,
    number: u64,
    checks: Arc<Mutex<Checks>>,
}

impl Registered {
    fn lost(self) {
        self.checks.lock().lost(&self.name, self.number);
    }
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.checks
            .lock()
            .ends(&self.name, self.number, "given back");
    }
}

struct Waits {
    name: String,
    number: u64,
    checks: Arc<Mutex<Checks>>,
}

impl Drop for Waits {
    fn drop(&mut self) {
        self.checks.lock().wakes.ends(&self.name, self.number);
    }
}

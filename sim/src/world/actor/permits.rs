//! Permits of semaphores, and leaderships.

use std::sync::Arc;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockset::{LostReason, Result, SemaphoreGuard};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::known::Registered;
use super::{Actor, NOTICE_MAX, patient};
use crate::world::checks::Checks;
use crate::world::held::Grant;
use crate::world::names::names;
use crate::world::permits::Taken;
use crate::world::plan::{End, Op, PERMITS, Verb};

/// Permits that the checks know; they forget them when this is dropped, which is before the guard is.
struct Known {
    name: String,
    number: u64,
    checks: Arc<Mutex<Checks>>,
}

impl Drop for Known {
    fn drop(&mut self) {
        self.checks.lock().permits.ends(&self.name, self.number);
    }
}

/// A task that waits for permits.
struct Waits(Known);

impl Drop for Waits {
    fn drop(&mut self) {
        let Known {
            name,
            number,
            checks,
        } = &self.0;
        checks.lock().permits.waits_no_longer(name, *number);
    }
}

impl Actor {
    /// Takes permits, works, and gives them back, in two parts if so planned. The second semaphore is fair.
    pub(super) async fn take_permits(&self, op: &Op) -> Result<()> {
        let name = names(op.kind, op.lock).remove(0);
        let permits = self.client.semaphore(&name).permits(PERMITS);
        let permits = patient!(permits, op).many(op.terms.permits);
        let permits = if op.lock == 1 {
            permits.fair()
        } else {
            permits
        };
        let permits = match (op.fixed, op.terms.lease) {
            (Some(lease), _) => permits.fixed_lease(lease),
            (None, Some(lease)) => permits.lease(lease),
            (None, None) => permits,
        };
        let taken = {
            let _waits = self.waits_for_permits(op, &name);
            match op.verb {
                Verb::Try => self.ended(permits.try_acquire()).await?,
                Verb::TryFor(wait) => self.ended(permits.try_acquire_for(wait)).await?,
                Verb::Lock | Verb::Force | Verb::Evict => {
                    Some(self.ended(permits.acquire()).await?)
                }
            }
        };
        let Some(mut guard) = taken else {
            return Ok(());
        };
        let known = self.knows_permits(op, &name, &guard);
        if let Some(reason) = self.works(op, &guard).await {
            self.checks.lock().permits_lost(&name, known.number, reason);
            return Ok(());
        }
        drop(known);
        match op.end {
            End::Drop => return Ok(()),
            End::Reenter if guard.count() > 1 => {
                let part = guard.split(1)?;
                self.ended(part.release()).await?;
            }
            _ => {}
        }
        self.ended(guard.release()).await
    }

    fn waits_for_permits(&self, op: &Op, name: &str) -> Option<Waits> {
        if op.verb == Verb::Try || op.terms.give_up.is_some() {
            return None;
        }
        Some(Waits(Known {
            name: name.to_owned(),
            number: self.checks.lock().permits.begins(name),
            checks: Arc::clone(&self.checks),
        }))
    }

    fn knows_permits(&self, op: &Op, name: &str, guard: &SemaphoreGuard) -> Known {
        let taken = Taken {
            process: self.process,
            count: guard.count(),
            is_fixed: op.fixed.is_some(),
            loss: guard.loss(),
        };
        let number = self.checks.lock().permits_granted(name, taken);
        Known {
            name: name.to_owned(),
            number,
            checks: Arc::clone(&self.checks),
        }
    }

    /// Works for a while; why the permits were lost, if they were.
    async fn works(&self, op: &Op, guard: &SemaphoreGuard) -> Option<LostReason> {
        let mut told = FuturesUnordered::from_iter([guard.lost()]);
        let lost = tokio::time::timeout(op.hold, told.next()).await;
        if lost.is_ok() || !guard.is_lost() {
            return lost.ok().flatten();
        }
        self.told_in_time(guard.name(), told.next()).await
    }

    /// Waits for a guard to say that it is lost, which it has to do at once.
    pub(super) async fn told_in_time(
        &self,
        name: &str,
        lost: impl Future<Output = Option<LostReason>>,
    ) -> Option<LostReason> {
        let told = tokio::time::timeout(NOTICE_MAX, lost).await;
        if told.is_err() {
            let what = format!("{name} is lost, and its guard does not say so");
            self.checks.lock().violate(what);
        }
        told.ok().flatten().or(Some(LostReason::Expired))
    }

    /// Campaigns, leads, and resigns. A leader counts as the holder of a lock.
    pub(super) async fn lead(&self, op: &Op) -> Result<()> {
        let name = names(op.kind, op.lock).remove(0);
        let election = patient!(self.client.election(&name), op);
        let election = match op.terms.lease.or(op.fixed) {
            Some(lease) => election.lease(lease),
            None => election,
        };
        let election = election.value(format!("{}", self.process));
        let asked = Instant::now();
        let leads = match op.verb {
            Verb::Try => self.ended(election.try_campaign()).await?,
            Verb::TryFor(wait) => self.ended(election.campaign_for(wait)).await?,
            Verb::Lock | Verb::Force | Verb::Evict => Some(self.ended(election.campaign()).await?),
        };
        let Some(leads) = leads else {
            return Ok(());
        };
        let grant = Grant {
            kind: op.kind,
            process: self.process,
            owner: None,
            asked,
            loss: leads.loss(),
            token: Some(leads.token().get()),
            holder: leads.id().to_owned(),
            replicas: 0,
            is_fixed: false,
            max_hold: None,
        };
        let number = self.checks.lock().granted(&name, grant, &self.deployment);
        let held = Registered {
            name: name.clone(),
            number,
            checks: Arc::clone(&self.checks),
        };
        let mut told = FuturesUnordered::from_iter([leads.lost()]);
        let lost = tokio::time::timeout(op.hold, told.next()).await;
        let mut lost = lost.ok().flatten();
        if lost.is_none() && leads.is_lost() {
            lost = self.told_in_time(&name, told.next()).await;
        }
        drop(told);
        if let Some(reason) = lost {
            Registered::lost(vec![held], reason);
            return Ok(());
        }
        if op.end == End::Reenter {
            let proclaimed = self.ended(leads.proclaim("again")).await;
            // It may have been lost in between.
            if proclaimed.is_err() && !leads.is_lost() {
                proclaimed?;
            }
        }
        drop(held);
        if op.end == End::Drop {
            return Ok(());
        }
        self.ended(leads.resign()).await
    }
}

//! What one guard has of a quorum: given back exactly once.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::{Phase, QuorumHold};
use crate::clock::Tick;
use crate::error::{Error, Kind, Result};
use crate::fencing::FencingToken;
use crate::hold::{Share, Stay};
use crate::lost::{Lost, LostReason, drive};
use crate::owner::Owner;
use crate::script::on_first_poll;

#[derive(Debug)]
pub(crate) struct QuorumShare {
    /// `None` once it was given back: then only `Drop` is left to run.
    quorum: Option<Arc<QuorumHold>>,
    guard: u64,
    stay: Stay,
}

impl QuorumShare {
    pub(super) fn of(quorum: Arc<QuorumHold>, guard: u64, stay: Stay) -> Self {
        Self {
            quorum: Some(quorum),
            guard,
            stay,
        }
    }

    pub(crate) fn quorum(&self) -> &Arc<QuorumHold> {
        // Methods that give the seat back take the guard by value.
        self.quorum
            .as_ref()
            .expect("a guard has its seat until it is consumed")
    }

    pub(crate) fn name(&self) -> &str {
        &self.quorum().config.name
    }

    pub(crate) fn owner(&self) -> &Owner {
        self.quorum().owner()
    }

    pub(crate) fn holder_id(&self) -> &str {
        &self.quorum().holder
    }

    pub(crate) fn holder_ids(&self) -> Vec<String> {
        let holds = self.quorum().holds();
        let live = holds.iter().filter(|(_, hold)| hold.loss().is_none());
        live.map(|(_, hold)| hold.holder_id().to_owned()).collect()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let guards = self.quorum().state.lock().guards.len();
        u32::try_from(guards).unwrap_or(u32::MAX)
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.quorum().token()
    }

    pub(crate) fn remaining(&self) -> Duration {
        let quorum = self.quorum();
        match self.loss() {
            Some(_) => Duration::ZERO,
            None => quorum.config.clock.now().until(self.deadline()),
        }
    }

    pub(crate) fn stay(&self) -> Stay {
        self.stay
    }

    fn deadline(&self) -> Tick {
        self.quorum().deadline().min(self.stay.end())
    }

    /// Why it is lost, if it is: with the quorum, or at an end of its own.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        let loss = self.quorum().loss();
        loss.or_else(|| self.stay.loss_at(self.quorum().config.clock.now()))
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.loss().is_some()
    }

    /// Resolves when it is lost. Carries its own timer. Cancel safe.
    pub(crate) async fn lost(&self) -> LostReason {
        let quorum = self.quorum();
        loop {
            let mark = quorum.changed.mark();
            if let Some(reason) = self.loss() {
                return reason;
            }
            tokio::select! {
                () = quorum.changed.past(mark) => {}
                // A change of it is told.
                () = quorum.config.clock.sleep_until(self.deadline()) => {}
            }
        }
    }

    pub(crate) async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let lost = |reason| Lost::new(self.name(), reason);
        let look = || self.loss().map(lost);
        drive(async { lost(self.lost().await) }, look, work).await
    }

    /// Gives it back everywhere, and waits for a majority to say so; the rest goes on in the
    /// background, and all of it if this future is dropped.
    pub(crate) async fn release(mut self) -> Result<()> {
        // Marks it lost if too many deadlines have passed.
        let loss = self.loss();
        let Some(quorum) = self.quorum.take() else {
            return Ok(());
        };
        let shares = quorum.remove_guard(self.guard);
        let enough = quorum.config.quorum.min(shares.len());
        let mut releases: FuturesUnordered<_> = shares.into_iter().map(Share::release).collect();
        let work = async {
            let (mut done, mut first) = (0, None);
            while done < enough {
                match releases.next().await {
                    Some(Ok(())) => done += 1,
                    Some(Err(error)) => {
                        first.get_or_insert(error);
                    }
                    None => break,
                }
            }
            first.filter(|_| done < enough)
        };
        let failed = on_first_poll(work, || quorum.releases_sent()).await;
        match (loss, failed) {
            (Some(reason), _) => Err(quorum.not_held("release", reason)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(()),
        }
    }

    pub(crate) fn forget(mut self) {
        if let Some(quorum) = self.quorum.take() {
            let shares = quorum.remove_guard(self.guard);
            shares.into_iter().for_each(Share::forget);
            quorum.releases_sent();
        }
    }
}

impl QuorumHold {
    pub(crate) fn not_held(&self, operation: &'static str, reason: LostReason) -> Error {
        let message = format!(
            "{reason}, on so many servers that fewer than {} are left; what was done under this \
             lock may have overlapped with others",
            self.config.quorum
        );
        Error::new(Kind::NotHeld, operation, message).of_lock(&self.config.name)
    }

    /// One guard less: the shares to give back.
    fn remove_guard(&self, guard: u64) -> Vec<Share> {
        // Marks it lost if too many deadlines have passed.
        self.loss();
        let mut state = self.state.lock();
        let shares = state.remove_guard(guard);
        if state.guards.is_empty() && state.phase == Phase::Held {
            state.phase = Phase::Released;
        }
        shares
    }

    /// What `remove_guard` took out is on its way.
    fn releases_sent(&self) {
        let is_over = self.state.lock().phase == Phase::Released;
        if is_over {
            self.notify_ended();
        }
    }
}

impl Drop for QuorumShare {
    fn drop(&mut self) {
        if let Some(quorum) = self.quorum.take() {
            let shares = quorum.remove_guard(self.guard);
            drop(shares);
            quorum.releases_sent();
        }
    }
}

//! A guard's share of a quorum hold. It ends exactly once, by `release`, by `forget`, or by `Drop`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::hold::{QuorumConfig, QuorumHold};
use super::state::Guard;
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::loss::{Losable, Loss, LossCell};
use crate::api::lost::{Lost, LostReason};
use crate::api::owner::Owner;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::{Share, ShareLease};
use crate::script::on_first_poll;

#[derive(Debug)]
pub(crate) struct QuorumShare {
    /// `None` once the share has ended: then only `Drop` is left to run.
    hold: Option<Arc<QuorumHold>>,
    guard: Guard,
    view: LossCell,
}

impl QuorumShare {
    /// The first share of a new hold on `servers` servers, granted by some of them.
    pub(crate) fn granted(
        config: QuorumConfig,
        servers: usize,
        shares: Vec<(usize, Share)>,
        token: Option<FencingToken>,
        kept_until: Tick,
    ) -> Self {
        let (hold, guard) = QuorumHold::granted(config, servers, shares, token, kept_until);
        Self {
            hold: Some(hold),
            guard,
            view: LossCell::default(),
        }
    }

    /// One more share of a hold, made of shares of its members. `None` if it is lost or over.
    pub(crate) fn of_members(
        hold: &Arc<QuorumHold>,
        shares: Vec<(usize, Share)>,
        kept_until: Tick,
    ) -> Option<Self> {
        let guard = hold.add_guard(shares, kept_until)?;
        Some(Self {
            hold: Some(Arc::clone(hold)),
            guard,
            view: LossCell::default(),
        })
    }

    pub(crate) fn hold(&self) -> &Arc<QuorumHold> {
        // The methods that end the share take the guard by value.
        self.hold
            .as_ref()
            .expect("a guard has its share until it is consumed")
    }

    pub(crate) fn name(&self) -> &str {
        &self.hold().config.name
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.hold().config.owner
    }

    pub(crate) fn holder_id(&self) -> &str {
        &self.hold().holder
    }

    pub(crate) fn holder_ids(&self) -> Vec<String> {
        let members = self.hold().members();
        let live = members
            .iter()
            .filter(|(_, member)| member.expire_if_due().is_none());
        live.map(|(_, member)| member.holder_id().to_owned())
            .collect()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        u32::try_from(self.hold().hold_count()).unwrap_or(u32::MAX)
    }

    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.hold().token()
    }

    pub(crate) fn remaining(&self) -> Duration {
        self.hold().remaining_of(self.lease())
    }

    pub(crate) fn lease(&self) -> ShareLease {
        self.guard.lease
    }

    pub(crate) fn loss(&self) -> Option<LostReason> {
        self.hold().loss_of(self.lease())
    }

    pub(crate) fn loss_view(&self) -> Loss {
        let held = || Held(Arc::clone(self.hold()), self.lease());
        self.view.view(|| Arc::new(held()))
    }

    /// The lock, if it is lost.
    pub(crate) fn lost_now(&self) -> Option<Lost> {
        self.loss().map(|reason| Lost::new(self.name(), reason))
    }

    /// Waits for the loss, and returns the lock.
    pub(crate) async fn lost_lock(&self) -> Lost {
        Lost::new(self.name(), self.lost().await)
    }

    pub(crate) async fn lost(&self) -> LostReason {
        self.hold().lost(self.lease()).await
    }

    /// Resolves when a waiter wants the lock, at one of its servers or in this process.
    pub(crate) async fn recalled(&self) {
        let hold = self.hold();
        let (local, changed) = (&hold.config.local, hold.changed());
        loop {
            let marks = (local.wanted.mark(), changed.mark());
            if local.queue.has_waiter_blocked_by(Mode::Exclusive) {
                return;
            }
            let members = hold.members();
            let each = members
                .iter()
                .map(|(_, member)| member.recalled(Mode::Exclusive));
            let mut each: FuturesUnordered<_> = each.collect();
            tokio::select! {
                Some(()) = each.next() => return,
                () = local.wanted.changed_since(marks.0) => {}
                // Other servers may be members now.
                () = changed.changed_since(marks.1) => {}
            }
        }
    }

    /// Takes the hold out. The caller has to release the share.
    fn take_hold(&mut self) -> Option<Arc<QuorumHold>> {
        let hold = self.hold.take()?;
        self.view.end(|| hold.loss_of(self.guard.lease));
        Some(hold)
    }

    /// Releases the share on all servers, and waits until a majority has confirmed. The rest goes on in the
    /// background. If this future is dropped, all of it does.
    pub(crate) async fn release(mut self) -> Result<()> {
        let loss = self.loss();
        let Some(hold) = self.take_hold() else {
            return Ok(());
        };
        let shares = hold.remove_guard(self.guard.number);
        let enough = hold.config.quorum.min(shares.len());
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
        let failed = on_first_poll(pin!(work), || hold.releases_sent()).await;
        match (loss, failed) {
            (Some(reason), _) => Err(hold.not_held("release", reason)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(()),
        }
    }

    /// Ends the share without releasing it.
    pub(crate) fn forget(mut self) {
        if let Some(hold) = self.take_hold() {
            let shares = hold.remove_guard(self.guard.number);
            shares.into_iter().for_each(Share::forget);
            hold.releases_sent();
        }
    }
}

/// The loss view of a guard's share.
struct Held(Arc<QuorumHold>, ShareLease);

impl Losable for Held {
    fn loss(&self) -> Option<LostReason> {
        self.0.loss_of(self.1)
    }

    fn remaining(&self) -> Duration {
        self.0.remaining_of(self.1)
    }

    fn lost(&self) -> BoxFuture<'_, LostReason> {
        self.0.lost(self.1).boxed()
    }
}

impl Drop for QuorumShare {
    fn drop(&mut self) {
        if let Some(hold) = self.take_hold() {
            let shares = hold.remove_guard(self.guard.number);
            drop(shares);
            hold.releases_sent();
        }
    }
}

//! Shares of several holds that are kept and lost together: the inside of a multi-lock's guard.
//!
//! Invariants: as with a single share, each is released exactly once, and the shares on one server are released in
//! one write. When one hold is lost, the shares of the others are released.

use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all, select_all};

use super::loss::{LossListener, SharedHold};
use super::settle::{release_all, release_all_later};
use super::share::Share;
use super::shell::{Hold, RawShare};
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::api::loss::{Losable, Loss, LossCell, Lost, LostReason};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::observe::observer::{GuardTimer, HoldSpan};

/// At least one share, in the order of the members.
#[derive(Debug)]
pub(crate) struct Bundle(Arc<Members>);

impl Deref for Bundle {
    type Target = Members;

    fn deref(&self) -> &Members {
        &self.0
    }
}

/// The members of a bundle. Their holds notify this value of a loss.
#[derive(Debug)]
pub(crate) struct Members {
    /// Dropped first: the drop of the last member may end its client, which then reports its counts.
    _timer: GuardTimer,
    all: Vec<Member>,
    /// The first member that was lost, and why. The other shares are released after that, so their ends are not losses.
    first_lost: OnceLock<(usize, LostReason)>,
    view: LossCell,
}

#[derive(Debug)]
struct Member {
    share: RawShare,
    /// Whether its share has been released or forgotten.
    is_over: AtomicBool,
    _span: HoldSpan,
}

impl LossListener for Members {
    fn member_lost(self: Arc<Self>) {
        self.first_lost();
    }
}

impl Members {
    fn now(&self) -> Tick {
        self.all[0].share.hold.core.clock.now()
    }

    /// Releases the shares of the other holds because one hold was lost. The lost hold, which the server may still
    /// have, is left alone until the guard is gone, because the work under it goes on until then. The holds of a closed
    /// client are left to their leases.
    fn release_others(&self) {
        let is_left = |hold: &Hold| hold.core.is_closed() || hold.expire_if_due().is_some();
        let mut others = self.end(|hold| !is_left(hold));
        for share in &mut others {
            share.kept_until = Tick::ZERO;
        }
        release_all_later(self.now(), others);
    }

    /// Returns the first hold that was lost, or whose share has ended by itself. The first call that finds one releases
    /// the others.
    fn first_lost(&self) -> Option<(&Arc<Hold>, LostReason)> {
        if self.first_lost.get().is_none() {
            let mut members = self.all.iter().enumerate();
            let lost = members.find_map(|(at, member)| {
                let reason = member.share.hold.loss_of(member.share.lease)?;
                Some((at, reason))
            })?;
            if self.first_lost.set(lost).is_ok() {
                self.release_others();
            }
        }
        let &(at, reason) = self.first_lost.get()?;
        Some((&self.all[at].share.hold, reason))
    }

    /// Resolves when the first hold is lost, with its name and the reason.
    pub(crate) async fn lost_member(&self) -> (&str, LostReason) {
        loop {
            if let Some((hold, reason)) = self.first_lost() {
                return (hold.name(), reason);
            }
            let members = self.all.iter();
            let each = members.map(|Member { share, .. }| Box::pin(share.hold.lost(share.lease)));
            select_all(each).await;
        }
    }

    fn holds(&self) -> impl Iterator<Item = &Arc<Hold>> {
        self.all.iter().map(|member| &member.share.hold)
    }

    /// The name of the first member.
    pub(crate) fn name(&self) -> &str {
        self.all[0].share.hold.name()
    }

    /// The holder id of the first member.
    pub(crate) fn holder_id(&self) -> &str {
        self.all[0].share.hold.holder_id()
    }

    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.holds().map(|hold| hold.name())
    }

    pub(crate) fn holder_ids(&self) -> impl Iterator<Item = &str> {
        self.holds().map(|hold| hold.holder_id())
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.all[0].share.owner
    }

    pub(crate) fn hold_count(&self) -> u32 {
        let members = self.all.iter();
        let counts = members.map(|member| member.share.hold_count());
        counts.min().unwrap_or(0)
    }

    pub(crate) fn fencing_tokens(&self) -> impl Iterator<Item = Option<FencingToken>> {
        let members = self.all.iter();
        members.map(|member| member.share.hold.token_of(&member.share.owner))
    }

    /// The largest of the members' tokens.
    pub(crate) fn fencing_token(&self) -> Option<FencingToken> {
        self.fencing_tokens().flatten().max()
    }

    /// Resolves when a waiter wants one of the locks.
    pub(crate) async fn recalled(&self) {
        let members = self.all.iter();
        let each = members.map(|member| Box::pin(member.share.hold.recalled(member.share.mode)));
        select_all(each).await;
    }

    pub(crate) fn lost_now(&self) -> Option<Lost> {
        let (hold, reason) = self.first_lost()?;
        Some(Lost::new(hold.name(), reason))
    }

    /// Takes out the shares of the holds that `which` selects, except for those already released.
    fn end(&self, which: impl Fn(&Hold) -> bool) -> Few<RawShare> {
        let members = self.all.iter().filter(|member| which(&member.share.hold));
        members
            .filter(|member| !member.is_over.swap(true, Ordering::AcqRel))
            .map(|member| member.share.clone())
            .collect()
    }
}

impl Losable for Members {
    fn loss(&self) -> Option<LostReason> {
        self.first_lost().map(|(_, reason)| reason)
    }

    fn remaining(&self) -> Duration {
        if self.first_lost().is_some() {
            return Duration::ZERO;
        }
        let each = self.all.iter();
        let each = each.map(|member| member.share.hold.remaining_of(member.share.lease));
        each.min().unwrap_or(Duration::ZERO)
    }

    fn lost(&self) -> BoxFuture<'_, LostReason> {
        self.lost_member().map(|(_, reason)| reason).boxed()
    }
}

impl Bundle {
    /// Makes a bundle of the shares of a guard.
    pub(crate) fn of(shares: Vec<Share>, timer: GuardTimer) -> Self {
        let members = shares.into_iter().filter_map(Share::into_parts);
        let members = members.map(|(share, span)| Member {
            share,
            is_over: AtomicBool::new(false),
            _span: span,
        });
        let members = Arc::new(Members {
            _timer: timer,
            all: members.collect(),
            first_lost: OnceLock::new(),
            view: LossCell::default(),
        });
        for Member { share, .. } in &members.all {
            let members: Arc<dyn LossListener> = Arc::clone(&members) as _;
            share.hold.add_loss_listener(Arc::downgrade(&members));
        }
        let bundle = Self(members);
        // A hold may have been lost before this was listed as its listener.
        bundle.first_lost();
        bundle
    }

    pub(crate) fn loss_view(&self) -> Loss {
        self.view.view(|| Arc::clone(&self.0) as _)
    }

    /// Takes one more share of each hold, or of none.
    pub(crate) async fn reenter(&self) -> Result<Self> {
        loop {
            self.ensure_held("reenter")?;
            let members = self.all.iter();
            let each = members.map(|member| Share::entrance_again(&member.share));
            // All are prepared before the first is entered, because this future may be left unpolled in between.
            let entrances = join_all(each).await.into_iter();
            let entrances = entrances.collect::<Result<Vec<_>>>();
            // If a hold was lost in the meantime, reports that loss, not the release of the others that followed it.
            self.ensure_held("reenter")?;
            let shares = entrances?.into_iter().map(Share::entered);
            if let Some(shares) = shares.collect::<Result<Option<_>>>()? {
                return Ok(Self::of(shares, GuardTimer::default()));
            }
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        let held = self.ensure_held("release");
        self.end_view();
        let released = release_all(self.now(), self.end(|_| true)).await;
        held.and(released)
    }

    pub(crate) fn forget(self) {
        self.end_view();
        self.end(|_| true).into_iter().for_each(RawShare::forget);
    }

    /// Ends the loss view, because the guard is about to be gone.
    fn end_view(&self) {
        self.view.end(|| self.loss());
    }

    fn ensure_held(&self, operation: &'static str) -> Result<()> {
        match self.first_lost() {
            Some((hold, reason)) => Err(hold.not_held(operation, reason)),
            None => Ok(()),
        }
    }
}

impl Drop for Bundle {
    fn drop(&mut self) {
        self.end_view();
        release_all_later(self.now(), self.end(|_| true));
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::multilock::MultiLock;
    use crate::script::catalog::{FAIR_ACQUIRE, REENTRANT_ACQUIRE};
    use crate::testing::{Answer, Scripted, Sent, elsewhere, granted};

    /// The work under the lost lock has to stop, so the other locks have no use.
    #[tokio::test(start_paused = true)]
    async fn members_of_other_clients_are_released_when_one_client_is_shut_down() {
        let server = || {
            Scripted::new(|sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false => Answer::Value(granted()),
            })
        };
        let servers = [server(), server()];
        let clients = servers
            .each_ref()
            .map(|server| Client::over(server, Duration::from_secs(30)));
        let [one, other] = &clients;
        let both = MultiLock::new([one.lock("a"), other.lock("b")]).unwrap();
        let guard = both.lock().await.unwrap();
        one.clone().shutdown().await.unwrap();
        assert_eq!(guard.loss().reason(), Some(LostReason::Closed));
        tokio::time::sleep(Duration::from_secs(1)).await;
        let released = servers.map(|server| server.sent().iter().any(|sent| sent.is_release()));
        assert_eq!(released, [false, true]);
        drop(guard);
    }

    const SECOND: Duration = Duration::from_secs(1);

    fn is_taking(sent: &Sent) -> bool {
        let scripts = [&REENTRANT_ACQUIRE, &FAIR_ACQUIRE];
        scripts.iter().any(|script| sent.words[1] == script.sha())
    }

    /// Two servers that grant everything, and a client of each.
    fn two() -> ([Arc<Scripted>; 2], [Client; 2]) {
        let servers = [(); 2].map(|()| {
            Scripted::new(|sent| match is_taking(sent) {
                true => Answer::Value(granted()),
                false => Answer::Value(Value::Int(1)),
            })
        });
        let clients = servers
            .each_ref()
            .map(|server| Client::over(server, SECOND * 30));
        (servers, clients)
    }

    /// The work under the locks has to stop, so `at_least` has no use.
    #[tokio::test(start_paused = true)]
    async fn members_that_were_to_be_held_for_longer_are_released_when_another_is_lost() {
        let (servers, [one, other]) = two();
        let both = MultiLock::new([one.lock("a"), other.lock("b")]).unwrap();
        let guard = both.at_least(SECOND * 20).lock().await.unwrap();
        tokio::time::sleep(SECOND).await;
        assert!(one.lock("a").force_unlock().await.unwrap());
        assert_eq!(guard.loss().reason(), Some(LostReason::Revoked));
        tokio::time::sleep(SECOND).await;
        assert!(servers[1].sent().iter().any(|sent| sent.is_release()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_waiter_for_any_member_recalls_the_guard() {
        for at in 0..2 {
            let (_servers, clients) = two();
            let names = ["a", "b"];
            let members = clients.iter().zip(names);
            let both = MultiLock::new(members.map(|(client, name)| client.lock(name))).unwrap();
            let guard = both.lock().await.unwrap();
            let early = tokio::time::timeout(SECOND, guard.recalled()).await;
            assert!(early.is_err(), "nobody waits");
            let wanted = clients[at].lock(names[at]);
            let waiter = tokio::spawn(async move { wanted.lock().await.map(drop) });
            let recalled = tokio::time::timeout(SECOND, guard.recalled()).await;
            assert!(recalled.is_ok(), "{at}");
            waiter.abort();
        }
    }

    /// Only the call held the first lock, and it has no use for the second alone.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_loses_its_first_lock_waits_no_longer_for_the_second() {
        let first = Scripted::new(|sent| match is_taking(sent) {
            true => Answer::Value(granted()),
            false => Answer::Value(Value::Int(1)),
        });
        let second = Scripted::new(|_| Answer::Value(elsewhere(30_000)));
        let clients = [&first, &second].map(|server| Client::over(server, SECOND * 30));
        let members = clients.iter().zip(["a", "b"]);
        let both = MultiLock::new(members.map(|(client, name)| client.lock(name))).unwrap();
        let waiting = tokio::spawn(async move { both.lock().await.map(drop) });
        tokio::time::sleep(SECOND).await;
        assert_eq!(
            first.sent().iter().filter(|sent| is_taking(sent)).count(),
            1
        );
        clients[0].lock("a").force_unlock().await.unwrap();
        let before = first.sent().len();
        tokio::time::sleep(SECOND).await;
        let since = first.sent().split_off(before);
        assert!(since.iter().any(is_taking), "it begins again: {since:?}");
        waiting.abort();
    }

    /// Such a lock is not renewed before all are held, and after a crash it stays locked for its whole lease.
    #[tokio::test(start_paused = true)]
    async fn a_lock_that_is_taken_in_order_for_a_short_time_has_a_short_lease() {
        let (servers, [one, other]) = two();
        let both = MultiLock::new([one.fair_lock("a"), other.fair_lock("b")]).unwrap();
        let guard = both.max_hold(SECOND).lock().await.unwrap();
        for server in servers {
            let sent = server.sent();
            let numbers = sent[0].words.iter().filter_map(|word| word.parse().ok());
            let longest: Option<u64> = numbers.max();
            let is_short = longest.is_some_and(|ms| (2_000..5_000).contains(&ms));
            assert!(is_short, "{:?}", sent[0]);
        }
        guard.release().await.unwrap();
    }
}

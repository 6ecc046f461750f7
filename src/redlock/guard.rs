//! The guard of a Redlock, and its share of a quorum hold; one more share for an owner that holds the lock. A share
//! ends exactly once, by `release`, by `forget`, or by `Drop`.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{FuturesUnordered, StreamExt};

use super::hold::{Guard, QuorumHold};
use super::round::QuorumRequest;
use super::tally::{Tally, VoteOutcome};
use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::guard::guard_methods;
use crate::api::holder::Owner;
use crate::api::loss::{Loss, LossCell, Lost, LostReason};
use crate::engine::acquire;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::bound::Bound;
use crate::engine::hold::reenter::{Entrance, LeaseSource, Reentry};
use crate::engine::hold::{Share, ShareLease, ShareView, SharedHold};
use crate::observe::observer::{GuardTimer, HoldSpan};

/// One hold on a [`RedlockLock`](crate::RedlockLock); dropping it releases on every server in the background.
///
/// It is held while a majority of all servers holds the lock for it, each with a local deadline of its own. A lost
/// server (restarted, or unreachable for a lease) is asked again in the background about every third of a lease, so a
/// long hold outlives the restart of every server, one after the other. A hold with a [fixed
/// lease](crate::RedlockLock::fixed_lease) asks no server again. Once fewer than a majority are left, the guard is
/// lost, and the rest is released at once.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown) of all its clients,
/// which waits for the releases of dropped guards.
///
/// ```no_run
/// # async fn doc(redlock: lockset::Redlock) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = redlock.lock("order:7").lock().await?;
/// println!("held on {} servers", guard.holder_ids().len());
/// guard.run(async { /* work */ }).await?;
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct RedlockGuard(pub(super) QuorumShare);

guard_methods!(RedlockGuard);

impl RedlockGuard {
    /// The holder ids at the servers that hold the lock now, in the order of the clients; empty once the lock
    /// is lost.
    #[must_use]
    pub fn holder_ids(&self) -> Vec<String> {
        self.0.holder_ids()
    }
}

#[derive(Debug)]
pub(super) struct QuorumShare {
    /// Dropped before the hold, because the guard may be the last of its clients.
    pub(super) timer: GuardTimer,
    pub(super) hold: Arc<QuorumHold>,
    guard: Guard,
    view: LossCell,
    /// Whether the share was released or forgotten.
    is_over: bool,
    /// The span of a guard that entered the hold. The first guard has the spans of its shares at the servers.
    _span: HoldSpan,
}

impl QuorumShare {
    pub(super) fn new(hold: Arc<QuorumHold>, guard: Guard, span: HoldSpan) -> Self {
        Self {
            timer: GuardTimer::default(),
            hold,
            guard,
            view: LossCell::default(),
            is_over: false,
            _span: span,
        }
    }

    pub(super) fn name(&self) -> &str {
        self.hold.request.first().name.as_str()
    }

    pub(super) fn owner(&self) -> &Owner {
        &self.hold.owner
    }

    pub(super) fn holder_id(&self) -> &str {
        &self.hold.holder
    }

    pub(super) fn holder_ids(&self) -> Vec<String> {
        let members = self.hold.members();
        let live = (members.iter()).filter(|(_, member)| member.expire_if_due().is_none());
        live.map(|(_, member)| member.holder_id().to_owned())
            .collect()
    }

    pub(super) fn hold_count(&self) -> u32 {
        u32::try_from(self.hold.hold_count()).unwrap_or(u32::MAX)
    }

    pub(super) fn fencing_token(&self) -> Option<FencingToken> {
        self.hold.token()
    }

    pub(super) fn remaining(&self) -> Duration {
        self.hold.remaining_of(self.lease())
    }

    pub(super) fn lease(&self) -> ShareLease {
        self.guard.lease
    }

    pub(super) fn loss(&self) -> Option<LostReason> {
        self.hold.loss_of(self.lease())
    }

    pub(super) fn loss_view(&self) -> Loss {
        let share = || Arc::new(ShareView(Arc::clone(&self.hold), self.lease())) as _;
        self.view.view(share)
    }

    /// Returns the loss of the lock, if the lock is lost.
    pub(super) fn lost_now(&self) -> Option<Lost> {
        self.loss().map(|reason| Lost::new(self.name(), reason))
    }

    pub(super) async fn lost(&self) -> LostReason {
        self.hold.lost(self.lease()).await
    }

    /// Resolves when a waiter wants the lock, at one of its servers or in this process.
    pub(super) async fn recalled(&self) {
        let hold = &self.hold;
        let changed = hold.changed();
        loop {
            // Read in each round, because another queue is used once the client of this one is closed. The closing
            // signals `changed`.
            let (_, local) = hold.local.queue();
            let wanted = &local.rare().wanted;
            let marks = (wanted.mark(), changed.mark());
            if local.lock().queue().has_waiter_blocked_by(Mode::Exclusive) {
                return;
            }
            let members = hold.members();
            let each = members
                .iter()
                .map(|(_, member)| member.recalled(Mode::Exclusive));
            let mut each: FuturesUnordered<_> = each.collect();
            tokio::select! {
                Some(()) = each.next() => return,
                () = wanted.changed_since(marks.0) => {}
                // Other servers may be members now.
                () = changed.changed_since(marks.1) => {}
            }
        }
    }

    /// Ends the share. Returns the shares at the servers, which the caller has to release. `None` if the share had
    /// ended before.
    fn end(&mut self, is_forgotten: bool) -> Option<Vec<Share>> {
        if std::mem::replace(&mut self.is_over, true) {
            return None;
        }
        self.view.end(|| self.hold.loss_of(self.guard.lease));
        Some(self.hold.remove_guard(self.guard, is_forgotten))
    }

    /// Releases the share on all servers, and waits until a majority has confirmed. The rest goes on in the background,
    /// and so does everything if this future is dropped. While other guards have the hold, a majority confirms that the
    /// hold still exists, if that is in doubt.
    pub(super) async fn release(mut self) -> Result<()> {
        let loss = self.loss();
        let shares = self.end(false).unwrap_or_default();
        let hold = &self.hold;
        if loss.is_none() && shares.is_empty() {
            // Other guards keep the hold, if the servers still have it.
            let members = hold.members();
            let enough = hold.request.quorum().min(members.len());
            let confirmed = (members.iter()).map(|(_, member)| member.confirmed("release"));
            let failed = failure(enough, confirmed.collect()).await;
            return failed.map_or(Ok(()), Err);
        }
        let enough = hold.request.quorum().min(shares.len());
        let releases = shares.into_iter().map(Share::release).collect();
        let mut work = pin!(failure(enough, releases));
        let begun = (&mut work).now_or_never();
        hold.releases_sent();
        let failed = match begun {
            Some(failed) => failed,
            None => work.await,
        };
        match (loss, failed) {
            (Some(reason), _) => Err(hold.not_held("release", reason)),
            (None, Some(error)) => Err(error),
            (None, None) => Ok(()),
        }
    }

    /// Ends the share without releasing it.
    pub(super) fn forget(mut self) {
        self.end_now(true);
    }

    fn end_now(&mut self, is_forgotten: bool) {
        if let Some(shares) = self.end(is_forgotten) {
            drop(shares);
            self.hold.releases_sent();
        }
    }
}

impl Drop for QuorumShare {
    fn drop(&mut self) {
        self.end_now(false);
    }
}

impl QuorumShare {
    /// Adds one more share, with the lease of this one.
    pub(super) async fn reenter(&self) -> Result<Self> {
        const OPERATION: &str = "reenter";
        let (hold, request) = (&self.hold, &self.hold.request);
        if let Some(reason) = self.loss() {
            return Err(hold.not_held(OPERATION, reason));
        }
        let entry = LeaseSource::Like(self.lease());
        let bound = acquire::bound(&request.requests, Tick::NEVER, request.clock().now());
        let entered = reenter(request, hold, entry, &bound).await;
        let share = entered.map_err(|error| error.during(OPERATION))?;
        share.ok_or_else(|| {
            let reason = hold.loss().unwrap_or(LostReason::Revoked);
            hold.not_held(OPERATION, reason)
        })
    }
}

impl QuorumHold {
    fn not_held(&self, operation: &'static str, reason: LostReason) -> Error {
        let message = format!(
            "{reason} on too many servers: fewer than {} still hold the lock; what was done under it \
             may have overlapped with another holder",
            self.request.quorum()
        );
        Error::new(Kind::NotHeld, operation, message).of_lock(self.request.first().name.as_str())
    }
}

/// Waits until `enough` of the futures have succeeded. Returns the first error if fewer do.
async fn failure(
    enough: usize,
    mut works: FuturesUnordered<impl Future<Output = Result<()>>>,
) -> Option<Error> {
    let (mut done, mut first) = (0, None);
    while done < enough
        && let Some(worked) = works.next().await
    {
        match worked {
            Ok(()) => done += 1,
            Err(error) => first = first.or(Some(error)),
        }
    }
    first.filter(|_| done < enough)
}

/// Adds a guard to a hold. Asks all servers of the hold at once, and waits for a majority of all servers, within the
/// bound of the call. `None` if the hold is lost or over (another task of its owner may have released it): then the
/// caller has to start over.
///
/// If this is dropped or fails, the guards stay as they were. Renewals under way go on in the background.
pub(super) async fn reenter(
    request: &QuorumRequest,
    hold: &Arc<QuorumHold>,
    entry: LeaseSource,
    bound: &Bound,
) -> Result<Option<QuorumShare>> {
    let first = request.first();
    // A hold has one token.
    let fenced = first.options.fenced && hold.token().is_none();
    let mut tally = Tally::new(request.requests.len());
    let mut entrances = entrances(request, hold, entry, fenced, bound, &mut tally).await;
    if fenced && entrances.len() >= request.quorum() {
        let token = request
            .fence(&mut entrances, Entrance::token, Entrance::hold, &mut tally)
            .await;
        if token.is_some_and(|token| !hold.fence(token, &entrances)) {
            entrances.clear();
        }
    }
    let mut shares = Vec::new();
    if entrances.len() >= request.quorum() {
        // Enters only when a majority is ready, so that a call that is dropped earlier, or no longer polled, has
        // entered no member.
        for (server, entrance) in entrances {
            let share = entered(Share::entered(entrance));
            shares.extend(tally.record_vote(server, share));
        }
    }
    if shares.len() >= request.quorum() {
        let kept_until = match entry {
            LeaseSource::Asked(_) => first.kept_until(),
            LeaseSource::Like(_) => Tick::ZERO,
        };
        let guard = hold.add_guard(shares, kept_until);
        return Ok(guard.map(|guard| {
            let span = HoldSpan::begin(|| (first.name.as_str(), &hold.holder, hold.token()));
            QuorumShare::new(Arc::clone(hold), guard, span)
        }));
    }
    if !hold.is_held() {
        // The hold has ended in the meantime, so the answers of its servers are no errors.
        return Ok(None);
    }
    // Lists the servers in the order of the hold, because the caller's Redlock may name them in another one.
    let servers = &hold.request.servers;
    Err(servers.error(first.operation, &first.name, &tally))
}

/// Prepares one more share at each server, until a majority is ready or no majority is possible.
async fn entrances(
    request: &QuorumRequest,
    hold: &QuorumHold,
    entry: LeaseSource,
    fenced: bool,
    bound: &Bound,
    tally: &mut Tally,
) -> Vec<(usize, Entrance)> {
    let members = hold.members().into_iter();
    let entering = members.map(async |(server, member)| {
        // The members have their own owner, and are never handed off.
        let reentry = Reentry {
            owner: member.owner(),
            mode: Mode::Exclusive,
            entry,
            fenced,
            operation: request.first().operation,
        };
        (server, entered(member.entrance(reentry, Some(bound)).await))
    });
    let mut pending: FuturesUnordered<_> = entering.collect();
    let mut entrances = Vec::new();
    while entrances.len() < request.quorum()
        && entrances.len() + pending.len() >= request.quorum()
        && let Some((server, entrance)) = pending.next().await
    {
        entrances.extend(tally.record_vote(server, entrance));
    }
    entrances
}

/// Returns a re-entry as a vote. If there is no entrance, the hold of the member is gone.
fn entered<T>(entered: Result<Option<T>>) -> Result<T, VoteOutcome> {
    match entered {
        Ok(entered) => entered.ok_or(VoteOutcome::HeldElsewhere(None)),
        Err(error) => Err(VoteOutcome::Failed(error)),
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::redlock::Redlock;
    use crate::script::catalog::{KEEP, RENEW};
    use crate::testing::{Answer, Scripted, Sent, each, elsewhere, granted};

    const SECOND: Duration = Duration::from_secs(1);

    /// Three servers, whose answers depend on the address.
    fn clients(
        answer: impl Fn(&'static str, &Sent) -> Answer + Copy + Send + Sync + 'static,
    ) -> [Client; 3] {
        ["a:1", "b:2", "c:3"].map(|address| {
            let server = Scripted::at(address, move |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false => answer(address, sent),
            });
            Client::over(&server, SECOND * 30)
        })
    }

    fn redlock(clients: impl IntoIterator<Item = Client>) -> Redlock {
        let redlock = Redlock::builder(clients).persistent_nodes();
        redlock.build().unwrap()
    }

    /// Another Redlock of this process names the same servers in another order.
    #[tokio::test(start_paused = true)]
    async fn the_error_of_a_reentry_names_each_server_with_its_own_answer() {
        let clients = clients(|address, sent| match sent.words[1] == RENEW.sha() {
            true if address == "a:1" => Answer::Value(each(1, 1)),
            true => Answer::Error("ERR broken"),
            false => Answer::Value(granted()),
        });
        let owner = Owner::new();
        let lock = redlock(clients.clone()).lock("x").owner(&owner);
        let guard = lock.lock().await.unwrap();
        // The third server joins.
        tokio::time::sleep(SECOND).await;
        let others = redlock(clients.into_iter().rev()).lock("x");
        // It needs a renewal.
        let others = others.owner(&owner).lease(SECOND * 60);
        let error = others.lock().await.unwrap_err().to_string();
        let of = |address: &str| {
            let mut parts = error.split(", ");
            let part = parts.find(|part| part.contains(address));
            part.expect("each server").contains("broken")
        };
        let broken = ["a:1 ", "b:2 ", "c:3 "].map(of);
        assert_eq!(broken, [false, true, true], "{error}");
        drop(guard);
    }

    /// Another call had acquired the lock.
    #[tokio::test(start_paused = true)]
    async fn the_error_of_a_reentry_by_a_guard_names_that_call() {
        let clients = clients(|_, sent| match sent.words[1] == RENEW.sha() {
            true => Answer::Error("ERR broken"),
            false => Answer::Value(granted()),
        });
        let guard = redlock(clients).lock("x").lock().await.unwrap();
        // It needs a renewal.
        tokio::time::sleep(SECOND * 20).await;
        let error = guard.reenter().await.map(drop).unwrap_err();
        assert!(error.is_quorum(), "{error}");
        let named = error.to_string();
        assert!(named.starts_with("lock \"x\": reenter: "), "{named}");
    }

    /// Two Redlocks of this process have one server in common, and a lock of one name.
    #[tokio::test(start_paused = true)]
    async fn an_owner_does_not_enter_a_hold_on_other_servers() {
        let servers = ["a:1", "b:2", "c:3", "d:4", "e:5"].map(|address| {
            Scripted::at(address, move |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false if address == "a:1" && sent.at > Duration::ZERO => {
                    Answer::Value(elsewhere(30_000))
                }
                false => Answer::Value(granted()),
            })
        });
        let clients = servers
            .each_ref()
            .map(|server| Client::over(server, SECOND * 30));
        let owner = Owner::new();
        let lock = |at: [usize; 3]| {
            let lock = redlock(at.map(|at| clients[at].clone())).lock("x");
            lock.owner(&owner)
        };
        let first = lock([0, 1, 2]).lock().await.unwrap();
        let again = lock([2, 0, 1]).lock().await.unwrap();
        assert_eq!((first.hold_count(), again.hold_count()), (2, 2));
        tokio::time::sleep(SECOND).await;
        let other = lock([0, 3, 4]).lock().await.unwrap();
        assert_eq!(other.hold_count(), 1);
        for server in &servers[3..] {
            assert!(!server.sent().is_empty(), "it was asked for the lock");
        }
    }

    /// Three servers that grant all and renew all.
    fn granting() -> [Arc<Scripted>; 3] {
        ["a:1", "b:2", "c:3"].map(|address| {
            Scripted::at(address, |sent| match sent.words[1] == RENEW.sha() {
                true => Answer::Value(each(1, 1)),
                false => Answer::Value(granted()),
            })
        })
    }

    /// Another guard of its owner is released after that.
    #[tokio::test(start_paused = true)]
    async fn a_guard_that_is_forgotten_leaves_the_lock_to_its_lease() {
        let servers = granting();
        let clients = (servers.each_ref()).map(|server| Client::over(server, SECOND * 30));
        let lock = redlock(clients).lock("x").owner(&Owner::new());
        let [forgotten, released] = [lock.lock().await, lock.lock().await].map(Result::unwrap);
        forgotten.forget();
        tokio::time::sleep(SECOND * 60).await;
        assert!(!released.is_lost(), "it is renewed");
        released.release().await.unwrap();
        tokio::time::sleep(SECOND * 60).await;
        for server in &servers {
            assert!(!server.sent().iter().any(Sent::is_release));
        }
    }

    /// The other guard of its owner reaches its longest time before its release.
    #[tokio::test(start_paused = true)]
    async fn servers_keep_a_hold_for_a_guard_that_was_released_before_the_last() {
        let servers = granting();
        let clients = (servers.each_ref()).map(|server| Client::over(server, SECOND * 30));
        let lock = redlock(clients).lock("x").owner(&Owner::new());
        let kept = lock.clone().at_least(SECOND * 20).lock().await.unwrap();
        let longest = lock.max_hold(SECOND * 5).lock().await.unwrap();
        kept.release().await.unwrap();
        tokio::time::sleep(SECOND * 10).await;
        assert!(longest.is_lost());
        for server in &servers {
            let sent = server.sent();
            assert!(sent.iter().any(|sent| sent.words[1] == KEEP.sha()));
            assert!(!sent.iter().any(Sent::is_release), "{sent:?}");
        }
    }

    /// The first guard has a fixed lease. When it was acquired, the third server refused, because the lock was held
    /// there.
    #[tokio::test(start_paused = true)]
    async fn a_missing_server_joins_once_a_guard_has_the_hold_renewed() {
        let clients = clients(|address, sent| match sent.words[1] == RENEW.sha() {
            true => Answer::Value(each(1, 1)),
            false if address == "c:3" && sent.at < SECOND * 3 => Answer::Value(elsewhere(3_000)),
            false => Answer::Value(granted()),
        });
        let lock = redlock(clients).lock("x").owner(&Owner::new());
        let fixed = lock.clone().fixed_lease(SECOND * 20).lock().await.unwrap();
        tokio::time::sleep(SECOND * 5).await;
        assert_eq!(fixed.holder_ids().len(), 2);
        let renewed = lock.lock().await.unwrap();
        tokio::time::sleep(SECOND * 40).await;
        assert_eq!(renewed.holder_ids().len(), 3);
    }

    /// The servers were out of reach. Another guard keeps the hold, if they still have it.
    #[tokio::test(start_paused = true)]
    async fn a_release_in_doubt_waits_for_the_answer() {
        for is_there in [true, false] {
            let clients = clients(move |_, sent| match sent.words[1] == RENEW.sha() {
                true => Answer::Late(SECOND / 4, each(i64::from(is_there), sent.script_keys())),
                false => Answer::Value(granted()),
            });
            let lock = redlock(clients.clone()).lock("x").owner(&Owner::new());
            let [one, other] = [lock.lock().await, lock.lock().await].map(Result::unwrap);
            // The third server joins.
            tokio::time::sleep(SECOND).await;
            for client in &clients {
                client.core().locals.moved.notify();
            }
            tokio::time::sleep(SECOND / 8).await;
            let mut releasing = Box::pin(one.release());
            assert!((&mut releasing).now_or_never().is_none());
            match releasing.await {
                Ok(()) => assert!(is_there && !other.is_lost()),
                Err(error) => assert!(!is_there && error.is_not_held(), "{error}"),
            }
        }
    }

    /// The first member is not renewed, because the runtime of its client has ended. The third server is silent.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_nothing_renews_confirms_no_release() {
        let theirs = tokio::runtime::Builder::new_current_thread().build();
        let theirs = theirs.unwrap();
        let servers = ["a:1", "b:2", "c:3"].map(|address| {
            Scripted::at(address, move |sent| match address {
                "c:3" => Answer::Silence,
                _ if sent.is_release() => Answer::Value(Value::Int(1)),
                _ => Answer::Value(granted()),
            })
        });
        let client = |at: usize| Client::over(&servers[at], SECOND * 30);
        let first = {
            let _there = theirs.enter();
            client(0)
        };
        let lock = redlock([first, client(1), client(2)]).lock("x");
        let lock = lock.owner(&Owner::new());
        let [one, other] = [lock.lock().await, lock.lock().await].map(Result::unwrap);
        theirs.shutdown_background();
        let error = one.release().await.unwrap_err();
        assert!(error.is_closed(), "{error}");
        drop(other);
    }
}

//! One hold on one lock on several independent servers.
//!
//! Invariants: it is held while a majority of the servers is known to exclude all other holders, each by the local
//! deadline of its own hold. Once fewer do, it is lost and everything is released. A server that joins has granted
//! the lock before it counts, and the other servers are checked for a majority in between. So no moment with too few
//! servers, between a loss and a join, goes unnoticed.
//!
//! The hold has at most one share at a server, whose lease is enough for all guards. The server also keeps the hold for
//! as long as released or forgotten guards asked for, even if it joined after them.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use super::round::{QuorumGrant, QuorumRequest};
use crate::api::fencing::FencingToken;
use crate::api::holder::Owner;
use crate::api::loss::LostReason;
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Hint;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::{Hold, LossListener, Share, ShareLease, SharedHold};

#[derive(Debug)]
pub(super) struct QuorumHold {
    /// The request that was granted.
    pub(super) request: QuorumRequest,
    pub(super) owner: Owner,
    pub(super) local: Arc<QuorumLocal>,
    /// The holder id at the first server that granted it.
    pub(super) holder: Box<str>,
    state: Mutex<QuorumState>,
    /// Signalled when the hold is lost, when its last guard is gone, when a server drops out, and when a guard is
    /// added.
    pub(super) changed: Hint,
}

/// The guards of a hold, and its shares at the servers. Its methods neither wait nor ask a server. The caller drops the
/// shares that they return, which releases them.
#[derive(Debug, Default)]
struct QuorumState {
    /// Why the hold is lost, and the deadline that it had.
    lost: Option<(LostReason, Tick)>,
    token: Option<FencingToken>,
    /// How often a server has joined.
    joins: u64,
    /// The live guards. When the last one is removed, the hold is released, unless it was lost before.
    guards: Vec<Guard>,
    /// The time that released guards asked for: the servers keep the hold until then.
    kept_until: Tick,
    /// Whether a guard was forgotten: the servers keep the hold for the rest of its lease.
    is_forgotten: bool,
    /// By server.
    shares: Vec<Option<Share>>,
}

/// A live guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// The lease of its share.
    pub(super) lease: ShareLease,
    /// If the guard is released before this time, the hold is left at its servers until then.
    kept_until: Tick,
}

/// The queue of this process's tasks for a lock, and their hold.
#[derive(Debug)]
pub(super) struct QuorumLocal {
    /// One queue for each client, by address. Tasks wait in the first queue whose client is open.
    queues: Vec<(Arc<Core>, Arc<LocalLock>)>,
    /// The hold that was granted last. An older hold that was not released may be lost before any task has noticed.
    last: Mutex<Weak<QuorumHold>>,
}

impl QuorumLocal {
    pub(super) fn new(queues: Vec<(Arc<Core>, Arc<LocalLock>)>) -> Self {
        let last = Mutex::default();
        Self { queues, last }
    }

    /// Returns the queue for calls that begin now, and its client.
    pub(super) fn queue(&self) -> &(Arc<Core>, Arc<LocalLock>) {
        let open = |(core, _): &&(Arc<Core>, _)| core.ensure_open("lock").is_ok();
        self.queues.iter().find(open).unwrap_or(&self.queues[0])
    }

    /// Returns the hold, if there is one.
    pub(super) fn hold(&self) -> Option<Arc<QuorumHold>> {
        let last = self.last.lock().upgrade();
        last.filter(|hold| hold.is_held())
    }
}

impl QuorumHold {
    /// Makes the hold that a majority has granted, and its first guard. Has the other servers join.
    pub(super) fn granted(
        request: QuorumRequest,
        owner: Owner,
        local: &Arc<QuorumLocal>,
        grant: QuorumGrant,
    ) -> (Arc<Self>, Guard) {
        let guard = Guard::of(
            &grant.shares,
            request.quorum(),
            request.first().kept_until(),
        );
        let holder = (grant.shares.first()).map(|(_, share)| share.holder_id().into());
        let mut shares: Vec<_> = request.requests.iter().map(|_| None).collect();
        for (server, share) in grant.shares {
            shares[server] = Some(share.guarded(Tick::ZERO, Duration::ZERO));
        }
        let state = QuorumState {
            token: grant.token,
            guards: vec![guard],
            shares,
            ..QuorumState::default()
        };
        let this = Arc::new(Self {
            request,
            owner,
            local: Arc::clone(local),
            holder: holder.unwrap_or_default(),
            state: Mutex::new(state),
            changed: Hint::default(),
        });
        // Collected before a loss makes other servers missing, because those are asked when their members are dropped.
        let missing = (0..this.request.requests.len()).filter(|server| this.is_missing(*server));
        let missing: Vec<usize> = missing.collect();
        let weak: Weak<Self> = Arc::downgrade(&this);
        local.last.lock().clone_from(&weak);
        local.queue().1.wake_waiters_of(&this.owner);
        for (_, member) in this.members() {
            member.add_loss_listener(weak.clone());
        }
        // A member may have been lost before its listener was added.
        this.check_members();
        let mut pending: HashMap<_, _> = grant.pending.into_iter().collect();
        for server in missing {
            // A vote uses timers of the runtime of this call. If that is not the client's runtime, it may end first.
            let is_here = this.request.requests[server].core.scripts.is_here();
            let vote = pending.remove(&server).filter(|_| is_here);
            this.win(server, vote, None);
        }
        (this, guard)
    }

    pub(super) fn token(&self) -> Option<FencingToken> {
        self.state.lock().token
    }

    pub(super) fn hold_count(&self) -> usize {
        self.state.lock().guards.len()
    }

    /// The holds that count, by server.
    pub(super) fn members(&self) -> Vec<(usize, Arc<Hold>)> {
        self.state.lock().members()
    }

    /// Whether a guard has a lease that is renewed.
    pub(super) fn is_renewed(&self) -> bool {
        let lease = self.state.lock().lease();
        lease.is_some_and(|lease| lease.renewed.is_some())
    }

    /// Whether it is held, but without this server.
    pub(super) fn is_missing(&self, server: usize) -> bool {
        self.state.lock().is_missing(server)
    }

    /// Returns the time until which these members include a majority of all servers.
    fn end_of(&self, members: &[(usize, Arc<Hold>)]) -> Tick {
        let ends = members.iter().map(|(_, member)| member.deadline());
        let mut ends: Vec<Tick> = ends.collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        let end = ends.get(self.request.quorum() - 1);
        end.copied().unwrap_or(Tick::ZERO)
    }

    /// Returns why the hold is lost, if it is. The clock decides, whether or not a task has noticed the loss. The first
    /// call that sees the loss releases the shares of the members that are left.
    pub(super) fn loss(&self) -> Option<LostReason> {
        loop {
            let (members, joins) = {
                let state = self.state.lock();
                if !state.is_held() {
                    return state.lost.map(|(reason, _)| reason);
                }
                (state.members(), state.joins)
            };
            let held_until = self.end_of(&members);
            let (lost, live): (Vec<_>, Vec<_>) =
                (members.into_iter()).partition(|(_, member)| member.expire_if_due().is_some());
            if live.len() >= self.request.quorum() {
                return None;
            }
            // If several were lost together, any of their reasons will do. If they were lost one after another, the
            // reason of the last counts: all but the members of closed clients are dropped when they are lost.
            let reasons = (lost.iter()).filter_map(|(_, member)| member.expire_if_due());
            let reason = reasons.max_by_key(|reason| *reason != LostReason::Closed);
            let reason = reason.unwrap_or(LostReason::Expired);
            let mut state = self.state.lock();
            if !state.is_held() || state.joins != joins {
                continue;
            }
            state.lost = Some((reason, held_until));
            // The lost members stay until the guards are gone, because their servers may still keep others out while
            // the work under the guards goes on.
            let live = live.iter();
            let given_back = live.map(|(server, member)| state.take_share(*server, member));
            let given_back: Vec<_> = given_back.collect();
            drop(state);
            // Released before the waiters are notified, so that their requests follow the releases.
            drop(given_back);
            self.notify_ended();
        }
    }

    fn notify_ended(&self) {
        self.changed.notify();
        // Notifies all queues, because tasks may still wait in the queue of a closed client.
        let queues = self.local.queues.iter();
        queues.for_each(|(_, queue)| queue.wake_waiters());
    }

    /// Drops members that are lost, and has their servers asked again, unless the hold itself is lost.
    fn check_members(self: &Arc<Self>) {
        // Collected before the hold is checked. A member that is lost later is not dropped here, so that `loss` finds
        // its reason.
        let mut lost = self.members();
        // The member of a closed client stays with the guard, and ends with its lease.
        lost.retain(|(_, member)| {
            let why = member.expire_if_due();
            why.is_some_and(|why| why != LostReason::Closed)
        });
        if self.loss().is_some() {
            return;
        }
        for (server, member) in lost {
            self.drop_member(server, &member);
        }
    }

    /// Drops a member, so that it no longer counts, and has its server asked again.
    fn drop_member(self: &Arc<Self>, server: usize, member: &Arc<Hold>) {
        let Some(dropped) = self.state.lock().take_share(server, member) else {
            return;
        };
        drop(dropped);
        // The deadline of the hold may have depended on this member.
        self.changed.notify();
        if member.expire_if_due() == Some(LostReason::Revoked) {
            // The server has lost its data, or an operator took the hold away. The other servers know which.
            self.members().iter().for_each(|(_, other)| other.verify());
        }
        // Pauses first, because a forced release does not reach all servers at once.
        self.win(server, None, Some(self.request.vote_timeout));
    }

    /// Adds a server that has granted the lock, and whose counter of fencing tokens was raised to `raised`. Returns
    /// `false` if the hold is over, the server is a member already, or `raised` is not the hold's token.
    pub(super) fn join(
        self: &Arc<Self>,
        server: usize,
        share: Share,
        raised: Option<FencingToken>,
    ) -> bool {
        let weak: Weak<Self> = Arc::downgrade(self);
        share.hold().add_loss_listener(weak);
        // After the server's grant and before it counts, checks that the other members were enough until now.
        if self.loss().is_some() {
            return false;
        }
        let share = share.guarded(Tick::ZERO, Duration::ZERO);
        {
            let mut state = self.state.lock();
            if !state.is_missing(server) || state.token.is_some_and(|token| raised != Some(token)) {
                return false;
            }
            state.shares[server] = Some(share);
            state.set_terms();
            state.joins += 1;
        }
        // The new member may have been lost before it counted.
        self.check_members();
        true
    }

    /// Adds a guard with the lease of these new shares of the members. `None` if the hold is lost or over.
    pub(super) fn add_guard(
        self: &Arc<Self>,
        shares: Vec<(usize, Share)>,
        kept_until: Tick,
    ) -> Option<Guard> {
        if self.loss().is_some() {
            return None;
        }
        let guard = Guard::of(&shares, self.request.quorum(), kept_until);
        let mut state = self.state.lock();
        if !state.is_held() {
            return None;
        }
        state.guards.push(guard);
        state.set_terms();
        drop(state);
        // Dropped only now, when the shares that the members had have this lease too.
        drop(shares);
        // The hold may be renewed now, which lets missing servers join.
        self.changed.notify();
        Some(guard)
    }

    /// Removes a guard, which was released or forgotten. Returns the shares if it was the last.
    pub(super) fn remove_guard(&self, guard: Guard, is_forgotten: bool) -> Vec<Share> {
        // Marks the hold lost if the deadlines of too many members have passed.
        self.loss();
        let mut state = self.state.lock();
        if let Some(at) = state.guards.iter().position(|other| *other == guard) {
            state.guards.swap_remove(at);
        }
        if state.lost.is_none() {
            state.kept_until = state.kept_until.max(guard.kept_until);
        }
        state.is_forgotten |= is_forgotten;
        state.set_terms();
        if !state.guards.is_empty() {
            return Vec::new();
        }
        state.shares.iter_mut().filter_map(Option::take).collect()
    }

    /// Notes that the releases of a removed guard's shares were sent.
    pub(super) fn releases_sent(&self) {
        let state = self.state.lock();
        let is_released = state.lost.is_none() && state.guards.is_empty();
        drop(state);
        if is_released {
            self.notify_ended();
        }
    }

    /// Gives the hold a token that the counters of these servers were raised to. Other members no longer count. Returns
    /// `false` if these servers are too few. A hold that has a token keeps it.
    pub(super) fn fence<T>(self: &Arc<Self>, token: FencingToken, servers: &[(usize, T)]) -> bool {
        let others = {
            let mut state = self.state.lock();
            if state.token.is_some() {
                // Another task was faster, and a hold has one token.
                return true;
            }
            let members = state.members().into_iter();
            let (fenced, others): (Vec<_>, Vec<_>) =
                members.partition(|(server, _)| servers.iter().any(|(at, _)| at == server));
            if fenced.len() < self.request.quorum() {
                return false;
            }
            state.token = Some(token);
            others
        };
        for (server, member) in others {
            self.drop_member(server, &member);
        }
        true
    }
}

impl LossListener for QuorumHold {
    fn member_lost(self: Arc<Self>) {
        self.check_members();
        // A member of a closed client is not dropped, but the deadline of the hold may have depended on it.
        self.changed.notify();
    }
}

impl SharedHold for QuorumHold {
    fn clock(&self) -> Clock {
        self.request.clock()
    }

    fn is_held(&self) -> bool {
        self.loss().is_none() && self.state.lock().is_held()
    }

    /// Returns the time until which a majority holds the lock, or held it if it is lost.
    fn deadline(&self) -> Tick {
        let lost = self.state.lock().lost;
        // Lost members need no filter, because their deadlines have passed.
        let held_until = || self.end_of(&self.members());
        lost.map_or_else(held_until, |(_, held_until)| held_until)
    }

    fn changed(&self) -> &Hint {
        &self.changed
    }

    /// Each member reads the clock.
    fn loss_at(&self, _now: Tick) -> Option<LostReason> {
        self.loss()
    }
}

impl Guard {
    /// Makes a guard with these shares. A majority of them last at least as long as the guard's lease.
    fn of(shares: &[(usize, Share)], quorum: usize, kept_until: Tick) -> Self {
        let mut leases: Vec<ShareLease> = shares.iter().map(|(_, share)| share.lease()).collect();
        leases.sort_unstable_by_key(|lease| std::cmp::Reverse(lease.end));
        let lease = leases[quorum - 1];
        Self { lease, kept_until }
    }
}

impl QuorumState {
    fn is_held(&self) -> bool {
        self.lost.is_none() && !self.guards.is_empty()
    }

    /// The holds that count, by server.
    fn members(&self) -> Vec<(usize, Arc<Hold>)> {
        let servers = self.shares.iter().enumerate();
        servers
            .filter_map(|(server, share)| Some((server, Arc::clone(share.as_ref()?.hold()))))
            .collect()
    }

    /// Whether it is held, but without this server.
    fn is_missing(&self, server: usize) -> bool {
        self.is_held() && self.shares[server].is_none()
    }

    /// Takes out the share at a server, if it is a share of this hold.
    fn take_share(&mut self, server: usize, hold: &Arc<Hold>) -> Option<Share> {
        self.shares[server].take_if(|share| Arc::ptr_eq(share.hold(), hold))
    }

    /// Returns the lease that is enough for all guards. `None` without a guard.
    fn lease(&self) -> Option<ShareLease> {
        let leases = self.guards.iter().map(|guard| guard.lease);
        leases.reduce(|one, other| ShareLease {
            renewed: one.renewed.max(other.renewed),
            end: one.end.max(other.end),
        })
    }

    /// Gives all shares the lease that the guards need. Also has them keep the hold for as long as guards that are gone
    /// asked.
    fn set_terms(&mut self) {
        let lease = self.lease();
        for share in self.shares.iter_mut().flatten() {
            share.ask_to_keep(self.kept_until, self.is_forgotten);
            if let Some(lease) = lease.filter(|lease| *lease != share.lease()) {
                share.set_lease(lease);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Barrier;
    use std::task::{Context, Wake, Waker};

    use redis::Value;
    use tokio::runtime;

    use super::*;
    use crate::api::handle::Handle;
    use crate::api::options::LeasePolicy;
    use crate::client::Client;
    use crate::engine::acquire::{LockRequest, attempt_once};
    use crate::engine::counts::Mode;
    use crate::redlock::Redlock;
    use crate::redlock::servers::Servers;
    use crate::reentrant::PROTOCOL;
    use crate::script::catalog::RENEW;
    use crate::testing::{Answer, Scripted, Sent, each, granted};
    use crate::watchdog::Leased;

    const MS: Duration = Duration::from_millis(1);

    /// A point where two threads wait for each other.
    #[derive(Debug)]
    struct Meeting(Barrier);

    /// The thread that lost the second member waits before it notifies the hold.
    impl LossListener for Meeting {
        fn member_lost(self: Arc<Self>) {
            self.0.wait();
            self.0.wait();
        }
    }

    /// The thread that drops the first member goes on when the second is lost.
    impl Wake for Meeting {
        fn wake(self: Arc<Self>) {
            self.0.wait();
            self.0.wait();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_hold_whose_members_are_lost_on_two_threads_names_their_reason() {
        let server = Scripted::new(|sent| match sent.is_release() {
            true => Answer::Value(Value::Int(1)),
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let requests = ["a", "b", "c"].map(|name| {
            let handle = Handle::new(&client, name, &PROTOCOL, Mode::Exclusive);
            handle.request("lock").unwrap()
        });
        let servers = Servers::of(vec![client.clone()], Duration::ZERO, true).unwrap();
        let request = QuorumRequest {
            requests: requests.into(),
            vote_timeout: MS * 1_000,
            servers: Arc::new(servers),
        };
        let mut shares = Vec::new();
        for (at, each) in request.requests.iter().enumerate() {
            let share = attempt_once(each.clone(), MS * 1_000).await.unwrap();
            shares.push((at, share.expect("an answer").expect("a grant")));
        }
        let meeting = Arc::new(Meeting(Barrier::new(2)));
        let listener: Arc<dyn LossListener> = Arc::clone(&meeting) as _;
        let (_, second) = &shares[1];
        let second = Arc::clone(second.hold());
        second.add_loss_listener(Arc::downgrade(&listener));
        let grant = QuorumGrant {
            shares,
            token: None,
            pending: Vec::new(),
        };
        let local = Arc::new(local_of(request.first()));
        let (hold, guard) = QuorumHold::granted(request, Owner::new(), &local, grant);
        let first = Arc::clone(&hold.members()[0].1);
        let runtime = runtime::Handle::current();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let _here = runtime.enter();
                meeting.0.wait();
                second.lose(LostReason::Revoked);
            });
            let mut dropped = pin!(hold.changed.changed_since(hold.changed.mark()));
            let waker = Waker::from(Arc::clone(&meeting));
            let polled = dropped.as_mut().poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending());
            first.lose(LostReason::Revoked);
            meeting.0.wait();
        });
        assert_eq!(hold.loss(), Some(LostReason::Revoked));
        drop(hold.remove_guard(guard, false));
    }

    fn local_of(request: &LockRequest) -> QuorumLocal {
        let LockRequest { core, local, .. } = request;
        QuorumLocal::new(vec![(Arc::clone(core), Arc::clone(local))])
    }

    /// A hold that all three servers have granted, and its guard.
    async fn granted_by(
        clients: &[Client; 3],
        requests: Arc<[LockRequest]>,
    ) -> (Arc<QuorumHold>, Guard) {
        let mut shares = Vec::new();
        for (at, each) in requests.iter().enumerate() {
            let share = attempt_once(each.clone(), MS * 1_000).await.unwrap();
            shares.push((at, share.expect("an answer").expect("a grant")));
        }
        let local = Arc::new(local_of(&requests[0]));
        let servers = Servers::of(clients.to_vec(), Duration::ZERO, true).unwrap();
        let request = QuorumRequest {
            requests,
            vote_timeout: MS * 1_000,
            servers: Arc::new(servers),
        };
        let grant = QuorumGrant {
            shares,
            token: None,
            pending: Vec::new(),
        };
        QuorumHold::granted(request, Owner::new(), &local, grant)
    }

    /// The client of one server was shut down earlier, and the others were a majority.
    #[tokio::test(start_paused = true)]
    async fn a_client_that_was_shut_down_earlier_is_not_why_a_hold_is_lost() {
        let client = |address| {
            let server = Scripted::at(address, |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false => Answer::Value(granted()),
            });
            Client::over(&server, Duration::from_secs(30))
        };
        let clients = ["a:1", "b:2", "c:3"].map(client);
        let requests = clients.iter().map(|client| {
            let handle = Handle::new(client, "x", &PROTOCOL, Mode::Exclusive);
            handle.request("lock").unwrap()
        });
        let (hold, guard) = granted_by(&clients, requests.collect()).await;
        let [_, _, closed] = clients;
        closed.shutdown().await.unwrap();
        assert_eq!(hold.loss(), None);
        hold.members()[0].1.lose(LostReason::Revoked);
        assert_eq!(hold.loss(), Some(LostReason::Revoked));
        drop(hold.remove_guard(guard, false));
    }

    /// One of the two members left ends before the member whose client was shut down. Its own client reports nothing,
    /// because its runtime stands still.
    #[tokio::test(start_paused = true)]
    async fn a_hold_is_lost_in_time_after_a_client_was_shut_down() {
        const SECOND: Duration = Duration::from_secs(1);
        let stalled = runtime::Builder::new_current_thread().build().unwrap();
        let servers = ["a:1", "b:2", "c:3"].map(|address| {
            Scripted::at(address, |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false => Answer::Value(granted()),
            })
        });
        let [first, second, third] = &servers;
        let first = {
            let _elsewhere = stalled.enter();
            Client::over(first, SECOND * 30)
        };
        let clients = [
            first,
            Client::over(second, SECOND * 30),
            Client::over(third, SECOND * 30),
        ];
        let requests = clients.iter().zip([10, 20, 30]).map(|(client, secs)| {
            let mut handle = Handle::new(client, "x", &PROTOCOL, Mode::Exclusive);
            handle.options_mut().policy = Some(LeasePolicy::Fixed(SECOND * secs));
            handle.request("lock").unwrap()
        });
        let (hold, guard) = granted_by(&clients, requests.collect()).await;
        let began = tokio::time::Instant::now();
        let [first, _, third] = clients;
        let shut_down = async {
            tokio::time::sleep(SECOND).await;
            third.shutdown().await.unwrap();
        };
        let (reason, ()) = tokio::join!(hold.lost(guard.lease), shut_down);
        assert_eq!(reason, LostReason::Expired);
        assert!(began.elapsed() <= SECOND * 10, "{:?}", began.elapsed());
        drop(hold.remove_guard(guard, false));
        drop((hold, first));
        stalled.shutdown_background();
    }

    /// A vote under way has timers of the runtime on which the call was made, and a timer of a runtime that has ended
    /// panics.
    #[tokio::test]
    async fn a_call_on_a_runtime_that_ends_leaves_no_vote_to_a_client() {
        const SECOND: Duration = Duration::from_secs(1);
        let clients = ["a:1", "b:2", "c:3"].map(|address| {
            let server = Scripted::at(address, move |sent| match address {
                "c:3" => Answer::Silence,
                _ if sent.is_release() => Answer::Value(Value::Int(1)),
                _ => Answer::Value(granted()),
            });
            Client::over(&server, SECOND * 30)
        });
        let redlock = Redlock::builder(clients.clone()).persistent_nodes();
        let redlock = redlock.build().unwrap();
        let lock = redlock.lock("x");
        let locked = tokio::task::spawn_blocking(move || {
            let elsewhere = runtime::Builder::new_current_thread().enable_time().build();
            elsewhere.unwrap().block_on(lock.lock())
        });
        let guard = locked.await.unwrap().unwrap();
        let [_, _, silent] = clients;
        let unanswered = silent.lock("y").try_lock().await.unwrap_err();
        assert!(unanswered.is_io(), "{unanswered}");
        assert!(!silent.core().watchdog.is_gone());
        guard.release().await.unwrap();
    }

    /// The reason is asked for only after the hold is lost as well.
    #[tokio::test(start_paused = true)]
    async fn a_guard_that_was_held_for_as_long_as_it_may_keeps_that_reason() {
        const SECOND: Duration = Duration::from_secs(1);
        let server = Scripted::new(|sent| match sent.words[1] == RENEW.sha() {
            true if sent.at < SECOND * 15 => Answer::Value(each(1, 1)),
            true => Answer::Silence,
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, SECOND * 30);
        let redlock = Redlock::builder([client]).persistent_nodes();
        let lock = redlock.build().unwrap().lock("x").owner(&Owner::new());
        let longest = lock.clone().max_hold(SECOND * 5).lock().await.unwrap();
        let other = lock.lock().await.unwrap();
        tokio::time::sleep(SECOND * 90).await;
        let reasons = [longest.loss(), other.loss()].map(|loss| loss.reason());
        let expected = [LostReason::MaxHold, LostReason::Expired];
        assert_eq!(reasons, expected.map(Some));
    }

    /// Three servers that grant everything, and a hold of one client of each.
    async fn of_three() -> ([Arc<Scripted>; 3], [Client; 3], (Arc<QuorumHold>, Guard)) {
        let servers = ["a:1", "b:2", "c:3"].map(|address| {
            Scripted::at(address, |sent| match sent.words[1] == RENEW.sha() {
                true => Answer::Value(each(1, sent.script_keys())),
                false if sent.is_release() => Answer::Value(Value::Int(1)),
                false => Answer::Value(granted()),
            })
        });
        let clients = servers
            .each_ref()
            .map(|server| Client::over(server, Duration::from_secs(30)));
        let held = granted_by(&clients, clients.iter().map(asking).collect()).await;
        (servers, clients, held)
    }

    fn asking(client: &Client) -> LockRequest {
        let handle = Handle::new(client, "x", &PROTOCOL, Mode::Exclusive);
        handle.request("lock").unwrap()
    }

    /// The next holder may get its token from this server and one that has forgotten this hold.
    #[tokio::test(start_paused = true)]
    async fn a_server_whose_counter_was_not_raised_does_not_count() {
        let (_servers, clients, (hold, guard)) = of_three().await;
        let members = || {
            let members = hold.members();
            members
                .iter()
                .map(|(server, _)| *server)
                .collect::<Vec<_>>()
        };
        let token = FencingToken::from(7);
        assert!(!hold.fence(token, &[(0, ())]), "no majority");
        assert_eq!(members(), [0, 1, 2]);
        assert!(hold.fence(token, &[(0, ()), (1, ())]));
        assert_eq!(members(), [0, 1]);
        for (raised, joins) in [(None, false), (Some(6), false), (Some(7), true)] {
            let share = attempt_once(asking(&clients[2]), MS * 1_000).await.unwrap();
            let share = share.expect("an answer").expect("a grant");
            let raised = raised.map(FencingToken::from);
            assert_eq!(hold.join(2, share, raised), joins, "{raised:?}");
        }
        assert_eq!(members(), [0, 1, 2]);
        drop(hold.remove_guard(guard, false));
    }

    /// The operator may have taken it away everywhere, or the other servers have lost their data too.
    #[tokio::test(start_paused = true)]
    async fn a_member_that_was_taken_away_has_the_others_verified() {
        for (reason, verified) in [(LostReason::Revoked, 1), (LostReason::Expired, 0)] {
            let (servers, _clients, (hold, guard)) = of_three().await;
            tokio::time::sleep(MS).await;
            hold.members()[0].1.lose(reason);
            tokio::time::sleep(MS * 100).await;
            assert_eq!(hold.loss(), None);
            let is_renewal = |sent: &&Sent| sent.words[1] == RENEW.sha();
            for server in &servers[1..] {
                let sent = server.sent();
                let renewals = sent.iter().filter(is_renewal).count();
                assert_eq!(renewals, verified, "{reason:?}: {sent:?}");
            }
            drop(hold.remove_guard(guard, false));
        }
    }
}

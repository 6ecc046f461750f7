//! Holds on one lock on several independent servers, of which a majority counts.
//!
//! Invariants: it is held while a majority of the servers is known to keep everybody else out, each
//! by the local deadline of its own hold; once fewer do, it is lost and everything is given back. A
//! server that joins was granted before it is counted, and whether the rest was enough until then is
//! looked at after that: so there is no moment between a loss and a join in which too few counted and
//! nobody noticed. Each server has one hold at most, and each guard one share of that at most.

mod share;

use std::fmt::Debug;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use super::local::LocalLock;
use super::{Group, Hold, Share, Stay};
use crate::clock::{Clock, Tick};
use crate::fencing::FencingToken;
use crate::hint::Hint;
use crate::lost::LostReason;
use crate::owner::Owner;

pub(crate) use share::QuorumShare;

#[derive(Debug)]
pub(crate) struct QuorumHold {
    config: QuorumConfig,
    /// The holder id at the first server that granted it.
    holder: Box<str>,
    state: Mutex<State>,
    /// Given when it is lost or over.
    changed: Arc<Hint>,
}

/// What does not change while it lasts.
#[derive(Debug)]
pub(crate) struct QuorumConfig {
    pub(crate) name: Box<str>,
    pub(crate) owner: Owner,
    /// So many servers are enough.
    pub(crate) quorum: usize,
    pub(crate) clock: Clock,
    /// Where the tasks of this client that want the lock wait for each other.
    pub(crate) local: Arc<LocalLock>,
    pub(crate) rejoin: Box<dyn Rejoin>,
}

/// Who gets a server back that was lost.
pub(crate) trait Rejoin: Debug + Send + Sync {
    /// Called once for each server that has no part any more, without any lock.
    fn rejoin(&self, hold: &Arc<QuorumHold>, server: usize);
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Guards alive, by number, and on which terms.
    guards: Vec<(u64, Stay)>,
    /// The number that the next one gets.
    next_guard: u64,
    /// One for each server: shares of one hold, or none, each for a guard.
    members: Vec<Vec<(u64, Share)>>,
    /// How often a server has joined.
    joins: u64,
    token: Option<FencingToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// No guard is left.
    Released,
    Lost(LostReason),
}

impl State {
    fn holds(&self) -> Vec<(usize, Arc<Hold>)> {
        let members = self.members.iter().enumerate();
        members
            .filter_map(|(server, shares)| Some((server, Arc::clone(shares.first()?.1.hold()))))
            .collect()
    }

    /// Takes out the shares at a server, if they are of this hold.
    fn take_shares(&mut self, server: usize, hold: &Arc<Hold>) -> Vec<Share> {
        match self.has_member(server, hold) {
            true => self.members[server]
                .drain(..)
                .map(|(_, share)| share)
                .collect(),
            false => Vec::new(),
        }
    }

    fn has_member(&self, server: usize, hold: &Arc<Hold>) -> bool {
        let first = self.members[server].first();
        first.is_some_and(|(_, share)| Arc::ptr_eq(share.hold(), hold))
    }

    /// One more guard: its number.
    fn add_guard(&mut self, stay: Stay) -> u64 {
        let guard = self.next_guard;
        self.next_guard += 1;
        self.guards.push((guard, stay));
        guard
    }

    /// One guard less: the shares that it had, and that no other takes over.
    fn remove_guard(&mut self, guard: u64) -> Vec<Share> {
        self.guards.retain(|(other, _)| *other != guard);
        let mut shares = Vec::new();
        for server in &mut self.members {
            let Some(at) = server.iter().position(|(other, _)| *other == guard) else {
                continue;
            };
            let is_missing = |other: u64| server.iter().all(|(has, _)| *has != other);
            match self
                .guards
                .iter()
                .copied()
                .find(|(other, _)| is_missing(*other))
            {
                Some((heir, stay)) => {
                    server[at].0 = heir;
                    server[at].1.set_stay(stay);
                }
                None => shares.push(server.swap_remove(at).1),
            }
        }
        shares
    }
}

impl QuorumHold {
    /// Of so many `servers`, with the shares that some of them have granted; for one guard.
    pub(crate) fn of(
        config: QuorumConfig,
        servers: usize,
        shares: Vec<(usize, Share)>,
        token: Option<FencingToken>,
    ) -> QuorumShare {
        let stay = stay_of(&shares, config.quorum);
        let mut members: Vec<Vec<(u64, Share)>> = Vec::new();
        members.resize_with(servers, Vec::new);
        let mut holds = Vec::with_capacity(shares.len());
        for (server, share) in shares {
            let share = share.guarded();
            holds.push(Arc::clone(share.hold()));
            members[server].push((0, share));
        }
        let holder = holds.first().map(|hold| hold.holder_id().into());
        let quorum = Arc::new(Self {
            config,
            holder: holder.unwrap_or_default(),
            state: Mutex::new(State {
                phase: Phase::Held,
                guards: vec![(0, stay)],
                next_guard: 1,
                members,
                joins: 0,
                token,
            }),
            changed: Arc::default(),
        });
        for hold in holds {
            hold.enter_group(quorum.as_group());
        }
        let local = &quorum.config.local;
        local.quorum_holds.lock().push(Arc::downgrade(&quorum));
        local.entered.give();
        // One may have been lost before it knew of the others.
        quorum.check_members();
        QuorumShare::of(quorum, 0, stay)
    }

    fn as_group(self: &Arc<Self>) -> Weak<dyn Group> {
        let group: Arc<dyn Group> = Arc::clone(self) as _;
        Arc::downgrade(&group)
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.config.owner
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state.lock().token
    }

    /// Given when it is lost or over.
    pub(crate) fn changed(&self) -> Arc<Hint> {
        Arc::clone(&self.changed)
    }

    /// The holds that count, by their servers.
    pub(crate) fn holds(&self) -> Vec<(usize, Arc<Hold>)> {
        self.state.lock().holds()
    }

    /// Whether a guard wants it for longer than a fixed lease.
    pub(crate) fn is_renewed(&self) -> bool {
        let state = self.state.lock();
        state.guards.iter().any(|(_, stay)| stay.is_renewed())
    }

    /// Whether it is held, and this server has no part in it.
    pub(crate) fn is_missing(&self, server: usize) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Held && state.members[server].is_empty()
    }

    /// Whether a majority holds of which nobody doubts it.
    pub(crate) fn is_certain(&self) -> bool {
        let holds = self.holds();
        let certain = holds.iter().filter(|(_, hold)| hold.is_certain());
        certain.count() >= self.config.quorum
    }

    /// The end of what is certain: so long at least a majority holds.
    fn deadline(&self) -> Tick {
        let holds = self.holds();
        let held = holds.iter().filter(|(_, hold)| hold.loss().is_none());
        let mut ends: Vec<Tick> = held.map(|(_, hold)| hold.deadline()).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.config.quorum - 1)
            .copied()
            .unwrap_or(Tick::ZERO)
    }

    /// Why it is lost, if it is. The clock decides, whatever anybody has had time to notice.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        loop {
            let (holds, joins) = {
                let state = self.state.lock();
                match state.phase {
                    Phase::Held => (state.holds(), state.joins),
                    Phase::Released => return None,
                    Phase::Lost(reason) => return Some(reason),
                }
            };
            // Of those that are lost at once, any one; of one after the other, this is the last.
            let mut reason = LostReason::Expired;
            let mut live = Vec::with_capacity(holds.len());
            for (server, hold) in holds {
                match hold.loss() {
                    Some(why) => reason = why,
                    None => live.push((server, hold)),
                }
            }
            if live.len() >= self.config.quorum {
                return None;
            }
            self.lose(reason, &live, joins);
        }
    }

    /// Unless a server has joined since. Those that are `live` are given back; what other servers may
    /// still have is left until the guard is gone, and with it the work under it.
    fn lose(&self, reason: LostReason, live: &[(usize, Arc<Hold>)], joins: u64) {
        let given_back: Vec<_> = {
            let mut state = self.state.lock();
            if state.phase != Phase::Held || state.joins != joins {
                return;
            }
            state.phase = Phase::Lost(reason);
            let live = live.iter();
            live.map(|(server, hold)| state.take_shares(*server, hold))
                .collect()
        };
        // First: who asks from here on asks behind that.
        drop(given_back);
        self.notify_ended();
    }

    /// Whether it is neither lost nor over.
    pub(crate) fn is_held(&self) -> bool {
        self.loss().is_none() && self.state.lock().phase == Phase::Held
    }

    /// Tells everybody that it is lost or over.
    fn notify_ended(&self) {
        self.changed.give();
        let this: *const Self = self;
        let mut quorum_holds = self.config.local.quorum_holds.lock();
        quorum_holds.retain(|quorum| !std::ptr::eq(quorum.as_ptr(), this));
        drop(quorum_holds);
        self.config.local.look_again();
    }

    /// Lets go of what is lost, and has it mended unless too much is.
    fn check_members(self: &Arc<Self>) {
        if self.loss().is_some() {
            return;
        }
        for (server, hold) in self.holds() {
            // Of a client that is closed it stays with the guard, and is left to its lease.
            if hold.loss().is_some_and(|why| why != LostReason::Closed) {
                self.remove_member(server, &hold);
            }
        }
    }

    /// A hold does not count any more.
    fn remove_member(self: &Arc<Self>, server: usize, hold: &Arc<Hold>) {
        let dropped = self.state.lock().take_shares(server, hold);
        if dropped.is_empty() {
            return;
        }
        drop(dropped);
        // Its deadline may have been one of those that count.
        self.changed.give();
        if hold.loss() == Some(LostReason::Revoked) {
            // The server has forgotten it, or it was ended by force: the others know.
            self.holds().iter().for_each(|(_, other)| other.ask_after());
        }
        if self.is_missing(server) {
            self.config.rejoin.rejoin(self, server);
        }
    }

    /// One more server has granted the lock, and its counter of fencing tokens was raised to
    /// `raised`. False if that is not wanted any more, or the server has a part already.
    pub(crate) fn join(
        self: &Arc<Self>,
        server: usize,
        mut share: Share,
        raised: Option<FencingToken>,
    ) -> bool {
        share.hold().enter_group(self.as_group());
        // After it was granted, before it counts: the others were enough up to now.
        if self.loss().is_some() {
            return false;
        }
        let refused = {
            let mut state = self.state.lock();
            let fits = state.phase == Phase::Held
                && state.members[server].is_empty()
                && state.token.is_none_or(|token| raised == Some(token));
            // For the guard that stays longest, which need not be the one who asked for it.
            let longest = state
                .guards
                .iter()
                .copied()
                .max_by_key(|(_, stay)| stay.end());
            match longest.filter(|_| fits) {
                Some((guard, stay)) => {
                    if stay.is_renewed() || share.stay().is_renewed() {
                        share.set_stay(stay);
                    }
                    state.members[server].push((guard, share.guarded()));
                    state.joins += 1;
                    None
                }
                None => Some(share),
            }
        };
        if let Some(share) = refused {
            drop(share);
            return false;
        }
        // It may have been lost before it counted.
        self.check_members();
        true
    }

    /// One more guard, with shares of the holds that counted. `None`: it is lost or over.
    pub(crate) fn add_guard(self: &Arc<Self>, shares: Vec<(usize, Share)>) -> Option<QuorumShare> {
        if self.loss().is_some() {
            return None;
        }
        let stay = stay_of(&shares, self.config.quorum);
        let mut unfit = Vec::new();
        let guard = {
            let mut state = self.state.lock();
            let is_held = state.phase == Phase::Held;
            let guard = is_held.then(|| state.add_guard(stay));
            for (server, share) in shares {
                match guard.filter(|_| state.has_member(server, share.hold())) {
                    Some(guard) => state.members[server].push((guard, share)),
                    None => unfit.push(share),
                }
            }
            guard
        };
        drop(unfit);
        guard.map(|guard| QuorumShare::of(Arc::clone(self), guard, stay))
    }

    /// Gives it a token that these servers have: only they count from here on. False if
    /// they are too few, or it has another.
    pub(crate) fn fence(self: &Arc<Self>, token: FencingToken, servers: &[usize]) -> bool {
        let others = {
            let mut state = self.state.lock();
            let mut holds = state.holds();
            holds.retain(|(server, _)| !servers.contains(server));
            let enough = state.holds().len() - holds.len() >= self.config.quorum;
            if state.token.is_some() {
                // Somebody else was faster; one hold has one token.
                return true;
            }
            if !enough {
                return false;
            }
            state.token = Some(token);
            holds
        };
        for (server, hold) in others {
            self.remove_member(server, &hold);
        }
        true
    }
}

/// On which terms a guard has a majority of these shares.
fn stay_of(shares: &[(usize, Share)], quorum: usize) -> Stay {
    let mut stays: Vec<Stay> = shares.iter().map(|(_, share)| share.stay()).collect();
    stays.sort_unstable_by_key(|stay| std::cmp::Reverse(stay.end()));
    stays
        .get(quorum - 1)
        .copied()
        .unwrap_or(Stay::Until(Tick::ZERO))
}

impl Group for QuorumHold {
    fn member_lost(self: Arc<Self>, _reason: LostReason) {
        self.check_members();
    }
}

impl LocalLock {
    /// The live quorum of `owner`.
    pub(crate) fn quorum_hold_of(&self, owner: &Owner) -> Option<Arc<QuorumHold>> {
        let quorum_holds = self.live_quorum_holds().into_iter();
        quorum_holds
            .into_iter()
            .find(|quorum| quorum.owner() == owner)
    }

    /// The latest local deadline of a quorum of this client.
    pub(crate) fn quorum_held_until(&self) -> Option<Tick> {
        let quorum_holds = self.live_quorum_holds();
        quorum_holds.iter().map(|quorum| quorum.deadline()).max()
    }

    fn live_quorum_holds(&self) -> Vec<Arc<QuorumHold>> {
        let quorum_holds: Vec<_> = {
            let quorum_holds = self.quorum_holds.lock();
            quorum_holds.iter().filter_map(Weak::upgrade).collect()
        };
        let live = quorum_holds.into_iter().filter(|quorum| quorum.is_held());
        live.collect()
    }
}

//! Holds on one lock on several independent servers, of which a majority counts.
//!
//! Invariants: it is held while a majority of the servers is known to keep everybody else out, each
//! by the local deadline of its own hold; once fewer do, it is lost and everything is given back. A
//! server that joins was granted before it is counted, and whether the rest was enough until then is
//! looked at after that: so there is no moment between a loss and a join in which too few counted and
//! nobody noticed. Each place has one hold at most, and each guard one share of that at most.

mod seat;

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

pub(crate) use seat::Seat;

#[derive(Debug)]
pub(crate) struct Quorum {
    terms: Terms,
    /// The holder id at the first server that granted it.
    holder: Box<str>,
    state: Mutex<State>,
    /// Given when it is lost or over.
    changed: Arc<Hint>,
}

/// What does not change while it lasts.
#[derive(Debug)]
pub(crate) struct Terms {
    pub(crate) name: Box<str>,
    pub(crate) owner: Owner,
    /// So many servers are enough.
    pub(crate) need: usize,
    pub(crate) clock: Clock,
    /// Where the tasks of this client that want the lock wait for each other.
    pub(crate) local: Arc<LocalLock>,
    pub(crate) mender: Box<dyn Mender>,
}

/// Who gets a server back that was lost.
pub(crate) trait Mender: Debug + Send + Sync {
    /// Called once for each place that has become empty, without any lock.
    fn mend(&self, quorum: &Arc<Quorum>, place: usize);
}

#[derive(Debug)]
struct State {
    phase: Phase,
    /// Guards alive, by number, and on which terms.
    seats: Vec<(u64, Stay)>,
    /// The number that the next one gets.
    next_seat: u64,
    /// One for each server: shares of one hold, or none, each for a seat.
    places: Vec<Vec<(u64, Share)>>,
    /// How often a server has joined.
    joins: u64,
    token: Option<FencingToken>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Held,
    /// No guard is left.
    Over,
    Lost(LostReason),
}

impl State {
    fn holds(&self) -> Vec<(usize, Arc<Hold>)> {
        let places = self.places.iter().enumerate();
        places
            .filter_map(|(place, shares)| Some((place, Arc::clone(shares.first()?.1.hold()))))
            .collect()
    }

    /// Takes out what a place has, if it is this hold's.
    fn empty(&mut self, place: usize, hold: &Arc<Hold>) -> Vec<Share> {
        match self.has(place, hold) {
            true => self.places[place]
                .drain(..)
                .map(|(_, share)| share)
                .collect(),
            false => Vec::new(),
        }
    }

    fn has(&self, place: usize, hold: &Arc<Hold>) -> bool {
        let first = self.places[place].first();
        first.is_some_and(|(_, share)| Arc::ptr_eq(share.hold(), hold))
    }

    /// One more guard: its number.
    fn sit_down(&mut self, stay: Stay) -> u64 {
        let seat = self.next_seat;
        self.next_seat += 1;
        self.seats.push((seat, stay));
        seat
    }

    /// One guard less: the shares that it had, and that no other takes over.
    fn stand_up(&mut self, seat: u64) -> Vec<Share> {
        self.seats.retain(|(other, _)| *other != seat);
        let mut shares = Vec::new();
        for place in &mut self.places {
            let Some(at) = place.iter().position(|(other, _)| *other == seat) else {
                continue;
            };
            let lacks = |other: u64| place.iter().all(|(has, _)| *has != other);
            match self.seats.iter().copied().find(|(other, _)| lacks(*other)) {
                Some((heir, stay)) => {
                    place[at].0 = heir;
                    place[at].1.set_stay(stay);
                }
                None => shares.push(place.swap_remove(at).1),
            }
        }
        shares
    }
}

impl Quorum {
    /// Of `servers` places, with the shares that some of them have granted; for one guard.
    pub(crate) fn of(
        terms: Terms,
        servers: usize,
        shares: Vec<(usize, Share)>,
        token: Option<FencingToken>,
    ) -> Seat {
        let stay = stay_of(&shares, terms.need);
        let mut places: Vec<Vec<(u64, Share)>> = Vec::new();
        places.resize_with(servers, Vec::new);
        let mut holds = Vec::with_capacity(shares.len());
        for (place, share) in shares {
            let share = share.guarded();
            holds.push(Arc::clone(share.hold()));
            places[place].push((0, share));
        }
        let holder = holds.first().map(|hold| hold.holder_id().into());
        let quorum = Arc::new(Self {
            terms,
            holder: holder.unwrap_or_default(),
            state: Mutex::new(State {
                phase: Phase::Held,
                seats: vec![(0, stay)],
                next_seat: 1,
                places,
                joins: 0,
                token,
            }),
            changed: Arc::default(),
        });
        for hold in holds {
            hold.enter_group(quorum.as_group());
        }
        let local = &quorum.terms.local;
        local.quorums.lock().push(Arc::downgrade(&quorum));
        local.entered.give();
        // One may have been lost before it knew of the others.
        quorum.look();
        Seat::of(quorum, 0, stay)
    }

    fn as_group(self: &Arc<Self>) -> Weak<dyn Group> {
        let group: Arc<dyn Group> = Arc::clone(self) as _;
        Arc::downgrade(&group)
    }

    pub(crate) fn owner(&self) -> &Owner {
        &self.terms.owner
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.state.lock().token
    }

    /// Given when it is lost or over.
    pub(crate) fn changed(&self) -> Arc<Hint> {
        Arc::clone(&self.changed)
    }

    /// The holds that count, by their places.
    pub(crate) fn holds(&self) -> Vec<(usize, Arc<Hold>)> {
        self.state.lock().holds()
    }

    /// Whether a guard wants it for longer than a fixed lease.
    pub(crate) fn is_renewed(&self) -> bool {
        let state = self.state.lock();
        state.seats.iter().any(|(_, stay)| stay.is_renewed())
    }

    /// Whether it is held, and the server of this place has no part in it.
    pub(crate) fn lacks(&self, place: usize) -> bool {
        let state = self.state.lock();
        state.phase == Phase::Held && state.places[place].is_empty()
    }

    /// Whether a majority holds of which nobody doubts it.
    pub(crate) fn is_certain(&self) -> bool {
        let holds = self.holds();
        let certain = holds.iter().filter(|(_, hold)| hold.is_certain());
        certain.count() >= self.terms.need
    }

    /// The end of what is certain: so long at least a majority holds.
    fn deadline(&self) -> Tick {
        let holds = self.holds();
        let held = holds.iter().filter(|(_, hold)| hold.loss().is_none());
        let mut ends: Vec<Tick> = held.map(|(_, hold)| hold.deadline()).collect();
        ends.sort_unstable_by(|a, b| b.cmp(a));
        ends.get(self.terms.need - 1).copied().unwrap_or(Tick::ZERO)
    }

    /// Why it is lost, if it is. The clock decides, whatever anybody has had time to notice.
    pub(crate) fn loss(&self) -> Option<LostReason> {
        loop {
            let (holds, joins) = {
                let state = self.state.lock();
                match state.phase {
                    Phase::Held => (state.holds(), state.joins),
                    Phase::Over => return None,
                    Phase::Lost(reason) => return Some(reason),
                }
            };
            // Of those that are lost at once, any one; of one after the other, this is the last.
            let mut reason = LostReason::Expired;
            let mut live = Vec::with_capacity(holds.len());
            for (place, hold) in holds {
                match hold.loss() {
                    Some(why) => reason = why,
                    None => live.push((place, hold)),
                }
            }
            if live.len() >= self.terms.need {
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
            live.map(|(place, hold)| state.empty(*place, hold))
                .collect()
        };
        // First: who asks from here on asks behind that.
        drop(given_back);
        self.told();
    }

    /// Whether it is neither lost nor over.
    pub(crate) fn is_held(&self) -> bool {
        self.loss().is_none() && self.state.lock().phase == Phase::Held
    }

    /// Tells everybody that it is lost or over.
    fn told(&self) {
        self.changed.give();
        let this: *const Self = self;
        let mut quorums = self.terms.local.quorums.lock();
        quorums.retain(|quorum| !std::ptr::eq(quorum.as_ptr(), this));
        drop(quorums);
        self.terms.local.look_again();
    }

    /// Lets go of what is lost, and has it mended unless too much is.
    fn look(self: &Arc<Self>) {
        if self.loss().is_some() {
            return;
        }
        for (place, hold) in self.holds() {
            // Of a client that is closed it stays with the guard, and is left to its lease.
            if hold.loss().is_some_and(|why| why != LostReason::Closed) {
                self.drop_out(place, &hold);
            }
        }
    }

    /// A hold does not count any more.
    fn drop_out(self: &Arc<Self>, place: usize, hold: &Arc<Hold>) {
        let dropped = self.state.lock().empty(place, hold);
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
        if self.lacks(place) {
            self.terms.mender.mend(self, place);
        }
    }

    /// One more server has granted the lock, and its counter of fencing tokens was raised to
    /// `raised`. False if that is not wanted any more, or its place is taken.
    pub(crate) fn join(
        self: &Arc<Self>,
        place: usize,
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
                && state.places[place].is_empty()
                && state.token.is_none_or(|token| raised == Some(token));
            // For the guard that stays longest, which need not be the one who asked for it.
            let longest = state
                .seats
                .iter()
                .copied()
                .max_by_key(|(_, stay)| stay.end());
            match longest.filter(|_| fits) {
                Some((seat, stay)) => {
                    if stay.is_renewed() || share.stay().is_renewed() {
                        share.set_stay(stay);
                    }
                    state.places[place].push((seat, share.guarded()));
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
        self.look();
        true
    }

    /// One more guard, with shares of the holds that counted. `None`: it is lost or over.
    pub(crate) fn admit(self: &Arc<Self>, shares: Vec<(usize, Share)>) -> Option<Seat> {
        if self.loss().is_some() {
            return None;
        }
        let stay = stay_of(&shares, self.terms.need);
        let mut unfit = Vec::new();
        let seat = {
            let mut state = self.state.lock();
            let is_held = state.phase == Phase::Held;
            let seat = is_held.then(|| state.sit_down(stay));
            for (place, share) in shares {
                match seat.filter(|_| state.has(place, share.hold())) {
                    Some(seat) => state.places[place].push((seat, share)),
                    None => unfit.push(share),
                }
            }
            seat
        };
        drop(unfit);
        seat.map(|seat| Seat::of(Arc::clone(self), seat, stay))
    }

    /// Gives it a token that the servers of these places have: only they count from here on. False if
    /// they are too few, or it has another.
    pub(crate) fn fence(self: &Arc<Self>, token: FencingToken, places: &[usize]) -> bool {
        let others = {
            let mut state = self.state.lock();
            let mut holds = state.holds();
            holds.retain(|(place, _)| !places.contains(place));
            let enough = state.holds().len() - holds.len() >= self.terms.need;
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
        for (place, hold) in others {
            self.drop_out(place, &hold);
        }
        true
    }
}

/// On which terms a guard has a majority of these shares.
fn stay_of(shares: &[(usize, Share)], need: usize) -> Stay {
    let mut stays: Vec<Stay> = shares.iter().map(|(_, share)| share.stay()).collect();
    stays.sort_unstable_by_key(|stay| std::cmp::Reverse(stay.end()));
    stays
        .get(need - 1)
        .copied()
        .unwrap_or(Stay::Until(Tick::ZERO))
}

impl Group for Quorum {
    fn member_lost(self: Arc<Self>, _reason: LostReason) {
        self.look();
    }
}

impl LocalLock {
    /// The live quorum of `owner`.
    pub(crate) fn quorum_of(&self, owner: &Owner) -> Option<Arc<Quorum>> {
        let quorums = self.live_quorums().into_iter();
        quorums.into_iter().find(|quorum| quorum.owner() == owner)
    }

    /// The latest local deadline of a quorum of this client.
    pub(crate) fn quorum_until(&self) -> Option<Tick> {
        let quorums = self.live_quorums();
        quorums.iter().map(|quorum| quorum.deadline()).max()
    }

    fn live_quorums(&self) -> Vec<Arc<Quorum>> {
        let quorums: Vec<_> = {
            let quorums = self.quorums.lock();
            quorums.iter().filter_map(Weak::upgrade).collect()
        };
        let live = quorums.into_iter().filter(|quorum| quorum.is_held());
        live.collect()
    }
}

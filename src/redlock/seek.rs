//! The wait for a majority: a round, a pause, again.
//!
//! Tasks of one process queue for a lock in one of its clients, so that they do not vote against each
//! other. Nothing is held during a pause, which ends early when a server tells of a release. That the
//! lock is held is never an error; that too few servers have a vote is one, if it lasts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::ballot::{Ballot, Majority};
use super::enter::enter;
use super::mend::Mending;
use super::pace::Pace;
use super::votes::Tally;
use crate::acquire::{self, Wait};
use crate::clock::Tick;
use crate::counts::Mode;
use crate::error::{Error, Result};
use crate::hint::{Hint, Mark};
use crate::hold::attend;
use crate::hold::bound::Bound;
use crate::hold::core::Core;
use crate::hold::line::Place;
use crate::hold::local::LocalLock;
use crate::hold::quorum::{Quorum, Seat, Terms};
use crate::hold::reenter::Entry;
use crate::hold::silence::Over;
use crate::owner::Owner;

/// The head does not look again sooner, if it is told nothing.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// The longest wait for the servers of one round that is not one of many.
const ONCE_MAX: Duration = Duration::from_secs(1);

/// How long the waiters of one process stand back for others after their share of turns: longer than
/// it takes those to hear of a release and to ask.
const STAND_BACK: Duration = Duration::from_millis(5);

/// Who wants a lock of several servers, and where it waits.
pub(super) struct Seeker {
    pub(super) ballot: Ballot,
    /// The owner who was named.
    pub(super) owner: Option<Owner>,
    /// The client in which tasks wait for each other.
    pub(super) core: Arc<Core>,
    pub(super) local: Arc<LocalLock>,
    /// What that client knows of the lock as a member: whether others wait.
    pub(super) member: Arc<LocalLock>,
}

/// Taken before a look; what happens after it ends the wait.
#[derive(Clone, Copy)]
struct Marks {
    told: Mark,
    entered: Mark,
    closing: Mark,
}

impl Seeker {
    /// Takes the lock, or says that it did not become free in time.
    pub(super) async fn take(&self, wait: Wait) -> Result<Option<Seat>> {
        self.ensure_open()?;
        let bound = acquire::bound(&self.ballot.asks, wait);
        if let Some(seat) = self.owned(&bound).await? {
            return Ok(Some(seat));
        }
        if let Wait::Never = wait {
            return self.once().await;
        }
        let place = self.local.line.enter(Mode::Exclusive, None);
        let _waiter = Waiter::enter(self);
        // Nobody listens for a lock that is free.
        let heard = Arc::<Hint>::default();
        let refused = Hint::default();
        let listening = async {
            refused.past(refused.mark()).await;
            let asks = self.ballot.asks.iter().cloned();
            join_all(asks.map(|ask| acquire::listen(ask, Arc::clone(&heard)))).await;
        };
        tokio::select! {
            biased;
            seat = self.head(&place, &bound, (&heard, &refused)) => seat,
            () = listening.then(|()| std::future::pending()) => Ok(None),
        }
    }

    /// One round. There is no other, so a slow server has more time than in one of many.
    async fn once(&self) -> Result<Option<Seat>> {
        let mut ballot = self.ballot.clone();
        ballot.limit = self.ballot.asks[0].give_up().min(ONCE_MAX);
        match ballot.round().await {
            Ok(majority) => Ok(Some(self.seat(majority))),
            Err(tally) if tally.is_unable() => Err(self.error(&tally)),
            Err(_) => Ok(None),
        }
    }

    /// Waits until it is at the head of the local queue, unless the wait ends otherwise: then how. Who
    /// was passed over meanwhile is the next one.
    async fn turn(&self, place: &Place<'_>, bound: &Bound) -> Result<Option<Option<Seat>>> {
        if place.is_head() {
            return Ok(None);
        }
        attend::behind(&self.core, &self.local);
        tokio::select! {
            biased;
            () = place.turn() => Ok(None),
            seat = self.owner_gets_it(bound) => Ok(Some(Some(seat?))),
            over = self.local.silence.over(self.core.clock, bound) => match over {
                Over::NotInTime => Ok(Some(None)),
                Over::Silent(why) => Err(self.silent(why)),
            },
        }
    }

    /// The wait of one in the local queue, of which the head asks. Gives `refused` when it was, and
    /// goes by what is `heard` from then on.
    async fn head(
        &self,
        place: &Place<'_>,
        bound: &Bound,
        (heard, refused): (&Hint, &Hint),
    ) -> Result<Option<Seat>> {
        let deadline = bound.deadline().unwrap_or(Tick::NEVER);
        let clock = self.core.clock;
        let mut pace = Pace::default();
        let mut was_heard = false;
        // As long as too few servers have a vote.
        let silence = &self.local.silence;
        loop {
            if let Some(seat) = self.turn(place, bound).await? {
                return Ok(seat);
            }
            self.ensure_open()?;
            let marks = self.marks();
            if let Some(seat) = self.owned(bound).await? {
                return Ok(Some(seat));
            }
            let began = clock.now();
            // Held in this process: its end gives a hint, and so does its loss.
            if let Some(until) = self.local.quorum_until() {
                silence.ends();
                if began >= deadline {
                    return Ok(None);
                }
                let until = until.max(began.after(WAIT_MIN)).min(deadline);
                place.wait(marks.told, until);
                self.wait(marks, until).await;
                continue;
            }
            if !self.member.may_pass(began) {
                // Others were heard to wait: they get the time to ask first.
                let back = began.after(STAND_BACK).min(deadline);
                clock.sleep_until(back).await;
            }
            let began = clock.now();
            let (since, why) = silence.asks(began, bound);
            if why.is_some() {
                return Err(self.silent(why));
            }
            let end = bound.end(since);
            place.ask();
            let tally = match self.ballot.round().await {
                Ok(majority) => {
                    silence.ends();
                    return Ok(Some(self.seat(majority)));
                }
                Err(tally) => tally,
            };
            let now = clock.now();
            if tally.is_unable() {
                if now >= end.min(deadline) || tally.is_hopeless() {
                    let error = self.error(&tally);
                    silence.failed(&error);
                    return Err(error);
                }
            } else {
                silence.ends();
                if now >= deadline {
                    return Ok(None);
                }
            }
            self.member.end_passing();
            refused.give();
            let chances = [fastrand::f64(), fastrand::f64()];
            let pause = pace.pause(began.until(now), was_heard, tally.remaining(), chances);
            place.wait(marks.told, now.after(pause.whole));
            clock.sleep_until(now.after(pause.deaf).min(deadline)).await;
            let news = heard.mark();
            was_heard = tokio::select! {
                biased;
                () = heard.past(news) => true,
                () = self.wait(marks, now.after(pause.whole).min(deadline)) => false,
            };
        }
    }

    /// A guard's part of what was granted, on which it is then gone on working.
    fn seat(&self, majority: Majority) -> Seat {
        let ask = &self.ballot.asks[0];
        let mending = Mending(self.ballot.clone());
        let terms = Terms {
            name: ask.name.as_str().into(),
            owner: self.owner.clone().unwrap_or_else(Owner::new),
            need: self.ballot.need,
            clock: self.core.clock,
            local: Arc::clone(&self.local),
            mender: Box::new(mending.clone()),
        };
        let servers = self.ballot.asks.len();
        let mut missing = vec![true; servers];
        for (server, _) in &majority.shares {
            missing[*server] = false;
        }
        let seat = Quorum::of(terms, servers, majority.shares, majority.token);
        for pending in majority.pending {
            missing[pending.server] = false;
            mending.follow(seat.quorum(), pending);
        }
        for server in (0..servers).filter(|server| missing[*server]) {
            mending.ask_again(seat.quorum(), server);
        }
        seat
    }

    /// One more guard for the owner who asks, if it has the lock.
    async fn owned(&self, bound: &Bound) -> Result<Option<Seat>> {
        let Some(owner) = &self.owner else {
            return Ok(None);
        };
        match self.local.quorum_of(owner) {
            Some(quorum) => {
                let term = self.ballot.asks[0].term;
                enter(&self.ballot, &quorum, Entry::Asked(term), Some(bound)).await
            }
            None => Ok(None),
        }
    }

    /// Resolves when the owner who asks gets the lock through another of its tasks: then it enters at
    /// once, wherever it stands in the queue.
    async fn owner_gets_it(&self, bound: &Bound) -> Result<Seat> {
        loop {
            let marks = self.marks();
            self.ensure_open()?;
            if let Some(seat) = self.owned(bound).await? {
                return Ok(seat);
            }
            tokio::select! {
                () = self.local.entered.past(marks.entered), if self.owner.is_some() => {}
                () = self.core.closing.past(marks.closing) => {}
            }
        }
    }

    fn marks(&self) -> Marks {
        Marks {
            told: self.local.hint().mark(),
            entered: self.local.entered.mark(),
            closing: self.core.closing.mark(),
        }
    }

    async fn wait(&self, marks: Marks, until: Tick) {
        tokio::select! {
            biased;
            () = self.local.hint().past(marks.told) => {}
            () = self.local.entered.past(marks.entered), if self.owner.is_some() => {}
            () = self.core.closing.past(marks.closing) => {}
            () = self.core.clock.sleep_until(until) => {}
        }
    }

    fn ensure_open(&self) -> Result<()> {
        let ask = &self.ballot.asks[0];
        let open = self.core.ensure_open(ask.operation);
        open.map_err(|error| error.of_lock(ask.name.as_str()))
    }

    /// Why it gives up: what was said to who asked before it, if that is known.
    fn silent(&self, why: Option<Error>) -> Error {
        let ask = &self.ballot.asks[0];
        match why {
            Some(error) => error.during(ask.operation).of_lock(ask.name.as_str()),
            None => self.error(&Tally::silent(self.ballot.asks.len(), self.ballot.need)),
        }
    }

    fn error(&self, tally: &Tally) -> Error {
        let ask = &self.ballot.asks[0];
        let error = tally.error(ask.operation, self.ballot.addresses());
        error.of_lock(ask.name.as_str())
    }
}

/// Counts as waiting until dropped.
struct Waiter<'a>(&'a Seeker);

impl<'a> Waiter<'a> {
    fn enter(seeker: &'a Seeker) -> Self {
        seeker.local.listening.enter();
        Self(seeker)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.local.listening.leave();
        if self.0.core.is_closed() {
            self.0.core.locals.departed.give();
        }
    }
}

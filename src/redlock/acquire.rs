//! The wait for a majority: a round, a pause, again.
//!
//! Tasks of one process queue for a lock in one of its clients, so that they do not vote against each
//! other. Nothing is held during a pause, which ends early when a server tells of a release. That the
//! lock is held is never an error; that too few servers have a vote is one, if it lasts.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::join_all;

use super::backoff::Backoff;
use super::reenter::reenter;
use super::rejoin::Rejoiner;
use super::round::{QuorumGrant, QuorumRequest};
use super::tally::Tally;
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
use crate::hold::quorum::{QuorumConfig, QuorumHold, QuorumShare};
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
pub(super) struct Acquisition {
    pub(super) request: QuorumRequest,
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

impl Acquisition {
    /// Takes the lock, or says that it did not become free in time.
    pub(super) async fn run(&self, wait: Wait) -> Result<Option<QuorumShare>> {
        self.ensure_open()?;
        let bound = acquire::bound(&self.request.asks, wait);
        if let Some(share) = self.reenter_own(&bound).await? {
            return Ok(Some(share));
        }
        if let Wait::Never = wait {
            return self.one_round().await;
        }
        let place = self.local.line.enter(Mode::Exclusive, None);
        let _waiter = Waiter::enter(self);
        // Nobody listens for a lock that is free.
        let notified = Arc::<Hint>::default();
        let refused = Hint::default();
        let listening = async {
            refused.past(refused.mark()).await;
            let asks = self.request.asks.iter().cloned();
            join_all(asks.map(|ask| acquire::subscribe(ask, Arc::clone(&notified)))).await;
        };
        tokio::select! {
            biased;
            share = self.rounds(&place, &bound, (&notified, &refused)) => share,
            () = listening.then(|()| std::future::pending()) => Ok(None),
        }
    }

    /// One round. There is no other, so a slow server has more time than in one of many.
    async fn one_round(&self) -> Result<Option<QuorumShare>> {
        let mut request = self.request.clone();
        request.vote_timeout = self.request.asks[0].give_up().min(ONCE_MAX);
        match request.round().await {
            Ok(grant) => Ok(Some(self.establish(grant))),
            Err(tally) if tally.lacks_voters() => Err(self.error(&tally)),
            Err(_) => Ok(None),
        }
    }

    /// Waits until it is at the head of the local queue, unless the wait ends otherwise: then how. Who
    /// was passed over meanwhile is the next one.
    async fn wait_turn(
        &self,
        place: &Place<'_>,
        bound: &Bound,
    ) -> Result<Option<Option<QuorumShare>>> {
        if place.is_head() {
            return Ok(None);
        }
        attend::behind(&self.core, &self.local);
        tokio::select! {
            biased;
            () = place.turn() => Ok(None),
            share = self.owner_granted(bound) => Ok(Some(Some(share?))),
            over = self.local.silence.over(self.core.clock, bound) => match over {
                Over::NotInTime => Ok(Some(None)),
                Over::Silent(why) => Err(self.silent(why)),
            },
        }
    }

    /// The wait of one in the local queue, of which the head asks. Gives `refused` when it was, and
    /// goes by what is `notified` from then on.
    async fn rounds(
        &self,
        place: &Place<'_>,
        bound: &Bound,
        (notified, refused): (&Hint, &Hint),
    ) -> Result<Option<QuorumShare>> {
        let deadline = bound.deadline().unwrap_or(Tick::NEVER);
        let clock = self.core.clock;
        let mut backoff = Backoff::default();
        let mut was_notified = false;
        // As long as too few servers have a vote.
        let silence = &self.local.silence;
        loop {
            if let Some(share) = self.wait_turn(place, bound).await? {
                return Ok(share);
            }
            self.ensure_open()?;
            let marks = self.marks();
            if let Some(share) = self.reenter_own(bound).await? {
                return Ok(Some(share));
            }
            let began = clock.now();
            // Held in this process: its end gives a hint, and so does its loss.
            if let Some(until) = self.local.quorum_held_until() {
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
            let tally = match self.request.round().await {
                Ok(grant) => {
                    silence.ends();
                    return Ok(Some(self.establish(grant)));
                }
                Err(tally) => tally,
            };
            let now = clock.now();
            if tally.lacks_voters() {
                if now >= end.min(deadline) || tally.lacks_voters_for_good() {
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
            let pause = backoff.pause(began.until(now), was_notified, tally.remaining(), chances);
            place.wait(marks.told, now.after(pause.total));
            clock
                .sleep_until(now.after(pause.ignoring).min(deadline))
                .await;
            let news = notified.mark();
            was_notified = tokio::select! {
                biased;
                () = notified.past(news) => true,
                () = self.wait(marks, now.after(pause.total).min(deadline)) => false,
            };
        }
    }

    /// A guard's part of what was granted, on which it is then gone on working.
    fn establish(&self, grant: QuorumGrant) -> QuorumShare {
        let ask = &self.request.asks[0];
        let rejoiner = Rejoiner(self.request.clone());
        let config = QuorumConfig {
            name: ask.name.as_str().into(),
            owner: self.owner.clone().unwrap_or_else(Owner::new),
            quorum: self.request.quorum,
            clock: self.core.clock,
            local: Arc::clone(&self.local),
            rejoin: Box::new(rejoiner.clone()),
        };
        let servers = self.request.asks.len();
        let mut missing = vec![true; servers];
        for (server, _) in &grant.shares {
            missing[*server] = false;
        }
        let share = QuorumHold::of(config, servers, grant.shares, grant.token);
        for pending in grant.pending {
            missing[pending.server] = false;
            rejoiner.follow(share.quorum(), pending);
        }
        for server in (0..servers).filter(|server| missing[*server]) {
            rejoiner.ask_again(share.quorum(), server);
        }
        share
    }

    /// One more guard for the owner who asks, if it has the lock.
    async fn reenter_own(&self, bound: &Bound) -> Result<Option<QuorumShare>> {
        let Some(owner) = &self.owner else {
            return Ok(None);
        };
        match self.local.quorum_hold_of(owner) {
            Some(quorum) => {
                let term = self.request.asks[0].term;
                reenter(&self.request, &quorum, Entry::Asked(term), Some(bound)).await
            }
            None => Ok(None),
        }
    }

    /// Resolves when the owner who asks gets the lock through another of its tasks: then it enters at
    /// once, wherever it stands in the queue.
    async fn owner_granted(&self, bound: &Bound) -> Result<QuorumShare> {
        loop {
            let marks = self.marks();
            self.ensure_open()?;
            if let Some(share) = self.reenter_own(bound).await? {
                return Ok(share);
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
        let ask = &self.request.asks[0];
        let open = self.core.ensure_open(ask.operation);
        open.map_err(|error| error.of_lock(ask.name.as_str()))
    }

    /// Why it gives up: what was said to who asked before it, if that is known.
    fn silent(&self, why: Option<Error>) -> Error {
        let ask = &self.request.asks[0];
        match why {
            Some(error) => error.during(ask.operation).of_lock(ask.name.as_str()),
            None => self.error(&Tally::all_down(
                self.request.asks.len(),
                self.request.quorum,
            )),
        }
    }

    fn error(&self, tally: &Tally) -> Error {
        let ask = &self.request.asks[0];
        let error = tally.error(ask.operation, self.request.addresses());
        error.of_lock(ask.name.as_str())
    }
}

/// Counts as waiting until dropped.
struct Waiter<'a>(&'a Acquisition);

impl<'a> Waiter<'a> {
    fn enter(acquisition: &'a Acquisition) -> Self {
        acquisition.local.listening.enter();
        Self(acquisition)
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

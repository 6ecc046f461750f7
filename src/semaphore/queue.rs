//! The queue of one client's calls for permits of one semaphore, and the decisions about them: pure.
//!
//! Callers, replies, messages and timers only send events, and only [`Queue::on`] and [`Queue::call`] decide.
//! Invariants: permits in hand, from a grant or a return, are given to one request or released. The first request in
//! the queue that fits gets them. While a refused request waits, only the first request asks.

use std::collections::VecDeque;
use std::time::Duration;

use crate::api::options::LeasePolicy;
use crate::engine::clock::Tick;

/// The most requests that ask at once, while the server grants.
const ASKS_MAX: usize = 64;

/// The most waiters of one client whose places in the server's queue one request keeps.
pub(super) const PLACES_MAX: usize = 1_000;

/// How often, and for how long, permits are handed off in memory before the server decides again, because other clients
/// may wait.
const HANDOFFS_MAX: u32 = 64;
const TURN_MAX: Duration = Duration::from_millis(5);

/// How long to leave the permits to other clients after a turn, unless the message of this client's release comes
/// first.
const STAND_BACK: Duration = Duration::from_millis(2);

/// The terms of a request. Permits may be handed off between requests of equal terms.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Terms {
    pub(super) permits: u32,
    /// The declared number of permits; 0 if the handle does not declare it. Only the server knows whether it is right.
    pub(super) declared: u32,
    pub(super) policy: LeasePolicy,
    /// Whether the server has a queue for these requests.
    pub(super) is_fair: bool,
}

impl Terms {
    /// Whether permits of these terms may go to the next request in memory. They must be renewed, and the semaphore
    /// must not be fair between clients.
    fn may_be_handed_off(&self) -> bool {
        matches!(self.policy, LeasePolicy::Renewed(_)) && !self.is_fair
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Request {
    /// Numbered in the order of arrival.
    pub(super) id: u64,
    pub(super) terms: Terms,
    /// When the call ends. For a call that does not wait, this time is over.
    pub(super) deadline: Tick,
    /// How long the call goes on without an answer.
    pub(super) give_up: Duration,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Event {
    /// The caller of this request is gone.
    Left(u64),
    /// The server granted the attempt of this request; the permits are in hand.
    Granted { request: u64 },
    /// The server refused the attempt of this request. The first lease of a permit ends in `retry_in`.
    Refused { request: u64, retry_in: Duration },
    /// The attempt of this request failed; the error is in hand. `silence` is the time without an answer. Earlier
    /// requests that go on for no longer fail with it.
    Failed {
        request: u64,
        silence: Option<Duration>,
    },
    /// A guard returned permits of these terms; they are in hand.
    Returned(Terms),
    /// A message, a gap in the subscription, or a new one.
    Woken,
    /// The time that [`Queue::wake_at`] returned has come.
    Timer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    /// Ask the server for the permits of this request.
    Ask { request: u64 },
    /// Give the permits in hand to this request.
    Give { request: u64 },
    /// Release the permits in hand at the server.
    Release,
    /// Report to this request that there are not enough permits.
    Refuse { request: u64 },
    /// Report the error in hand to this request.
    Fail { request: u64 },
}

/// The attempt of a request. It has one at a time, and may leave before its end.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Ask {
    request: u64,
    terms: Terms,
    since: Tick,
    /// The number of wake-ups before it was sent.
    wakes: u64,
    /// The newest request when the attempt was sent.
    newest: u64,
}

/// One request in the queue.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Waiting {
    request: Request,
    /// Whether the last attempt, at the deadline, has been made.
    is_last: bool,
    /// Whether an attempt is under way.
    is_asked: bool,
}

impl Waiting {
    /// Whether the deadline ends the wait. If an attempt is under way, its reply comes first.
    fn is_due(&self) -> bool {
        !self.is_last && !self.is_asked
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(super) struct Queue {
    /// In the order of their ids.
    waiting: VecDeque<Waiting>,
    /// No waiting request is due before this time, so an earlier event does not look at all of them.
    earliest: Tick,
    asks: Vec<Ask>,
    /// Whether the server refused a request that still waits.
    is_contended: bool,
    /// When the first request asks again.
    ask_at: Tick,
    wakes: u64,
    handoffs: u32,
    turn_since: Tick,
}

impl Queue {
    /// Whether the first request waits for other clients, and so needs messages.
    pub(super) fn is_contended(&self) -> bool {
        self.is_contended && !self.waiting.is_empty()
    }

    /// Returns the waiting requests without an attempt under way, in order.
    pub(super) fn unasked(&self) -> impl Iterator<Item = u64> {
        let unasked = self.waiting.iter().filter(|waiting| !waiting.is_asked);
        unasked.map(|waiting| waiting.request.id)
    }

    /// Returns since when the server has not answered.
    pub(super) fn silent_since(&self) -> Option<Tick> {
        self.asks.iter().map(|ask| ask.since).min()
    }

    /// Returns when [`Event::Timer`] is due. `Tick::NEVER` if a reply or a message comes next; `None` if no task need
    /// wake the queue.
    pub(super) fn wake_at(&self) -> Option<Tick> {
        let first = self.waiting.front()?;
        let may_ask = self.is_contended && self.asks.len() < ASKS_MAX && !first.is_asked;
        let ask_at = if may_ask { self.ask_at } else { Tick::NEVER };
        let wake_at = self.earliest.min(ask_at);
        (self.is_contended || wake_at != Tick::NEVER).then_some(wake_at)
    }

    /// Adds a request.
    pub(super) fn call(&mut self, now: Tick, request: Request, out: &mut Vec<Action>) {
        if request.deadline <= now && self.is_contended() {
            // The waiting requests come first.
            out.push(Action::Refuse {
                request: request.id,
            });
            return;
        }
        if request.terms.is_fair && self.is_contended() && self.waiting.len() < PLACES_MAX {
            // The first request asks at once, and takes a place in the server's queue for this one.
            self.wake(now);
        }
        self.waiting.push_back(Waiting {
            is_last: request.deadline <= now,
            is_asked: false,
            request,
        });
        self.advance(now, out);
        if let Some(last) = self.waiting.back().filter(|waiting| waiting.is_due()) {
            self.earliest = self.earliest.min(last.request.deadline);
        }
    }

    pub(super) fn on(&mut self, now: Tick, event: Event, out: &mut Vec<Action>) {
        match event {
            Event::Left(request) => {
                if let Some(at) = self.position(request) {
                    self.waiting.remove(at);
                    self.ask_at = now;
                }
            }
            Event::Granted { request } => self.granted(now, request, out),
            Event::Refused { request, retry_in } => self.refused(now, request, retry_in, out),
            Event::Failed { request, silence } => self.failed(request, silence, out),
            Event::Returned(terms) => self.returned(now, terms, out),
            Event::Woken => self.wake(now),
            Event::Timer => {}
        }
        if self.waiting.is_empty() {
            self.is_contended = false;
        }
        self.advance(now, out);
    }

    fn wake(&mut self, now: Tick) {
        self.wakes += 1;
        self.ask_at = now;
    }

    fn granted(&mut self, now: Tick, request: u64, out: &mut Vec<Action>) {
        let Some(ask) = self.take_ask(request) else {
            out.push(Action::Release);
            return;
        };
        (self.handoffs, self.turn_since) = (0, now);
        // The server may have more permits.
        self.ask_at = now;
        let fits = |waiting: &Waiting| waiting.request.terms == ask.terms;
        // The grant has removed the request that asked from the server's queue, so that request comes first.
        let asked = ask.terms.is_fair.then(|| self.position(request));
        let fitting = || self.waiting.iter().position(fits);
        match asked.flatten().or_else(fitting) {
            Some(at) => self.give(at, out),
            None => out.push(Action::Release),
        }
        self.goes_on(request);
    }

    fn refused(&mut self, now: Tick, request: u64, retry_in: Duration, out: &mut Vec<Action>) {
        let ask = self.take_ask(request);
        let Some((ask, at)) = ask.zip(self.position(request)) else {
            return;
        };
        if self.waiting[at].is_last {
            self.waiting.remove(at);
            out.push(Action::Refuse { request });
            // The next request may ask for less.
            self.ask_at = now;
            if self.waiting.iter().any(|waiting| !waiting.is_last) {
                self.contend(now);
            }
            return;
        }
        self.contend(now);
        self.goes_on(request);
        let is_outdated = self.wakes != ask.wakes;
        self.ask_at = if is_outdated {
            now
        } else {
            now.after(retry_in)
        };
    }

    /// Notes that other clients have permits. The requests that do not wait are over then.
    fn contend(&mut self, now: Tick) {
        if !self.is_contended {
            (self.is_contended, self.earliest) = (true, now);
        }
    }

    fn failed(&mut self, request: u64, silence: Option<Duration>, out: &mut Vec<Action>) {
        let Some(ask) = self.take_ask(request) else {
            return;
        };
        self.waiting.retain(|waiting| {
            let Request { id, give_up, .. } = waiting.request;
            let is_earlier = !waiting.is_asked && id <= ask.newest;
            let is_over = silence.is_some_and(|silence| give_up <= silence);
            let fails = id == request || (is_earlier && is_over);
            if fails {
                out.push(Action::Fail { request: id });
            }
            !fails
        });
    }

    fn returned(&mut self, now: Tick, terms: Terms, out: &mut Vec<Action>) {
        let is_next = |waiting: &Waiting| waiting.request.terms == terms;
        let is_wanted = terms.may_be_handed_off() && self.waiting.front().is_some_and(is_next);
        if is_wanted && self.handoffs < HANDOFFS_MAX && self.turn_since.until(now) < TURN_MAX {
            self.handoffs += 1;
            self.give(0, out);
            return;
        }
        out.push(Action::Release);
        self.wakes += 1;
        self.ask_at = if is_wanted {
            (self.handoffs, self.turn_since) = (0, now);
            now.after(STAND_BACK)
        } else {
            now
        };
    }

    fn give(&mut self, at: usize, out: &mut Vec<Action>) {
        if let Some(waiting) = self.waiting.remove(at) {
            out.push(Action::Give {
                request: waiting.request.id,
            });
        }
    }

    /// Refuses the requests whose time is over, and asks for those whose turn it is.
    fn advance(&mut self, now: Tick, out: &mut Vec<Action>) {
        if self.earliest <= now {
            self.refuse_overdue(now, out);
        }
        if let Some(first) = self.waiting.front_mut()
            && first.request.deadline <= now
            && !first.is_last
        {
            // The server is asked once more at the deadline.
            if !first.is_asked {
                first.is_last = true;
                self.ask(0, now, out);
            }
            return;
        }
        let mut at = 0;
        while at < self.waiting.len() && self.asks.len() < ASKS_MAX {
            if self.is_contended && (at > 0 || now < self.ask_at) {
                break;
            }
            if !self.waiting[at].is_asked {
                self.ask(at, now, out);
            }
            at += 1;
        }
    }

    fn refuse_overdue(&mut self, now: Tick, out: &mut Vec<Action>) {
        #[cfg(test)]
        tests::looked_at(self.waiting.len());
        let first = self.waiting.front().map(|waiting| waiting.request.id);
        let is_contended = self.is_contended;
        self.waiting.retain(|waiting| {
            let request = &waiting.request;
            let has_its_turn = Some(request.id) == first || (waiting.is_last && !is_contended);
            let is_over = request.deadline <= now && !waiting.is_asked && !has_its_turn;
            if is_over {
                out.push(Action::Refuse {
                    request: request.id,
                });
            }
            !is_over
        });
        // The first request asks once more if its time is over.
        let deadlines = self.waiting.iter().filter(|waiting| waiting.is_due());
        let deadlines = deadlines.map(|waiting| waiting.request.deadline);
        let earliest = deadlines.filter(|deadline| *deadline > now).min();
        self.earliest = earliest.unwrap_or(Tick::NEVER);
    }

    /// Notes that this request goes on without its attempt, so it may be due, or over.
    fn goes_on(&mut self, request: u64) {
        if let Some(at) = self.position(request) {
            self.earliest = self.earliest.min(self.waiting[at].request.deadline);
        }
    }

    fn ask(&mut self, at: usize, now: Tick, out: &mut Vec<Action>) {
        self.waiting[at].is_asked = true;
        let request = &self.waiting[at].request;
        let ask = Ask {
            request: request.id,
            terms: request.terms,
            since: now,
            wakes: self.wakes,
            newest: self.waiting.back().map_or(0, |last| last.request.id),
        };
        out.push(Action::Ask {
            request: ask.request,
        });
        self.asks.push(ask);
    }

    fn take_ask(&mut self, request: u64) -> Option<Ask> {
        let at = self.asks.iter().position(|ask| ask.request == request)?;
        if let Some(at) = self.position(request) {
            self.waiting[at].is_asked = false;
        }
        Some(self.asks.remove(at))
    }

    /// Returns how many requests wait before this one.
    pub(super) fn position(&self, request: u64) -> Option<usize> {
        let found = self
            .waiting
            .binary_search_by_key(&request, |waiting| waiting.request.id);
        found.ok()
    }
}

#[cfg(test)]
mod tests;

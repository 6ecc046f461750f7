//! The wait for a majority: rounds with pauses between them.
//!
//! The tasks of one process queue for a lock in the first of its clients that is open, so that they do not vote against
//! each other. Only the head of that queue asks the servers. Processes have the lock in turns, as for any other kind,
//! except that each grant of a turn takes a round. Invariants: nothing is held during a pause, which ends early when a
//! server announces a release; contention is never an error; too few servers with a vote are an error if that lasts.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Notify;

use super::guard::{QuorumShare, reenter};
use super::handle::VOTE_TIMEOUT_MIN;
use super::hold::{QuorumHold, QuorumLocal};
use super::round::{QuorumGrant, QuorumRequest};
use super::tally::{Backoff, Tally};
use crate::api::error::{Error, Result};
use crate::api::holder::Owner;
use crate::engine::acquire::{self, LockRequest, Marks, Turn, Waiter, Woken};
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::{Hint, Mark};
use crate::engine::hold::SharedHold;
use crate::engine::hold::bound::{Bound, Over};
use crate::engine::hold::local::LocalLock;
use crate::engine::hold::queue::Wants;
use crate::engine::hold::queue::place::QueuePlace;
use crate::engine::hold::recall::recall_holder;
use crate::engine::hold::reenter::LeaseSource;
use crate::engine::listen::Listener;
use crate::observe::observer::HoldSpan;

/// The head pauses for at least this long, unless it is notified.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// A holder elsewhere is asked again to release the lock after this many poll intervals.
const POLLS_BETWEEN_RECALLS: u32 = 4;

/// The longest wait for the servers in a single round.
const SINGLE_ROUND_MAX: Duration = Duration::from_secs(1);

/// A call for a lock on several servers.
pub(super) struct Acquisition {
    pub(super) request: QuorumRequest,
    /// For a place in the local queue, with the owner of the handle if it names one.
    pub(super) queue_request: LockRequest,
    /// The holds of this process.
    pub(super) local: Arc<QuorumLocal>,
}

/// The end of one step of the head. `Continue`: another step follows, at once or after a pause. `Break`: the call ends
/// with the lock, or with `None` if the lock did not become free in time.
type Step = ControlFlow<Option<QuorumShare>>;

/// The state of the head of the local queue.
struct Head<'a> {
    place: &'a QueuePlace<'a>,
    waiter: &'a Waiter<'a>,
    bound: &'a Bound,
    /// Signalled by messages of the servers.
    notified: &'a Hint,
    /// Signalled when the head is refused, so that the call subscribes.
    refused: &'a Notify,
    backoff: Backoff,
    /// How often the head has paused.
    pauses: u32,
}

impl Acquisition {
    /// Acquires the lock, in one round if `until` is [`Tick::ZERO`]. `None`: it did not become free in time.
    pub(super) async fn run(&self, until: Tick) -> Result<Option<QuorumShare>> {
        self.queue_request.ensure_open()?;
        let bound = acquire::bound(&self.request.requests, until, self.clock().now());
        if let Some(share) = self.reenter_own(&bound).await? {
            return Ok(Some(share));
        }
        if until == Tick::ZERO {
            return self.run_single_round().await;
        }
        let place = QueuePlace::take(self.lock(), Wants::Alone(None));
        self.queue_request.queued.note(place.number());
        self.lock().note_wanted();
        let waiter = Waiter::new(&self.queue_request);
        let notified = Hint::default();
        let refused = Notify::new();
        let members = || self.request.requests.iter();
        let beside = |each: &LockRequest| Listener::beside(&each.core, &each.local, &each.name);
        let listeners: Vec<_> = members().map(beside).collect();
        let listening = async {
            // A call for a free lock does not subscribe.
            refused.notified().await;
            let all = members().zip(&listeners);
            join_all(all.map(|(request, listener)| listen(request, listener, &notified))).await;
            std::future::pending().await
        };
        let head = Head {
            place: &place,
            waiter: &waiter,
            bound: &bound,
            notified: &notified,
            refused: &refused,
            backoff: Backoff::default(),
            pauses: 0,
        };
        tokio::select! {
            biased;
            share = self.run_rounds(head) => share,
            never = listening => never,
        }
    }

    /// Runs a single round. No other round follows, so slow servers get more time than otherwise.
    async fn run_single_round(&self) -> Result<Option<QuorumShare>> {
        let mut request = self.request.clone();
        request.vote_timeout = self.request.first().give_up().min(SINGLE_ROUND_MAX);
        match request.round(request.vote_timeout).await {
            Ok(grant) => Ok(Some(self.establish(grant))),
            Err(tally) if tally.lacks_voters() => Err(self.request.error(&tally)),
            Err(_) => Ok(None),
        }
    }

    /// Waits in the local queue, and asks the servers once it is at the head.
    async fn run_rounds(&self, mut head: Head<'_>) -> Result<Option<QuorumShare>> {
        let (request, bound) = (&self.queue_request, head.bound);
        let enter = || self.reenter_own(bound);
        loop {
            match acquire::turn(request, head.place, bound, enter).await? {
                Turn::Head => {}
                Turn::Entered(share) => return Ok(Some(share)),
                Turn::Over(Over::NotInTime) => return Ok(None),
                Turn::Over(Over::Silent(why)) => return Err(self.silent(why)),
            }
            request.ensure_open()?;
            let marks = head.waiter.marks();
            if let Some(share) = enter().await? {
                return Ok(Some(share));
            }
            let Some(until) = self.local.hold().map(|hold| hold.deadline()) else {
                if let Step::Break(share) = self.run_round(&mut head, marks).await? {
                    return Ok(share);
                }
                continue;
            };
            self.lock().silence().end();
            let now = self.clock().now();
            if now >= head.deadline() {
                return Ok(None);
            }
            // The release or the loss of that hold is a hint, which ends the sleep.
            let until = until.max(now.after(WAIT_MIN)).min(head.deadline());
            head.sleep(marks, head.notified.mark(), until).await;
        }
    }

    /// Runs one round of the head, and the pause after it.
    async fn run_round(&self, head: &mut Head<'_>, marks: Marks) -> Result<Step> {
        let (clock, silence) = (self.clock(), self.lock().silence());
        let deadline = head.deadline();
        if self.back_off(head, marks).await {
            return Ok(Step::Continue(()));
        }
        let began = clock.now();
        let since = silence.begin_asking(began, head.bound);
        let end = head.bound.end(since.map_err(|why| self.silent(Some(why)))?);
        head.place.begin_attempt();
        let full = self.request.vote_timeout;
        // A shorter limit would end before healthy servers have answered.
        let least = full.min(VOTE_TIMEOUT_MIN);
        let left = began.until(end);
        let limit = if left < least { full } else { full.min(left) };
        let tally = match self.request.round(limit).await {
            Ok(grant) => {
                silence.end();
                self.note_answer(began, LocalLock::begin_turn);
                return Ok(Step::Break(Some(self.establish(grant))));
            }
            Err(tally) => tally,
        };
        let (now, mut pause_end, mut why) = (clock.now(), deadline, None);
        if !tally.lacks_voters() {
            silence.end();
            self.note_answer(began, LocalLock::seen_elsewhere);
            if now >= deadline {
                return Ok(Step::Break(None));
            }
        } else if now >= end.min(deadline) || tally.lacks_voters_for_good() {
            let error = self.request.error(&tally);
            silence.note_error(&error);
            return Err(error);
        } else if end < deadline || (end == deadline && began.until(now) >= least) {
            // If the call ends at its deadline and the servers answer soon, a last round follows there instead.
            (pause_end, why) = (end, Some(self.request.error(&tally)));
        }
        head.refused.notify_one();
        let pause = self.pause(head, marks, began.until(now), &tally);
        clock.within(now.until(pause_end), pause).await;
        let now = clock.now();
        // A call that was not polled until long after its end goes on, because the servers may answer again.
        let is_over = now.until(end) < least && end.until(now) < least;
        if let Some(error) = why.filter(|_| is_over) {
            clock.sleep_until(end).await;
            silence.note_error(&error);
            return Err(error);
        }
        Ok(Step::Continue(()))
    }

    /// If the turn of this process is over, backs off until other processes have had theirs, as far as a majority of
    /// the servers shows. Returns whether the caller has to start over: its owner may hold the lock now, or its client
    /// may be closed.
    async fn back_off(&self, head: &Head<'_>, mut marks: Marks) -> bool {
        let mut now = self.clock().now();
        let was_back = self.members().any(|member| member.lock().turns.is_back());
        let ends = self.members().map(|member| member.lock().turns.end(now));
        if !ends.fold(false, |is_back, ends| is_back | ends) {
            return false;
        }
        // Each server has turns of its own. If a turn ended at few servers at a time, no majority would ever show its
        // end.
        if !was_back {
            let goes_on = self
                .members()
                .filter(|member| !member.lock().turns.is_back());
            goes_on.for_each(|member| member.lock().turns.end_early(now));
        }
        // Leaves the second half of the time for asking.
        let limit = now.after(now.until(head.deadline()) / 2);
        loop {
            let mark = head.notified.mark();
            let until = self.members().map(|member| member.back_off_end(now));
            let mut until: Vec<Tick> = until.map(|until| until.unwrap_or(now)).collect();
            until.sort_unstable();
            let until = until[self.request.quorum() - 1].min(limit);
            if until <= now {
                return false;
            }
            head.refused.notify_one();
            match head.sleep(marks, mark, until).await {
                Woken::Gained => return true,
                Woken::Timer => return false,
                Woken::Hint | Woken::HandedOff => {}
            }
            marks = head.waiter.marks_after_messages(marks);
            now = self.clock().now();
        }
    }

    /// Notes the round trip to the majority, and what its answer means for the turns at each server.
    fn note_answer(&self, began: Tick, note: impl Fn(&LocalLock, Tick)) {
        let now = self.clock().now();
        for member in self.members() {
            member.lock().turns.note_trip(began.until(now));
            note(member, now);
        }
    }

    /// Returns the client's state of the lock for each server.
    fn members(&self) -> impl Iterator<Item = &LocalLock> {
        self.request.requests.iter().map(|request| &*request.local)
    }

    /// Pauses after a round without a majority that took `round`.
    async fn pause(&self, head: &mut Head<'_>, marks: Marks, round: Duration, tally: &Tally) {
        let clock = self.clock();
        let now = clock.now();
        let chances = [fastrand::f64(), fastrand::f64()];
        let remaining = tally.remaining();
        let request = self.request.first();
        let polled = request.options.polled.map(|polled| {
            let pause = polled.pause(head.pauses, fastrand::f64());
            pause.min(request.core.timing.poll_cap)
        });
        let has_votes = tally.has_votes();
        let pause = (head.backoff).pause(round, has_votes, remaining, chances, polled);
        head.pauses = head.pauses.saturating_add(1);
        let [least, most] = [pause.least, pause.most].map(|span| now.after(span));
        let mark = head.notified.mark();
        head.waiter.rest(marks, Some(head.place), most);
        clock.sleep_until(least).await;
        head.sleep(marks, mark, most).await;
    }

    /// Makes the hold of a majority's grant.
    fn establish(&self, grant: QuorumGrant) -> QuorumShare {
        let owner = self.queue_request.options.owner.clone();
        let owner = owner.unwrap_or_else(Owner::new);
        let (hold, guard) = QuorumHold::granted(self.request.clone(), owner, &self.local, grant);
        QuorumShare::new(hold, guard, HoldSpan::default())
    }

    /// Adds a share for the owner of this call, if it holds the lock.
    async fn reenter_own(&self, bound: &Bound) -> Result<Option<QuorumShare>> {
        let owner = self.queue_request.options.owner.as_ref();
        let is_own = |hold: &Arc<QuorumHold>| owner == Some(&hold.owner);
        let Some(hold) = self.local.hold().filter(is_own) else {
            return Ok(None);
        };
        let entry = LeaseSource::Asked(self.request.first().policy);
        reenter(&self.request, &hold, entry, bound).await
    }

    /// Returns the local queue.
    fn lock(&self) -> &Arc<LocalLock> {
        &self.queue_request.local
    }

    fn clock(&self) -> Clock {
        self.queue_request.core.clock
    }

    /// Returns the error of a call that ends without an answer: the error of the calls that asked before it, if known.
    fn silent(&self, why: Option<Error>) -> Error {
        let request = &self.request;
        let all_down = || request.error(&Tally::all_down(request.requests.len()));
        why.map_or_else(all_down, |why| self.queue_request.silent(Some(why)))
    }
}

impl Head<'_> {
    fn deadline(&self) -> Tick {
        self.bound.deadline()
    }

    /// Sleeps until a message of a server after the mark `message`, a local event after `marks`, or the time `until`.
    async fn sleep(&self, marks: Marks, message: Mark, until: Tick) -> Woken {
        self.waiter.rest(marks, Some(self.place), until);
        tokio::select! {
            biased;
            () = self.notified.changed_since(message) => Woken::Hint,
            woken = self.waiter.wait(marks, None, until) => woken,
        }
    }
}

/// Signals `notified` each time the lock may have become free at this server. Does not subscribe for a polled call,
/// which would be notified of the releases of its own votes. Ends with the client.
async fn listen(request: &LockRequest, listener: &Listener, notified: &Hint) {
    let LockRequest {
        core, local, name, ..
    } = request;
    let pause = core.timing.poll_cap * POLLS_BETWEEN_RECALLS;
    while !core.is_closed() {
        let mark = listener.mark();
        recall_holder(core, local, name.key());
        let is_listening = || request.options.polled.is_none() && listener.subscribe();
        let is_heard = is_listening();
        listener.wait(mark, core.clock.now().after(pause)).await;
        // No message arrives before the subscription has begun. Its beginning is a hint, too, because earlier messages
        // were missed.
        if listener.mark() != mark && (is_heard || is_listening()) {
            notified.notify();
        }
    }
}

#[cfg(test)]
mod tests {
    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::conn::Lane;
    use crate::redlock::{Redlock, RedlockLock};
    use crate::testing::{Answer, Scripted, elsewhere, granted};

    const MS: Duration = Duration::from_millis(1);

    /// A client of the server at this address, which grants the lock or not.
    fn client(address: &'static str, grants: bool) -> Client {
        let server = Scripted::at(address, move |sent| match sent.is_release() {
            true => Answer::Value(Value::Int(1)),
            false if grants => Answer::Value(granted()),
            false => Answer::Value(elsewhere(30_000)),
        });
        Client::over(&server, MS * 30_000)
    }

    fn lock_of(clients: [&Client; 3]) -> RedlockLock {
        let redlock = Redlock::builder(clients.map(Client::clone)).persistent_nodes();
        redlock.build().unwrap().lock("x")
    }

    /// One server is part of both.
    #[tokio::test(start_paused = true)]
    async fn a_call_does_not_queue_behind_one_for_the_lock_on_other_servers() {
        let [a, d, e] = ["a:1", "d:4", "e:5"].map(|address| client(address, true));
        let [b, c] = ["b:2", "c:3"].map(|address| client(address, false));
        let refused = lock_of([&a, &b, &c]);
        let waits = tokio::spawn(async move { refused.lock().await.map(drop) });
        tokio::time::sleep(MS * 100).await;
        let got = lock_of([&a, &d, &e]).try_lock_for(MS * 1_000).await;
        assert!(got.unwrap().is_some());
        assert!(!waits.is_finished());
        waits.abort();
    }

    /// The two others are a majority.
    #[tokio::test(start_paused = true)]
    async fn calls_queue_in_the_next_client_when_the_first_is_shut_down() {
        let [a, b, c] = ["a:1", "b:2", "c:3"].map(|address| client(address, true));
        let other = lock_of([&c, &b, &a]);
        let lock = other.clone().owner(&Owner::new());
        let guard = lock.lock().await.unwrap();
        // The third server joins.
        tokio::time::sleep(MS * 100).await;
        a.shutdown().await.unwrap();
        let again = lock.lock().await.unwrap();
        assert_eq!(again.hold_count(), 2, "its owner enters the hold");
        let refused = other.try_lock_for(MS * 100).await;
        assert!(refused.unwrap().is_none(), "this process has it");
        let waits = tokio::spawn(async move { other.lock().await });
        tokio::time::sleep(MS * 100).await;
        assert!(!waits.is_finished());
        guard.release().await.unwrap();
        again.release().await.unwrap();
        let next = tokio::time::timeout(MS * 100, waits).await;
        drop(next.expect("it is woken").unwrap().unwrap());
    }

    #[tokio::test(start_paused = true)]
    async fn a_polled_call_asks_after_its_pauses_and_does_not_subscribe() {
        let server = Scripted::new(|sent| match sent.is_release() {
            true => Answer::Value(Value::Int(1)),
            false if sent.at < MS * 1_000 => Answer::Value(elsewhere(30_000)),
            false => Answer::Value(granted()),
        });
        let client = Client::over(&server, MS * 30_000);
        let redlock = Redlock::builder([client]).persistent_nodes();
        let lock = redlock.build().unwrap().lock("x");
        let pauses = crate::Backoff::from(MS * 300).jitter(0);
        let guard = lock.polled(pauses).lock().await.unwrap();
        assert!(server.times(Lane::Push).is_empty());
        let asked = [0, 300, 600, 900, 1_200].map(|at| MS * at);
        assert_eq!(server.times(Lane::Command), asked);
        drop(guard);
    }

    /// The release of its own vote is no reason to ask.
    #[tokio::test(start_paused = true)]
    async fn a_polled_call_with_a_vote_asks_after_its_pauses() {
        let servers = ["a:1", "b:2", "c:3"].map(|address| {
            Scripted::at(address, move |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false if address == "c:3" => Answer::Value(granted()),
                false => Answer::Value(elsewhere(30_000)),
            })
        });
        let clients = (servers.each_ref()).map(|server| Client::over(server, MS * 30_000));
        let lock = lock_of(clients.each_ref());
        let lock = lock.polled(crate::Backoff::from(MS * 300).jitter(0));
        let free = lock.try_lock_for(MS * 1_000).await.unwrap();
        assert!(free.is_none());
        let asked = [0, 300, 600, 900, 1_000].map(|at| MS * at);
        assert_eq!(servers[0].times(Lane::Command), asked);
    }

    #[tokio::test(start_paused = true)]
    async fn a_last_round_at_the_deadline_finds_servers_that_are_back() {
        let servers = ["a:1", "b:2", "c:3"].map(|address| {
            Scripted::at(address, move |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false if sent.at < MS * 950 => Answer::Error("LOADING x"),
                false => Answer::Value(granted()),
            })
        });
        let clients = (servers.each_ref()).map(|server| Client::over(server, MS * 30_000));
        let lock = lock_of(clients.each_ref());
        let lock = lock.polled(crate::Backoff::from(MS * 300).jitter(0));
        let got = lock.try_lock_for(MS * 1_000).await.unwrap();
        assert!(got.is_some(), "{:?}", servers[0].times(Lane::Command));
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_at_silent_servers_ends_at_its_limit() {
        let silent =
            |address| Client::over(&Scripted::at(address, |_| Answer::Silence), MS * 30_000);
        let [a, b, c] = ["a:1", "b:2", "c:3"].map(silent);
        for limit in [300, 600, 1_100, 1_600].map(|limit| MS * limit) {
            let lock = lock_of([&a, &b, &c]).give_up_after(limit);
            let since = tokio::time::Instant::now();
            assert!(lock.lock().await.unwrap_err().is_quorum());
            let took = since.elapsed();
            assert!(
                (limit..=limit + MS * 2).contains(&took),
                "{limit:?}: {took:?}"
            );
        }
        for wait in (1_000..1_600).step_by(50).map(|wait| MS * wait) {
            let since = tokio::time::Instant::now();
            let got = lock_of([&a, &b, &c]).try_lock_for(wait).await;
            assert!(got.unwrap_err().is_quorum());
            let took = since.elapsed();
            assert!((wait..=wait + MS * 2).contains(&took), "{wait:?}: {took:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_call_that_was_not_polled_until_its_limit_asks_again() {
        let later = |address| {
            let server = Scripted::at(address, |sent| match sent.is_release() {
                true => Answer::Value(Value::Int(1)),
                false if sent.at < MS * 2_000 => Answer::Silence,
                false => Answer::Value(granted()),
            });
            Client::over(&server, MS * 30_000)
        };
        let [a, b, c] = ["a:1", "b:2", "c:3"].map(later);
        let lock = lock_of([&a, &b, &c]).give_up_after(MS * 1_100);
        let mut call = Box::pin(lock.lock());
        // Its first round has had no answer.
        let early = tokio::time::timeout(MS * 502, &mut call).await;
        assert!(early.is_err());
        tokio::time::sleep(MS * 10_000).await;
        drop(call.await.unwrap());
    }

    /// The servers answer again, after more time than is left for the last round.
    #[tokio::test(start_paused = true)]
    async fn a_short_last_round_says_nothing_about_the_servers() {
        for (pause, rounds) in [(970, 1), (900, 2)] {
            let since = tokio::time::Instant::now();
            let servers = ["a:1", "b:2", "c:3"].map(|address| {
                Scripted::at(address, move |sent| match sent.is_release() {
                    true => Answer::Value(Value::Int(1)),
                    false if since.elapsed() < MS * 500 => Answer::Error("OOM full"),
                    false => Answer::Late(MS * 200, granted()),
                })
            });
            let [a, b, c] = servers
                .each_ref()
                .map(|server| Client::over(server, MS * 30_000));
            let lock = lock_of([&a, &b, &c]).give_up_after(MS * 1_000);
            let polled = lock
                .clone()
                .polled(crate::Backoff::from(MS * pause).jitter(0));
            let error = polled
                .lock()
                .await
                .map(drop)
                .map_err(|error| error.to_string());
            let asked = servers[0].times(Lane::Command);
            let error = error.expect_err(&format!("{asked:?}"));
            assert!((MS * 1_000..=MS * 1_002).contains(&since.elapsed()));
            assert_eq!(error.contains("no answer"), rounds > 1, "{error}");
            for (at, server) in servers.iter().enumerate() {
                assert_eq!(server.times(Lane::Command).len(), rounds);
                assert!(!lock.0.servers.is_down(at), "{at}");
            }
            drop(lock.lock().await.unwrap());
        }
    }
}

//! The background work for the calls of a client: the watch that wakes their queue, and their requests to the server.
//!
//! The watch wakes the queue at messages and at the times that the queue plans. A request asks for the permits of a
//! call, or undoes an attempt. Invariants: an attempt names ids that no other attempt has, so it may run twice. If a
//! request without an answer may still arrive, its ids are not used again. A possible grant without a guard is undone
//! behind the attempt, on the same lane.

use std::mem;
use std::pin::pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::client::{Caller, ClientSemaphore, Held, State, Wanted};
use super::permits::{Permit, Permits};
use super::queue::{Event, PLACES_MAX};
use crate::api::error::{Error, Result};
use crate::api::holder::HolderId;
use crate::api::loss::LostReason;
use crate::api::options::margin;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hint::Mark;
use crate::engine::hold::facts::ask_why;
use crate::engine::listen::Listener;
use crate::observe::counts::GrantedBy;
use crate::script::reply::{self, Permitted};
use crate::script::{
    Answer, Call, CallBudget, Executed, Failure, Script, catalog, millis, once_sent,
};
use crate::watchdog::{Leased, Work};

const MS: Duration = Duration::from_millis(1);

impl ClientSemaphore {
    /// Wakes the queue at messages and at the times that the queue plans, for as long as a request waits. Each time,
    /// takes back permits that their calls have not taken.
    pub(super) async fn watch(semaphore: Weak<Self>) {
        let mut listening: Option<(Listener, Mark)> = None;
        while let Some(this) = semaphore.upgrade() {
            let changed = this.changed.mark();
            let Some((wake_at, listens)) = this.plan() else {
                return;
            };
            let is_first = listening.is_none();
            let mut listening = listens.then(|| listening.get_or_insert_with(|| this.listen()));
            let is_heard = listening
                .as_ref()
                .is_some_and(|(listener, _)| listener.subscribe());
            // The subscription may have delivered a message before the refusal arrived.
            let mut is_woken = is_first && is_heard;
            if !is_woken {
                let heard = async {
                    match &listening {
                        Some((listener, seen)) => listener.wait(*seen, wake_at).await,
                        None => this.core().clock.sleep_until(wake_at).await,
                    }
                };
                tokio::select! {
                    biased;
                    () = heard => {}
                    () = this.changed.changed_since(changed) => {}
                }
            }
            if let Some((listener, seen)) = &mut listening {
                // A message that comes after this look ends the next wait at once.
                let before = mem::replace(seen, listener.mark());
                is_woken |= *seen != before;
            }
            this.take_back_missed();
            let event = match is_woken {
                true => Event::Woken,
                false => Event::Timer,
            };
            this.on(event, Ok(None));
        }
    }

    /// Returns when the watch wakes next, and whether it listens. `None` ends the watch.
    fn plan(&self) -> Option<(Tick, bool)> {
        let mut state = self.state.lock();
        state.planned = state.plan().filter(|_| !self.core().is_closed());
        state.planned
    }

    fn listen(&self) -> (Listener, Mark) {
        let channel = self.origin.name.semaphore_channel();
        let listener = Listener::new(self.core(), self.origin.name.key(), &channel);
        let seen = listener.mark();
        (listener, seen)
    }
}

/// One request to the server.
struct Attempt {
    request: u64,
    wanted: Wanted,
    ids: Vec<(u64, HolderId)>,
    /// Whether an earlier request under other ids may still arrive.
    is_in_doubt: bool,
    /// The request that asks, and other requests whose places it keeps, with their waiters.
    places: Vec<(u64, HolderId)>,
    /// How often this request has asked before.
    before: u32,
    /// How long the attempt goes on without an answer.
    silence: Duration,
}

impl ClientSemaphore {
    /// Makes the work that asks the server for the permits of a request.
    pub(super) fn asking(self: &Arc<Self>, state: &mut State, request: u64) -> Option<Work> {
        if self.core().is_closed() {
            return None;
        }
        let places = Self::places(state, request);
        let caller = state.callers.get_mut(&request)?;
        let (wanted, waiter) = (caller.wanted, caller.waiter);
        let before = caller.attempts;
        caller.attempts = before.saturating_add(1);
        let now = self.core().clock.now();
        let budget = wanted.bound.call_budget(now, now);
        let this = Arc::clone(self);
        let attempt = Attempt {
            request,
            wanted,
            ids: self.new_ids(&wanted),
            is_in_doubt: false,
            places: std::iter::once((request, waiter)).chain(places).collect(),
            before,
            silence: now.until(budget.deadline),
        };
        let work = async move { this.attempt(attempt, budget).await };
        Some(work.boxed())
    }

    fn new_ids(&self, wanted: &Wanted) -> Vec<(u64, HolderId)> {
        let permits = 0..wanted.terms.permits;
        permits.map(|_| self.core().new_holder()).collect()
    }

    /// Returns the other waiters for which an attempt of this request takes or keeps places in the server's queue.
    fn places(state: &mut State, request: u64) -> Vec<(u64, HolderId)> {
        let takes_place = |caller: &&mut Caller| caller.wanted.takes_place();
        let asks = state.callers.get_mut(&request).filter(takes_place);
        let Some(asks) = asks else {
            return Vec::new();
        };
        asks.has_place = true;
        // Leaves out requests that ask themselves: they take their own places, and have left them again if the server
        // has granted them.
        let others = state.queue.unasked();
        let mut places = Vec::new();
        for id in others.take(PLACES_MAX) {
            if let Some(other) = state.callers.get_mut(&id).filter(takes_place) {
                other.has_place = true;
                places.push((id, other.waiter));
            }
        }
        places
    }

    /// Asks until the answer is beyond doubt. `None` if the client is closed.
    async fn answer(
        &self,
        attempt: &mut Attempt,
        budget: CallBudget,
    ) -> Option<Result<Answer, Failure>> {
        let (core, lane) = (self.core(), Lane::Command);
        loop {
            let call = self.acquire_call(attempt);
            let answer = core
                .until_closed(core.scripts.run(lane, &call, budget))
                .await;
            if !matches!(&answer, Some(Ok(answer)) if answer.is_in_doubt) {
                return answer;
            }
            // The first request may still arrive, and would take these permits again after their release.
            let ids = attempt.ids.iter().map(|(_, id)| *id);
            self.undo("", ids.clone(), &attempt.wanted);
            // Waits for the release, because otherwise the next request would not find the permits free.
            let release = self.release_call("", ids);
            core.until_closed(core.scripts.run(lane, &release, budget))
                .await;
            attempt.ids = self.new_ids(&attempt.wanted);
            attempt.is_in_doubt = true;
        }
    }

    async fn attempt(self: Arc<Self>, mut attempt: Attempt, budget: CallBudget) {
        let core = self.core();
        let moved = core.locals.moved.mark();
        let answer = self.answer(&mut attempt, budget).await;
        let (request, wanted) = (attempt.request, &attempt.wanted);
        self.leave_gone(&attempt);
        let undo = || self.undo("", attempt.ids.iter().map(|(_, id)| *id), wanted);
        let answer = match answer {
            Some(Ok(answer)) => answer,
            None => return undo(),
            Some(Err(failure)) => {
                if failure.executed == Executed::Maybe {
                    undo();
                }
                // Without a final answer, the attempt was repeated for this long.
                let silence = (!failure.is_final_answer()).then_some(attempt.silence);
                let error = self.of_this(failure.into_error(wanted.operation));
                return self.on(Event::Failed { request, silence }, Err(error));
            }
        };
        let error = match reply::permitted(&answer.value) {
            Ok(Permitted::Taken) => {
                let (terms, sent) = (wanted.terms, answer.sent);
                let granted = |id: &(u64, HolderId)| {
                    Permit::granted(&self.origin, *id, terms.policy, sent, moved)
                };
                let permits = attempt.ids.iter().map(granted);
                let held = Held {
                    semaphore: Arc::clone(&self),
                    permits: Some(Permits(permits.collect())),
                    terms,
                    give_up: wanted.give_up,
                    by: GrantedBy::Server,
                    done: None,
                };
                // The grant has removed the call that asked from the server's queue, unless an earlier request still
                // arrives.
                if terms.is_fair
                    && !attempt.is_in_doubt
                    && let Some(asked) = self.state.lock().callers.get_mut(&request)
                {
                    asked.has_place = false;
                }
                return self.on(Event::Granted { request }, Ok(Some(held)));
            }
            Ok(Permitted::Refused { first_end }) => {
                let cap = core.timing.poll_cap;
                let retry_in = first_end.map_or(cap, |end| end.saturating_add(MS)).min(cap);
                let retry_in = match wanted.polled {
                    Some(polled) => retry_in.min(polled.pause(attempt.before, fastrand::f64())),
                    None => retry_in,
                };
                return self.on(Event::Refused { request, retry_in }, Ok(None));
            }
            Ok(Permitted::NotDeclared) => Error::invalid(
                wanted.operation,
                "nobody has declared how many permits the semaphore has; say it with `permits`",
            ),
            Ok(Permitted::Otherwise { total }) => otherwise(wanted, total),
            Err(error) => error,
        };
        let error = self.of_this(error);
        let silence = None;
        self.on(Event::Failed { request, silence }, Err(error));
    }

    fn acquire_call(&self, attempt: &Attempt) -> Call {
        let wanted = &attempt.wanted;
        let heartbeat = match (wanted.terms.is_fair, wanted.waits()) {
            (false, _) => 0,
            (true, false) => -1,
            (true, true) => i64::try_from(millis(self.core().timing.heartbeat)).unwrap_or(i64::MAX),
        };
        let mut call = self
            .script(&catalog::SEMAPHORE_ACQUIRE, heartbeat != 0)
            .arg(millis(wanted.terms.policy.lease()))
            .arg(wanted.terms.permits)
            .arg(wanted.terms.declared)
            .arg(self.origin.name.semaphore_channel())
            .arg(self.core().channels().publish())
            .arg(heartbeat);
        for (_, id) in &attempt.ids {
            call = call.arg(&**id);
        }
        if heartbeat != 0 {
            for (_, place) in &attempt.places {
                call = call.arg(&**place);
            }
        }
        call
    }

    fn release_call(&self, waiter: &str, ids: impl Iterator<Item = HolderId>) -> Call {
        let call = self
            .script(&catalog::SEMAPHORE_RELEASE, !waiter.is_empty())
            .arg(self.origin.name.semaphore_channel())
            .arg(self.core().channels().publish())
            .arg(waiter);
        ids.fold(call, |call, id| call.arg(&*id))
    }

    /// Names the keys of the queue only if the call uses them: each key costs the server time.
    fn script(&self, script: &'static Script, with_queue: bool) -> Call {
        let (name, timeouts) = (&self.origin.name, &*self.origin.timeouts);
        if !with_queue {
            return Call::new(script, name.key(), &[name.key(), timeouts]);
        }
        let [queue, alive] = [name.semaphore_queue_key(), name.semaphore_alive_key()];
        Call::new(script, name.key(), &[name.key(), timeouts, &queue, &alive])
    }

    /// Removes a place in the server's queue in the background, behind the attempts that may have made it.
    pub(super) fn leave(&self, caller: &Caller) {
        if caller.has_place {
            self.undo(&caller.waiter, std::iter::empty(), &caller.wanted);
        }
    }

    /// Removes the places that an attempt has kept for callers which left during it. The commands that removed these
    /// places when the callers left may have overtaken the attempt.
    fn leave_gone(&self, attempt: &Attempt) {
        let wanted = &attempt.wanted;
        if !wanted.takes_place() {
            return;
        }
        let gone: Vec<HolderId> = {
            let state = self.state.lock();
            let gone = attempt.places.iter();
            let gone = gone.filter(|(request, _)| !state.callers.contains_key(request));
            gone.map(|(_, waiter)| *waiter).collect()
        };
        for waiter in gone {
            self.undo(&waiter, std::iter::empty(), wanted);
        }
    }

    /// Releases what the server may have given to an attempt: permits, or the place of a waiter.
    fn undo(&self, waiter: &str, ids: impl Iterator<Item = HolderId>, wanted: &Wanted) {
        let (call, lease) = (self.release_call(waiter, ids), wanted.terms.policy.lease());
        self.core().undo_later(call, lease, (None, None));
    }

    fn released(
        &self,
        answer: &Answer,
        permits: &Permits,
        deadline: Option<Tick>,
        loss: Option<LostReason>,
    ) -> Result<()> {
        let removed =
            reply::permits_released(&answer.value).map_err(|error| self.of_this(error))?;
        let was_in_time = deadline.is_some_and(|deadline| answer.first_sent < deadline);
        let count = u64::from(permits.len());
        match loss {
            Some(reason) => Err(self.not_held(reason)),
            None if removed == count || (answer.repeated && was_in_time) => Ok(()),
            None if was_in_time => {
                // The loss was never reported, and only this caller will learn of it.
                let ask = |permit: &Arc<Permit>| ask_why(self.core(), self.name(), &permit.id);
                permits.0.iter().for_each(ask);
                Err(self.not_held(LostReason::Revoked))
            }
            None => Err(self.not_held(LostReason::Expired)),
        }
    }
}

impl Held {
    /// Makes the work that releases permits that no guard has.
    pub(super) fn releasing(mut self) -> Option<Work> {
        let permits = self.permits.take()?;
        let (done, lease) = (self.done.take(), self.terms.policy.lease());
        let (this, give_up) = (Arc::clone(&self.semaphore), self.give_up);
        // A release without a caller is sent by the background task, and counts as unsent until then.
        let unsent = usize::from(done.is_none());
        this.unsent.fetch_add(unsent, Ordering::Relaxed);
        let work = async move {
            let core = this.core();
            let deadlines = || permits.0.iter().map(|permit| permit.deadline());
            let deadline = deadlines().min();
            // The server has none of the permits after this.
            let last = deadlines().max().unwrap_or_default().after(margin(lease));
            let loss = permits.release();
            let call = this.release_call("", permits.0.iter().map(|permit| permit.id));
            let (now, reply) = (core.clock.now(), core.timing.reply);
            let until = now.after(give_up).min(last.max(now.after(reply)));
            let budget = CallBudget::until(until, reply);
            let sent = || _ = this.unsent.fetch_sub(unsent, Ordering::Relaxed);
            let run = core.scripts.run(Lane::Command, &call, budget);
            let answer = once_sent(pin!(run), sent).await;
            let outcome = match answer {
                Ok(answer) => this.released(&answer, &permits, deadline, loss),
                Err(failure) => {
                    core.undo_later(call, lease, (None, None));
                    Err(this.of_this(failure.into_error("release")))
                }
            };
            if let Some(done) = done {
                drop(done.send(outcome));
            }
        };
        Some(work.boxed())
    }
}

/// Returns the error of a call that declares another number of permits than `total`, or asks for more.
fn otherwise(wanted: &Wanted, total: i64) -> Error {
    let (declared, permits) = (wanted.terms.declared, wanted.terms.permits);
    let message = match declared {
        0 => format!("{permits} of {total} permits are never free; acquire fewer"),
        _ => format!(
            "the semaphore was declared with {total} permits, not with {declared}; declare the same number \
             everywhere, or `resize` it"
        ),
    };
    Error::invalid(wanted.operation, message)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32};

    use futures_util::future::join_all;
    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::conn::EventHandler as _;
    use crate::testing::{Answer, Scripted, Sent, elsewhere};

    /// The watch sleeps while an attempt is under way, and no message comes after that.
    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_the_last_call() {
        let server = Scripted::new(|sent| match sent.words.get(1) {
            Some(word) if word == catalog::SEMAPHORE_ACQUIRE.sha() => {
                let refused = Value::Array(vec![Value::Int(0), Value::Int(30_000)]);
                Answer::Late(MS * 50, refused)
            }
            _ => Answer::Value(Value::Okay),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let core = Arc::downgrade(client.core());
        let waiting = async move { client.semaphore("x").acquire().await };
        let waited = tokio::time::timeout(MS * 75, waiting).await;
        assert!(waited.is_err(), "refused once, and asks again");
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(server.sent().len(), 4, "two attempts, and a subscription");
        assert_eq!(core.strong_count(), 0, "the client is gone");
    }

    /// Nothing else may wake the watch: the call does not listen, and its future is not polled again.
    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_its_client_beside_a_call_that_is_not_polled() {
        let server = Scripted::new(|_| Answer::Late(MS * 50, Value::Int(1)));
        let client = Client::over(&server, Duration::from_secs(30));
        let core = Arc::downgrade(client.core());
        let semaphore = client.semaphore("x");
        let mut call = Box::pin(semaphore.try_acquire_for(Duration::from_secs(3_600)));
        assert!((&mut call).now_or_never().is_none());
        tokio::time::sleep(MS * 10).await;
        client.shutdown().await.unwrap();
        drop(call);
        drop(semaphore);
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(core.strong_count(), 0, "the client is gone");
    }

    /// The last call asks when the others are answered, and until then its deadline wakes the watch.
    #[tokio::test(start_paused = true)]
    async fn the_watch_ends_with_the_last_of_many_calls_with_a_deadline() {
        let server = Scripted::new(|_| Answer::Late(MS * 10, Value::Int(1)));
        let client = Client::over(&server, Duration::from_secs(30));
        let core = Arc::downgrade(client.core());
        let semaphore = client.semaphore("x").permits(100);
        let call = || semaphore.try_acquire_for(Duration::from_secs(3_600));
        let guards = join_all((0..65).map(|_| call())).await;
        assert!(guards.iter().all(|guard| matches!(guard, Ok(Some(_)))));
        drop((guards, semaphore, client));
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(core.strong_count(), 0, "the client is gone");
    }

    /// The attempt has no answer, so an open client would repeat it.
    #[tokio::test(start_paused = true)]
    async fn a_closed_client_asks_for_no_permits() {
        let is_attempt = |words: &[String]| {
            let script = words.get(1);
            script.is_some_and(|word| word == catalog::SEMAPHORE_ACQUIRE.sha())
        };
        let server = Scripted::new(move |sent| match is_attempt(&sent.words) {
            true => Answer::Silence,
            false => Answer::Value(Value::Int(0)),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let semaphore = client.semaphore("x").permits(1);
        let mut waiting = std::pin::pin!(semaphore.acquire());
        let waited = tokio::time::timeout(MS * 50, &mut waiting).await;
        assert!(waited.is_err());
        client.shutdown().await.unwrap();
        tokio::time::sleep(Duration::from_secs(60)).await;
        let sent = server.sent();
        let attempts = sent.iter().filter(|sent| is_attempt(&sent.words));
        assert_eq!(attempts.count(), 1, "{sent:?}");
        let is_release = |word: &String| word == catalog::SEMAPHORE_RELEASE.sha();
        assert!(
            sent.iter().any(|sent| sent.words.iter().any(is_release)),
            "what it may have got is released"
        );
    }

    fn is_attempt(sent: &Sent) -> bool {
        sent.words[1] == catalog::SEMAPHORE_ACQUIRE.sha()
    }

    /// The first attempt has no answer, and nothing rules out that it arrives late.
    fn with_a_doubtful_attempt() -> Arc<Scripted> {
        let asked = AtomicU32::new(0);
        Scripted::with_past(false, move |sent| match is_attempt(sent) {
            true if asked.fetch_add(1, Ordering::Relaxed) == 0 => Answer::Silence,
            true => Answer::Value(Value::Int(1)),
            false => Answer::Value(Value::Array(vec![Value::Int(1), Value::Int(0)])),
        })
    }

    /// Otherwise the late attempt would take its ids again after their release.
    #[tokio::test(start_paused = true)]
    async fn permits_of_an_attempt_in_doubt_are_given_back_and_asked_for_under_other_ids() {
        let server = with_a_doubtful_attempt();
        let client = Client::over(&server, Duration::from_secs(30));
        let semaphore = client.semaphore("x").permits(1);
        let guard = semaphore.acquire().await.unwrap();
        let sent = server.sent();
        let attempts = sent.iter().filter(|sent| is_attempt(sent));
        let ids: Vec<_> = attempts.map(|sent| sent.words.last()).collect();
        assert_eq!(ids.len(), 3, "{sent:?}");
        assert_eq!(ids[0], ids[1], "the repeat is the same");
        assert_ne!(ids[1], ids[2]);
        let given_back = sent.iter().position(|sent| !is_attempt(sent)).unwrap();
        assert_eq!(sent[given_back].words.last(), ids[0]);
        assert!(
            given_back < sent.len() - 1,
            "before it asks again: {sent:?}"
        );
        guard.release().await.unwrap();
    }

    /// Otherwise the permit would not be free yet.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_goes_behind_the_release_of_a_guard_that_was_dropped_before() {
        let server = Scripted::new(move |sent| match is_attempt(sent) {
            true => Answer::Late(MS, Value::Int(1)),
            false => Answer::Late(MS, Value::Array(vec![Value::Int(1), Value::Int(0)])),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let semaphore = client.semaphore("x").permits(1);
        for _ in 0..3 {
            drop(semaphore.try_acquire().await.unwrap().unwrap());
        }
        client.shutdown().await.unwrap();
        let sent = server.sent();
        let attempts: Vec<_> = sent.iter().map(is_attempt).collect();
        assert_eq!(attempts, [true, false].repeat(3));
    }

    /// A server that answers attempts as long as it is up, and then nothing.
    fn until_it_is_down(is_down: &Arc<AtomicBool>) -> Arc<Scripted> {
        let is_down = Arc::clone(is_down);
        Scripted::new(move |_| match is_down.load(Ordering::Relaxed) {
            true => Answer::Silence,
            false => Answer::Value(Value::Int(1)),
        })
    }

    #[tokio::test(start_paused = true)]
    async fn a_release_ends_with_the_lease_or_as_its_handle_says() {
        let is_down = Arc::new(AtomicBool::new(false));
        let server = until_it_is_down(&is_down);
        let client = Client::over(&server, Duration::from_secs(30));
        let core = Arc::downgrade(client.core());
        let semaphore = client.semaphore("x").permits(3);
        let patient = semaphore.clone().give_up_after(Duration::MAX);
        let guards = [patient.acquire().await, patient.acquire().await].map(Result::unwrap);
        let soon = semaphore.give_up_after(MS * 500).acquire().await.unwrap();
        is_down.store(true, Ordering::Relaxed);
        let began = tokio::time::Instant::now();
        assert!(soon.release().await.unwrap_err().is_io());
        assert!(
            began.elapsed() < Duration::from_secs(1),
            "{:?}",
            began.elapsed()
        );
        let [released, dropped] = guards;
        drop(dropped);
        assert!(released.release().await.is_err());
        assert!(
            began.elapsed() < Duration::from_secs(32),
            "{:?}",
            began.elapsed()
        );
        drop((client, patient));
        tokio::time::sleep(Duration::from_secs(120)).await;
        assert_eq!(core.strong_count(), 0, "nothing goes on");
    }

    /// Each call has its own limit, and all begin together.
    #[tokio::test(start_paused = true)]
    async fn calls_behind_one_that_is_refused_for_a_while_end_with_it() {
        let is_loading = Arc::new(AtomicBool::new(false));
        let loads = Arc::clone(&is_loading);
        let server = Scripted::new(move |sent| match is_attempt(sent) {
            true if loads.load(Ordering::Relaxed) => Answer::Error("LOADING a moment"),
            true => Answer::Value(Value::Array(vec![Value::Int(0), Value::Int(100)])),
            false => Answer::Value(Value::Okay),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let semaphore = client.semaphore("x").give_up_after(Duration::from_secs(1));
        let calls: Vec<_> = (0..5)
            .map(|_| {
                let semaphore = semaphore.clone();
                tokio::spawn(async move { semaphore.acquire().await.map(drop) })
            })
            .collect();
        tokio::time::sleep(MS * 500).await;
        is_loading.store(true, Ordering::Relaxed);
        let began = tokio::time::Instant::now();
        for call in calls {
            let error = call.await.unwrap().unwrap_err();
            assert!(error.is_transient(), "{error}");
        }
        assert!(
            began.elapsed() < Duration::from_secs(3),
            "{:?}",
            began.elapsed()
        );
    }

    /// No task reads the guard in between.
    #[tokio::test(start_paused = true)]
    async fn the_permits_of_a_guard_are_lost_with_their_client_and_left_to_their_leases() {
        let server = Scripted::new(|_| Answer::Value(Value::Int(1)));
        let client = Client::over(&server, Duration::from_secs(30));
        let semaphore = client.semaphore("x").permits(2);
        let [dropped, released] = [semaphore.acquire().await, semaphore.acquire().await];
        let core = Arc::clone(client.core());
        client.clone().shutdown().await.unwrap();
        let losses = core.observed().counts.totals().losses;
        assert_eq!(losses.of(LostReason::Closed), 2);
        tokio::time::sleep(Duration::from_secs(31)).await;
        let dropped = dropped.unwrap();
        assert_eq!(dropped.loss().reason(), Some(LostReason::Closed));
        drop(dropped);
        let error = released.unwrap().release().await.unwrap_err();
        assert!(error.is_not_held(), "{error}");
        tokio::time::sleep(Duration::from_secs(60)).await;
        let sent = server.sent();
        assert_eq!(sent.len(), 2, "other clients wait for the leases: {sent:?}");
    }

    /// The renewal is due while the client is being closed, which takes longer because of a call that is not polled.
    #[tokio::test(start_paused = true)]
    async fn a_permit_whose_renewal_is_due_at_a_shutdown_is_lost_with_its_client() {
        let server = Scripted::new(|sent| match is_attempt(sent) {
            true => Answer::Value(Value::Int(1)),
            false => Answer::Value(elsewhere(30_000)),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let permit = client.semaphore("x").permits(1).acquire().await.unwrap();
        tokio::time::sleep(MS * 9_500).await;
        let lock = client.lock("y");
        let mut waits = pin!(lock.lock());
        let waited = tokio::time::timeout(MS * 10, &mut waits).await;
        assert!(waited.is_err());
        let core = Arc::clone(client.core());
        client.clone().shutdown().await.unwrap();
        let losses = core.observed().counts.totals().losses;
        assert_eq!(losses.of(LostReason::Closed), 1);
        drop(permit);
    }

    /// A request that arrives late takes the place of the waiter again.
    #[tokio::test(start_paused = true)]
    async fn an_attempt_in_doubt_leaves_the_queue_once_more() {
        let server = with_a_doubtful_attempt();
        let client = Client::over(&server, Duration::from_secs(30));
        let guard = client
            .semaphore("x")
            .permits(1)
            .fair()
            .acquire()
            .await
            .unwrap();
        let first = server.sent().into_iter().find(is_attempt).unwrap();
        let waiter = first.words.last().unwrap();
        tokio::time::sleep(MS).await;
        let sent = server.sent();
        let last_attempt = sent.iter().rposition(is_attempt).unwrap();
        let leaves = |sent: &Sent| !is_attempt(sent) && sent.words.contains(waiter);
        assert!(sent[last_attempt..].iter().any(leaves), "{sent:?}");
        guard.release().await.unwrap();
    }

    /// The server that has taken over may lack the permits.
    #[tokio::test(start_paused = true)]
    async fn permits_in_doubt_are_released_and_not_given_to_the_next_call() {
        for is_moved in [false, true] {
            let asked = AtomicU32::new(0);
            let server = Scripted::new(move |sent| match sent.words.get(1) {
                Some(word) if word == catalog::SEMAPHORE_RENEW.sha() => Answer::Silence,
                Some(word) if word == catalog::SEMAPHORE_ACQUIRE.sha() => {
                    match asked.fetch_add(1, Ordering::Relaxed) {
                        0 => Answer::Value(Value::Int(1)),
                        _ => Answer::Value(Value::Array(vec![Value::Int(0), Value::Int(30_000)])),
                    }
                }
                Some(word) if word == catalog::SEMAPHORE_RELEASE.sha() => {
                    Answer::Value(Value::Array(vec![Value::Int(1), Value::Int(0)]))
                }
                _ => Answer::Value(Value::Okay),
            });
            let client = Client::over(&server, Duration::from_secs(30));
            let semaphore = client.semaphore("x").permits(1);
            let guard = semaphore.acquire().await.unwrap();
            let next = tokio::spawn(async move { semaphore.acquire().await });
            tokio::time::sleep(MS).await;
            if is_moved {
                client.core().locals.moved();
                tokio::time::sleep(MS).await;
            }
            assert!(!guard.is_lost());
            drop(guard);
            tokio::time::sleep(MS).await;
            assert_eq!(next.is_finished(), !is_moved);
            let is_release = |sent: &Sent| sent.words[1] == catalog::SEMAPHORE_RELEASE.sha();
            let sent = server.sent();
            assert_eq!(sent.iter().any(is_release), is_moved, "{sent:?}");
            next.abort();
        }
    }
}

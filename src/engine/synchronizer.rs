//! The common part of all handles: a name, a client, options, a question to the server, and the wait for a condition.
//!
//! Invariants: a message is a hint; a wait asks the server at least once in a sixth of the client's lease, after each
//! new subscription, and once more at its deadline; it ends when the client is closed.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::api::error::{Error, Result};
use crate::api::holder::{Busy, Holder, HolderId};
use crate::api::options::{LEASE_MAX, Options, check_give_up};
use crate::client::Client;
use crate::conn::Lane;
use crate::engine::clock::Tick;
use crate::engine::hold::bound::Bound;
use crate::engine::hold::core::{AtClose, ClosedWith, Core};
use crate::engine::keys::LockName;
use crate::engine::listen::Listener;
use crate::script::{Answer, Call, CallBudget};

/// The server knows a call by its id for at least this long, so that a repeat changes nothing.
pub(crate) const CALL_KEPT_MIN: Duration = Duration::from_secs(60);

/// The state of a handle, of a lock or of another synchronizer.
#[derive(Clone)]
pub(crate) struct Synchronizer {
    core: Arc<Core>,
    /// The kind, for errors.
    pub(crate) what: &'static str,
    /// An invalid name is reported by the first call that uses it.
    name: Result<LockName>,
    /// Shared with its clones and calls: a change makes a copy.
    pub(crate) options: Arc<Options>,
}

/// A value that its caller has yet to take. It is dropped when the client is closed, because the caller may never be
/// polled again.
pub(crate) struct Untaken<T> {
    core: Arc<Core>,
    value: Mutex<Option<T>>,
}

impl<T: Send + 'static> Untaken<T> {
    /// The client drops the value when it is closed, for as long as the second part is kept.
    pub(crate) fn new(core: &Arc<Core>, value: Option<T>) -> (Arc<Self>, ClosedWith) {
        let untaken = Arc::new(Self {
            core: Arc::clone(core),
            value: Mutex::new(value),
        });
        let closed_with = core.close_with(Arc::downgrade(&untaken));
        (untaken, closed_with)
    }

    fn put(&self, value: T) {
        let mut place = self.value.lock();
        // Checked under the mutex: a value that is put before the client is closed is taken out by the closing.
        if !self.core.is_closed() {
            *place = Some(value);
            return;
        }
        drop(place);
        drop(value);
    }

    pub(crate) fn take(&self) -> Option<T> {
        self.value.lock().take()
    }
}

impl<T: Send + 'static> AtClose for Untaken<T> {
    fn close(self: Arc<Self>) {
        drop(self.take());
    }
}

impl Synchronizer {
    pub(crate) fn new(
        client: &Client,
        what: &'static str,
        name: &str,
        options: Arc<Options>,
    ) -> Self {
        Self {
            core: Arc::clone(client.core()),
            what,
            name: LockName::new(client.key_prefix(), name),
            options,
        }
    }

    pub(crate) fn options_mut(&mut self) -> &mut Options {
        Arc::make_mut(&mut self.options)
    }

    /// Sets the group for the metrics.
    pub(crate) fn set_group(&mut self, name: &str) {
        self.options_mut().group = self.core.observed().group(name);
    }

    /// How long a call goes on without an answer.
    pub(crate) fn give_up(&self, operation: &'static str) -> Result<Duration> {
        let give_up = self.options.give_up.unwrap_or(self.core.timing.give_up);
        check_give_up(give_up).map_err(|error| self.error(error.during(operation)))?;
        Ok(give_up)
    }

    /// The time limits of a call that begins now and waits until `deadline`, or asks once if that is [`Tick::ZERO`].
    pub(crate) fn bound(&self, operation: &'static str, deadline: Tick) -> Result<Bound> {
        self.give_up(operation)?;
        let (now, give_up) = (self.core.clock.now(), self.options.give_up);
        Ok(Bound::new(now, deadline, give_up, &self.core.timing))
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn name(&self, operation: &'static str) -> Result<&LockName> {
        let name = self.name.as_ref();
        name.map_err(|error| self.error(error.clone().during(operation)))
    }

    /// An error about this synchronizer.
    pub(crate) fn error(&self, error: Error) -> Error {
        error.about(self.what, self.given_name())
    }

    /// The name as it was given, even if it is invalid.
    pub(crate) fn given_name(&self) -> &str {
        match &self.name {
            Ok(name) => name.as_str(),
            Err(error) => error.lock_name().unwrap_or_default(),
        }
    }

    /// How a script notifies waiters: the channel, and the command.
    pub(crate) fn told(&self, channel: String) -> (String, &'static str) {
        (channel, self.core.channels().publish())
    }

    /// Makes an id for a call, different from every other call of any client.
    pub(crate) fn new_call(&self) -> HolderId {
        self.core.new_holder().1
    }

    /// How long the server knows a call by its id: for longer than the call may be repeated. A call without a limit is
    /// known for a year, because a server takes no time above 2^63 ms.
    pub(crate) fn call_kept(&self) -> Duration {
        let give_up = self.options.give_up.unwrap_or(self.core.timing.give_up);
        let longest = give_up.max(self.core.timing.linger);
        CALL_KEPT_MIN.max(longest.saturating_mul(2)).min(LEASE_MAX)
    }

    pub(crate) fn invalid(&self, operation: &'static str, message: impl Into<String>) -> Error {
        self.error(Error::invalid(operation, message))
    }

    /// Drives `work` in the background, and waits for its outcome, which is expected by `until`. If the caller leaves,
    /// or the client is closed before the caller takes the outcome, the outcome is dropped: the caller may never be
    /// polled again.
    pub(crate) async fn finish<T: Send + 'static>(
        &self,
        operation: &'static str,
        until: Tick,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        let core = &self.core;
        let (outcome, _closed_with) = Untaken::new(core, None);
        let put = Arc::clone(&outcome);
        let finished = core
            .watchdog
            .finish(operation, until, async move { put.put(work.await) });
        finished.await.map_err(|error| self.error(error))?;
        let closed = || self.error(core.closed(operation));
        outcome.take().ok_or_else(closed)
    }

    /// Asks the server: runs a script until it is answered, within the limits of a call. For a caller that waits until
    /// `deadline`, the answer may come up to one reply time later.
    pub(crate) async fn ask<T>(
        &self,
        operation: &'static str,
        call: &Call,
        deadline: Tick,
        read: impl FnOnce(&Answer) -> Result<T>,
    ) -> Result<T> {
        let of_this = |error: Error| self.error(error.during(operation));
        let core = &self.core;
        core.ensure_open(operation).map_err(of_this)?;
        let (now, reply) = (core.clock.now(), core.timing.reply);
        let patience = deadline.max(now.after(reply));
        let end = now.after(self.give_up(operation)?).min(patience);
        let budget = CallBudget::until(end, reply);
        let answer = core.scripts.run(Lane::Command, call, budget);
        let Some(answer) = core.until_closed(answer).await else {
            return Err(of_this(core.closed(operation)));
        };
        let answer = answer.map_err(|failure| of_this(failure.into_error(operation)))?;
        read(&answer).map_err(of_this)
    }

    /// The report that this holder has the lock.
    pub(crate) fn held_by(&self, holder: Holder) -> Busy {
        let busy = Busy::held_by(self.given_name(), holder.id, holder.remaining);
        busy.seen_by(self.core.id())
    }

    /// The report of the holder, if `asked` returns it within one reply time. Otherwise the report says only that
    /// others hold the lock.
    pub(crate) async fn busy_in_time(
        &self,
        asked: impl Future<Output = Result<Option<Busy>>>,
    ) -> Busy {
        let core = &self.core;
        let answer = core.clock.within(core.timing.reply, asked).await;
        let busy = answer.and_then(|answer| answer.ok().flatten());
        busy.unwrap_or_else(|| Busy::new(self.given_name()))
    }

    /// Asks until the condition is true. `None` if it is not true by the deadline. `ask` returns the caller's result,
    /// or `None` while the condition is not true. If it is true at once, there is no subscription.
    pub(crate) async fn wait<T, F>(
        &self,
        operation: &'static str,
        channel: impl FnOnce(&LockName) -> String,
        deadline: Tick,
        mut ask: impl FnMut() -> F,
    ) -> Result<Option<T>>
    where
        F: Future<Output = Result<Option<T>>>,
    {
        let polled = self.options.polled;
        let checked = polled.map_or(Ok(()), |polled| polled.check());
        checked.map_err(|error| self.error(error.during(operation)))?;
        let listener = self.listener(operation, channel)?;
        let (clock, cap) = (self.core.clock, self.core.timing.poll_cap);
        let mut pauses = 0;
        loop {
            let (seen, asked_at) = (listener.mark(), clock.now());
            if let Some(done) = ask().await? {
                return Ok(Some(done));
            }
            if asked_at >= deadline {
                return Ok(None);
            }
            let now = clock.now();
            if polled.is_none() && now < deadline {
                listener.subscribe();
            }
            let pause = polled.map_or(cap, |polled| polled.pause(pauses, fastrand::f64()).min(cap));
            pauses = pauses.saturating_add(1);
            let at = now.after(pause).min(deadline);
            listener.wait(seen, at).await;
        }
    }

    /// A listener to this channel.
    pub(crate) fn listener(
        &self,
        operation: &'static str,
        channel: impl FnOnce(&LockName) -> String,
    ) -> Result<Listener> {
        let name = self.name(operation)?;
        Ok(Listener::new(&self.core, name.key(), &channel(name)))
    }

    /// Returns the end of a wait that begins now.
    pub(crate) fn deadline(&self, limit: Option<Duration>) -> Tick {
        limit.map_or(Tick::NEVER, |limit| self.core.clock.now().after(limit))
    }
}

/// Implements `Debug` for a public handle, a struct with `site`, which shows its name.
macro_rules! shown_by_name {
    ($handle:ident) => {
        impl ::std::fmt::Debug for $handle {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.debug_struct(stringify!($handle))
                    .field("name", &self.name())
                    .finish_non_exhaustive()
            }
        }
    };
}

/// Adds the name, `give_up_after` and `polled` to a public handle, a struct with `site`.
macro_rules! synchronizer_methods {
    ($handle:ident, $what:literal) => {
        impl $handle {
            #[doc = concat!("The name of the ", $what, " as it was given, even if it is invalid.")]
            #[must_use]
            pub fn name(&self) -> &str {
                self.site.given_name()
            }

            /// Sets how long a call continues without an answer from the server. Default: the client's.
            pub fn give_up_after(mut self, span: ::std::time::Duration) -> Self {
                self.site.options_mut().give_up = Some(span);
                self
            }

            /// Waits without a subscription, with these pauses; as
            /// [`ReentrantLock::polled`](crate::ReentrantLock::polled).
            pub fn polled(mut self, backoff: impl Into<$crate::Backoff>) -> Self {
                self.site.options_mut().polled = Some(backoff.into());
                self
            }
        }
    };
}
pub(crate) use {shown_by_name, synchronizer_methods};

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures_util::FutureExt;
    use redis::Value;
    use tokio::sync::oneshot;

    use super::*;
    use crate::api::loss::{Lost, LostReason};
    use crate::api::options::Backoff;
    use crate::script::catalog;
    use crate::testing::{Answer, Scripted, Sent};

    #[derive(Default)]
    struct Party(AtomicBool);

    impl AtClose for Party {
        fn close(self: Arc<Self>) {
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn an_error_says_what_it_is_about() {
        let server = Scripted::new(|_| Answer::Value(Value::Okay));
        let client = Client::over(&server, Duration::from_secs(30));
        client.clone().shutdown().await.unwrap();
        let errors = [
            ("latch", client.latch("x").count().await.err()),
            ("barrier", client.barrier("x", 2).wait().await.err()),
            ("election", client.election("x").campaign().await.err()),
            ("election", client.election("x").leader().await.err()),
            ("semaphore", client.semaphore("x").acquire().await.err()),
            (
                "semaphore",
                client.plain_semaphore("x").acquire().await.err(),
            ),
            (
                "semaphore",
                Some(client.semaphore("x").refused().await.into()),
            ),
            (
                "semaphore",
                Some(Lost::of("semaphore", "x", LostReason::Closed).into()),
            ),
            ("lock", client.lock("x").lock().await.err()),
        ];
        for (what, error) in errors {
            let error = error.expect("the client is closed");
            let shown = error.to_string();
            assert!(shown.starts_with(&format!("{what} \"x\": ")), "{shown}");
            assert_eq!(error.lock_name(), Some("x"));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_polled_wait_pauses_after_each_answer() {
        let server = Scripted::new(|_| {
            let closed = vec![Value::Int(1), Value::BulkString(vec![])];
            Answer::Value(Value::Array(closed))
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let pause = Duration::from_millis(100);
        let latch = client.latch("x").polled(Backoff::from(pause).jitter(0));
        assert!(!latch.wait_for(pause * 3).await.unwrap());
        assert_eq!(server.sent().len(), 4, "at the beginning and three times");
    }

    #[tokio::test(start_paused = true)]
    async fn a_party_whose_pauses_cannot_work_does_not_come() {
        let server = Scripted::new(|_| Answer::Value(Value::Int(1)));
        let client = Client::over(&server, Duration::from_secs(30));
        let barrier = client.barrier("x", 2).polled(Duration::ZERO);
        assert!(barrier.wait().await.unwrap_err().is_invalid());
        client.shutdown().await.unwrap();
        let is_arrival = |sent: &Sent| sent.words[1] == catalog::BARRIER_ARRIVE.sha();
        assert!(!server.sent().iter().any(is_arrival));
    }

    /// It has time for two replies, unless its client or its handle says otherwise, as `try_lock` has.
    #[tokio::test(start_paused = true)]
    async fn a_call_that_asks_once_goes_on_for_as_long_as_its_handle_says() {
        let server = Scripted::new(|_| Answer::Silence);
        let client = Client::over(&server, Duration::from_secs(30));
        let [at_once, longer] = [2, 7].map(Duration::from_secs);
        let (held, plain) = (
            client.semaphore("x").permits(1),
            client.plain_semaphore("y"),
        );
        let (held_on, plain_on) = (
            held.clone().give_up_after(longer),
            plain.clone().give_up_after(longer),
        );
        let calls = [
            (at_once, held.try_acquire().map(|got| got.err()).boxed()),
            (at_once, plain.try_acquire().map(|got| got.err()).boxed()),
            (longer, held_on.try_acquire().map(|got| got.err()).boxed()),
            (longer, plain_on.try_acquire().map(|got| got.err()).boxed()),
        ];
        for (limit, call) in calls {
            let began = tokio::time::Instant::now();
            let error = call.await.expect("the server is silent");
            assert!(error.is_io(), "{error}");
            let took = began.elapsed();
            let slack = Duration::from_millis(100);
            assert!(took >= limit && took <= limit + slack, "{took:?}");
        }
    }

    /// A poll on another thread has found the client open, and sends after the shutdown has begun.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_shutdown_withdraws_a_party_behind_its_arrival() {
        let server = Scripted::new(|_| Answer::Value(Value::Okay));
        let client = Client::over(&server, Duration::from_secs(30));
        let core = Arc::clone(client.core());
        let party = Arc::new(Party::default());
        let _closed_with = core.close_with(Arc::downgrade(&party));
        let (begun, begins) = oneshot::channel();
        let arriving = tokio::spawn(async move {
            let arrives = async {
                begun.send(()).unwrap();
                std::thread::sleep(Duration::from_millis(300));
                party.0.load(Ordering::SeqCst)
            };
            core.until_closed(arrives).await
        });
        begins.await.unwrap();
        client.shutdown().await.unwrap();
        let was_withdrawn = arriving.await.unwrap();
        assert_eq!(was_withdrawn, Some(false));
    }

    /// A repeat at the very end of the call's time must not count again.
    #[tokio::test(start_paused = true)]
    async fn a_call_is_known_for_twice_as_long_as_it_goes_on() {
        const LONG: Duration = Duration::from_secs(600);
        // The script, and which of its words says for how long.
        let scripts = [
            (&catalog::LATCH_INIT, 6),
            (&catalog::LATCH_COUNT_DOWN, 7),
            (&catalog::LATCH_DELETE, 7),
            (&catalog::PLAIN_INIT, 7),
            (&catalog::PLAIN_GIVE, 6),
            (&catalog::BARRIER_ARRIVE, 10),
            (&catalog::BARRIER_LEAVE, 9),
        ];
        let server = Scripted::new(|sent| match sent.words[1] == catalog::BARRIER_LEAVE.sha() {
            true => Answer::Value(Value::SimpleString("left:x".to_owned())),
            false => Answer::Value(Value::Int(1)),
        });
        let client = Client::over(&server, Duration::from_secs(30));
        let latch = client.latch("x").give_up_after(LONG);
        latch.init(1).await.unwrap();
        latch.count_down().await.unwrap();
        latch.delete().await.unwrap();
        let plain = client.plain_semaphore("x").give_up_after(LONG);
        plain.try_set(1).await.unwrap();
        plain.release(1).await.unwrap();
        let barrier = client.barrier("x", 2).give_up_after(LONG);
        let met = barrier.wait_for(Duration::from_secs(1)).await;
        assert!(met.unwrap_err().is_broken());
        let sent = server.sent();
        for (script, at) in scripts {
            let call = sent.iter().find(|sent| sent.words[1] == script.sha());
            let words = &call.expect("a call of each").words;
            let kept = Duration::from_millis(words[at].parse().unwrap());
            assert!(kept >= LONG * 2, "{words:?}");
        }
    }

    /// The server takes a party for dead after its lease, no matter how rarely it polls.
    #[tokio::test(start_paused = true)]
    async fn a_party_that_polls_rarely_says_in_time_that_it_lives() {
        let server = Scripted::new(|sent| match sent.words[1] == catalog::BARRIER_LEAVE.sha() {
            true => Answer::Value(Value::SimpleString("left:x".to_owned())),
            false => Answer::Value(Value::Int(1)),
        });
        let client = Client::over(&server, Duration::from_secs(3));
        let rarely = Duration::from_secs(60);
        let barrier = client.barrier("x", 2).polled(rarely);
        assert!(barrier.wait_for(rarely).await.unwrap_err().is_broken());
        let sent = server.sent();
        let is_arrival = |sent: &&Sent| sent.words[1] == catalog::BARRIER_ARRIVE.sha();
        let mut last = Duration::ZERO;
        for arrival in sent.iter().filter(is_arrival) {
            let lease = Duration::from_millis(arrival.words[8].parse().unwrap());
            let since = arrival.at - std::mem::replace(&mut last, arrival.at);
            assert!(since * 2 < lease, "{since:?}");
        }
        assert!(last > rarely / 2);
    }
}

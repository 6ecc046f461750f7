//! The engine without a server: a transport with answers from a test, under paused time.

use std::fmt;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use redis::{Cmd, Value};
use tokio::runtime::Handle;
use tokio::sync::watch;

use crate::api::options::Options;
use crate::client::Client;
use crate::conn::{Fault, Lane, LinkState, Process, Reason, Recipient, Replies, Transport, sent};
use crate::engine::clock::{Clock, Tick};
use crate::engine::hold::bound::Timing;
use crate::engine::hold::core::Core;
use crate::engine::hold::local::Locals;
use crate::observe::observer::{Observed, Observer};
use crate::script::catalog::{FAIR_RELEASE, MULTI_RELEASE, RECALL, REENTRANT_RELEASE, RW_RELEASE};
use crate::script::{NativePath, Scripts};

/// One command as it was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sent {
    pub(crate) at: Duration,
    pub(crate) lane: Lane,
    /// The answer of [`Transport::server`] for its route.
    pub(crate) server: u64,
    pub(crate) words: Vec<String>,
}

impl Sent {
    pub(crate) fn is(&self, verb: &str) -> bool {
        self.words[0] == verb
    }

    /// Whether the command releases one hold or several.
    pub(crate) fn is_release(&self) -> bool {
        let releases = [
            &REENTRANT_RELEASE,
            &FAIR_RELEASE,
            &RW_RELEASE,
            &MULTI_RELEASE,
        ];
        self.is("EVALSHA") && releases.iter().any(|script| self.words[1] == script.sha())
    }

    /// The keys and arguments of a script.
    pub(crate) fn script_args(&self) -> &[String] {
        &self.words[3..]
    }

    /// The number of keys that a script was sent.
    pub(crate) fn script_keys(&self) -> usize {
        self.words[2].parse().expect("a number of keys")
    }
}

/// The fate of a command, as a test decides it.
#[derive(Clone, Debug)]
pub(crate) enum Answer {
    Value(Value),
    /// Executed or not: no reply ever comes.
    Silence,
    /// There is no connection for as long as the call waits for one.
    Unsent,
    /// The server answers with an error.
    Error(&'static str),
    /// The server refuses the connection with an error.
    Declined(&'static str),
    /// The reply comes after this time.
    Late(Duration, Value),
}

type Decide = dyn Fn(&Sent) -> Answer + Send + Sync;

/// Maps a key to its slot and its server.
type Place = dyn Fn(&str) -> (u16, u64) + Send + Sync;

pub(crate) struct Scripted {
    clock: Clock,
    decide: Box<Decide>,
    place: Box<Place>,
    sent: Mutex<Vec<Sent>>,
    /// When a command on the push lane was answered last.
    pushed: Mutex<Tick>,
    settled: bool,
    /// Whether there are connections. Commands wait for them in no order.
    is_connected: watch::Sender<bool>,
    /// Whether its servers are nodes of a cluster.
    splits_slots: bool,
    address: &'static str,
    process: Option<Process>,
}

impl Scripted {
    pub(crate) fn new(decide: impl Fn(&Sent) -> Answer + Send + Sync + 'static) -> Arc<Self> {
        Self::with_past(true, decide)
    }

    /// `settled`: the answer of [`Transport::earlier_commands_settled`].
    pub(crate) fn with_past(
        settled: bool,
        decide: impl Fn(&Sent) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self::one(settled, decide))
    }

    /// Several servers: `place` returns the slot and the server of a key, which may change.
    pub(crate) fn many(
        place: impl Fn(&str) -> (u16, u64) + Send + Sync + 'static,
        decide: impl Fn(&Sent) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            place: Box::new(place),
            ..Self::one(true, decide)
        })
    }

    /// A node of a cluster.
    pub(crate) fn in_a_cluster(
        decide: impl Fn(&Sent) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            splits_slots: true,
            ..Self::one(true, decide)
        })
    }

    /// The server at this address, which has been up since the clock began.
    pub(crate) fn at(
        address: &'static str,
        decide: impl Fn(&Sent) -> Answer + Send + Sync + 'static,
    ) -> Arc<Self> {
        Arc::new(Self {
            address,
            process: Some(Process {
                run_id: address.into(),
                up_since: Tick::ZERO,
            }),
            ..Self::one(true, decide)
        })
    }

    fn one(settled: bool, decide: impl Fn(&Sent) -> Answer + Send + Sync + 'static) -> Self {
        Self {
            clock: Clock::of_runtime(),
            decide: Box::new(decide),
            place: Box::new(|_| (0, 0)),
            sent: Mutex::default(),
            pushed: Mutex::default(),
            settled,
            is_connected: watch::Sender::new(true),
            splits_slots: false,
            address: "scripted",
            process: None,
        }
    }

    pub(crate) fn clock(&self) -> Clock {
        self.clock
    }

    pub(crate) fn sent(&self) -> Vec<Sent> {
        self.sent.lock().clone()
    }

    /// Ends all connections, or makes them again.
    pub(crate) fn connect(&self, is_connected: bool) {
        self.is_connected.send_replace(is_connected);
    }

    /// The times of the commands on one lane.
    pub(crate) fn times(&self, lane: Lane) -> Vec<Duration> {
        let sent = self.sent.lock();
        let on_lane = sent.iter().filter(|sent| sent.lane == lane);
        on_lane.map(|sent| sent.at).collect()
    }
}

impl fmt::Debug for Scripted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Scripted")
    }
}

impl Scripted {
    /// Notes a command, and decides on its fate.
    fn decide(&self, lane: Lane, route: &str, command: &Cmd) -> Answer {
        let words = command.args_iter().map(|arg| match arg {
            redis::Arg::Simple(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            _ => String::new(),
        });
        let sent = Sent {
            at: Tick::ZERO.until(self.clock.now()),
            lane,
            server: self.server(route),
            words: words.collect(),
        };
        if sent.words.get(1).is_some_and(|word| word == RECALL.sha()) {
            // Recalls do not reach the test's decisions, and have no listener.
            return Answer::Value(done());
        }
        self.sent.lock().push(sent.clone());
        let answer = (self.decide)(&sent);
        if lane == Lane::Push && !matches!(answer, Answer::Silence) {
            *self.pushed.lock() = self.clock.now();
        }
        answer
    }
}

impl Answer {
    /// Waits for the end of the command.
    async fn end(self, limit: Duration) -> Result<Value, Fault> {
        if !matches!(self, Self::Unsent | Self::Declined(_)) {
            sent::mark();
        }
        match self {
            Self::Value(value) => return Ok(value),
            Self::Unsent => {
                tokio::time::sleep(limit).await;
                return Err(Fault::Unsent("no connection".into()));
            }
            Self::Error(line) => return Ok(refused(line)),
            Self::Declined(line) => return Err(Fault::Declined(error(line))),
            Self::Late(after, value) if after <= limit => {
                tokio::time::sleep(after).await;
                return Ok(value);
            }
            Self::Late(..) | Self::Silence => {}
        }
        tokio::time::sleep(limit).await;
        let why = format!("no reply within {limit:?}");
        Err(Fault::Unknown(Reason::timed_out(why)))
    }
}

/// Waits for the ends of commands that are sent together.
async fn end_of_all(answers: Vec<Answer>, limit: Duration) -> Result<Replies, Fault> {
    let ends = join_all(answers.into_iter().map(|answer| answer.end(limit))).await;
    ends.into_iter().collect()
}

impl Transport for Scripted {
    fn exchange<'a>(
        &'a self,
        lane: Lane,
        route: &'a str,
        commands: &'a [&'a Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Replies, Fault>> {
        async move {
            let mut is_connected = self.is_connected.subscribe();
            if !*is_connected.borrow() {
                let connected = is_connected.wait_for(|is_connected| *is_connected);
                if tokio::time::timeout(limit, connected).await.is_err() {
                    return Err(Fault::Unsent("no connection".into()));
                }
            }
            let commands = commands.iter();
            let answers = commands.map(|command| self.decide(lane, route, command));
            end_of_all(answers.collect(), limit).await
        }
        .boxed()
    }

    fn submit(
        &self,
        lane: Lane,
        route: &str,
        commands: &[&Cmd],
        limit: Duration,
        to: Arc<dyn Recipient>,
    ) -> bool {
        if Handle::try_current().is_err() || !*self.is_connected.borrow() {
            return false;
        }
        let commands = commands.iter();
        let answers = commands.map(|command| self.decide(lane, route, command));
        let ends = end_of_all(answers.collect(), limit);
        let mut told = async move { to.received(ends.await) }.boxed();
        // An answer without a delay is passed on in this step.
        let mut context = Context::from_waker(Waker::noop());
        if told.poll_unpin(&mut context).is_pending() {
            tokio::spawn(told);
        }
        true
    }

    fn link_state(&self, lane: Lane, _route: &str) -> Option<LinkState> {
        Some(LinkState {
            endpoint: self.address().into(),
            is_open: *self.is_connected.borrow(),
            earlier_commands_settled: self.settled,
            last_reply_at: match lane {
                Lane::Push => *self.pushed.lock(),
                _ => Tick::ZERO,
            },
            process: self.process.clone(),
        })
    }

    fn slot(&self, route: &str) -> u16 {
        (self.place)(route).0
    }

    fn server(&self, route: &str) -> u64 {
        (self.place)(route).1
    }

    fn address(&self) -> &str {
        self.address
    }

    fn splits_slots(&self) -> bool {
        self.splits_slots
    }

    fn is_single_server(&self) -> bool {
        true
    }

    fn spawn(&self, task: BoxFuture<'static, ()>) {
        tokio::spawn(task);
    }
}

/// Returns an error as a server would answer it.
pub(crate) fn error(line: &str) -> redis::RedisError {
    let reply = format!("-{line}\r\n");
    let value = redis::parse_redis_value(reply.as_bytes()).expect("a reply");
    value.extract_error().expect_err("an error")
}

/// Returns an error as it comes in the place of a value.
fn refusal(error: &redis::RedisError) -> Value {
    let line = format!(
        "-{} {}\r\n",
        error.code().unwrap_or("ERR"),
        error.detail().unwrap_or_default()
    );
    redis::parse_redis_value(line.as_bytes()).expect("a reply")
}

/// Makes an error for a reply that comes [late](Answer::Late).
pub(crate) fn refused(line: &str) -> Value {
    refusal(&error(line))
}

/// Returns the reply of a script that grants a lock.
pub(crate) fn granted() -> Value {
    Value::Nil
}

pub(crate) fn elsewhere(remaining_ms: i64) -> Value {
    Value::Int(remaining_ms)
}

/// Returns a refusal with a place that is kept until `until_ms`.
pub(crate) fn queued(remaining_ms: i64, until_ms: u64) -> Value {
    let until_ms = i64::try_from(until_ms).expect("a time");
    Value::Array(vec![Value::Int(remaining_ms), Value::Int(until_ms)])
}

pub(crate) fn done() -> Value {
    Value::Int(0)
}

pub(crate) fn each(status: i64, count: usize) -> Value {
    Value::Array(vec![Value::Int(status); count])
}

impl Client {
    /// A client over a scripted transport, on its clock.
    pub(crate) fn over(transport: &Arc<Scripted>, lease: Duration) -> Self {
        // Its answers are written for scripts.
        Self::over_by(transport, lease, NativePath::Off)
    }

    /// A client over a scripted transport, with plain commands or without.
    pub(crate) fn over_by(transport: &Arc<Scripted>, lease: Duration, native: NativePath) -> Self {
        Self::over_for(transport, lease, native, Arc::default())
    }

    /// A client over a scripted transport, with an observer.
    pub(crate) fn over_told(
        transport: &Arc<Scripted>,
        lease: Duration,
        observer: impl Observer,
    ) -> Self {
        let observed = Observed::by(Box::new(observer)).expect("a thread");
        let locals = Arc::new(Locals::observed_by(observed));
        Self::over_for(transport, lease, NativePath::Off, locals)
    }

    fn over_for(
        transport: &Arc<Scripted>,
        lease: Duration,
        native: NativePath,
        locals: Arc<Locals>,
    ) -> Self {
        let (clock, observed) = (transport.clock(), Arc::clone(&locals.observed));
        let scripts = Scripts::new(Arc::clone(transport) as _, clock, observed, native);
        let core = Core::new("test", Timing::of_lease(lease), Arc::new(scripts), locals);
        Self::new(core, "", Options::default(), None)
    }
}

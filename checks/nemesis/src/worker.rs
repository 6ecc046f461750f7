//! A process that acquires and releases, and writes down what it sees.
//!
//! Invariants: a grant is written down after it came, a release before it is asked for, so that a guard counts as
//! held for no longer than it was; whether a guard is valid is asked after the time was taken.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use lockset::{Client, Lock, Member, MultiLock, Redlock};
use serde::{Deserialize, Serialize};
use tokio::time::{sleep, timeout};

use crate::history::{Mode, Nanos, What, Writer, now};
use crate::kept::Kept;

/// The instructions for a worker.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Job {
    /// Its number, the same in its history.
    pub number: u32,
    /// Of one server, deployment or cluster; of several for a Redlock.
    pub urls: Vec<String>,
    /// Whether it uses a Redlock.
    pub is_redlock: bool,
    /// Whether it uses `SET NX PX` and `DEL` instead: a lock that has to be caught.
    pub is_naive: bool,
    /// How many tasks it has.
    pub tasks: u32,
    /// Until when it works, by the machine's monotonic clock.
    pub until: Nanos,
    /// The lease of a hold, in ms.
    pub lease_ms: u64,
    /// The lease of a client, which says how patient it is, in ms.
    pub client_lease_ms: u64,
    /// Where its history goes.
    pub history: PathBuf,
    /// Seed of its work.
    pub seed: u64,
}

/// How long a call goes on without an answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// A worker has connected within this time, even during faults.
const CONNECTED: Duration = Duration::from_secs(10);

const LOCKS: u64 = 2;

/// How many permits each semaphore has.
pub const PERMITS: u32 = 3;
const WAIT: Duration = Duration::from_secs(1);

/// How long a guard may go without being asked.
const LOOK: Duration = Duration::from_millis(10);

/// A guard that is lost is kept for this long, until it says so.
const NOTICE: Duration = Duration::from_secs(3);

/// State shared by all tasks of a worker.
#[derive(Debug)]
struct Desk {
    job: Job,
    writer: Writer,
    calls: AtomicU64,
}

impl Desk {
    fn lease(&self) -> Duration {
        Duration::from_millis(self.job.lease_ms)
    }

    fn begin(&self, lock: &str, order: Order) -> u64 {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        let (lock, wait) = (lock.to_owned(), WAIT.as_nanos() as Nanos);
        self.writer.note(
            call,
            What::Begin {
                lock,
                is_fair: matches!(order, Order::Fair | Order::FairPermits(_)),
                mode: order.mode(),
                wait,
            },
        );
        call
    }

    /// Notes `what` for each of these calls, which are for the parts of one lock.
    fn note(&self, calls: &[u64], what: &What) {
        for call in calls {
            self.writer.note(*call, what.clone());
        }
    }

    fn failed(&self, calls: &[u64], error: impl ToString) {
        let error = error.to_string();
        self.note(calls, &What::Failed { error });
    }
}

/// The terms on which callers share a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// One at a time.
    Any,
    /// One at a time, in the order of their calls.
    Fair,
    /// Together with others who share it.
    Shared,
    /// Permits of a fair semaphore.
    FairPermits(u32),
    /// Permits of a semaphore.
    Permits(u32),
}

impl Order {
    fn mode(self) -> Mode {
        match self {
            Self::Any | Self::Fair => Mode::Alone,
            Self::Shared => Mode::Shared,
            Self::Permits(taken) | Self::FairPermits(taken) => Mode::Permits { taken, of: PERMITS },
        }
    }
}

/// How a guard is used.
#[derive(Clone, Copy, Debug)]
struct Use {
    hold: Duration,
    is_dropped: bool,
    /// The caller's time limit.
    patience: Option<Duration>,
}

impl Use {
    fn new(random: &mut fastrand::Rng, lease: Duration) -> Self {
        // Mostly short; sometimes renewals are needed.
        let hold = match random.u8(..) {
            0..10 => lease * random.u32(1..4) / 2,
            10..100 => Duration::from_millis(random.u64(0..30)),
            _ => Duration::from_micros(random.u64(0..3_000)),
        };
        let millis = random.u64(0..40);
        Self {
            hold,
            is_dropped: random.u8(..) < 60,
            patience: (random.u8(..) < 30).then(|| Duration::from_millis(millis)),
        }
    }
}

/// Works until it is time to end.
///
/// # Errors
///
/// If there is no connection to begin with, or no file for the history.
pub async fn run(job: Job) -> Result<(), Box<dyn std::error::Error>> {
    let writer = Writer::append(&job.history, job.number)?;
    let desk = Arc::new(Desk {
        writer,
        // The calls of a worker that was started again have numbers of their own.
        calls: AtomicU64::new(0),
        job,
    });
    if desk.job.is_naive {
        naive(&desk).await?;
    } else if desk.job.is_redlock {
        let mut clients = Vec::new();
        for url in &desk.job.urls {
            clients.push(connect(&desk, url).await?);
        }
        let redlock = Redlock::new(clients.clone())?;
        let tasks = (0..desk.job.tasks).map(|task| {
            let (desk, redlock) = (Arc::clone(&desk), redlock.clone());
            tokio::spawn(async move {
                let mut random = random(&desk.job, task);
                while now() < desk.job.until {
                    let name = format!("quorum:{}", random.u64(..LOCKS));
                    let lock = redlock.lock(&name).lease(desk.lease()).fenced();
                    once(&desk, lock, &[(name, Order::Any)], &mut random).await;
                }
            })
        });
        join(tasks).await?;
        for client in clients {
            client.shutdown().await?;
        }
    } else {
        let client = connect(&desk, &desk.job.urls[0]).await?;
        let tasks = (0..desk.job.tasks).map(|task| {
            let (desk, client) = (Arc::clone(&desk), client.clone());
            tokio::spawn(async move {
                let mut random = random(&desk.job, task);
                while now() < desk.job.until {
                    any(&desk, &client, &mut random).await;
                }
            })
        });
        join(tasks).await?;
        client.shutdown().await?;
    }
    Ok(())
}

/// The lease of a client also says how patient it is, and when a server of a quorum has a vote.
async fn connect(desk: &Desk, url: &str) -> lockset::Result<Client> {
    let deadline = now() + CONNECTED.as_nanos() as Nanos;
    loop {
        let patient = Client::builder(url)
            .lease(Duration::from_millis(desk.job.client_lease_ms))
            .give_up_after(PATIENCE);
        match patient.build().await {
            // A worker that replaces a killed one may meet the next fault.
            Err(error) if error.is_io() && now() < deadline => sleep(LOOK).await,
            done => return done,
        }
    }
}

fn random(job: &Job, task: u32) -> fastrand::Rng {
    fastrand::Rng::with_seed(job.seed ^ u64::from(job.number) << 32 ^ u64::from(task))
}

async fn join(
    tasks: impl Iterator<Item = tokio::task::JoinHandle<()>>,
) -> Result<(), tokio::task::JoinError> {
    for task in tasks.collect::<Vec<_>>() {
        task.await?;
    }
    Ok(())
}

/// One call for a lock of any kind.
async fn any(desk: &Desk, client: &Client, random: &mut fastrand::Rng) {
    let number = random.u64(..LOCKS);
    let lease = desk.lease();
    let [plain, fair, written] =
        ["plain", "fair", "written"].map(|kind| format!("{kind}:{number}"));
    match random.u8(..14) {
        0..3 => {
            let lock = client.lock(&plain).lease(lease).fenced();
            once(desk, lock, &[(plain, Order::Any)], random).await;
        }
        3..6 => {
            let lock = client.fair_lock(&fair).lease(lease).fenced();
            once(desk, lock, &[(fair, Order::Fair)], random).await;
        }
        6 => {
            let lock = client.rw_lock(&written).write_side().lease(lease).fenced();
            once(desk, lock, &[(written, Order::Any)], random).await;
        }
        7..9 => {
            // Without tokens, so that readers of one worker have one hold together.
            let lock = client.rw_lock(&written).read_side().lease(lease);
            once(desk, lock, &[(written, Order::Shared)], random).await;
        }
        9 => {
            let members = [
                Member::from(client.lock(&plain)),
                Member::from(client.fair_lock(&fair)),
                Member::from(client.rw_lock(&written).write_side()),
            ];
            let lock = MultiLock::new(members).expect("three names").lease(lease);
            let all = [plain, fair, written].map(|name| (name, Order::Any));
            once(desk, lock, &all, random).await;
        }
        10..13 => take_permits(desk, client, number, random).await,
        _ => lead(desk, client, number, random).await,
    }
    // From idle to saturated, and back.
    let phase = now() / 2_000_000_000 % 3;
    if phase < 2 {
        sleep(Duration::from_millis(random.u64(0..20) * (2 - phase))).await;
    }
}

/// One call for permits. The second semaphore is fair.
async fn take_permits(desk: &Desk, client: &Client, number: u64, random: &mut fastrand::Rng) {
    let name = format!("permits:{number}");
    let count = random.u32(1..=PERMITS);
    let permits = client.semaphore(&name).permits(PERMITS).many(count);
    let permits = permits.lease(desk.lease());
    let (permits, order) = match number {
        1 => (permits.fair(), Order::FairPermits(count)),
        _ => (permits, Order::Permits(count)),
    };
    let asked = async { Ok(permits.try_acquire_for(WAIT).await?.map(Kept::Permits)) };
    call(desk, asked, &[(name, order)], random).await;
}

/// One candidacy. A leader has a token, as the holder of a lock has.
async fn lead(desk: &Desk, client: &Client, number: u64, random: &mut fastrand::Rng) {
    let name = format!("leads:{number}");
    let election = client.election(&name).lease(desk.lease());
    let asked = async { Ok(election.campaign_for(WAIT).await?.map(Kept::Lead)) };
    call(desk, asked, &[(name, Order::Any)], random).await;
}

/// Asks for a lock.
async fn ask<L: Lock<Guard: 'static>>(lock: L) -> lockset::Result<Option<Kept>> {
    let guard = lock.try_lock_for(WAIT).await?;
    Ok(guard.map(|guard| Kept::Lock(Box::new(guard))))
}

/// One call for a lock that consists of these.
async fn once<L: Lock<Guard: 'static>>(
    desk: &Desk,
    lock: L,
    parts: &[(String, Order)],
    random: &mut fastrand::Rng,
) {
    call(desk, ask(lock), parts, random).await;
}

/// One call for what consists of these.
async fn call(
    desk: &Desk,
    asked: impl Future<Output = lockset::Result<Option<Kept>>>,
    parts: &[(String, Order)],
    random: &mut fastrand::Rng,
) {
    let plan = Use::new(random, desk.lease());
    let begun = parts.iter().map(|(name, order)| desk.begin(name, *order));
    let calls: Vec<u64> = begun.collect();
    let answer = match plan.patience {
        Some(patience) => timeout(patience, asked).await,
        None => Ok(asked.await),
    };
    match answer {
        Err(_) => desk.note(&calls, &What::Dropped),
        Ok(Err(error)) => {
            desk.failed(&calls, error);
            sleep(Duration::from_millis(20)).await;
        }
        Ok(Ok(None)) => desk.note(&calls, &What::Refused),
        Ok(Ok(Some(guard))) => hold(desk, &calls, guard, plan).await,
    }
}

async fn hold(desk: &Desk, calls: &[u64], guard: Kept, plan: Use) {
    let token = guard.token();
    desk.note(calls, &What::Granted { token });
    let end = now() + plan.hold.as_nanos() as Nanos;
    let mut vouched = 0;
    // One for the whole time, which is polled only when it is woken.
    let mut told = FuturesUnordered::from_iter([guard.lost()]);
    let lost = loop {
        let asked = now();
        let remaining = guard.remaining().as_nanos() as Nanos;
        // It does not last longer than what was left when it was asked later.
        if remaining > 0 && !guard.is_lost() {
            let until = asked + remaining;
            if until > vouched + 1_000_000 {
                vouched = until;
                for call in calls {
                    desk.writer.note_at(asked, *call, What::Valid { until });
                }
            }
        }
        if asked >= end {
            break if guard.is_lost() {
                timeout(NOTICE, told.next()).await.ok().flatten()
            } else {
                None
            };
        }
        let rest = Duration::from_nanos(end - asked).min(LOOK);
        if let Ok(reason) = timeout(rest, told.next()).await {
            break reason;
        }
    };
    drop(told);
    if let Some(reason) = lost {
        let reason = reason.to_string();
        desk.note(calls, &What::Lost { reason });
        return;
    }
    desk.note(calls, &What::ReleaseBegin);
    if plan.is_dropped {
        drop(guard);
    } else if let Err(error) = guard.release().await {
        // A loss, or a missing answer, which without a fault there is none of. Either way the hold is over.
        desk.failed(calls, error);
    }
    desk.note(calls, &What::ReleaseEnd);
}

/// `SET NX PX`, work that may take longer than the lease, `DEL`: as in many a tutorial.
async fn naive(desk: &Desk) -> Result<(), Box<dyn std::error::Error>> {
    let server = redis::Client::open(&*desk.job.urls[0])?;
    let mut connection = server.get_multiplexed_async_connection().await?;
    let mut random = random(&desk.job, 0);
    while now() < desk.job.until {
        let call = desk.begin("naive", Order::Any);
        let mut set = redis::cmd("SET");
        set.arg("naive")
            .arg(1)
            .arg("NX")
            .arg("PX")
            .arg(desk.job.lease_ms);
        let answer: redis::RedisResult<Option<String>> = set.query_async(&mut connection).await;
        match answer {
            Err(error) => desk.failed(&[call], error),
            Ok(None) => desk.writer.note(call, What::Refused),
            Ok(Some(_)) => {
                desk.writer.note(call, What::Granted { token: None });
                // It believes in its lock until it has deleted it.
                let until = Nanos::MAX / 2;
                desk.writer.note(call, What::Valid { until });
                let hold = desk.lease() * random.u32(1..15) / 10;
                sleep(hold).await;
                desk.writer.note(call, What::ReleaseBegin);
                let deleted: redis::RedisResult<u64> = redis::cmd("DEL")
                    .arg("naive")
                    .query_async(&mut connection)
                    .await;
                if let Err(error) = deleted {
                    desk.failed(&[call], error);
                }
                desk.writer.note(call, What::ReleaseEnd);
            }
        }
        sleep(Duration::from_millis(random.u64(1..20))).await;
    }
    Ok(())
}

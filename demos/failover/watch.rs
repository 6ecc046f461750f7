//! One round: locks are granted continuously, a fault occurs, and another client requests every
//! lock whose holder still considers it held.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use lockset::Guard;
use lockset_testkit::unique_name;
use tokio::sync::Mutex;

use crate::scene::Scene;
use crate::support::Result;
use crate::support::lock::Locks;

pub(crate) const LEASE: Duration = Duration::from_secs(6);

/// The pause between two grants.
const PAUSE: Duration = Duration::from_millis(2);

/// How many of the latest grants are held at a time.
const HELD_MAX: usize = 400;

/// The time before the fault.
const WARM_UP: Duration = Duration::from_secs(1);

/// The measurements of a round.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Seen {
    /// The longest time between two grants of free locks.
    pub(crate) outage: Duration,
    /// The number of locks held at the fault or granted later.
    pub(crate) granted: usize,
    /// The number of those locks that the other client could acquire.
    pub(crate) forgotten: usize,
    /// The time from the fault until the last of their holders was notified.
    pub(crate) told_after: Duration,
    /// The longest time during which both clients held a lock.
    pub(crate) two_at_once: Duration,
}

impl Seen {
    pub(crate) fn or_worse(self, other: Self) -> Self {
        let by_number = if other.forgotten >= self.forgotten {
            other
        } else {
            self
        };
        Self {
            outage: self.outage.max(other.outage),
            granted: by_number.granted,
            forgotten: by_number.forgotten,
            told_after: self.told_after.max(other.told_after),
            two_at_once: self.two_at_once.max(other.two_at_once),
        }
    }
}

/// A held lock, until its holder is notified of the loss.
struct Held {
    name: String,
    guard: Arc<dyn Guard>,
}

pub(crate) async fn watch(scene: Scene) -> Result<Seen> {
    let stage = scene.stage().await?;
    let url = stage.url();
    let holder = Locks::with(&url, |builder| scene.settings(builder)).await?;
    let stranger = Arc::new(Locks::with(&url, |builder| scene.settings(builder)).await?);
    // One hash tag, so that the fault affects all locks.
    let tag = format!("{{{}}}", unique_name("failover"));
    let held = Arc::new(Mutex::new(VecDeque::new()));
    let is_over = Arc::new(AtomicBool::new(false));

    let granting = tokio::spawn(grant(
        holder,
        tag.clone(),
        Arc::clone(&held),
        Arc::clone(&is_over),
    ));
    tokio::time::sleep(WARM_UP).await;
    let began = Instant::now();
    let asking = tokio::spawn(ask(
        Arc::clone(&stranger),
        Arc::clone(&held),
        Arc::clone(&is_over),
        began,
    ));
    scene.befall(&stage, &tag).await;
    is_over.store(true, Ordering::Relaxed);

    let (outage, granted) = granting.await??;
    let seen = asking.await??;
    Ok(Seen {
        outage,
        granted,
        ..seen
    })
}

/// Acquires one lock after another and holds the latest. Returns the longest time without a grant,
/// and the number of grants.
async fn grant(
    locks: Locks,
    tag: String,
    held: Arc<Mutex<VecDeque<Held>>>,
    is_over: Arc<AtomicBool>,
) -> Result<(Duration, usize)> {
    let (mut outage, mut granted) = (Duration::ZERO, 0);
    let mut last = Instant::now();
    while !is_over.load(Ordering::Relaxed) {
        let name = format!("{tag}:{granted}");
        // A grant whose reply is lost does not count.
        let Ok(Some(guard)) = locks.try_lock(&name).await else {
            continue;
        };
        outage = outage.max(last.elapsed());
        last = Instant::now();
        granted += 1;
        let mut held = held.lock().await;
        held.push_back(Held {
            name,
            guard: Arc::from(guard),
        });
        if held.len() > HELD_MAX {
            held.pop_front();
        }
        drop(held);
        tokio::time::sleep(PAUSE).await;
    }
    Ok((outage, granted))
}

/// Requests all held locks repeatedly.
async fn ask(
    locks: Arc<Locks>,
    held: Arc<Mutex<VecDeque<Held>>>,
    is_over: Arc<AtomicBool>,
    began: Instant,
) -> Result<Seen> {
    let mut found = Vec::new();
    while !is_over.load(Ordering::Relaxed) {
        let now: Vec<_> = {
            let held = held.lock().await;
            let each = held.iter().filter(|held| !held.guard.is_lost());
            each.map(|held| (held.name.clone(), Arc::clone(&held.guard)))
                .collect()
        };
        for (name, guard) in now {
            let Ok(Some(ours)) = locks.try_lock(&name).await else {
                continue;
            };
            found.push(tokio::spawn(async move {
                let taken = Instant::now();
                guard.lost().await;
                let told = Instant::now();
                drop(ours);
                (told - began, told - taken)
            }));
        }
    }
    let mut seen = Seen::default();
    for one in found {
        let (told_after, two_at_once) = one.await?;
        seen.forgotten += 1;
        seen.told_after = seen.told_after.max(told_after);
        seen.two_at_once = seen.two_at_once.max(two_at_once);
    }
    Ok(seen)
}

//! One campaign: servers, workers, harm on a schedule that a seed decides, quiet, and the check.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::time::sleep;

use crate::checker::{Harm, Hit, Limits, Report, check};
use crate::faults::Fault;
use crate::history::{self, Nanos, now};
use crate::topology::{Servers, Topology};
use crate::worker::Job;
use crate::workers::Workers;

/// The settings of a campaign.
#[derive(Clone, Debug)]
pub struct Campaign {
    /// At which servers.
    pub topology: Topology,
    /// For how long workers work.
    pub time: Duration,
    /// Seed of the faults and the work.
    pub seed: u64,
    /// Whether faults may lose data.
    pub loses_data: bool,
    /// Whether workers use a lock that is none.
    pub is_naive: bool,
    /// Whether the campaign runs without faults.
    pub is_quiet: bool,
    /// The program to run as a worker.
    pub program: PathBuf,
}

/// The result of a campaign.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The checker's findings.
    pub report: Report,
    /// How many faults of each kind there were.
    pub faults: BTreeMap<Fault, usize>,
    /// How often the machine itself stood still for a moment: such a time counts as one of a fault.
    pub stalls: usize,
    /// How many processes there were.
    pub processes: usize,
}

const WORKERS: usize = 3;
const TASKS: u32 = 3;
const LEASE: Duration = Duration::from_secs(2);
/// A machine stall of this length counts as a harm of its own.
const STALL: Duration = Duration::from_millis(150);

/// Without faults a client has no reason to be impatient with a busy machine.
const QUIET_CLIENT_LEASE: Duration = Duration::from_secs(30);

const NAIVE_LEASE: Duration = Duration::from_millis(100);

/// A thread that notices when it does not get to run.
#[derive(Debug)]
struct Stalls(JoinHandle<Vec<Harm>>);

impl Stalls {
    fn watch(until: Nanos) -> Self {
        Self(std::thread::spawn(move || {
            let mut stalls = Vec::new();
            let mut from = now();
            while from < until {
                std::thread::sleep(Duration::from_millis(10));
                let to = now();
                if to - from > nanos(STALL) {
                    stalls.push(Harm {
                        from,
                        to,
                        hit: Hit::All,
                    });
                }
                from = to;
            }
            stalls
        }))
    }

    fn join(self) -> Vec<Harm> {
        self.0.join().expect("it only looks at the clock")
    }
}

fn nanos(time: Duration) -> Nanos {
    time.as_nanos() as Nanos
}

impl Campaign {
    fn lease(&self) -> Duration {
        if self.is_naive { NAIVE_LEASE } else { LEASE }
    }

    fn client_lease(&self) -> Duration {
        if self.is_quiet {
            QUIET_CLIENT_LEASE
        } else {
            self.lease()
        }
    }

    /// Limits for these servers, on a machine that is busy with other work too.
    fn limits(&self) -> Limits {
        Limits {
            call: nanos(Duration::from_secs(5)),
            call_in_trouble: nanos(Duration::from_secs(10)),
            aftermath: nanos(LEASE * 2),
            loss: nanos(Duration::from_millis(300)),
            order: nanos(Duration::from_millis(400)),
            loses_data: self.loses_data,
        }
    }

    /// Runs it, with the histories in a folder of its own that is gone afterwards if all is well.
    ///
    /// # Errors
    ///
    /// If servers or workers do not start, or a worker fails.
    pub async fn run(&self) -> Result<Outcome, Box<dyn Error>> {
        let name = lockset_testkit::unique_name("lockset-nemesis");
        let folder = std::env::temp_dir().join(name.replace(':', "-"));
        std::fs::create_dir_all(&folder)?;
        let outcome = self.run_in(&folder).await?;
        if outcome.report.violations.is_empty() || self.is_naive {
            std::fs::remove_dir_all(&folder)?;
        } else {
            eprintln!("the histories are in {}", folder.display());
        }
        Ok(outcome)
    }

    async fn run_in(&self, folder: &Path) -> Result<Outcome, Box<dyn Error>> {
        let servers = Servers::start(self.topology).await?;
        if self.topology == Topology::Redlock {
            // They have a vote when they are up for the longest lease.
            sleep(LEASE + Duration::from_secs(1)).await;
        }
        let job = Job {
            number: 0,
            urls: servers.urls(),
            is_redlock: self.topology == Topology::Redlock,
            is_naive: self.is_naive,
            tasks: TASKS,
            until: now() + nanos(self.time),
            lease_ms: self.lease().as_millis() as u64,
            client_lease_ms: self.client_lease().as_millis() as u64,
            history: PathBuf::new(),
            seed: self.seed,
        };
        let until = job.until;
        let mut workers = Workers::new(&self.program, job, folder);
        for _ in 0..WORKERS {
            workers.start()?;
        }
        let stalls = Stalls::watch(until);
        let (mut harms, faults) = self.harm(&servers, &mut workers, until).await;
        let histories = tokio::task::block_in_place(|| workers.finish())?;
        servers.are_well().await;
        // Holds of dead workers end with their leases.
        let was_killed = harms.iter().any(|harm| matches!(harm.hit, Hit::Killed(_)));
        let left = servers.left(LEASE * 3, was_killed).await;
        let mut events = Vec::new();
        for history in &histories {
            events.extend(history::read(history)?);
        }
        events.sort_by_key(|event| event.at);
        let stalls = stalls.join();
        harms.extend_from_slice(&stalls);
        Ok(Outcome {
            stalls: stalls.len(),
            report: check(&events, &harms, &left, &self.limits()),
            faults,
            processes: histories.len(),
        })
    }

    /// One fault after the other, with time to recover, until shortly before the end.
    async fn harm(
        &self,
        servers: &Servers,
        workers: &mut Workers,
        until: Nanos,
    ) -> (Vec<Harm>, BTreeMap<Fault, usize>) {
        let mut random = fastrand::Rng::with_seed(self.seed);
        let mut kinds = Fault::of(self.topology, self.loses_data);
        let (mut harms, mut faults) = (Vec::new(), BTreeMap::new());
        // Workers connect without any.
        sleep(Duration::from_secs(1)).await;
        let last = until.saturating_sub(nanos(LEASE * 3));
        if self.is_quiet || self.is_naive {
            kinds.clear();
        }
        random.shuffle(&mut kinds);
        for fault in kinds.iter().cycle() {
            if now() >= last {
                break;
            }
            let from = now();
            let hit = fault.cause(servers, workers, &mut random, LEASE).await;
            servers.are_well().await;
            // From the same machine to another continent.
            let distance = [0, 0, 1, 5, 20, 50][random.usize(..6)];
            servers.are_away(Duration::from_millis(distance));
            harms.push(Harm {
                from,
                to: now(),
                hit,
            });
            *faults.entry(*fault).or_default() += 1;
            sleep(Duration::from_millis(random.u64(100..800))).await;
        }
        (harms, faults)
    }
}

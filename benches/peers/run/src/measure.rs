//! The run: every harness started once, every job in each round, the peers in turns.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::arguments::Arguments;
use crate::facts::Facts;
use crate::failover;
use crate::figures::Figures;
use crate::harness::{self, Answer, GRACE, Harness};
use crate::jobs::{JOBS, Job, LATE};
use crate::peers::{self, Peer};
use crate::place;
use crate::results::{Outcome, PeerResults, Results};
use crate::server::{LISTENING, Measured, Meter, Origins};

/// One peer in the run.
pub(crate) struct Runner {
    pub(crate) peer: &'static Peer,
    /// Until it fails.
    pub(crate) harness: Option<Harness>,
    /// Its other processes, for the jobs of several. They are kept, as some peers compile while they run.
    others: Vec<Harness>,
    /// Of each job, by its name.
    origins: BTreeMap<&'static str, Origins>,
    pub(crate) results: PeerResults,
}

/// Shared by all runners.
pub(crate) struct Stage<'a> {
    pub(crate) arguments: &'a Arguments,
    pub(crate) server: Measured,
    pub(crate) meter: Meter,
}

pub(crate) fn run(arguments: &Arguments) -> Results {
    let built = peers::build_all(arguments);
    let server = Measured::of(arguments);
    let mut meter = Meter::of(&server);
    let mut facts = Facts::of_this_machine(meter.kind());
    facts.placement = match &server {
        Measured::Own(server) => place::take(server.pid()),
        Measured::Elsewhere(_) => "a server that ran already".to_owned(),
    };
    eprintln!("{}; {}", facts.server, facts.placement);

    let mut stage = Stage {
        arguments,
        server,
        meter,
    };
    let mut runners: Vec<Runner> = built
        .into_iter()
        .map(|(peer, built)| Runner::start(peer, built, &stage))
        .collect();
    warm_up(&mut runners, &mut stage);
    for round in 0..arguments.rounds {
        let started = Instant::now();
        for job in &JOBS {
            let order = order(runners.len(), round);
            for index in order {
                runners[index].round(job, &mut stage);
            }
        }
        failover::round(&mut runners, &mut stage);
        let took = started.elapsed().as_secs();
        eprintln!("round {} of {}: {took} s", round + 1, arguments.rounds);
    }
    Results {
        facts,
        rounds: arguments.rounds,
        seconds: arguments.seconds,
        peers: runners.into_iter().map(|runner| runner.results).collect(),
    }
}

/// Each round begins with another peer, and every second one goes backwards.
fn order(count: usize, round: usize) -> Vec<usize> {
    let order = (0..count).map(|index| (index + round) % count);
    match round % 2 {
        0 => order.collect(),
        _ => order.rev().collect(),
    }
}

fn warm_up(runners: &mut [Runner], stage: &mut Stage<'_>) {
    let started = Instant::now();
    for runner in &mut *runners {
        for job in &JOBS {
            runner.warm_up(job, stage);
        }
    }
    eprintln!("warmed up: {} s", started.elapsed().as_secs());
}

impl Runner {
    fn start(peer: &'static Peer, built: Result<(), String>, stage: &Stage<'_>) -> Self {
        let mut runner = Self {
            peer,
            harness: None,
            others: Vec::new(),
            origins: BTreeMap::new(),
            results: PeerResults::new(peer.name),
        };
        if let Err(reason) = built {
            runner.results.not_run = Some(reason);
            return runner;
        }
        let address = stage.server.address();
        match Harness::start(peer, stage.arguments, &address) {
            Ok(harness) => {
                eprintln!("{}: {}", peer.name, harness.versions);
                runner.results.versions.clone_from(&harness.versions);
                runner.harness = Some(harness);
            }
            Err(reason) => runner.stop(reason),
        }
        runner
    }

    /// It takes no further part; what it did until now is kept.
    pub(crate) fn stop(&mut self, reason: String) {
        let name = self.peer.name;
        eprintln!("{name} stopped: {reason}; see {name}.log in the build folder");
        self.results.not_run = Some(reason);
        self.harness = None;
        self.others.clear();
    }

    /// Starts the processes that a job needs beside the first.
    fn start_others(&mut self, job: &Job, stage: &Stage<'_>) -> Result<(), String> {
        let address = stage.server.address();
        while self.harness.is_some() && self.others.len() + 1 < job.processes(self.peer) {
            let other = Harness::start(self.peer, stage.arguments, &address)?;
            self.others.push(other);
        }
        Ok(())
    }

    fn warm_up(&mut self, job: &'static Job, stage: &mut Stage<'_>) {
        if let Err(reason) = self.start_others(job, stage) {
            return self.stop(reason);
        }
        let seconds = stage.arguments.seconds * self.peer.warm_up;
        let Some(Answer::Done { .. }) = self.ask(job, seconds) else {
            return;
        };
        let listening = LISTENING.as_secs_f64();
        let (origins, _) = Origins::learn(&stage.server, || self.ask(job, listening));
        self.origins.insert(job.name, origins);
    }

    fn round(&mut self, job: &Job, stage: &mut Stage<'_>) {
        let seconds = stage.arguments.seconds;
        let before = stage.meter.counts();
        let Some(Answer::Done {
            tasks,
            failures,
            violations,
        }) = self.ask(job, seconds)
        else {
            return self.keep(job, None);
        };
        let origins = self.origins.get(job.name);
        let origins = origins.expect("it was done to warm up");
        let cost = stage.meter.counts().since(&before, origins);
        self.keep(
            job,
            Figures::of(
                &tasks,
                job.processes(self.peer),
                seconds,
                (failures, violations),
                cost,
            ),
        );
    }

    fn keep(&mut self, job: &Job, figures: Option<Figures>) {
        let outcome = self.results.jobs.entry(job.name.to_owned());
        match outcome.or_insert_with(|| Outcome::Rounds(Vec::new())) {
            Outcome::Rounds(rounds) => rounds.push(figures),
            Outcome::Lacks(_) => {}
        }
    }

    /// `None` if there is no answer with turns in it; why not is noted.
    fn ask(&mut self, job: &Job, seconds: f64) -> Option<Answer> {
        let others = self.others.iter_mut().take(job.processes(self.peer) - 1);
        let mut all = vec![self.harness.as_mut()?];
        all.extend(others);
        let time = Duration::from_secs_f64(seconds);
        let started = Instant::now();
        let answer = harness::run(&mut all, &job.request(self.peer, seconds), time + GRACE);
        let late = started.elapsed().saturating_sub(time);
        if late > LATE {
            let (name, late) = (self.peer.name, late.as_secs_f64());
            eprintln!(
                "{name}, {}: the last waiter was {late:.1} s late",
                job.title
            );
        }
        match answer {
            Ok(Answer::Lacks(what)) => {
                self.results
                    .jobs
                    .insert(job.name.to_owned(), Outcome::Lacks(what));
                None
            }
            Ok(done) => Some(done),
            Err(reason) => {
                self.stop(reason);
                None
            }
        }
    }
}

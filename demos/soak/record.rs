//! The samples taken each second, and the conditions on them.

use std::fmt::Write as _;
use std::path::PathBuf;

use crate::load::Done;
use crate::plot;
use crate::support::{Result, Rule};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Sample {
    pub(crate) second: u64,
    /// The connections to the servers that answered.
    pub(crate) connections: usize,
    /// The memory of this process in KiB.
    pub(crate) memory: u64,
    /// The results since the beginning.
    pub(crate) done: Done,
}

pub(crate) struct Record {
    topology: &'static str,
    servers: usize,
    samples: Vec<Sample>,
}

/// The growth from the second third of the time to the last that does not count as a leak.
const GROWTH_MAX: f64 = 1.15;

/// Commands, renewals, messages, attempts that wait for messages, and the slot map of a cluster.
const CONNECTIONS_MAX: usize = 5;

/// This many seconds without a grant are longer than any of the faults.
const OUTAGE_MAX: u64 = 20;

impl Record {
    pub(crate) fn new(topology: &'static str, servers: usize) -> Self {
        Self {
            topology,
            servers,
            samples: Vec::new(),
        }
    }

    pub(crate) fn add(&mut self, sample: Sample) {
        self.samples.push(sample);
    }

    /// The largest value in the second third and in the last.
    fn thirds(&self, value: impl Fn(&Sample) -> f64) -> (f64, f64) {
        let third = self.samples.len() / 3;
        let largest = |samples: &[Sample]| samples.iter().map(&value).fold(0.0, f64::max);
        (
            largest(&self.samples[third..third * 2]),
            largest(&self.samples[third * 2..]),
        )
    }

    fn is_flat(&self, value: impl Fn(&Sample) -> f64) -> bool {
        let (before, after) = self.thirds(value);
        after <= before * GROWTH_MAX
    }

    fn last(&self) -> Done {
        self.samples
            .last()
            .map_or(Done::default(), |sample| sample.done)
    }

    /// The longest time without a grant, in seconds.
    fn outage(&self) -> u64 {
        let mut longest = 0;
        let mut since: Option<&Sample> = None;
        for sample in &self.samples {
            let start = *since.get_or_insert(sample);
            if sample.done.grants > start.done.grants {
                longest = longest.max(sample.second - start.second);
                since = Some(sample);
            }
        }
        let open = self
            .samples
            .last()
            .zip(since)
            .map_or(0, |(last, start)| last.second - start.second);
        longest.max(open)
    }

    /// The largest number of connections at any time.
    fn connections(&self) -> usize {
        self.samples
            .iter()
            .map(|sample| sample.connections)
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn summary(&self) -> String {
        let done = self.last();
        let (memory, memory_end) = self.thirds(|sample| sample.memory as f64 / 1024.0);
        format!(
            "{} grants, {} errors, {} calls overdue, at most {} s without a grant; \
             memory {memory:.1} -> {memory_end:.1} MiB, {} connections to {} servers",
            done.grants,
            done.errors,
            done.overdue,
            self.outage(),
            self.connections(),
            self.servers,
        )
    }

    pub(crate) fn rules(&self) -> Vec<Rule> {
        vec![
            (self.last().grants > 0, "nothing was granted"),
            (self.last().overdue == 0, "a call was overdue"),
            (self.outage() <= OUTAGE_MAX, "the client did not come back"),
            (self.is_flat(|sample| sample.memory as f64), "memory grew"),
            (
                self.connections() <= self.servers * CONNECTIONS_MAX,
                "too many connections",
            ),
        ]
    }

    /// Writes a table of all samples and a plot. Returns the path of the plot.
    pub(crate) fn write(&self) -> Result<PathBuf> {
        let target = std::env::var_os("CARGO_TARGET_DIR").unwrap_or("target".into());
        let folder = PathBuf::from(target).join("soak");
        std::fs::create_dir_all(&folder)?;
        let mut table = "second,connections,memory_kib,grants,errors\n".to_owned();
        for Sample {
            second,
            connections,
            memory,
            done,
        } in &self.samples
        {
            let Done { grants, errors, .. } = done;
            writeln!(table, "{second},{connections},{memory},{grants},{errors}")?;
        }
        std::fs::write(folder.join(format!("{}.csv", self.topology)), table)?;
        let picture = folder.join(format!("{}.svg", self.topology));
        std::fs::write(&picture, plot::draw(self.topology, &self.samples))?;
        Ok(picture)
    }
}

/// The resident memory of this process in KiB.
pub(crate) fn memory() -> Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")
        .map_err(|error| format!("memory is read from /proc, which only Linux has: {error}"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size = line
        .and_then(|line| line.split_whitespace().next())
        .ok_or("no VmRSS in /proc")?;
    Ok(size.parse()?)
}

//! All that was measured, as it is kept in results.json.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::facts::Facts;
use crate::figures::Figures;

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Results {
    pub(crate) facts: Facts,
    pub(crate) rounds: usize,
    /// Of one job of one peer in one round.
    pub(crate) seconds: f64,
    /// In the order of the table.
    pub(crate) peers: Vec<PeerResults>,
}

#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct PeerResults {
    pub(crate) name: String,
    /// As its harness says.
    pub(crate) versions: String,
    /// Why it did not run, or stopped.
    pub(crate) not_run: Option<String>,
    /// Each job by its name.
    pub(crate) jobs: BTreeMap<String, Outcome>,
    pub(crate) failover: Option<Outcome<Takeover>>,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Outcome<T = Figures> {
    /// It has no such lock.
    Lacks(String),
    /// One entry a round: the same index is the same round for all.
    Rounds(Vec<Option<T>>),
}

/// How a waiter came by the lock of a holder that was killed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Takeover {
    /// From the kill to the waiter's grant, as a share of the lease.
    pub(crate) after_kill: f64,
    /// From the end of the lease to the waiter's grant, as a share of the lease.
    pub(crate) after_end: f64,
}

impl PeerResults {
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            versions: String::new(),
            not_run: None,
            jobs: BTreeMap::new(),
            failover: None,
        }
    }
}

impl<T> Outcome<T> {
    pub(crate) fn rounds(&self) -> &[Option<T>] {
        match self {
            Self::Lacks(_) => &[],
            Self::Rounds(rounds) => rounds,
        }
    }
}

impl Results {
    pub(crate) fn read(folder: &Path) -> Self {
        let path = folder.join("results.json");
        let text = fs::read_to_string(&path).unwrap_or_else(|error| {
            panic!("nothing was measured yet: {}: {error}", path.display())
        });
        serde_json::from_str(&text).expect("results.json is what `measure` wrote")
    }

    pub(crate) fn write(&self, folder: &Path) {
        let text = serde_json::to_string_pretty(self).expect("numbers and text");
        write_file(&folder.join("results.json"), &(text + "\n"));
    }
}

pub(crate) fn write_file(path: &Path, text: &str) {
    let folder = path.parent().expect("a file in a folder");
    fs::create_dir_all(folder)
        .and_then(|()| fs::write(path, text))
        .unwrap_or_else(|error| panic!("cannot write {}: {error}", path.display()));
}

//! The history of a process: one JSON object a line.
//!
//! Invariant: times come from the machine's monotonic clock, so times of different processes can be compared. A line is
//! written in one piece before the process goes on, so it survives a kill.

use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;

use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Nanoseconds of the machine's monotonic clock.
pub type Nanos = u64;

/// Now.
#[must_use]
pub fn now() -> Nanos {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

/// Something that happened to a call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Event {
    /// When it was written down.
    pub at: Nanos,
    /// By which process.
    pub process: u32,
    /// About which call of it.
    pub call: u64,
    /// What happened.
    pub what: What,
}

/// The other holders that a hold permits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Mode {
    /// Nobody.
    Alone,
    /// Others who share it.
    Shared,
    /// As many as there are permits left.
    Permits {
        /// How many it takes.
        taken: u32,
        /// How many there are.
        of: u32,
    },
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "is")]
pub enum What {
    /// The call begins, and waits for at most this long.
    Begin {
        /// The name of the lock.
        lock: String,
        /// Whether its waiters are served in their order.
        is_fair: bool,
        /// The other holders that it permits.
        mode: Mode,
        /// In ns.
        wait: Nanos,
    },
    /// It has the lock.
    Granted {
        /// Its fencing token.
        token: Option<u64>,
    },
    /// The guard said at this moment that it is valid, and until when it is without a renewal.
    Valid {
        /// Of the same clock.
        until: Nanos,
    },
    /// Another holder has it.
    Refused,
    /// The caller gave up waiting: the future was dropped.
    Dropped,
    /// It failed.
    Failed {
        /// Why.
        error: String,
    },
    /// The guard is about to be released or dropped.
    ReleaseBegin,
    /// The release is over.
    ReleaseEnd,
    /// The guard said that it is lost.
    Lost {
        /// Why.
        reason: String,
    },
}

/// A history that is being written.
#[derive(Debug)]
pub struct Writer {
    file: File,
    process: u32,
}

impl Writer {
    /// Appends to this file.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn append(path: &Path, process: u32) -> io::Result<Self> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Self { file, process })
    }

    /// Writes down what happened now.
    ///
    /// # Panics
    ///
    /// If that fails: a history with a hole proves nothing.
    pub fn note(&self, call: u64, what: What) {
        self.note_at(now(), call, what);
    }

    /// Writes down what happened then.
    ///
    /// # Panics
    ///
    /// If that fails.
    pub fn note_at(&self, at: Nanos, call: u64, what: What) {
        let event = Event {
            at,
            process: self.process,
            call,
            what,
        };
        let mut line = serde_json::to_string(&event).expect("it is plain data");
        line.push('\n');
        (&self.file)
            .write_all(line.as_bytes())
            .expect("the history is written");
    }
}

/// Reads what a process has written. A last line that was cut off is left out.
///
/// # Errors
///
/// If the file cannot be read or has another line that is none.
pub fn read(path: &Path) -> io::Result<Vec<Event>> {
    let text = std::fs::read_to_string(path)?;
    let whole = text.rfind('\n').map_or("", |end| &text[..end]);
    let lines = whole.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().map_err(io::Error::from)
}

//! The worker processes: started, stopped, killed and replaced.
//!
//! Invariant: a worker does not outlive its [`Workers`], and has a number that is never used again.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::worker::Job;

/// The argument that makes the program a worker.
pub const VERB: &str = "worker";

/// All that run.
#[derive(Debug)]
pub struct Workers {
    program: PathBuf,
    template: Job,
    folder: PathBuf,
    running: Vec<(u32, Child)>,
    next: u32,
}

impl Workers {
    /// None yet: each will be `program`, with a job like this one and a history in this folder.
    #[must_use]
    pub fn new(program: &Path, template: Job, folder: &Path) -> Self {
        Self {
            program: program.to_owned(),
            template,
            folder: folder.to_owned(),
            running: Vec::new(),
            next: 1,
        }
    }

    /// Starts one more.
    ///
    /// # Errors
    ///
    /// If the program cannot be started.
    pub fn start(&mut self) -> io::Result<()> {
        let number = self.next;
        self.next += 1;
        let job = Job {
            number,
            history: self.folder.join(format!("{number}.jsonl")),
            ..self.template.clone()
        };
        let job = serde_json::to_string(&job)?;
        let child = Command::new(&self.program)
            .args([VERB, &job])
            .stdin(Stdio::null())
            .spawn()?;
        self.running.push((number, child));
        Ok(())
    }

    /// How many run.
    #[must_use]
    pub fn count(&self) -> usize {
        self.running.len()
    }

    /// The number of one.
    #[must_use]
    pub fn number(&self, at: usize) -> u32 {
        self.running[at].0
    }

    fn signal(&self, at: usize, signal: Signal) {
        let id = self.running[at].1.id();
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw);
        // It may have ended by itself at the end of its time.
        let _ = pid.map(|pid| kill_process(pid, signal));
    }

    /// Has one stand still.
    pub fn stop(&self, at: usize) {
        self.signal(at, Signal::STOP);
    }

    /// Lets it go on.
    pub fn cont(&self, at: usize) {
        self.signal(at, Signal::CONT);
    }

    /// Kills one and starts another. Returns the number of the one that is gone.
    ///
    /// # Errors
    ///
    /// If no other one can be started.
    pub fn replace(&mut self, at: usize) -> io::Result<u32> {
        let (number, mut child) = self.running.swap_remove(at);
        child.kill()?;
        child.wait()?;
        self.start()?;
        Ok(number)
    }

    /// Waits for all workers, and returns their histories, including the histories of killed workers.
    ///
    /// # Errors
    ///
    /// If one failed.
    pub fn finish(mut self) -> io::Result<Vec<PathBuf>> {
        for (number, mut child) in self.running.drain(..) {
            let status = child.wait()?;
            if !status.success() {
                return Err(io::Error::other(format!("worker {number}: {status}")));
            }
        }
        let histories = (1..self.next).map(|number| self.folder.join(format!("{number}.jsonl")));
        Ok(histories.filter(|path| path.exists()).collect())
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for (_, child) in &mut self.running {
            // A stopped process dies of SIGKILL too. It may be gone.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

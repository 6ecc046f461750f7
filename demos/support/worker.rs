//! A worker process of an example: a copy of the program that does a part of the work.
//!
//! It receives orders and reports results in lines. Its first line is `READY`, and its work ends
//! with its input.

use std::io::{Write as _, stdout};
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines, Stdin};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::ctrl_c;
use tokio::time::timeout;

use super::Result;

/// The parent's handle of a worker. Dropping it kills the worker.
pub(crate) struct Worker {
    name: String,
    process: Child,
    words: Option<ChildStdin>,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Worker {
    /// `url` is the URL of the lock server.
    pub(crate) fn start(name: String, args: &[&str], url: &str) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(args)
            // Not as an argument, because any user can read the arguments of a process.
            .env("REDIS_URL", url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            name,
            words: process.stdin.take(),
            lines: BufReader::new(process.stdout.take().expect("it is piped")).lines(),
            process,
        })
    }

    /// Waits until the worker accepts orders.
    pub(crate) async fn ready(&mut self) -> Result<()> {
        match self.line().await?.as_deref() {
            Some("READY") => Ok(()),
            _ => Err(format!("{} did not start", self.name).into()),
        }
    }

    pub(crate) async fn tell(&mut self, words: &str) -> Result<()> {
        let pipe = self.words.as_mut().ok_or("the worker's input is closed")?;
        pipe.write_all(format!("{words}\n").as_bytes()).await?;
        Ok(())
    }

    /// Ends the worker's input: there are no further orders.
    pub(crate) fn that_is_all(&mut self) {
        self.words = None;
    }

    /// The worker's next line, or `None` after a successful exit.
    pub(crate) async fn line(&mut self) -> Result<Option<String>> {
        if let Some(line) = self.lines.next_line().await? {
            return Ok(Some(line));
        }
        let status = self.process.wait().await?;
        if status.success() {
            Ok(None)
        } else {
            Err(format!("{} failed: {status}", self.name).into())
        }
    }

    /// Kills a running worker with SIGKILL, so that it cannot clean up. Returns when it is dead.
    pub(crate) async fn kill(&mut self) {
        // The only possible error is that the process has ended already.
        let _ = self.process.kill().await;
    }

    /// Freezes or continues a running worker.
    pub(crate) fn signal(&self, signal: Signal) -> Result<()> {
        let id = self.process.id().ok_or("the process has ended")?;
        let pid = Pid::from_raw(id.try_into()?).ok_or("a process without an id")?;
        Ok(kill_process(pid, signal)?)
    }
}

/// The orders of a worker.
pub(crate) struct Orders(Lines<BufReader<Stdin>>);

impl Orders {
    /// Reports that this process is ready.
    pub(crate) fn take() -> Result<Self> {
        writeln!(stdout(), "READY")?;
        Ok(Self(BufReader::new(tokio::io::stdin()).lines()))
    }

    pub(crate) async fn next(&mut self) -> Result<Option<String>> {
        Ok(self.0.next_line().await?)
    }
}

/// The URL of the lock server, in a worker.
pub(crate) fn server_url() -> Result<String> {
    Ok(std::env::var("REDIS_URL")?)
}

/// Runs `work` until it ends, its time limit passes or the user presses Ctrl-C.
pub(crate) async fn bounded<T>(
    bound: Duration,
    work: impl Future<Output = Result<T>>,
) -> Result<T> {
    tokio::select! {
        done = timeout(bound, work) => done.map_err(|_| format!("not done within {bound:?}"))?,
        _ = ctrl_c() => Err("interrupted".into()),
    }
}

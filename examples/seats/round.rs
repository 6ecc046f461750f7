//! One round: opens the box offices, lets all people in at once and collects what became of them.

use std::collections::HashSet;
use std::process::Stdio;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::signal::ctrl_c;
use tokio::sync::mpsc::{self, UnboundedSender};
use tokio::time::timeout;
use tokio::try_join;

use crate::database::{Database, Sale};
use crate::office::Served;
use crate::report::Progress;
use crate::server::LockServer;
use crate::{OFFICES, PEOPLE, Result, SEATS};

/// A box office that is not done by then fails the round.
const BOUND: Duration = Duration::from_secs(60);

pub(crate) struct Round {
    /// What the box offices said.
    pub(crate) served: Vec<Served>,
    /// What the database says.
    pub(crate) sales: Vec<Sale>,
    /// From the start until the last person was served.
    pub(crate) wall: Duration,
}

impl Round {
    pub(crate) async fn play(
        title: &'static str,
        database: &Database,
        server: &LockServer,
        lock: Option<&str>,
    ) -> Result<Self> {
        let mut offices = Vec::new();
        for number in 0..OFFICES {
            offices.push(Office::start(number, database, server, lock)?);
        }
        let played = tokio::select! {
            played = timeout(BOUND, serve(title, &mut offices)) => played,
            _ = ctrl_c() => Ok(Err("interrupted".into())),
        };
        for office in &mut offices {
            office.end().await;
        }
        let (served, wall) = played.map_err(|_| format!("not done within {BOUND:?}"))??;
        Ok(Self {
            served,
            sales: database.sales()?,
            wall,
        })
    }

    pub(crate) fn oversold(&self) -> usize {
        self.sales.len().saturating_sub(SEATS)
    }

    pub(crate) fn refused(&self) -> usize {
        self.served.iter().filter(|served| !served.bought).count()
    }

    /// What must not be, if the lock works.
    pub(crate) fn faults(&self) -> Vec<&'static str> {
        let seated: HashSet<_> = self.sales.iter().map(|sale| sale.person).collect();
        let bought = self.served.iter().filter(|served| served.bought);
        let told: HashSet<_> = bought.map(|served| served.person).collect();
        let tokens: Option<Vec<_>> = self.sales.iter().map(|sale| sale.token).collect();
        let growing = tokens.is_some_and(|tokens| tokens.is_sorted_by(|a, b| a < b));
        let rules = [
            (self.sales.len() == SEATS, "not every seat was sold once"),
            (
                self.refused() == PEOPLE - SEATS,
                "not all others were refused",
            ),
            (seated.len() == self.sales.len(), "somebody has two seats"),
            (seated == told, "somebody was told what is not true"),
            (growing, "a fencing token did not grow"),
        ];
        let broken = rules.into_iter().filter(|(kept, _)| !kept);
        broken.map(|(_, fault)| fault).collect()
    }
}

/// Lets all people in at the same moment and waits until all are served; says how long that took.
async fn serve(title: &'static str, offices: &mut [Office]) -> Result<(Vec<Served>, Duration)> {
    for office in offices.iter_mut() {
        office.opened().await?;
    }
    let start = Instant::now();
    for office in offices.iter_mut() {
        office.words.write_all(b"go\n").await?;
    }
    // A channel, since four box offices speak at once.
    let (tell, mut told) = mpsc::unbounded_channel();
    let all = try_join_all(offices.iter_mut().map(|office| office.serve(tell.clone())));
    drop(tell);
    let count = async {
        let mut progress = Progress::start(title);
        let mut served = Vec::with_capacity(PEOPLE);
        let mut wall = Duration::ZERO;
        while let Some(one) = told.recv().await {
            served.push(one);
            wall = start.elapsed();
            progress.show(served.len());
        }
        Ok((served, wall))
    };
    let (_, counted) = try_join!(all, count)?;
    Ok(counted)
}

/// A box office as the demo sees it: a copy of this program, which is killed if this is dropped.
struct Office {
    number: usize,
    process: Child,
    words: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Office {
    fn start(
        number: usize,
        database: &Database,
        server: &LockServer,
        lock: Option<&str>,
    ) -> Result<Self> {
        let mut process = Command::new(std::env::current_exe()?)
            .args(["office", &number.to_string()])
            .arg(&database.path)
            .args(lock)
            .env("REDIS_URL", &server.url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        Ok(Self {
            number,
            words: process.stdin.take().expect("it is piped"),
            lines: BufReader::new(process.stdout.take().expect("it is piped")).lines(),
            process,
        })
    }

    async fn opened(&mut self) -> Result<()> {
        match self.lines.next_line().await?.as_deref() {
            Some("READY") => Ok(()),
            _ => Err(format!("box office {} did not open", self.number).into()),
        }
    }

    /// Tells of each person served, until the process has ended.
    async fn serve(&mut self, tell: UnboundedSender<Served>) -> Result<()> {
        while let Some(line) = self.lines.next_line().await? {
            tell.send(line.parse()?)?;
        }
        let status = self.process.wait().await?;
        if !status.success() {
            return Err(format!("box office {} failed: {status}", self.number).into());
        }
        Ok(())
    }

    /// Kills the process if it still runs, and waits for its end.
    async fn end(&mut self) {
        // The only error is that it has ended already.
        let _ = self.process.kill().await;
    }
}

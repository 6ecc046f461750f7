//! One leader among three processes: it is killed, frozen, and resigns.
//!
//! The leader writes to a journal, which refuses tokens older than the largest that it has seen. A
//! killed leader is replaced when its lease ends, and a leader that resigns is replaced at once. A
//! frozen leader is replaced too, but does not know it: it is frozen between its check and its
//! write, so it writes after the next leader did. The journal refuses that write by its token; a
//! second table without the check accepts it. Read `candidate.rs` first, where the election is used.
//!
//! ```sh
//! cargo run --release --example leader
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own. The exit status is 0 only if each
//! token was used by one leader, in order, and if the table without the check has the late write.

mod candidate;
mod journal;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lockset::{Client, Leader, Leaders};
use lockset_testkit::unique_name;
use rustix::process::Signal;
use tokio::time::sleep;

use candidate::Word;
use journal::Journal;
use support::database::Folder;
use support::server::LockServer;
use support::worker::{Worker, bounded};
use support::{Result, Rule, say};

const NAMES: [&str; 3] = ["A", "B", "C"];

/// The longest time without a leader after one was killed.
const LEASE: Duration = Duration::from_secs(2);

/// Added to the lease where a busy machine may be slow.
const SLACK: Duration = Duration::from_secs(2);

const BOUND: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    // The example runs itself again for every candidate.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => example().await,
        ["candidate", name, journal, election] => candidate::run(name, journal, election).await,
        _ => Err("no arguments, please; REDIS_URL=redis://host chooses a server".into()),
    };
    support::exit("leader", outcome)
}

async fn example() -> Result<()> {
    let server = LockServer::find().await?;
    say(&format!(
        "
An election: three processes want to lead, and the leader writes to a journal with its
token. One leader is killed, one is frozen before a write, one resigns.

Lock server: {}

",
        server.description
    ));
    // A name that no other user of the server has.
    let election = unique_name("lockset-leader");
    let played = bounded(BOUND, play(&server, &election)).await;
    let cleared = server.clear(std::slice::from_ref(&election)).await;
    let rules = played?;
    cleared?;
    support::all_kept(rules)?;
    say("
One leader at a time: no two of them wrote with one token, and the late write of the
frozen leader was refused.

");
    Ok(())
}

async fn play(server: &LockServer, election: &str) -> Result<Vec<Rule>> {
    let folder = Folder::create()?;
    let journal = Journal::create(folder.file("journal.db"))?;
    let client = Client::builder(&server.url).lease(LEASE).build().await?;
    let mut stage = Stage::set(server, &client, &journal, election).await?;

    let first = stage.next_leader(None).await?;
    say(&format!("  {} leads\n", first.value));

    let (second, after_kill) = stage.kill(&first).await?;
    let (third, after_freeze, late) = stage.freeze(&second).await?;
    let (last, after_resignation) = stage.resign(&third).await?;
    let last_is_thawed = last.value == second.value;
    stage.end().await?;
    client.shutdown().await?;

    let expected = [&first, &second, &third, &last];
    let expected = expected.map(|leader| (leader.value.clone(), leader.token.get()));
    let reigns = journal.reigns()?;
    Ok(vec![
        (
            after_kill < LEASE + SLACK,
            "the killed leader was replaced too late",
        ),
        (
            after_freeze < LEASE + SLACK,
            "the frozen leader was replaced too late",
        ),
        (
            after_resignation < LEASE / 2,
            "nobody led at once after a resignation",
        ),
        (
            late == Word::Refused,
            "the journal took the write of a leader that was frozen",
        ),
        (
            journal.has_late_write(second.token.get())?,
            "the table without the check has no late write: this run shows nothing",
        ),
        (
            last_is_thawed,
            "the leader that was frozen did not come back as a candidate",
        ),
        (
            journal.is_in_order()?,
            "the journal has a token after a larger one",
        ),
        (
            reigns == expected,
            "a token was used by two leaders, or a leader wrote nothing",
        ),
        (
            reigns.is_sorted_by(|a, b| a.1 < b.1),
            "two leaders wrote with one token",
        ),
    ])
}

/// The candidates, and a view of the leader from outside.
struct Stage<'a> {
    /// `None` after the process was killed.
    candidates: [Option<Worker>; NAMES.len()],
    leaders: Leaders,
    journal: &'a Journal,
}

impl<'a> Stage<'a> {
    async fn set(
        server: &LockServer,
        client: &Client,
        journal: &'a Journal,
        election: &str,
    ) -> Result<Self> {
        let path = journal.path().to_str().ok_or("a path that is no text")?;
        let mut candidates = [const { None }; NAMES.len()];
        for (candidate, name) in candidates.iter_mut().zip(NAMES) {
            let args = ["candidate", name, path, election];
            let started = Worker::start(format!("candidate {name}"), &args, &server.url)?;
            candidate.insert(started).ready().await?;
        }
        Ok(Self {
            candidates,
            leaders: client.election(election).observe(),
            journal,
        })
    }

    fn candidate(&mut self, leader: &Leader) -> Result<&mut Worker> {
        let mut named = self.candidates.iter_mut().zip(NAMES);
        let named = named.find(|(_, name)| *name == leader.value);
        let worker = named.and_then(|(worker, _)| worker.as_mut());
        worker.ok_or_else(|| format!("{} is no candidate", leader.value).into())
    }

    async fn kill(&mut self, leader: &Leader) -> Result<(Leader, Duration)> {
        let since = Instant::now();
        let at = NAMES.iter().position(|name| *name == leader.value);
        let killed = at.and_then(|at| self.candidates[at].take());
        killed.ok_or("the leader is no candidate")?.kill().await;
        let next = self.next_leader(Some(leader)).await?;
        let took = report("is killed", leader, &next, since);
        Ok((next, took))
    }

    /// Waits for a leader other than `before`, and for its first write.
    async fn next_leader(&mut self, before: Option<&Leader>) -> Result<Leader> {
        let leader = loop {
            let seen = self
                .leaders
                .next()
                .await
                .ok_or("the stream of leaders ended")??;
            match seen {
                Some(leader) if before.is_none_or(|before| leader.token > before.token) => {
                    break leader;
                }
                _ => {}
            }
        };
        while !self.journal.has(leader.token.get())? {
            sleep(Duration::from_millis(1)).await;
        }
        Ok(leader)
    }

    /// Freezes the leader between its check and its write, until another one has written.
    async fn freeze(&mut self, frozen: &Leader) -> Result<(Leader, Duration, Word)> {
        self.candidate(frozen)?.tell("check").await?;
        candidate::hear(self.candidate(frozen)?, Word::Checked).await?;
        let since = Instant::now();
        self.candidate(frozen)?.signal(Signal::STOP)?;
        let next = self.next_leader(Some(frozen)).await?;
        let took = report("is frozen", frozen, &next, since);

        // The order to write is there before the process continues, so it does not check again.
        self.candidate(frozen)?.tell("write").await?;
        self.candidate(frozen)?.signal(Signal::CONT)?;
        let late = candidate::next_word(self.candidate(frozen)?).await?;
        let outcome = if late == Word::Refused {
            "refused"
        } else {
            "taken"
        };
        let name = &frozen.value;
        say(&format!("  {name} continues, and its write is {outcome}\n"));
        // It knows by itself that it leads no longer, and campaigns again.
        candidate::hear(self.candidate(frozen)?, Word::Lost).await?;
        Ok((next, took, late))
    }

    async fn resign(&mut self, leader: &Leader) -> Result<(Leader, Duration)> {
        let since = Instant::now();
        self.candidate(leader)?.tell("resign").await?;
        let next = self.next_leader(Some(leader)).await?;
        let took = report("resigns", leader, &next, since);
        Ok((next, took))
    }

    /// Ends the candidates that still run.
    async fn end(mut self) -> Result<()> {
        for candidate in self.candidates.iter_mut().flatten() {
            candidate.that_is_all();
            while candidate.line().await?.is_some() {}
        }
        Ok(())
    }
}

fn report(fate: &str, before: &Leader, next: &Leader, since: Instant) -> Duration {
    let took = since.elapsed();
    let (before, next, millis) = (&before.value, &next.value, took.as_millis());
    say(&format!(
        "  {before} {fate}, and {next} leads after {millis} ms\n"
    ));
    took
}

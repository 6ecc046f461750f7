//! Three licences for twenty workers, in four processes.
//!
//! There are two rounds: without a semaphore, far more than three workers use a licence at once, and
//! with it, never more than three. In both rounds the workers of one process hang, and the process
//! is killed. With the semaphore, its licences come back when their leases end, and the other
//! processes use all three again. Read `office.rs` first, where the semaphore is used.
//!
//! ```sh
//! cargo run --release --example pool
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own. The exit status is 0 only if no
//! licence was used twice with the semaphore, and at least one was without it.

mod jobs;
mod office;
#[path = "../support/mod.rs"]
mod support;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::unique_name;
use tokio::time::sleep;

use jobs::Jobs;
use support::database::Folder;
use support::server::LockServer;
use support::worker::{Worker, bounded};
use support::{Result, Rule, say};

const LICENCES: u32 = 3;
const WORKERS: usize = 20;
const PROCESSES: usize = 4;

/// A round ends after this many jobs.
const JOBS: usize = 150;

/// The process whose workers hang, and which is killed.
const KILLED: usize = 2;

/// The licences of a killed process come back within this time.
const LEASE: Duration = Duration::from_secs(2);

const BOUND: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    // The example runs itself again for every process of workers.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => example().await,
        ["office", number, jobs] => office::open(number, jobs, None).await,
        ["office", number, jobs, pool] => office::open(number, jobs, Some(pool)).await,
        _ => Err("no arguments, please; REDIS_URL=redis://host chooses a server".into()),
    };
    support::exit("pool", outcome)
}

/// The results of a round.
struct Round {
    jobs: usize,
    /// The largest number of workers that used a licence at once.
    at_once: usize,
    /// The number of licences that the killed process was using.
    killed_with: usize,
    /// The time from the kill until all licences were in use again.
    full_after: Duration,
}

async fn example() -> Result<()> {
    let server = LockServer::find().await?;
    say(&format!(
        "
A pool of {LICENCES} licences: {WORKERS} workers in {PROCESSES} processes each need one for a job. The workers of one
process hang, and it is killed.

Lock server: {}
",
        server.description
    ));
    // A name that no other user of the server has.
    let pool = unique_name("lockset-pool");
    let played = bounded(BOUND, both_rounds(&server, &pool)).await;
    let cleared = server.clear(std::slice::from_ref(&pool)).await;
    let rules = played?;
    cleared?;
    support::all_kept(rules)?;
    say("
None over-issued: with the semaphore at most three workers used a licence at once, and
the licences of the killed process came back by themselves.

");
    Ok(())
}

async fn both_rounds(server: &LockServer, pool: &str) -> Result<Vec<Rule>> {
    let folder = Folder::create()?;
    let without = round(server, folder.file("without.db"), None).await?;
    let with = round(server, folder.file("with.db"), Some(pool)).await?;
    table(&without, &with);

    let client = Client::connect(&server.url).await?;
    let semaphore = client.semaphore(pool);
    let free = semaphore.available().await?;
    let holders = semaphore.holders().await?;
    client.shutdown().await?;
    let licences = LICENCES as usize;
    Ok(vec![
        (
            without.at_once > licences,
            "no licence was used twice without the semaphore: this run shows nothing",
        ),
        (
            with.at_once <= licences,
            "a licence was used twice with the semaphore",
        ),
        (
            with.killed_with >= 1,
            "the killed process had no licence: this run shows nothing",
        ),
        (
            free == LICENCES && holders.is_empty(),
            "a licence did not come back",
        ),
    ])
}

/// Processes work until they have done enough jobs. One is killed on the way.
async fn round(server: &LockServer, path: PathBuf, pool: Option<&str>) -> Result<Round> {
    let jobs = Jobs::create(path)?;
    let path = jobs.path().to_str().ok_or("a path that is no text")?;
    let mut offices = Vec::new();
    for number in 1..=PROCESSES {
        let number = number.to_string();
        let mut args = vec!["office", &number, path];
        args.extend(pool);
        offices.push(Worker::start(
            format!("process {number}"),
            &args,
            &server.url,
        )?);
    }
    for office in &mut offices {
        office.ready().await?;
    }
    for office in &mut offices {
        office.tell("go").await?;
    }

    until(|| Ok(jobs.running_in(KILLED)? > 0)).await?;
    offices.remove(KILLED - 1).kill().await;
    let killed = Instant::now();
    // The dead workers use nothing from now on. Their permits are still taken at the server.
    let killed_with = jobs.end_all_of(KILLED)?;
    let last = jobs.count()?;
    until(|| Ok(jobs.most_at_once_since(last)? >= LICENCES as usize)).await?;
    let full_after = killed.elapsed();

    until(|| Ok(jobs.count()? >= JOBS)).await?;
    for office in &mut offices {
        office.that_is_all();
    }
    for office in &mut offices {
        while office.line().await?.is_some() {}
    }
    Ok(Round {
        jobs: jobs.count()?,
        at_once: jobs.most_at_once_since(0)?,
        killed_with,
        full_after,
    })
}

async fn until(is_so: impl Fn() -> Result<bool>) -> Result<()> {
    while !is_so()? {
        sleep(Duration::from_millis(2)).await;
    }
    Ok(())
}

fn table(without: &Round, with: &Round) {
    let both = |value: fn(&Round) -> String| [without, with].map(value);
    let rows = [
        ("", ["without", "with the semaphore"].map(str::to_owned)),
        ("Jobs", both(|round| round.jobs.to_string())),
        (
            "Workers with a licence at once, most",
            both(|round| round.at_once.to_string()),
        ),
        (
            "Licences of the killed process",
            both(|round| round.killed_with.to_string()),
        ),
        (
            "All licences in use again after",
            both(|round| format!("{:.1} s", round.full_after.as_secs_f64())),
        ),
    ];
    say("\n");
    for (label, [without, with]) in rows {
        say(&format!("{label:<38}{without:>10}{with:>22}\n"));
    }
}

//! A configuration with many readers and one writer, in two parts that must match.
//!
//! The parts are two keys at the server, so neither a read nor a change is atomic. Readers in
//! several processes read continuously; one writer changes both parts now and then. Without a lock,
//! some readers see one part from before a change and one from after it. With the read-write lock
//! they never do, although they still read concurrently. Read `reader.rs` and `writer.rs` first,
//! where the lock is used.
//!
//! ```sh
//! cargo run --release --example config
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own. The exit status is 0 only if no
//! reader saw parts that do not match with the lock, and at least one did without it.

mod parts;
mod reader;
#[path = "../support/mod.rs"]
mod support;
mod writer;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockset_testkit::unique_name;

use parts::Parts;
use reader::Reads;
use support::server::LockServer;
use support::worker::{Worker, bounded};
use support::{Result, millis, say};
use writer::Writes;

const PROCESSES: usize = 3;
const READERS: usize = 8;
const CHANGES: u64 = 25;

const BOUND: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    // The example runs itself again for every process of readers.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => example().await,
        ["readers", config] => reader::open(config, None).await,
        ["readers", config, lock] => reader::open(config, Some(lock)).await,
        _ => Err("no arguments, please; REDIS_URL=redis://host chooses a server".into()),
    };
    support::exit("config", outcome)
}

/// The results of a round.
struct Round {
    reads: Reads,
    writes: Writes,
    wall: Duration,
}

async fn example() -> Result<()> {
    let server = LockServer::find().await?;
    say(&format!(
        "
A configuration of two parts: {} readers in {PROCESSES} processes read both, again and
again; one writer changes both {CHANGES} times. Parts of different versions are a torn read.

Lock server: {}
",
        PROCESSES * READERS,
        server.description
    ));
    // A lock name that no other user of the server has.
    let lock = unique_name("lockset-config");
    let configs = ["without", "with"].map(|round| format!("{lock}:{round}"));
    let played = bounded(BOUND, async {
        let without = round(&server, &configs[0], None).await?;
        let with = round(&server, &configs[1], Some(&lock)).await?;
        Ok((without, with))
    });
    let played = played.await;
    let cleared = server.clear(std::slice::from_ref(&lock)).await;
    for config in &configs {
        Parts::new(server.connection(), config).delete().await?;
    }
    let (without, with) = played?;
    cleared?;

    table(&without, &with);
    support::all_kept([
        (with.reads.torn == 0, "a read was torn under the lock"),
        (
            with.writes.confirmed == CHANGES,
            "a writer read back something else",
        ),
        (with.writes.last == CHANGES, "a change got lost"),
        (
            with.writes.readers_at_once > 1,
            "no readers were beside each other",
        ),
        (
            without.reads.torn > 0,
            "nothing was torn without the lock: this run shows nothing",
        ),
    ])?;
    say("
Whole: under the lock every reader saw both parts of one version, and the writer got
its turn although somebody was reading all the time.

");
    Ok(())
}

/// Readers read until the writer has made all its changes.
async fn round(server: &LockServer, config: &str, lock: Option<&str>) -> Result<Round> {
    let parts = Parts::create(server, config).await?;
    let mut processes = Vec::new();
    for number in 1..=PROCESSES {
        let mut args = vec!["readers", config];
        args.extend(lock);
        processes.push(Worker::start(
            format!("process {number}"),
            &args,
            &server.url,
        )?);
    }
    for process in &mut processes {
        process.ready().await?;
    }
    let started = Instant::now();
    let writes = writer::change(server, parts.clone(), lock).await?;
    let wall = started.elapsed();
    let mut reads = Reads::default();
    for mut process in processes {
        process.that_is_all();
        while let Some(line) = process.line().await? {
            reads.add(&line)?;
        }
    }
    Ok(Round {
        reads,
        writes,
        wall,
    })
}

fn table(without: &Round, with: &Round) {
    let per_second =
        |round: &Round| format!("{:.0}", round.reads.all as f64 / round.wall.as_secs_f64());
    let of_lock = |value: String| ["-".to_owned(), value];
    let rows = [
        ("", ["without a lock", "with the lock"].map(str::to_owned)),
        (
            "Torn reads",
            [without, with].map(|round| round.reads.torn.to_string()),
        ),
        (
            "All reads",
            [without, with].map(|round| round.reads.all.to_string()),
        ),
        ("Reads a second", [without, with].map(per_second)),
        (
            "Readers inside at once, most",
            of_lock(with.writes.readers_at_once.to_string()),
        ),
        (
            "Writer waited, median",
            of_lock(millis(with.writes.median_wait())),
        ),
        ("  longest", of_lock(millis(with.writes.longest_wait()))),
        (
            "Read back what was written",
            of_lock(format!("{} of {CHANGES}", with.writes.confirmed)),
        ),
    ];
    say("\n");
    for (label, [without, with]) in rows {
        say(&format!("{label:<30}{without:>16}{with:>16}\n"));
    }
}

//! First come, first served: 100 people want 90 seats, at four box offices at once.
//!
//! Each box office is a separate process, and all sell from one database. There are two rounds:
//! without a lock, more seats are sold than exist, and with a lock, exactly 90 are sold. Read
//! `participant.rs` first, where the lock is held, then `office.rs`, where it is created.
//!
//! ```sh
//! cargo run --release --example seats
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own, or `TOPOLOGY` to `cluster`,
//! `sentinel` or `redlock` to kill servers halfway through the round with the lock. The exit status
//! is 0 only if that round was exact.

mod database;
mod office;
mod participant;
mod report;
mod round;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;

use lockset_testkit::unique_name;

use database::Database;
use round::Round;
use support::database::Folder;
use support::topology::Topology;
use support::{Result, Rule};

const SEATS: usize = 90;
const PEOPLE: usize = 100;
const OFFICES: usize = 4;

#[tokio::main]
async fn main() -> ExitCode {
    // The demo runs itself again for every box office.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => demo().await,
        ["office", number, database] => office::open(number, database, None).await,
        ["office", number, database, lock] => office::open(number, database, Some(lock)).await,
        _ => Err("no arguments, please; REDIS_URL=redis://host chooses a server".into()),
    };
    support::exit("seats", outcome)
}

async fn demo() -> Result<()> {
    let topology = Topology::find().await?;
    report::opening(&topology.description());

    // A lock name that no other user of the server has.
    let lock = unique_name("lockset-demo-seats");
    let played = both_rounds(&topology, &lock).await;
    let cleared = topology.clear(&lock).await;
    let (without, with, rules) = played?;
    cleared?;

    report::table(&without, &with);
    support::all_kept(rules)?;
    report::closing(&with);
    Ok(())
}

async fn both_rounds(topology: &Topology, lock: &str) -> Result<(Round, Round, Vec<Rule>)> {
    let folder = Folder::create()?;

    let database = Database::create(folder.file("without.db"))?;
    let without = Round::play("Without a lock", &database, topology, None).await?;

    let database = Database::create(folder.file("with.db"))?;
    let with = Round::play("With the lock", &database, topology, Some(lock)).await?;

    let mut rules = with.rules();
    // A holder that was suspended past the end of its lease, and now tries to sell with its old
    // token.
    let late_token = with.sales.first().and_then(|sale| sale.token);
    let refused = database.sell(PEOPLE, late_token).is_err();
    rules.push((refused, "the database took a sale with an old token"));
    Ok((without, with, rules))
}

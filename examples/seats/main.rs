//! First come, first served: 100 people want 90 seats, at four box offices at once.
//!
//! Each box office is a process of its own, all of them sell from one database, and two rounds are
//! played: without a lock, where more seats are sold than there are, and with one, where exactly
//! 90 are. Read `participant.rs` first, where the lock is held, then `office.rs`, where it is made.
//!
//! ```sh
//! cargo run --release --example seats
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own, or `TOPOLOGY` to `cluster`, `sentinel`
//! or `redlock`: then servers are killed in the middle of the round with the lock. The exit status is
//! 0 only if that round was exact.

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
    // The demo runs itself again, once for every box office.
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

    // Nobody else who uses the server can have a lock of this name.
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
    // Somebody who slept through the end of a lease, and now wants to sell with the old token.
    let late_token = with.sales.first().and_then(|sale| sale.token);
    let refused = database.sell(PEOPLE, late_token).is_err();
    rules.push((refused, "the database took a sale with an old token"));
    Ok((without, with, rules))
}

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
//! It starts a private server; set `REDIS_URL` to use your own. The exit status is 0 only if the
//! round with the lock was exact.

mod database;
mod office;
mod participant;
mod report;
mod round;
mod server;

use std::process::ExitCode;

use lockset_testkit::unique_name;

use database::{Database, Folder};
use round::Round;
use server::LockServer;

const SEATS: usize = 90;
const PEOPLE: usize = 100;
const OFFICES: usize = 4;

type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

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
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("seats: {error}");
            ExitCode::FAILURE
        }
    }
}

async fn demo() -> Result<()> {
    let server = LockServer::find().await?;
    report::opening(&server.description);

    // Nobody else who uses the server can have a lock of this name.
    let lock = unique_name("lockset-demo-seats");
    let played = both_rounds(&server, &lock).await;
    let cleared = server.clear(&lock).await;
    let (without, with, faults) = played?;
    cleared?;

    report::table(&without, &with);
    if !faults.is_empty() {
        return Err(faults.join("; ").into());
    }
    report::closing();
    Ok(())
}

async fn both_rounds(server: &LockServer, lock: &str) -> Result<(Round, Round, Vec<&'static str>)> {
    let folder = Folder::create()?;

    let database = Database::create(folder.file("without.db"))?;
    let without = Round::play("Without a lock", &database, server, None).await?;

    let database = Database::create(folder.file("with.db"))?;
    let with = Round::play("With the lock", &database, server, Some(lock)).await?;

    let mut faults = with.faults();
    // Somebody who slept through the end of a lease, and now wants to sell with the old token.
    let late_token = with.sales.first().and_then(|sale| sale.token);
    if database.sell(PEOPLE, late_token).is_ok() {
        faults.push("the database took a sale with an old token");
    }
    Ok((without, with, faults))
}

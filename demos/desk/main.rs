//! A service desk: customers arrive at several doors and are served in the order of their arrival.
//!
//! Each door is a separate process. With the fair lock there is one queue for all processes at the
//! server: every customer is served in turn, a customer who leaves is removed, and the customers of
//! a killed process are skipped. With the reentrant lock each process has its own queue, so there
//! is no order between processes. Read `door.rs` first, where the locks are used.
//!
//! ```sh
//! cargo run --release --example desk
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own. The exit status is 0 only if all
//! customers who stayed were served in the order of their numbers with the fair lock, and in
//! another order with the reentrant lock.

mod door;
mod hall;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::unique_name;
use tokio::time::sleep;

use door::Event;
use hall::{Hall, door_of, labels};
use support::server::LockServer;
use support::worker::bounded;
use support::{Result, Rule, say};

const DOORS: [&str; 4] = ["A", "B", "C", "D"];
const CUSTOMERS: usize = 16;

/// The customer who leaves before the desk opens.
const IMPATIENT: usize = 7;
const PATIENCE: Duration = Duration::from_secs(1);

/// The index of the door that is killed, B.
const KILLED: usize = 1;

/// The lease of the clients. The other times depend on it: a waiter in a fair queue polls at least
/// every 0.7 s, and a waiter that has not polled for 2 s is skipped.
const LEASE: Duration = Duration::from_secs(4);

const BOUND: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    // The example runs itself again for every door.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => example().await,
        ["door", kind, desk] => door::open(kind, desk).await,
        _ => Err("no arguments, please; REDIS_URL=redis://host chooses a server".into()),
    };
    support::exit("desk", outcome)
}

async fn example() -> Result<()> {
    let server = LockServer::find().await?;
    let doors = DOORS.len();
    say(&format!(
        "
A service desk: {CUSTOMERS} customers come by {doors} doors, one after the other, and wait.

Each door is a process. A customer is the letter of a door and a number that counts
all who came. The desk opens when all are there, and serves one at a time.

Lock server: {}
",
        server.description
    ));
    // Lock names that no other user of the server has.
    let run = unique_name("lockset-desk");
    let desks = ["fair", "reentrant"].map(|kind| format!("{run}:{kind}"));
    let played = bounded(BOUND, both_desks(&server, &desks)).await;
    let cleared = server.clear(&desks).await;
    let rules = played?;
    cleared?;
    support::all_kept(rules)?;
    say("
In turn: with the fair lock nobody was served before somebody who came earlier.

");
    Ok(())
}

async fn both_desks(server: &LockServer, [fair, reentrant]: &[String; 2]) -> Result<Vec<Rule>> {
    let client = Client::builder(&server.url).lease(LEASE).build().await?;
    let mut rules = fair_desk(server, &client, fair).await?;
    rules.extend(reentrant_desk(server, &client, reentrant).await?);
    client.shutdown().await?;
    Ok(rules)
}

async fn fair_desk(server: &LockServer, client: &Client, name: &str) -> Result<Vec<Rule>> {
    say("\nWith the fair lock\n");
    let desk = client.fair_lock(name);
    let closed = desk.lock().await?;
    let mut hall = Hall::build("fair", name, server).await?;
    // The server knows the waiters by opaque ids, in the order of the queue.
    let mut ids = Vec::new();
    for number in 1..=CUSTOMERS {
        hall.let_in(number).await?;
        ids.push(hall::new_waiter(&desk, &ids).await?);
    }
    let waiting = async || -> Result<Vec<usize>> {
        let waiters = desk.waiters().await?;
        let index = |id: &String| ids.iter().position(|known| known == id);
        let indices = waiters.iter().filter_map(index);
        Ok(indices.map(|index| index + 1).collect())
    };
    let all = waiting().await?;
    say(&format!("  wait            {}\n", labels(&all)));

    hall.hear_until(door_of(IMPATIENT), Event::Left(IMPATIENT))
        .await?;
    // The waiter leaves the queue in the background.
    let mut stayed = waiting().await?;
    while stayed.contains(&IMPATIENT) {
        sleep(Duration::from_millis(1)).await;
        stayed = waiting().await?;
    }
    say(&format!(
        "  {:<2} has left     {}\n",
        labels(&[IMPATIENT]),
        labels(&stayed)
    ));

    hall.kill(KILLED).await;
    let among = waiting().await?;
    say(&format!(
        "  {} is killed     {}\n",
        DOORS[KILLED],
        labels(&among)
    ));

    let opened = Instant::now();
    closed.release().await?;
    let served = hall.served().await?;
    let took = opened.elapsed().as_secs_f64();
    say(&format!("  were served     {}\n", labels(&served)));
    say(&format!(
        "  in {took:.1} s: the dead customers of {} were waited for until it was sure.\n",
        DOORS[KILLED]
    ));

    let came: Vec<usize> = (1..=CUSTOMERS).collect();
    let mut patient = came.clone();
    patient.retain(|number| *number != IMPATIENT);
    let mut alive = patient.clone();
    alive.retain(|number| door_of(*number) != KILLED);
    Ok(vec![
        (
            all == came,
            "the queue at the server is not in the order of arrival",
        ),
        (stayed == patient, "who left is still in the queue"),
        (
            served == alive,
            "not all live customers were served in the order of arrival",
        ),
        (desk.waiters().await?.is_empty(), "a customer still waits"),
        (!desk.is_locked().await?, "the desk is still taken"),
    ])
}

async fn reentrant_desk(server: &LockServer, client: &Client, name: &str) -> Result<Vec<Rule>> {
    say("\nWith the reentrant lock\n");
    let closed = client.lock(name).lock().await?;
    let mut hall = Hall::build("reentrant", name, server).await?;
    for number in 1..=CUSTOMERS {
        hall.let_in(number).await?;
    }
    let came: Vec<usize> = (1..=CUSTOMERS).collect();
    say(&format!("  wait            {}\n", labels(&came)));
    closed.release().await?;
    let served = hall.served().await?;
    say(&format!("  were served     {}\n", labels(&served)));
    say("  Each process hands the desk off to its own customers, in their order, for a while.\n");

    let mut sorted = served.clone();
    sorted.sort_unstable();
    Ok(vec![
        (
            sorted == came,
            "with the reentrant lock, a customer was not served",
        ),
        (
            served != came,
            "the reentrant lock kept the order, so this run shows nothing",
        ),
    ])
}

//! Orders over shared stock: an order needs itself, the price list, an account and its items at
//! once.
//!
//! Each order acquires everything with one multi-lock: a reentrant lock, a read side, a write side
//! and fair locks, in the order of its lines. Several processes handle overlapping orders, each
//! order is given to two of them, prices change halfway, and one process is killed while it holds
//! its locks. Stock and money stay exact and there is no deadlock; without the locks, stock and
//! money are wrong. Read `clerk.rs` first, where the locks are used.
//!
//! ```sh
//! cargo run --release --example order
//! ```
//!
//! It starts a private server; set `REDIS_URL` to use your own. The exit status is 0 only if the
//! books are exact with the locks and wrong without them.

mod books;
mod clerk;
mod purchase;
mod shop;
#[path = "../support/mod.rs"]
mod support;

use std::process::ExitCode;
use std::time::{Duration, Instant};

use lockset::Client;
use lockset_testkit::unique_name;
use tokio::time::sleep;

use books::Books;
use purchase::{ITEMS, ORDERS, PRICES, Purchase, item, price};
use shop::{Shop, TOO_LATE};
use support::database::Folder;
use support::server::LockServer;
use support::worker::{Worker, bounded};
use support::{Result, all_kept, paced, say};

/// The number of clerk processes. The last one is killed.
const CLERKS: usize = 3;

/// The order during which the clerk is killed, its first.
const STALLED: usize = 2;

/// The time from the start to the kill, and between two items when prices change.
const UNDISTURBED: Duration = Duration::from_millis(200);
const PRICING: Duration = Duration::from_millis(2);

const BOUND: Duration = Duration::from_secs(60);

#[tokio::main]
async fn main() -> ExitCode {
    // The example runs itself again for every clerk.
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let outcome = match args[..] {
        [] => example().await,
        ["clerk", shop] => clerk::work(shop, None).await,
        ["clerk", shop, prefix] => clerk::work(shop, Some(prefix)).await,
        _ => Err("no arguments, please; REDIS_URL=redis://host chooses a server".into()),
    };
    support::exit("order", outcome)
}

async fn example() -> Result<()> {
    let server = LockServer::find().await?;
    say(&format!(
        "
{ORDERS} orders over {ITEMS} items, each given to two of {CLERKS} clerks, who work at all they have
at once. To handle an order is to look at prices, stock and account, to wait a
little, and then to write down what is left.

Each clerk is a process; stock and money are in an SQLite file.
Lock server: {}

",
        server.description
    ));
    // A prefix that no other user of the server has.
    let prefix = format!("{}:", unique_name("lockset-order"));
    let folder = Folder::create()?;
    let played = bounded(BOUND, async {
        let shop = Shop::create(folder.file("without.db"))?;
        let without = without_locks(&server, &shop).await?;
        let shop = Shop::create(folder.file("with.db"))?;
        let (with, late) = with_locks(&server, &shop, &prefix).await?;
        Ok((without, with, late))
    });
    let played = played.await;
    let names = purchase::lock_names().map(|name| format!("{prefix}{name}"));
    let cleared = server.clear(&names.collect::<Vec<_>>()).await;
    let (without, with, late_is_refused) = played?;
    cleared?;

    books::table(&without, &with);
    all_kept([
        (with.open == 0, "an order was not handled"),
        (with.wrong_stock == 0, "stock is wrong"),
        (with.wrong_money == 0, "money is wrong"),
        (
            with.mixed_prices == 0,
            "an order was paid by two price lists",
        ),
        (
            with.wrongly_refused == 0,
            "an order was refused for nothing",
        ),
        (
            late_is_refused,
            "the database took a write with an old token",
        ),
        (
            !without.is_exact(),
            "the books are exact without locks: this run shows nothing",
        ),
    ])?;
    say("
Exact: every order was handled once, all of it or nothing. What the killed clerk
held was free when its lease was over, and a late write of it was refused by the
database, which has seen a newer fencing token.

");
    Ok(())
}

fn hire(server: &LockServer, shop: &Shop, prefix: Option<&str>) -> Result<Vec<Worker>> {
    let path = shop.path().to_str().ok_or("a path that is no text")?;
    let mut args = vec!["clerk", path];
    args.extend(prefix);
    let clerk = |number| Worker::start(format!("clerk {number}"), &args, &server.url);
    (0..CLERKS).map(clerk).collect()
}

/// Gives each order to two clerks, like a queue with at-least-once delivery.
async fn give(clerks: &mut [Worker]) -> Result<()> {
    for number in 0..ORDERS {
        for clerk in [number % CLERKS, (number + 1) % CLERKS] {
            clerks[clerk].tell(&format!("handle {number}")).await?;
        }
    }
    Ok(())
}

async fn finish(clerks: Vec<Worker>) -> Result<()> {
    for mut clerk in clerks {
        clerk.that_is_all();
        while clerk.line().await?.is_some() {}
    }
    Ok(())
}

async fn without_locks(server: &LockServer, shop: &Shop) -> Result<Books> {
    let mut clerks = hire(server, shop, None)?;
    for clerk in &mut clerks {
        clerk.ready().await?;
    }
    give(&mut clerks).await?;
    change_prices(shop).await?;
    finish(clerks).await?;
    Books::of(shop)
}

/// Also returns whether a late write of the killed clerk was refused.
async fn with_locks(server: &LockServer, shop: &Shop, prefix: &str) -> Result<(Books, bool)> {
    let started = Instant::now();
    let tell = |what: &str| {
        let passed = started.elapsed().as_secs_f64();
        say(&format!("{passed:>6.1} s  {what}\n"));
    };
    let mut clerks = hire(server, shop, Some(prefix))?;
    for clerk in &mut clerks {
        clerk.ready().await?;
    }
    let doomed = CLERKS - 1;
    clerks[doomed].tell(&format!("stall {STALLED}")).await?;
    let held = clerks[doomed].line().await?.ok_or("it did not stall")?;
    let late_token = held.parse()?;
    give(&mut clerks).await?;
    tell("the orders are given out; one clerk holds all that an order needs, and stands still");

    sleep(paced(UNDISTURBED)).await;
    let mut killed = clerks.remove(doomed);
    killed.kill().await;
    tell("that clerk is killed (SIGKILL)");

    let builder = Client::builder(&server.url).key_prefix(prefix);
    let client = builder.build().await?;
    let prices = client.rw_lock(PRICES).write().await?;
    tell("the prices may be changed: all readers have left, including the dead one");
    prices.run(change_prices(shop)).await??;
    prices.release().await?;
    client.shutdown().await?;

    finish(clerks).await?;
    tell("all orders are handled");
    // The killed clerk's write, as if the clerk had only been slow.
    let stalled = Purchase::of(STALLED);
    let late = shop.write(&[(item(stalled.lines[0].0), 0, Some(late_token))]);
    let is_refused = late.is_err_and(|error| error.to_string().contains(TOO_LATE));
    Ok((Books::of(shop)?, is_refused))
}

/// Item by item, so that the list is temporarily a mix of old and new.
async fn change_prices(shop: &Shop) -> Result<()> {
    for number in 0..ITEMS {
        shop.write(&[(price(number), purchase::new_price(number), None)])?;
        sleep(PRICING).await;
    }
    Ok(())
}

//! A clerk: a process that handles its orders concurrently.

use std::collections::HashMap;
use std::future::pending;
use std::io::{Write as _, stdout};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use lockset::{Client, Member, MultiGuard, MultiLock};
use tokio::task::JoinSet;
use tokio::time::sleep;

use crate::purchase::{PRICES, Purchase, account, item, order, price};
use crate::shop::{OPEN, REFUSED, Shop};
use crate::support::worker::{Orders, server_url};
use crate::support::{Result, paced};

/// How long the locks of a dead clerk stay held.
const LEASE: Duration = Duration::from_secs(2);

/// The time to walk to a shelf, and to the bank.
const WALK: Duration = Duration::from_millis(1);

/// The fencing token of each lock. Empty without locks.
type Tokens = HashMap<String, u64>;

/// Uses locks if there is a prefix for their names.
pub(crate) async fn work(shop: &str, prefix: Option<&str>) -> Result<()> {
    let shop = Arc::new(Shop::open(Path::new(shop))?);
    let builder = Client::builder(&server_url()?).lease(LEASE);
    let builder = builder.key_prefix(prefix.unwrap_or_default());
    let client = builder.build().await?;

    let mut orders = Orders::take()?;
    let mut tasks = JoinSet::new();
    while let Some(words) = orders.next().await? {
        let (what, number) = words.split_once(' ').ok_or("an order without a number")?;
        let wanted = Purchase::of(number.parse()?);
        let shop = Arc::clone(&shop);
        match prefix {
            None => tasks.spawn(async move { fulfil(&shop, &wanted, &Tokens::new()).await }),
            Some(_) if what == "stall" => tasks.spawn(stall(locks(&client, &wanted)?, wanted)),
            Some(_) => tasks.spawn(handle(shop, locks(&client, &wanted)?, wanted)),
        };
    }
    while let Some(handled) = tasks.join_next().await {
        handled??;
    }
    client.shutdown().await?;
    Ok(())
}

/// All locks for this order, in the order of its lines. The multi-lock prevents deadlocks.
fn locks(client: &Client, wanted: &Purchase) -> Result<MultiLock> {
    let items = wanted.lines.iter().map(|(number, _)| item(*number));
    let mut locks: Vec<Member> = items.map(|name| client.fair_lock(name).into()).collect();
    locks.push(client.lock(order(wanted.number)).into());
    locks.push(client.rw_lock(account(wanted.account)).write_side().into());
    // Everyone may read the prices concurrently.
    locks.push(client.rw_lock(PRICES).read_side().into());
    Ok(MultiLock::new(locks)?.fenced())
}

async fn handle(shop: Arc<Shop>, locks: MultiLock, wanted: Purchase) -> Result<()> {
    loop {
        let guard = locks.lock().await?;
        // `run` drops the work as soon as any of the locks is lost.
        match guard.run(fulfil(&shop, &wanted, &tokens(&guard))).await {
            // The order is written, so the locks can be released.
            Ok(Ok(())) => match guard.release().await {
                Err(error) if !error.is_not_held() => return Err(error.into()),
                // Released, or a lease ended after the write.
                _ => return Ok(()),
            },
            Ok(Err(error)) if !guard.is_lost() => return Err(error),
            // Nothing was written: either `run` stopped the work, or the database refused an old
            // token.
            Ok(Err(_)) | Err(_) => {}
        }
    }
}

/// Acquires the locks and never releases them. Returns the token of the first item.
async fn stall(locks: MultiLock, wanted: Purchase) -> Result<()> {
    let guard = locks.lock().await?;
    writeln!(stdout(), "{}", tokens(&guard)[&item(wanted.lines[0].0)])?;
    pending().await
}

fn tokens(guard: &MultiGuard) -> Tokens {
    let names = guard.names().into_iter().map(str::to_owned);
    let tokens = guard.fencing_tokens().into_iter().flatten();
    names.zip(tokens.map(|token| token.get())).collect()
}

/// Checks, walks and writes the remaining amounts, with or without locks.
///
/// The write relies on the values read before, so it is only correct if they have not changed
/// since.
async fn fulfil(shop: &Shop, wanted: &Purchase, tokens: &Tokens) -> Result<()> {
    let token = |name: &String| tokens.get(name).copied();
    let (order, account) = (order(wanted.number), account(wanted.account));
    if shop.look(&order, token(&order))? != OPEN {
        // The other clerk with this order was faster.
        return Ok(());
    }
    let mut changes = Vec::new();
    let mut total = 0;
    let mut is_there = true;
    for (number, pieces) in &wanted.lines {
        let item = item(*number);
        let left = shop.look(&item, token(&item))? - pieces;
        total += pieces * shop.look(&price(*number), None)?;
        is_there &= left >= 0;
        changes.push((item.clone(), left, token(&item)));
        sleep(paced(WALK)).await;
    }
    let left = shop.look(&account, token(&account))? - total;
    sleep(paced(WALK)).await;
    if is_there && left >= 0 {
        changes.push((account.clone(), left, token(&account)));
        changes.push((order.clone(), total, token(&order)));
    } else {
        changes = vec![(order.clone(), REFUSED, token(&order))];
    }
    shop.write(&changes)
}

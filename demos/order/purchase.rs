//! Orders and names: a record and its lock share a name.

pub(crate) const ITEMS: usize = 6;
pub(crate) const ACCOUNTS: usize = 4;
pub(crate) const ORDERS: usize = 60;

/// The pieces of each item and the money in each account: slightly less than all orders need.
pub(crate) const STOCK: i64 = 34;
pub(crate) const MONEY: i64 = 1200;

/// The lock of the price list.
pub(crate) const PRICES: &str = "prices";

/// An order, equal in every process.
pub(crate) struct Purchase {
    pub(crate) number: usize,
    pub(crate) account: usize,
    /// The items and their amounts, in any order.
    pub(crate) lines: Vec<(usize, i64)>,
}

impl Purchase {
    pub(crate) fn of(number: usize) -> Self {
        let mut dice = fastrand::Rng::with_seed(number as u64);
        let mut items: Vec<usize> = (0..ITEMS).collect();
        dice.shuffle(&mut items);
        items.truncate(dice.usize(2..=3));
        let lines = items.into_iter().map(|item| (item, dice.i64(1..=2)));
        Self {
            number,
            account: number % ACCOUNTS,
            lines: lines.collect(),
        }
    }

    pub(crate) fn total(&self, price: impl Fn(usize) -> i64) -> i64 {
        let totals = self
            .lines
            .iter()
            .map(|(item, pieces)| pieces * price(*item));
        totals.sum()
    }
}

pub(crate) fn old_price(item: usize) -> i64 {
    20 + item as i64
}

/// The new price, which is higher than the old one.
pub(crate) fn new_price(item: usize) -> i64 {
    old_price(item) * 3 / 2
}

pub(crate) fn order(number: usize) -> String {
    format!("order:{number}")
}

pub(crate) fn account(number: usize) -> String {
    format!("account:{number}")
}

pub(crate) fn item(number: usize) -> String {
    format!("item:{number}")
}

pub(crate) fn price(item: usize) -> String {
    format!("price:{item}")
}

pub(crate) fn lock_names() -> impl Iterator<Item = String> {
    let orders = (0..ORDERS).map(order);
    let accounts = (0..ACCOUNTS).map(account);
    let items = (0..ITEMS).map(item);
    let all = orders.chain(accounts).chain(items);
    all.chain([PRICES.to_owned()])
}

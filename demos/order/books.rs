//! Checks stock and money against the handled orders.

use crate::purchase::{
    ACCOUNTS, ITEMS, MONEY, ORDERS, Purchase, STOCK, account, item, new_price, old_price, order,
};
use crate::shop::{OPEN, REFUSED, Shop};
use crate::support::{Result, say};

#[derive(Default)]
pub(crate) struct Books {
    pub(crate) shipped: usize,
    pub(crate) refused: usize,
    pub(crate) open: usize,
    /// The amount of pieces and money that is missing or excess.
    pub(crate) wrong_stock: u64,
    pub(crate) wrong_money: u64,
    /// The number of orders paid by neither price list.
    pub(crate) mixed_prices: usize,
    /// The number of orders refused although everything was available, even at the end.
    pub(crate) wrongly_refused: usize,
}

impl Books {
    pub(crate) fn of(shop: &Shop) -> Result<Self> {
        let mut books = Self::default();
        let mut stock = [STOCK; ITEMS];
        let mut money = [MONEY; ACCOUNTS];
        for wanted in (0..ORDERS).map(Purchase::of) {
            let paid = shop.look(&order(wanted.number), None)?;
            match paid {
                OPEN => books.open += 1,
                REFUSED => {
                    books.refused += 1;
                    // Stock and money only shrink and prices only grow, so an order that is
                    // possible now was possible before.
                    let mut could =
                        shop.look(&account(wanted.account), None)? >= wanted.total(new_price);
                    for (number, pieces) in &wanted.lines {
                        could &= shop.look(&item(*number), None)? >= *pieces;
                    }
                    books.wrongly_refused += usize::from(could);
                }
                _ => {
                    books.shipped += 1;
                    money[wanted.account] -= paid;
                    for (number, pieces) in &wanted.lines {
                        stock[*number] -= pieces;
                    }
                    let lists = [wanted.total(old_price), wanted.total(new_price)];
                    books.mixed_prices += usize::from(!lists.contains(&paid));
                }
            }
        }
        for (number, expected) in stock.iter().enumerate() {
            let left = shop.look(&item(number), None)?;
            books.wrong_stock += left.abs_diff(*expected);
        }
        for (number, expected) in money.iter().enumerate() {
            let left = shop.look(&account(number), None)?;
            books.wrong_money += left.abs_diff(*expected);
        }
        Ok(books)
    }

    pub(crate) fn is_exact(&self) -> bool {
        self.wrong_stock + self.wrong_money == 0
    }
}

pub(crate) fn table(without: &Books, with: &Books) {
    let row = |label: &str, of: &dyn Fn(&Books) -> u64| {
        say(&format!("{label:<36}{:>16}{:>16}\n", of(without), of(with)));
    };
    say(&format!(
        "\n{:<36}{:>16}{:>16}\n",
        "", "without locks", "with the locks"
    ));
    row("Orders shipped", &|books| books.shipped as u64);
    row("Orders refused (no stock, no money)", &|books| {
        books.refused as u64
    });
    row("Pieces wrong in stock", &|books| books.wrong_stock);
    row("Money wrong in accounts", &|books| books.wrong_money);
    row("Orders paid by a mixed price list", &|books| {
        books.mixed_prices as u64
    });
}

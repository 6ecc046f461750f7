//! A small service and its tests on a simulated server: busy, slow, lost, down.
//!
//! `cargo test -p lockset-sim --example orders` runs the tests; `cargo run -p lockset-sim --example orders`
//! prints how long a loss after thirty seconds takes.

use std::time::Duration;

use lockset::{Client, Lost};
use lockset_sim::Server;

/// The service's answer.
#[derive(Debug, PartialEq)]
enum Answer {
    Paid {
        receipts: u32,
    },
    /// Another caller is at this order: try again.
    Busy,
    /// The lock ended during the work, so the work does not count.
    Lost,
    /// The locks cannot be reached.
    Unavailable,
}

struct Orders {
    locks: Client,
}

impl Orders {
    /// Pays an order, which takes as long as the bank takes.
    async fn pay(&self, order: u64, bank: Duration) -> Answer {
        let lock = self.locks.lock(format!("order:{order}"));
        let guard = match lock.try_lock_for(Duration::from_secs(2)).await {
            Ok(Some(guard)) => guard,
            Ok(None) => return Answer::Busy,
            Err(_) => return Answer::Unavailable,
        };
        let paid: Result<u32, Lost> = guard
            .run(async {
                tokio::time::sleep(bank).await;
                1
            })
            .await;
        match paid {
            Ok(receipts) => Answer::Paid { receipts },
            Err(_) => Answer::Lost,
        }
    }
}

#[tokio::main(flavor = "current_thread", start_paused = true)]
async fn main() {
    let server = Server::new();
    let orders = Orders {
        locks: server.client().await,
    };
    let (began, paused) = (std::time::Instant::now(), server.time());
    server.delay(Duration::from_millis(1));
    let (answer, ()) = tokio::join!(orders.pay(7, Duration::from_secs(60)), async {
        server.advance(Duration::from_secs(1)).await;
        server.partition(&orders.locks);
    });
    let passed = server.time() - paused;
    println!(
        "{answer:?} after {passed:?}, which took {:?}",
        began.elapsed()
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    async fn service() -> (Server, Orders) {
        let server = Server::new();
        let locks = server.client().await;
        (server, Orders { locks })
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_is_paid_and_its_lock_given_back() {
        let (server, orders) = service().await;
        // Longer than the lease, which is renewed.
        assert_eq!(
            orders.pay(7, 60 * SECOND).await,
            Answer::Paid { receipts: 1 }
        );
        server.advance(SECOND).await;
        assert!(server.keys().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn an_order_in_work_elsewhere_is_busy() {
        let (server, orders) = service().await;
        let elsewhere = server.client().await;
        let _guard = elsewhere.lock("order:7").lock().await.unwrap();
        assert_eq!(orders.pay(7, SECOND).await, Answer::Busy);
        assert_eq!(orders.pay(8, SECOND).await, Answer::Paid { receipts: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_when_its_lock_is_deleted() {
        let (server, orders) = service().await;
        let deleted = async {
            server.advance(SECOND).await;
            assert!(server.lose_lease("order:7"));
        };
        let (answer, ()) = tokio::join!(orders.pay(7, 60 * SECOND), deleted);
        assert_eq!(answer, Answer::Lost);
    }

    #[tokio::test(start_paused = true)]
    async fn work_ends_before_somebody_else_can_begin() {
        let (server, orders) = service().await;
        let cut_off = async {
            server.advance(SECOND).await;
            server.partition(&orders.locks);
        };
        let (answer, ()) = tokio::join!(orders.pay(7, 60 * SECOND), cut_off);
        assert_eq!(answer, Answer::Lost);
        assert_eq!(
            server.keys(),
            ["order:7"],
            "it is still locked at the server"
        );
        server.heal();
    }

    #[tokio::test(start_paused = true)]
    async fn without_its_server_it_says_so() {
        let (server, orders) = service().await;
        server.kill();
        assert_eq!(orders.pay(7, SECOND).await, Answer::Unavailable);
        server.restart();
        assert_eq!(orders.pay(7, SECOND).await, Answer::Paid { receipts: 1 });
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_killed_process_held_is_free_after_its_lease() {
        let (server, orders) = service().await;
        let other = server.client().await;
        let guard = other.lock("order:7").lock().await.unwrap();
        server.crash(&other);
        assert_eq!(orders.pay(7, SECOND).await, Answer::Busy);
        server.advance(31 * SECOND).await;
        assert_eq!(orders.pay(7, SECOND).await, Answer::Paid { receipts: 1 });
        drop(guard);
    }
}

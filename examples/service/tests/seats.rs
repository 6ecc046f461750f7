//! Seats sold under `#[locked]` over HTTP, by two processes, from SQLite and from PostgreSQL.

mod support;

use futures_util::future::join_all;
use lockset::Client;
use lockset_testkit::{Server, eventually, within};

use support::Web;
use support::shop::{Database, SOON};

const SEATS: usize = 90;
const PEOPLE: usize = 100;

#[tokio::test]
async fn ninety_of_a_hundred_requests_get_a_seat() {
    a_hundred_ask(Database::sqlite().await).await;
}

#[tokio::test]
#[ignore = "needs PostgreSQL: `make examples` runs it"]
async fn ninety_of_a_hundred_requests_get_a_seat_in_postgresql() {
    a_hundred_ask(Database::postgres().await).await;
}

async fn a_hundred_ask(database: Database) {
    let redis = Server::start();
    let web = [(); 2].map(|()| database.service(&redis, &[]));
    let posts = (0..PEOPLE).map(|i| web[i % 2].post("/shows/1/seats"));
    let replies = within(SOON, join_all(posts)).await;

    let sold = replies.iter().filter(|reply| reply.status == 200);
    let mut told: Vec<i64> = sold.map(|reply| reply.body.parse().unwrap()).collect();
    let refused = replies.iter().filter(|reply| reply.status == 410).count();
    assert_eq!((told.len(), refused), (SEATS, PEOPLE - SEATS));

    // Each sale saw the commit of the one before, across processes.
    let (numbers, _): (Vec<i64>, Vec<i64>) = database.sold().await.into_iter().unzip();
    let all: Vec<i64> = (1..=SEATS as i64).rev().collect();
    assert_eq!(numbers, all, "in the order of the tokens");
    told.sort_unstable_by(|a, b| b.cmp(a));
    assert_eq!(told, all, "every answer was true");

    web.into_iter().for_each(Web::end);
    let mut left = redis.keys().await;
    let stays = ["redisson_lock_token", "lockset_client"];
    left.retain(|key| !stays.iter().any(|stays| key.starts_with(stays)));
    assert!(left.is_empty(), "{left:?}");
}

#[tokio::test]
async fn a_request_with_a_lost_lock_sells_nothing_and_reports_it() {
    let redis = Server::start();
    let database = Database::sqlite().await;
    let slow = [("PAYMENT_MS", "60000"), ("LEASE_MS", "900")];
    let web = database.service(&redis, &slow);
    let client = Client::builder(&redis.url())
        .key_prefix("shop:")
        .build()
        .await
        .unwrap();
    let lock = client.lock("show:1");

    let force = async {
        eventually(SOON, "a customer pays", async || {
            lock.is_locked().await.unwrap()
        })
        .await;
        assert!(lock.force_unlock().await.unwrap());
    };
    let (reply, ()) = within(SOON, async {
        tokio::join!(web.post("/shows/1/seats"), force)
    })
    .await;
    // The service cannot tell how far the sale was, so it does not ask for a repeat.
    assert_eq!((reply.status, reply.retry_after), (500, None));
    assert!(reply.body.contains("show:1"), "{}", reply.body);
    assert_eq!(database.sold().await, []);

    // Another request sells it.
    let other = database.service(&redis, &[]);
    let reply = within(SOON, other.post("/shows/1/seats")).await;
    assert_eq!((reply.status, reply.body.as_str()), (200, "90"));
    web.end();
    other.end();
}

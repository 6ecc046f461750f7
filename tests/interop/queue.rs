//! A fair queue with waiters of both sides.

use lockset_testkit::{unique_name, within};

use crate::kind::Kind;
use crate::pair::{Pair, SOON, ask};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs a JDK: make interop"]
async fn two_hundred_rounds_are_granted_in_the_order_of_arrival() {
    const ROUNDS: usize = 200;
    /// Waiters per side.
    const WAITERS: u64 = 2;
    let pair = Pair::start().await;
    let name = unique_name("lock");
    let (fair, lock) = (Kind::Fair.java(&name), pair.rust.fair_lock(&name));
    let mut admin = pair.server.admin().await;
    for round in 0..ROUNDS {
        // The holder alternates between the sides too.
        let held = match round % 2 {
            0 => Some(lock.lock().await.unwrap()),
            _ => None,
        };
        if held.is_none() {
            pair.java.tell(0, "lock", &fair).await;
        }
        let mut javas = Vec::new();
        let mut rusts = Vec::new();
        let mut expected = Vec::new();
        for waiter in 0..WAITERS {
            let turn = format!("{fair} turns java-{waiter}");
            javas.push(pair.java.tell(waiter + 1, "turn", &turn));
            expected.push(format!("java-{waiter}"));
            pair.queued(&name, expected.len()).await;

            let (lock, mut admin) = (lock.clone(), admin.clone());
            rusts.push(tokio::spawn(async move {
                let guard = lock.lock().await.unwrap();
                let label = format!("rust-{waiter}");
                let _: u64 = ask(&mut admin, &["RPUSH", "turns", &label]).await;
                guard.release().await.unwrap();
            }));
            expected.push(format!("rust-{waiter}"));
            pair.queued(&name, expected.len()).await;
        }
        match held {
            Some(guard) => guard.release().await.unwrap(),
            None => drop(pair.java.tell(0, "unlock", &fair).await),
        }
        for waiter in javas {
            within(SOON, waiter).await;
        }
        for waiter in rusts {
            within(SOON, waiter).await.unwrap();
        }
        let turns: Vec<String> = ask(&mut admin, &["LRANGE", "turns", "0", "-1"]).await;
        assert_eq!(turns, expected, "round {round}");
        let _: u64 = ask(&mut admin, &["DEL", "turns"]).await;
    }
    pair.nothing_left().await;
}

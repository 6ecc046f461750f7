//! One lock on a majority of three servers: `Redlock` and Redisson's `RedissonRedLock`.

use std::time::Duration;

use lockset::{Client, Redlock};
use lockset_testkit::{Server, unique_name, within};

use crate::java::{Java, Settings};
use crate::kind::Kind;
use crate::pair::SOON;

struct Servers {
    /// Dropped first: clients before their servers.
    javas: Vec<Java>,
    redlock: Redlock,
    _servers: Vec<Server>,
}

impl Servers {
    async fn start() -> Self {
        let servers: Vec<_> = (0..3).map(|_| Server::start()).collect();
        let (mut javas, mut rusts) = (Vec::new(), Vec::new());
        for server in &servers {
            javas.push(Java::connect(&Settings::of(&server.url())).await);
            rusts.push(Client::connect(&server.url()).await.unwrap());
        }
        // Young servers would have no vote.
        let redlock = Redlock::builder(rusts).persistent_nodes().build();
        Self {
            javas,
            redlock: redlock.unwrap(),
            _servers: servers,
        }
    }

    fn java(&self) -> &Java {
        &self.javas[0]
    }

    /// The description of the lock for the Java side.
    fn of_all(&self, name: &str) -> String {
        let members = self.javas.iter().map(|java| java.member(name));
        format!("quorum {}", Vec::from_iter(members).join(","))
    }
}

#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn each_side_waits_for_a_majority_of_the_other() {
    let servers = Servers::start().await;
    let (java, name) = (servers.java(), unique_name("lock"));
    let (all, lock) = (servers.of_all(&name), servers.redlock.lock(&name));
    let guard = lock.lock().await.unwrap();
    assert!(!java.is(1, "try_lock", &all).await);
    let waiter = java.is(1, "try_lock_for", &format!("{all} 20000"));
    java.sleeps(1).await;
    guard.release().await.unwrap();
    assert!(within(SOON, waiter).await);
    assert!(lock.try_lock().await.unwrap().is_none());
    let waiter = tokio::spawn({
        let lock = lock.clone();
        async move { lock.lock().await.unwrap() }
    });
    java.tell(1, "unlock", &all).await;
    let guard = within(SOON, waiter).await.unwrap();
    assert!(!java.is(2, "try_lock", &all).await);
    guard.release().await.unwrap();
}

/// A server where another holder has the lock is one vote less, for either side.
#[tokio::test]
#[ignore = "needs a JDK: make interop"]
async fn two_of_three_servers_are_enough_and_one_is_not() {
    let servers = Servers::start().await;
    let (java, name) = (servers.java(), unique_name("lock"));
    let (all, lock) = (servers.of_all(&name), servers.redlock.lock(&name));
    let (one, wait) = (Kind::Lock.java(&name), Duration::from_millis(300));
    java.tell(1, "lock", &one).await;
    let guard = lock.try_lock().await.unwrap().expect("two of three");
    assert!(!java.is(2, "try_lock", &all).await);
    guard.release().await.unwrap();
    assert!(java.is(2, "try_lock", &all).await);
    assert!(lock.try_lock_for(wait).await.unwrap().is_none());
    java.tell(2, "unlock", &all).await;
    servers.javas[1].tell(1, "lock", &one).await;
    assert!(!java.is(2, "try_lock", &all).await);
    assert!(lock.try_lock_for(wait).await.unwrap().is_none());
}

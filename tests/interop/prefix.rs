//! Redisson's name mapper and our key prefix.

use std::time::Instant;

use lockset::Client;
use lockset_testkit::{Server, unique_name, within};

use crate::java::{Java, Settings};
use crate::kind::{Kind, for_kinds};
use crate::pair::{Pair, SOON, by_message};

async fn a_prefix_is_the_name_mappers(kind: Kind) {
    // With the second prefix, its braces decide the slot of all keys.
    for prefix in ["app:", "{app}:"] {
        let server = Server::start();
        let settings = Settings {
            prefix,
            ..Settings::of(&server.url())
        };
        let builder = Client::builder(&server.url()).key_prefix(prefix);
        let pair = Pair {
            rust: builder.build().await.unwrap(),
            java: Java::connect(&settings).await,
            server,
        };
        let (java, name) = (&pair.java, unique_name("lock"));
        let this = kind.java(&name);
        let (lock, rival) = (
            kind.rust(&pair.rust, &name),
            kind.rival().rust(&pair.rust, &name),
        );

        let guard = lock.lock().await;
        let key = format!("{prefix}{}", kind.key(&name));
        assert!(pair.server.keys().await.contains(&key), "{key}");
        let waiter = java.tell(1, "lock", &kind.rival().java(&name));
        java.sleeps(1).await;
        guard.release().await.unwrap();
        within(SOON, waiter).await;
        java.tell(1, "unlock", &kind.rival().java(&name)).await;
        pair.all_have_unsubscribed().await;

        java.tell(1, "lock", &this).await;
        let asked = Instant::now();
        let waiter = tokio::spawn(async move { rival.lock().await });
        pair.listening().await;
        java.tell(1, "unlock", &this).await;
        let guard = within(SOON, waiter).await.unwrap();
        by_message(asked);
        guard.release().await.unwrap();

        // Without the prefix it is another lock.
        java.tell(1, "lock", &this).await;
        let other = Client::connect(&pair.server.url()).await.unwrap();
        let guard = kind.rival().rust(&other, &name).try_lock().await.unwrap();
        guard.release().await.unwrap();
        java.tell(1, "unlock", &this).await;
    }
}

for_kinds! {
    a_prefix_is_the_name_mappers: lock fenced fair read write multi;
}

//! Bad input: a clear error that names the lock and what to do, and nothing is harmed.

use std::time::Duration;

use lockset::{Client, Error, LEASE_MAX, NAME_BYTES_MAX};
use lockset_testkit::{Server, unique_name, within};

use crate::support::{SOON, patient_client};

fn told(error: &Error) -> String {
    format!("{error} / {error:?}")
}

#[tokio::test]
async fn names_that_cannot_work() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for name in ["", "a}b", "a{b", "{}a", &long] {
        let lock = client.lock(name);
        let errors = [
            lock.lock().await.err(),
            lock.try_lock().await.err(),
            lock.try_lock_for(SOON).await.err(),
            lock.is_locked().await.err(),
            lock.holder().await.err(),
            lock.force_unlock().await.err(),
        ];
        for error in errors {
            let error = error.expect("an error");
            assert!(error.is_invalid() && !error.is_io(), "{error}");
            assert_eq!(error.lock_name(), Some(name));
        }
    }
    assert_eq!(server.keys().await, [""; 0]);
    for name in [
        "a{b}c",
        "{tag}:x",
        "with space\r\nand NUL \0",
        "ключ",
        &long[1..],
    ] {
        let guard = client.lock(name).lock().await.unwrap();
        assert_eq!(server.keys().await, [name]);
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn leases_that_cannot_work() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    for lease in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let lock = client.lock("x");
        for lock in [lock.clone().lease(lease), lock.fixed_lease(lease)] {
            let error = lock.lock().await.expect_err("an error");
            assert!(error.is_invalid(), "{error}");
            assert_eq!(error.lock_name(), Some("x"));
        }
        let error = Client::builder(&server.url()).lease(lease).build().await;
        assert!(error.expect_err("an error").is_invalid());
    }
    let guard = client.lock("x").lease(LEASE_MAX).lock().await.unwrap();
    assert!(guard.remaining() > Duration::from_secs(300 * 24 * 3600));
    assert_eq!(server.keys().await, ["x"]);
}

#[tokio::test]
async fn a_server_that_is_not_there() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let error = within(SOON, Client::connect(&url))
        .await
        .expect_err("no server");
    assert!(error.is_io() && !error.is_invalid(), "{error}");
    assert!(error.to_string().contains("check"), "{error}");
}

/// Accepts connections and never says a word.
#[tokio::test]
async fn a_server_that_is_silent() {
    let server = Server::start();
    server.stop();
    let error = within(SOON, Client::connect(&server.url())).await;
    assert!(error.expect_err("no answer").is_io());
}

#[tokio::test]
async fn a_wrong_password_is_refused_and_never_shown() {
    let server = Server::builder()
        .args(["--requirepass", "right-one"])
        .start();
    let at = server.addr();
    for url in [
        format!("redis://:s3cret-wrong@{at}"),
        format!("redis://nobody:s3cret-wrong@{at}"),
        format!("redis://{at}"),
    ] {
        let error = Client::connect(&url).await.expect_err("refused");
        assert!(error.is_denied() && error.is_invalid(), "{error}");
        assert!(!told(&error).contains("s3cret"), "{error}");
        let source = std::error::Error::source(&error).expect("the server's words");
        assert!(!format!("{source} {source:?}").contains("s3cret"));
    }
    let client = Client::connect(&format!("redis://:right-one@{at}"))
        .await
        .unwrap();
    let lock = client.lock("x");
    let guard = lock.lock().await.unwrap();
    for shown in [
        format!("{client:?}"),
        format!("{lock:?}"),
        format!("{guard:?}"),
    ] {
        assert!(!shown.contains("right-one"), "{shown}");
    }
    let builder = format!("{:?}", Client::builder(&format!("redis://:right-one@{at}")));
    assert!(!builder.contains("right-one"), "{builder}");
}

#[tokio::test]
async fn a_key_that_holds_something_else_is_not_touched() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let foreign = [
        "SET k v",
        "RPUSH k a b",
        "ZADD k 1 a",
        "SADD k a",
        "SET k v PX 60000",
    ];
    for words in foreign {
        let mut words = words.split(' ');
        let mut make = redis::cmd(words.next().unwrap());
        words.for_each(|word| {
            make.arg(word);
        });
        let _: redis::Value = make.query_async(&mut admin).await.unwrap();
        let dump = async |admin: &mut redis::aio::MultiplexedConnection| -> Vec<u8> {
            redis::cmd("DUMP")
                .arg("k")
                .query_async(admin)
                .await
                .unwrap()
        };
        let before = dump(&mut admin).await;
        let lock = client.lock("k").fenced();
        let errors = [
            lock.lock().await.err(),
            lock.try_lock().await.err(),
            lock.is_locked().await.err(),
            lock.force_unlock().await.err(),
        ];
        for error in errors {
            let error = error.expect("an error");
            assert!(error.is_wrong_type() && error.is_invalid(), "{error}");
            assert_eq!(error.lock_name(), Some("k"));
        }
        assert_eq!(dump(&mut admin).await, before, "{make:?}");
        assert_eq!(server.keys().await, ["k"]);
        let _: () = redis::cmd("DEL")
            .arg("k")
            .query_async(&mut admin)
            .await
            .unwrap();
    }
}

/// A read-write lock of the same name is somebody's: it is neither entered nor destroyed.
#[tokio::test]
async fn a_read_write_lock_of_the_same_name() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let mut make = redis::cmd("HSET");
    make.arg("k").arg(&["mode", "read", "u:1", "1"]);
    let _: () = make.query_async(&mut admin).await.unwrap();
    let lock = client.lock("k");
    assert!(lock.try_lock().await.unwrap().is_none());
    assert!(lock.force_unlock().await.unwrap_err().is_wrong_type());
    assert!(lock.holder().await.unwrap_err().is_wrong_type());
    assert_eq!(server.keys().await, ["k"]);
}

#[tokio::test]
async fn a_server_without_scripting() {
    let server = Server::builder()
        .args([
            "--rename-command",
            "EVAL",
            "",
            "--rename-command",
            "EVALSHA",
            "",
        ])
        .start();
    let error = Client::connect(&server.url())
        .await
        .expect_err("no scripts");
    assert!(
        error.is_invalid() && error.to_string().contains("EVAL"),
        "{error}"
    );
}

#[tokio::test]
async fn a_unix_socket_works_like_any_other() {
    let server = Server::builder().unix().start();
    let client = patient_client(&server.unix_url()).await;
    let guard = client.lock(unique_name("lock")).lock().await.unwrap();
    guard.release().await.unwrap();
}

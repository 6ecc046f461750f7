//! Bad input causes a clear error that names the lock and the remedy, and does no harm.

use std::time::Duration;

use lockset::{Client, Error, ErrorKind, LEASE_MAX, NAME_BYTES_MAX};
use lockset_testkit::{Cluster, Server, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::support::{SOON, lock_keys, patient_client};

fn message_of(error: &Error) -> String {
    format!("{error} / {error:?}")
}

async fn names_that_cannot_work<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let long = "x".repeat(NAME_BYTES_MAX + 1);
    for name in ["", "a}b", "a{b", "{}a", &long] {
        let lock = P::of(&client, name);
        let errors = [
            ("lock", lock.lock().await.err()),
            ("try_lock", lock.try_lock().await.err()),
            ("try_lock_for", lock.try_lock_for(SOON).await.err()),
            ("is_locked", lock.is_locked().await.err()),
            ("force_unlock", lock.force_unlock().await.err()),
        ];
        for (operation, error) in errors {
            let error = error.expect("an error");
            assert!(error.is_invalid() && !error.is_io(), "{error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert_eq!(error.lock_name(), Some(name));
            let made = ["multi_lock", operation];
            assert!(made.contains(&error.operation()), "{error}");
        }
    }
    assert_eq!(server.keys().await, [""; 0]);
    // Leaves room for the longest suffix or prefix that the primitive adds to a name.
    let added = P::names("").iter().map(String::len).max().unwrap();
    for name in [
        "a{b}c",
        "{tag}:x",
        "with space\r\nand NUL \0",
        "ключ",
        &long[1 + added..],
    ] {
        let guard = P::of(&client, name).fenced().lock().await.unwrap();
        let keys = lock_keys(&server).await;
        let (tokens, keys): (Vec<_>, Vec<_>) = keys
            .into_iter()
            .partition(|key| key.starts_with("redisson_lock_token:"));
        assert_eq!(keys, P::names(name));
        assert!(tokens.len() >= keys.len());
        guard.release().await.unwrap();
    }
}

async fn leases_that_cannot_work<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    for lease in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        let lock = P::of(&client, "x");
        for lock in [lock.clone().lease(lease), lock.fixed_lease(lease)] {
            let error = lock.lock().await.expect_err("an error");
            assert!(error.is_invalid(), "{error}");
            assert_eq!(error.operation(), "lock");
            assert!(names_it::<P>("x", error.lock_name()));
        }
    }
    let lock = P::of(&client, "x").lease(LEASE_MAX);
    let guard = lock.lock().await.unwrap();
    assert!(guard.remaining() > Duration::from_secs(300 * 24 * 3600));
    assert_eq!(lock_keys(&server).await, P::names("x"));
}

async fn a_key_that_holds_something_else_is_not_touched<P: Primitive>() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let lock = P::of(&client, "k").fenced();
    for name in P::names("k") {
        for words in [
            "SET k v",
            "RPUSH k a b",
            "ZADD k 1 a",
            "SADD k a",
            "SET k v PX 60000",
        ] {
            let mut make = redis::Cmd::new();
            for word in words.split(' ') {
                make.arg(if word == "k" { &name } else { word });
            }
            let _: redis::Value = make.query_async(&mut admin).await.unwrap();
            let dump = async |admin: &mut redis::aio::MultiplexedConnection| -> Vec<u8> {
                let mut dump = redis::cmd("DUMP");
                dump.arg(&name).query_async(admin).await.unwrap()
            };
            let before = dump(&mut admin).await;
            let errors = [
                lock.lock().await.err(),
                lock.try_lock().await.err(),
                lock.is_locked().await.err(),
                lock.force_unlock().await.err(),
            ];
            for error in errors {
                let error = error.expect("an error");
                assert!(error.is_wrong_type() && error.is_invalid(), "{error}");
                assert_eq!(error.lock_name(), Some(&*name));
            }
            assert_eq!(dump(&mut admin).await, before, "{words}");
            assert_eq!(server.keys().await, [&*name]);
            let mut del = redis::cmd("DEL");
            let _: () = del.arg(&name).query_async(&mut admin).await.unwrap();
        }
    }
}

for_every_primitive! {"current_thread":
    names_that_cannot_work
    leases_that_cannot_work
    a_key_that_holds_something_else_is_not_touched
}

for_every_primitive! {@redlock lockset::RedlockLock, [], "current_thread":
    names_that_cannot_work
    leases_that_cannot_work
}

#[tokio::test]
async fn a_client_lease_that_cannot_work() {
    for lease in [Duration::ZERO, Duration::from_millis(1), Duration::MAX] {
        // The check does not need a server: the error comes before the first connection.
        let error = Client::builder("redis://127.0.0.1:1").lease(lease).build();
        let error = error.await.expect_err("an error");
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.operation(), "connect");
    }
}

/// The caller of `build` gets the error, or the first call of a lazy client.
#[tokio::test]
async fn a_database_that_the_server_does_not_have() {
    let server = Server::start();
    let url = server.url();
    let url = url.trim_end_matches('/');
    let lazy = Client::builder(&format!("{url}/99")).lazy().build().await;
    let errors = [
        Client::connect(&format!("{url}/99")).await.err(),
        lazy.unwrap().lock("x").try_lock().await.err(),
    ];
    for error in errors {
        let error = error.expect("no such database");
        assert!(error.is_invalid() && !error.is_refused(), "{error}");
        assert!(error.to_string().contains("`databases`"), "{error}");
    }
    assert!(Client::connect(&format!("{url}/15")).await.is_ok());
}

#[tokio::test]
async fn a_database_that_the_user_has_no_right_to() {
    let server = Server::start();
    let mut admin = server.admin().await;
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-select"]);
    let _: () = user.query_async(&mut admin).await.unwrap();
    let url = format!("redis://u:p@{}", server.addr());
    assert!(Client::connect(&url).await.is_ok());
    let error = Client::connect(&format!("{url}/1")).await;
    let error = error.expect_err("no right to SELECT");
    assert!(error.is_denied() && error.is_invalid(), "{error}");
}

#[tokio::test]
async fn a_database_of_a_node_of_a_cluster() {
    let cluster = Cluster::shared().await;
    let node = cluster.primaries().await[0];
    let error = Client::connect(&format!("{}1", node.url())).await;
    let error = error.expect_err("a cluster has database 0 alone, if nothing else is set");
    assert!(error.is_invalid(), "{error}");
    // A Valkey cluster may be configured with more databases, and then reports this one as out of
    // range.
    let told = if node.is_valkey() {
        "a database that the server does not have"
    } else {
        "redis+cluster://"
    };
    assert!(error.to_string().contains(told), "{error}");
}

#[tokio::test]
async fn a_server_that_is_down() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let error = within(SOON, Client::connect(&url))
        .await
        .expect_err("no server");
    assert!(error.is_io() && !error.is_invalid(), "{error}");
    assert!(error.to_string().contains("check"), "{error}");
}

/// Accepts connections and never sends anything.
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
        assert!(!message_of(&error).contains("s3cret"), "{error}");
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
        assert!(shown.len() < 5_000, "{} bytes: {shown}", shown.len());
    }
    let builder = format!("{:?}", Client::builder(&format!("redis://:right-one@{at}")));
    assert!(!builder.contains("right-one"), "{builder}");
}

/// A read-write lock of the same name must be neither entered nor destroyed.
#[tokio::test]
async fn a_read_write_lock_of_the_same_name() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let mut admin = server.admin().await;
    let mut make = redis::cmd("HSET");
    let holder = "8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a:57";
    make.arg("k").arg(&["mode", "read", holder, "1"]);
    let _: () = make.query_async(&mut admin).await.unwrap();
    let _: () = redis::cmd("PEXPIRE")
        .arg(&["k", "60000"])
        .query_async(&mut admin)
        .await
        .unwrap();
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

/// Plain commands take and release a lock without a token.
#[tokio::test]
async fn a_server_that_lacks_a_command_of_the_scripts() {
    let server = Server::builder()
        .args(["--rename-command", "PEXPIRE", ""])
        .start();
    let client = patient_client(&server.url()).await;
    let error = client.lock("x").fenced().lock().await.unwrap_err();
    assert!(error.is_invalid() && !error.is_transient(), "{error}");
    let told = error.to_string();
    assert!(told.contains("with no command renamed"), "{told}");
    assert_eq!(server.keys().await.len(), 0);
}

#[tokio::test]
async fn a_unix_socket_works_like_any_other() {
    let server = Server::builder().unix().start();
    let client = patient_client(&server.unix_url()).await;
    let guard = client.lock(unique_name("lock")).lock().await.unwrap();
    guard.release().await.unwrap();
}

/// After a restart, connection ids start over, and all connections over the socket have the same
/// address.
#[tokio::test]
async fn no_foreign_connection_is_killed_over_a_unix_socket() {
    let server = Server::builder().unix().start();
    let client = patient_client(&server.unix_url()).await;
    let lock = client.lock(unique_name("lock"));
    lock.lock().await.unwrap().release().await.unwrap();
    server.restart();
    // Before the client reconnects, other connections take all the old ids.
    let others = redis::Client::open(server.unix_url()).unwrap();
    let mut connected = Vec::new();
    for _ in 0..30 {
        connected.push(others.get_multiplexed_async_connection().await.unwrap());
    }
    lock.lock().await.unwrap().release().await.unwrap();
    for mut other in connected {
        let pong: redis::RedisResult<String> = redis::cmd("PING").query_async(&mut other).await;
        assert_eq!(pong.as_deref(), Ok("PONG"));
    }
}

//! The testkit's server: it starts, freezes, dies and restarts on command, and never outlives its
//! owner.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockset_testkit::{ClientKind, Server, eventually, unique_name, within};
use redis::AsyncCommands as _;

const SOON: Duration = Duration::from_secs(5);

/// Set for the process that plays the owner in `the_server_dies_with_its_owner`.
const OWNER: &str = "LOCKSET_TESTKIT_OWNER";

fn answers(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// The folder of a server started with `.unix()`.
fn folder(server: &Server) -> String {
    let url = server.unix_url();
    let socket = url.strip_prefix("redis+unix://").expect("a socket URL");
    let folder = Path::new(socket).parent().expect("the socket has a folder");
    folder.to_str().expect("a plain path").to_owned()
}

#[tokio::test]
async fn starts_answers_and_leaves_nothing_behind() {
    let server = Server::builder().unix().start();
    let (address, folder) = (server.addr(), folder(&server));
    let mut admin = server.admin().await;

    assert_eq!(
        server.url(),
        format!("redis://127.0.0.1:{}/", server.port())
    );
    let () = admin.set("a", 1).await.unwrap();
    assert_eq!(server.keys().await, ["a"]);
    let info: String = redis::cmd("INFO").query_async(&mut admin).await.unwrap();
    assert!(info.contains(&format!("process_id:{}\r", server.pid())));
    assert!(info.contains(&server.version()));
    let () = redis::cmd("DEBUG")
        .arg("SLEEP")
        .arg(0)
        .query_async(&mut admin)
        .await
        .expect("DEBUG is allowed");

    assert!(Path::new(&folder).exists());
    drop(server);
    assert!(!answers(address));
    assert!(!Path::new(&folder).exists());
}

#[tokio::test]
async fn listens_on_a_unix_socket() {
    let server = Server::builder().unix().start();
    let mut connection = redis::Client::open(server.unix_url())
        .unwrap()
        .get_multiplexed_async_connection()
        .await
        .unwrap();
    let () = connection.set("a", 1).await.unwrap();
    assert_eq!(server.keys().await, ["a"]);
}

#[tokio::test]
async fn starts_valkey() {
    let server = Server::builder().valkey().start();
    assert!(server.is_valkey());
    let info: String = redis::cmd("INFO")
        .query_async(&mut server.admin().await)
        .await
        .unwrap();
    assert!(info.contains(&format!("valkey_version:{}", server.version())));
}

#[tokio::test]
async fn passes_arguments_on() {
    let server = Server::builder()
        .args(["--maxmemory", "5mb", "--requirepass", "secret"])
        .start();
    let answer: Vec<String> = redis::cmd("CONFIG")
        .arg("GET")
        .arg("maxmemory")
        .query_async(&mut server.admin().await)
        .await
        .unwrap();
    assert_eq!(answer[1], (5 * 1024 * 1024).to_string());
}

#[test]
fn a_server_that_cannot_start_says_why() {
    let error = Server::builder()
        .args(["--no-such-option", "1"])
        .try_start()
        .unwrap_err();
    assert!(error.contains("no-such-option"), "{error}");

    let error = Server::builder()
        .binary("/no/such/binary")
        .try_start()
        .unwrap_err();
    assert!(error.contains("/no/such/binary"), "{error}");
}

#[tokio::test]
async fn a_frozen_server_is_silent_and_goes_on_later() {
    let server = Server::start();
    let mut admin = server.admin().await;

    server.stop();
    let mut asking = admin.clone();
    let answer = tokio::spawn(async move { asking.incr::<_, _, u64>("a", 1).await });
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(!answer.is_finished());
    assert!(answers(server.addr()), "the port stays open");

    server.cont();
    assert_eq!(within(SOON, answer).await.unwrap().unwrap(), 1);
    let () = admin.del("a").await.unwrap();
}

#[tokio::test]
async fn a_killed_server_is_gone_and_comes_back_empty() {
    let server = Server::builder().unix().start();
    let pid = server.pid();
    let mut admin = server.admin().await;
    let () = admin.set("a", 1).await.unwrap();

    server.kill();
    assert!(!answers(server.addr()));
    admin.get::<_, u64>("a").await.unwrap_err();
    server.kill();

    server.restart();
    assert_ne!(server.pid(), pid);
    assert!(server.keys().await.is_empty());

    let again = server.pid();
    server.restart();
    assert_ne!(server.pid(), again, "a restart replaces a live process");
    assert!(server.keys().await.is_empty());
}

#[test]
fn a_frozen_server_can_be_killed_and_dropped() {
    let server = Server::start();
    server.stop();
    server.kill();
    assert!(!answers(server.addr()));

    let server = Server::start();
    let address = server.addr();
    server.stop();
    drop(server);
    assert!(!answers(address));
}

#[test]
fn many_at_once_do_not_meet() {
    let servers: Vec<Server> = std::thread::scope(|scope| {
        let starting: Vec<_> = (0..8).map(|_| scope.spawn(Server::start)).collect();
        starting
            .into_iter()
            .map(|thread| thread.join().unwrap())
            .collect()
    });
    let pids: HashSet<u32> = servers.iter().map(Server::pid).collect();
    let ports: HashSet<u16> = servers.iter().map(Server::port).collect();
    assert_eq!((pids.len(), ports.len()), (8, 8));
}

#[tokio::test]
async fn counts_commands() {
    let server = Server::start();
    let mut admin = server.admin().await;
    for _ in 0..3 {
        let _: u64 = admin.incr("a", 1).await.unwrap();
    }
    assert_eq!(server.commandstats().await.get("incrby"), Some(&3));
    server.reset_stats().await;
    assert_eq!(server.commandstats().await.get("incrby"), None);
}

#[tokio::test]
async fn lists_clients_and_channels() {
    let server = Server::start();
    assert_eq!(server.clients(ClientKind::All).await, []);
    let mut admin = server.admin().await;
    let () = redis::cmd("CLIENT")
        .arg("SETNAME")
        .arg("me")
        .query_async(&mut admin)
        .await
        .unwrap();
    let mut subscriber = redis::Client::open(server.url())
        .unwrap()
        .get_async_pubsub()
        .await
        .unwrap();
    subscriber.subscribe("b").await.unwrap();
    subscriber.subscribe("a").await.unwrap();

    assert_eq!(server.pubsub_channels().await, ["a", "b"]);
    let subscribers = server.clients(ClientKind::PubSub).await;
    assert_eq!(subscribers.len(), 1);
    assert_eq!(subscribers[0].sub, 2);
    assert_eq!(subscribers[0].cmd, "subscribe");
    assert_eq!(subscribers[0].field("flags"), Some("P"));
    let normal = server.clients(ClientKind::Normal).await;
    assert_eq!(normal.len(), 1);
    assert_eq!((normal[0].name.as_str(), normal[0].sub), ("me", 0));
    assert_eq!(server.clients(ClientKind::All).await.len(), 2);

    drop(subscriber);
    eventually(SOON, "the subscription ends", async || {
        server.pubsub_channels().await.is_empty()
    })
    .await;
}

/// Not a test: the process that the next test starts and kills.
#[test]
fn owner_process() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let server = Server::builder().unix().start();
    println!("\nowner {} {}", server.addr(), folder(&server));
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn the_server_dies_with_its_owner() {
    for frozen in [false, true] {
        let mut owner = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "owner_process", "--nocapture"])
            .env(OWNER, "1")
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let words = BufReader::new(owner.stdout.take().unwrap())
            .lines()
            .map(Result::unwrap)
            .find_map(|line| Some(line.strip_prefix("owner ")?.to_owned()))
            .expect("the owner says where its server is");
        let (address, folder) = words.split_once(' ').unwrap();
        let address: SocketAddr = address.parse().unwrap();
        assert!(answers(address));
        if frozen {
            freeze(address);
        }

        owner.kill().unwrap();
        owner.wait().unwrap();

        let deadline = Instant::now() + SOON;
        while answers(address) || Path::new(folder).exists() {
            assert!(Instant::now() < deadline, "the server at {address} lives");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Freezes a server that belongs to another process.
fn freeze(address: SocketAddr) {
    let mut connection = redis::Client::open(format!("redis://{address}/"))
        .unwrap()
        .get_connection()
        .unwrap();
    let info: redis::InfoDict = redis::cmd("INFO").query(&mut connection).unwrap();
    let pid: i32 = info.get("process_id").unwrap();
    let status = Command::new("kill")
        .args(["-STOP", &pid.to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

#[test]
fn names_are_unique() {
    let names: HashSet<String> = (0..1000).map(|_| unique_name("n")).collect();
    assert_eq!(names.len(), 1000);
    assert!(names.iter().all(|name| name.starts_with("n-")));
}

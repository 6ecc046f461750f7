//! The testkit's cluster: it forms, fails over, moves slots, and dies with its owner.

use std::io::{BufRead as _, BufReader};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use lockset_testkit::{Cluster, FailOver, Server, eventually};
use redis::{
    AsyncCommands as _, AsyncConnectionConfig, ErrorKind, RedisResult, ServerErrorKind, cmd,
};

const SOON: Duration = Duration::from_secs(10);

/// Set for the process that plays the owner in `the_cluster_dies_with_its_owner`.
const OWNER: &str = "LOCKSET_TESTKIT_CLUSTER_OWNER";

/// A timeout long enough for a busy machine.
fn patient() -> AsyncConnectionConfig {
    AsyncConnectionConfig::new()
        .set_connection_timeout(Some(SOON))
        .set_response_timeout(Some(SOON))
}

async fn set(server: &Server, key: &str, value: &str) -> RedisResult<()> {
    server.admin().await.set(key, value).await
}

async fn get(server: &Server, key: &str) -> RedisResult<Option<String>> {
    server.admin().await.get(key).await
}

/// The kind of the server's error.
fn kind<T: std::fmt::Debug>(outcome: RedisResult<T>) -> ErrorKind {
    outcome.unwrap_err().kind()
}

/// A node that does not own the key's slot.
async fn another_than<'a>(cluster: &'a Cluster, owner: &Server) -> &'a Server {
    let primaries = cluster.primaries().await;
    let mut others = primaries.into_iter();
    others.find(|node| node.addr() != owner.addr()).unwrap()
}

#[tokio::test]
async fn forms_and_knows_where_keys_are() {
    let cluster = Cluster::start().await;
    assert_eq!(cluster.nodes().len(), 6);
    assert_eq!(cluster.primaries().await.len(), 3);
    assert_eq!(cluster.slot("foo").await, 12182);
    assert_eq!(cluster.slot("{foo}bar").await, 12182);
    let addrs: Vec<String> = cluster.addrs().iter().map(SocketAddr::to_string).collect();
    assert_eq!(
        cluster.url(),
        format!("redis+cluster://{}", addrs.join(","))
    );

    for key in ["a", "b", "c", "d"] {
        let owner = cluster.primary_of(key).await;
        set(owner, key, "1").await.unwrap();
        let other = another_than(&cluster, owner).await;
        let refused = kind(get(other, key).await);
        assert_eq!(refused, ErrorKind::Server(ServerErrorKind::Moved));
    }
    assert_eq!(cluster.keys("*").await, ["a", "b", "c", "d"]);
    assert_eq!(cluster.keys("b*").await, ["b"]);

    let replica = cluster.replica_of("a").await;
    eventually(SOON, "the replica has the key", async || {
        replica.keys().await.contains(&"a".to_owned())
    })
    .await;
}

#[tokio::test]
async fn fails_over_as_told() {
    let cluster = Cluster::start().await;
    for mode in [FailOver::Graceful, FailOver::Force, FailOver::Takeover] {
        let before = cluster.primary_of("a").await;
        let value = format!("{mode:?}");
        set(before, "a", &value).await.unwrap();
        let replica = cluster.replica_of("a").await;
        // Redis 6.2 leaves the former primary paused for 10 s, during which it accepts no data.
        eventually(2 * SOON, "the replica has the value", async || {
            let mut admin = replica.admin().await;
            let () = cmd("READONLY").query_async(&mut admin).await.unwrap();
            let found: Option<String> = admin.get("a").await.unwrap();
            found.as_deref() == Some(&value)
        })
        .await;

        let old = cluster.fail_over("a", mode).await;
        assert_eq!(old.addr(), before.addr());
        let new = cluster.primary_of("a").await;
        assert_eq!(new.addr(), replica.addr());
        assert_eq!(get(new, "a").await.unwrap().as_deref(), Some(&*value));
        cluster.is_well().await;
        let refused = kind(get(old, "a").await);
        assert_eq!(refused, ErrorKind::Server(ServerErrorKind::Moved));
    }
}

#[tokio::test]
async fn elects_a_replica_when_a_primary_dies() {
    let cluster = Cluster::start().await;
    let old = cluster.kill_primary_of("a").await;
    let new = cluster.primary_of("a").await;
    assert_ne!(new.addr(), old.addr());
    set(new, "a", "1").await.unwrap();

    old.restart();
    cluster.is_well().await;
    assert_eq!(cluster.replica_of("a").await.addr(), old.addr());
    assert_eq!(cluster.primaries().await.len(), 3);
    assert_eq!(cluster.keys("*").await, ["a"]);
}

#[tokio::test]
async fn elects_a_replica_when_a_primary_freezes() {
    let cluster = Cluster::start().await;
    let old = cluster.primary_of("a").await;
    old.stop();
    let new = cluster.promoted("a", old).await;
    assert_eq!(cluster.primary_of("a").await.addr(), new.addr());
    old.cont();
    cluster.is_well().await;
    assert_eq!(cluster.replica_of("a").await.addr(), old.addr());
}

#[tokio::test]
async fn a_replica_can_be_promoted_when_its_primary_is_dead() {
    // Long enough to prevent an automatic election during the test.
    let patience = Duration::from_secs(60);
    let cluster = Cluster::builder().node_timeout(patience).start().await;
    let old = cluster.primary_of("a").await;
    old.kill();
    assert_eq!(cluster.primary_of("a").await.addr(), old.addr());
    cluster.fail_over("a", FailOver::Takeover).await;
    set(cluster.primary_of("a").await, "a", "1").await.unwrap();
}

#[tokio::test]
async fn moves_a_slot_step_by_step() {
    let cluster = Cluster::start().await;
    let slot = cluster.slot("{a}").await;
    let from = cluster.owner_of(slot).await;
    let to = another_than(&cluster, from).await;
    for key in ["{a}1", "{a}2", "{a}3"] {
        set(from, key, key).await.unwrap();
    }

    cluster.begin_migration(slot, to).await;
    assert_eq!(get(from, "{a}1").await.unwrap().as_deref(), Some("{a}1"));
    cluster.move_key("{a}1", to).await;
    let asked = kind(get(from, "{a}1").await);
    assert_eq!(asked, ErrorKind::Server(ServerErrorKind::Ask));
    let both: RedisResult<Vec<String>> = redis::pipe()
        .cmd("ASKING")
        .ignore()
        .mget(&["{a}1", "{a}2"])
        .query_async(&mut to.admin().await)
        .await;
    assert_eq!(kind(both), ErrorKind::Server(ServerErrorKind::TryAgain));
    assert_eq!(cluster.owner_of(slot).await.addr(), from.addr());

    cluster.move_keys(slot, to).await;
    assert!(from.keys().await.is_empty());
    cluster.end_migration(slot, to).await;
    assert_eq!(cluster.owner_of(slot).await.addr(), to.addr());
    assert_eq!(get(to, "{a}2").await.unwrap().as_deref(), Some("{a}2"));
    let moved = kind(get(from, "{a}2").await);
    assert_eq!(moved, ErrorKind::Server(ServerErrorKind::Moved));

    cluster.migrate(slot, from).await;
    assert_eq!(from.keys().await, ["{a}1", "{a}2", "{a}3"]);
    cluster.is_well().await;
}

#[tokio::test]
async fn a_migration_can_be_abandoned() {
    let cluster = Cluster::start().await;
    let slot = cluster.slot("a").await;
    let from = cluster.owner_of(slot).await;
    let to = another_than(&cluster, from).await;
    cluster.begin_migration(slot, to).await;
    assert_eq!(
        kind(get(from, "a").await),
        ErrorKind::Server(ServerErrorKind::Ask)
    );
    cluster.abandon_migration(slot, to).await;
    assert_eq!(get(from, "a").await.unwrap(), None);
}

#[tokio::test]
async fn proxies_stand_between_clients_and_nodes_only() {
    let cluster = match Cluster::builder().proxied().try_start().await {
        Err(reason) if reason.contains("cluster-announce-hostname") => {
            eprintln!(
                "SKIPPED: a server before Redis 7 sends clients to the address of a node only"
            );
            return;
        }
        outcome => outcome.unwrap(),
    };
    let owner = cluster.primary_of("a").await;
    let proxy = cluster.proxy(owner);
    assert!(cluster.addrs().contains(&proxy.addr()));

    // Redirections lead to the proxy.
    let other = another_than(&cluster, owner).await;
    let moved = get(other, "a").await.unwrap_err();
    let (target, _) = moved.redirect_node().unwrap();
    assert_eq!(target, proxy.addr().to_string());
    eventually(SOON, "the slots lead to all proxies", async || {
        let slots: redis::Value = cmd("CLUSTER")
            .arg("SLOTS")
            .query_async(&mut other.admin().await)
            .await
            .unwrap();
        format!("{slots:?}").matches("127.0.0.2").count() == 6
    })
    .await;

    // A fault of the proxy does not affect the nodes.
    proxy.refuse(true);
    proxy.cut();
    let client = redis::Client::open(proxy.url()).unwrap();
    assert!(
        client
            .get_multiplexed_async_connection_with_config(&patient())
            .await
            .is_err()
    );
    set(owner, "a", "1").await.unwrap();
    let replica = cluster.replica_of("a").await;
    eventually(SOON, "the replica has the key", async || {
        replica.keys().await == ["a"]
    })
    .await;
    cluster.is_well().await;
    assert_eq!(cluster.primary_of("a").await.addr(), owner.addr());

    proxy.pass();
    let mut client = client
        .get_multiplexed_async_connection_with_config(&patient())
        .await
        .unwrap();
    let value: String = client.get("a").await.unwrap();
    assert_eq!(value, "1");
}

#[tokio::test]
async fn a_password_goes_for_all_nodes() {
    let cluster = Cluster::builder()
        .args(["--requirepass", "secret"])
        .start()
        .await;
    let slot = cluster.slot("a").await;
    let from = cluster.owner_of(slot).await;
    set(from, "a", "1").await.unwrap();
    let to = another_than(&cluster, from).await;
    cluster.migrate(slot, to).await;
    assert_eq!(get(to, "a").await.unwrap().as_deref(), Some("1"));
    let stranger = redis::Client::open(from.url()).unwrap();
    let refused = match stranger
        .get_multiplexed_async_connection_with_config(&patient())
        .await
    {
        Ok(mut stranger) => cmd("GET").arg("a").query_async(&mut stranger).await,
        Err(error) => Err(error),
    };
    let refused: RedisResult<()> = refused;
    assert!(refused.unwrap_err().to_string().contains("NOAUTH"));
}

#[tokio::test]
async fn starts_valkey_without_replicas() {
    let cluster = Cluster::builder().valkey().replicas(0).start().await;
    assert_eq!(cluster.nodes().len(), 3);
    assert!(cluster.nodes().iter().all(Server::is_valkey));
    set(cluster.primary_of("a").await, "a", "1").await.unwrap();
}

#[tokio::test]
async fn a_cluster_that_cannot_start_says_why() {
    let error = Cluster::builder()
        .args(["--no-such-option", "1"])
        .try_start()
        .await
        .unwrap_err();
    assert!(error.contains("no-such-option"), "{error}");
}

/// Not a test: the process that the next test starts and kills.
#[tokio::test]
async fn owner_process() {
    if std::env::var_os(OWNER).is_none() {
        return;
    }
    let cluster = Cluster::shared().await;
    assert!(std::ptr::eq(cluster, Cluster::shared().await));
    let addrs: Vec<String> = cluster.addrs().iter().map(SocketAddr::to_string).collect();
    println!("\nowner {}", addrs.join(" "));
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn the_shared_cluster_dies_with_its_process() {
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
        .expect("the owner says where its nodes are");
    let addrs: Vec<SocketAddr> = words.split(' ').map(|addr| addr.parse().unwrap()).collect();
    assert_eq!(addrs.len(), 6);
    let answers = |addr: &SocketAddr| TcpStream::connect_timeout(addr, SOON).is_ok();
    assert!(addrs.iter().all(answers));

    owner.kill().unwrap();
    owner.wait().unwrap();

    let deadline = Instant::now() + SOON;
    while addrs.iter().any(answers) {
        assert!(Instant::now() < deadline, "a node of {words} lives");
        std::thread::sleep(Duration::from_millis(5));
    }
}

//! The operator's view: locks among other keys, their holders and since when, and the waiters.

use std::time::Duration;

use lockset::Client;
use lockset_operator::{
    ForceUnlock, HoldMode, LockInfo, LockKind, LockScan, ReleaseHolder, Survey,
};
use lockset_testkit::{Cluster, Proxy, Redisson, Server, eventually, unique_name, within};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};

use crate::support::{SOON, ask, client, nothing_left, patient_client, waiting};

const LEASE: Duration = Duration::from_secs(30);
const OFTEN: Duration = Duration::from_millis(200);

async fn announcing(url: &str) -> Client {
    let client = Client::builder(url).announce_every(OFTEN);
    client.build().await.unwrap()
}

fn named<'a>(locks: &'a [LockInfo], name: &str) -> &'a LockInfo {
    let lock = locks.iter().find(|lock| lock.name == name);
    lock.unwrap_or_else(|| panic!("{name} is listed: {locks:#?}"))
}

/// One lock of each kind, including Java's, among the data of an application.
#[tokio::test]
async fn locks_are_found_among_the_hashes_of_applications() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("app:[1]:");
    let client = client.build().await.unwrap();
    let mut admin = server.admin().await;
    let fill = "for i = 1, 5000 do \
        redis.call('HSET', 'app:[1]:user:' .. i, 'name', i, 'mode', 'dark') \
        redis.call('HSET', 'app:[1]:session:' .. i, 'mode', 'read') \
        redis.call('PEXPIRE', 'app:[1]:session:' .. i, 600000) end";
    let _: redis::Value = ask(&mut admin, &["EVAL", fill, "0"]).await;
    let plain = client.lock("plain").fenced().lock().await.unwrap();
    let braced = client.lock("{braced}").lock().await.unwrap();
    let fair = client.fair_lock("fair").lock().await.unwrap();
    let again = fair.reenter().await.unwrap();
    let reader = client.rw_lock("rw").read().await.unwrap();
    let writer = client.rw_lock("rw2").write().await.unwrap();
    let java = Redisson::connect(&server).await;
    assert_eq!(java.lock_acquire("app:[1]:java", 7, LEASE).await, None);
    assert_eq!(java.lock_acquire("other:java", 7, LEASE).await, None);

    let locks = within(SOON * 4, Survey::new(&client).locks())
        .await
        .unwrap();
    let names: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
    assert_eq!(names, ["fair", "java", "plain", "rw", "rw2", "{braced}"]);
    let seen = named(&locks, "plain");
    assert_eq!(seen.key, "app:[1]:plain");
    assert_eq!(seen.kind, LockKind::Exclusive);
    assert_eq!(seen.token, plain.fencing_token());
    assert_eq!(seen.holders[0].id, plain.holder_id());
    assert!(seen.remaining > LEASE / 2 && seen.remaining <= LEASE);
    assert_eq!(named(&locks, "fair").holders[0].hold_count, 1);
    assert_eq!(again.hold_count(), 2);
    for (name, mode) in [("rw", HoldMode::Read), ("rw2", HoldMode::Write)] {
        let seen = named(&locks, name);
        assert_eq!(
            (seen.kind, seen.holders[0].mode),
            (LockKind::ReadWrite, mode)
        );
    }
    // Our connections are recognized, and Java's are not.
    let ours = seen.holders[0].client.as_ref().expect("it is known");
    assert_eq!(ours.id, client.id());
    assert!(ours.addresses[0].starts_with("127.0.0.1:"), "{ours:?}");
    assert_eq!(named(&locks, "java").holders[0].client, None);
    assert_eq!(named(&locks, "java").holders[0].id, java.holder(7));

    let some = Survey::new(&client).matching("rw?").locks().await.unwrap();
    assert_eq!(some.len(), 1);
    let commands = server.commandstats().await;
    for never in ["keys", "monitor"] {
        assert!(!commands.contains_key(never), "{never}");
    }
    // A large foreign hash without a lease, or with other fields, is never read.
    assert!(commands["hgetall"] < 40, "{commands:?}");
    drop((plain, braced, fair, again, reader, writer));
    client.shutdown().await.unwrap();
}

#[tokio::test]
async fn contended_locks_are_found_by_their_channels_alone() {
    let server = Server::start();
    let [holder, waiter] = [client(&server.url()).await, client(&server.url()).await];
    let name = unique_name("desk");
    let guards = (
        holder.lock(&name).lock().await.unwrap(),
        holder.rw_lock("{rw}").write().await.unwrap(),
        holder.fair_lock("fair").lock().await.unwrap(),
        holder.lock("calm").lock().await.unwrap(),
    );
    let tasks = [
        lockset_testkit::spawn({
            let lock = waiter.lock(&name);
            async move { lock.lock().await.map(drop) }
        }),
        lockset_testkit::spawn({
            let lock = waiter.rw_lock("{rw}");
            async move { lock.read().await.map(drop) }
        }),
        lockset_testkit::spawn({
            let lock = waiter.fair_lock("fair");
            async move { lock.lock().await.map(drop) }
        }),
    ];
    waiting(&waiter, 3).await;
    eventually(SOON, "all three listen", async || {
        server.pubsub_channels().await.len() >= 3
    })
    .await;
    server.reset_stats().await;
    let survey = Survey::new(&holder);
    let contended = survey.contended().await.unwrap();
    let mut names: Vec<&str> = contended.iter().map(|lock| lock.name.as_str()).collect();
    names.sort_unstable();
    let mut expected = [name.as_str(), "{rw}", "fair"];
    expected.sort_unstable();
    assert_eq!(names, expected);
    assert!(
        contended.iter().all(|lock| lock.waiters == 1),
        "{contended:#?}"
    );
    assert_eq!(named(&contended, "fair").kind, LockKind::Fair);
    assert!(!server.commandstats().await.contains_key("scan"));
    let only = Survey::new(&holder)
        .matching("{*")
        .contended()
        .await
        .unwrap();
    assert_eq!(only.len(), 1);

    let fair = survey.inspect("fair").await.unwrap().expect("it is held");
    assert_eq!(fair.queue.len(), 1);
    assert!(fair.queue[0].id.starts_with(waiter.id()));
    assert!(fair.queue[0].has_heartbeat && !fair.queue[0].kept_for.is_zero());
    assert_eq!(fair.queue[0].client.as_ref().unwrap().id, waiter.id());
    let plain = survey.inspect(&name).await.unwrap().expect("it is held");
    assert_eq!(plain.channels.len(), 1);
    let free = survey.inspect("nobody").await.unwrap();
    assert_eq!(free, None);
    drop(guards);
    for task in tasks {
        within(SOON, task).await.unwrap().unwrap();
    }
}

#[tokio::test]
async fn long_holds_and_waits_are_announced_with_the_process() {
    let server = Server::start();
    let [holder, waiter] = [
        announcing(&server.url()).await,
        announcing(&server.url()).await,
    ];
    let guard = holder.lock("{long}").lock().await.unwrap();
    let wait = lockset_testkit::spawn({
        let lock = waiter.lock("{long}");
        async move { lock.lock().await.map(drop) }
    });
    let watcher = patient_client(&server.url()).await;
    let mut seen = None;
    eventually(SOON * 2, "both have announced themselves", async || {
        // A new survey each time, because a survey caches what it has read.
        let found = Survey::new(&watcher).inspect("{long}").await.unwrap();
        seen = found.filter(|found| {
            !found.announced_waits.is_empty() && found.lock.held_for() > Some(OFTEN)
        });
        seen.is_some()
    })
    .await;
    let found = seen.unwrap();
    let announced = found.lock.holders[0].client.as_ref().unwrap();
    let announced = announced.announced.as_ref().unwrap();
    assert_eq!(announced.pid, std::process::id());
    assert_eq!(announced.version, env!("CARGO_PKG_VERSION"));
    assert!(announced.program.starts_with("suite"), "{announced:?}");
    assert!(!announced.host.is_empty());
    assert_eq!(announced.holds[0].holder, guard.holder_id());
    assert_eq!(found.announced_waits[0].0.id, waiter.id());
    eventually(SOON, "two clients", async || {
        Survey::new(&watcher).clients().await.unwrap().len() == 2
    })
    .await;

    guard.release().await.unwrap();
    within(SOON, wait).await.unwrap().unwrap();
    for client in [holder, waiter, watcher] {
        client.shutdown().await.unwrap();
    }
    nothing_left(&server).await;
}

#[tokio::test]
async fn the_load_of_a_server_leaves_out_the_questions_about_it() {
    let server = Server::start();
    let watcher = patient_client(&server.url()).await;
    let survey = Survey::new(&watcher);
    survey.load().await.unwrap();
    for _ in 0..500 {
        survey.named(&["x"]).await.unwrap();
    }
    let own = survey.load().await.unwrap().commands_per_second;
    assert!(own < 20, "{own}");
    let mut admin = server.admin().await;
    for _ in 0..500 {
        let _: redis::Value = ask(&mut admin, &["PING"]).await;
    }
    let others = survey.load().await.unwrap().commands_per_second;
    assert!(others > 100, "{others}");
}

#[tokio::test]
async fn a_client_announces_itself_at_once_when_asked() {
    let server = Server::start();
    let builder = Client::builder(&server.url()).label("night run\n");
    let client = builder.build().await.unwrap();
    client.announce().await.unwrap();
    let watcher = patient_client(&server.url()).await;
    assert_eq!(
        Survey::new(&watcher).clients().await.unwrap(),
        [],
        "no lock"
    );
    let guard = client.lock("young").lock().await.unwrap();
    client.announce().await.unwrap();
    let found = Survey::new(&watcher)
        .inspect("young")
        .await
        .unwrap()
        .unwrap();
    let holder = &found.lock.holders[0];
    assert_eq!(holder.id, guard.holder_id());
    assert!(holder.held_for < Some(Duration::from_secs(5)), "{holder:?}");
    assert!(holder.held_for.is_some());
    let announced = holder.client.as_ref().unwrap().announced.as_ref().unwrap();
    assert_eq!(announced.label.as_deref(), Some("night run\n"));
    guard.release().await.unwrap();
    client.shutdown().await.unwrap();
    let never = Client::builder(&server.url()).announce_every(Duration::MAX);
    let never = never.build().await.unwrap();
    assert!(never.announce().await.unwrap_err().is_invalid());
    drop(never);
    watcher.shutdown().await.unwrap();
    nothing_left(&server).await;
}

/// Permits are no locks, but what has them is known all the same.
#[tokio::test]
async fn a_client_that_has_nothing_but_a_permit_announces_itself() {
    let server = Server::start();
    let client = announcing(&server.url()).await;
    let permit = client
        .semaphore("seats")
        .permits(2)
        .acquire()
        .await
        .unwrap();
    let watcher = patient_client(&server.url()).await;
    eventually(SOON, "it is announced", async || {
        let found = Survey::new(&watcher).inspect("seats").await.unwrap();
        let holder = found.unwrap().lock.holders.remove(0);
        let announced = holder.client.and_then(|client| client.announced.clone());
        announced.is_some_and(|of| of.pid == std::process::id())
    })
    .await;
    permit.release().await.unwrap();
    client.shutdown().await.unwrap();
    let keys = server.keys().await;
    assert_eq!(keys, ["seats"], "the number of permits");
}

/// A client that uses no lock any longer says so once.
#[tokio::test]
async fn a_wait_that_is_over_is_announced_no_longer() {
    const EVERY: Duration = Duration::from_millis(500);
    let server = Server::start();
    let holder = client(&server.url()).await;
    let waiter = Client::builder(&server.url()).announce_every(EVERY);
    let waiter = waiter.build().await.unwrap();
    let guard = holder.lock("{long}").lock().await.unwrap();
    let wait = lockset_testkit::spawn({
        let lock = waiter.lock("{long}");
        async move { lock.lock().await.map(drop) }
    });
    let watcher = patient_client(&server.url()).await;
    let waits = async || {
        let clients = Survey::new(&watcher).clients().await.unwrap();
        let announced = clients.first()?.announced.as_ref()?;
        Some(announced.waits.len() + announced.holds.len())
    };
    eventually(SOON, "it is announced", async || waits().await == Some(1)).await;
    guard.release().await.unwrap();
    within(SOON, wait).await.unwrap().unwrap();
    eventually(SOON, "it is over", async || waits().await == Some(0)).await;
}

/// A client that uses no lock writes nothing, and a client without the right to write still works.
#[tokio::test]
async fn nothing_is_announced_without_a_lock_or_without_the_right() {
    let server = Server::start();
    let idle = announcing(&server.url()).await;
    let mut admin = server.admin().await;
    let acl = "ACL SETUSER locker on >pw ~app:* ~{app:* &* +@all";
    let words: Vec<&str> = acl.split(' ').collect();
    let _: redis::Value = ask(&mut admin, &words).await;
    let url = server.url().replace("redis://", "redis://locker:pw@");
    let url = url.replacen("locker:pw@:", "locker:pw@", 1);
    let refused = Client::builder(&url)
        .key_prefix("app:")
        .announce_every(OFTEN);
    let refused = refused.build().await.unwrap();
    let guard = refused.lock("x").lock().await.unwrap();
    let log = async |admin: &mut _| ask::<Vec<redis::Value>>(admin, &["ACL", "LOG"]).await.len();
    eventually(SOON, "it was refused", async || {
        log(&mut server.admin().await).await > 0
    })
    .await;
    let denied = log(&mut admin).await;
    tokio::time::sleep(OFTEN * 4).await;
    assert_eq!(log(&mut admin).await, denied, "it is tried once");
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    let keys = server.keys().await;
    assert!(
        !keys.iter().any(|key| key.starts_with("lockset_client")),
        "{keys:?}"
    );
    drop(idle);
}

#[tokio::test]
async fn a_cluster_is_searched_on_all_its_nodes() {
    let cluster = Cluster::shared().await;
    let client = announcing(&cluster.url()).await;
    let tag = unique_name("spread");
    let mut guards = Vec::new();
    for number in 0..24 {
        let name = format!("{tag}:{number}");
        guards.push(client.lock(&name).lock().await.unwrap());
    }
    let pattern = format!("{tag}:*");
    let locks = within(SOON * 4, Survey::new(&client).matching(&pattern).locks())
        .await
        .unwrap();
    assert_eq!(locks.len(), guards.len());
    let waiter = patient_client(&cluster.url()).await;
    let wait = lockset_testkit::spawn({
        let lock = waiter.lock(format!("{tag}:7"));
        async move { lock.lock().await.map(drop) }
    });
    waiting(&waiter, 1).await;
    eventually(SOON, "the waiter is seen", async || {
        let contended = Survey::new(&client)
            .matching(&pattern)
            .contended()
            .await
            .unwrap();
        contended.len() == 1 && contended[0].name == format!("{tag}:7")
    })
    .await;
    eventually(SOON, "the holds are announced", async || {
        let found = Survey::new(&client)
            .inspect(&format!("{tag}:7"))
            .await
            .unwrap();
        found.is_some_and(|found| found.lock.held_for().is_some())
    })
    .await;
    drop(guards);
    within(SOON, wait).await.unwrap().unwrap();
    client.shutdown().await.unwrap();
}

/// Scores may be arbitrary numbers, and a share may be missing.
#[tokio::test]
async fn scores_that_are_not_times_are_still_shown() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let mut admin = server.admin().await;
    let _guard = client.fair_lock("fair").lock().await.unwrap();
    for command in [
        ["RPUSH", "redisson_lock_queue:{fair}", "endless", "past"].as_slice(),
        &[
            "ZADD",
            "redisson_lock_timeout:{fair}",
            "+inf",
            "endless",
            "-inf",
            "past",
        ],
    ] {
        let _: i64 = ask(&mut admin, command).await;
    }
    for share in [0.5, 0.0, -1.0, f64::NAN] {
        let survey = Survey::new(&client).share(share);
        let seen = survey.inspect("fair").await.unwrap().expect("it is held");
        let kept: Vec<Duration> = seen.queue.iter().map(|waiter| waiter.kept_for).collect();
        assert_eq!(kept, [Duration::MAX, Duration::ZERO]);
        let mut scan = survey.scan();
        let found = within(SOON, scan.next()).await.unwrap();
        assert!(found.is_some(), "a server that was looked at");
    }
}

fn names(locks: &[LockInfo]) -> Vec<&str> {
    let mut names: Vec<&str> = locks.iter().map(|lock| lock.name.as_str()).collect();
    names.sort_unstable();
    names
}

/// Permits and a leader among numbers and sorted sets of an application.
#[tokio::test]
async fn semaphores_and_elections_are_found() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("app:");
    let client = client.build().await.unwrap();
    let mut admin = server.admin().await;
    for foreign in [
        &["SET", "app:number", "5"][..],
        &["SET", "app:user", "5"],
        &["ZADD", "{app:user}:timeout", "9000000000000", "user:7"],
        &["ZADD", "{app:other}:timeout", "9000000000000", "1"],
        &["SET", "other:seats", "5"],
    ] {
        let _: redis::Value = ask(&mut admin, foreign).await;
    }
    let seats = client.semaphore("seats").permits(3);
    let two = seats.many(2).acquire().await.unwrap();
    let election = client.election("leader").value("10.0.0.7");
    let leadership = election.campaign().await.unwrap();

    let locks = within(SOON, Survey::new(&client).locks()).await.unwrap();
    assert_eq!(names(&locks), ["leader", "seats"]);
    let seen = named(&locks, "seats");
    assert_eq!(
        (seen.kind, seen.free_permits),
        (LockKind::Semaphore, Some(1))
    );
    assert_eq!(seen.key, "app:seats");
    let mut ids: Vec<&str> = two.holder_ids().collect();
    ids.sort_unstable();
    let mut holders: Vec<&str> = seen.holders.iter().map(|holder| &*holder.id).collect();
    holders.sort_unstable();
    assert_eq!(holders, ids);
    for holder in &seen.holders {
        assert_eq!((holder.mode, holder.hold_count), (HoldMode::Permit, 1));
        assert!(holder.remaining > Some(LEASE / 2), "{holder:?}");
        assert_eq!(holder.client.as_ref().unwrap().id, client.id());
    }
    let leader = named(&locks, "leader");
    assert_eq!(leader.kind, LockKind::Election);
    assert_eq!(leader.value.as_deref(), Some("10.0.0.7"));
    assert_eq!(leader.token, Some(leadership.token()));
    assert_eq!(leader.holders[0].id, leadership.id());

    assert_eq!(
        Survey::new(&client)
            .matching("se*")
            .locks()
            .await
            .unwrap()
            .len(),
        1
    );
    let survey = Survey::new(&client);
    let some = survey.named(&["seats", "leader", "number", "user"]).await;
    assert_eq!(names(&some.unwrap()), ["leader", "seats"]);
    assert!(survey.inspect("number").await.unwrap().is_none());
    two.release().await.unwrap();
    leadership.resign().await.unwrap();
    assert_eq!(Survey::new(&client).locks().await.unwrap(), []);
}

/// Redisson's ids are 16 bytes, which are seldom text.
#[tokio::test]
async fn permits_of_redisson_are_found_beside_ours_and_taken_away() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let mut admin = server.admin().await;
    let ours = client.semaphore("x").permits(4).acquire().await.unwrap();
    let _: i64 = ask(&mut admin, &["INCRBY", "x", "-2"]).await;
    let javas = [[0xff; 16], *b"bytes:that\nare:t"];
    for member in &javas {
        let mut add = redis::cmd("ZADD");
        add.arg("{x}:timeout").arg("9000000000000").arg(member);
        let () = add.query_async(&mut admin).await.unwrap();
    }
    let ids = javas.map(|member| member.map(|byte| format!("{byte:02x}")).concat());
    let survey = Survey::new(&client);
    let found = survey.inspect("x").await.unwrap().expect("it is taken");
    let mut holders: Vec<&str> = found.lock.holders.iter().map(|one| &*one.id).collect();
    holders.sort_unstable();
    let mut expected: Vec<&str> = ids.iter().map(|id| &**id).collect();
    expected.extend(ours.holder_ids());
    expected.sort_unstable();
    assert_eq!(holders, expected);
    let listed = survey.locks().await.unwrap();
    assert_eq!(named(&listed, "x").holders.len(), 3);
    let semaphore = client.semaphore("x");
    for id in &ids {
        assert!(semaphore.release_holder(id).await.unwrap(), "{id}");
    }
    let left = survey.inspect("x").await.unwrap().expect("ours is taken");
    assert_eq!(left.lock.holders.len(), 1);
    assert_eq!(left.lock.free_permits, Some(3));
    ours.release().await.unwrap();
}

#[tokio::test]
async fn those_who_wait_for_permits_and_latches_are_found() {
    let server = Server::start();
    let [holder, waiter] = [
        patient_client(&server.url()).await,
        patient_client(&server.url()).await,
    ];
    let seats = |client: &Client| client.semaphore("seats").permits(1).fair();
    let seat = seats(&holder).acquire().await.unwrap();
    assert!(holder.latch("done").init(2).await.unwrap());
    let tasks = [
        lockset_testkit::spawn({
            let seats = seats(&waiter);
            async move { seats.acquire().await.map(drop) }
        }),
        lockset_testkit::spawn({
            let latch = waiter.latch("done");
            async move { latch.wait().await }
        }),
    ];
    let survey = Survey::new(&holder);
    eventually(SOON, "both listen", async || {
        names(&survey.contended().await.unwrap()) == ["done", "seats"]
    })
    .await;
    let contended = survey.contended().await.unwrap();
    let latch = named(&contended, "done");
    assert_eq!(
        (latch.kind, latch.count, latch.waiters),
        (LockKind::Latch, Some(2), 1)
    );
    let found = survey.inspect("seats").await.unwrap().unwrap();
    assert_eq!(found.lock.kind, LockKind::Semaphore);
    assert_eq!((found.lock.free_permits, found.lock.waiters), (Some(0), 1));
    let place = &found.queue[0];
    assert!(
        place.has_heartbeat && !place.kept_for.is_zero(),
        "{place:?}"
    );
    assert_eq!(place.client.as_ref().unwrap().id, waiter.id());
    assert_eq!(found.channels.len(), 1, "{found:?}");
    seat.release().await.unwrap();
    holder.latch("done").count_down().await.unwrap();
    holder.latch("done").count_down().await.unwrap();
    for task in tasks {
        within(SOON, task).await.unwrap().unwrap();
    }
}

/// They have the form of a lock, and the end of such a hold would be the end of a permit.
#[tokio::test]
async fn the_notes_of_a_plain_semaphore_are_taken_from_nobody() {
    let server = Server::start();
    let client = client(&server.url()).await;
    let seats = client.plain_semaphore("seats").permits(2);
    let permit = seats.acquire().await.unwrap();
    let found = Survey::new(&client).inspect("seats").await.unwrap();
    let id = &*found.unwrap().lock.holders[0].id.clone();
    let key = "lockset_sem_holds:{seats}";
    let (lock, fair, rw) = (client.lock(key), client.fair_lock(key), client.rw_lock(key));
    for refused in [
        lock.release_holder(id).await,
        lock.release_holder_because(id, "test").await,
        lock.force_unlock().await,
        lock.force_unlock_because("test").await,
        fair.release_holder(id).await,
        fair.force_unlock_because("test").await,
        rw.release_holder_because(id, "test").await,
        rw.write_side().force_unlock_because("test").await,
    ] {
        let error = refused.unwrap_err();
        assert!(
            error.is_invalid() && error.to_string().contains("`release`"),
            "{error}"
        );
    }
    let is_reason = |key: &&String| key.contains(":freed:");
    assert_eq!(server.keys().await.iter().find(is_reason), None);
    permit.release().await.unwrap();
    assert_eq!(seats.available().await.unwrap(), 2);
}

/// Answers `SCAN` with these replies in turn, an empty list for each other command that looks at a key, and an error for
/// all others.
async fn scanned(replies: &'static [&'static str]) -> std::net::SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    lockset_testkit::spawn(async move {
        let mut replies = replies.iter();
        while let Ok((theirs, _)) = listener.accept().await {
            let mut theirs = BufReader::new(theirs);
            let mut line = String::new();
            while theirs.read_line(&mut line).await.is_ok_and(|read| read > 0) {
                let words: usize = line.trim_start_matches('*').trim().parse().unwrap();
                line.clear();
                for _ in 0..words * 2 {
                    theirs.read_line(&mut line).await.unwrap();
                }
                let reply = if line.contains("SCAN") {
                    replies.next().expect("no further slice is asked for")
                } else {
                    "-ERR no such command\r\n"
                };
                line.clear();
                theirs.write_all(reply.as_bytes()).await.unwrap();
            }
        }
    });
    address
}

/// Some services have cursors that are larger than the largest signed number.
#[tokio::test]
async fn a_pass_goes_on_behind_the_largest_cursor() {
    let at = scanned(&[
        "*2\r\n$20\r\n18446744073709551615\r\n*0\r\n",
        "*2\r\n$1\r\n0\r\n*0\r\n",
        "*2\r\n$1\r\n0\r\n*0\r\n",
        "*2\r\n$1\r\n0\r\n*0\r\n",
    ])
    .await;
    let client = Client::builder(&format!("redis://{at}")).lazy();
    let client = client.build().await.unwrap();
    let mut scan = Survey::new(&client).scan();
    let mut slices = 0;
    while within(SOON, scan.next()).await.unwrap().is_some() {
        slices += 1;
    }
    assert_eq!(
        slices, 6,
        "two of locks, one of permits, one of notes, and the changes"
    );
    assert_eq!(scan.looked_at(), 4000);
}

/// Takes this many locks, among so many other keys that no slice of a pass has them all. All are where `{tag}` is.
async fn many(server: &Server, tag: &str, locks: usize) {
    let fill = "for i = 1, 4000 do redis.call('HSET', KEYS[1] .. i, 'name', i) end \
        for i = 1, tonumber(ARGV[1]) do \
        redis.call('HSET', KEYS[1] .. 'lock' .. i, '9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:' .. i, 1) \
        redis.call('PEXPIRE', KEYS[1] .. 'lock' .. i, 600000) end";
    let (tag, locks) = (format!("{{{tag}}}"), locks.to_string());
    let mut admin = server.admin().await;
    let _: redis::Value = ask(&mut admin, &["EVAL", fill, "1", &tag, &locks]).await;
}

/// Goes on with a pass to its end, and returns how many locks it finds.
async fn the_rest(scan: &mut LockScan) -> usize {
    let mut found = 0;
    while let Some(locks) = within(SOON, scan.next()).await.unwrap() {
        found += locks.len();
    }
    found
}

/// A cursor means something to the process alone that gave it.
#[tokio::test]
async fn a_pass_begins_anew_at_a_server_that_took_over() {
    let (old, new) = (Server::start(), Server::start());
    many(&old, "a", 0).await;
    many(&new, "a", 200).await;
    let proxy = Proxy::start(old.addr()).await;
    let client = client(&proxy.url()).await;
    let mut scan = Survey::new(&client).share(1.0).scan();
    assert_eq!(within(SOON, scan.next()).await.unwrap(), Some(Vec::new()));
    proxy.lead_to(new.addr());
    proxy.cut();
    assert_eq!(the_rest(&mut scan).await, 200);
}

#[tokio::test]
async fn a_pass_at_a_server_that_changes_all_the_time_ends() {
    let servers = [Server::start(), Server::start()];
    for server in &servers {
        many(server, "a", 0).await;
    }
    let proxy = Proxy::start(servers[0].addr()).await;
    let client = client(&proxy.url()).await;
    let mut scan = Survey::new(&client).share(1.0).scan();
    let mut ended = within(SOON, scan.next()).await;
    for round in 1..20 {
        if ended.is_err() {
            break;
        }
        proxy.lead_to(servers[round % 2].addr());
        proxy.cut();
        ended = within(SOON, scan.next()).await;
    }
    let error = ended.unwrap_err();
    assert!(error.is_refused(), "{error}");
}

/// The key that led to the node leads to another one then.
#[tokio::test]
async fn a_pass_goes_on_at_its_node_when_a_slot_has_moved() {
    let cluster = Cluster::start().await;
    let client = client(&cluster.url()).await;
    // A pass begins at the node of this key.
    let slot = cluster.slot("0").await;
    let first = cluster.owner_of(slot).await;
    let mut tags = (0..).map(|tag| format!("tag{tag}"));
    let tag = loop {
        let tag = tags.next().unwrap();
        if cluster.primary_of(&tag).await.port() == first.port() {
            break tag;
        }
    };
    many(first, &tag, 200).await;
    let mut scan = Survey::new(&client).share(1.0).scan();
    let found = within(SOON, scan.next()).await.unwrap().unwrap().len();
    let primaries = cluster.primaries().await;
    let other = primaries.iter().find(|node| node.port() != first.port());
    cluster.migrate(slot, other.unwrap()).await;
    // The client learns it from the answer to a call.
    client
        .lock("0")
        .lock()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
    assert_eq!(found + the_rest(&mut scan).await, 200);
}

/// How often the server has read from its connections.
async fn reads_of(admin: &mut redis::aio::MultiplexedConnection) -> u64 {
    let stats: String = ask(admin, &["INFO", "stats"]).await;
    let reads = stats.split("total_reads_processed:").nth(1);
    let reads = reads.and_then(|rest| rest.lines().next());
    reads.unwrap().parse().unwrap()
}

/// Not one after the other.
#[tokio::test]
async fn many_readers_are_inspected_in_a_few_round_trips() {
    const READERS: u64 = 100;
    let server = Server::start();
    let client = client(&server.url()).await;
    let java = Redisson::connect(&server).await;
    for thread in 1..=READERS {
        let lease = LEASE * u32::try_from(thread).unwrap();
        assert_eq!(java.read_acquire("rw", thread, lease).await, None);
    }
    assert_eq!(java.read_acquire("rw", READERS, LEASE).await, None);
    let survey = Survey::new(&client);
    survey.inspect("rw").await.unwrap();
    let mut admin = server.admin().await;
    let before = reads_of(&mut admin).await;
    let found = survey.inspect("rw").await.unwrap().expect("it is held");
    let reads = reads_of(&mut admin).await - before;
    assert!(reads < READERS / 2, "{reads} reads of the server");
    assert_eq!(found.lock.holders.len() as u64, READERS);
    for thread in 1..=READERS {
        let id = java.holder(thread);
        let mut readers = found.lock.holders.iter();
        let left = readers.find(|reader| reader.id == id).unwrap().remaining;
        let lease = LEASE * u32::try_from(thread).unwrap();
        let left = left.expect("each has a lease");
        assert!(left <= lease && left > lease - LEASE, "{thread}: {left:?}");
    }
}

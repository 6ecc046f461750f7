//! The verbs that look, on real servers: `list`, `show`, `doctor`, and that the rights of an operator are
//! enough for them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use lockset::Client;
use lockset_operator::Survey;
use lockset_testkit::{Cluster, Proxy, Redisson, Server, eventually, unique_name};
use serde_json::Value;

const SOON: Duration = Duration::from_secs(20);
const LONG: Duration = Duration::from_secs(300);

/// Runs the command on a thread, so that the test's own clients go on.
async fn lockset(url: &str, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockset"));
    command
        .args(args)
        .env("LOCKSET_URL", url)
        .env_remove("NO_COLOR");
    let run = tokio::task::spawn_blocking(move || command.output());
    run.await.unwrap().unwrap()
}

fn text(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).unwrap()
}

/// The objects, one a line; and that the verb ended with this status.
#[track_caller]
fn objects(output: &Output, status: i32) -> Vec<Value> {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(
        output.status.code(),
        Some(status),
        "{errors} {}",
        text(output)
    );
    let text = text(output);
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

async fn announcing(url: &str) -> Client {
    let builder = Client::builder(url).announce_every(Duration::from_millis(200));
    builder.build().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn list_finds_locks_among_thousands_of_other_keys() {
    let server = Server::start();
    let mut admin = server.admin().await;
    let fill = "for i = 1, 20000 do redis.call('HSET', 'user:' .. i, 'name', i) end \
        for i = 1, 3000 do redis.call('HSET', 's:' .. i, 'mode', 'dark') \
        redis.call('PEXPIRE', 's:' .. i, 600000) end";
    let _: () = redis::cmd("EVAL")
        .arg(fill)
        .arg(0)
        .query_async(&mut admin)
        .await
        .unwrap();
    let client = announcing(&server.url()).await;
    let guard = client.lock("order:7").fenced().lock().await.unwrap();
    let java = Redisson::connect(&server).await;
    assert_eq!(java.lock_acquire("order:8", 3, LONG).await, None);
    eventually(SOON, "the hold is announced", async || {
        let old = ["list", "--json", "--held-longer", "150ms", "order:*"];
        let found = objects(&lockset(&server.url(), &old).await, 0);
        found.len() == 1 && found[0]["name"] == "order:7"
    })
    .await;
    let all = lockset(&server.url(), &["list", "--json", "--budget", "50"]).await;
    let mut found = objects(&all, 0);
    found.sort_by_key(|lock| lock["name"].to_string());
    let [ours, javas] = &*found else {
        panic!("{found:?}")
    };
    let holder = &ours["holders"][0];
    assert_eq!(holder["id"], guard.holder_id());
    assert_eq!(holder["pid"], std::process::id());
    assert_eq!(holder["library"], "lockset");
    assert_eq!(ours["token"], guard.fencing_token().unwrap().get());
    assert_eq!(javas["holders"][0]["library"], Value::Null);
    let table = text(&lockset(&server.url(), &["list"]).await);
    assert!(table.starts_with("NAME     KIND"), "{table}");
    assert!(!table.contains('\x1b'), "no colours in a pipe: {table:?}");
    assert_eq!(table.lines().count(), 3, "{table}");
    guard.release().await.unwrap();
}

/// A counter whose last token is this many days old.
async fn counter(admin: &mut redis::aio::MultiplexedConnection, lock: &str, days: u64) {
    let now: (u64, u64) = redis::cmd("TIME").query_async(admin).await.unwrap();
    let then = (now.0 - days * 86_400) * 1_000_000;
    let mut set = redis::cmd("SET");
    set.arg(format!("redisson_lock_token:{lock}"));
    let () = set.arg(then - then % 64).query_async(admin).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_lists_and_purges_only_what_nobody_has_used() {
    let server = Server::start();
    let mut admin = server.admin().await;
    for (lock, days) in [("{old}", 100), ("{held}", 100), ("{newer}", 10)] {
        counter(&mut admin, lock, days).await;
    }
    let client = Client::connect(&server.url()).await.unwrap();
    let guard = client.lock("held").lock().await.unwrap();
    let token = || Survey::new(&client).tokens(Duration::from_secs(3600));
    let dry = lockset(&server.url(), &["tokens", "--older", "90d"]).await;
    let table = text(&dry);
    assert!(table.starts_with("NAME  TOKEN"), "{table}");
    assert!(
        table.contains("for ever  unused") && table.contains("in-use"),
        "{table}"
    );
    let said = String::from_utf8_lossy(&dry.stderr);
    assert!(said.contains("nothing was changed"), "{said}");
    assert!(
        said.contains("clock is not set back by more than 90d"),
        "{said}"
    );
    assert_eq!(token().next().await.unwrap().unwrap().len(), 3);

    let purge = ["tokens", "--older", "90d", "--purge", "--json"];
    let mut became = objects(&lockset(&server.url(), &purge).await, 0);
    became.sort_by_key(|counter| counter["name"].to_string());
    let [held, old] = &*became else {
        panic!("{became:?}")
    };
    assert_eq!(
        (&old["name"], &old["outcome"]),
        (&"old".into(), &"purged".into())
    );
    assert_eq!(
        (&old["purged"], &old["kept_ms"]),
        (&true.into(), &Value::Null)
    );
    assert_eq!(
        (&held["purged"], &held["outcome"]),
        (&false.into(), &"in-use".into())
    );
    assert!(old["unused_ms"].as_u64() >= Some(100 * 86_400_000), "{old}");
    let left = token().next().await.unwrap().unwrap();
    assert_eq!(left.len(), 2, "{left:?}");
    let brief = lockset(&server.url(), &["tokens", "--older", "10m"]).await;
    assert_eq!(brief.status.code(), Some(64));
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn show_tells_all_of_one_lock_and_whether_it_is_free() {
    let server = Server::start();
    let [holder, waiter] = [
        announcing(&server.url()).await,
        announcing(&server.url()).await,
    ];
    let guard = holder.fair_lock("desk").lock().await.unwrap();
    let waits = tokio::spawn({
        let lock = waiter.fair_lock("desk");
        async move { lock.lock().await.map(drop) }
    });
    let java = Redisson::connect(&server).await;
    eventually(SOON, "ours waits", async || {
        holder.fair_lock("desk").waiters().await.unwrap().len() == 1
    })
    .await;
    java.fair_acquire("desk", 5, LONG, LONG).await;
    let shown = lockset(&server.url(), &["show", "desk", "--json"]).await;
    let shown = objects(&shown, 0).remove(0);
    assert_eq!(shown["kind"], "fair");
    assert_eq!(shown["waiters"], 2);
    assert_eq!(shown["queue"][0]["heartbeat"], true);
    assert_eq!(shown["queue"][1]["heartbeat"], false);
    assert_eq!(shown["queue"][1]["id"], java.holder(5));
    let people = text(&lockset(&server.url(), &["show", "desk"]).await);
    assert!(people.contains("2, of whom in this order:"), "{people}");
    assert!(people.contains("Redisson, place kept"), "{people}");
    let contended = lockset(&server.url(), &["list", "--contended", "--json"]).await;
    assert_eq!(objects(&contended, 0)[0]["name"], "desk");
    let free = lockset(&server.url(), &["show", "nobody", "--json"]).await;
    assert_eq!(objects(&free, 1)[0]["free"], true);
    let mut admin = server.admin().await;
    let hash = ["user:1", "name", "x"];
    let _: () = redis::cmd("HSET")
        .arg(&hash)
        .query_async(&mut admin)
        .await
        .unwrap();
    let foreign = lockset(&server.url(), &["show", "user:1"]).await;
    assert_eq!(foreign.status.code(), Some(65), "{foreign:?}");
    waits.abort();
    drop(guard);
}

#[tokio::test(flavor = "multi_thread")]
async fn permits_and_leaders_are_listed_and_shown() {
    let server = Server::start();
    let client = announcing(&server.url()).await;
    let seats = client.semaphore("seats").permits(3);
    let two = seats.many(2).acquire().await.unwrap();
    let election = client.election("scheduler").value("10.0.0.7");
    let leadership = election.campaign().await.unwrap();
    let mut found = objects(&lockset(&server.url(), &["list", "--json"]).await, 0);
    found.sort_by_key(|lock| lock["name"].to_string());
    let [leader, semaphore] = &*found else {
        panic!("{found:?}")
    };
    assert_eq!(
        (&leader["kind"], &leader["value"]),
        (&"election".into(), &"10.0.0.7".into())
    );
    assert_eq!(leader["token"], leadership.token().get());
    assert_eq!(
        (&semaphore["kind"], &semaphore["free_permits"]),
        (&"semaphore".into(), &1.into())
    );
    assert_eq!(semaphore["holders"].as_array().unwrap().len(), 2);
    assert_eq!(semaphore["holders"][0]["mode"], "permit");
    assert!(semaphore["holders"][0]["remaining_ms"].as_u64() > Some(1000));
    let table = text(&lockset(&server.url(), &["list"]).await);
    assert!(
        table.contains("semaphore") && table.contains("2/3"),
        "{table}"
    );
    let people = text(&lockset(&server.url(), &["show", "seats"]).await);
    assert!(people.contains("2 of 3 permits taken, 1 free"), "{people}");
    assert_eq!(people.matches("held").count(), 2, "{people}");
    let people = text(&lockset(&server.url(), &["show", "scheduler"]).await);
    assert!(people.contains("10.0.0.7"), "{people}");
    two.release().await.unwrap();
    leadership.resign().await.unwrap();
    // A semaphore with all its permits looks like any number.
    let unused = lockset(&server.url(), &["show", "seats"]).await;
    assert_eq!(unused.status.code(), Some(65), "{unused:?}");
    let said = String::from_utf8(unused.stderr).unwrap();
    assert!(
        said.contains("a semaphore with 3 permits, all free"),
        "{said}"
    );
}

/// It has the form of a lock, and its end would be the end of a permit.
#[tokio::test(flavor = "multi_thread")]
async fn the_holders_of_a_plain_semaphore_are_no_lock() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let seats = client.plain_semaphore("seats").permits(1);
    let permit = seats.acquire().await.unwrap();
    let key = "lockset_sem_holds:{seats}";
    let counted = server.keys().await.contains(&key.to_owned());
    assert!(counted, "the holders are counted there");
    let listed = lockset(&server.url(), &["list", "--json"]).await;
    let listed = objects(&listed, 0);
    let listed: Vec<_> = listed.iter().map(|it| (&it["name"], &it["kind"])).collect();
    assert_eq!(listed, [(&"seats".into(), &"plain-semaphore".into())]);
    for arguments in [
        &["show", key][..],
        &["wait", key, "--timeout", "0"],
        &["free", key, "--reason", "test", "--yes"],
        &["release", key, "--holder", "nobody:1"],
    ] {
        let refused = lockset(&server.url(), arguments).await;
        assert_eq!(refused.status.code(), Some(65), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("plain semaphore \"seats\""), "{said}");
    }
    permit.release().await.unwrap();
    assert_eq!(seats.available().await.unwrap(), 1);
}

/// The number says what is left, and the notes who of lockset has permits. Of Redisson's nothing is known.
#[tokio::test(flavor = "multi_thread")]
async fn permits_of_a_plain_semaphore_are_shown_as_far_as_they_are_noted() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("app:").build();
    let client = client.await.unwrap();
    let seats = client.plain_semaphore("seats").permits(3).many(2);
    let permits = seats.acquire().await.unwrap();
    let run = async |arguments: &[&str]| {
        let all = [&["--prefix", "app:"], arguments].concat();
        lockset(&server.url(), &all).await
    };
    for verb in [&["list", "--json"][..], &["show", "seats", "--json"]] {
        let found = objects(&run(verb).await, 0).remove(0);
        assert_eq!(
            (&found["kind"], &found["free_permits"]),
            (&"plain-semaphore".into(), &1.into())
        );
        let holders = found["holders"].as_array().unwrap();
        assert_eq!((holders.len(), &holders[0]["count"]), (1, &2.into()));
        assert_eq!(holders[0]["library"], "lockset");
        // It has no lease that could run out.
        assert!(found["remaining_ms"].is_null(), "{found}");
        assert!(holders[0]["remaining_ms"].is_null(), "{found}");
    }
    let rows = text(&run(&["list"]).await);
    assert!(
        rows.contains("plain-semaphore") && rows.contains("1 free"),
        "{rows}"
    );
    let cells = rows.lines().nth(1).unwrap().split_whitespace().rev();
    assert_eq!(cells.take(4).collect::<Vec<_>>(), ["-", "0", "-", "-"]);
    // Redisson takes the last one.
    let mut java = redis::cmd("INCRBY");
    java.arg("app:seats").arg(-1);
    let () = java.query_async(&mut server.admin().await).await.unwrap();
    let people = text(&run(&["show", "seats"]).await);
    let said = "0 permits free, 2 taken by clients of lockset; what Redisson has is not noted";
    assert!(
        people.contains(said) && people.contains(", 2 permits"),
        "{people}"
    );
    assert!(!people.contains("lease"), "it has none: {people}");
    make_operator(&server).await;
    for url in [server.url(), as_operator(&server.url())] {
        let wait = ["--prefix", "app:", "wait", "seats", "--timeout", "0"];
        let refused = lockset(&url, &wait).await;
        assert_eq!(refused.status.code(), Some(65), "{refused:?}");
    }
    for verb in [
        &["free", "seats", "--reason", "test", "--yes"][..],
        &["release", "seats", "--holder", "nobody:1"],
    ] {
        let refused = run(verb).await;
        assert_eq!(refused.status.code(), Some(65), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(
            said.contains("a plain semaphore with 0 permits left"),
            "{said}"
        );
    }
    // One that waits shows the semaphore, and not who has the rest.
    permits.release().await.unwrap();
    let mut rest = redis::cmd("INCRBY");
    rest.arg("app:seats").arg(-2);
    let () = rest.query_async(&mut server.admin().await).await.unwrap();
    let waits = tokio::spawn(async move { seats.acquire().await.map(drop) });
    let listed = async || objects(&run(&["list", "--contended", "--json"]).await, 0);
    eventually(SOON, "it waits", async || !listed().await.is_empty()).await;
    let people = text(&run(&["show", "seats"]).await);
    assert!(people.contains("0 permits free\n"), "{people}");
    let shown = objects(&run(&["show", "seats", "--json"]).await, 0).remove(0);
    assert_eq!(shown["free"], false, "{shown}");
    let waited = run(&["wait", "seats", "--timeout", "0"]).await;
    assert_eq!(waited.status.code(), Some(65), "{waited:?}");
    waits.abort();
    // All are Java's, and no call waits.
    eventually(SOON, "it waits no longer", async || {
        listed().await.is_empty()
    })
    .await;
    let shown = run(&["show", "seats"]).await;
    assert_eq!(shown.status.code(), Some(65), "{shown:?}");
    let said = String::from_utf8(shown.stderr).unwrap();
    assert!(
        said.contains("a plain semaphore with no permit left"),
        "{said}"
    );
    assert!(!said.contains("all free"), "{said}");
}

/// Of the kind with leases and of the plain kind. A client that uses it keeps it, and makes it again afterwards.
#[tokio::test(flavor = "multi_thread")]
async fn a_semaphore_is_purged_once_nobody_has_or_wants_a_permit() {
    let server = Server::start();
    let (client, other) = (
        announcing(&server.url()).await,
        announcing(&server.url()).await,
    );
    make_operator(&server).await;
    let purge = async |url: &str, name: &str, permits: &str, more: &[&str], status: i32| {
        let verb = ["purge", name, "--permits", permits, "--json"];
        let ended = lockset(url, &[&verb[..], more].concat()).await;
        objects(&ended, status).remove(0)["outcome"]
            .to_string()
            .replace('"', "")
    };
    let (url, reader) = (server.url(), as_operator(&server.url()));
    let seats = client.semaphore("seats").permits(2);
    let plain = client.plain_semaphore("plain").permits(2);
    let permit = seats.acquire().await.unwrap();
    let noted = plain.acquire().await.unwrap();
    for name in ["seats", "plain"] {
        for (url, more) in [(&reader, &[][..]), (&url, &["--yes"])] {
            assert_eq!(purge(url, name, "2", more, 75).await, "in-use", "{name}");
        }
    }
    assert_eq!(purge(&url, "nothing", "2", &["--yes"], 0).await, "absent");
    let all = seats.clone().many(2);
    let waits = tokio::spawn({
        let all = other.semaphore("seats").permits(2).many(2);
        async move { all.acquire().await.unwrap().release().await }
    });
    eventually(SOON, "another one waits", async || {
        other.stats().totals.waits == 1
    })
    .await;
    permit.release().await.unwrap();
    waits.await.unwrap().unwrap();
    noted.release().await.unwrap();
    for name in ["seats", "plain"] {
        let unused = async |outcome| {
            eventually(SOON, "nobody is subscribed", async || {
                let verb = ["purge", name, "--permits", "2", "--json"];
                text(&lockset(&reader, &verb).await).contains(outcome)
            })
            .await;
        };
        unused("unused").await;
        for (url, more) in [(&reader, &[][..]), (&url, &["--yes"])] {
            assert_eq!(
                purge(url, name, "3", more, 1).await,
                "other-number",
                "{name}"
            );
        }
        let refused = lockset(&reader, &["purge", name, "--permits", "2", "--yes"]).await;
        assert_eq!(refused.status.code(), Some(77), "{refused:?}");
        assert!(server.keys().await.contains(&name.to_owned()));
        assert_eq!(purge(&url, name, "2", &["--yes"], 0).await, "purged");
        assert!(!server.keys().await.contains(&name.to_owned()));
        unused("absent").await;
    }
    // As if they had never been made.
    assert!(
        client
            .semaphore("seats")
            .try_acquire()
            .await
            .unwrap_err()
            .is_invalid()
    );
    all.acquire().await.unwrap().release().await.unwrap();
    plain.acquire().await.unwrap().release().await.unwrap();
    assert_eq!(plain.available().await.unwrap(), 2);
    // A key that is no number, and a latch that was opened before.
    let mut write = redis::cmd("HSET");
    write.arg(&["user", "name", "x"]);
    let () = write.query_async(&mut server.admin().await).await.unwrap();
    for more in [&[][..], &["--yes"]] {
        let verb = [&["purge", "user", "--permits", "1"], more].concat();
        let refused = lockset(&url, &verb).await;
        assert_eq!(refused.status.code(), Some(65), "{refused:?}");
    }
    let latch = client.latch("gate");
    assert!(latch.init(1).await.unwrap());
    latch.count_down().await.unwrap();
    assert!(latch.init(2).await.unwrap());
    assert_eq!(purge(&url, "gate", "2", &["--yes"], 75).await, "in-use");
    assert_eq!(latch.count().await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_parties_of_a_barrier_are_shown_while_they_wait() {
    let server = Server::start();
    let client = announcing(&server.url()).await;
    let mut admin = server.admin().await;
    for foreign in [
        &["SET", "lockset_barrier:{other}", "3"][..],
        &[
            "ZADD",
            "lockset_barrier_arrived:{other}",
            "9000000000000",
            "user:7",
        ],
        &["SET", "lockset_barrier:{alone}", "3"],
    ] {
        let mut write = redis::cmd(foreign[0]);
        let () = write
            .arg(&foreign[1..])
            .query_async(&mut admin)
            .await
            .unwrap();
    }
    let tasks = ["worker-1", "worker-2"].map(|party| {
        let barrier = client.barrier("step{1}", 3).party(party);
        tokio::spawn(async move { barrier.wait().await })
    });
    for verb in [&["list", "--json"][..], &["list", "--contended", "--json"]] {
        eventually(SOON, "both have come", async || {
            let found = objects(&lockset(&server.url(), verb).await, 0);
            let is_it = |found: &Value| found["name"] == "step{1}" && found["waiters"] == 2;
            found.len() == 1 && is_it(&found[0]) && found[0]["parties"] == 3
        })
        .await;
    }
    let rows = text(&lockset(&server.url(), &["list"]).await);
    assert!(rows.contains("barrier") && rows.contains("2/3"), "{rows}");
    let shown = lockset(&server.url(), &["show", "step{1}", "--json"]).await;
    let shown = objects(&shown, 0).remove(0);
    assert_eq!(
        (&shown["kind"], &shown["key"]),
        (&"barrier".into(), &"lockset_barrier::step{1}".into())
    );
    assert_eq!(shown["free"], false, "{shown}");
    let queue = shown["queue"].as_array().unwrap();
    assert_eq!((queue.len(), &queue[0]["mode"]), (2, &"party".into()));
    assert!(queue[0]["kept_ms"].as_u64() > Some(0), "{shown}");
    let people = text(&lockset(&server.url(), &["show", "step{1}"]).await);
    assert!(people.contains("2 of 3 parties have come"), "{people}");
    assert!(
        people.contains("worker-1") && people.contains("worker-2"),
        "{people}"
    );
    for other in ["other", "alone"] {
        let free = lockset(&server.url(), &["show", other]).await;
        assert_eq!(free.status.code(), Some(1), "{free:?}");
    }
    client.barrier("step{1}", 3).wait().await.unwrap();
    for task in tasks {
        task.await.unwrap().unwrap();
    }
    let over = lockset(&server.url(), &["show", "step{1}"]).await;
    assert_eq!(over.status.code(), Some(1), "{over:?}");
}

/// Another one renews the lock, and the dead one is no holder of it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_lease_has_ended_is_not_shown() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let java = Redisson::connect(&server).await;
    for thread in 1..=2 {
        assert_eq!(java.read_acquire("config", thread, LONG).await, None);
    }
    let reader = client.rw_lock("config").read().await.unwrap();
    let lease = format!("{{config}}:{}:rwlock_timeout:1", java.holder(1));
    let mut end = redis::cmd("DEL");
    let ended: i64 = end
        .arg(lease)
        .query_async(&mut server.admin().await)
        .await
        .unwrap();
    assert_eq!(ended, 1);
    let mut expected = [java.holder(2), reader.holder_id().to_owned()];
    expected.sort();
    for verb in [&["list", "--json"][..], &["show", "config", "--json"]] {
        let found = objects(&lockset(&server.url(), verb).await, 0);
        let holders = found[0]["holders"].as_array().unwrap().iter();
        let holders: Vec<&str> = holders.map(|one| one["id"].as_str().unwrap()).collect();
        assert_eq!(holders, expected, "{verb:?}");
    }
    // To a user who may not read the leases, all are shown.
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "blind", "on", ">pass", "allchannels", "+@all"]);
    user.arg(&["~config", "~lockset_*", "~redisson_*"]);
    let () = user.query_async(&mut server.admin().await).await.unwrap();
    let url = as_operator(&server.url()).replace("operator:", "blind:");
    let found = objects(&lockset(&url, &["list", "--json"]).await, 0);
    assert_eq!(found[0]["holders"].as_array().unwrap().len(), 3);
    reader.release().await.unwrap();
}

/// Their number at the server is too small until the next one asks.
#[tokio::test(flavor = "multi_thread")]
async fn permits_whose_leases_have_ended_are_free() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    let seats = client.semaphore("seats").permits(1);
    let lost = seats.acquire().await.unwrap();
    let id = lost.holder_ids().next().unwrap().to_owned();
    let mut end = redis::cmd("ZADD");
    end.arg("{seats}:timeout").arg("XX").arg(1000).arg(id);
    let () = end.query_async(&mut server.admin().await).await.unwrap();
    let listed = lockset(&server.url(), &["list", "--json"]).await;
    assert_eq!(objects(&listed, 0), [Value::Null; 0]);
    let shown = lockset(&server.url(), &["show", "seats"]).await;
    assert_eq!(shown.status.code(), Some(1), "{shown:?}");
    let said = text(&shown);
    assert!(
        said.contains("a semaphore with 1 permit, all free"),
        "{said}"
    );
    let shown = lockset(&server.url(), &["show", "seats", "--json"]).await;
    assert_eq!(objects(&shown, 1)[0]["free_permits"], 1);
    make_operator(&server).await;
    for url in [server.url(), as_operator(&server.url())] {
        let waited = lockset(&url, &["wait", "seats", "--timeout", "0"]).await;
        assert_eq!(waited.status.code(), Some(0), "{waited:?}");
    }
    let freed = ["free", "seats", "--reason", "test", "--yes"];
    let freed = lockset(&server.url(), &freed).await;
    assert_eq!(freed.status.code(), Some(0), "{freed:?}");
}

/// An operator cannot choose another name.
#[tokio::test(flavor = "multi_thread")]
async fn an_operator_learns_what_a_number_may_be() {
    let server = Server::start();
    let client = Client::connect(&server.url()).await.unwrap();
    assert!(client.latch("done").init(2).await.unwrap());
    for arguments in [
        &["show", "done"][..],
        &["wait", "done", "--timeout", "0"],
        &["free", "done", "--reason", "test", "--yes"],
        &["release", "done", "--holder", "nobody:1"],
    ] {
        let refused = lockset(&server.url(), arguments).await;
        assert_eq!(refused.status.code(), Some(65), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("a latch with 2 to count down"), "{said}");
        assert!(!said.contains("choose another name"), "{said}");
    }
    // Also if it is waited for, and of a user who may only read.
    let waits = tokio::spawn({
        let latch = client.latch("done");
        async move { latch.wait().await }
    });
    let survey = Survey::new(&client);
    eventually(SOON, "it is waited for", async || {
        survey.inspect("done").await.unwrap().is_some()
    })
    .await;
    make_operator(&server).await;
    for url in [server.url(), as_operator(&server.url())] {
        let refused = lockset(&url, &["wait", "done", "--timeout", "0"]).await;
        assert_eq!(refused.status.code(), Some(65), "{refused:?}");
        let said = String::from_utf8(refused.stderr).unwrap();
        assert!(said.contains("but a latch with 2"), "{said}");
    }
    waits.abort();
}

/// The other permits stay taken, and the holder learns why its own was.
#[tokio::test(flavor = "multi_thread")]
async fn a_permit_is_taken_away_from_its_holder() {
    let server = Server::start();
    let (freed, mut reasons) = tokio::sync::mpsc::unbounded_channel();
    let observer = move |event: &lockset::Event<'_>| {
        if let lockset::Event::Freed { reason, .. } = event {
            let _ = freed.send(reason.to_string());
        }
    };
    let client = Client::builder(&server.url()).lease(Duration::from_secs(3));
    let client = client.observer(observer).build().await.unwrap();
    let seats = client.semaphore("seats").permits(2);
    let (taken, kept) = (
        seats.acquire().await.unwrap(),
        seats.acquire().await.unwrap(),
    );
    let id = taken.holder_ids().next().unwrap().to_owned();
    let because = |verb: &'static str| [verb, "seats", "--reason", "the host was replaced"];
    let release = [&because("release")[..], &["--holder", &id]].concat();
    let said = text(&lockset(&server.url(), &release).await);
    assert!(said.contains("no longer"), "{said}");
    assert_eq!(taken.lost().await, lockset::LostReason::Revoked);
    assert_eq!(reasons.recv().await.unwrap(), "the host was replaced");
    assert!(!kept.is_lost());
    assert_eq!(seats.available().await.unwrap(), 1);
    let again = lockset(&server.url(), &release).await;
    assert_eq!(again.status.code(), Some(1), "{again:?}");
    let free = [&because("free")[..], &["--yes"]].concat();
    let said = text(&lockset(&server.url(), &free).await);
    assert!(said.contains("freed"), "{said}");
    assert_eq!(kept.lost().await, lockset::LostReason::Revoked);
    assert_eq!(seats.available().await.unwrap(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_is_found_by_its_whole_key_too() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("shop:").build();
    let client = client.await.unwrap();
    let guard = client.lock("show:1").lock().await.unwrap();
    let seen = async |name: &str| {
        let verb = ["--prefix", "shop:", "show", name];
        text(&lockset(&server.url(), &verb).await)
    };
    for name in ["show:1", "shop:show:1"] {
        let people = seen(name).await;
        assert!(people.starts_with("show:1\n"), "{people}");
        assert!(people.contains("shop:show:1"), "{people}");
    }
    let waited = [
        "--prefix",
        "shop:",
        "wait",
        "shop:show:1",
        "--timeout",
        "1ms",
    ];
    let waited = lockset(&server.url(), &waited).await;
    assert_eq!(waited.status.code(), Some(75), "{waited:?}");
    // A lock of this very name comes first.
    let twin = client.lock("shop:show:1").lock().await.unwrap();
    let people = seen("shop:show:1").await;
    assert!(people.starts_with("shop:show:1\n"), "{people}");
    twin.release().await.unwrap();
    let free = [
        "--prefix",
        "shop:",
        "free",
        "shop:show:1",
        "--yes",
        "--reason",
        "old",
    ];
    let freed = lockset(&server.url(), &free).await;
    assert_eq!(freed.status.code(), Some(0), "{freed:?}");
    assert!(!client.lock("show:1").is_locked().await.unwrap());
    drop(guard);
}

/// What docs/rights.md gives an operator, on one server and on a cluster's nodes.
fn rights_of_an_operator() -> Vec<String> {
    rights_in("Operators")
}

/// The rights of the user in a section of docs/rights.md.
fn rights_in(heading: &str) -> Vec<String> {
    let page = include_str!("../../docs/rights.md");
    let (_, section) = page
        .split_once(&format!("## {heading}\n"))
        .expect("the section");
    let block = section
        .split("```sh\n")
        .nth(1)
        .and_then(|rest| rest.split("```").next());
    let words = block.expect("the command").split_whitespace();
    let words = words.map(|word| word.replace(['\'', '\\'], ""));
    let rights = words.filter(|word| word.len() > 1 && word.starts_with(['+', '~', '%', '&']));
    rights.collect()
}

async fn make_operator(server: &Server) {
    make_user(server, rights_of_an_operator()).await;
}

/// Makes the user that `as_operator` connects as, with these rights.
async fn make_user(server: &Server, rights: Vec<String>) {
    let mut admin = server.admin().await;
    let mut user = redis::cmd("ACL");
    user.arg(&[
        "SETUSER",
        "operator",
        "reset",
        "on",
        ">pass",
        "resetchannels",
        "-@all",
    ]);
    let _: () = user.arg(rights).query_async(&mut admin).await.unwrap();
}

fn as_operator(url: &str) -> String {
    let (scheme, rest) = url.split_once("://").unwrap();
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    format!("{scheme}://operator:pass@{hosts}")
}

/// The scripts also look at the lock that shares helper keys with this one.
#[tokio::test(flavor = "multi_thread")]
async fn the_user_of_a_program_purges_with_the_rights_that_the_page_adds() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("app:").build();
    let client = client.await.unwrap();
    let seats = client.semaphore("seats").permits(2);
    seats.acquire().await.unwrap().release().await.unwrap();
    client.shutdown().await.unwrap();
    counter(&mut server.admin().await, "{app:old}", 100).await;
    let url = as_operator(&server.url());
    let purge = ["purge", "seats", "--permits", "2", "--yes"];
    let tokens = ["tokens", "--purge"];
    let add = |more: &[&str]| {
        let more = more.iter().map(|right| (*right).to_owned());
        rights_in("One server").into_iter().chain(more).collect()
    };
    let (numsub, scan, twin) = ("+pubsub|numsub", "+scan", "~{app:*}");
    let page = include_str!("../../docs/rights.md").replace('\\', "");
    let (_, section) = page.split_once("## Operators\n").unwrap();
    for right in [numsub, scan, twin] {
        assert!(section.contains(&format!("`{right}`")), "{right}");
    }
    for (verb, rights, status) in [
        (&purge[..], &[numsub][..], 77),
        (&purge, &[twin], 77),
        (&purge, &[numsub, twin], 0),
        (&tokens, &[numsub, scan], 77),
        (&tokens, &[scan, twin], 77),
        (&tokens, &[numsub, twin], 77),
        (&tokens, &[numsub, scan, twin], 0),
    ] {
        make_user(&server, add(rights)).await;
        let ended = lockset(&url, &[&["--prefix", "app:"], verb].concat()).await;
        assert_eq!(
            ended.status.code(),
            Some(status),
            "{verb:?} {rights:?} {ended:?}"
        );
    }
    assert_eq!(server.keys().await, Vec::<String>::new());
}

async fn denials(server: &Server) -> Vec<redis::Value> {
    let mut log = redis::cmd("ACL");
    log.arg("LOG")
        .query_async(&mut server.admin().await)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_rights_of_an_operator_are_enough_and_take_nothing() {
    let server = Server::start();
    make_operator(&server).await;
    let client = announcing(&server.url()).await;
    let guard = client.rw_lock("rw").read().await.unwrap();
    let seat = client
        .semaphore("seats")
        .permits(1)
        .acquire()
        .await
        .unwrap();
    counter(&mut server.admin().await, "{old}", 100).await;
    let url = as_operator(&server.url());
    for verb in [
        &["list", "--json"][..],
        &["list", "--contended"],
        &["show", "rw"],
        &["show", "seats"],
        &["tokens"],
        &["doctor", "--json"],
    ] {
        let output = lockset(&url, verb).await;
        // It may not take locks, which is what `doctor` says.
        let status = i32::from(verb[0] == "doctor");
        assert_eq!(output.status.code(), Some(status), "{verb:?} {output:?}");
    }
    let denied = denials(&server).await;
    assert!(denied.is_empty(), "{denied:?}");
    // These run a script that names the key first, which a user who may only read may not.
    for (verb, status) in [
        (&["show", "nobody"][..], 1),
        (&["wait", "nobody"], 0),
        (&["wait", "rw", "--timeout", "1ms"], 75),
    ] {
        let output = lockset(&url, verb).await;
        assert_eq!(output.status.code(), Some(status), "{verb:?} {output:?}");
    }
    // A key that is no lock is not free, nor is a lock without a lease.
    let mut admin = server.admin().await;
    let _: () = redis::cmd("SET")
        .arg("other")
        .arg(1)
        .query_async(&mut admin)
        .await
        .unwrap();
    let endless = client.lock("endless").lock().await.unwrap();
    let _: () = redis::cmd("PERSIST")
        .arg("endless")
        .query_async(&mut admin)
        .await
        .unwrap();
    for verb in [
        &["show", "other"],
        &["wait", "other"],
        &["show", "endless"],
        &["wait", "endless"],
    ] {
        let output = lockset(&url, verb).await;
        assert_eq!(output.status.code(), Some(65), "{verb:?} {output:?}");
    }
    drop(endless);
    let purged = lockset(&url, &["tokens", "--purge"]).await;
    assert_eq!(purged.status.code(), Some(77), "{purged:?}");
    assert!(
        server
            .keys()
            .await
            .contains(&"redisson_lock_token:{old}".to_owned())
    );
    let taken = Client::connect(&url)
        .await
        .unwrap()
        .lock("x")
        .try_lock()
        .await;
    assert!(taken.unwrap_err().is_denied());
    drop((guard, seat));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_with_narrower_patterns_sees_the_locks_of_its_prefix() {
    let server = Server::start();
    let client = Client::builder(&server.url()).key_prefix("app:").build();
    let client = client.await.unwrap();
    let _seat = client
        .semaphore("seats")
        .permits(2)
        .acquire()
        .await
        .unwrap();
    let _plain = client
        .plain_semaphore("plain")
        .permits(2)
        .acquire()
        .await
        .unwrap();
    let _reader = client.rw_lock("rw").read().await.unwrap();
    let page = include_str!("../../docs/rights.md");
    let (_, narrower) = page.split_once("With a narrower pattern than").unwrap();
    let narrower = narrower.split("too;").next().unwrap();
    let patterns = narrower
        .split("`'")
        .skip(1)
        .map(|rest| rest.split("'`").next().unwrap());
    let patterns: Vec<String> = patterns.map(str::to_owned).collect();
    let (last, rest) = patterns.split_last().unwrap();
    let names = async |patterns: &[String]| {
        let mut rights = rights_of_an_operator();
        rights.retain(|right| right != "%R~*");
        rights.extend_from_slice(patterns);
        make_user(&server, rights).await;
        let list = ["--prefix", "app:", "list", "--json"];
        let listed = lockset(&as_operator(&server.url()), &list).await;
        let mut names: Vec<_> = objects(&listed, 0)
            .iter()
            .map(|it| it["name"].to_string())
            .collect();
        names.sort();
        names.join(" ")
    };
    assert_eq!(names(&patterns).await, r#""plain" "rw" "seats""#);
    assert_eq!(
        (last.as_str(), names(rest).await),
        ("%R~{app:*}:timeout", r#""plain" "rw""#.to_owned())
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_waits_for_the_permits_of_a_semaphore() {
    let server = Server::start();
    make_operator(&server).await;
    let client = Client::connect(&server.url()).await.unwrap();
    // Not renewed within the test.
    let semaphore = client.semaphore("seats").permits(1).lease(LONG);
    let permit = semaphore.acquire().await.unwrap();
    let url = as_operator(&server.url());
    let reads = async || server.commandstats().await.get("zrange").copied();
    let before = reads().await.unwrap_or_default();
    let look = ["wait", "seats", "--timeout", "0"];
    assert_eq!(lockset(&url, &look).await.status.code(), Some(75));
    let looked = reads().await.expect("it reads the permits");
    let waits = ["wait", "seats", "--timeout", "60s"];
    let release = async {
        eventually(SOON, "it has seen the permit", async || {
            reads().await.unwrap_or_default() - looked >= looked - before
        })
        .await;
        permit.release().await.unwrap();
    };
    let (waited, ()) = tokio::join!(lockset(&url, &waits), release);
    assert_eq!(waited.status.code(), Some(0), "{waited:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster_is_listed_and_checked_node_by_node() {
    let cluster = Cluster::shared().await;
    for node in cluster.nodes() {
        make_operator(node).await;
    }
    let client = announcing(&cluster.url()).await;
    let tag = unique_name("cli");
    let names = [0, 1, 2, 3, 4, 5].map(|number| format!("{tag}:{number}"));
    let mut guards = Vec::new();
    for name in &names {
        guards.push(client.lock(name).lock().await.unwrap());
    }
    let url = as_operator(&cluster.url());
    let listed = lockset(&url, &["list", "--json", &format!("{tag}:*")]).await;
    assert_eq!(objects(&listed, 0).len(), names.len());
    let shown = lockset(&url, &["show", "--json", &names[0]]).await;
    assert!(objects(&shown, 0)[0]["remaining_ms"].is_u64());
    let checked = lockset(
        &cluster.url(),
        &["doctor", "--json", "--names", &names.join(",")],
    )
    .await;
    let checks = objects(&checked, 0);
    let reached = checks.iter().filter(|check| check["check"] == "connect");
    assert_eq!(reached.count(), cluster.primaries().await.len());
    let slots = checks
        .iter()
        .find(|check| check["check"] == "slots")
        .unwrap();
    assert_eq!(slots["verdict"], "warn");
    // The case of a scheme means nothing.
    let upper = cluster.url().replacen("redis+cluster", "Redis+Cluster", 1);
    let checked = lockset(&upper, &["doctor", "--json"]).await;
    let roles = objects(&checked, 0);
    let roles = roles.iter().filter(|check| check["check"] == "role");
    let verdicts: Vec<_> = roles.map(|role| &role["verdict"]).collect();
    assert!(!verdicts.is_empty(), "{checked:?}");
    assert!(
        verdicts.iter().all(|verdict| *verdict == "ok"),
        "{checked:?}"
    );
}

/// Some slots are lost, and the cluster serves the rest.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_hides_no_other() {
    let partial = ["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::builder().replicas(0).args(partial).start().await;
    let url = cluster.url();
    let client = announcing(&url).await;
    let mut guards = Vec::new();
    for number in 0..30 {
        let name = format!("a:{number}");
        guards.push(client.lock(&name).lock().await.unwrap());
    }
    let dead = cluster.node(0);
    let mut others = Vec::new();
    for guard in &guards {
        if cluster.primary_of(guard.name()).await.addr() != dead.addr() {
            others.push(guard.name().to_owned());
        }
    }
    dead.kill();
    let [checked, listed, for_people] =
        [&["doctor", "--json"][..], &["list", "--json"], &["list"]].map(|args| lockset(&url, args));
    let (checked, listed, for_people) = tokio::join!(checked, listed, for_people);
    let checks = objects(&checked, 1);
    let address = dead.addr().to_string();
    let of_it = checks.iter().filter(|check| check["server"] == *address);
    let of_it: Vec<_> = of_it.map(|it| (&it["check"], &it["verdict"])).collect();
    assert_eq!(of_it, [(&"connect".into(), &"fail".into())], "{checks:?}");
    for check in ["connect", "version", "rights"] {
        let is_ok = |it: &&Value| it["check"] == check && it["verdict"] == "ok";
        assert_eq!(checks.iter().filter(is_ok).count(), 2, "{checks:?}");
    }
    let found = objects(&listed, 69);
    let found: Vec<_> = found
        .iter()
        .filter_map(|lock| lock["name"].as_str())
        .collect();
    let is_found = |name: &String| found.contains(&&**name);
    assert!(others.iter().all(is_found), "{others:?} {found:?}");
    let rows = text(&for_people);
    assert_eq!(for_people.status.code(), Some(69), "{rows}");
    let has_row = |name: &String| rows.contains(&format!("{name} "));
    assert!(others.iter().all(has_row), "{others:?} {rows}");
    for output in [&listed, &for_people] {
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            (said.lines().count(), said.contains(&address)),
            (1, true),
            "{said}"
        );
    }
}

/// Waiters by their channels, counters by a pass, and a view that goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_is_away_hides_no_waiter_and_no_counter() {
    let partial = ["--cluster-require-full-coverage", "no"];
    let cluster = Cluster::builder().replicas(0).args(partial).start().await;
    let url = cluster.url();
    let (client, other) = (announcing(&url).await, announcing(&url).await);
    let dead = cluster.node(0);
    let (mut guards, mut others, mut waits) = (Vec::new(), Vec::new(), Vec::new());
    for number in 0..15 {
        let name = format!("a:{number}");
        guards.push(client.lock(&name).lock().await.unwrap());
        let node = cluster.primary_of(&name).await;
        counter(&mut node.admin().await, &format!("{{{name}}}"), 100).await;
        let lock = other.lock(&name);
        waits.push(tokio::spawn(async move { lock.lock().await.map(drop) }));
        if node.addr() != dead.addr() {
            others.push(name);
        }
    }
    assert!((1..15).contains(&others.len()), "{others:?}");
    let survey = Survey::new(&client);
    eventually(SOON, "all are waited for", async || {
        survey.contended().await.unwrap().len() == 15
    })
    .await;
    dead.kill();
    let address = dead.addr().to_string();
    let [listed, for_people, counters] = [
        &["list", "--contended", "--json"][..],
        &["list", "--contended"],
        &["tokens", "--json"],
    ]
    .map(|args| lockset(&url, args));
    let watched = watched(&url, &others);
    let (listed, for_people, counters, watched) =
        tokio::join!(listed, for_people, counters, watched);
    others.sort();
    for output in [&listed, &counters] {
        let found = objects(output, 69);
        let names = found.iter().map(|lock| lock["name"].as_str().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort_unstable();
        assert_eq!(names, others);
    }
    let rows = text(&for_people);
    let has_row = |name: &String| rows.contains(&format!("{name} "));
    assert!(others.iter().all(has_row), "{others:?} {rows}");
    for output in [&listed, &for_people, &counters] {
        let said = String::from_utf8_lossy(&output.stderr);
        let lines = (said.lines().count(), said.contains(&address));
        assert_eq!((output.status.code(), lines), (Some(69), (1, true)));
    }
    let trouble = watched["trouble"].as_str().unwrap();
    assert!(trouble.contains(&address), "{trouble}");
    waits.iter().for_each(tokio::task::JoinHandle::abort);
}

/// The first line of `top` that shows these locks.
async fn watched(url: &str, names: &[String]) -> Value {
    let mut top = Command::new(env!("CARGO_BIN_EXE_lockset"))
        .args(["top", "--json", "--budget", "50"])
        .env("LOCKSET_URL", url)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(top.stdout.take().unwrap()).lines();
    let names = names.to_vec();
    let shown = tokio::task::spawn_blocking(move || {
        for line in lines.take(20) {
            let seen: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let rows = seen["top"].as_array().unwrap();
            let is_shown = |name: &String| rows.iter().any(|row| row["name"] == **name);
            if names.iter().all(is_shown) {
                return Some(seen);
            }
        }
        None
    });
    let shown = tokio::time::timeout(SOON * 3, shown).await;
    top.kill().unwrap();
    top.wait().unwrap();
    shown
        .expect("in time")
        .unwrap()
        .expect("all locks of the others")
}

/// One that has announced itself, and was killed since.
#[tokio::test(flavor = "multi_thread")]
async fn show_tells_a_holder_that_is_not_connected() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    // It is seen for three times as long after its connections have ended.
    let builder = Client::builder(&proxy.url()).announce_every(Duration::from_secs(2));
    let client = builder.build().await.unwrap();
    let guard = client.lock("a").lock().await.unwrap();
    let pid = format!(" {} ", std::process::id());
    let shown = async || text(&lockset(&server.url(), &["show", "a"]).await);
    eventually(SOON, "announced", async || shown().await.contains(&pid)).await;
    assert!(!shown().await.contains("no connection"));
    proxy.refuse(true);
    proxy.cut();
    eventually(SOON, "the server has noticed", async || {
        let shown = shown().await;
        shown.contains(&pid) && shown.contains("no connection of it is seen")
    })
    .await;
    drop(guard);
}

/// To try a command that the server does not have is an error.
#[tokio::test]
async fn rights_are_checked_where_a_command_is_missing() {
    let without = ["--rename-command", "RESTORE", ""];
    let server = Server::builder().args(without).start();
    let mut user = redis::cmd("ACL");
    user.arg(&["SETUSER", "half", "on", ">pass", "~*", "&*", "+@all"]);
    let mut admin = server.admin().await;
    let _: () = user.arg("-hset").query_async(&mut admin).await.unwrap();
    let half = as_operator(&server.url()).replace("operator", "half");
    let checks = objects(&lockset(&half, &["doctor", "--json"]).await, 1);
    let rights = checks.iter().find(|check| check["check"] == "rights");
    let rights = rights.expect("they are checked");
    assert_eq!(rights["verdict"], "fail", "{rights}");
    assert_eq!(rights["advice"], "ACL SETUSER half '+hset'");
}

#[tokio::test(flavor = "multi_thread")]
async fn doctor_finds_what_is_wrong_and_says_what_to_do() {
    let server = Server::start();
    let verdict = async |name: &str, args: &[&str], url: &str, status: i32| {
        let output = lockset(url, &[&["doctor", "--json"], args].concat()).await;
        let checks = objects(&output, status);
        let check = checks.into_iter().find(|check| check["check"] == name);
        check.unwrap_or_else(|| panic!("{name}: {output:?}"))
    };
    let url = server.url();
    assert_eq!(verdict("eviction", &[], &url, 0).await["verdict"], "ok");
    let native_path = verdict("native path", &[], &url, 0).await;
    assert_eq!(native_path["verdict"], "ok", "{native_path}");
    let mut admin = server.admin().await;
    for setting in [
        ["CONFIG", "SET", "maxmemory", "100mb"],
        ["CONFIG", "SET", "maxmemory-policy", "volatile-lru"],
    ] {
        let mut set = redis::cmd(setting[0]);
        let _: () = set
            .arg(&setting[1..])
            .query_async(&mut admin)
            .await
            .unwrap();
    }
    let eviction = verdict("eviction", &[], &url, 1).await;
    assert_eq!(eviction["verdict"], "fail");
    assert!(eviction["advice"].as_str().unwrap().contains("noeviction"));
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("half").arg("on").arg(">pass");
    user.arg(&["~*", "&*", "+@all", "-hset", "-client|kill"]);
    let _: () = user.query_async(&mut admin).await.unwrap();
    let half = as_operator(&url).replace("operator", "half");
    let rights = verdict("rights", &[], &half, 1).await;
    assert_eq!(rights["verdict"], "fail");
    assert_eq!(rights["advice"], "ACL SETUSER half '+hset'");
    let people = text(&lockset(&half, &["doctor"]).await);
    assert!(
        people.contains("ACL SETUSER half '+client|kill'"),
        "{people}"
    );
    assert_eq!(verdict("waits", &[], &url, 1).await["verdict"], "ok");
    for (without, missing) in [("-subscribe", "'+subscribe'"), ("-publish", "'+publish'")] {
        let mut user = redis::cmd("ACL");
        user.arg("SETUSER")
            .arg("mute")
            .arg("reset")
            .arg("on")
            .arg(">pass");
        user.arg(&["~*", "&*", "+@all", without]);
        let _: () = user.query_async(&mut admin).await.unwrap();
        let mute = as_operator(&url).replace("operator", "mute");
        let waits = verdict("waits", &[], &mute, 1).await;
        assert_eq!(waits["verdict"], "warn", "{waits}");
        let advice = waits["advice"].as_str().unwrap();
        assert!(
            advice.contains(missing) && advice.contains("`.polled(..)`"),
            "{waits}"
        );
    }
    // A user who may not connect as programs do still sees the missing rights.
    let mut user = redis::cmd("ACL");
    user.arg("SETUSER").arg("weak").arg("on").arg(">pass");
    user.arg(&[
        "~*",
        "&*",
        "+@connection",
        "+info",
        "+acl|whoami",
        "+acl|dryrun",
    ]);
    let _: () = user.query_async(&mut admin).await.unwrap();
    let weak = as_operator(&url).replace("operator", "weak");
    let rights = verdict("rights", &[], &weak, 77).await;
    let advice = rights["advice"].as_str().unwrap();
    assert!(
        advice.starts_with("ACL SETUSER weak '+eval' '+evalsha' "),
        "{advice}"
    );

    // A wrong password is no matter of rights.
    let refused = weak.replace("pass", "wrong");
    let checks = objects(&lockset(&refused, &["doctor", "--json"]).await, 77);
    let names: Vec<_> = checks.iter().map(|check| &check["check"]).collect();
    assert_eq!(names, ["connect"], "{checks:?}");

    let mut set = async |name: &str, value: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        let _: () = set.query_async(&mut admin).await.unwrap();
    };
    set("maxmemory-policy", "noeviction").await;
    set("maxmemory", "1mb").await;
    assert_eq!(verdict("memory", &[], &url, 1).await["verdict"], "fail");
    set("maxmemory", "0").await;
    set("min-replicas-to-write", "1").await;
    let replicas = verdict("replicas", &[], &url, 1).await;
    assert!(
        replicas["advice"]
            .to_string()
            .contains("min-replicas-to-write"),
        "{replicas}"
    );
    server.kill();
    let away = lockset(&url, &["doctor", "--json"]).await;
    assert_eq!(away.status.code(), Some(69), "{away:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strict_doctor_ends_with_1_for_warnings_too() {
    let server = Server::start();
    let url = server.url();
    let ends_with = async |worst: &str, statuses: [i32; 2]| {
        let calls = [&["doctor", "--json"][..], &["doctor", "--json", "--strict"]];
        for (args, status) in calls.into_iter().zip(statuses) {
            let checks = objects(&lockset(&url, args).await, status);
            let verdicts = checks
                .iter()
                .map(|check| check["verdict"].as_str().unwrap());
            let order = ["ok", "warn", "fail"];
            let place = |verdict| order.iter().position(|other| *other == verdict);
            let found = verdicts.max_by_key(|verdict| place(*verdict));
            assert_eq!(found, Some(worst), "{checks:?}");
        }
    };
    let mut admin = server.admin().await;
    let mut set = async |name: &str, value: &str| {
        let mut set = redis::cmd("CONFIG");
        set.arg("SET").arg(name).arg(value);
        let _: () = set.query_async(&mut admin).await.unwrap();
    };
    // It has no append-only log.
    ends_with("warn", [0, 1]).await;
    set("appendonly", "yes").await;
    ends_with("ok", [0, 0]).await;
    set("maxmemory", "100mb").await;
    set("maxmemory-policy", "volatile-lru").await;
    ends_with("fail", [1, 1]).await;
    server.kill();
    ends_with("fail", [69, 69]).await;
}

//! Every verb on every topology, by users with passwords that nothing shows.

use futures_util::future::join_all;
use lockset::Client;
use lockset_testkit::{Cluster, Sentinels, Server, eventually};
use serde_json::Value;

use crate::place::{ENCODED, PASSWORD, Place, USER, is_discreet, make_user, with_login};
use crate::support::{BOUND, arguments, parent};

const HELD: &str = "echo $LOCKSET_HOLDER $LOCKSET_TOKEN; read x; exit 3";

/// The answer of each verb for a lock that is held, and for one that was.
pub(crate) async fn every_verb_works(place: &Place) {
    held(place).await;
    taken_away(place).await;
    several(place).await;
    claimed(place).await;
    checked(place).await;
}

async fn held(place: &Place) {
    let (name, all) = (&*place.name("held"), &*place.name("*"));
    let mut running = place.start(&["run", name, "--fenced", "--", "sh", "-c", HELD]);
    let line = running.line().await;
    let (holder, token) = line.split_once(' ').expect(&line);

    let listed = place.objects(&["list", all], 0).await;
    assert_eq!(listed.len(), 1, "{listed:?}");
    assert_eq!(listed[0]["name"], name);
    assert_eq!(listed[0]["holders"][0]["id"], holder);
    assert_eq!(listed[0]["token"].to_string(), token);
    let shown = &place.objects(&["show", name], 0).await[0];
    assert_eq!(shown["holders"][0]["id"], holder);
    assert!(shown["remaining_ms"].as_u64() > Some(0), "{shown}");
    assert_eq!(frame(place, name).await["holder"], holder);

    assert_eq!(place.status(&["wait", name, "--timeout", "30ms"]).await, 75);
    assert_eq!(
        place.status(&["run", name, "--try", "--", "true"]).await,
        75
    );
    let nobody = ["release", name, "--holder", "nobody:1"];
    assert_eq!(place.status(&nobody).await, 1);

    running.close_input();
    let ended = running.ended().await;
    is_discreet(&ended);
    assert_eq!((ended.status, &*ended.err), (3, ""));
    assert_eq!(place.status(&["wait", name]).await, 0);
    assert_eq!(place.objects(&["show", name], 1).await[0]["free"], true);
}

/// What `top` writes of this lock, once it has found it.
async fn frame(place: &Place, name: &str) -> Value {
    let mut top = place.start(&["top", name]);
    for _ in 0..20 {
        let line: Value = serde_json::from_str(&top.line().await).unwrap();
        let locks = line["top"].as_array().unwrap();
        if let Some(lock) = locks.iter().find(|lock| lock["name"] == name) {
            return lock.clone();
        }
    }
    panic!("it was not shown: {name}");
}

async fn taken_away(place: &Place) {
    let name = &*place.name("freed");
    let begin = ["run", name, "--fair", "--lease", "1500ms", "--"];
    let begin = [&begin[..], &["sh", "-c", HELD]].concat();
    let mut running = place.start(&begin);
    let line = running.line().await;
    let free = ["free", name, "--reason", "test", "--yes"];
    let freed = &place.objects(&free, 0).await[0];
    assert_eq!(freed["evicted"][0]["holder"], line.trim());
    let ended = running.ended_with_input_open().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    is_discreet(&ended);

    let name = &*place.name("read");
    let mut running = place.start(&["run", name, "--read", "--", "sh", "-c", HELD]);
    let line = running.line().await;
    let release = ["release", name, "--holder", line.trim()];
    assert_eq!(place.status(&release).await, 0);
    assert_eq!(
        place
            .status(&["run", name, "--write", "--try", "--", "true"])
            .await,
        0
    );
}

/// In a cluster these are in several slots.
async fn several(place: &Place) {
    let names = ["a", "b", "c"].map(|name| place.name(name));
    let [a, b, c] = names.each_ref().map(String::as_str);
    let run = ["run", a, b, "--with-read", c, "--", "sh", "-c"];
    let ended = place
        .ended(&[&run[..], &["echo $LOCKSET_NAME; exit 4"]].concat())
        .await;
    assert_eq!(ended.status, 4, "{ended:?}");
    assert_eq!(ended.out.split_whitespace().count(), 3, "{ended:?}");
    for name in [a, b, c] {
        assert_eq!(place.status(&["show", name]).await, 1, "{name} is free");
    }
}

async fn claimed(place: &Place) {
    let key = &*place.name("once");
    let once = ["once", key, "--for", "1m", "--", "echo", "sent"];
    assert_eq!(place.ended(&once).await.out, "sent\n");
    assert_eq!(place.status(&once).await, 75);
}

async fn checked(place: &Place) {
    let (a, b) = (place.name("a"), place.name("b"));
    let checks = place
        .objects(&["doctor", "--names", &format!("{a},{b}")], 0)
        .await;
    let of = |name: &str| checks.iter().filter(|check| check["check"] == name).count();
    assert!(
        of("connect") > 0 && of("rights") >= of("connect"),
        "{checks:?}"
    );
    assert_eq!(of("slots"), 1, "{checks:?}");
    let failed = checks.iter().any(|check| check["verdict"] == "fail");
    assert!(!failed, "{checks:?}");
    // For people, with the same answer.
    assert_eq!(place.status(&["doctor"]).await, 0);
}

/// A counter of tokens that was last used long ago, at the server that has it.
async fn old_counter(place: &Place, server: &Server) -> String {
    let name = place.name("old");
    let key = format!("redisson_lock_token:{{{name}}}");
    let mut admin = server.admin().await;
    let now: (u64, u64) = redis::cmd("TIME").query_async(&mut admin).await.unwrap();
    let then = (now.0 - 100 * 86_400) * 1_000_000;
    let mut set = redis::cmd("SET");
    let () = set
        .arg(&key)
        .arg(then - then % 64)
        .query_async(&mut admin)
        .await
        .unwrap();
    name
}

/// `server` is the one that has it.
async fn tokens_work(place: &Place, server: &Server) {
    let name = old_counter(place, server).await;
    let all = place.name("*");
    for (more, is_purged) in [(&[][..], false), (&["--purge"], true)] {
        let found = place.objects(&[&["tokens", &all], more].concat(), 0).await;
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0]["name"], *name);
        assert_eq!(found[0]["purged"], is_purged);
    }
    assert!(place.objects(&["tokens", &all], 0).await.is_empty());
    let seats = &*place.name("seats");
    let run = ["run", seats, "--permits", "1", "--", "true"];
    assert_eq!(place.status(&run).await, 0);
    let purge = ["purge", seats, "--permits", "1", "--yes"];
    assert_eq!(place.objects(&purge, 0).await[0]["outcome"], "purged");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_server() {
    let server = Server::start();
    make_user(&server).await;
    let place = Place::with_password(&server.admin_url());
    every_verb_works(&place).await;
    tokens_work(&place, &server).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_socket() {
    let server = Server::builder().unix().start();
    make_user(&server).await;
    let url = format!("{}?user={USER}&pass={ENCODED}", server.unix_url());
    every_verb_works(&Place::new(url)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cluster() {
    let cluster = Cluster::builder().replicas(0).start().await;
    for node in cluster.nodes() {
        make_user(node).await;
    }
    let place = Place::with_password(&cluster.url());
    every_verb_works(&place).await;
    let owner = cluster
        .primary_of(&format!("{{{}}}", place.name("old")))
        .await;
    tokens_work(&place, owner).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sentinels_with_a_password_of_their_own() {
    let builder = Sentinels::builder().sentinel_password("s3cret-of-sentinels");
    let sentinels = builder.start().await;
    for server in sentinels.servers() {
        make_user(server).await;
    }
    let own = "?sentinel_password=s3cret-of-sentinels";
    let place = Place::with_password(&format!("{}{own}", sentinels.url()));
    every_verb_works(&place).await;
    tokens_work(&place, sentinels.primary().await).await;
    let views = |checks: Vec<Value>| -> Vec<Value> {
        let all = checks.into_iter();
        all.filter(|check| check["check"] == "sentinels").collect()
    };
    let seen = views(place.objects(&["doctor"], 0).await);
    assert_eq!(seen.len(), 1, "they agree: {seen:?}");
    assert_eq!(seen[0]["verdict"], "ok");

    // A wrong password is called so, at each of them.
    let wrong = place.url.replace(own, "?sentinel_password=s3cret-wrong");
    let ended = Place::new(wrong).ended(&["doctor", "--json"]).await;
    assert_eq!(ended.status, 77, "{ended:?}");
    let lines = ended
        .out
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let seen = views(lines.collect());
    assert_eq!(seen.len(), 3, "{seen:?}");
    for check in seen {
        assert_eq!(check["verdict"], "fail", "{check}");
        assert!(
            check["advice"].to_string().contains("sentinel_password"),
            "{check}"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_login_from_the_environment() {
    let server = Server::start();
    make_user(&server).await;
    // Without a login in the URL this user may not even read.
    let mut admin = server.admin().await;
    let place = |url: String| {
        Place::new(url)
            .and("LOCKSET_USER", USER)
            .and("LOCKSET_PASSWORD", PASSWORD)
    };
    let url = server.admin_url();
    let secure = "ACL SETUSER default on nopass resetkeys -@all +@connection +acl";
    let words: Vec<&str> = secure.split(' ').collect();
    let mut acl = redis::cmd(words[0]);
    let () = acl.arg(&words[1..]).query_async(&mut admin).await.unwrap();
    every_verb_works(&place(url.clone())).await;
    // The login in the URL takes precedence.
    let other = place(with_login(&url, "nobody:s3cret-too"));
    assert_eq!(other.status(&["wait", "a"]).await, 77);
    // A user without a password is refused.
    let alone = Place::new(url).and("LOCKSET_USER", USER);
    let ended = alone.ended(&["wait", "a"]).await;
    assert_eq!(ended.status, 64, "{ended:?}");
    assert!(ended.err.contains("LOCKSET_PASSWORD"), "{ended:?}");
}

/// Neither by its arguments nor by the arguments of its children.
#[tokio::test]
async fn no_process_shows_a_password_from_the_environment() {
    let server = Server::start();
    make_user(&server).await;
    let place = Place::new(server.admin_url())
        .and("LOCKSET_USER", USER)
        .and("LOCKSET_PASSWORD", PASSWORD);
    let mut running = place.start(&["run", "a", "--", "sh", "-c", "echo $$; read x"]);
    let shell = running.pids().await[0];
    for pid in [shell, parent(shell), running.pid()] {
        assert!(!arguments(pid).contains("s3cret"), "{}", arguments(pid));
    }
    running.close_input();
    is_discreet(&running.ended().await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_password_is_said_and_not_shown() {
    let sentinels = Sentinels::shared().await;
    let cluster = Cluster::shared().await;
    let server = Server::start();
    let login = "nobody:s3cret";
    let urls = [sentinels.url(), cluster.url(), server.admin_url()];
    let refused = urls.map(|url| async move {
        let place = Place::new(with_login(&url, login));
        for verb in [
            &["run", "a", "--", "true"][..],
            &["list"],
            &["show", "a"],
            &["wait", "a"],
            &["release", "a", "--holder", "b"],
            &["free", "a", "--reason", "test", "--yes"],
            &["once", "a", "--for", "1m", "--", "true"],
            &["tokens"],
            &["top"],
            &["doctor"],
        ] {
            let ended = place.ended(verb).await;
            assert_eq!(ended.status, 77, "{verb:?}: {ended:?}");
            let json = place.ended(&[&["--json"], verb].concat()).await;
            assert_eq!(json.status, 77, "{verb:?}: {json:?}");
        }
        assert_eq!(place.ended(&["names"]).await.err, "");
    });
    join_all(refused).await;
    // A URL that cannot be read is not repeated either.
    for url in ["redis://u:s3cret@h:port", "redis://u:s3cret@", "s3cret"] {
        let ended = Place::new(url).ended(&["list"]).await;
        assert_eq!(ended.status, 64, "{ended:?}");
        let ended = Place::new("").ended(&["list", "--url", url]).await;
        assert_eq!(ended.status, 64, "{ended:?}");
    }
}

/// So that no replica that takes over lacks the lock: `key` is one that the server has, or may have.
async fn replicated(server: &Server, key: &str, replicas: u32) {
    let mut admin = server.admin().await;
    let mut both = redis::pipe();
    // WAIT is about what this connection has written, and what came before.
    both.cmd("SET").arg(key).arg(1).ignore();
    both.cmd("WAIT").arg(replicas).arg(5000);
    let (heard,): (u32,) = both.query_async(&mut admin).await.unwrap();
    assert!(heard >= replicas, "{heard}");
}

const WAITS: &str = "echo $LOCKSET_HOLDER; read x; exit 5";

/// The command is not disturbed, its lock is held at the new server and released there.
async fn goes_on(place: &Place, fail_over: impl AsyncFnOnce()) {
    let name = &*place.name("kept");
    let run = ["run", name, "--lease", "20s", "--", "sh", "-c", WAITS];
    let mut running = place.start(&run);
    let holder = running.line().await;
    fail_over().await;
    let client = Client::connect(&place.url).await.unwrap();
    let seen = async || client.lock(name).holder().await.unwrap().expect("held");
    let mut before = seen().await;
    assert_eq!(before.id, holder);
    // Renewed at the new server, which takes a third of the lease at most.
    eventually(BOUND, "renewed", async || {
        let now = seen().await;
        let is_renewed = now.remaining > before.remaining;
        before = now;
        is_renewed
    })
    .await;
    running.close_input();
    let ended = running.ended().await;
    assert_eq!((ended.status, &*ended.err), (5, ""), "{ended:?}");
    assert_eq!(place.status(&["wait", name, "--timeout", "0"]).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_on_when_sentinels_replace_a_primary_that_was_killed() {
    let sentinels = Sentinels::builder().hurried().start().await;
    let place = Place::new(sentinels.url());
    goes_on(&place, async || {
        replicated(sentinels.primary().await, "heard", 2).await;
        sentinels.kill_primary().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_goes_on_when_a_node_of_its_cluster_is_killed() {
    let cluster = Cluster::start().await;
    let place = Place::new(cluster.url());
    let name = place.name("kept");
    goes_on(&place, async || {
        let key = format!("heard{{{name}}}");
        replicated(cluster.primary_of(&name).await, &key, 1).await;
        cluster.kill_primary_of(&name).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_command_is_ended_when_a_failover_has_cost_its_lock() {
    let sentinels = Sentinels::builder().hurried().start().await;
    let place = Place::new(sentinels.url());
    let name = &*place.name("forgotten");
    let run = ["run", name, "--lease", "20s", "--", "sh", "-c", WAITS];
    let mut running = place.start(&run);
    running.line().await;
    sentinels.fail_over().await;
    // As if the replica had never heard of it.
    let mut admin = sentinels.primary().await.admin().await;
    let mut forget = redis::cmd("DEL");
    let _: u32 = forget.arg(name).query_async(&mut admin).await.unwrap();
    let ended = running.ended_with_input_open().await;
    assert_eq!(ended.status, 76, "{ended:?}");
    assert!(ended.err.contains("could not be kept"), "{ended:?}");
}

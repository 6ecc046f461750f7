//! `Client::election`: one of several candidates leads and publishes a value that all can read.

use std::time::{Duration, Instant};

use futures_util::StreamExt;
use lockset::{Client, Election, Leader, Leaders, Leadership, LostReason};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::cancellation::poll_times;
use crate::failures::process::{Process, started_for};
use crate::support::{
    BY_MESSAGE, LEASE, SLACK, SOON, client, command, idle, listening, nothing_left, patient_client,
    took_less, waiting,
};

struct Scene {
    server: Server,
    ours: Client,
    theirs: Client,
    name: String,
}

impl Scene {
    async fn new() -> Self {
        let server = Server::start();
        let ours = patient_client(&server.url()).await;
        let theirs = patient_client(&server.url()).await;
        let name = unique_name("election");
        Self {
            server,
            ours,
            theirs,
            name,
        }
    }

    fn election(&self) -> Election {
        self.ours.election(&self.name)
    }

    fn other(&self) -> Election {
        self.theirs.election(&self.name)
    }

    fn campaign(&self, election: Election) -> tokio::task::JoinHandle<lockset::Result<Leadership>> {
        lockset_testkit::spawn(async move { election.campaign().await })
    }
}

/// The next item of a stream.
async fn next(leaders: &mut Leaders) -> Option<Leader> {
    within(SOON, leaders.next())
        .await
        .expect("a stream goes on")
        .unwrap()
}

fn value(leader: Option<&Leader>) -> Option<&str> {
    leader.map(|leader| &*leader.value)
}

#[tokio::test]
async fn one_candidate_leads_and_publishes_its_value() {
    let scene = Scene::new().await;
    let election = scene.election().value("a");
    assert_eq!(election.leader().await.unwrap(), None);
    let leadership = within(SOON, election.campaign()).await.unwrap();
    assert!(scene.other().try_campaign().await.unwrap().is_none());
    assert!(
        scene
            .other()
            .campaign_for(Duration::from_millis(50))
            .await
            .unwrap()
            .is_none()
    );
    let seen = scene.other().leader().await.unwrap().unwrap();
    assert_eq!((&*seen.value, &*seen.id), ("a", leadership.id()));
    assert_eq!(seen.token, leadership.token());
    leadership.proclaim("b").await.unwrap();
    let seen = scene.other().leader().await.unwrap();
    assert_eq!(value(seen.as_ref()), Some("b"));
    assert!(!leadership.is_lost() && leadership.remaining() > Duration::ZERO);
    assert_eq!(leadership.run(async { 7 }).await.unwrap(), 7);
    let candidate = scene.campaign(scene.other().value("c"));
    waiting(&scene.theirs, 1).await;
    let (since, token) = (Instant::now(), leadership.token());
    leadership.resign().await.unwrap();
    let next = within(SOON, candidate).await.unwrap().unwrap();
    took_less(since, BY_MESSAGE);
    assert!(next.token() > token);
    let seen = election.leader().await.unwrap();
    assert_eq!(value(seen.as_ref()), Some("c"));
    // The resignation runs in the background.
    drop(next);
    idle(&scene.theirs).await;
    assert_eq!(election.leader().await.unwrap(), None);
    nothing_left(&scene.server).await;
}

/// The lock stays with the client under the same holder id. The new leader must still be distinguishable.
#[tokio::test]
async fn candidates_of_one_client_follow_each_other() {
    let scene = Scene::new().await;
    let mut before = scene.election().value("0").campaign().await.unwrap();
    for round in 1..20 {
        let candidate = scene.campaign(scene.election().value(round.to_string()));
        waiting(&scene.ours, 1).await;
        let token = before.token();
        if round % 2 == 0 {
            before.resign().await.unwrap();
        } else {
            drop(before);
        }
        before = within(SOON, candidate).await.unwrap().unwrap();
        assert!(before.token() > token);
        let seen = scene.other().leader().await.unwrap().unwrap();
        assert_eq!(
            (seen.value, seen.token),
            (round.to_string(), before.token())
        );
    }
    idle_but_leading(&scene).await;
    let seen = scene.other().leader().await.unwrap().unwrap();
    assert_eq!(seen.token, before.token(), "no late resignation removed it");
}

async fn idle_but_leading(scene: &Scene) {
    eventually(SOON, "nothing is under way", async || {
        scene.ours.stats().background == 0
    })
    .await;
}

#[tokio::test]
async fn observers_see_the_last_value_and_each_leader() {
    let scene = Scene::new().await;
    let mut leaders = scene.other().observe();
    assert_eq!(next(&mut leaders).await, None);
    listening_to_leaders(&scene).await;
    let since = Instant::now();
    let first = scene.election().value("a").campaign().await.unwrap();
    assert_eq!(value(next(&mut leaders).await.as_ref()), Some("a"));
    for number in 0..50 {
        first.proclaim(number.to_string()).await.unwrap();
    }
    let mut last = next(&mut leaders).await;
    while value(last.as_ref()) != Some("49") {
        last = next(&mut leaders).await;
    }
    first.resign().await.unwrap();
    assert_eq!(next(&mut leaders).await, None);
    took_less(since, SOON / 2);
    let second = scene.election().value("49").campaign().await.unwrap();
    let seen = next(&mut leaders).await.unwrap();
    assert_eq!((seen.token, &*seen.value), (second.token(), "49"));
    // A new observer sees the current leader.
    assert_eq!(next(&mut scene.election().observe()).await.unwrap(), seen);
    drop(leaders);
    second.resign().await.unwrap();
    idle(&scene.theirs).await;
    nothing_left(&scene.server).await;
}

async fn listening_to_leaders(scene: &Scene) {
    listening(&scene.server).await;
}

/// The messages sent during the disconnection were missed.
#[tokio::test]
async fn an_observer_looks_again_after_a_gap() {
    let scene = Scene::new().await;
    let proxy = Proxy::start(scene.server.addr()).await;
    let watching = client(&proxy.url()).await;
    let mut leaders = watching.election(&scene.name).observe();
    assert_eq!(next(&mut leaders).await, None);
    proxy.refuse(true);
    proxy.cut();
    let leadership = scene.election().value("a").campaign().await.unwrap();
    leadership.proclaim("b").await.unwrap();
    proxy.refuse(false);
    let seen = loop {
        match within(SOON, leaders.next()).await.expect("it goes on") {
            Ok(seen) => break seen,
            Err(error) => assert!(error.is_io(), "{error}"),
        }
    };
    assert_eq!(value(seen.as_ref()), Some("b"));
}

#[tokio::test]
async fn a_killed_leader_is_replaced_within_a_lease() {
    let scene = Scene::new().await;
    let test = "kinds::election::process_that_leads";
    let mut process = Process::start(test, &scene.server, &scene.name);
    assert_eq!(process.answer(), "leads");
    let seen = scene.election().leader().await.unwrap();
    assert_eq!(value(seen.as_ref()), Some("the other"));
    let candidate = scene.campaign(scene.election().value("ours"));
    waiting(&scene.ours, 1).await;
    process.kill();
    let since = Instant::now();
    let leadership = within(LEASE + SOON, candidate).await.unwrap().unwrap();
    took_less(since, LEASE + SLACK);
    assert!(leadership.token() > seen.unwrap().token);
    let seen = scene.other().leader().await.unwrap();
    assert_eq!(value(seen.as_ref()), Some("ours"));
}

/// The value outlives the leader's lease, but must not be shown.
#[tokio::test]
async fn a_dead_leader_is_not_shown() {
    let scene = Scene::new().await;
    let test = "kinds::election::process_that_leads";
    let mut process = Process::start(test, &scene.server, &scene.name);
    assert_eq!(process.answer(), "leads");
    let mut leaders = scene.election().observe();
    assert_eq!(value(next(&mut leaders).await.as_ref()), Some("the other"));
    process.kill();
    let since = Instant::now();
    assert_eq!(next(&mut leaders).await, None);
    took_less(since, LEASE + SLACK * 2);
    let keys = scene.server.keys().await;
    assert!(
        keys.iter().any(|key| key.starts_with("lockset_leader")),
        "{keys:?}"
    );
    assert_eq!(scene.election().leader().await.unwrap(), None);
}

#[tokio::test]
#[ignore = "the other process of a test"]
async fn process_that_leads() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let client = client(&url).await;
    let _leads = client
        .election(name)
        .value("the other")
        .campaign()
        .await
        .unwrap();
    println!("answer:leads");
    std::future::pending::<()>().await;
}

#[tokio::test]
async fn a_former_leader_cannot_publish() {
    let scene = Scene::new().await;
    let leadership = scene.election().value("a").campaign().await.unwrap();
    command(&scene.server, &["DEL", &scene.name]).await;
    let error = leadership.proclaim("b").await.unwrap_err();
    assert!(
        error.is_not_held() && error.operation() == "proclaim",
        "{error}"
    );
    assert_eq!(scene.election().leader().await.unwrap(), None);
    let next = scene.other().value("c").campaign().await.unwrap();
    let error = leadership.resign().await.unwrap_err();
    assert!(
        error.is_not_held() && error.operation() == "resign",
        "{error}"
    );
    let seen = scene.election().leader().await.unwrap();
    assert_eq!(value(seen.as_ref()), Some("c"));
    let lost = next.loss();
    within(SOON, scene.theirs.clone().shutdown()).await.unwrap();
    assert_eq!(within(SOON, next.lost()).await, LostReason::Closed);
    assert!(lost.is_lost());
}

/// A leader that sets no new value keeps its value at the server, and restores it if it is lost.
#[tokio::test]
async fn the_value_is_kept_and_comes_back() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let lease = LEASE * 4 / 3;
    let election = ours.election(unique_name("election")).value("a");
    let election = election.lease(lease);
    let leadership = election.campaign().await.unwrap();
    let key = format!("lockset_leader:{{{}}}", election.name());
    command(&server, &["DEL", &key]).await;
    eventually(lease + SOON, "the value is back", async || {
        value(election.leader().await.unwrap().as_ref()) == Some("a")
    })
    .await;
    // It lives for four leases.
    tokio::time::sleep(lease * 9 / 2).await;
    let seen = election.leader().await.unwrap();
    assert_eq!(value(seen.as_ref()), Some("a"), "for longer than it lives");
    leadership.resign().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn bad_input_is_named() {
    let scene = Scene::new().await;
    let long = "x".repeat(65 * 1024);
    let leadership = scene.election().campaign().await.unwrap();
    let errors = [
        scene.election().value(&long).campaign().await.unwrap_err(),
        leadership.proclaim(&long).await.unwrap_err(),
    ];
    for error in errors {
        assert!(error.is_invalid(), "{error}");
        assert_eq!(error.lock_name(), Some(&*scene.name));
    }
    let bad = scene.ours.election("}");
    assert!(bad.campaign().await.unwrap_err().is_invalid());
    let mut leaders = bad.observe();
    assert!(leaders.next().await.unwrap().unwrap_err().is_invalid());
    for _ in 0..2 {
        assert!(leaders.next().await.is_none());
    }
    leadership.resign().await.unwrap();
    command(&scene.server, &["SET", &scene.name, "x"]).await;
    assert!(
        scene
            .election()
            .campaign()
            .await
            .unwrap_err()
            .is_wrong_type()
    );
}

#[tokio::test]
async fn a_shut_down_client_ends_campaigns_and_observers() {
    let scene = Scene::new().await;
    let leadership = scene.election().campaign().await.unwrap();
    let dropped = scene
        .ours
        .election(unique_name("election"))
        .campaign()
        .await
        .unwrap();
    let candidate = scene.campaign(scene.election());
    let mut leaders = scene.election().observe();
    assert!(next(&mut leaders).await.is_some());
    let observing =
        lockset_testkit::spawn(async move { (leaders.next().await, leaders.next().await) });
    waiting(&scene.ours, 1).await;
    let others = dropped.name().to_owned();
    drop(dropped);
    within(SOON, scene.ours.clone().shutdown()).await.unwrap();
    assert!(
        within(SOON, candidate)
            .await
            .unwrap()
            .unwrap_err()
            .is_closed()
    );
    let (told, end) = within(SOON, observing).await.unwrap();
    assert!(told.unwrap().unwrap_err().is_closed() && end.is_none());
    assert_eq!(leadership.lost().await, LostReason::Closed);
    // Elections dropped earlier are free.
    assert!(
        scene
            .theirs
            .election(others)
            .try_campaign()
            .await
            .unwrap()
            .is_some()
    );
}

/// The server executed the call, and its reply is lost.
#[tokio::test]
async fn a_lost_reply_changes_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = patient_client(&proxy.url()).await;
    let election = ours.election(unique_name("election"));
    election.campaign().await.unwrap().resign().await.unwrap();
    for marker in ["lockset_leader", "lockset_leader"] {
        proxy.swallow_reply_to(marker.as_bytes());
        let leadership = within(SOON, election.campaign()).await.unwrap();
        proxy.swallow_reply_to(marker.as_bytes());
        within(SOON, leadership.proclaim("b")).await.unwrap();
        let seen = election.leader().await.unwrap();
        assert_eq!(value(seen.as_ref()), Some("b"));
        within(SOON, leadership.resign()).await.unwrap();
    }
    assert_eq!(proxy.fired(), 4);
    idle(&ours).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_dropped_future_leaves_nothing() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    let election = ours
        .election(unique_name("election"))
        .lease(Duration::from_secs(60));
    for is_late in [false, true] {
        for polls in 1..16 {
            let delay = Duration::from_millis(if is_late { 20 } else { 0 });
            if is_late {
                proxy.delay_replies(delay);
            }
            let times = (polls, Duration::from_millis(2));
            drop(
                poll_times(election.campaign(), times)
                    .await
                    .transpose()
                    .unwrap(),
            );
            proxy.pass();
            idle(&ours).await;
            nothing_left(&server).await;
            let leadership = within(SOON, election.campaign()).await.unwrap();
            poll_times(leadership.resign(), times)
                .await
                .transpose()
                .unwrap();
            idle(&ours).await;
            nothing_left(&server).await;
            let mut leaders = election.observe();
            poll_times(leaders.next(), times).await;
            drop(leaders);
            idle(&ours).await;
            nothing_left(&server).await;
        }
    }
}

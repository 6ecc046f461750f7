//! `Client::once` and `Client::job`: once per key and window.

use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use lockset::JobRun::{self, Skipped};
use lockset::OnceRun::{self, Duplicate, Ran};
use lockset::{Client, Error};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::failures::process::{Process, started_for};
use crate::support::{
    LEASE, SLACK, SOON, ask, client, idle, nothing_left, patient_client, took_less,
};

/// Longer than a test.
const WINDOW: Duration = Duration::from_secs(60);
const SHORT: Duration = Duration::from_millis(1_500);

/// The error type of the bodies.
#[derive(Debug)]
enum Failure {
    Ours(u8),
    Lock,
}

impl From<Error> for Failure {
    fn from(_: Error) -> Self {
        Self::Lock
    }
}

#[tokio::test]
async fn one_claim_per_window() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let key = unique_name("once");
    let since = Instant::now();
    let claim = ours.once(&key).per(SHORT).claim().await.unwrap().unwrap();
    assert_eq!(claim.key(), key);
    assert!(claim.remaining() <= SHORT);
    for client in [&ours, &theirs] {
        assert!(
            client
                .once(&key)
                .per(SHORT)
                .claim()
                .await
                .unwrap()
                .is_none()
        );
    }
    drop(claim);
    let next = eventually_claimed(&theirs, &key).await;
    assert!(since.elapsed() >= SHORT, "a dropped claim stands");
    took_less(since, SHORT + SLACK);
    next.undo().await.unwrap();
    // Any client can claim the key again at once.
    let claim = ours.once(&key).per(SHORT).claim().await.unwrap();
    claim.expect("it was released").undo().await.unwrap();
    idle(&ours).await;
    nothing_left(&server).await;
}

async fn eventually_claimed(client: &Client, key: &str) -> lockset::Claim {
    let once = client.once(key).per(WINDOW);
    let until = Instant::now() + SOON;
    loop {
        if let Some(claim) = once.claim().await.unwrap() {
            return claim;
        }
        assert!(Instant::now() < until, "the window ends");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// A late undo must not undo a newer claim of another client.
#[tokio::test]
async fn a_late_undo_releases_nothing() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let key = unique_name("once");
    let late = ours.once(&key).per(SHORT).claim().await.unwrap().unwrap();
    let _next = eventually_claimed(&theirs, &key).await;
    late.undo().await.expect("its window is over");
    assert!(ours.once(&key).per(SHORT).claim().await.unwrap().is_none());
}

#[tokio::test]
async fn failed_work_releases_the_key() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let once = ours.once(unique_name("once")).per(WINDOW);
    let failed: Result<OnceRun<()>, Failure> = once.run(async { Err(Failure::Ours(7)) }).await;
    assert!(matches!(failed, Err(Failure::Ours(7))), "{failed:?}");
    let ran = once.run(async { Ok::<_, Failure>("done") }).await.unwrap();
    assert_eq!(ran, Ran("done"));
    let mut has_begun = false;
    let again = once.run(async {
        has_begun = true;
        Ok::<_, Error>(())
    });
    match again.await.unwrap() {
        Duplicate { remaining, .. } => {
            assert!(
                remaining <= WINDOW && remaining > WINDOW - SOON,
                "{remaining:?}"
            );
        }
        Ran(()) => panic!("it ran twice"),
    }
    assert!(!has_begun);
}

#[tokio::test]
async fn panicking_or_dropped_work_releases_the_key() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let once = ours.once(unique_name("once")).per(WINDOW);
    for panics in [true, false] {
        let once = once.clone();
        let (begun, has_begun) = tokio::sync::oneshot::channel();
        let task = lockset_testkit::spawn(async move {
            let work = async {
                begun.send(()).unwrap();
                assert!(!panics, "as the test wants");
                std::future::pending::<Result<(), Error>>().await
            };
            once.run(work).await
        });
        within(SOON, has_begun).await.unwrap();
        task.abort();
        let ended = task.await.expect_err("it does not end by itself");
        assert!(ended.is_panic() == panics || ended.is_cancelled());
        nothing_left(&server).await;
    }
    idle(&ours).await;
}

#[tokio::test]
async fn a_claim_can_be_kept_on_error() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let once = ours.once(unique_name("once")).per(WINDOW).keep_on_error();
    let failed: Result<OnceRun<()>, Failure> = once.run(async { Err(Failure::Ours(1)) }).await;
    assert!(matches!(failed, Err(Failure::Ours(1))), "{failed:?}");
    assert!(once.claim().await.unwrap().is_none(), "it stands");
    let dropped = ours.once(unique_name("once")).per(WINDOW).keep_on_error();
    let begun = tokio::sync::Notify::new();
    let work = async {
        begun.notify_one();
        std::future::pending::<Result<(), Error>>().await
    };
    tokio::select! {
        _ = dropped.run(work) => unreachable!("it does not end"),
        () = begun.notified() => {}
    }
    assert!(dropped.claim().await.unwrap().is_none(), "it stands");
}

#[tokio::test]
async fn a_call_that_is_dropped_claims_nothing() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let once = ours.once(unique_name("once")).per(WINDOW);
    {
        let mut call = pin!(once.claim());
        let mut context = Context::from_waker(Waker::noop());
        assert!(matches!(call.as_mut().poll(&mut context), Poll::Pending));
        eventually(SOON, "it is granted, and not polled", async || {
            !server.keys().await.is_empty()
        })
        .await;
    }
    nothing_left(&server).await;
    idle(&ours).await;
}

/// After a lost reply there is neither a second claim nor a claim without a holder.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_answer_claims_once() {
    let server = Server::start();
    let proxy = Proxy::start(server.addr()).await;
    let ours = client(&proxy.url()).await;
    for round in 0..5 {
        let key = unique_name("once");
        let once = ours.once(&key).per(WINDOW);
        once.claim().await.unwrap().unwrap().undo().await.unwrap();
        proxy.swallow_next_reply_then_cut();
        let claim = within(SOON, once.claim()).await.unwrap();
        assert_eq!(proxy.fired(), round + 1, "the reply was lost");
        assert!(claim.is_some(), "the same call once more, in round {round}");
        assert!(once.claim().await.unwrap().is_none());
        claim.unwrap().undo().await.unwrap();
    }
    idle(&ours).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn windows_that_cannot_work_are_refused() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    for window in [Duration::ZERO, Duration::from_millis(49), Duration::MAX] {
        let error = ours
            .once("k")
            .per(window)
            .claim()
            .await
            .expect_err("refused");
        assert!(
            error.is_invalid() && error.lock_name() == Some("k"),
            "{error}"
        );
    }
    assert!(
        ours.once("")
            .per(WINDOW)
            .claim()
            .await
            .unwrap_err()
            .is_invalid()
    );
    nothing_left(&server).await;
}

const POSTS: usize = 100;

/// Two processes post a form 200 times at once, and one post counts. The processes are dead when
/// the window is checked.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_many_posts_of_two_processes_passes() {
    let server = Server::start();
    let key = unique_name("post");
    let mut processes = [(); 2].map(|()| Process::start("kinds::once::poster", &server, &key));
    for process in &processes {
        assert_eq!(process.answer(), "ready");
    }
    for process in &mut processes {
        process.ask("post");
    }
    let passed = processes.each_ref().map(|process| {
        let answer = process.answer();
        answer.parse::<usize>().expect("how many passed")
    });
    assert_eq!(passed.iter().sum::<usize>(), 1, "{passed:?}");
    for process in &mut processes {
        process.kill();
    }
    let ours = client(&server.url()).await;
    match ours
        .once(&key)
        .per(WINDOW)
        .run(async { Ok::<_, Error>(()) })
        .await
        .unwrap()
    {
        Duplicate { remaining, .. } => assert!(remaining > WINDOW / 2, "{remaining:?}"),
        other @ Ran(()) => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "not a test: the other process of the test of posts"]
async fn poster() {
    let Some((url, key)) = started_for() else {
        return;
    };
    let client = client(&url).await;
    println!("answer:ready");
    let mut questions = std::io::stdin().lines();
    questions.next().unwrap().unwrap();
    let once = client.once(key).per(WINDOW);
    let posts: Vec<_> = (0..POSTS)
        .map(|_| {
            let once = once.clone();
            lockset_testkit::spawn(
                async move { once.run(async { Ok::<_, Error>(()) }).await.unwrap() },
            )
        })
        .collect();
    let mut passed = 0;
    for post in posts {
        passed += usize::from(post.await.unwrap().ran().is_some());
    }
    println!("answer:{passed}");
    // Runs until it is killed.
    let _ = questions.next();
}

#[tokio::test]
async fn a_job_runs_in_one_process_at_a_time() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let name = unique_name("job");
    let work = async {
        match theirs.job(&name).run(async {}).await.unwrap() {
            Skipped { remaining, .. } => assert!(remaining <= LEASE),
            JobRun::Ran(()) => panic!("two at once"),
        }
        // Much longer than the lease.
        tokio::time::sleep(LEASE * 2).await;
        7
    };
    assert_eq!(ours.job(&name).run(work).await.unwrap(), JobRun::Ran(7));
    assert_eq!(
        theirs.job(&name).run(async { 8 }).await.unwrap().ran(),
        Some(8)
    );
    idle(&ours).await;
    nothing_left(&server).await;
}

#[tokio::test]
async fn a_job_is_not_run_again_too_soon() {
    let server = Server::start();
    let (ours, theirs) = (client(&server.url()).await, client(&server.url()).await);
    let name = unique_name("job");
    let job = |client: &Client| {
        let job = client.job(&name).lease(LEASE);
        job.at_least(SHORT).at_most(SHORT * 2)
    };
    let since = Instant::now();
    assert_eq!(job(&ours).run(async { 7 }).await.unwrap(), JobRun::Ran(7));
    for client in [&ours, &theirs] {
        let skipped = job(client).run(async { 8 }).await.unwrap();
        let Skipped { remaining, .. } = skipped else {
            panic!("it ran too soon: {skipped:?}");
        };
        assert!(remaining <= SHORT);
    }
    eventually(SOON, "it runs again", async || {
        job(&theirs).run(async { 9 }).await.unwrap().ran().is_some()
    })
    .await;
    assert!(since.elapsed() >= SHORT);
}

#[tokio::test]
async fn a_job_that_hangs_is_dropped() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let name = unique_name("job");
    let since = Instant::now();
    let job = ours.job(&name).lease(LEASE).at_most(SHORT);
    let error = job
        .run(std::future::pending::<()>())
        .await
        .expect_err("lost");
    assert!(error.is_not_held(), "{error}");
    assert_eq!(error.operation(), "run");
    assert_eq!(error.lock_name(), Some(&*name));
    let reason = "held for as long as it may be";
    assert!(error.to_string().contains(reason), "{error}");
    assert!(since.elapsed() >= SHORT);
    took_less(since, SHORT + SLACK);
    nothing_left(&server).await;
    let contradiction = ours.job(&name).at_least(WINDOW).at_most(SHORT);
    assert!(contradiction.run(async {}).await.unwrap_err().is_invalid());
}

/// A run counts once its work is done.
#[tokio::test]
async fn a_job_whose_release_cannot_be_sent_has_run() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let job = ours.job(unique_name("job"));
    let ran = job.run(async {
        server.kill();
        7
    });
    assert_eq!(within(SOON, ran).await.unwrap(), JobRun::Ran(7));
}

/// The run ends with its lease, not by `at_least` or `at_most`.
#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_dies_keeps_its_job_for_a_lease() {
    let server = Server::start();
    let name = unique_name("job");
    let mut process = Process::start("kinds::once::worker", &server, &name);
    assert_eq!(process.answer(), "running");
    let ours = patient_client(&server.url()).await;
    assert_eq!(ours.job(&name).run(async {}).await.unwrap().ran(), None);
    process.kill();
    let since = Instant::now();
    eventually(SOON, "it runs here", async || {
        ours.job(&name).run(async {}).await.unwrap().ran().is_some()
    })
    .await;
    took_less(since, LEASE + SLACK);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "not a test: the other process of the test of dying jobs"]
async fn worker() {
    let Some((url, name)) = started_for() else {
        return;
    };
    let job = client(&url)
        .await
        .job(name)
        .at_least(WINDOW)
        .at_most(WINDOW);
    let work = async {
        println!("answer:running");
        // Runs until it is killed.
        std::future::pending::<()>().await;
    };
    job.run(work).await.unwrap();
}

/// The format of Redisson's `tryLock(0, 15, SECONDS)`: a hash with one holder, whose lease is the
/// window.
#[tokio::test]
async fn on_the_wire_a_claim_is_a_lock_with_a_fixed_lease() {
    let server = Server::start();
    let ours = Client::builder(&server.url())
        .key_prefix("app:")
        .build()
        .await
        .unwrap();
    let mut admin = server.admin().await;
    let claim = ours
        .once("form")
        .per(WINDOW)
        .claim()
        .await
        .unwrap()
        .unwrap();
    assert_eq!(server.keys().await, ["app:form"]);
    let holds: Vec<String> = ask(&mut admin, &["HVALS", "app:form"]).await;
    assert_eq!(holds, ["1"]);
    let pttl: u64 = ask(&mut admin, &["PTTL", "app:form"]).await;
    let window = u64::try_from(WINDOW.as_millis()).unwrap();
    assert!(pttl <= window && pttl > window - 5_000, "{pttl}");
    let again = ours.once("form").per(SHORT).claim().await.unwrap();
    assert!(again.is_none());
    assert!(ours.lock("form").is_locked().await.unwrap());
    claim.undo().await.unwrap();
    assert!(server.keys().await.is_empty());
}

//! A server that is away: how long each call waits for an answer, and which error it returns.
//!
//! All bounds are upper bounds, one second above the promise, because a busy machine makes calls
//! end later, never sooner.

use std::error::Error as _;
use std::io;
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use lockset::{Client, Error, Owner};
use lockset_testkit::{Proxy, Server, eventually, unique_name, within};

use crate::engine::impatient::taken;
use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::support::{
    SLACK, SOON, client, idle, keys_left, nothing_left, patient_client, took_less, took_less_until,
    waiting,
};

/// The reply timeout of a patient client.
const REPLY: Duration = Duration::from_secs(1);

/// The I/O error among the causes of an error.
fn socket_error(error: &Error) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

/// A server and the proxy in front of it.
struct Way {
    server: Server,
    proxy: Proxy,
}

#[derive(Clone, Copy, Debug)]
enum Outage {
    Frozen,
    BlackHole,
    Refused,
}

const OUTAGES: [Outage; 3] = [Outage::Frozen, Outage::BlackHole, Outage::Refused];

impl Way {
    async fn new() -> Self {
        let server = Server::start();
        let proxy = Proxy::start(server.addr()).await;
        Self { server, proxy }
    }

    fn begin(&self, outage: Outage) {
        match outage {
            Outage::Frozen => self.server.stop(),
            Outage::BlackHole => self.proxy.drop_requests(),
            Outage::Refused => {
                self.proxy.refuse(true);
                self.proxy.cut();
            }
        }
    }

    fn end(&self, outage: Outage) {
        match outage {
            Outage::Frozen => self.server.cont(),
            Outage::BlackHole => self.proxy.pass(),
            Outage::Refused => self.proxy.refuse(false),
        }
    }
}

/// Asserts that a call fails in time because of the outage.
async fn fails_within<T>(bound: Duration, call: impl Future<Output = lockset::Result<T>>) -> Error {
    let began = Instant::now();
    let error = within(SOON * 4, call).await.err().expect("an outage");
    let ended = Instant::now();
    assert!(error.is_io() || error.is_quorum(), "{error}");
    took_less_until(ended, began, bound);
    error
}

async fn an_outage_is_transient_and_keeps_what_the_socket_said<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock"));
    let guard = lock.try_lock().await.unwrap().expect("a free lock");
    guard.release().await.unwrap();
    server.kill();
    let error = within(SOON, lock.try_lock()).await.expect_err("no server");
    assert!(error.is_transient(), "{error}");
    let said = socket_error(&error);
    assert_eq!(said, Some(io::ErrorKind::ConnectionRefused), "{error}");
}

/// The attempts on successive connections are all parts of one call.
async fn a_timed_call_ends_in_time<P: Primitive>() {
    for outage in OUTAGES {
        let way = Way::new().await;
        let ours = patient_client(&way.proxy.url()).await;
        let theirs = patient_client(&way.server.url()).await;
        let (free, held) = (unique_name("free"), unique_name("held"));
        let guard = P::rival(&theirs, &held).lock().await.unwrap();
        let wait = Duration::from_millis(1500);
        let in_the_midst = {
            let lock = P::of(&ours, &held);
            lockset_testkit::spawn(fails_within(wait + REPLY + SLACK, async move {
                lock.try_lock_for(wait).await
            }))
        };
        waiting(&ours, 1).await;
        way.begin(outage);
        let wait = Duration::from_millis(500);
        let lock = P::of(&ours, &free);
        fails_within(wait + REPLY + SLACK, lock.try_lock_for(wait)).await;
        in_the_midst.await.unwrap();
        way.end(outage);
        guard.release().await.unwrap();
        nothing_left(&way.server).await;
        idle(&ours).await;
    }
}

/// Every call of a handle and of its guards ends after the handle's limit.
async fn a_handle_overrides_the_time_limit<P: Primitive>() {
    const GIVE_UP: Duration = Duration::from_millis(300);
    let bound = GIVE_UP + SLACK;
    for outage in OUTAGES {
        let way = Way::new().await;
        let ours = patient_client(&way.proxy.url()).await;
        let of = |name: &str| P::of(&ours, &unique_name(name)).give_up_after(GIVE_UP);
        let owner = Owner::new();
        let of_held = of("held");
        let held = taken(&of_held.clone().owner(&owner)).await;
        let other = taken(&of("other")).await;
        let lock = of("free");
        way.begin(outage);
        fails_within(bound, lock.try_lock()).await;
        fails_within(bound, lock.lock()).await;
        fails_within(bound, lock.try_lock_for(SOON)).await;
        fails_within(bound, lock.is_locked()).await;
        fails_within(bound, lock.force_unlock()).await;
        // Another lease needs a renewal.
        let longer = of_held.owner(&owner).lease(SOON * 20);
        fails_within(bound, longer.lock()).await;
        // A release that did not finish in time continues in the background, without its caller.
        let began = Instant::now();
        let released = within(SOON, other.release()).await;
        took_less(began, bound);
        assert!(released.is_err(), "{released:?}");
        way.end(outage);
        let guard = within(SOON, lock.give_up_after(SOON).lock()).await.unwrap();
        guard.release().await.unwrap();
        held.forget();
    }
}

/// All waiters get the error within one bound, a third of a lease, not one after another.
async fn a_crowd_gets_the_error_at_once<P: Primitive>() {
    const CROWD: usize = 12;
    let lease = Duration::from_secs(3);
    for outage in OUTAGES {
        let way = Way::new().await;
        let ours = Client::builder(&way.proxy.url()).lease(lease);
        let ours = ours.build().await.unwrap();
        let theirs = patient_client(&way.server.url()).await;
        let name = unique_name("lock");
        let guard = P::rival(&theirs, &name).lock().await.unwrap();
        let crowd = (0..CROWD).map(|at| {
            let lock = P::of(&ours, &name);
            lockset_testkit::spawn(async move {
                match at % 2 {
                    0 => lock.lock().await.err(),
                    _ => lock.try_lock_for(lease * 10).await.err(),
                }
            })
        });
        let crowd: Vec<_> = crowd.collect();
        waiting(&ours, CROWD).await;
        way.begin(outage);
        let began = Instant::now();
        for waiter in within(SOON * 4, join_all(crowd)).await {
            let error = waiter.unwrap().expect("an outage");
            assert!(error.is_io() || error.is_quorum(), "{error}");
        }
        // A poll interval of half a second and a third of the lease.
        took_less(began, lease / 2 + SLACK);
        way.end(outage);
        let _ = guard.release().await;
        nothing_left(&way.server).await;
        idle(&ours).await;
    }
}

/// A grant that takes longer than its lease is an error, not a guard and not a held lock.
async fn a_lease_shorter_than_the_round_trip_is_an_error<P: Primitive>() {
    let way = Way::new().await;
    let ours = patient_client(&way.proxy.url()).await;
    let name = unique_name("lock");
    let lock = P::of(&ours, &name).lease(Duration::from_millis(60));
    let lock = lock.give_up_after(SOON);
    way.proxy.delay_replies(Duration::from_millis(120));
    let errors = [
        within(SOON * 2, lock.lock()).await.err(),
        within(SOON * 2, lock.try_lock()).await.err(),
        within(SOON * 2, lock.try_lock_for(SOON)).await.err(),
    ];
    for error in errors {
        let error = error.expect("a lease that is over");
        assert!(error.is_io() || error.is_quorum(), "{error}");
        assert!(names_it::<P>(&name, error.lock_name()), "{error}");
        let said = error.to_string();
        assert!(said.contains("lease") && said.contains("60ms"), "{said}");
    }
    way.proxy.pass();
    let guard = within(SOON, lock.lease(SOON).lock()).await.unwrap();
    assert!(!guard.is_lost());
    guard.release().await.unwrap();
    nothing_left(&way.server).await;
    idle(&ours).await;
}

/// After one late answer, the lock is requested again.
async fn a_late_grant_is_no_guard<P: Primitive>() {
    const SHORT: Duration = Duration::from_millis(600);
    let way = Way::new().await;
    let ours = patient_client(&way.proxy.url()).await;
    let lock = P::of(&ours, &unique_name("lock")).fixed_lease(SHORT);
    way.proxy.hold_replies();
    let call = lockset_testkit::spawn(async move {
        let guard = lock.lock().await.unwrap();
        assert!(!guard.is_lost());
        guard.release().await
    });
    // Its lease passes, but not the time for a reply.
    for (what, is_held) in [("it is granted", true), ("its lease is over", false)] {
        eventually(SOON, what, async || {
            keys_left(&way.server).await.is_empty() != is_held
        })
        .await;
    }
    way.proxy.pass();
    within(SOON, call).await.unwrap().unwrap();
    nothing_left(&way.server).await;
    idle(&ours).await;
}

/// The default survives a web service: its callers do not wait for a third of a lease.
async fn a_call_that_asks_once_ends_within_two_seconds<P: Primitive>() {
    for outage in OUTAGES {
        let way = Way::new().await;
        let ours = patient_client(&way.proxy.url()).await;
        let lock = P::of(&ours, &unique_name("lock"));
        way.begin(outage);
        fails_within(REPLY * 2 + SLACK, lock.try_lock()).await;
        // A handle may say more.
        let patient = lock.give_up_after(SOON * 2);
        let asked = lockset_testkit::spawn(async move { patient.try_lock().await });
        tokio::time::sleep(REPLY * 2 + SLACK / 2).await;
        assert!(!asked.is_finished());
        way.end(outage);
        // The first attempt may be undone only now, so the lock may be refused. It is no error.
        if let Some(guard) = within(SOON * 2, asked).await.unwrap().unwrap() {
            guard.release().await.unwrap();
        }
        nothing_left(&way.server).await;
        idle(&ours).await;
    }
}

for_every_primitive! {"multi_thread":
    a_call_that_asks_once_ends_within_two_seconds
    a_lease_shorter_than_the_round_trip_is_an_error
    a_late_grant_is_no_guard
    an_outage_is_transient_and_keeps_what_the_socket_said
    a_timed_call_ends_in_time
    a_handle_overrides_the_time_limit
    a_crowd_gets_the_error_at_once
}
for_every_primitive! {@redlock lockset::RedlockLock, [], "multi_thread":
    a_late_grant_is_no_guard
    an_outage_is_transient_and_keeps_what_the_socket_said
    a_timed_call_ends_in_time
    a_handle_overrides_the_time_limit
    a_crowd_gets_the_error_at_once
}

#[tokio::test(flavor = "multi_thread")]
async fn a_ping_says_whether_the_server_answers() {
    for outage in OUTAGES {
        let way = Way::new().await;
        let ours = patient_client(&way.proxy.url()).await;
        ours.ping().await.unwrap();
        way.begin(outage);
        let error = fails_within(REPLY * 2 + SLACK, ours.ping()).await;
        assert!(error.is_io() && error.operation() == "ping", "{error}");
        way.end(outage);
        // The connection is made again, if it is broken, for this question.
        let took = within(SOON, ours.ping()).await.unwrap();
        assert!(took < SOON, "{took:?}");
        ours.clone().shutdown().await.unwrap();
        assert!(ours.ping().await.unwrap_err().is_closed());
    }
}

#[tokio::test]
async fn a_ping_is_one_round_trip_and_ends_with_the_limit_of_the_client() {
    let server = Server::start();
    // Together with the slack, it is less than the default.
    let limit = Duration::from_millis(900);
    let ours = Client::builder(&server.url()).give_up_after(limit);
    let ours = ours.build().await.unwrap();
    let evals = async || server.commandstats().await.get("eval").copied();
    let before = evals().await.unwrap_or_default();
    ours.ping().await.unwrap();
    assert_eq!(evals().await, Some(before + 1));
    server.stop();
    fails_within(limit + SLACK, ours.ping()).await;
    server.cont();
    within(SOON, ours.ping()).await.unwrap();
    server.kill();
    fails_within(limit + SLACK, ours.ping()).await;
}

#[tokio::test]
async fn a_refused_connect_keeps_what_the_socket_said() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.is_io() && error.is_transient(), "{error}");
    let said = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    let kind = said.map(io::Error::kind);
    assert_eq!(kind, Some(io::ErrorKind::ConnectionRefused), "{error}");
}

/// The client's limit is the default of its handles, and a handle may override it.
#[tokio::test]
async fn a_client_sets_the_default_time_limit() {
    let server = Server::start();
    let ours = Client::builder(&server.url()).give_up_after(Duration::from_millis(300));
    let ours = ours.build().await.unwrap();
    server.stop();
    fails_within(
        Duration::from_millis(300) + SLACK,
        ours.lock("x").try_lock(),
    )
    .await;
    let lock = ours.lock("x").give_up_after(Duration::MAX);
    let patient = lockset_testkit::spawn(async move { lock.lock().await });
    waiting(&ours, 1).await;
    // The call is queued behind one that continues, which may just not be polled: two reply
    // timeouts later.
    let bound = Duration::from_millis(300) + REPLY * 2 + SLACK;
    fails_within(bound, ours.lock("x").lock()).await;
    assert!(!patient.is_finished());
    server.cont();
    let guard = within(SOON, patient).await.unwrap().unwrap();
    guard.release().await.unwrap();
    let nothing = Client::builder(&server.url()).give_up_after(Duration::ZERO);
    assert!(nothing.build().await.unwrap_err().is_invalid());
    let nothing = ours.lock("x").give_up_after(Duration::ZERO);
    let errors = [
        nothing.try_lock().await.unwrap_err(),
        nothing.is_locked().await.unwrap_err(),
    ];
    assert!(errors.iter().all(Error::is_invalid), "{errors:?}");
    let operations = errors.each_ref().map(Error::operation);
    assert_eq!(operations, ["try_lock", "is_locked"]);
}

#[tokio::test]
async fn a_late_quorum_is_reported() {
    let way = Way::new().await;
    let ours = patient_client(&way.proxy.url()).await;
    let lock = lockset::RedlockLock::of(&ours, "x").lease(Duration::from_millis(60));
    way.proxy.delay_replies(Duration::from_millis(120));
    let error = within(SOON, lock.try_lock()).await.unwrap_err();
    assert!(
        error.is_quorum() && error.to_string().contains("60ms"),
        "{error}"
    );
}

/// After the server was stopped for longer than any reply timeout, every caller uses it again at
/// once.
#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_is_back_is_used_at_once() {
    const TASKS: usize = 64;
    let way = Way::new().await;
    let ours = patient_client(&way.proxy.url()).await;
    let (ended, end) = tokio::sync::watch::channel(None::<Instant>);
    let tasks = (0..TASKS).map(|at| {
        let lock = ours.lock(format!("lock:{at}"));
        let end = end.clone();
        lockset_testkit::spawn(async move {
            let mut late = 0;
            loop {
                let began = Instant::now();
                let wait = Duration::from_millis(100);
                let got = lock.try_lock_for(wait).await;
                took_less(began, wait + REPLY + SLACK);
                let back = *end.borrow();
                if back.is_none_or(|back| began <= back) {
                    continue;
                }
                match got {
                    Ok(Some(guard)) => {
                        guard.release().await.unwrap();
                        return (Instant::now(), late);
                    }
                    _ => late += 1,
                }
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    way.begin(Outage::Frozen);
    tokio::time::sleep(REPLY * 3).await;
    way.end(Outage::Frozen);
    let back = Instant::now();
    ended.send(Some(back)).unwrap();
    for task in within(SOON * 2, join_all(tasks)).await {
        let (got, late) = task.unwrap();
        eprintln!("{late} failed");
        took_less_until(got, back, REPLY * 2 + SLACK);
    }
}

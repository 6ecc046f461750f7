//! Tests of the pauses between attempts, and of the process that is accepted at an address.

use std::sync::atomic::AtomicUsize;

use futures_util::FutureExt;

use super::*;

#[tokio::test(start_paused = true)]
async fn failed_attempts_are_apart_and_one_that_succeeds_ends_the_pauses() {
    let clock = Clock::of_runtime();
    let reach = Reachability::default();
    let began = clock.now();
    for _ in 0..20 {
        // Like three links of one server.
        let turns = [(); 3].map(|()| async {
            reach.wait_turn(clock).await;
            reach.failed(clock.now());
        });
        futures_util::future::join_all(turns).await;
    }
    let took = began.until(clock.now());
    assert!(took > Duration::from_secs(60 / 4), "60 in {took:?}");
    assert!(took < Duration::from_secs(60), "60 in {took:?}");
    let late = async {
        reach.wait_turn(clock).await;
        reach.wait_turn(clock).await;
        clock.now()
    };
    let through = async { reach.succeeded(Duration::from_millis(1)) };
    let (at, ()) = tokio::join!(late, through);
    assert_eq!(began.until(at), took, "both waits end at once");
    assert!(!reach.is_backing_off(clock.now()));
}

#[tokio::test(start_paused = true)]
async fn a_failure_after_a_success_is_followed_by_the_first_pause() {
    let clock = Clock::of_runtime();
    let reach = Reachability::default();
    (0..10).for_each(|_| reach.failed(clock.now()));
    // Turns of links that do not use them.
    for _ in 0..10 {
        let turn = reach.wait_turn(clock).now_or_never();
        assert!(turn.is_none());
    }
    reach.succeeded(Duration::from_millis(1));
    reach.failed(clock.now());
    let began = clock.now();
    reach.wait_turn(clock).await;
    let waited = began.until(clock.now());
    assert!(waited < PAUSE_FIRST * 2, "{waited:?}");
}

/// A proxy without a server behind it may answer the handshake.
#[tokio::test(start_paused = true)]
async fn connections_that_answer_no_call_are_failed_attempts() {
    let clock = Clock::of_runtime();
    let reach = Reachability::default();
    let began = clock.now();
    for _ in 0..20 {
        reach.wait_turn(clock).await;
        reach.succeeded(Duration::from_millis(1));
        reach.failed_after(clock.now());
    }
    let took = began.until(clock.now());
    assert!(took > PAUSE_MAX * 19 / 2, "20 in {took:?}");
    // The next connection answers a call before it is cut.
    reach.succeeded(Duration::from_millis(1));
    reach.served();
    let cut = clock.now();
    reach.wait_turn(clock).await;
    assert_eq!(cut.until(clock.now()), Duration::ZERO);
    reach.failed_after(cut);
    reach.wait_turn(clock).await;
    assert!(cut.until(clock.now()) < PAUSE_FIRST * 2);
}

/// A server may close idle connections.
#[tokio::test(start_paused = true)]
async fn the_pause_begins_when_the_connection_was_made() {
    let clock = Clock::of_runtime();
    let reach = Reachability::default();
    let made = clock.now();
    reach.succeeded(Duration::from_millis(1));
    clock.sleep_until(made.after(PAUSE_FIRST * 2)).await;
    reach.failed_after(made);
    let before = clock.now();
    reach.wait_turn(clock).await;
    assert_eq!(before.until(clock.now()), Duration::ZERO);
}

#[test]
fn a_server_that_was_reached_is_not_waited_for_as_long_as_a_new_one() {
    let limit = Duration::from_secs(5);
    let reach = Reachability::default();
    assert_eq!(reach.step_timeout(limit), limit);
    reach.succeeded(Duration::from_millis(2));
    assert_eq!(reach.step_timeout(limit), STEP_MIN);
    assert_eq!(reach.step_timeout(STEP_MIN / 2), STEP_MIN / 2);
    reach.failed(Tick::ZERO);
    assert_eq!(reach.step_timeout(limit), STEP_MIN + STEP_MORE);
    (0..100).for_each(|_| reach.failed(Tick::ZERO));
    assert_eq!(reach.step_timeout(limit), limit);
    reach.succeeded(Duration::from_millis(400));
    assert_eq!(reach.step_timeout(limit), STEP_MIN);
    reach.succeeded(STEP_MIN * 2);
    assert_eq!(reach.step_timeout(limit), STEP_MIN * 2);
}

/// Seed 2000477, behind sentinels. The server died, another took over, and later it became the primary again.
/// Turns from the time when it was dead kept a client from it for 0.4 s.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_named_again_is_tried_at_once() {
    let clock = Clock::of_runtime();
    let reach = Reachability::default();
    reach.failed(clock.now());
    for _ in 0..3 {
        // Turns of links that are no longer in use when their turn comes.
        assert!(reach.wait_turn(clock).now_or_never().is_none());
    }
    reach.retire();
    let began = clock.now();
    let waits = reach.wait_turn(clock);
    let named = async { reach.reinstate() };
    futures_util::future::join(waits, named).await;
    reach.wait_turn(clock).await;
    assert_eq!(began.until(clock.now()), Duration::ZERO);
    assert!(!reach.is_backing_off(clock.now()));
}

#[derive(Debug, Default)]
struct Link(AtomicUsize);

impl Sibling for Link {
    fn leave_earlier(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }
}

fn run(id: &str) -> Option<Process> {
    Some(Process {
        run_id: id.into(),
        up_since: Tick::ZERO,
    })
}

#[test]
fn a_link_that_meets_another_process_has_its_siblings_leave_theirs() {
    let process = SharedProcess::default();
    let sibling = Arc::<Link>::default();
    process.add(&sibling);
    let left = || sibling.0.load(Ordering::Relaxed);
    let meets = |run| process.met(run, None, Tick::ZERO).unwrap();
    // A user without the right to ask.
    let (unknown, is_another) = meets(None);
    assert!(!is_another && !process.is_earlier(unknown));
    let (first, is_another) = meets(run("a"));
    assert!(!is_another && !process.is_earlier(unknown));
    let (again, is_another) = meets(run("a"));
    assert!(!is_another && again == first && left() == 0);
    let (second, is_another) = meets(run("b"));
    assert!(is_another && left() == 1);
    assert!(process.is_earlier(first) && !process.is_earlier(second));
    // The user may not ask any longer.
    let (third, is_another) = meets(None);
    assert!(is_another && left() == 2);
    assert!(process.is_earlier(second) && !process.is_earlier(third));
    drop(sibling);
    assert!(meets(run("a")).0 == third);
}

#[test]
fn only_the_node_that_the_map_names_is_accepted() {
    let process = SharedProcess::default();
    let sibling = Arc::<Link>::default();
    process.add(&sibling);
    let left = || sibling.0.load(Ordering::Relaxed);
    let meets = |node| process.met(None, node, Tick::ZERO);
    let ids = |ids: &[&str]| ids.iter().map(|id| (*id).to_owned()).collect();
    let (generation, _) = meets(Some("x")).unwrap();
    assert!(process.expect_node(ids(&["a", "b"])));
    assert!(process.is_earlier(generation) && left() == 1);
    for other in ["x", ""] {
        let refused = meets(Some(other)).unwrap_err().to_string();
        assert!(refused.contains("node a or b"), "{refused}");
    }
    // Both are behind one proxy. A user may lack the right to ask.
    for node in [Some("a"), Some("b"), None] {
        assert!(!meets(node).unwrap().1);
    }
    assert!(!process.expect_node(ids(&["b"])) && !process.expect_node(Vec::new()));
    assert_eq!(left(), 1);
}

#[test]
fn another_node_is_another_process_where_the_map_names_none() {
    let process = SharedProcess::default();
    let sibling = Arc::<Link>::default();
    process.add(&sibling);
    let left = || sibling.0.load(Ordering::Relaxed);
    let meets = |node| process.met(None, node, Tick::ZERO).unwrap();
    let (first, _) = meets(Some("a"));
    for same in [Some("a"), None] {
        assert_eq!(meets(same), (first, false), "{same:?}");
    }
    for another in ["b", ""] {
        let before = left();
        assert!(meets(Some(another)).1, "{another:?}");
        assert!(process.is_earlier(first) && left() == before + 1);
    }
}

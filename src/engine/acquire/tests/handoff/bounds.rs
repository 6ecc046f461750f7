//! Tests that hand-offs keep the order, need no command, and soon give other clients a turn.

use std::time::Duration;

use super::*;

/// Starts tasks that take the lock in turn. Returns how many commands had been sent when each task got the lock.
async fn crowd(server: &Arc<Scripted>, client: &Client, tasks: usize, hold: u32) -> Vec<usize> {
    let seen = Arc::<Mutex<Vec<(usize, usize)>>>::default();
    let first = client.lock("x").lock().await.unwrap();
    let mut crowd = Vec::new();
    for nth in 0..tasks {
        let (lock, server, seen) = (client.lock("x"), Arc::clone(server), Arc::clone(&seen));
        crowd.push(tokio::spawn(async move {
            let guard = lock.lock().await.unwrap();
            seen.lock().push((nth, server.sent().len()));
            if hold > 0 {
                tokio::time::sleep(MS * hold).await;
            }
            match nth % 2 {
                0 => guard.release().await.unwrap(),
                _ => drop(guard),
            }
        }));
    }
    others().await;
    first.release().await.unwrap();
    for task in crowd {
        task.await.unwrap();
    }
    let (order, seen): (Vec<_>, Vec<_>) = std::mem::take(&mut *seen.lock()).into_iter().unzip();
    assert_eq!(order, Vec::from_iter(0..tasks), "first come, first served");
    seen
}

/// How many tasks in a row had the lock without a command in between.
fn runs(seen: &[usize]) -> Vec<usize> {
    let runs = seen.chunk_by(|one, next| one == next);
    runs.map(<[_]>::len).collect()
}

#[tokio::test(start_paused = true)]
async fn tasks_in_a_row_have_it_in_order_without_a_command() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let seen = crowd(&server, &client, 10, 0).await;
    assert_eq!(seen, [1; 10]);
    nothing_is_left(&client).await;
    assert_eq!(whats(&server), [What::Take, What::Release]);
}

#[tokio::test(start_paused = true)]
async fn it_is_handed_off_sixteen_times_in_a_row() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let runs = runs(&crowd(&server, &client, 100, 0).await);
    let (last, full) = runs[1..].split_last().unwrap();
    // The task that asks the server, and sixteen hand-offs.
    assert!(full.iter().all(|run| *run == 17), "{runs:?}");
    assert!(runs[0] <= 16 && *last <= 17, "{runs:?}");
    nothing_is_left(&client).await;
}

#[tokio::test(start_paused = true)]
async fn it_is_handed_off_for_five_milliseconds_in_a_row() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let runs = runs(&crowd(&server, &client, 40, 2).await);
    // Handed off at 0, 2 and 4 ms of a slice.
    assert!(runs.iter().all(|run| *run <= 4), "{runs:?}");
    assert!(runs.len() < 20, "hand-offs go on that long: {runs:?}");
    nothing_is_left(&client).await;
}

/// A lock that is held for longer than a turn lasts is handed off at most once.
#[tokio::test(start_paused = true)]
async fn a_long_hold_is_handed_off_at_most_once() {
    let server = generous(|_, _| None);
    let client = Client::over(&server, LEASE);
    let runs = runs(&crowd(&server, &client, 10, 50).await);
    assert!(runs.iter().all(|run| *run <= 2), "{runs:?}");
    nothing_is_left(&client).await;
}

/// If another process waits, a pause follows each turn, so that the process can ask. It ends if the process does not
/// ask.
#[tokio::test(start_paused = true)]
async fn others_who_listen_get_the_time_to_ask() {
    let server = generous(|_, what| {
        let receivers = Value::Int(1);
        (what == What::Release).then_some(Answer::Value(receivers))
    });
    let client = Client::over(&server, LEASE);
    crowd(&server, &client, 100, 0).await;
    let sent = server.sent();
    let turns = sent
        .windows(2)
        .filter(|pair| What::of(&pair[0]) == What::Release && What::of(&pair[1]) == What::Take);
    let pauses: Vec<_> = turns.map(|pair| pair[1].at - pair[0].at).collect();
    assert!(pauses.len() >= 5);
    // The first attempt may go out before the answer to the release has counted the listeners. After three pauses
    // without an attempt of the listener, the client no longer waits for it.
    let expected = [2 * MS, 2 * MS, Duration::ZERO].map(Some);
    let pauses = [1, 2, 4].map(|at| pauses.get(at).copied());
    assert_eq!(pauses, expected);
    nothing_is_left(&client).await;
}

/// One task takes the lock repeatedly, with these pauses, while another process listens. Returns the time it took
/// beyond the pauses.
async fn again_and_again(pause: Duration) -> Duration {
    let one_listens =
        |_: &Sent, what| (what == What::Release).then(|| Answer::Value(Value::Int(1)));
    let server = generous(one_listens);
    let client = Client::over(&server, LEASE);
    let lock = client.lock("x");
    let began = tokio::time::Instant::now();
    for _ in 0..40 {
        lock.lock().await.unwrap().release().await.unwrap();
        tokio::time::sleep(pause).await;
    }
    let took = began.elapsed() - pause * 40;
    nothing_is_left(&client).await;
    took
}

/// A task that pauses takes no turns in a row, because others can ask in between.
#[tokio::test(start_paused = true)]
async fn one_task_that_pauses_does_not_back_off() {
    let took = again_and_again(3 * MS).await;
    assert!(took.is_zero(), "{took:?}");
}

/// Otherwise its attempt would always be behind its own release and ahead of every listener's attempt.
#[tokio::test(start_paused = true)]
async fn one_task_that_does_not_pause_gives_others_the_time_to_ask() {
    let took = again_and_again(Duration::ZERO).await;
    assert!((4 * MS..=20 * MS).contains(&took), "{took:?}");
}

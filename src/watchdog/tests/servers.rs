//! Tests renewals at several servers: each server keeps its own pace.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use super::super::BATCH_HOLDS_MAX;
use super::super::batches::{BATCHES_MAX, BATCHES_SLOW_MAX};
use super::{LEASE, MS, all_held, renewing};
use crate::client::Client;
use crate::conn::{EventHandler, Lane};
use crate::reentrant::ReentrantGuard;
use crate::testing::{Answer, Scripted, Sent, granted};

/// The time between the local deadline of a hold and the end of [`LEASE`].
const MARGIN: Duration = Duration::from_millis(302);

const IN_FLIGHT_MAX: usize = BATCHES_MAX * BATCH_HOLDS_MAX;

/// Returns the number at the end of a key.
fn number(key: &str) -> u64 {
    key.trim_start_matches(|c: char| !c.is_ascii_digit())
        .parse()
        .unwrap_or(0)
}

async fn take(client: &Client, numbers: std::ops::Range<u64>) -> Vec<ReentrantGuard> {
    let mut guards = Vec::new();
    for n in numbers {
        guards.push(client.lock(format!("x{n}")).lock().await.unwrap());
    }
    guards
}

fn renewals(server: &Scripted) -> Vec<Sent> {
    let mut sent = server.sent();
    sent.retain(|sent| sent.lane == Lane::Renewal);
    sent
}

fn keys(sent: &Sent) -> &[String] {
    &sent.script_args()[..sent.script_keys()]
}

/// Returns when each key was renewed.
fn times_of_keys(sent: &[Sent]) -> HashMap<&str, Vec<Duration>> {
    let mut times: HashMap<&str, Vec<Duration>> = HashMap::new();
    for sent in sent {
        for key in keys(sent) {
            times.entry(key).or_default().push(sent.at);
        }
    }
    times
}

/// Server 1 is silent and has more holds than fit under way. Servers 0 and 2 answer.
#[tokio::test(start_paused = true)]
async fn the_holds_of_a_silent_server_expire_and_the_others_keep_their_pace() {
    let place = |key: &str| ((number(key) % 60) as u16, number(key) % 3);
    let server = Scripted::many(place, |sent| match (sent.lane, sent.server) {
        (Lane::Renewal, 1) => Answer::Silence,
        (Lane::Renewal, _) => Answer::Late(MS * 3, all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guards = take(&client, 0..6000).await;
    // The holds of the silent server that wait for room expire in time as well.
    tokio::time::sleep(LEASE - MARGIN - MS).await;
    assert_eq!(client.stats().holds, 6000);
    tokio::time::sleep(MS * 2).await;
    assert_eq!(client.stats().holds, 4000);
    tokio::time::sleep(LEASE).await;
    for (n, guard) in guards.iter().enumerate() {
        assert_eq!(guard.is_lost(), n % 3 == 1, "{n}");
    }

    let sent = renewals(&server);
    let (silent, others): (Vec<Sent>, Vec<Sent>) =
        sent.into_iter().partition(|sent| sent.server == 1);
    let times = times_of_keys(&others);
    assert_eq!(times.len(), 4000);
    for (key, times) in &times {
        // Each renewal is early by the margin, and by a little more to join others. A batch waits for a few others of
        // its own server.
        for (round, at) in (1..).zip(times) {
            let due = LEASE / 3 * round;
            let early = (MARGIN + LEASE / 32) * round;
            assert!(due - early <= *at && *at <= due, "{key}: {times:?}");
        }
        assert_eq!(times.len(), 6, "{key}: {times:?}");
    }
    let asked = times_of_keys(&silent);
    assert_eq!(asked.len(), 2000, "each gets its turn");
    // 800 of 2000 per second for 20 s make about 8 tries each, in an order that the pauses shuffle.
    for (key, times) in &asked {
        assert!((5..=12).contains(&times.len()), "{key}: {times:?}");
    }
    // Each try waits for one second.
    assert_eq!(under_way_max(&silent, MS * 1000), IN_FLIGHT_MAX);
}

/// Returns the most holds under way at once, if each request takes `each`.
fn under_way_max(sent: &[Sent], each: Duration) -> usize {
    let mut changes: BTreeMap<Duration, i64> = BTreeMap::new();
    for sent in sent {
        let holds = i64::try_from(sent.script_keys()).unwrap();
        *changes.entry(sent.at).or_default() += holds;
        *changes.entry(sent.at + each).or_default() -= holds;
    }
    let under_way = changes.values().scan(0, |now, change| {
        *now += change;
        Some(*now)
    });
    usize::try_from(under_way.max().unwrap_or(0)).unwrap()
}

#[tokio::test(start_paused = true)]
async fn ten_thousand_holds_in_thousands_of_slots_are_renewed_in_time() {
    // Two neighbours share a slot.
    let place = |key: &str| {
        let slot = number(key) / 2;
        (slot as u16, slot % 3)
    };
    let server = Scripted::many(place, move |sent| match sent.lane {
        Lane::Renewal => Answer::Late(MS * 2, all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guards = take(&client, 0..10_000).await;
    tokio::time::sleep(LEASE * 2).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));

    let sent = renewals(&server);
    for sent in &sent {
        let here: Vec<_> = keys(sent).iter().map(|key| place(key)).collect();
        assert!(here.iter().all(|place| *place == here[0]), "{sent:?}");
        assert_eq!(sent.server, here[0].1);
    }
    let times = times_of_keys(&sent);
    assert_eq!(times.len(), 10_000);
    let rounds = 6;
    for (key, times) in &times {
        assert_eq!(times.len(), rounds, "{key}: {times:?}");
    }
    // There are 5000 slots. A pair may be split at the end of a batch, or of a pass over the due holds.
    let scripts = sent.len() / rounds;
    assert!((5_000..5_300).contains(&scripts), "{scripts}");
    // 34 batches for each server, 8 at a time, 2 ms each.
    let mut first: HashMap<usize, Duration> = HashMap::new();
    for times in times.values() {
        for (round, at) in times.iter().enumerate() {
            let first = first.entry(round).or_insert(*at);
            *first = (*first).min(*at);
        }
    }
    for times in times.values() {
        for (round, at) in times.iter().enumerate() {
            assert!(*at - first[&round] <= MS * 30, "{round}: {times:?}");
        }
    }
}

/// If each answer takes almost the time that a reply may take, eight batches at a time are too few: 800 holds in 900
/// ms, while 10 000 are due within ten seconds. Eight are enough for a server that answers at once.
#[tokio::test(start_paused = true)]
async fn more_batches_are_under_way_to_a_server_far_away() {
    const SHORT: Duration = Duration::from_secs(15);
    for (answers, most) in [(MS * 3, BATCHES_MAX), (MS * 900, BATCHES_SLOW_MAX)] {
        let server = renewing(move |sent| Answer::Late(answers, all_held(sent)));
        let client = Client::over(&server, SHORT);
        let guards = take(&client, 0..10_000).await;
        tokio::time::sleep(SHORT * 2).await;
        let sent = renewals(&server);
        assert!(guards.iter().all(|guard| !guard.is_lost()), "{answers:?}");
        assert_eq!(under_way_max(&sent, answers), most * BATCH_HOLDS_MAX);
    }
}

/// Each answer takes half a second longer than the one before, up to 4 s, which is longer than a reply may take at first.
#[tokio::test(start_paused = true)]
async fn a_server_that_answers_later_and_later_keeps_its_holds() {
    let answers = AtomicU64::new(0);
    let server = renewing(move |sent| {
        let answers = answers.fetch_add(1, Ordering::Relaxed).min(8);
        Answer::Late(MS * 500 * u32::try_from(answers).unwrap(), all_held(sent))
    });
    let client = Client::over(&server, LEASE);
    let guard = client.lock("x").lock().await.unwrap();
    tokio::time::sleep(LEASE * 8).await;
    assert!(!guard.is_lost(), "{:?}", server.times(Lane::Renewal));
    assert!(renewals(&server).len() > 16);
}

/// The leases differ by a millisecond each, and so do the times that their renewals may take.
#[tokio::test(start_paused = true)]
async fn holds_with_leases_of_about_the_same_length_are_renewed_together() {
    let server = renewing(|sent| Answer::Value(all_held(sent)));
    let client = Client::over(&server, LEASE);
    let mut guards = Vec::new();
    for n in 0..200 {
        let lock = client.lock(format!("x{n}")).lease(MS * (4_600 + n));
        guards.push(lock.lock().await.unwrap());
    }
    client.core().locals.moved();
    tokio::time::sleep(MS).await;
    let sizes: Vec<_> = renewals(&server).iter().map(Sent::script_keys).collect();
    assert_eq!(sizes, [100, 100]);
}

/// The first script of a batch to be answered does not wait for the last.
#[tokio::test(start_paused = true)]
async fn a_slow_script_delays_no_other_of_its_batch() {
    let place = |key: &str| (number(key) as u16, 0);
    let server = Scripted::many(place, |sent| match sent.lane {
        Lane::Renewal if keys(sent)[0] == "x1" => Answer::Late(MS * 900, all_held(sent)),
        Lane::Renewal => Answer::Value(all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guards = take(&client, 0..3).await;
    tokio::time::sleep(LEASE / 3 + MS * 500).await;
    assert_eq!(renewals(&server).len(), 3);
    let is_renewed = |guard: &ReentrantGuard| guard.remaining() > LEASE * 3 / 4;
    let renewed: Vec<bool> = guards.iter().map(is_renewed).collect();
    assert_eq!(renewed, [true, false, true]);
    tokio::time::sleep(MS * 500).await;
    assert!(guards.iter().all(is_renewed));
}

#[tokio::test(start_paused = true)]
async fn what_is_given_up_while_it_waits_for_room_is_in_no_batch() {
    let server = renewing(|sent| Answer::Late(MS * 500, all_held(sent)));
    let client = Client::over(&server, LEASE);
    let mut guards = take(&client, 0..1000).await;
    tokio::time::sleep(LEASE / 3).await;
    assert_eq!(times_of_keys(&renewals(&server)).len(), IN_FLIGHT_MAX);
    for guard in guards.drain(900..950) {
        drop(guard);
    }
    guards.pop().unwrap().forget();
    tokio::time::sleep(MS * 2000).await;
    let sent = renewals(&server);
    let times = times_of_keys(&sent);
    for n in 0..1000_u64 {
        let renewed = times.get(&*format!("x{n}")).map_or(0, Vec::len);
        let is_given_up = (900..950).contains(&n) || n == 999;
        assert_eq!(renewed, usize::from(!is_given_up), "{n}");
    }
}

/// A hold that waits for room at a silent server is renewed at the new server of its slot, as soon as that server is
/// known.
#[tokio::test(start_paused = true)]
async fn what_waits_for_room_goes_where_its_slot_has_moved() {
    let home = Arc::new(AtomicU64::new(1));
    let there = Arc::clone(&home);
    let place = move |key: &str| ((number(key) % 7) as u16, there.load(Ordering::Relaxed));
    let server = Scripted::many(place, |sent| match (sent.lane, sent.server) {
        (Lane::Renewal, 1) => Answer::Silence,
        (Lane::Renewal, _) => Answer::Value(all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guards = take(&client, 0..2000).await;
    tokio::time::sleep(LEASE / 3).await;
    assert_eq!(times_of_keys(&renewals(&server)).len(), IN_FLIGHT_MAX);

    // There is no notice of the move. The waiting holds learn of it when the batches before them are done.
    home.store(2, Ordering::Relaxed);
    tokio::time::sleep(MS * 1500).await;
    let sent = renewals(&server);
    let moved = sent.iter().filter(|sent| sent.server == 2).cloned();
    assert_eq!(times_of_keys(&moved.collect::<Vec<_>>()).len(), 2000);
    let late = sent.iter().filter(|sent| sent.server == 1);
    let last = late.map(|sent| sent.at).max().unwrap();
    assert!(last <= LEASE / 3, "{last:?}");

    // With a notice of the move, all holds are asked about at once.
    home.store(3, Ordering::Relaxed);
    client.core().locals.moved();
    tokio::time::sleep(MS * 100).await;
    let mut sent = renewals(&server);
    sent.retain(|sent| sent.server == 3);
    assert_eq!(times_of_keys(&sent).len(), 2000);
    tokio::time::sleep(LEASE).await;
    assert!(guards.iter().all(|guard| !guard.is_lost()));
}

/// When a doubt arises, the holds that wait for room stop waiting, and each is asked about.
#[tokio::test(start_paused = true)]
async fn a_doubt_reaches_what_waits_for_room() {
    let is_silent = Arc::new(AtomicBool::new(true));
    let silent = Arc::clone(&is_silent);
    let place = |key: &str| (0, number(key) % 2);
    let server = Scripted::many(place, move |sent| match (sent.lane, sent.server) {
        (Lane::Renewal, 1) if silent.load(Ordering::Relaxed) => Answer::Silence,
        (Lane::Renewal, _) => Answer::Value(all_held(sent)),
        _ => Answer::Value(granted()),
    });
    let client = Client::over(&server, LEASE);
    let guards = take(&client, 0..4000).await;
    tokio::time::sleep(LEASE / 3).await;
    let before = renewals(&server).len();
    client.core().locals.moved();
    tokio::time::sleep(MS * 200).await;
    let sent = renewals(&server);
    let healthy: Vec<Sent> = sent[before..]
        .iter()
        .filter(|sent| sent.server == 0)
        .cloned()
        .collect();
    assert_eq!(times_of_keys(&healthy).len(), 2000, "at once");

    is_silent.store(false, Ordering::Relaxed);
    let before = sent.len();
    tokio::time::sleep(MS * 1500).await;
    let sent = renewals(&server);
    let mut answered = times_of_keys(&sent[before..]);
    answered.retain(|key, _| number(key) % 2 == 1);
    assert_eq!(answered.len(), 2000);
    assert!(guards.iter().all(|guard| !guard.is_lost()));
    let asked = renewals(&server).len();
    tokio::time::sleep(MS * 2000).await;
    assert_eq!(renewals(&server).len(), asked, "no doubt is left");
}

/// Many holds at two servers, whose slots move. For a while each renewal is answered late, with an error, or not at
/// all, and all holds are doubted now and then. The servers are well again before a lease has ended.
#[tokio::test(start_paused = true)]
async fn no_hold_is_forgotten_whatever_becomes_of_its_renewals() {
    for seed in 0..2 {
        let random = Arc::new(Mutex::new(fastrand::Rng::with_seed(seed)));
        let [shift, troubled] = [(); 2].map(|()| Arc::new(AtomicU64::new(0)));
        let (shifted, trouble, dice) = (
            Arc::clone(&shift),
            Arc::clone(&troubled),
            Arc::clone(&random),
        );
        let place = move |key: &str| {
            let slot = number(key) % 11;
            (slot as u16, (slot + shifted.load(Ordering::Relaxed)) % 2)
        };
        let server = Scripted::many(place, move |sent| {
            if sent.lane != Lane::Renewal {
                return Answer::Value(granted());
            }
            let is_troubled = trouble.load(Ordering::Relaxed) > 0;
            match dice.lock().u32(0..6) {
                0 if is_troubled => Answer::Error("NOPERM no"),
                1 | 2 if is_troubled => Answer::Silence,
                3 if is_troubled => Answer::Value(redis::Value::Nil),
                at => Answer::Late(MS * at * 50, all_held(sent)),
            }
        });
        let client = Client::over(&server, LEASE);
        let guards = take(&client, 0..2_000).await;
        for round in 0..6 {
            let until = random.lock().u32(1_000..9_000);
            troubled.store(u64::from(round % 2 == 0), Ordering::Relaxed);
            for _ in 0..4 {
                tokio::time::sleep(MS * until / 4).await;
                let [what, by] = [4, 2].map(|most| random.lock().u64(0..most));
                match what {
                    0 => client.core().locals.moved(),
                    1 => shift.store(by, Ordering::Relaxed),
                    _ => {}
                }
            }
            let lost = guards.iter().filter(|guard| guard.is_lost()).count();
            assert_eq!(lost, 0, "seed {seed}, round {round}");
            if round % 2 == 1 {
                tokio::time::sleep(LEASE / 2).await;
                let least = guards.iter().map(ReentrantGuard::remaining).min().unwrap();
                assert!(least > LEASE / 2, "seed {seed}, round {round}: {least:?}");
            }
        }
    }
}

//! Tests which events an outage leads to: few, and every loss.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use futures_util::future::join_all;
use parking_lot::Mutex;
use redis::Value;

use super::{LEASE, MS, renewing};
use crate::client::Client;
use crate::observe::counts::Fact;
use crate::observe::events::Event;
use crate::script::catalog::REENTRANT_INSPECT;
use crate::testing::{Answer, Scripted, Sent, elsewhere};

/// The events of an observer that is blocked until `closed` is dropped.
struct Told {
    closed: Option<Sender<()>>,
    seen: Receiver<Event<'static>>,
}

impl Told {
    /// Lets the observer go on, and returns what it sees up to this event.
    fn until(&mut self, is_last: impl Fn(&Event<'_>) -> bool) -> Vec<Event<'static>> {
        self.closed = None;
        let mut told = Vec::new();
        while !told.iter().any(&is_last) {
            let next = self.seen.recv_timeout(Duration::from_secs(10));
            told.push(next.expect("the last one is told"));
        }
        told
    }
}

fn blocked(server: &Arc<Scripted>) -> (Client, Told) {
    let ((closed, opens), (sees, seen)) = (channel(), channel());
    let opens = Mutex::new(opens);
    let client = Client::over_told(server, LEASE, move |event: &Event<'_>| {
        // An error means that it was opened.
        let _ = opens.lock().recv();
        let _ = sees.send(event.clone().into_owned());
    });
    let closed = Some(closed);
    (client, Told { closed, seen })
}

/// The server is silent for 21 s of the lease. Ten seconds later it has lost one of the holds.
#[tokio::test(start_paused = true)]
async fn late_renewals_of_a_server_are_told_once_and_hide_no_loss() {
    const HOLDS: usize = 2_000;
    let server = renewing(|sent| {
        if sent.at < MS * 21_000 {
            return Answer::Silence;
        }
        let is_held = |key: &String| Value::Int((key != "x7" || sent.at < MS * 25_000).into());
        let keys = &sent.script_args()[..sent.script_keys()];
        Answer::Value(Value::Array(keys.iter().map(is_held).collect()))
    });
    let (client, mut told) = blocked(&server);
    let locks: Vec<_> = (0..HOLDS).map(|n| client.lock(format!("x{n}"))).collect();
    let guards = join_all(locks.iter().map(|lock| lock.lock())).await;
    tokio::time::sleep(LEASE * 2).await;
    let lost = guards
        .iter()
        .filter(|guard| guard.as_ref().unwrap().is_lost());
    assert_eq!(lost.count(), 1);
    let totals = client.stats().totals;
    assert_eq!(totals.events_dropped, 0, "{totals:?}");
    assert_eq!(totals.renewals.late, HOLDS as u64, "each is counted");
    let told = told.until(|event| matches!(event, Event::Lost { .. }));
    let late = told.iter().filter_map(|event| match event {
        Event::RenewalLate { left, .. } => Some(*left),
        _ => None,
    });
    let late: Vec<_> = late.collect();
    assert!(matches!(late[..], [left] if left < LEASE / 3), "{told:?}");
}

/// The server refuses each of a thousand locks, and does not say who holds them.
#[tokio::test(start_paused = true)]
async fn a_silent_server_is_asked_about_few_of_the_waits() {
    const CALLS: usize = 1_000;
    // The most in ten seconds.
    const TOLD_MAX: usize = 64;
    let is_question = |sent: &Sent| sent.is("EVALSHA") && sent.words[1] == REENTRANT_INSPECT.sha();
    let server = Scripted::new(move |sent| match sent.is("EVALSHA") {
        true if is_question(sent) => Answer::Silence,
        true => Answer::Value(elsewhere(60_000)),
        false => Answer::Value(Value::Nil),
    });
    let (client, mut told) = blocked(&server);
    let locks: Vec<_> = (0..CALLS).map(|n| client.lock(format!("x{n}"))).collect();
    let calls = join_all(locks.iter().map(|lock| lock.lock()));
    let ended = tokio::time::timeout(MS * 9_000, calls).await;
    assert!(ended.is_err(), "all of them wait");
    let mut sent = server.sent();
    sent.retain(is_question);
    let asked: BTreeSet<&str> = sent.iter().map(|sent| &*sent.script_args()[0]).collect();
    assert_eq!(asked.len(), TOLD_MAX);
    let observed = client.core().observed();
    let lock = "the last".into();
    observed.note(Fact::event(Event::Forced { lock }));
    let told = told.until(|event| matches!(event, Event::Forced { .. }));
    let waits = told
        .iter()
        .filter(|event| matches!(event, Event::LongWait { .. }));
    assert_eq!(waits.count(), TOLD_MAX, "{told:?}");
}

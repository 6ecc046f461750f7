//! Fenced locks that are taken without a script.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redis::Value;

use super::{LEASE, MS};
use crate::NativePath;
use crate::client::Client;
use crate::testing::{Answer, Scripted, Sent, done};

/// The counter of a server whose lock is always free: scripts set it to the clock.
#[derive(Default)]
struct Counter(AtomicU64);

impl Counter {
    fn answer(&self, sent: &Sent) -> Answer {
        let counter = &self.0;
        Answer::Value(match &*sent.words[0] {
            "MULTI" | "PUBLISH" => Value::Okay,
            "HDEL" => Value::Int(1),
            "RESTORE" => queued(),
            "INCRBY" => {
                let step = sent.words[2].parse().unwrap();
                counter.fetch_add(step, Ordering::Relaxed);
                queued()
            }
            "EXEC" => {
                let number = i64::try_from(counter.load(Ordering::Relaxed)).unwrap();
                Value::Array(vec![Value::Okay, Value::Int(number)])
            }
            _ if is_acquire(sent) => {
                let clock = 1_790_000_000_000_000 + u64::try_from(sent.at.as_micros()).unwrap();
                let last = counter.load(Ordering::Relaxed);
                let token = clock.max(last + 1).next_multiple_of(64);
                counter.store(token, Ordering::Relaxed);
                Value::BulkString(token.to_string().into_bytes())
            }
            _ => done(),
        })
    }
}

fn queued() -> Value {
    Value::SimpleString("QUEUED".to_owned())
}

/// By script; with the key of the counter.
fn is_acquire(sent: &Sent) -> bool {
    sent.is("EVALSHA") && sent.script_keys() == 2
}

/// Where a late attempt cannot be ruled out, each number that is no token costs another holder id.
#[tokio::test(start_paused = true)]
async fn a_number_that_is_no_token_is_asked_for_once() {
    let counter = Arc::<Counter>::default();
    let at_server = Arc::clone(&counter);
    let server = Scripted::with_past(false, move |sent| at_server.answer(sent));
    let client = Client::over_by(&server, LEASE, NativePath::On);
    let lock = client.lock("x").fenced();
    for _ in 0..2 {
        lock.lock().await.unwrap().release().await.unwrap();
        tokio::time::sleep(MS * 100).await;
    }
    let count = |which: fn(&Sent) -> bool| server.sent().iter().filter(|sent| which(sent)).count();
    assert_eq!([count(is_acquire), count(|sent| sent.is("EXEC"))], [1, 1]);
    // Another client was granted the lock meanwhile: the next number is ahead of what this one knows of the clock.
    counter.0.fetch_add(64 * 10_000, Ordering::Relaxed);
    let guard = lock.lock().await.unwrap();
    assert_eq!(
        [count(is_acquire), count(|sent| sent.is("EXEC"))],
        [3, 2],
        "the script in the place of the transaction, and one for the next holder id"
    );
    drop(guard);
}

/// A server that denies both `MULTI` and `EXEC` has done what is between them; then nobody can be reached.
#[tokio::test(start_paused = true)]
async fn what_was_done_without_a_transaction_is_undone() {
    let counter = Arc::<Counter>::default();
    let is_gone = Arc::new(AtomicBool::new(false));
    let (at_server, gone) = (Arc::clone(&counter), Arc::clone(&is_gone));
    let server = Scripted::new(move |sent| match &*sent.words[0] {
        "EVALSHA" if gone.load(Ordering::Relaxed) => Answer::Unsent,
        "MULTI" if gone.load(Ordering::Relaxed) => Answer::Error("NOPERM no permissions"),
        "RESTORE" if gone.load(Ordering::Relaxed) => Answer::Value(Value::Okay),
        "EXEC" if gone.load(Ordering::Relaxed) => Answer::Error(
            "EXECABORT Transaction discarded because of: NOPERM no permissions to run 'exec'",
        ),
        _ => at_server.answer(sent),
    });
    let client = Client::over_by(&server, LEASE, NativePath::On);
    let lock = client.lock("x").fenced();
    lock.lock().await.unwrap().release().await.unwrap();
    tokio::time::sleep(MS * 100).await;
    is_gone.store(true, Ordering::Relaxed);
    let taken = server.sent().len();
    let failed = lock.lock().await.unwrap_err();
    assert!(failed.is_io(), "{failed}");
    is_gone.store(false, Ordering::Relaxed);
    tokio::time::sleep(LEASE).await;
    let sent = server.sent();
    let sent = &sent[taken..];
    assert_eq!(sent.iter().filter(|sent| sent.is("RESTORE")).count(), 1);
    let undone = sent
        .iter()
        .any(|sent| sent.is("EVALSHA") && sent.script_keys() == 1 && sent.script_args()[2] == "0");
    assert!(undone, "{sent:?}");
}

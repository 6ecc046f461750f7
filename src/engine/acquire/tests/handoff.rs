//! Tests hand-offs between tasks of one client: what is handed off, what is not, and what remains.

mod bounds;
mod fenced;
mod gone;
mod leases;
mod owners;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Poll;

use parking_lot::Mutex;
use redis::Value;
use tokio::task::JoinHandle;

use super::{LEASE, MS};
use crate::client::Client;
use crate::reentrant::{ReentrantGuard, ReentrantLock};
use crate::script::catalog;
use crate::testing::{Answer, Scripted, Sent, done};

/// The purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Take,
    Release,
    Renew,
    /// A request for a token for a hold without one.
    Token,
    Other,
}

impl What {
    fn of(sent: &Sent) -> Self {
        if !sent.is("EVALSHA") {
            return Self::Other;
        }
        let sha = &*sent.words[1];
        if sha == catalog::REENTRANT_ACQUIRE.sha() {
            Self::Take
        } else if sha == catalog::REENTRANT_RELEASE.sha() {
            Self::Release
        } else if sha == catalog::RENEW.sha() {
            Self::Renew
        } else if sha == catalog::TAKE_TOKEN.sha() {
            Self::Token
        } else {
            Self::Other
        }
    }
}

fn whats(server: &Scripted) -> Vec<What> {
    server.sent().iter().map(What::of).collect()
}

/// The arguments of a script, after its keys.
fn args(sent: &Sent) -> &[String] {
    &sent.script_args()[sent.script_keys()..]
}

fn takes(server: &Scripted) -> Vec<Sent> {
    let mut sent = server.sent();
    sent.retain(|sent| What::of(sent) == What::Take);
    sent
}

/// A server that grants and confirms everything, except where `otherwise` gives another answer. Its fencing tokens
/// begin with 100.
fn generous(
    otherwise: impl Fn(&Sent, What) -> Option<Answer> + Send + Sync + 'static,
) -> Arc<Scripted> {
    let next = AtomicU64::new(100);
    Scripted::new(move |sent| {
        let what = What::of(sent);
        if let Some(answer) = otherwise(sent, what) {
            return answer;
        }
        Answer::Value(match what {
            What::Take => match args(sent)[2].parse().unwrap() {
                0 => Value::Nil,
                tokens => {
                    let token = next.fetch_add(tokens, Ordering::Relaxed);
                    Value::BulkString(token.to_string().into_bytes())
                }
            },
            What::Token => {
                let token = next.fetch_add(1, Ordering::Relaxed);
                Value::BulkString(token.to_string().into_bytes())
            }
            What::Release => done(),
            What::Renew => Value::Array(vec![Value::Int(1); sent.script_keys()]),
            What::Other => Value::Nil,
        })
    })
}

/// The holder id in a command.
fn holder(sent: &Sent) -> &str {
    &args(sent)[0]
}

/// Lets all other tasks run, without advancing time.
async fn others() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

/// Polls a future once.
async fn poll<F: Future + Unpin>(work: &mut F) -> Poll<F::Output> {
    std::future::poll_fn(|context| Poll::Ready(Pin::new(&mut *work).poll(context))).await
}

type Got = crate::Result<ReentrantGuard>;

/// A task that waits for the lock, in its place in the queue.
async fn waiter(lock: ReentrantLock) -> JoinHandle<Got> {
    let task = tokio::spawn(async move { lock.lock().await });
    others().await;
    assert!(!task.is_finished(), "it waits");
    task
}

/// The guard of a task that must have the lock already.
async fn got(task: JoinHandle<Got>) -> ReentrantGuard {
    others().await;
    assert!(task.is_finished(), "it has it");
    task.await.unwrap().unwrap()
}

/// Checks that nothing is held, waited for or under way.
async fn nothing_is_left(client: &Client) {
    tokio::time::sleep(MS * 200).await;
    assert!(client.stats().is_idle(), "{:?}", client.stats());
}

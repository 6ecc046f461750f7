//! Shared parts of the read-write lock tests: a server, a record of its commands, and tasks that read and write.

use std::sync::Arc;

use redis::Value;
use tokio::task::JoinHandle;

use super::{LEASE, MS};
use crate::client::Client;
use crate::rwlock::{ReadGuard, RwLock, WriteGuard};
use crate::script::catalog;
use crate::testing::{Answer, Scripted, Sent, done};

/// The purpose of a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum What {
    Read,
    Write,
    Release,
    Downgrade,
    Renew,
    Other,
}

impl What {
    pub(super) fn of(sent: &Sent) -> Self {
        if !sent.is("EVALSHA") {
            return Self::Other;
        }
        let sha = &*sent.words[1];
        if sha == catalog::READ_ACQUIRE.sha() {
            Self::Read
        } else if sha == catalog::WRITE_ACQUIRE.sha() {
            Self::Write
        } else if sha == catalog::RW_RELEASE.sha() {
            Self::Release
        } else if sha == catalog::RW_DOWNGRADE.sha() {
            Self::Downgrade
        } else if sha == catalog::RW_RENEW.sha() {
            Self::Renew
        } else {
            Self::Other
        }
    }
}

/// Whether it asks for a token for a hold without one.
pub(super) fn is_for_token(sent: &Sent) -> bool {
    sent.is("EVALSHA") && sent.words[1] == catalog::TAKE_TOKEN.sha()
}

/// The lock commands that the server received.
pub(super) fn asked(server: &Scripted) -> Vec<What> {
    let sent = server.sent();
    let whats = sent.iter().map(What::of);
    whats.filter(|what| *what != What::Other).collect()
}

/// A server that grants and confirms everything, except where `otherwise` gives another answer.
fn generous(
    otherwise: impl Fn(&Sent, What) -> Option<Answer> + Send + Sync + 'static,
) -> Arc<Scripted> {
    Scripted::new(move |sent| {
        let what = What::of(sent);
        otherwise(sent, what).unwrap_or_else(|| {
            Answer::Value(match what {
                What::Release | What::Downgrade => done(),
                What::Renew => Value::Array(vec![Value::Int(1); sent.script_keys()]),
                What::Other if is_for_token(sent) => Value::BulkString(b"7".to_vec()),
                _ => Value::Nil,
            })
        })
    })
}

/// A server as in [`generous`], a client, and a handle of one lock.
pub(super) fn scene_where(
    otherwise: impl Fn(&Sent, What) -> Option<Answer> + Send + Sync + 'static,
) -> (Arc<Scripted>, Client, RwLock) {
    let server = generous(otherwise);
    let client = Client::over(&server, LEASE);
    let lock = client.rw_lock("x");
    (server, client, lock)
}

/// Like [`scene_where`], with a server that grants and confirms everything.
pub(super) fn scene() -> (Arc<Scripted>, Client, RwLock) {
    scene_where(|_, _| None)
}

/// Delays each read grant.
pub(super) fn reads_are_slow(_: &Sent, what: What) -> Option<Answer> {
    (what == What::Read).then(|| Answer::Late(MS, Value::Nil))
}

/// Answers each renewal that the hold is gone.
pub(super) fn holds_are_gone(sent: &Sent, what: What) -> Option<Answer> {
    let gone = || Value::Array(vec![Value::Int(0); sent.script_keys()]);
    (what == What::Renew).then(|| Answer::Value(gone()))
}

pub(super) async fn others() {
    for _ in 0..50 {
        tokio::task::yield_now().await;
    }
}

pub(super) async fn nothing_is_left(client: &Client) {
    tokio::time::sleep(MS * 200).await;
    assert!(client.stats().is_idle(), "{:?}", client.stats());
}

pub(super) type Got<G> = JoinHandle<crate::Result<G>>;

pub(super) async fn reader(lock: &RwLock) -> Got<ReadGuard> {
    let lock = lock.clone();
    let task = tokio::spawn(async move { lock.read().await });
    others().await;
    task
}

pub(super) async fn writer(lock: &RwLock) -> Got<WriteGuard> {
    let lock = lock.clone();
    let task = tokio::spawn(async move { lock.write().await });
    others().await;
    task
}

pub(super) async fn got<G>(task: Got<G>) -> G {
    others().await;
    assert!(task.is_finished(), "it has it");
    task.await.unwrap().unwrap()
}

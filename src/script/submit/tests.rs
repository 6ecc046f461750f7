//! Tests of the release of several holds in one write.

use std::sync::Arc;

use tokio::sync::mpsc;

use super::*;
use crate::api::holder::HolderId;
use crate::script::{NativePath, catalog, tell};
use crate::testing::{Answer, Scripted};

const LIMIT: Duration = Duration::from_secs(1);

/// The holds `1` on `a`, `2` on `b`, `3` on `c`.
fn three() -> Vec<Call> {
    let each = (1..).zip(["a", "b", "c"]).map(|(number, key)| {
        let tell = Arc::new(tell("PUBLISH", &format!("channel:{key}")));
        Call::release_plain(&key.into(), &HolderId::new("h", number), tell)
    });
    each.collect()
}

#[derive(Debug)]
struct Told(mpsc::UnboundedSender<Result<Replies, Fault>>);

impl Recipient for Told {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        self.0.send(outcome).unwrap();
    }
}

async fn release(server: &Arc<Scripted>) -> Result<Vec<Result<Released, Executed>>, Failure> {
    release_by(server, NativePath::On).await
}

async fn release_by(
    server: &Arc<Scripted>,
    path: NativePath,
) -> Result<Vec<Result<Released, Executed>>, Failure> {
    let transport = Arc::clone(server) as _;
    let scripts = Scripts::new(transport, server.clock(), Arc::default(), path);
    let (calls, all) = (three(), || {
        Call::new(&catalog::MULTI_RELEASE, &"a".into(), &[])
    });
    let (told, mut ends) = mpsc::unbounded_channel();
    let sent = server.clock().now();
    assert!(scripts.submit_releases(&calls, all, LIMIT, Arc::new(Told(told))));
    let outcome = ends.recv().await.unwrap();
    let released = scripts.released(sent, outcome, 3);
    released.map(|each| each.to_vec())
}

fn verbs(server: &Scripted) -> Vec<String> {
    let sent = server.sent();
    sent.iter().map(|sent| sent.words[0].clone()).collect()
}

const TOLD: Result<Released, Executed> = Ok(Released::Done { receivers: 2 });

#[tokio::test(start_paused = true)]
async fn all_are_submitted_in_one_write() {
    let server =
        Scripted::new(|sent| Answer::Value(Value::Int(if sent.is("HDEL") { 1 } else { 2 })));
    assert_eq!(release(&server).await.unwrap(), [TOLD; 3]);
    assert_eq!(verbs(&server), ["HDEL", "PUBLISH"].repeat(3));
    let words: Vec<_> = server.sent().into_iter().map(|sent| sent.words).collect();
    assert_eq!(words[2], ["HDEL", "b", "h:2"]);
    assert_eq!(words[3], ["PUBLISH", "channel:b", "0"]);
}

#[tokio::test(start_paused = true)]
async fn each_has_its_own_reply() {
    let server = Scripted::new(|sent| match (&*sent.words[0], &*sent.words[1]) {
        ("PUBLISH", _) => Answer::Value(Value::Int(2)),
        (_, "a") => Answer::Value(Value::Int(0)),
        (_, "b") => Answer::Error("WRONGTYPE no"),
        _ => Answer::Value(Value::Int(1)),
    });
    let released = release(&server).await.unwrap();
    assert_eq!(released, [Err(Executed::No), Err(Executed::No), TOLD]);
}

/// If one hold needs a script, a single script releases all of them.
#[tokio::test(start_paused = true)]
async fn a_script_has_one_reply_for_all() {
    let server =
        Scripted::new(|_| Answer::Value(Value::Array([2, -1, 2].map(Value::Int).to_vec())));
    let released = release_by(&server, NativePath::Off).await.unwrap();
    assert_eq!(released, [TOLD, Ok(Released::NotHeld), TOLD]);
    assert_eq!(verbs(&server), ["EVALSHA"]);
    for strange in [
        Value::Array(vec![Value::Int(2); 2]),
        Value::Int(2),
        Value::Nil,
    ] {
        let server = Scripted::new(move |_| Answer::Value(strange.clone()));
        let released = release_by(&server, NativePath::Off).await.unwrap();
        assert_eq!(released, [Err(Executed::Maybe); 3]);
    }
}

#[tokio::test(start_paused = true)]
async fn without_an_answer_it_is_known_whether_it_was_sent() {
    for (answer, executed) in [
        (Answer::Unsent, Executed::No),
        (
            Answer::Declined("LOADING the dataset is being loaded"),
            Executed::No,
        ),
        (Answer::Silence, Executed::Maybe),
    ] {
        let server = Scripted::new(move |_| answer.clone());
        assert_eq!(release(&server).await.unwrap_err().executed, executed);
    }
}

//! Tests of the release of several holds by plain commands, in one write.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use tokio::sync::mpsc;

use super::*;
use crate::api::holder::HolderId;
use crate::script::reply::released_each;
use crate::script::{Answer as Answered, NativePath, tell};
use crate::testing::{Answer, Scripted, Sent, each};

const LIMIT: Duration = Duration::from_secs(1);

fn scripts(server: &Arc<Scripted>) -> Scripts {
    let transport = Arc::clone(server) as _;
    Scripts::new(transport, server.clock(), Arc::default(), NativePath::On)
}

/// The holds `1` on `a`, `2` on `b`, `3` on `c`.
fn three() -> Call {
    let holds: Vec<(Arc<str>, HolderId)> = (1..)
        .zip(["a", "b", "c"])
        .map(|(number, key)| (key.into(), HolderId::new("h", number)))
        .collect();
    let holds = holds.iter().map(|(key, holder)| {
        let tell = tell("PUBLISH", &format!("channel:{key}"));
        (key, holder, Arc::new(tell))
    });
    Call::release_all_plain(holds)
}

async fn run(server: &Arc<Scripted>) -> (Answered, Vec<Released>) {
    let budget = CallBudget::until(Tick::NEVER, LIMIT);
    let call = three();
    let scripts = scripts(server);
    let answer = scripts.run(Lane::Command, &call, budget).await.unwrap();
    let released = released_each(&answer.value, 3).unwrap();
    (answer, released.to_vec())
}

#[derive(Debug)]
struct Told(mpsc::UnboundedSender<Result<Replies, Fault>>);

impl Recipient for Told {
    fn received(self: Arc<Self>, outcome: Result<Replies, Fault>) {
        self.0.send(outcome).unwrap();
    }
}

async fn release(server: &Arc<Scripted>) -> Result<Vec<Option<Released>>, Failure> {
    let (call, scripts) = (three(), scripts(server));
    let (told, mut ends) = mpsc::unbounded_channel();
    let (lane, sent) = (Lane::Command, server.clock().now());
    assert!(scripts.submit_release(lane, &call, LIMIT, Arc::new(Told(told))));
    let outcome = ends.recv().await.unwrap();
    let released = scripts.released(lane, sent, outcome, 3);
    released.map(|each| each.to_vec())
}

fn verbs(server: &Scripted) -> Vec<String> {
    let sent = server.sent();
    sent.iter().map(|sent| sent.words[0].clone()).collect()
}

const TOLD: Option<Released> = Some(Released::Done { receivers: 2 });

#[tokio::test(start_paused = true)]
async fn all_are_submitted_before_anybody_is_told() {
    let server =
        Scripted::new(|sent| Answer::Value(Value::Int(if sent.is("HDEL") { 1 } else { 2 })));
    assert_eq!(release(&server).await.unwrap(), [TOLD; 3]);
    let publish = ["PUBLISH"; 3];
    assert_eq!(verbs(&server), [["HDEL"; 3], publish].concat());
    let words: Vec<_> = server.sent().into_iter().map(|sent| sent.words).collect();
    assert_eq!(words[1], ["HDEL", "b", "h:2"]);
    assert_eq!(words[4], ["PUBLISH", "channel:b", "0"]);
}

/// Only the script says why.
#[tokio::test(start_paused = true)]
async fn one_that_is_not_there_has_no_answer() {
    let server = Scripted::new(|sent| {
        let is_there = sent.words[1] != "b";
        Answer::Value(Value::Int(if sent.is("HDEL") {
            i64::from(is_there)
        } else {
            2
        }))
    });
    assert_eq!(release(&server).await.unwrap(), [TOLD, None, TOLD]);
    let script = three();
    let words = script.by_sha().args_iter().skip(3);
    let words = words.map(|word| match word {
        redis::Arg::Simple(word) => String::from_utf8(word.to_vec()).unwrap(),
        _ => unreachable!("it has no cursor"),
    });
    let args = "a b c PUBLISH plain h:1 channel:a plain h:2 channel:b plain h:3 channel:c";
    assert_eq!(words.collect::<Vec<_>>().join(" "), args);
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

/// Answers for the three holds, without the one on `b`; two connections listen on each channel.
fn without_b(sent: &Sent) -> Option<Answer> {
    match &*sent.words[0] {
        "HDEL" => Some(Answer::Value(Value::Int(i64::from(sent.words[1] != "b")))),
        "PUBLISH" => Some(Answer::Value(Value::Int(2))),
        _ => None,
    }
}

const DONE: Released = Released::Done { receivers: 2 };

#[tokio::test(start_paused = true)]
async fn all_are_given_up_before_anybody_is_told() {
    let server =
        Scripted::new(|sent| Answer::Value(Value::Int(if sent.is("HDEL") { 1 } else { 2 })));
    let (answer, released) = run(&server).await;
    assert_eq!(released, [DONE; 3]);
    assert!(!answer.repeated);
    let publish = ["PUBLISH"; 3];
    assert_eq!(verbs(&server), [["HDEL"; 3], publish].concat());
    let words: Vec<_> = server.sent().into_iter().map(|sent| sent.words).collect();
    assert_eq!(words[1], ["HDEL", "b", "h:2"]);
    assert_eq!(words[4], ["PUBLISH", "channel:b", "0"]);
}

#[tokio::test(start_paused = true)]
async fn of_one_that_is_not_there_the_script_says_why() {
    let server =
        Scripted::new(|sent| without_b(sent).unwrap_or_else(|| Answer::Value(each(-1, 3))));
    let (_, released) = run(&server).await;
    assert_eq!(released, [DONE, Released::NotHeld, DONE]);
    let sent = server.sent();
    let script = sent.last().unwrap();
    assert!(script.is("EVALSHA"));
    let args = "a b c PUBLISH plain h:1 channel:a plain h:2 channel:b plain h:3 channel:c";
    assert_eq!(script.script_args().join(" "), args);
}

/// A hold that the repeat does not find may then have been released here.
#[tokio::test(start_paused = true)]
async fn a_script_that_is_not_executed_for_now_leaves_a_doubt() {
    let for_now = [
        || Answer::Error("LOADING the dataset is being loaded"),
        || Answer::Declined("LOADING the dataset is being loaded"),
        || Answer::Unsent,
    ];
    for answer in for_now {
        let scripts_run = AtomicU32::new(0);
        let server = Scripted::new(move |sent| {
            if let Some(answer) = without_b(sent) {
                return answer;
            }
            match scripts_run.fetch_add(1, Ordering::Relaxed) {
                0 => answer(),
                _ => Answer::Value(each(-1, 3)),
            }
        });
        let (answer, released) = run(&server).await;
        assert!(answer.repeated);
        assert_eq!(released, [DONE, Released::NotHeld, DONE]);
    }
}

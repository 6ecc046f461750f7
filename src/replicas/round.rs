//! One wait for replicas: the renewals of all who wait together, and `WAIT` behind them.

use std::collections::BTreeMap;
use std::time::Duration;

use redis::{RedisError, Value};

use super::{Answer, Entry, Verdict};
use crate::conn::Lane;
use crate::conn::error_reply::{code, is_temporary, is_unknown_command};
use crate::script::{Call, Failure, Scripts, millis, reply};

/// Confirms all of them. They are of one server, as far as was known when they came.
pub(super) async fn run(scripts: &Scripts, reply: Duration, entries: Vec<Entry>) {
    let answers = ask(scripts, reply, &entries).await;
    let mut elsewhere: BTreeMap<u16, Vec<Entry>> = BTreeMap::new();
    for (entry, answer) in entries.into_iter().zip(answers) {
        match answer {
            Err(Unconfirmed::Elsewhere(_)) => {
                let slot = scripts.transport.slot(&entry.holds[0].key);
                elsewhere.entry(slot).or_default().push(entry);
            }
            Err(Unconfirmed::Failed(failure)) => tell(entry, Err(failure)),
            Ok(verdict) => tell(entry, Ok(verdict)),
        }
    }
    // Slots that have moved, or are about to: each is followed on its own.
    for entries in elsewhere.into_values() {
        let answers = ask(scripts, reply, &entries).await;
        for (entry, answer) in entries.into_iter().zip(answers) {
            tell(entry, answer.map_err(Unconfirmed::into_failure));
        }
    }
}

fn tell(entry: Entry, answer: Answer) {
    // It may have been given up meanwhile.
    let _ = entry.answer.send(answer);
}

#[derive(Clone, Debug)]
enum Unconfirmed {
    /// Another server has this slot.
    Elsewhere(RedisError),
    Failed(Failure),
}

impl Unconfirmed {
    fn into_failure(self) -> Failure {
        match self {
            Self::Elsewhere(error) => error.into(),
            Self::Failed(failure) => failure,
        }
    }
}

/// One wait; an answer for each entry.
async fn ask(
    scripts: &Scripts,
    reply: Duration,
    entries: &[Entry],
) -> Vec<Result<Verdict, Unconfirmed>> {
    let now = scripts.clock.now();
    let replication = entries[0].replication;
    // By slot and by script, the holds of which entries.
    let mut groups: BTreeMap<(u16, &str), Vec<(usize, usize)>> = BTreeMap::new();
    for (at, entry) in entries.iter().enumerate() {
        for (number, hold) in entry.holds.iter().enumerate() {
            let group = (scripts.transport.slot(&hold.key), hold.script.sha());
            groups.entry(group).or_default().push((at, number));
        }
    }
    let calls: Vec<Call> = groups
        .values()
        .map(|places| {
            let holds = places
                .iter()
                .map(|(at, number)| &entries[*at].holds[*number]);
            let keys: Vec<&str> = holds.clone().map(|hold| &*hold.key).collect();
            let (at, number) = places[0];
            let first = &entries[at].holds[number];
            let call = Call::new(first.script, &first.key, &keys);
            holds.fold(call, |call, hold| {
                let left = now.until(hold.until).max(Duration::from_millis(1));
                call.arg(&*hold.holder).arg(millis(left))
            })
        })
        .collect();
    let mut wait = redis::cmd("WAIT");
    wait.arg(replication.count).arg(millis(replication.within));
    let limit = replication.within + reply;
    let route = &entries[0].holds[0].key;
    let mut answers = match scripts
        .run_before(Lane::Confirm, route, &calls, &wait, limit)
        .await
    {
        Ok(answers) => answers,
        Err(failure) => return vec![Err(Unconfirmed::Failed(failure)); entries.len()],
    };
    let waited = verdict(answers.pop(), i64::from(replication.count));
    let mut verdicts = vec![waited; entries.len()];
    for (places, answer) in groups.values().zip(answers) {
        let held = renewed(answer, places.len());
        for (number, (at, _)) in places.iter().enumerate() {
            match &held {
                Ok(held) if held[number] => {}
                // Whatever else is true of this entry.
                Ok(_) => verdicts[*at] = Ok(Verdict::Gone),
                Err(said) => verdicts[*at] = said.clone().map(|()| Verdict::Gone),
            }
        }
    }
    verdicts
}

/// Which holds were renewed; else what that means for all of them, `Ok` if they are to be asked for
/// anew.
fn renewed(
    answer: Result<Value, RedisError>,
    holds: usize,
) -> Result<Vec<bool>, Result<(), Unconfirmed>> {
    let value = answer.map_err(|error| match code(&error) {
        Some("MOVED" | "ASK") => Err(Unconfirmed::Elsewhere(error)),
        _ if is_temporary(&error) => Ok(()),
        _ => Err(Unconfirmed::Failed(error.into())),
    })?;
    reply::renewed(&value, holds)
        .map_err(|error| Err(Unconfirmed::Failed(Failure::silent(error.to_string()))))
}

/// What `WAIT` was answered.
fn verdict(answer: Option<Result<Value, RedisError>>, count: i64) -> Result<Verdict, Unconfirmed> {
    match answer {
        Some(Ok(Value::Int(replicas))) if replicas >= count => Ok(Verdict::Confirmed),
        Some(Ok(Value::Int(replicas))) => Ok(Verdict::TooFew(replicas)),
        Some(Err(error)) if is_temporary(&error) => Ok(Verdict::Gone),
        Some(Err(error)) if code(&error) == Some("NOPERM") || is_unknown_command(&error) => {
            Ok(Verdict::Denied(error))
        }
        Some(Err(error)) => Err(Unconfirmed::Failed(error.into())),
        Some(Ok(other)) => {
            let why = format!("WAIT returned {other:?}; is a proxy changing replies?");
            Err(Unconfirmed::Failed(Failure::silent(why)))
        }
        None => Err(Unconfirmed::Failed(Failure::silent("WAIT has no answer"))),
    }
}

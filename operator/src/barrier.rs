//! Barriers as operators see them.
//!
//! Invariant: a key of an application is never shown. A barrier has a number of parties, and parties with ids like ours.

use std::sync::Arc;

use lockset::Result;
use lockset::operator::LockName;

use crate::ask::{Question, ask_all, command, integer, list, milliseconds, scored, span_of};
use crate::info::{HoldMode, LockInfo, LockKind, QueuedWaiter};
use crate::read::Reader;
use crate::recognize::client_of;

/// The prefix of the keys with the parties of barriers.
pub(crate) const ARRIVALS: &str = "lockset_barrier_arrived";

/// The prefix of the channels of barriers.
pub(crate) const CHANNEL: &str = "lockset_barrier";

/// The most parties of a barrier.
const PARTIES_MAX: u64 = 1_000;

/// The number of questions for each barrier.
const QUESTIONS: usize = 3;

/// The parties that wait at a barrier.
pub(crate) struct Waiting {
    pub(crate) lock: LockInfo,
    pub(crate) parties: Vec<QueuedWaiter>,
}

impl Reader {
    /// Returns the barriers of these names where a party waits.
    pub(crate) async fn read_barriers(&self, names: Vec<LockName>) -> Result<Vec<Waiting>> {
        let questions = names.iter().flat_map(|name| -> [Question; QUESTIONS] {
            let ask = |words: &[&str]| (Arc::clone(name.key()), command(words));
            let arrivals = name.barrier_arrivals_key();
            [
                ask(&["GET", &name.barrier_key()]),
                ask(&["TIME"]),
                ask(&["ZRANGE", &arrivals, "0", "-1", "WITHSCORES"]),
            ]
        });
        let answers = ask_all(self.servers(), &questions.collect::<Vec<_>>()).await;
        let mut found = Vec::new();
        for (name, answers) in names.iter().zip(answers.chunks_exact(QUESTIONS)) {
            if let Some(Err(error)) = answers.iter().find(|answer| answer.is_err())
                && !error.is_wrong_type()
            {
                return Err(error.clone());
            }
            if let [Ok(parties), Ok(time), Ok(arrived)] = answers {
                let count = list(arrived).len();
                let arrived = scored(arrived);
                // One that is no text is none of ours, and was left out.
                if count == arrived.len() || count == 2 * arrived.len() {
                    let parties = integer(parties).and_then(|count| u64::try_from(count).ok());
                    found.extend(recognized(name, parties, milliseconds(time), arrived));
                }
            }
        }
        Ok(found)
    }
}

/// The barrier where these parties have arrived; `None` if it is none.
fn recognized(
    name: &LockName,
    parties: Option<u64>,
    now: f64,
    arrived: Vec<(String, f64)>,
) -> Option<Waiting> {
    let parties = parties.filter(|parties| (1..=PARTIES_MAX).contains(parties))?;
    let are_ours = arrived.iter().all(|(id, _)| client_of(id).is_some());
    if arrived.is_empty() || !are_ours {
        return None;
    }
    let mut waiting: Vec<QueuedWaiter> = arrived
        .into_iter()
        .map(|(id, until)| QueuedWaiter {
            id,
            mode: HoldMode::Party,
            has_heartbeat: true,
            kept_for: span_of(until - now),
            client: None,
        })
        .collect();
    // Renewals change the order of the ends.
    waiting.sort_by(|a, b| a.id.cmp(&b.id));
    let ends = waiting.iter().map(|party| party.kept_for);
    Some(Waiting {
        lock: LockInfo {
            name: name.as_str().to_owned(),
            key: name.barrier_key(),
            kind: LockKind::Barrier,
            holders: Vec::new(),
            remaining: ends.max().unwrap_or_default(),
            waiters: waiting.len(),
            token: None,
            free_permits: None,
            count: None,
            parties: Some(parties),
            value: None,
        },
        parties: waiting,
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const OURS: &str = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60";

    fn found(parties: Option<u64>, arrived: &[(&str, f64)]) -> Option<Waiting> {
        let name = LockName::new("", "x").unwrap();
        let arrived = arrived
            .iter()
            .map(|(id, until)| (id.replace('U', OURS), *until));
        recognized(&name, parties, 1000.0, arrived.collect())
    }

    #[test]
    fn parties_with_and_without_a_name_are_recognized() {
        let arrived = [("U:9 worker-2", 3000.0), ("U:7", 900.0)];
        let Waiting { lock, parties } = found(Some(3), &arrived).unwrap();
        assert_eq!(
            (lock.kind, lock.parties, lock.waiters),
            (LockKind::Barrier, Some(3), 2)
        );
        assert_eq!((&*lock.name, &*lock.key), ("x", "lockset_barrier:{x}"));
        assert_eq!(lock.remaining, Duration::from_secs(2));
        assert_eq!(parties[0].id, format!("{OURS}:7"));
        assert_eq!(parties[0].kept_for, Duration::ZERO);
    }

    #[test]
    fn the_keys_of_applications_are_not() {
        for (parties, arrived) in [
            (Some(3), &[][..]),
            (None, &[("U:7", 3000.0)]),
            (Some(0), &[("U:7", 3000.0)]),
            (Some(1001), &[("U:7", 3000.0)]),
            (Some(3), &[("U:7", 3000.0), ("user:7", 3000.0)]),
        ] {
            assert!(found(parties, arrived).is_none(), "{parties:?} {arrived:?}");
        }
    }
}

//! Looks at the server once a second, and sends samples.
//!
//! Invariant: looking for locks stays within its share of the server's time. After each look for them it pauses until
//! the look's time is this share of the whole. A whole round trip counts as the server's time, so the real share is
//! smaller.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use lockset_operator::{ClientInfo, HoldMode, LockDetail, LockInfo, Survey};
use tokio::sync::{mpsc, watch};
use tokio::time::sleep;

use super::model::{Detail, OTHERS_MAX, Place, Sample, Seen, WATCHED_MAX};
use crate::facts::{numbers, remaining, short, times, who};
use crate::failure::{Failure, is_of_one_server};
use crate::span;

/// The time between two looks at the locks in sight.
const EVERY: Duration = Duration::from_secs(1);

/// The number of locks out of sight in one look: all have their turn in a minute.
const AGAIN_MAX: usize = OTHERS_MAX / 60;

/// The locks that the view shows.
#[derive(Clone, Debug, Default)]
pub(super) struct Wanted {
    pub(super) names: Vec<String>,
    pub(super) selected: Option<String>,
}

pub(super) struct Sampler {
    survey: Survey,
    share: f64,
    began: Instant,
    wanted: watch::Receiver<Wanted>,
    samples: mpsc::Sender<Sample>,
    others: Others,
    clients: Vec<Arc<ClientInfo>>,
}

/// The locks that are known, to be looked at again in turn.
#[derive(Debug, Default)]
struct Others {
    /// The one with the oldest look first.
    names: VecDeque<String>,
    /// For each, when its lease ends if it is not renewed, counted from the beginning of the view.
    ends: HashMap<String, Duration>,
}

impl Others {
    fn learn(&mut self, name: &str, end: Duration) {
        if self.ends.insert(name.to_owned(), end).is_none() {
            self.names.push_back(name.to_owned());
        }
    }

    /// Takes the names whose turn it is. A scan finds those again that were renewed after they were forgotten.
    fn take(&mut self, now: Duration) -> Vec<String> {
        if self.names.len() > OTHERS_MAX {
            self.ends.retain(|_, end| *end > now);
            self.names.retain(|name| self.ends.contains_key(name));
        }
        let some = AGAIN_MAX.min(self.names.len());
        let taken: Vec<String> = self.names.drain(..some).collect();
        for name in &taken {
            self.ends.remove(name);
        }
        taken
    }
}

/// When each kind of look is due.
struct Due {
    contended: Instant,
    clients: Instant,
}

impl Sampler {
    pub(super) fn new(
        survey: Survey,
        share: f64,
        began: Instant,
        wanted: watch::Receiver<Wanted>,
        samples: mpsc::Sender<Sample>,
    ) -> Self {
        Self {
            survey: survey.share(share / 2.0),
            share,
            began,
            wanted,
            samples,
            others: Others::default(),
            clients: Vec::new(),
        }
    }

    /// Runs until the receiver of samples is gone.
    pub(super) async fn run(mut self) {
        let mut due = Due {
            contended: self.began,
            clients: self.began,
        };
        let (found, mut news) = mpsc::channel(64);
        let scan = tokio::spawn(scan(self.survey.clone(), found));
        loop {
            let began = Instant::now();
            let sample = match self.look(&mut due, &mut news).await {
                Ok(sample) => sample,
                Err(error) => Sample {
                    at: self.began.elapsed(),
                    trouble: Some(error.to_string()),
                    has_failed: true,
                    ..Sample::default()
                },
            };
            if self.samples.send(sample).await.is_err() {
                scan.abort();
                return;
            }
            sleep(EVERY.saturating_sub(began.elapsed())).await;
        }
    }

    async fn look(
        &mut self,
        due: &mut Due,
        news: &mut mpsc::Receiver<Result<Vec<LockInfo>, lockset::Error>>,
    ) -> Result<Sample, lockset::Error> {
        // In every look, so that a server that has gone away is noticed although no locks are in sight.
        let load = self.survey.load().await?;
        let mut locks: Vec<LockInfo> = Vec::new();
        while let Ok(found) = news.try_recv() {
            // The load has the failures of single servers.
            match found {
                Err(error) if is_of_one_server(&error) => {}
                found => locks.extend(found?),
            }
        }
        if Instant::now() >= due.contended {
            let began = Instant::now();
            locks.extend(contended(&self.survey).await?);
            due.contended = began + began.elapsed().div_f64(self.share);
        }
        if Instant::now() >= due.clients {
            self.clients = self.survey.clients().await.unwrap_or_default();
            due.clients = Instant::now() + EVERY * 10;
        }
        let (survey, away) = (self.survey.clone(), &load.failures);
        let answers = |name: &str| {
            let place = survey.place(name);
            place.is_ok_and(|(_, address)| !away.contains_key(&address))
        };
        let wanted = self.wanted.borrow().clone();
        self.learn(&locks);
        let mut looked_for = self.names(&wanted);
        looked_for.retain(|name| answers(name));
        let names: Vec<&str> = looked_for.iter().map(String::as_str).collect();
        locks.extend(survey.named(&names).await?);
        let detail = match &wanted.selected {
            Some(name) if answers(name) => survey.inspect(name).await.ok().flatten(),
            _ => None,
        };
        if let Some(found) = &detail {
            locks.push(found.lock.clone());
        }
        self.learn(&locks);
        // Of a lock that was looked at twice, the last look counts.
        let mut names = HashSet::new();
        let last = locks.iter().rev().filter(|lock| names.insert(&lock.name));
        let seen: Vec<Seen> = last.map(|lock| self.seen(lock)).collect();
        Ok(Sample {
            at: self.began.elapsed(),
            locks: seen,
            looked_for,
            server: load.address,
            ops_per_second: load.commands_per_second,
            round_trip: load.round_trip,
            clients: self.clients.len(),
            detail: detail.map(|found| described(&found)),
            trouble: load.failures.values().next().map(ToString::to_string),
            has_failed: false,
        })
    }

    fn learn(&mut self, found: &[LockInfo]) {
        let now = self.began.elapsed();
        for lock in found {
            let end = now.saturating_add(lock.remaining);
            self.others.learn(&lock.name, end);
        }
    }

    /// The names in sight, and some of the others.
    fn names(&mut self, wanted: &Wanted) -> Vec<String> {
        let mut names: Vec<String> = wanted.names.iter().take(WATCHED_MAX).cloned().collect();
        for name in self.others.take(self.began.elapsed()) {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        names
    }

    fn seen(&self, lock: &LockInfo) -> Seen {
        let first = lock.holders.first();
        let waits = self
            .clients
            .iter()
            .filter_map(|client| client.announced.as_ref());
        let waits = waits.flat_map(|announced| &announced.waits);
        let of_it = waits.filter(|wait| wait.key == lock.key);
        Seen {
            name: lock.name.clone(),
            kind: lock.kind.as_str(),
            holder: first.map(|first| first.id.clone()).unwrap_or_default(),
            who: first
                .map(|first| who(&first.id, first.client.as_deref()))
                .unwrap_or_default(),
            holders: lock.holders.len(),
            age: lock.held_for(),
            remaining: remaining(lock),
            waiters: lock.waiters,
            longest_wait: of_it.map(|wait| wait.lasts).max(),
            token: lock.token.map(lockset::FencingToken::get),
        }
    }
}

/// Passes over all keys, one after the other.
async fn scan(survey: Survey, found: mpsc::Sender<Result<Vec<LockInfo>, lockset::Error>>) {
    loop {
        let mut scan = survey.scan();
        loop {
            match scan.next().await {
                Ok(Some(locks)) if locks.is_empty() => {}
                Ok(Some(locks)) => {
                    if found.send(Ok(locks)).await.is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(error) => {
                    let is_over = !is_of_one_server(&error);
                    if found.send(Err(error)).await.is_err() {
                        return;
                    }
                    if is_over {
                        break;
                    }
                    scan.leave_out();
                }
            }
        }
        sleep(EVERY * 5).await;
    }
}

fn described(found: &LockDetail) -> Detail {
    let (holders, value) = (found.lock.holders.iter(), found.lock.value.as_ref());
    Detail {
        name: found.lock.name.clone(),
        server: found.server.clone(),
        facts: numbers(&found.lock)
            .into_iter()
            .chain(value.map(|value| format!("value {value}")))
            .collect(),
        holders: holders
            .map(|holder| {
                let mode = match holder.mode {
                    HoldMode::Exclusive | HoldMode::Permit => String::new(),
                    mode => format!(", to {}", mode.as_str()),
                };
                let left = holder
                    .remaining
                    .map(|left| format!(", lease {}", span::show(left)));
                let who = who(&holder.id, holder.client.as_deref());
                let (id, count) = (short(&holder.id), times(holder));
                format!("{who}{mode}{count}{} ({id})", left.unwrap_or_default())
            })
            .collect(),
        queue: found
            .queue
            .iter()
            .map(|waiter| Place {
                is_ours: waiter.has_heartbeat || waiter.client.is_some(),
                is_dead: waiter.has_heartbeat && waiter.kept_for.is_zero(),
                who: who(&waiter.id, waiter.client.as_deref()),
                kept: waiter.kept_for,
            })
            .collect(),
        waits: found
            .announced_waits
            .iter()
            .map(|(client, lasts)| (who(&client.id, Some(client)), *lasts))
            .collect(),
    }
}

/// The locks with waiters at the servers that answer.
async fn contended(survey: &Survey) -> Result<Vec<LockInfo>, lockset::Error> {
    let (mut scan, mut all) = (survey.scan_contended(), Vec::new());
    loop {
        match scan.next().await {
            Ok(Some(locks)) => all.extend(locks),
            Ok(None) => return Ok(all),
            Err(error) if is_of_one_server(&error) => scan.leave_out(),
            Err(error) => return Err(error),
        }
    }
}

/// Looks once, so that an error of the server is reported before the view takes the screen.
pub(super) async fn check(survey: &Survey) -> Result<(), Failure> {
    survey.load().await?;
    contended(survey).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn locks_that_have_ended_are_not_kept_for_ever() {
        let mut others = Others::default();
        let mut longest = 0;
        for second in 0..1_000 {
            let now = EVERY * second;
            for number in 0..1_000 {
                others.learn(&format!("{second}:{number}"), now + EVERY);
            }
            others.learn("long", EVERY * 10_000);
            for name in others.take(now) {
                // It is there when it is looked at.
                if name == "long" {
                    others.learn(&name, EVERY * 10_000);
                }
            }
            longest = longest.max(others.names.len());
            assert!(others.ends.contains_key("long"));
            assert_eq!(others.names.len(), others.ends.len());
        }
        assert!(longest <= OTHERS_MAX + 2_000, "{longest}");
    }

    /// Their turn comes, however long their leases have been over: the view learns what became of them.
    #[test]
    fn few_locks_are_all_looked_at_again() {
        let mut others = Others::default();
        for number in 0..OTHERS_MAX {
            others.learn(&number.to_string(), EVERY);
        }
        let turns = (0..60).flat_map(|second| others.take(EVERY * (2 + second)));
        assert_eq!(turns.collect::<HashSet<_>>().len(), OTHERS_MAX);
    }
}

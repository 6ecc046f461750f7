//! Pure: from samples to the view. It draws nothing, sends nothing and reads no clock.
//!
//! Invariant: the same samples and keys lead to the same view.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Events that are kept.
const TAPE_MAX: usize = 64;

/// A lease that is renewed every third of its length never has less left than this part of it.
const LATE: f64 = 0.5;

/// The least growth of the remaining lease that counts as a renewal: clocks differ a little.
const JUMP: Duration = Duration::from_millis(50);

/// The half-life of a rate, in seconds.
const RATE_HALF_LIFE: f64 = 5.0;

/// How long a lock that is gone stays in the view.
const GONE_SHOWN: Duration = Duration::from_secs(5);

/// How long a lock stays in the view after its lease, if nothing more is known of it. Locks out of sight are looked at
/// again within this time, unless they are too many.
const UNSEEN_SHOWN: Duration = Duration::from_secs(90);

/// Rows that are looked at every time, whether or not they are in sight.
pub(super) const WATCHED_MAX: usize = 60;

/// The most others that are all looked at again in their turn. Of more, those are forgotten whose leases are over.
pub(super) const OTHERS_MAX: usize = 1_200;

const ROWS_MAX: usize = WATCHED_MAX + OTHERS_MAX;

/// A lock at the moment of a sample.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) kind: &'static str,
    /// The id of the first holder; empty if the lock is free.
    pub(super) holder: String,
    /// The holder in words.
    pub(super) who: String,
    pub(super) holders: usize,
    pub(super) age: Option<Duration>,
    /// `None` for a kind without leases.
    pub(super) remaining: Option<Duration>,
    pub(super) waiters: usize,
    pub(super) longest_wait: Option<Duration>,
    pub(super) token: Option<u64>,
}

/// A place in the queue of a lock.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Place {
    /// Whether it is a waiter of this library, and not of Redisson.
    pub(super) is_ours: bool,
    /// Its heartbeat has ended.
    pub(super) is_dead: bool,
    pub(super) who: String,
    pub(super) kept: Duration,
}

/// The details of the lock under the cursor.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Detail {
    pub(super) name: String,
    pub(super) server: String,
    /// The numbers of a semaphore or a latch, the value of a leader.
    pub(super) facts: Vec<String>,
    /// Each holder in words.
    pub(super) holders: Vec<String>,
    pub(super) queue: Vec<Place>,
    /// Clients that have announced their wait, and its length.
    pub(super) waits: Vec<(String, Duration)>,
}

/// The locks as seen at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// The time since the view began.
    pub(super) at: Duration,
    pub(super) locks: Vec<Seen>,
    /// Names that were looked for, so that those not among `locks` are known to be free.
    pub(super) looked_for: Vec<String>,
    pub(super) server: String,
    pub(super) ops_per_second: u64,
    pub(super) clients: usize,
    pub(super) round_trip: Duration,
    pub(super) detail: Option<Detail>,
    /// The error of a look that failed, or of a server that was left out.
    pub(super) trouble: Option<String>,
    /// Whether nothing was seen.
    pub(super) has_failed: bool,
}

/// The state of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    Held,
    /// Its lease was not renewed when it should have been.
    Late,
    Free,
    /// Its lease ran out.
    Expired,
}

/// A lock over time.
#[derive(Clone, Debug)]
pub(super) struct Row {
    pub(super) seen: Seen,
    pub(super) state: State,
    /// The longest lease that was seen of this holder.
    pub(super) lease: Duration,
    /// Changes of the holder per second: a lower bound of the grants.
    pub(super) rate: f64,
    sampled: Duration,
    /// When this holder was first seen.
    since: Duration,
    gone: Option<Duration>,
}

impl Row {
    fn new(seen: Seen, at: Duration) -> Self {
        let state = if seen.holder.is_empty() {
            State::Free
        } else {
            State::Held
        };
        Self {
            lease: seen.remaining.unwrap_or_default(),
            seen,
            state,
            rate: 0.0,
            sampled: at,
            since: at,
            gone: None,
        }
    }

    /// The remaining lease at a later moment, without another sample.
    pub(super) fn remaining(&self, now: Duration) -> Option<Duration> {
        let passed = now.saturating_sub(self.sampled);
        Some(self.seen.remaining?.saturating_sub(passed))
    }

    /// Whether there was a lease, and it is over.
    fn has_run_out(&self, now: Duration) -> bool {
        self.remaining(now) == Some(Duration::ZERO)
    }

    /// The part of the lease that is left.
    pub(super) fn left(&self, now: Duration) -> f64 {
        if self.lease.is_zero() {
            return 0.0;
        }
        self.remaining(now).unwrap_or_default().as_secs_f64() / self.lease.as_secs_f64()
    }

    /// How long the holder has had the lock, as far as the view knows.
    pub(super) fn age(&self, now: Duration) -> Duration {
        let watched = now.saturating_sub(self.since);
        let told = self
            .seen
            .age
            .map(|age| age + now.saturating_sub(self.sampled));
        told.unwrap_or(watched).max(watched)
    }
}

/// The order of the rows; the largest comes first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Sort {
    #[default]
    Waiters,
    Age,
    Rate,
    Name,
}

impl Sort {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Waiters => "waiters",
            Self::Age => "age",
            Self::Rate => "rate",
            Self::Name => "name",
        }
    }

    fn next(self) -> Self {
        match self {
            Self::Waiters => Self::Age,
            Self::Age => Self::Rate,
            Self::Rate => Self::Name,
            Self::Name => Self::Waiters,
        }
    }
}

/// Something that happened between two samples.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Happened {
    pub(super) at: Duration,
    pub(super) text: String,
    pub(super) is_bad: bool,
}

/// The action of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Up,
    Down,
    Sort,
    Freeze,
    Open,
    Back,
    Filter,
    Letter(char),
    Erase,
    Help,
    Quit,
}

/// The state of the view.
#[derive(Debug, Default)]
pub(super) struct Model {
    pub(super) last: Sample,
    rows: BTreeMap<String, Row>,
    pub(super) tape: VecDeque<Happened>,
    pub(super) sort: Sort,
    pub(super) filter: String,
    pub(super) is_filtering: bool,
    pub(super) is_frozen: bool,
    /// Whether the keys are shown in place of the locks.
    pub(super) is_helping: bool,
    /// The name of the lock under the cursor.
    cursor: Option<String>,
    /// The lock whose page is open.
    pub(super) open: Option<String>,
    pub(super) is_over: bool,
    /// When samples came again after a while without: no lock could be seen before.
    resumed: Duration,
}

impl Model {
    /// Takes a sample.
    pub(super) fn take(&mut self, sample: Sample) {
        if self.is_frozen {
            return;
        }
        if let (Some(trouble), None) = (&sample.trouble, &self.last.trouble) {
            self.tell(sample.at, trouble.clone(), true);
        }
        if sample.has_failed {
            self.last.trouble = sample.trouble;
            return;
        }
        let at = sample.at;
        if at.saturating_sub(self.last.at) > UNSEEN_SHOWN / 3 {
            self.resumed = at;
        }
        for seen in sample.locks.iter().cloned() {
            self.see(seen, at);
        }
        for name in &sample.looked_for {
            if !sample.locks.iter().any(|seen| seen.name == *name) {
                self.miss(name, at);
            }
        }
        let are_many = self.rows.len() > ROWS_MAX;
        let unseen = if are_many { GONE_SHOWN } else { UNSEEN_SHOWN };
        self.rows.retain(|_, row| match row.gone {
            Some(gone) => at < gone + GONE_SHOWN,
            None => {
                let since = row.sampled.max(self.resumed);
                let left = row.seen.remaining.unwrap_or_default();
                at.saturating_sub(since) < left.saturating_add(unseen)
            }
        });
        self.last = sample;
    }

    fn see(&mut self, seen: Seen, at: Duration) {
        let name = seen.name.clone();
        let Some(row) = self.rows.get_mut(&name) else {
            self.rows.insert(name, Row::new(seen, at));
            return;
        };
        let passed = at.saturating_sub(row.sampled).as_secs_f64();
        let fade = 0.5_f64.powf(passed / RATE_HALF_LIFE);
        let is_new = row.seen.holder != seen.holder && !seen.holder.is_empty();
        let now = f64::from(u8::from(is_new)) / passed.max(0.001);
        row.rate = row.rate * fade + now * (1.0 - fade);
        let was_late = row.state == State::Late;
        let expected = row.remaining(at);
        let mut told = None;
        if seen.holder.is_empty() {
            if row.state != State::Free {
                let end = ended(row, at);
                told = Some((format!("{name} {} {}", row.seen.who, end.0), end.1));
            }
            row.state = State::Free;
            row.lease = Duration::ZERO;
        } else if is_new {
            let has_changed = !row.seen.holder.is_empty() && row.seen.who != seen.who;
            if row.has_run_out(at) && !row.seen.holder.is_empty() {
                told = Some((
                    format!("{name} lease of {} ran out, now {}", row.seen.who, seen.who),
                    true,
                ));
            } else if has_changed {
                told = Some((format!("{name} {} -> {}", row.seen.who, seen.who), false));
            }
            row.since = at;
            row.lease = seen.remaining.unwrap_or_default();
            row.state = State::Held;
        } else {
            row.lease = row.lease.max(seen.remaining.unwrap_or_default());
            let is_renewed = seen.remaining > expected.map(|expected| expected + JUMP);
            let is_late = seen.remaining.is_some_and(|remaining| {
                remaining.as_secs_f64() / row.lease.as_secs_f64().max(0.001) < LATE
            });
            row.state = match is_late {
                true => State::Late,
                false => State::Held,
            };
            if row.state == State::Late && !was_late {
                told = Some((format!("{name} {} has not renewed", seen.who), true));
            } else if was_late && is_renewed && row.state == State::Held {
                told = Some((format!("{name} {} has renewed again", seen.who), false));
            }
        }
        row.seen = seen;
        row.sampled = at;
        row.gone = None;
        if let Some((text, is_bad)) = told {
            self.tell(at, text, is_bad);
        }
    }

    /// Notes a lock that was looked for and not found.
    fn miss(&mut self, name: &str, at: Duration) {
        let Some(row) = self.rows.get_mut(name).filter(|row| row.gone.is_none()) else {
            return;
        };
        let (end, is_bad) = ended(row, at);
        let was_held = !row.seen.holder.is_empty();
        row.state = if is_bad && was_held {
            State::Expired
        } else {
            State::Free
        };
        row.gone = Some(at);
        row.seen.remaining = row.seen.remaining.map(|_| Duration::ZERO);
        row.sampled = at;
        let text = format!("{name} {} {end}", row.seen.who);
        if was_held && (is_bad || row.age(at) > GONE_SHOWN) {
            self.tell(at, text, is_bad);
        }
    }

    fn tell(&mut self, at: Duration, text: String, is_bad: bool) {
        self.tape.push_front(Happened { at, text, is_bad });
        self.tape.truncate(TAPE_MAX);
    }

    /// The rows that pass the filter, in order.
    pub(super) fn rows(&self) -> Vec<&Row> {
        let at = self.last.at;
        let wanted = self.rows.values().filter(|row| {
            row.seen.name.contains(&self.filter) || row.seen.who.contains(&self.filter)
        });
        let mut rows: Vec<&Row> = wanted.collect();
        rows.sort_by(|a, b| match self.sort {
            Sort::Waiters => b.seen.waiters.cmp(&a.seen.waiters),
            Sort::Age => b.age(at).cmp(&a.age(at)),
            Sort::Rate => b.rate.total_cmp(&a.rate),
            Sort::Name => std::cmp::Ordering::Equal,
        });
        rows
    }

    /// The number of locks that are held, filtered or not. Locks that are free stay in the view for a while.
    pub(super) fn held(&self) -> usize {
        let is_held = |row: &&Row| matches!(row.state, State::Held | State::Late);
        self.rows.values().filter(is_held).count()
    }

    /// Grants a second, at least, over all locks.
    pub(super) fn rate(&self) -> f64 {
        self.rows.values().fold(0.0, |sum, row| sum + row.rate)
    }

    /// Where the cursor is among the rows.
    pub(super) fn at(&self, rows: &[&Row]) -> usize {
        let under = |row: &&Row| Some(&row.seen.name) == self.cursor.as_ref();
        rows.iter().position(under).unwrap_or(0)
    }

    /// The lock whose queue is shown: the lock of the open page, otherwise the lock under the cursor.
    pub(super) fn selected(&self) -> Option<String> {
        let rows = self.rows();
        let under = rows.get(self.at(&rows)).map(|row| row.seen.name.clone());
        self.open.clone().or(under)
    }

    pub(super) fn row(&self, name: &str) -> Option<&Row> {
        self.rows.get(name)
    }

    /// Does the action of a key.
    pub(super) fn act(&mut self, action: Action) {
        match action {
            Action::Quit => self.is_over = true,
            Action::Up => self.step(-1),
            Action::Down => self.step(1),
            Action::Sort => self.sort = self.sort.next(),
            Action::Freeze => self.is_frozen = !self.is_frozen,
            Action::Help => self.is_helping = !self.is_helping,
            Action::Filter => self.is_filtering = true,
            Action::Letter(letter) => self.filter.push(letter),
            Action::Erase => {
                self.filter.pop();
            }
            Action::Open if self.is_filtering => self.is_filtering = false,
            Action::Open => {
                let rows = self.rows();
                self.open = rows.get(self.at(&rows)).map(|row| row.seen.name.clone());
            }
            Action::Back if self.is_helping => self.is_helping = false,
            Action::Back if self.is_filtering => {
                self.is_filtering = false;
                self.filter.clear();
            }
            Action::Back if self.open.is_some() => self.open = None,
            Action::Back => self.filter.clear(),
        }
    }

    fn step(&mut self, by: isize) {
        let rows = self.rows();
        let last = rows.len().saturating_sub(1);
        let at = self.at(&rows).saturating_add_signed(by).min(last);
        self.cursor = rows.get(at).map(|row| row.seen.name.clone());
    }
}

/// How a hold that is gone ended, and whether that was bad.
fn ended(row: &Row, at: Duration) -> (&'static str, bool) {
    if row.has_run_out(at) || row.state == State::Late {
        ("its lease ran out", true)
    } else {
        ("released it", false)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    fn lock(name: &str, holder: &str, remaining: f64, waiters: usize) -> Seen {
        Seen {
            name: name.to_owned(),
            kind: "exclusive",
            holder: holder.to_owned(),
            who: holder.to_owned(),
            holders: 1,
            remaining: Some(s(remaining)),
            waiters,
            ..Seen::default()
        }
    }

    fn sample(at: f64, locks: &[Seen]) -> Sample {
        Sample {
            at: s(at),
            locks: locks.to_vec(),
            looked_for: vec!["a".to_owned(), "b".to_owned()],
            ..Sample::default()
        }
    }

    fn told(model: &Model) -> Vec<(&str, bool)> {
        let tape = model.tape.iter();
        tape.map(|happened| (happened.text.as_str(), happened.is_bad))
            .collect()
    }

    #[test]
    fn a_bar_drains_and_jumps_back_at_a_renewal() {
        let mut model = Model::default();
        model.take(sample(0.0, &[lock("a", "x", 30.0, 0)]));
        assert!((model.rows()[0].left(s(6.0)) - 0.8).abs() < 0.01);
        model.take(sample(10.0, &[lock("a", "x", 20.0, 0)]));
        assert_eq!(model.rows()[0].state, State::Held);
        model.take(sample(11.0, &[lock("a", "x", 29.0, 0)]));
        assert!(model.rows()[0].left(s(11.0)) > 0.95);
        assert_eq!(told(&model), []);
    }

    #[test]
    fn a_holder_that_dies_is_seen_before_its_lease_ends() {
        let mut model = Model::default();
        model.take(sample(0.0, &[lock("a", "x", 30.0, 2)]));
        model.take(sample(16.0, &[lock("a", "x", 14.0, 2)]));
        assert_eq!(model.rows()[0].state, State::Late);
        model.take(sample(31.0, &[lock("a", "y", 30.0, 1)]));
        assert_eq!(model.rows()[0].state, State::Held);
        model.take(sample(40.0, &[]));
        assert_eq!(
            told(&model),
            [
                ("a y released it", false),
                ("a lease of x ran out, now y", true),
                ("a x has not renewed", true)
            ]
        );
        assert_eq!((model.held(), model.rows().len()), (0, 1));
        model.take(sample(50.0, &[]));
        assert_eq!(model.rows().len(), 0);
    }

    #[test]
    fn a_late_lock_that_vanishes_has_expired() {
        let mut model = Model::default();
        model.take(sample(0.0, &[lock("a", "x", 3.0, 0)]));
        model.take(sample(2.0, &[lock("a", "x", 1.0, 0)]));
        model.take(sample(3.5, &[]));
        assert_eq!(model.rows()[0].state, State::Expired);
        assert_eq!(told(&model)[0], ("a x its lease ran out", true));
    }

    #[test]
    fn a_free_lock_that_vanishes_has_not_expired() {
        let mut model = Model::default();
        let mut free = lock("a", "", 0.0, 3);
        free.holders = 0;
        model.take(sample(0.0, &[lock("a", "x", 30.0, 3)]));
        model.take(sample(1.0, &[free]));
        assert_eq!((model.held(), model.rows()[0].state), (0, State::Free));
        model.take(sample(2.0, &[]));
        assert_eq!((model.held(), model.rows()[0].state), (0, State::Free));
    }

    #[test]
    fn grants_are_counted_by_changes_of_the_holder() {
        let mut model = Model::default();
        for number in 0..40 {
            model.take(sample(
                f64::from(number),
                &[lock("a", &format!("u:{number}"), 30.0, 0)],
            ));
        }
        assert!((model.rate() - 1.0).abs() < 0.1, "{}", model.rate());
    }

    #[test]
    fn rows_are_sorted_filtered_and_walked() {
        let mut model = Model::default();
        model.take(sample(
            0.0,
            &[lock("a", "x", 30.0, 1), lock("b", "y", 30.0, 5)],
        ));
        let names = |model: &Model| -> Vec<String> {
            model
                .rows()
                .iter()
                .map(|row| row.seen.name.clone())
                .collect()
        };
        assert_eq!(names(&model), ["b", "a"]);
        for _ in 0..3 {
            model.act(Action::Sort);
        }
        assert_eq!(
            (model.sort, names(&model)),
            (Sort::Name, vec!["a".into(), "b".into()])
        );
        model.act(Action::Down);
        model.act(Action::Down);
        model.act(Action::Open);
        assert_eq!(model.open.as_deref(), Some("b"));
        model.act(Action::Back);
        model.act(Action::Filter);
        model.act(Action::Letter('x'));
        assert_eq!(names(&model), ["a"]);
        model.act(Action::Open);
        assert_eq!((model.is_filtering, model.open.as_deref()), (false, None));
        model.act(Action::Back);
        assert_eq!(names(&model).len(), 2);
        model.act(Action::Freeze);
        model.take(sample(9.0, &[]));
        assert_eq!(model.last.at, s(0.0));
    }

    /// A scan finds them, and they are not looked at again.
    #[test]
    fn locks_that_ended_long_ago_are_not_shown() {
        for (each_second, most) in [(1, 100), (100, ROWS_MAX + 700)] {
            let mut model = Model::default();
            let long = lock("long", "x", 5_000.0, 0);
            model.take(sample(0.0, &[long]));
            for second in 1..1_000 {
                let name = |number| lock(&format!("{second}:{number}"), "x", 1.0, 0);
                let found: Vec<Seen> = (0..each_second).map(name).collect();
                model.take(sample(f64::from(second), &found));
                assert!(model.rows().len() <= most, "after {second} s");
            }
            assert!(model.row("long").is_some(), "its lease is not over");
        }
    }

    /// Nothing was seen of them during the freeze.
    #[test]
    fn after_a_long_freeze_locks_are_shown_until_they_could_be_seen_again() {
        let mut model = Model::default();
        model.take(sample(0.0, &[lock("a", "x", 30.0, 0)]));
        model.act(Action::Freeze);
        model.act(Action::Freeze);
        model.take(sample(600.0, &[]));
        assert!(model.row("a").is_some());
        for at in 601..800 {
            model.take(sample(f64::from(at), &[]));
        }
        assert!(model.row("a").is_none());
    }

    #[test]
    fn a_plain_semaphore_has_no_lease_that_could_run_out() {
        let plain = |holder: &str| Seen {
            kind: "plain-semaphore",
            remaining: None,
            ..lock("a", holder, 0.0, 1)
        };
        let mut model = Model::default();
        for at in 0..3 {
            model.take(sample(f64::from(at), &[plain("x")]));
            assert_eq!(model.row("a").unwrap().state, State::Held);
        }
        // Another one has it, then none, and then it is gone.
        model.take(sample(3.0, &[plain("y")]));
        model.take(sample(4.0, &[plain("")]));
        assert_eq!(model.row("a").unwrap().state, State::Free);
        model.take(sample(5.0, &[plain("x")]));
        model.take(sample(6.0, &[]));
        assert_eq!(model.row("a").unwrap().state, State::Free);
        assert_eq!(
            told(&model),
            [("a y released it", false), ("a x -> y", false)]
        );
    }

    #[test]
    fn a_server_that_is_away_is_reported_once_and_the_rows_stay() {
        let mut model = Model::default();
        model.take(sample(0.0, &[lock("a", "x", 30.0, 1)]));
        for at in 1..3 {
            model.take(Sample {
                at: s(f64::from(at)),
                trouble: Some("no answer".to_owned()),
                has_failed: true,
                ..Sample::default()
            });
        }
        assert_eq!(told(&model), [("no answer", true)]);
        assert_eq!(model.held(), 1);
    }
}

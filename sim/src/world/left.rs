//! Entries at a server without a guard: holds with a least time, and claims of a key for a window.
//!
//! Invariant: it is certain to be there until the time that is known here, by the fastest clock of a server.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::time::Instant;

/// Until when something stays at least that begins now, or began then, and is to stay for this long: a server's
/// clock may be half a percent too fast.
fn surely(from: Instant, span: Duration) -> Instant {
    from + span * 99 / 100
}

/// A hold that stays for some time from its grant, after any kind of release.
pub(super) struct ToBeKept {
    pub(super) holder: String,
    pub(super) is_shared: bool,
    pub(super) since: Instant,
    pub(super) span: Duration,
}

struct Kept {
    holder: String,
    is_shared: bool,
    until: Instant,
}

#[derive(Default)]
pub(super) struct Left {
    /// By lock.
    kept: BTreeMap<String, Vec<Kept>>,
    /// By key: the number of the claim, and until when it stands.
    claims: BTreeMap<String, (u64, Instant)>,
    next: u64,
    /// For how long anything of a lock may stay.
    spans: BTreeMap<String, Duration>,
    /// How many holds stayed, and how many claims there were.
    pub(super) holds: u64,
    pub(super) claimed: u64,
}

impl Left {
    /// For how long something may stay, once the last request has arrived: a server's clock may be too slow.
    pub(super) fn longest(&self) -> Duration {
        self.spans.values().max().copied().unwrap_or_default() * 102 / 100
    }

    /// A guard of this lock was granted whose hold is to last for this long at least.
    pub(super) fn may_last(&mut self, name: &str, span: Duration) {
        let longest = self.spans.entry(name.to_owned()).or_default();
        *longest = span.max(*longest);
    }

    /// A hold with this time of its grant was released. True if it has to stay yet.
    pub(super) fn keeps(&mut self, name: &str, hold: &ToBeKept) -> bool {
        let until = surely(hold.since, hold.span);
        if until <= Instant::now() {
            return false;
        }
        self.holds += 1;
        let kept = self.kept.entry(name.to_owned()).or_default();
        kept.push(Kept {
            holder: hold.holder.clone(),
            is_shared: hold.is_shared,
            until,
        });
        true
    }

    /// Whether a hold stays that keeps out who is granted the lock now. Its own hold does not count: as a member of
    /// several locks, it may have been entered again before that release, while other members are still missing.
    pub(super) fn keeps_out(&mut self, name: &str, holder: &str, is_shared: bool) -> bool {
        let now = Instant::now();
        let Some(kept) = self.kept.get_mut(name) else {
            return false;
        };
        kept.retain(|kept| now < kept.until);
        let mut of_others = kept.iter().filter(|kept| kept.holder != holder);
        of_others.any(|kept| !(is_shared && kept.is_shared))
    }

    /// Whether something of this lock may stay.
    pub(super) fn may_have(&self, name: &str) -> bool {
        self.spans.contains_key(name)
    }

    /// The remaining hold of a lock may be ended from outside.
    pub(super) fn ends(&mut self, name: &str) {
        self.kept.remove(name);
        self.claims.remove(name);
    }

    /// A key was claimed in a call that began then: the number of the claim, and whether another one stood.
    pub(super) fn claims(&mut self, name: &str, asked: Instant, window: Duration) -> (u64, bool) {
        self.may_last(name, window);
        self.claimed += 1;
        self.next += 1;
        let claim = (self.next, surely(asked, window));
        let before = self.claims.insert(name.to_owned(), claim);
        let stood = before.is_some_and(|(_, until)| Instant::now() < until);
        (self.next, stood)
    }

    /// This claim is about to be released.
    pub(super) fn undoes(&mut self, name: &str, number: u64) {
        if self.claims.get(name).is_some_and(|claim| claim.0 == number) {
            self.claims.remove(name);
        }
    }
}

/// The lock that a key belongs to: what stands in braces, or itself.
pub(super) fn lock_of(key: &str) -> &str {
    let inside = key
        .split_once('{')
        .and_then(|(_, rest)| rest.split_once('}'));
    inside.map_or(key, |(lock, _)| lock)
}

//! The terms of a hold beyond its kind: its owner, its least and greatest time, and the time limit of a call.

use std::time::Duration;

use fastrand::Rng;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Terms {
    /// One of the owners of its process.
    pub(crate) owner: Option<usize>,
    pub(crate) lease: Option<Duration>,
    pub(crate) at_least: Option<Duration>,
    pub(crate) max_hold: Option<Duration>,
    pub(crate) give_up: Option<Duration>,
    pub(crate) sticky: Option<Duration>,
    /// Of a semaphore.
    pub(crate) permits: u32,
    /// It is released as soon as another caller waits.
    pub(crate) ends_when_recalled: bool,
}

/// How many owners each process has.
pub(crate) const OWNERS: usize = 2;

/// A grant that replicas have to confirm needs a lease of some length.
const CONFIRMED_MIN: Duration = Duration::from_millis(300);

/// In one of this many calls.
fn some(draw: &mut Rng, one_in: u8, least: u64, most: u64) -> Option<Duration> {
    (draw.u8(..one_in) == 0).then(|| Duration::from_millis(draw.u64(least..=most)))
}

impl Terms {
    /// The terms that go together with a lease that is not renewed, and with replicas that have to confirm the grant.
    pub(super) fn draw(draw: &mut Rng, fixed: Option<Duration>, is_confirmed: bool) -> Self {
        let terms = Self {
            owner: (draw.u8(..4) == 0).then(|| draw.usize(..OWNERS)),
            lease: some(draw, 5, 100, 3_000),
            at_least: some(draw, 6, 1, 700),
            max_hold: some(draw, 6, 50, 1_500),
            give_up: some(draw, 8, 1, 1_500),
            sticky: some(draw, 4, 1, 600),
            permits: 0,
            ends_when_recalled: draw.u8(..6) == 0,
        };
        let (lease, max_hold) = if is_confirmed {
            (None, terms.max_hold.map(|max| max.max(CONFIRMED_MIN)))
        } else {
            (terms.lease, terms.max_hold)
        };
        let bounds = [fixed, max_hold];
        let most = bounds.into_iter().flatten().min();
        let is_fixed = fixed.is_some();
        Self {
            lease: lease.filter(|_| !is_fixed),
            at_least: terms.at_least.map(|span| span.min(most.unwrap_or(span))),
            max_hold,
            sticky: terms.sticky.filter(|_| !is_fixed),
            ..terms
        }
    }
}

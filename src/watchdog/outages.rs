//! Holds whose renewals fail, by server, and when they are reported.
//!
//! Invariant: a server is reported at most once in [`REPORT_EVERY`], however many holds it has and however often it
//! fails and recovers.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::leased::Leased;
use crate::engine::clock::Tick;

/// The shortest time between two reports about one server.
pub(super) const REPORT_EVERY: Duration = Duration::from_secs(10);

#[derive(Debug, Default)]
pub(super) struct Outages(HashMap<u64, Outage>);

#[derive(Debug)]
struct Outage {
    /// When the first renewal without success was sent, since all holds were renewed.
    since: Tick,
    report_after: Tick,
    holds: HashMap<u64, FailingHold>,
}

#[derive(Debug)]
struct FailingHold {
    /// When its lease ends.
    deadline: Tick,
    hold: Weak<dyn Leased>,
}

impl Outages {
    /// Records a renewal of this hold that failed at this server and was sent then.
    pub(super) fn failed(&mut self, server: u64, id: u64, hold: &Arc<dyn Leased>, sent: Tick) {
        let outage = self.0.entry(server).or_insert_with(|| Outage {
            since: sent,
            report_after: Tick::ZERO,
            holds: HashMap::new(),
        });
        if outage.holds.is_empty() {
            outage.since = sent;
        }
        let (deadline, hold) = (hold.deadline(), Arc::downgrade(hold));
        outage.holds.insert(id, FailingHold { deadline, hold });
    }

    /// Records that this hold does not fail any longer: it was renewed, or it is over.
    pub(super) fn ended(&mut self, server: u64, id: u64, now: Tick) {
        if let Some(outage) = self.0.get_mut(&server) {
            outage.holds.remove(&id);
            if outage.holds.is_empty() && outage.report_after <= now {
                self.0.remove(&server);
            }
        }
    }

    /// Takes the report that is due about this server: the hold whose lease ends first, how many there are, and since
    /// when they fail.
    pub(super) fn report(
        &mut self,
        server: u64,
        now: Tick,
    ) -> Option<(Arc<dyn Leased>, usize, Tick)> {
        let outage = self.0.get_mut(&server)?;
        if now < outage.report_after {
            return None;
        }
        let is_held =
            |failing: &FailingHold| failing.deadline > now && failing.hold.strong_count() > 0;
        outage.holds.retain(|_, failing| is_held(failing));
        let first = outage
            .holds
            .values()
            .min_by_key(|failing| failing.deadline)?;
        let hold = first.hold.upgrade()?;
        outage.report_after = now.after(REPORT_EVERY);
        Some((hold, outage.holds.len(), outage.since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::keys::LockName;
    use crate::watchdog::Due;

    /// A hold whose lease ends then.
    struct Ends(Tick);

    impl Leased for Ends {
        fn doubt(&self, _: Tick) {}
        fn wake(&self) {}
        fn due(self: Arc<Self>, _: Tick) -> Due {
            Due::Gone
        }
        fn lock(&self) -> &LockName {
            unreachable!("an outage has no names")
        }
        fn renewed(&self, _: Tick, _: Duration) {}
        fn next_check(&self) -> Tick {
            self.0
        }
        fn deadline(&self) -> Tick {
            self.0
        }
        fn revoked(&self) {}
        fn expired(&self) {}
    }

    fn at(seconds: u64) -> Tick {
        Tick::ZERO.after(Duration::from_secs(seconds))
    }

    /// The holds in the report that is due, and when the lease of the first ends.
    fn reported(outages: &mut Outages, now: Tick) -> Option<(usize, Tick, Tick)> {
        let (first, holds, since) = outages.report(1, now)?;
        Some((holds, since, first.deadline()))
    }

    #[test]
    fn one_report_counts_all_holds_of_a_server_and_names_the_first_to_end() {
        let mut outages = Outages::default();
        let holds: Vec<Arc<dyn Leased>> =
            [40, 30, 50].map(|end| Arc::new(Ends(at(end))) as _).into();
        for (id, hold) in (0..).zip(&holds) {
            outages.failed(1, id, hold, at(5));
        }
        outages.failed(2, 9, &holds[0], at(1));
        assert_eq!(reported(&mut outages, at(6)), Some((3, at(5), at(30))));
        outages.failed(1, 1, &holds[1], at(7));
        assert_eq!(
            reported(&mut outages, at(15)),
            None,
            "the next one is not due"
        );
        assert_eq!(reported(&mut outages, at(16)), Some((3, at(5), at(30))));
        // The lease of one hold has ended, and another was renewed.
        outages.ended(1, 0, at(20));
        assert_eq!(reported(&mut outages, at(31)), Some((1, at(5), at(50))));
        assert_eq!(reported(&mut outages, at(60)), None, "no lease is left");
    }

    #[test]
    fn a_server_that_recovers_and_fails_again_is_not_reported_sooner() {
        let mut outages = Outages::default();
        let hold: Arc<dyn Leased> = Arc::new(Ends(at(100)));
        outages.failed(1, 0, &hold, at(1));
        assert!(reported(&mut outages, at(1)).is_some());
        outages.ended(1, 0, at(2));
        outages.failed(1, 0, &hold, at(3));
        assert_eq!(reported(&mut outages, at(4)), None);
        assert_eq!(reported(&mut outages, at(11)), Some((1, at(3), at(100))));
        outages.ended(1, 0, at(30));
        assert!(
            outages.0.is_empty(),
            "nothing is kept of a server that is well"
        );
    }

    #[test]
    fn a_hold_that_is_gone_is_not_reported() {
        let mut outages = Outages::default();
        let hold: Arc<dyn Leased> = Arc::new(Ends(at(100)));
        outages.failed(1, 0, &hold, at(1));
        drop(hold);
        assert_eq!(reported(&mut outages, at(2)), None);
    }
}

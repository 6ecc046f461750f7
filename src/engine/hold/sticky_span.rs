//! How long a hold stays with its client after its last guard: pure.
//!
//! The span begins when the hold is first without a guard, and never begins again. Without a recall, the lock is
//! therefore released after one span at most, however often the client uses the hold in between. A recall ends the span
//! for good.

use std::time::Duration;

use crate::engine::clock::Tick;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StickySpan {
    /// The longest span that its guards ask for; zero if they ask for none.
    asked: Duration,
    /// The end of the span; `None` until it begins.
    end: Option<Tick>,
    is_recalled: bool,
}

impl StickySpan {
    /// Notes the span that a guard asks for.
    pub(super) fn ask(&mut self, span: Duration) {
        self.asked = self.asked.max(span);
    }

    /// When to release the hold if its last guard goes now. `None` means at once.
    pub(super) fn end_from(&self, now: Tick) -> Option<Tick> {
        if self.is_recalled || self.asked.is_zero() {
            return None;
        }
        let asked = now.after(self.asked);
        let end = self.end.map_or(asked, |end| end.min(asked));
        (now < end).then_some(end)
    }

    /// Begins the span, because the last guard has gone. The next guard has to ask again.
    pub(super) fn begin(&mut self, end: Tick) {
        self.end = Some(end);
        self.asked = Duration::ZERO;
    }

    /// Passes the hold to another task, whose guard has to ask again.
    pub(super) fn pass_on(&mut self) {
        self.asked = Duration::ZERO;
    }

    pub(super) fn is_asked(&self) -> bool {
        !self.asked.is_zero()
    }

    pub(super) fn recall(&mut self) {
        self.is_recalled = true;
    }

    pub(super) fn is_recalled(&self) -> bool {
        self.is_recalled
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millis: u64) -> Tick {
        Tick::ZERO.after(Duration::from_millis(millis))
    }

    fn asked(millis: u64) -> StickySpan {
        let mut span = StickySpan::default();
        span.ask(Duration::from_millis(millis));
        span
    }

    #[test]
    fn nothing_stays_that_nobody_asked_for() {
        let mut span = StickySpan::default();
        assert_eq!(span.end_from(at(1)), None);
        span.ask(Duration::ZERO);
        assert_eq!(span.end_from(at(1)), None);
        assert!(!span.is_asked());
    }

    #[test]
    fn of_several_guards_the_longest_span_counts() {
        let mut span = asked(7);
        span.ask(Duration::from_millis(5));
        assert_eq!(span.end_from(at(1)), Some(at(8)));
        assert!(span.is_asked());
        span.pass_on();
        assert_eq!(span.end_from(at(1)), None);
        assert!(!span.is_asked());
    }

    #[test]
    fn the_span_begins_once() {
        let mut span = asked(10);
        span.begin(at(10));
        assert_eq!(span.end_from(at(3)), None, "the next guard asks again");
        for (millis, end) in [(60, Some(at(10))), (2, Some(at(5))), (10, Some(at(10)))] {
            let mut again = span;
            again.ask(Duration::from_millis(millis));
            assert_eq!(again.end_from(at(3)), end, "{millis}");
            assert_eq!(again.end_from(at(10)), None, "{millis}: it is over");
        }
    }

    #[test]
    fn a_recall_ends_it_for_good() {
        let mut span = asked(10);
        span.recall();
        assert!(span.is_recalled());
        span.ask(Duration::from_secs(9));
        assert_eq!(span.end_from(at(1)), None);
        span.pass_on();
        assert!(
            span.is_recalled(),
            "the waiter also wants it from the next task"
        );
    }
}

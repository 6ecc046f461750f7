//! Hand-made histories: each kind of violation is found, and what only looks like one is not.

use super::Hit::{All, Killed, Nobody, Stopped};
use super::*;

const MS: Nanos = 1_000_000;

const LIMITS: Limits = Limits {
    call: 200 * MS,
    call_in_trouble: 2_000 * MS,
    aftermath: 500 * MS,
    loss: 100 * MS,
    order: 50 * MS,
    loses_data: false,
};

/// A history in ms: what each process did when.
#[derive(Default)]
struct Told(Vec<Event>);

impl Told {
    fn note(&mut self, at: Nanos, process: u32, what: What) {
        let call = self.0.iter().filter(|event| event.process == process);
        let begun = call
            .filter(|event| matches!(event.what, What::Begin { .. }))
            .count() as u64;
        let at = at * MS;
        let call = begun + u64::from(matches!(what, What::Begin { .. }));
        self.0.push(Event {
            at,
            process,
            call,
            what,
        });
    }

    fn begins(&mut self, at: Nanos, process: u32) {
        self.asks(at, process, Mode::Alone);
    }

    fn asks(&mut self, at: Nanos, process: u32, mode: Mode) {
        let (lock, is_fair) = ("x".to_owned(), mode == Mode::Alone);
        self.note(
            at,
            process,
            What::Begin {
                lock,
                is_fair,
                mode,
                wait: 1_000 * MS,
            },
        );
    }

    /// Granted with this token, valid until then.
    fn has(&mut self, at: Nanos, process: u32, token: u64, until: Nanos) {
        self.note(at, process, What::Granted { token: Some(token) });
        self.note(at, process, What::Valid { until: until * MS });
    }

    fn releases(&mut self, at: Nanos, process: u32) {
        self.note(at, process, What::ReleaseBegin);
        self.note(at + 1, process, What::ReleaseEnd);
    }

    fn loses(&mut self, at: Nanos, process: u32) {
        let reason = "the lease ran out".to_owned();
        self.note(at, process, What::Lost { reason });
    }

    fn kinds(&self, harms: &[Harm]) -> Vec<&'static str> {
        let report = check(&self.0, harms, &[], &LIMITS);
        report.violations.iter().map(Violation::kind).collect()
    }
}

fn harm(from: Nanos, to: Nanos, hit: Hit) -> Harm {
    Harm {
        from: from * MS,
        to: to * MS,
        hit,
    }
}

/// One after the other.
fn good() -> Told {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 300);
    told.begins(2, 2);
    told.releases(100, 1);
    told.has(102, 2, 11, 400);
    told.releases(150, 2);
    told
}

#[test]
fn one_after_the_other_is_well() {
    let report = check(&good().0, &[], &[], &LIMITS);
    assert_eq!(report.violations, []);
    assert_eq!(
        (report.calls, report.grants, report.longest_call),
        (2, 2, 100 * MS)
    );
}

#[test]
fn two_at_once_are_found() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 300);
    told.begins(2, 2);
    told.has(50, 2, 11, 400);
    told.releases(100, 1);
    told.releases(150, 2);
    assert_eq!(told.kinds(&[]), ["two at once"]);
    // Whatever happened meanwhile.
    assert_eq!(told.kinds(&[harm(0, 200, Nobody)]), ["two at once"]);
    let loses_data = Limits {
        loses_data: true,
        ..LIMITS
    };
    let report = check(&told.0, &[], &[], &loses_data);
    assert_eq!((report.violations, report.doubles), (vec![], vec![50 * MS]));
}

#[test]
fn a_long_hold_is_compared_with_all_that_come_during_it() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 900);
    for (at, process, token) in [(100, 2, 11), (300, 3, 12)] {
        told.begins(at, process);
        told.has(at + 1, process, token, at + 300);
        told.releases(at + 50, process);
    }
    told.releases(800, 1);
    assert_eq!(told.kinds(&[]), ["two at once"; 2]);
}

#[test]
fn a_guard_ends_where_it_vouched_for_and_where_its_process_was_killed() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 300);
    told.begins(2, 2);
    // Past the lease of one that stood still, which learns of it later.
    told.has(301, 2, 11, 600);
    told.releases(350, 2);
    told.loses(400, 1);
    assert_eq!(told.kinds(&[harm(100, 390, Stopped(1))]), [""; 0]);
    let mut killed = Told::default();
    killed.begins(0, 1);
    killed.has(1, 1, 10, 300);
    killed.begins(2, 2);
    killed.has(200, 2, 11, 600);
    killed.releases(350, 2);
    assert_eq!(killed.kinds(&[harm(150, 150, Killed(1))]), [""; 0]);
    assert_eq!(killed.kinds(&[harm(150, 150, Killed(3))]), ["two at once"]);
}

#[test]
fn tokens_that_do_not_grow_are_found() {
    let told = |second: u64| {
        let mut told = Told::default();
        told.begins(0, 1);
        told.has(1, 1, 10, 300);
        told.releases(20, 1);
        told.begins(30, 2);
        told.has(31, 2, second, 300);
        told.releases(50, 2);
        told.kinds(&[])
    };
    assert_eq!(told(11), [""; 0]);
    assert_eq!(told(9), ["token not larger"]);
    assert!(told(10).contains(&"token not larger"));
}

#[test]
fn a_waiter_that_is_passed_over_is_found() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 2_000);
    told.begins(10, 2);
    told.begins(100, 3);
    told.releases(150, 1);
    told.has(152, 3, 11, 500);
    told.releases(250, 3);
    told.has(252, 2, 12, 600);
    told.releases(260, 2);
    assert_eq!(told.kinds(&[]), ["out of order"]);
    assert_eq!(told.kinds(&[harm(120, 121, Nobody)]), [""; 0]);
}

#[test]
fn a_loss_that_is_late_or_has_no_cause_is_found() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 300);
    told.loses(290, 1);
    assert_eq!(told.kinds(&[]), ["loss without cause"]);
    assert_eq!(told.kinds(&[harm(10, 20, Nobody)]), [""; 0]);
    told.begins(1_000, 1);
    told.has(1_001, 1, 12, 1_300);
    told.loses(1_500, 1);
    let found = told.kinds(&[harm(10, 20, Nobody)]);
    assert_eq!(found, ["loss too late", "loss without cause"]);
}

#[test]
fn only_what_stops_a_process_excuses_a_late_loss() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 300);
    told.loses(20_000, 1);
    let fault = harm(10, 20, Nobody);
    assert_eq!(told.kinds(&[fault]), ["loss too late"]);
    // It ran between these two times, for long enough to say so.
    let twice = [harm(250, 500, Stopped(1)), harm(15_000, 19_990, Stopped(1))];
    let found = told.kinds(&[&[fault], &twice[..]].concat());
    assert_eq!(found, ["loss too late"]);
    for hit in [Stopped(1), All, Killed(1), Stopped(2), Killed(2)] {
        let found = told.kinds(&[fault, harm(250, 19_990, hit)]);
        let is_excused = matches!(hit, All | Stopped(1) | Killed(1));
        assert_eq!(found.is_empty(), is_excused, "{hit:?}: {found:?}");
    }
}

#[test]
fn a_loss_that_is_never_reported_is_found() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 300);
    let mut released = Told(told.0.clone());
    released.releases(390, 1);
    assert_eq!(released.kinds(&[]), [""; 0]);
    let mut kept = Told(told.0.clone());
    kept.releases(100_000, 1);
    assert_eq!(kept.kinds(&[]), ["loss too late"]);
    // The history goes on without it.
    told.begins(50_000, 2);
    told.note(50_001, 2, What::Refused);
    assert_eq!(told.kinds(&[]), ["loss too late"]);
    assert_eq!(told.kinds(&[harm(200, 210, Killed(1))]), [""; 0]);
}

#[test]
fn a_release_that_fails_without_a_fault_is_found() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.has(1, 1, 10, 900);
    told.note(800, 1, What::ReleaseBegin);
    let error = "no".to_owned();
    told.note(805, 1, What::Failed { error });
    told.note(805, 1, What::ReleaseEnd);
    assert_eq!(told.kinds(&[]), ["failed without cause"]);
    assert_eq!(told.kinds(&[harm(700, 750, Nobody)]), [""; 0]);
}

#[test]
fn a_call_that_takes_too_long_or_fails_is_found() {
    let mut told = Told::default();
    told.begins(0, 1);
    told.note(1_300, 1, What::Refused);
    assert_eq!(told.kinds(&[]), ["call too long"]);
    assert_eq!(told.kinds(&[harm(900, 950, Nobody)]), [""; 0]);
    told.begins(2_000, 1);
    assert_eq!(told.kinds(&[harm(900, 950, Nobody)]), ["call too long"]);
    assert_eq!(told.kinds(&[harm(900, 2_100, Killed(1))]), [""; 0]);
    let mut failed = Told::default();
    failed.begins(0, 1);
    failed.note(
        5,
        1,
        What::Failed {
            error: "no".to_owned(),
        },
    );
    assert_eq!(failed.kinds(&[]), ["failed without cause"]);
}

#[test]
fn what_is_left_is_found() {
    let report = check(&good().0, &[], &["x".to_owned()], &LIMITS);
    assert_eq!(
        report.violations,
        [Violation::LeftOver {
            key: "x".to_owned()
        }]
    );
}

#[test]
fn readers_hold_together_and_no_writer_beside_them() {
    let mut told = Told::default();
    use Mode::{Alone, Shared};
    for (process, mode) in [(1, Shared), (2, Shared), (3, Alone), (4, Shared)] {
        told.asks(0, process, mode);
    }
    told.has(1, 1, 1, 100);
    told.has(2, 2, 2, 50);
    told.releases(10, 2);
    assert_eq!(told.kinds(&[])[..], ["call too long", "call too long"]);
    // The first reader still holds it.
    told.has(20, 3, 3, 60);
    // And so does the writer.
    told.has(30, 4, 4, 60);
    told.releases(40, 4);
    told.releases(41, 3);
    told.releases(90, 1);
    assert_eq!(told.kinds(&[]), ["two at once", "two at once"]);
}

#[test]
fn more_permits_than_there_are() {
    let (mut few, mut many) = (Told::default(), Told::default());
    for (told, last) in [(&mut few, 1), (&mut many, 2)] {
        for (process, taken) in [(1, 1), (2, 1), (3, last)] {
            told.asks(0, process, Mode::Permits { taken, of: 3 });
            told.note(10, process, What::Granted { token: None });
            told.note(10, process, What::Valid { until: 90 * MS });
        }
        for process in 1..4 {
            told.note(50, process, What::ReleaseBegin);
            told.note(51, process, What::ReleaseEnd);
        }
    }
    assert_eq!(check(&few.0, &[], &[], &LIMITS).violations, []);
    let found = check(&many.0, &[], &[], &LIMITS).violations;
    assert!(
        matches!(
            found[..],
            [Violation::TooManyPermits { held: 4, of: 3, .. }]
        ),
        "{found:?}"
    );
}

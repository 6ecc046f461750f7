//! The knowledge of the supervisor about the command, its group and its lock, and the decisions that follow.
//! Pure.
//!
//! Invariant: the rest of the group is left alone only if the command ended by itself while the lock was held.
//! Otherwise the command has ended when nothing is left of its group.

use std::time::Duration;

use super::clock::{Due, Moment, Until};
use super::signals::is_ending_number;
use crate::status::Exit;

/// The time that killed processes may take to disappear.
const DEATH_MAX: Duration = Duration::from_secs(2);

/// The time between two checks whether the group is empty, once the command has ended.
pub(super) const LOOK: Duration = Duration::from_millis(20);

/// Whether a command ended by itself, as far as its status shows: a shell that a signal ended may exit with 128
/// and its number.
fn is_by_itself(exit: Exit) -> bool {
    !exit.by_signal && !is_ending_number(i32::from(exit.status) - 128)
}

#[derive(Debug)]
pub(super) struct Watch {
    /// Unknown until the first message of the runner.
    until: Option<Until>,
    /// The strongest signal that the group got because of the lock.
    told: Due,
    /// The time of the kill.
    killed: Option<Moment>,
    /// A signal asked the group to end.
    is_asked: bool,
    exit: Option<(Moment, Exit)>,
}

impl Watch {
    pub(super) fn new() -> Self {
        Self {
            until: None,
            told: Due::Nothing,
            killed: None,
            is_asked: false,
            exit: None,
        }
    }

    /// The lock is held until then. The rest of a group that was asked to end gets no further time.
    pub(super) fn renewed(&mut self, until: Until) {
        if self.exit.is_none() || self.told == Due::Nothing {
            self.until = Some(until);
        }
    }

    /// The group got a signal that asks it to end.
    pub(super) fn asked(&mut self) {
        self.is_asked = true;
    }

    pub(super) fn ended(&mut self, now: Moment, exit: Exit) {
        self.exit = Some((now, exit));
    }

    pub(super) fn has_ended(&self) -> bool {
        self.exit.is_some()
    }

    pub(super) fn is_killed(&self) -> bool {
        self.killed.is_some()
    }

    /// The signals that the group gets now, each of them once.
    pub(super) fn due(&mut self, now: Moment) -> Due {
        match self.until {
            Some(until) => self.tell(now, until.due(now)),
            None => Due::Nothing,
        }
    }

    /// The lock is lost, or there is no runner to renew it.
    pub(super) fn give_up(&mut self, now: Moment) -> Due {
        self.tell(now, Due::Kill)
    }

    fn tell(&mut self, now: Moment, due: Due) -> Due {
        if due <= self.told {
            return Due::Nothing;
        }
        self.told = due;
        if due == Due::Kill {
            self.killed = Some(now);
        }
        due
    }

    /// The time until the clock makes the next action due.
    pub(super) fn pause(&self, now: Moment) -> Duration {
        self.until.map_or(Duration::MAX, |until| until.pause(now))
    }

    /// The command's end, and whether it was asked to end because of the lock. `None` while processes of it
    /// count.
    pub(super) fn end(&self, now: Moment, group_is_empty: bool) -> Option<(Exit, bool)> {
        let (at, exit) = self.exit?;
        let told = self.told > Due::Nothing;
        let is_awaited = told || self.is_asked || !is_by_itself(exit);
        let does_not_die = self
            .killed
            .is_some_and(|killed| now >= killed.max(at).after(DEATH_MAX));
        // A signal to all processes of a service may come to this one behind the end of the command.
        let is_left = !is_awaited && now >= at.after(LOOK);
        let is_over = group_is_empty || is_left || does_not_die;
        is_over.then_some((exit, told))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    const fn at(seconds: u64) -> Moment {
        Moment(seconds * S)
    }

    const fn until(terminate: u64, kill: u64) -> Until {
        Until {
            terminate: at(terminate),
            kill: at(kill),
        }
    }

    const fn exit(status: u8, by_signal: bool) -> Exit {
        Exit { status, by_signal }
    }

    /// A lock that is held until 30, with the request to end at 25.
    fn watch() -> Watch {
        let mut watch = Watch::new();
        watch.renewed(until(25, 30));
        watch
    }

    #[test]
    fn a_command_that_ends_by_itself_leaves_behind_what_it_likes() {
        for (found, is_left_alone) in [
            (exit(0, false), true),
            (exit(1, false), true),
            (exit(128, false), true),
            // `exit -1`.
            (exit(255, false), true),
            // A status above 128 that is none of INT, TERM, HUP, QUIT.
            (exit(137, false), true),
            (exit(130, false), false),
            (exit(143, false), false),
            (exit(129, false), false),
            (exit(131, false), false),
            (exit(143, true), false),
            (exit(137, true), false),
        ] {
            let mut watch = watch();
            assert_eq!(watch.end(at(1), true), None, "it runs");
            watch.ended(at(1), found);
            let left = is_left_alone.then_some((found, false));
            assert_eq!(watch.end(at(1), false), None, "a signal may be on its way");
            assert_eq!(watch.end(at(1).after(LOOK), false), left, "{found:?}");
            assert_eq!(watch.end(at(20), true), Some((found, false)));
        }
    }

    #[test]
    fn a_command_that_was_asked_to_end_has_ended_with_its_group() {
        let mut watch = watch();
        watch.asked();
        watch.ended(at(1), exit(0, false));
        assert_eq!(watch.end(at(1), false), None);
        // For as long as the lock is renewed.
        watch.renewed(until(995, 1000));
        assert_eq!(watch.due(at(900)), Due::Nothing);
        assert_eq!(watch.end(at(900), false), None);
        assert_eq!(watch.end(at(900), true), Some((exit(0, false), false)));
    }

    #[test]
    fn the_rest_of_a_group_does_not_outlive_the_lock() {
        let mut watch = watch();
        watch.asked();
        watch.ended(at(1), exit(143, true));
        assert_eq!(watch.pause(at(1)), Duration::from_secs(24));
        assert_eq!(watch.due(at(25)), Due::Terminate);
        assert_eq!(watch.due(at(26)), Due::Nothing, "once");
        // A renewal gives the rest of the group no further time.
        watch.renewed(until(55, 60));
        assert_eq!(watch.end(at(29), false), None);
        assert_eq!(watch.due(at(30)), Due::Kill);
        assert!(watch.is_killed());
        assert_eq!(watch.end(at(31), false), None);
        assert_eq!(watch.end(at(31), true), Some((exit(143, true), true)));
        assert_eq!(
            watch.end(at(32), false),
            Some((exit(143, true), true)),
            "long enough"
        );
    }

    #[test]
    fn a_command_that_was_told_to_end_may_go_on_if_the_lock_is_renewed() {
        let mut watch = watch();
        assert_eq!(watch.due(at(26)), Due::Terminate);
        watch.renewed(until(55, 60));
        assert_eq!(watch.due(at(40)), Due::Nothing);
        watch.ended(at(50), exit(0, false));
        assert_eq!(watch.end(at(50), false), None, "the rest of its group");
        assert_eq!(watch.end(at(50), true), Some((exit(0, false), true)));
    }

    #[test]
    fn a_lost_lock_is_not_waited_for() {
        let mut watch = Watch::new();
        assert_eq!(watch.due(at(5)), Due::Nothing, "the end is not known");
        assert_eq!(watch.give_up(at(5)), Due::Kill);
        assert_eq!(watch.give_up(at(6)), Due::Nothing, "once");
        watch.ended(at(9), exit(137, true));
        assert_eq!(watch.end(at(10), false), None);
        assert_eq!(watch.end(at(11), false), Some((exit(137, true), true)));
    }
}

//! The outcome of a round: the votes, the error that says why they are no majority, and the pause before the next
//! round. Pure.
//!
//! Invariant: the error names each server with the outcome of its vote.
//!
//! If a round has no winner, all its contenders release their grants, and chance decides which of them asks first. So a
//! pause is a random part of a range, which starts at a few times the length of a round and doubles: then one of any
//! number of contenders soon has a round to itself. A message ends a pause, but not its first part, because the message
//! of a release reaches all contenders at once. The first part grows while this call gets some of the votes in each
//! round. A round without a vote for it disturbs no other call: the lock has a holder, and this call may ask as soon as
//! it is notified of the release.

use std::fmt;
use std::time::Duration;

use crate::api::error::{Error, Kind};
use crate::engine::clock::Rounded;

/// The problem with a server that has replicas.
pub(super) const HAS_REPLICAS: &str = "has replicas, and one that takes over at its address may \
 have missed a vote; use servers without replicas, have replicas confirm each grant with \
 `replicated`, or declare the servers persistent if no other one ever answers at their addresses";

/// The outcome of one server's vote.
#[derive(Clone, Debug)]
pub(super) enum VoteOutcome {
    Granted,
    /// The lock is free there; the answer to a question.
    Free,
    /// The server answers; the answer to a question.
    Reachable,
    /// Another owner holds the lock there, for at most this long.
    HeldElsewhere(Option<Duration>),
    /// The round was decided before the server answered.
    NotAwaited,
    /// The server may have forgotten a vote: its uptime is less than the longest lease.
    TooYoung {
        uptime: Duration,
        /// The time until the server has a vote.
        remaining: Duration,
    },
    /// The server does not report its uptime.
    UnknownUptime,
    /// The server is the same as at this other address, where its vote counts.
    Duplicate(String),
    /// The server has replicas: a replica that takes over at its address may lack a vote.
    HasReplicas,
    /// No answer within this time.
    NoAnswer(Duration),
    /// The server did not answer a moment ago, and is not asked for a while.
    Down,
    Failed(Error),
    /// The server granted the lock, but too little of this lease was left when all votes were in.
    GrantedTooLate(Duration),
    /// The server granted the lock, but its fencing token could not be raised, with the reason.
    Unfenced(String),
}

impl VoteOutcome {
    /// Whether the server has no vote at the moment, for any call.
    fn has_no_vote(&self) -> bool {
        !matches!(
            self,
            Self::Granted
                | Self::Free
                | Self::Reachable
                | Self::HeldElsewhere(_)
                | Self::NotAwaited
        )
    }

    /// Whether the outcome stays the same if the server is asked again.
    fn is_permanent(&self) -> bool {
        match self {
            Self::UnknownUptime | Self::Duplicate(_) | Self::HasReplicas => true,
            Self::Failed(error) => error.is_invalid() || error.is_closed(),
            _ => false,
        }
    }

    /// Returns the error, if that is why there is no vote.
    fn failure(&self) -> Option<&Error> {
        match self {
            Self::Failed(error) => Some(error),
            _ => None,
        }
    }

    /// Whether the server is silent or cannot be reached.
    pub(super) fn is_unreachable(&self) -> bool {
        matches!(self, Self::NoAnswer(_)) || self.failure().is_some_and(Error::is_io)
    }
}

impl fmt::Display for VoteOutcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Free => f.write_str("free"),
            Self::Reachable => f.write_str("answers"),
            Self::HeldElsewhere(_) => f.write_str("held elsewhere"),
            Self::NotAwaited => f.write_str("not waited for"),
            Self::TooYoung { uptime, remaining } => write!(
                f,
                "has been up for only {uptime:.1?} and may have forgotten a vote, so it has none \
                 for another {remaining:.1?}"
            ),
            Self::UnknownUptime => f.write_str(
                "does not say which process it is and how long it has been up; give its user the \
                 right +info",
            ),
            Self::Duplicate(other) => write!(
                f,
                "is the same server as {other}, which has its vote; name each server once"
            ),
            Self::HasReplicas => f.write_str(HAS_REPLICAS),
            Self::NoAnswer(limit) => write!(f, "no answer within {}", Rounded(*limit)),
            Self::Down => f.write_str("no answer a moment ago"),
            Self::Failed(error) => f.write_str(error.message()),
            Self::GrantedTooLate(lease) => write!(
                f,
                "granted too late, with little left of a lease of {lease:?}; use a longer one"
            ),
            Self::Unfenced(why) => write!(
                f,
                "granted, but its token counter was not raised: \
             {why}"
            ),
        }
    }
}

/// The smallest majority.
pub(super) fn quorum(servers: usize) -> usize {
    servers / 2 + 1
}

/// The outcomes of the votes in one round, by server.
#[derive(Debug)]
pub(super) struct Tally(Vec<VoteOutcome>);

impl Tally {
    pub(super) fn new(servers: usize) -> Self {
        Self(vec![VoteOutcome::NotAwaited; servers])
    }

    /// Returns the tally of a round that no server answers.
    pub(super) fn all_down(servers: usize) -> Self {
        Self(vec![VoteOutcome::Down; servers])
    }

    pub(super) fn record(&mut self, server: usize, outcome: VoteOutcome) {
        self.0[server] = outcome;
    }

    /// Records a vote. Returns the grant with the number of its server, if the server granted the lock.
    pub(super) fn record_vote<T>(
        &mut self,
        server: usize,
        vote: Result<T, VoteOutcome>,
    ) -> Option<(usize, T)> {
        let (granted, outcome) = match vote {
            Ok(granted) => (Some((server, granted)), VoteOutcome::Granted),
            Err(outcome) => (None, outcome),
        };
        self.record(server, outcome);
        granted
    }

    /// Keeps the votes that `unfit` returns no reason against, and records its reasons against the others.
    pub(super) fn retain<T>(
        &mut self,
        votes: &mut Vec<(usize, T)>,
        mut unfit: impl FnMut(usize, &T) -> Option<VoteOutcome>,
    ) {
        votes.retain(|(server, vote)| {
            let unfit = unfit(*server, vote);
            unfit.map(|reason| self.record(*server, reason)).is_none()
        });
    }

    /// Whether too few servers can vote, for any call.
    pub(super) fn lacks_voters(&self) -> bool {
        self.excludes_majority(VoteOutcome::has_no_vote)
    }

    /// Whether too few servers can vote, and that will not change by itself.
    pub(super) fn lacks_voters_for_good(&self) -> bool {
        self.excludes_majority(VoteOutcome::is_permanent)
    }

    /// Whether others have enough votes to exclude a majority for this call.
    pub(super) fn is_contended(&self) -> bool {
        self.excludes_majority(|outcome| matches!(outcome, VoteOutcome::HeldElsewhere(_)))
    }

    /// Whether servers have voted for this call.
    pub(super) fn has_votes(&self) -> bool {
        let mut outcomes = self.0.iter();
        outcomes.any(|outcome| matches!(outcome, VoteOutcome::Granted))
    }

    /// Whether a majority can still be reached.
    pub(super) fn can_still_win(&self) -> bool {
        !self.excludes_majority(|outcome| {
            !matches!(outcome, VoteOutcome::Granted | VoteOutcome::NotAwaited)
        })
    }

    /// Whether fewer than a majority of servers are left without the servers that match.
    fn excludes_majority(&self, is_true: impl Fn(&VoteOutcome) -> bool) -> bool {
        let others = self.0.iter().filter(|outcome| !is_true(outcome));
        others.count() < quorum(self.0.len())
    }

    /// Returns the shortest remaining lease of the holders elsewhere.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let each = self.0.iter().filter_map(|outcome| match outcome {
            VoteOutcome::HeldElsewhere(remaining) => *remaining,
            _ => None,
        });
        each.min()
    }

    /// Makes the error that says why there is no majority. `addresses` are the addresses of the servers.
    pub(super) fn error<'a>(
        &self,
        operation: &'static str,
        addresses: impl Iterator<Item = &'a str>,
    ) -> Error {
        let failures = || self.0.iter().filter_map(VoteOutcome::failure);
        let is_of_majority = |is_it: fn(&Error) -> bool| {
            self.excludes_majority(|outcome| outcome.failure().is_some_and(is_it))
        };
        if is_of_majority(Error::is_closed)
            && let Some(error) = failures().find(|error| error.is_closed())
        {
            return error.clone().during(operation);
        }
        let agreed = (self.0.iter())
            .filter(|outcome| matches!(outcome, VoteOutcome::Granted | VoteOutcome::Reachable));
        let each: Vec<String> = addresses
            .zip(&self.0)
            .map(|(address, outcome)| format!("{address} {outcome}"))
            .collect();
        let message = format!(
            "{} of {} servers are needed, {} agreed: {}; check that enough of them are up and \
             reachable",
            quorum(self.0.len()),
            self.0.len(),
            agreed.count(),
            each.join(", "),
        );
        let error = Error::new(Kind::Quorum, operation, message);
        let error = error.lasting(self.lacks_voters_for_good());
        // The error is `is_wrong_type` only if a majority of the servers says so.
        let is_wrong_type = is_of_majority(Error::is_wrong_type);
        let cause = failures().find(|cause| cause.is_wrong_type() == is_wrong_type);
        match cause {
            Some(cause) => error.caused_by(cause.clone()),
            None => error,
        }
    }
}

/// The first range, in rounds.
const PAUSE_FIRST_ROUNDS: u32 = 3;
const PAUSE_FIRST_MIN: Duration = Duration::from_millis(2);
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// An expired key is gone a little after its last millisecond.
const EXPIRY_SLACK: Duration = Duration::from_millis(1);

/// The ranges of both parts of a pause. A range doubles up to a bound; `None` before the first pause.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    least: Option<Duration>,
    most: Option<Duration>,
}

/// A pause between two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pause {
    /// The first part, which no message ends.
    pub(super) least: Duration,
    /// The whole pause, unless a message ends it.
    pub(super) most: Duration,
}

/// Returns the range that follows `last`, which is the first one if there was none.
fn next_range(last: &mut Option<Duration>, round: Duration) -> Duration {
    let first = (round * PAUSE_FIRST_ROUNDS).max(PAUSE_FIRST_MIN);
    let range = last.map_or(first, |last| last * 2);
    *last.insert(range.min(PAUSE_MAX))
}

impl Backoff {
    /// Returns the pause after a round that took `round`. `has_votes` says whether servers voted for this call.
    /// `remaining` is the shortest remaining lease of another holder; the pause does not outlast it. `chances` are
    /// random numbers from 0 to 1. `polled` is the pause of a call that receives no messages.
    pub(super) fn pause(
        &mut self,
        round: Duration,
        has_votes: bool,
        remaining: Option<Duration>,
        chances: [f64; 2],
        polled: Option<Duration>,
    ) -> Pause {
        if !has_votes {
            self.least = None;
        }
        let [least, most] = chances;
        let least = next_range(&mut self.least, round).mul_f64(least);
        let most = next_range(&mut self.most, round).mul_f64(most);
        let most = polled.unwrap_or(most).max(least);
        let end = remaining.map_or(Duration::MAX, |remaining| remaining + EXPIRY_SLACK);
        Pause {
            least: least.min(end),
            most: most.min(end),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::error::Error as _;

    use super::*;

    const SOON: Duration = Duration::from_millis(1_500);

    fn failed(kind: Kind) -> VoteOutcome {
        VoteOutcome::Failed(Error::new(kind, "lock", format!("{kind:?}")))
    }

    fn held(millis: u64) -> VoteOutcome {
        VoteOutcome::HeldElsewhere(Some(Duration::from_millis(millis)))
    }

    /// A tally of these outcomes.
    fn tally<const N: usize>(outcomes: [VoteOutcome; N]) -> Tally {
        let mut tally = Tally::new(N);
        for (server, outcome) in outcomes.into_iter().enumerate() {
            tally.record(server, outcome);
        }
        tally
    }

    fn error(tally: &Tally) -> Error {
        tally.error("try_lock", ["a:1", "b:2", "c:3", "d:4", "e:5"].into_iter())
    }

    /// Each outcome with its text; whether it has a vote; whether asking again is useful; whether the server is silent.
    fn each() -> Vec<(VoteOutcome, &'static str, [bool; 3])> {
        use VoteOutcome as Vote;
        vec![
            (Vote::Granted, "granted", [true, true, false]),
            (Vote::Free, "free", [true, true, false]),
            (Vote::Reachable, "answers", [true, true, false]),
            (held(1), "held elsewhere", [true, true, false]),
            (Vote::NotAwaited, "not waited for", [true, true, false]),
            (
                Vote::TooYoung {
                    uptime: SOON,
                    remaining: SOON * 2,
                },
                "up for only 1.5s and may have forgotten a vote, so it has none for another 3.0s",
                [false, true, false],
            ),
            (Vote::UnknownUptime, "right +info", [false, false, false]),
            (
                Vote::Duplicate("b:2".to_owned()),
                "the same server as b:2, which has its vote",
                [false, false, false],
            ),
            (Vote::HasReplicas, HAS_REPLICAS, [false, false, false]),
            (
                Vote::NoAnswer(SOON),
                "no answer within 1.5s",
                [false, true, true],
            ),
            (Vote::Down, "no answer a moment ago", [false, true, false]),
            (failed(Kind::Io), "Io", [false, true, true]),
            (failed(Kind::Refused), "Refused", [false, true, false]),
            (failed(Kind::WrongType), "WrongType", [false, false, false]),
            (failed(Kind::Closed), "Closed", [false, false, false]),
            (
                Vote::GrantedTooLate(SOON),
                "granted too late, with little left of a lease of 1.5s",
                [false, true, false],
            ),
            (
                Vote::Unfenced("why".to_owned()),
                "its token counter was not raised: why",
                [false, true, false],
            ),
        ]
    }

    #[test]
    fn an_outcome_says_what_became_of_the_vote() {
        for (outcome, says, [votes, is_worth_asking, is_silent]) in each() {
            assert!(outcome.to_string().contains(says), "{outcome}: {says}");
            assert_eq!(outcome.has_no_vote(), !votes, "{outcome}");
            assert_eq!(outcome.is_permanent(), !is_worth_asking, "{outcome}");
            assert_eq!(outcome.is_unreachable(), is_silent, "{outcome}");
        }
    }

    #[test]
    fn voters_are_lacking_when_fewer_than_a_quorum_are_left() {
        use VoteOutcome::{Down, Granted, HasReplicas};
        let one_down = tally([Granted, held(1), Down]);
        assert!(!one_down.lacks_voters() && !one_down.lacks_voters_for_good());
        let two_down = tally([Granted, HasReplicas, Down]);
        assert!(two_down.lacks_voters() && !two_down.lacks_voters_for_good());
        let never = tally([Granted, HasReplicas, failed(Kind::Denied)]);
        assert!(never.lacks_voters() && never.lacks_voters_for_good());
        assert!(Tally::all_down(3).lacks_voters());
        assert!(!Tally::new(3).lacks_voters(), "nobody was asked yet");
    }

    #[test]
    fn it_is_contended_when_others_have_too_many_votes() {
        use VoteOutcome::{Down, Granted, NotAwaited};
        assert!(tally([held(1), Granted, held(2)]).is_contended());
        assert!(!tally([held(1), Granted, Down]).is_contended());
        assert!(tally([held(1), Granted, NotAwaited]).can_still_win());
        assert!(tally([Granted, Granted, Down]).can_still_win());
        assert!(!tally([held(1), NotAwaited, Down]).can_still_win());
        assert!(!Tally::all_down(3).can_still_win());
    }

    #[test]
    fn the_shortest_rest_of_a_lease_is_worth_waiting_for() {
        let unknown = VoteOutcome::HeldElsewhere(None);
        let some = tally([held(7), unknown.clone(), held(3)]);
        assert_eq!(some.remaining(), Some(Duration::from_millis(3)));
        assert_eq!(tally([unknown, VoteOutcome::Down]).remaining(), None);
    }

    #[test]
    fn the_error_names_each_server_and_counts_those_that_agreed() {
        use VoteOutcome::{Down, Granted, Reachable};
        let said = error(&tally([Granted, held(1), Down]));
        assert!(said.is_quorum());
        let expected = "try_lock: 2 of 3 servers are needed, 1 agreed: a:1 granted, \
                    b:2 held elsewhere, c:3 no answer a moment ago; ";
        assert!(said.to_string().starts_with(expected), "{said}");
        assert!(said.source().is_none(), "no server said more");
        let said = error(&tally([Granted, Reachable, Down, Down, Down]));
        assert!(
            said.to_string()
                .contains("3 of 5 servers are needed, 2 agreed"),
            "{said}"
        );
    }

    /// The majority's answer decides which of the errors is the cause.
    #[test]
    fn the_cause_is_of_a_server_that_explains_why_there_is_no_majority() {
        use VoteOutcome::Granted;
        let cause = |said: &Error| said.source().expect("a cause").to_string();
        let wrong = || failed(Kind::WrongType);
        let one = error(&tally([wrong(), failed(Kind::Io), failed(Kind::Denied)]));
        assert_eq!(cause(&one), "lock: Io");
        assert!(!one.is_wrong_type());
        let most = error(&tally([failed(Kind::Io), wrong(), wrong()]));
        assert_eq!(cause(&most), "lock: WrongType");
        assert!(most.is_wrong_type());
        assert!(
            error(&tally([Granted, Granted, wrong()]))
                .source()
                .is_none()
        );
    }

    #[test]
    fn an_error_that_only_a_change_can_mend_is_not_transient() {
        use VoteOutcome::{Down, Granted, HasReplicas, UnknownUptime};
        let denied = || failed(Kind::Denied);
        for lasting in [
            [denied(), denied(), Granted],
            [HasReplicas, UnknownUptime, Down],
            [VoteOutcome::Duplicate("b:2".to_owned()), denied(), held(1)],
            [failed(Kind::WrongType), failed(Kind::WrongType), Down],
        ] {
            let said = error(&tally(lasting));
            assert!(said.is_quorum() && !said.is_transient(), "{said}");
        }
        for passing in [[denied(), Down, Granted], [denied(), held(1), Down]] {
            let said = error(&tally(passing));
            assert!(said.is_quorum() && said.is_transient(), "{said}");
        }
    }

    #[test]
    fn when_most_clients_are_closed_that_is_the_error() {
        let closed = || failed(Kind::Closed);
        let most = error(&tally([failed(Kind::Io), closed(), closed()]));
        assert!(most.is_closed(), "{most}");
        assert_eq!(most.to_string(), "try_lock: Closed");
        assert!(error(&tally([failed(Kind::Io), failed(Kind::Io), closed()])).is_quorum());
    }

    const ALWAYS: [f64; 2] = [1.0, 1.0];

    #[test]
    fn the_range_starts_at_a_few_rounds_and_doubles_up_to_a_bound() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let mut most = |chances| backoff.pause(ms(10), false, None, chances, None).most;
        let pauses: Vec<_> = (0..6).map(|_| most(ALWAYS)).collect();
        assert_eq!(pauses, [30, 60, 120, 200, 200, 200].map(ms));
        assert_eq!(most([0.0, 0.25]), ms(50));
        let shortest = Backoff::default().pause(ms(0), false, None, ALWAYS, None);
        assert_eq!(shortest.most, PAUSE_FIRST_MIN);
    }

    #[test]
    fn after_split_votes_no_message_counts_for_longer() {
        let ms = Duration::from_millis;
        let mut backoff = Backoff::default();
        let least = |has_votes| backoff.pause(ms(10), has_votes, None, ALWAYS, None).least;
        let pauses = [false, true, true, true, true, false, true].map(least);
        assert_eq!(pauses, [30, 60, 120, 200, 200, 30, 60].map(ms));
    }

    #[test]
    fn the_end_of_a_lease_is_not_slept_through() {
        let ms = Duration::from_millis;
        let pause = Backoff::default().pause(ms(10), true, Some(ms(4)), ALWAYS, None);
        assert_eq!((pause.least, pause.most), (ms(5), ms(5)));
    }
}

//! What the servers said in one round, and how that is told.

use std::fmt;
use std::time::Duration;

use crate::error::{Error, Kind};

/// What became of the vote of one server.
#[derive(Clone, Debug)]
pub(super) enum Said {
    Granted,
    /// Held by nobody; an answer to a question.
    Free,
    /// It is there; an answer to a question.
    Here,
    /// Held by somebody else, for at most this long.
    Elsewhere(Option<Duration>),
    /// The round was decided before.
    Unheard,
    /// It may have forgotten a vote: it is up for a shorter time than a lease.
    Young {
        up: Duration,
        left: Duration,
    },
    /// It does not say how long it is up.
    Unproven,
    /// It is the server of another address, which has its vote.
    Twin(String),
    Silent(Duration),
    /// It did not answer a moment ago, and is left alone for a while.
    Resting,
    Failed(Error),
    /// It granted the lock, but too little of this lease was left when that was to be used.
    Late(Duration),
    /// It granted the lock, but its fencing token could not be raised.
    Unfenced(String),
}

impl Said {
    /// Whether it is no use for anybody just now, whoever holds the lock.
    pub(super) fn is_out(&self) -> bool {
        !matches!(
            self,
            Self::Granted | Self::Free | Self::Here | Self::Elsewhere(_) | Self::Unheard
        )
    }

    /// Whether it would say the same however often it is asked.
    fn is_final(&self) -> bool {
        match self {
            Self::Unproven | Self::Twin(_) => true,
            Self::Failed(error) => error.is_invalid() || error.is_closed(),
            _ => false,
        }
    }

    /// Whether it is silent, or out of reach.
    pub(super) fn is_away(&self) -> bool {
        match self {
            Self::Silent(_) => true,
            Self::Failed(error) => error.is_io(),
            _ => false,
        }
    }
}

impl fmt::Display for Said {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Granted => f.write_str("granted"),
            Self::Free => f.write_str("free"),
            Self::Here => f.write_str("answers"),
            Self::Elsewhere(_) => f.write_str("held elsewhere"),
            Self::Unheard => f.write_str("not waited for"),
            Self::Young { up, left } => write!(
                f,
                "is there for {up:.1?} and may have forgotten a vote, so it has none for {left:.1?}"
            ),
            Self::Unproven => f.write_str(
                "does not say who it is and how long it is up: give its user the right +info",
            ),
            Self::Twin(other) => write!(
                f,
                "is the same server as {other}, which has its vote: name each server once"
            ),
            Self::Silent(limit) => write!(f, "no answer within {limit:?}"),
            Self::Resting => f.write_str("no answer a moment ago"),
            Self::Failed(error) => f.write_str(error.message()),
            Self::Late(lease) => write!(
                f,
                "granted too late, with little left of a lease of {lease:?}: give a longer one"
            ),
            Self::Unfenced(why) => write!(f, "granted, but its token was not raised: {why}"),
        }
    }
}

/// One round, by server.
#[derive(Debug)]
pub(super) struct Tally {
    need: usize,
    said: Vec<Said>,
}

impl Tally {
    pub(super) fn new(servers: usize, need: usize) -> Self {
        Self {
            need,
            said: vec![Said::Unheard; servers],
        }
    }

    /// None of them answers.
    pub(super) fn silent(servers: usize, need: usize) -> Self {
        Self {
            need,
            said: vec![Said::Resting; servers],
        }
    }

    pub(super) fn note(&mut self, server: usize, said: Said) {
        self.said[server] = said;
    }

    /// Whether too few servers have a vote, whoever holds the lock.
    pub(super) fn is_unable(&self) -> bool {
        self.are_too_many(Said::is_out)
    }

    /// Whether that will not change by itself.
    pub(super) fn is_hopeless(&self) -> bool {
        self.are_too_many(Said::is_final)
    }

    /// Whether those who have it elsewhere are enough to keep everybody else out.
    pub(super) fn is_contended(&self) -> bool {
        self.are_too_many(|said| matches!(said, Said::Elsewhere(_)))
    }

    /// Whether enough servers can still grant it.
    pub(super) fn is_open(&self) -> bool {
        !self.are_too_many(|said| !matches!(said, Said::Granted | Said::Unheard))
    }

    fn are_too_many(&self, are: impl Fn(&Said) -> bool) -> bool {
        let count = self.said.iter().filter(|said| are(said)).count();
        self.said.len() - count < self.need
    }

    /// The shortest lease of those who hold it elsewhere.
    pub(super) fn remaining(&self) -> Option<Duration> {
        let each = self.said.iter().filter_map(|said| match said {
            Said::Elsewhere(remaining) => *remaining,
            _ => None,
        });
        each.min()
    }

    /// Why there is no majority; `addresses` are those of the servers.
    pub(super) fn error<'a>(
        &self,
        operation: &'static str,
        addresses: impl Iterator<Item = &'a str>,
    ) -> Error {
        let closed = |said: &Said| match said {
            Said::Failed(error) => error.is_closed().then(|| error.clone()),
            _ => None,
        };
        if self.are_too_many(|said| closed(said).is_some())
            && let Some(error) = self.said.iter().find_map(closed)
        {
            return error.during(operation);
        }
        let agreed = self
            .said
            .iter()
            .filter(|said| matches!(said, Said::Granted | Said::Here));
        let each: Vec<String> = addresses
            .zip(&self.said)
            .map(|(address, said)| format!("{address} {said}"))
            .collect();
        let message = format!(
            "{} of {} servers are needed, {} agreed: {}; check that enough of them are up and \
             reachable",
            self.need,
            self.said.len(),
            agreed.count(),
            each.join(", "),
        );
        let error = Error::new(Kind::Quorum, operation, message);
        // What a caller can tell by it is to be true of the majority.
        let wrong_type = |said: &Said| matches!(said, Said::Failed(error) if error.is_wrong_type());
        let is_wrong_type = self.are_too_many(wrong_type);
        let cause = self.said.iter().find_map(|said| match said {
            Said::Failed(cause) if cause.is_wrong_type() == is_wrong_type => Some(cause.clone()),
            _ => None,
        });
        match cause {
            Some(cause) => error.caused_by(cause),
            None => error,
        }
    }
}

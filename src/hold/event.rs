//! What happens to a hold, and what its shell has to do about it.
//!
//! The words between [`State`](super::state::State) and everything around it: plain values.

use std::ops::Range;
use std::time::Duration;

use super::share_lease::ShareLease;
use crate::clock::Tick;
use crate::counts::{Counts, Mode};
use crate::fencing::FencingToken;
use crate::group::Group;
use crate::hint::Mark;
use crate::holder::HolderId;
use crate::lost::LostReason;
use crate::options::{LeasePolicy, Replication};
use crate::owner::Owner;

/// What a new hold is made of.
#[derive(Debug)]
pub(crate) struct NewHold {
    pub(crate) owner: Owner,
    pub(crate) number: u64,
    pub(crate) holder: HolderId,
    /// When the request that was granted was sent.
    pub(crate) sent: Tick,
    /// A mark of [`Locals::moved`](super::local::Locals::moved), taken before that.
    pub(crate) moved: Mark,
    /// If the server handed the lock over, the lease that is certain from `sent` on. It was given later.
    pub(crate) handover: Option<Duration>,
    pub(crate) policy: LeasePolicy,
    pub(crate) mode: Mode,
    pub(crate) token: Option<FencingToken>,
    /// Later tokens that the server gives to nobody else.
    pub(crate) spare_tokens: Range<u64>,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
    pub(crate) group: Group,
    /// Whether other readers of this client may join it.
    pub(crate) is_joinable: bool,
}

/// What happens to a hold.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// Somebody wants to know whether it is held.
    ClockRead,
    Lost(LostReason),
    /// A guard has it. After the guard it may stay with its client for as long as `sticky`.
    GuardMade {
        sticky: Duration,
    },
    /// Its only guard has gone, and it stays with its client until then.
    LeftToClient {
        before: ShareLease,
        after: ShareLease,
        end: Tick,
    },
    /// Somebody waits for it.
    Recalled,
    /// Another reader of this client has it too, or has yet to take it.
    Joined {
        owner: Owner,
        is_claimed: bool,
    },
    /// Its writer passes it on to readers of this client, and the server is not told yet.
    DowngradeDeferred(DeferredDowngrade),
    /// It is to be downgraded: the time is over for which others are kept out, or one of them asks.
    DowngradeDue,
    /// A guard of this owner releases its share, and asks for the hold to be left at the server until `kept_until`.
    ShareReleased {
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
        kept_until: Tick,
    },
    /// A guard turns its exclusive share into a shared one.
    ShareDowngraded,
    /// A guard ends without giving its share back.
    ShareForgotten {
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
    },
    /// A share has another lease from here on.
    ShareLeaseChanged {
        before: ShareLease,
        after: ShareLease,
    },
    /// The request that sets these counts is sent.
    CountsSent(Counts),
    /// The server has these counts.
    CountsSettled(Counts),
    /// What the server has is not known: an operation was interrupted.
    CountsInDoubt,
    /// The server may have lost it.
    Doubted,
    /// A renewal is decided on.
    RenewalBegun {
        lease: Duration,
    },
    /// The server confirmed a renewal.
    Renewed {
        sent: Tick,
        lease: Duration,
    },
    /// The request for one more share is about to be sent, which is executed by `until` or never.
    ReentrySent {
        lease: Duration,
        until: Tick,
    },
    ReentryFailed {
        may_be_executed: bool,
    },
    /// It was answered; if it was sent more than once, it may be executed once more.
    ReentryAnswered {
        lease: Duration,
        is_repeated: bool,
    },
    ReentryGranted(Reentry),
    /// As [`ReentrySent`](Self::ReentrySent), for another lease of the same share.
    LeaseSent {
        lease: Duration,
        until: Tick,
    },
    LeaseGranted {
        sent: Tick,
        lease: Duration,
        is_repeated: bool,
    },
    /// Another task of this client has it now.
    HandedOff(NextOwner),
    /// That task has taken it, or a reader what it was handed.
    HandoffAccepted(Mode),
    /// The server's counter of tokens was raised to this one.
    TokenRaised(FencingToken),
}

/// Whose it is after a hand-off.
#[derive(Clone, Debug)]
pub(super) struct NextOwner {
    pub(super) owner: Owner,
    pub(super) fenced: bool,
    pub(super) give_up: Duration,
    /// What its share had, and has from here on.
    pub(super) before: ShareLease,
    pub(super) after: ShareLease,
}

/// A write hold that readers have, of which the server is to hear later.
#[derive(Clone, Debug)]
pub(super) struct DeferredDowngrade {
    /// The first of them.
    pub(super) first: Owner,
    /// That of all of them.
    pub(super) lease: Duration,
    pub(super) give_up: Duration,
    pub(super) until: Tick,
}

/// One more share, as the server granted it.
#[derive(Clone, Debug)]
pub(super) struct Reentry {
    pub(super) owner: Owner,
    pub(super) sent: Tick,
    pub(super) lease: Duration,
    pub(super) mode: Mode,
    pub(super) share: ShareLease,
    /// What the server was known to have before.
    pub(super) known: Option<Counts>,
    /// The counts that were asked for.
    pub(super) target: Counts,
    pub(super) token: Option<FencingToken>,
}

/// What the shell has to do after an event.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// The event came too late: the hold was lost before.
    pub(super) refused: Option<LostReason>,
    /// What the server granted counts: it came in time.
    pub(super) is_accepted: bool,
    /// The server is known to have the counts that it should have.
    pub(super) is_settled: bool,
    /// Others that joined it stay, and the server has nothing to hear of.
    pub(super) is_joined: bool,
    /// The same, but whether the server has it is in doubt.
    pub(super) is_in_doubt: bool,
    /// No guard has it any more, and the server may.
    pub(super) is_released: bool,
    pub(super) release: Option<ReleaseStep>,
    /// It is held no more, for whatever reason: nobody renews it, and nobody enters it.
    pub(super) is_over: bool,
    /// It is lost from here on: its guards are told, and whatever it is a member of.
    pub(super) lost: Option<LostReason>,
    /// It is worth asking the server again for those who wait.
    pub(super) wakes_waiters: bool,
    /// Its deadline has moved.
    pub(super) wakes_guards: bool,
    /// When the watchdog has to check it next.
    pub(super) check_at: Option<Tick>,
}

/// Who asks for the lock in this client asks behind a release of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseStep {
    Decided,
    Sent,
}

/// What is due for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Gone,
    Expired,
    Wait(Tick),
    /// The answer is worth waiting for `wait`.
    Renew {
        lease: Duration,
        wait: Duration,
    },
}

impl Effects {
    pub(super) fn check(at: Tick) -> Self {
        Self {
            check_at: Some(at),
            ..Self::default()
        }
    }
}

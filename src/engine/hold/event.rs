//! The events of a hold, and the effects that its shell has to carry out.
//!
//! Plain values between [`HoldState`](super::state::HoldState) and everything around it.

use std::ops::Range;
use std::sync::Weak;
use std::time::Duration;

use super::handoff::GrantedCall;
use super::share_lease::ShareLease;
use crate::api::fencing::FencingToken;
use crate::api::holder::{HolderId, Owner};
use crate::api::loss::LostReason;
use crate::api::options::{LeasePolicy, Replication};
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hint::Mark;
use crate::observe::group::Group;

/// The properties of a new hold.
#[derive(Debug)]
pub(crate) struct NewHold {
    pub(crate) owner: Owner,
    /// The number in its holder id.
    pub(crate) number: u64,
    /// When the granted request was sent.
    pub(crate) sent: Tick,
    /// A mark of [`Locals::moved`](super::local::Locals::moved), taken before `sent`.
    pub(crate) moved: Mark,
    /// If the server handed the lock over, the lease that is certain from `sent` on. The grant came later than that.
    pub(crate) handover: Option<Duration>,
    pub(crate) policy: LeasePolicy,
    pub(crate) mode: Mode,
    pub(crate) tokens: Tokens,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
    pub(crate) group: Group,
    /// Whether other readers of this client may join it.
    pub(crate) is_joinable: bool,
    /// The call that it is granted to, if that does not know it yet.
    pub(crate) call: Option<Weak<dyn GrantedCall>>,
}

/// The fencing token of the owner of a hold, and tokens for its next owners.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Tokens {
    pub(super) current: Option<FencingToken>,
    /// Later tokens that the server reserves for this hold.
    pub(super) spare: Range<u64>,
}

impl Tokens {
    pub(super) const NONE: Self = Self {
        current: None,
        spare: 0..0,
    };

    /// The token of a grant, and this many tokens after it.
    pub(crate) fn granted(current: Option<FencingToken>, spare: u32) -> Self {
        let spare = current.map_or(0..0, |token| {
            // A damaged reply may have a token without a next one.
            let next = token.get().saturating_add(1);
            next..next.saturating_add(spare.into())
        });
        Self { current, spare }
    }

    /// The token of the next owner.
    pub(super) fn pass_on(&mut self, fenced: bool) {
        self.current = if fenced {
            self.spare.next().map(FencingToken::from)
        } else {
            None
        };
    }
}

/// An event of a hold.
#[derive(Clone, Debug)]
pub(super) enum Event {
    /// A caller asks whether it is held.
    ClockRead,
    Lost(LostReason),
    /// A guard has it. When the guard is gone, the hold may stay with its client for up to `sticky`.
    GuardMade {
        sticky: Duration,
    },
    /// Its only guard has gone, and it stays with its client until `end`.
    LeftToClient {
        before: ShareLease,
        after: ShareLease,
        end: Tick,
    },
    /// The time that it stays with its client is over.
    StayOver,
    /// A waiter elsewhere wants it.
    Recalled,
    /// Another reader of this client joins it, or is handed a share that it has yet to take.
    Joined {
        owner: Owner,
        lease: Duration,
        is_claimed: bool,
    },
    /// The downgrade is due: others cannot be kept out any longer, or a waiter elsewhere asks.
    DowngradeDue,
    /// A guard of this owner releases its share, and asks to keep the hold at the server until `kept_until`.
    ShareReleased {
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
        kept_until: Tick,
    },
    /// A guard turns its exclusive share into a shared one.
    ShareDowngraded,
    /// A guard forgets its share.
    ShareForgotten {
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
    },
    /// A share has another lease from now on.
    ShareLeaseChanged {
        before: ShareLease,
        after: ShareLease,
    },
    /// The request after which the server has the hold in this mode, or not at all, is sent.
    ChangeSent(Option<Mode>),
    /// The server has answered a request that changes the hold.
    Answered(Answered),
    /// A request that was sent then and has no answer may have released it.
    MayBeReleased {
        sent: Tick,
    },
    /// The server may have lost it.
    Doubted,
    /// The server confirmed a renewal.
    Renewed {
        sent: Tick,
        lease: Duration,
    },
    /// Its owner has one more share.
    Entered(Entered),
    /// A request for this lease is about to be sent. It is executed by `until` or never.
    LeaseSent {
        lease: Duration,
        until: Tick,
    },
    /// The request for another lease was answered, and was sent once. `before` is until when the server had the hold at
    /// most, before that request.
    LeaseAnswered {
        before: Tick,
    },
    /// Another task of this client has it now.
    HandedOff(NextOwner),
    /// The next task has taken the hold, or a reader the share that it was handed.
    HandoffAccepted(Mode),
    /// The server's counter of tokens was raised to this one.
    TokenRaised(FencingToken),
}

/// The owner of a hold after a hand-off.
#[derive(Clone, Debug)]
pub(super) struct NextOwner {
    pub(super) owner: Owner,
    pub(super) fenced: bool,
    pub(super) give_up: Duration,
    /// The lease of its share before the hand-off, and after it.
    pub(super) before: ShareLease,
    pub(super) after: ShareLease,
    /// Its place in the queue at the server, which the hold takes with it.
    pub(super) place: Option<HolderId>,
    /// For a reader that takes over a write hold: until when the downgrade is deferred.
    pub(super) reads_until: Option<Tick>,
}

/// One more share of an owner.
#[derive(Clone, Debug)]
pub(super) struct Entered {
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) share: ShareLease,
    /// The lease that the server gave for this share, if it was asked, and when that was requested.
    pub(super) granted: Option<(Tick, Duration)>,
    /// `None` if the hold has a token, or needs none.
    pub(super) token: Option<FencingToken>,
}

/// The change of a hold at the server that its shares need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ServerChange {
    Nothing,
    Downgrade,
    Release,
    /// Its shares have ended, and it is kept for this long under another holder id.
    Keep(Duration),
}

impl ServerChange {
    /// The mode that the server has afterwards. `None` if it does not have the hold.
    pub(super) fn mode(self) -> Option<Mode> {
        (self == Self::Downgrade).then_some(Mode::Shared)
    }
}

/// The server's answer to a request that changes a hold.
#[derive(Clone, Copy, Debug)]
pub(super) struct Answered {
    /// The mode that was asked for.
    pub(super) mode: Option<Mode>,
    /// Whether the server had the hold.
    pub(super) is_found: bool,
    /// How many connections received the message of the release, if there was one.
    pub(super) receivers: Option<u64>,
    /// When the request was first sent, and whether it was sent again.
    pub(super) first_sent: Tick,
    pub(super) is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Phase {
    Held,
    /// No guard is left: it was released, or the release is under way.
    Released,
    /// No guard is left, and nothing will release it.
    Forgotten,
    Lost(LostReason),
}

impl Phase {
    pub(super) fn loss(self) -> Option<LostReason> {
        match self {
            Self::Lost(reason) => Some(reason),
            _ => None,
        }
    }
}

/// The effects of an event, for the shell to carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// The event came too late: the hold was lost before.
    pub(super) refused: Option<LostReason>,
    /// The server did not have the hold: it was lost before, for this reason.
    pub(super) missing: Option<LostReason>,
    /// The server's grant counts, because it came in time.
    pub(super) is_accepted: bool,
    /// Other shares stay, and the server need not hear of the release.
    pub(super) is_local: bool,
    /// As `is_local`, but it is in doubt whether the server has the hold.
    pub(super) is_in_doubt: bool,
    pub(super) release: Option<ReleaseStep>,
    /// The hold has ended in this phase: it is neither renewed nor entered from now on.
    pub(super) ended: Option<Phase>,
    /// The call that it was granted to had, or has had, a guard of it when it was lost.
    pub(super) was_taken: bool,
    /// Its deadline has moved.
    pub(super) wakes_guards: bool,
    /// When the watchdog has to check it next, as of this event. By the time that this is carried out, later events may
    /// have changed it.
    pub(super) check_at: Option<Tick>,
}

/// The progress of a release. Requests of this client for the lock go behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseStep {
    /// A hold in this mode is no longer wanted.
    Decided(Mode),
    Sent,
}

/// The watchdog's next step for a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    Gone,
    Expired,
    Wait(Tick),
    /// Renew, and wait for the answer for up to `wait`.
    Renew {
        lease: Duration,
        wait: Duration,
    },
}

impl Effects {
    /// Why the hold is lost, if it is: its guards and its groups have to be notified.
    pub(super) fn lost(&self) -> Option<LostReason> {
        self.ended.and_then(Phase::loss)
    }

    /// Whether waiters may succeed now, and have to be woken. After a release that is done once it is sent.
    pub(super) fn wakes_waiters(&self) -> bool {
        self.ended.is_some_and(|phase| phase != Phase::Released)
    }

    pub(super) fn check(at: Tick) -> Self {
        Self {
            check_at: Some(at),
            ..Self::default()
        }
    }
}

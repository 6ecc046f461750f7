//! The values that a change of a hold needs, and the effects that its shell has to carry out.
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
    /// If the server handed the lock over: the lease that is certain from `sent` on, because the grant came later.
    pub(crate) handover: Option<Duration>,
    pub(crate) policy: LeasePolicy,
    pub(crate) mode: Mode,
    pub(crate) tokens: Tokens,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
    pub(crate) group: Group,
    /// Whether other readers of this client may join it.
    pub(crate) is_joinable: bool,
    /// The call that the hold was granted to, if the call does not know that yet.
    pub(crate) call: Option<Weak<dyn GrantedCall>>,
}

/// The fencing token of the owner of a hold, and the tokens reserved for its next owners.
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

    /// Moves on to the token of the next owner.
    pub(super) fn pass_on(&mut self, fenced: bool) {
        self.current = if fenced {
            self.spare.next().map(FencingToken::from)
        } else {
            None
        };
    }
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
    /// Its place in the queue at the server, which ends with the hold.
    pub(super) place: Option<HolderId>,
    /// For a reader that takes over a write hold: until when the downgrade is deferred.
    pub(super) reads_until: Option<Tick>,
}

/// The server's answer to a request for one more share.
#[derive(Clone, Copy, Debug)]
pub(super) struct Agreed {
    /// When the lease was requested.
    pub(super) sent: Tick,
    pub(super) lease: Duration,
    /// `None` if the hold has a token, or needs none.
    pub(super) token: Option<FencingToken>,
}

/// The change of a hold at the server that its shares need.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum ServerChange {
    Nothing,
    Downgrade,
    Release,
    /// The hold, whose shares have ended, is kept for this long under another holder id.
    Keep(Duration),
}

impl ServerChange {
    /// The mode of the hold at the server after the change. `None` if the server does not have the hold.
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
    /// When the request was first sent, and whether it was sent again.
    pub(super) first_sent: Tick,
    pub(super) is_repeated: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    Held,
    /// No guard is left: it was released, or the release is under way.
    Released,
    /// No guard is left, and nothing will release it.
    Forgotten,
    Lost(LostReason),
}

impl Phase {
    pub(crate) fn loss(self) -> Option<LostReason> {
        match self {
            Self::Lost(reason) => Some(reason),
            _ => None,
        }
    }
}

/// The effects of a change of a hold, for the shell to carry out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// The server did not have the hold: it was lost before, for this reason.
    pub(super) missing: Option<LostReason>,
    /// Other shares stay, so the release sends nothing to the server.
    pub(super) is_local: bool,
    pub(super) release: Option<ReleaseStep>,
    /// The final phase of a hold that has ended. From now on the hold is neither renewed nor entered.
    pub(super) ended: Option<Phase>,
    /// The call that the hold was granted to had a guard of it before the loss.
    pub(super) was_taken: bool,
    /// The watchdog has to look again when to check it next.
    pub(super) looks_again: bool,
}

/// The progress of a release. Requests of this client for the lock go behind it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReleaseStep {
    /// The release or downgrade of a hold in this mode was decided on.
    Decided(Mode),
    Sent,
}

impl Effects {
    /// Why the hold is lost, if it is. Its guards and its loss listeners have to be notified.
    pub(super) fn lost(&self) -> Option<LostReason> {
        self.ended.and_then(Phase::loss)
    }

    /// Whether waiters have to be woken, because an attempt may succeed now. After a release they are woken once it is
    /// sent.
    pub(super) fn wakes_waiters(&self) -> bool {
        self.ended.is_some_and(|phase| phase != Phase::Released)
    }

    pub(super) fn look_again(looks_again: bool) -> Self {
        Self {
            looks_again,
            ..Self::default()
        }
    }
}

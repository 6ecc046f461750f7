//! A share on its way from one task of a client to another, and the request of the next task.
//!
//! Invariant: a share that no task takes is released when the hand-off is dropped.

use std::any::Any;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use super::share_lease::ShareLease;
use crate::api::holder::Owner;
use crate::api::options::{LeasePolicy, Options, Replication};
use crate::engine::counts::Mode;

/// A task that was missing at this many checks in a row is passed over.
pub(super) const MISSED_MAX: u32 = 2;

/// A waiter's request for a hand-off.
#[derive(Clone, Debug)]
pub(crate) struct HandoffRequest {
    pub(crate) options: Arc<Options>,
    pub(crate) policy: LeasePolicy,
}

/// The terms that are equal for all readers of one hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(Hash))]
pub(crate) struct ReaderClass {
    /// The lease, which is renewed.
    pub(crate) lease: Duration,
    pub(crate) replication: Option<Replication>,
    pub(crate) give_up: Duration,
}

/// A hold, as its lock refers to it. The type of a hold depends on its lock, so the lock does not depend on that type.
pub(crate) trait LocalHold: Any + Debug + Send + Sync {
    /// Releases a share that no task has taken.
    fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease);
}

/// A call that was granted holds, and may not know that yet.
pub(crate) trait GrantedCall: Debug + Send + Sync {
    /// Notes that the call has not taken its holds at a check. If it had not taken them at a check a reply time ago
    /// either, the holds are released or passed on.
    fn miss(&self);
}

/// Downcasts the hold to its type.
pub(super) fn known<T: LocalHold>(hold: Arc<dyn LocalHold>) -> Option<Arc<T>> {
    let hold: Arc<dyn Any + Send + Sync> = hold;
    hold.downcast().ok()
}

/// A share on its way to another task: the only share of an exclusive hold, or a reader's share.
#[derive(Debug)]
pub(crate) struct Handoff {
    /// `None` once it was taken, so that the drop does nothing.
    hold: Option<Arc<dyn LocalHold>>,
    pub(super) owner: Owner,
    pub(super) mode: Mode,
    pub(super) lease: ShareLease,
}

impl Handoff {
    pub(super) fn new(
        hold: Arc<dyn LocalHold>,
        owner: Owner,
        mode: Mode,
        lease: ShareLease,
    ) -> Self {
        Self {
            hold: Some(hold),
            owner,
            mode,
            lease,
        }
    }

    /// Whether this is a share of `hold`.
    pub(super) fn is_of(&self, hold: &impl LocalHold) -> bool {
        let this = self.hold.as_ref().map(Arc::as_ptr);
        this.is_some_and(|this| std::ptr::addr_eq(this, hold))
    }

    /// Takes out the hold. The caller has to release the share.
    pub(super) fn take(&mut self) -> Option<Arc<dyn LocalHold>> {
        self.hold.take()
    }
}

impl Drop for Handoff {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            hold.give_back(self.owner.clone(), self.mode, self.lease);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::hash::{Hash, Hasher};

    use parking_lot::Mutex;

    use super::*;

    impl Clone for Handoff {
        fn clone(&self) -> Self {
            Self {
                hold: self.hold.clone(),
                owner: self.owner.clone(),
                mode: self.mode,
                lease: self.lease,
            }
        }
    }

    impl Hash for Handoff {
        fn hash<H: Hasher>(&self, hasher: &mut H) {
            (&self.owner, self.mode, self.lease).hash(hasher);
        }
    }

    impl Hash for HandoffRequest {
        fn hash<H: Hasher>(&self, hasher: &mut H) {
            self.policy.lease().hash(hasher);
        }
    }

    const LEASE: ShareLease = ShareLease::renewed(Duration::from_secs(30));

    /// Records which shares are released.
    #[derive(Debug, Default)]
    struct Handed(Mutex<Vec<(Owner, Mode)>>);

    impl LocalHold for Handed {
        fn give_back(self: Arc<Self>, owner: Owner, mode: Mode, lease: ShareLease) {
            assert_eq!(lease, LEASE);
            self.0.lock().push((owner, mode));
        }
    }

    #[test]
    fn what_was_handed_off_is_taken_or_given_back() {
        let (hold, owner) = (Arc::<Handed>::default(), Owner::new());
        let handed_off =
            |owner: &Owner, mode| Handoff::new(Arc::clone(&hold) as _, owner.clone(), mode, LEASE);
        let both = [
            (owner.clone(), Mode::Exclusive),
            (owner.clone(), Mode::Shared),
        ];
        for (owner, mode) in &both {
            drop(handed_off(owner, *mode));
        }
        assert_eq!(*hold.0.lock(), both);
        let mut handoff = handed_off(&owner, Mode::Exclusive);
        assert!(handoff.is_of(&*hold) && !handoff.is_of(&Handed::default()));
        assert!(handoff.take().is_some() && handoff.take().is_none());
        drop(handoff);
        assert_eq!(*hold.0.lock(), both, "the caller has to");
    }
}

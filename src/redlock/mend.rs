//! Votes that come after a lock was granted: those that were not waited for, and those of servers
//! that were lost and are back.
//!
//! Without them a hold that is renewed for long would end with the third restart among five servers,
//! however much time lies between. Invariant: a place is mended by one task at a time, on the watchdog
//! of its server's client, which ends with the hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::ballot::{Ballot, Pending};
use super::votes::Said;
use crate::hint::Hint;
use crate::hold::Share;
use crate::hold::quorum::{Mender, Quorum};

/// The first pause: about what a release takes to get to all servers.
const SOON: Duration = Duration::from_millis(5);

/// Asks servers that have no part in a hold.
#[derive(Clone, Debug)]
pub(super) struct Mending(pub(super) Ballot);

impl Mender for Mending {
    fn mend(&self, quorum: &Arc<Quorum>, place: usize) {
        let place = Place::of(self, quorum, place);
        // What ends a hold by force does not come to all servers at once.
        let first = self.0.limit;
        place.mend_later(first);
    }
}

impl Mending {
    /// Asks a server once more that did not grant a lock which was granted just now: it may not have
    /// heard yet that the holder before has given it back.
    pub(super) fn ask_again(&self, quorum: &Arc<Quorum>, server: usize) {
        let place = Place::of(self, quorum, server);
        place.mend_later(Place::soon());
    }

    /// Goes on with a vote that was not waited for.
    pub(super) fn follow(&self, quorum: &Arc<Quorum>, pending: Pending) {
        let server = pending.server;
        let place = Place::of(self, quorum, server);
        let work = async move {
            // Dropped when it is over: what is under way is cancelled, and asked for behind that.
            let (_, _, share) = tokio::select! {
                biased;
                answer = pending => answer,
                () = place.over() => return,
            };
            let has_joined = match share {
                Some(share) => place.join(share).await,
                None => false,
            };
            if !has_joined {
                // As if it had been waited for: it has had no part in this hold.
                place.mend(Place::soon()).await;
            }
        };
        self.0.asks[server].core.watchdog.later(work.boxed());
    }
}

/// The place of one server in one quorum, which this keeps nobody from giving up.
struct Place {
    ballot: Ballot,
    quorum: Weak<Quorum>,
    changed: Arc<Hint>,
    at: usize,
}

impl Place {
    fn of(mending: &Mending, quorum: &Arc<Quorum>, at: usize) -> Self {
        Self {
            ballot: mending.0.clone(),
            quorum: Arc::downgrade(quorum),
            changed: quorum.changed(),
            at,
        }
    }

    fn mend_later(self, first: Duration) {
        let watchdog = &Arc::clone(&self.ballot.asks[self.at].core).watchdog;
        watchdog.later(self.mend(first).boxed());
    }

    /// For a server that has had no part yet.
    fn soon() -> Duration {
        SOON.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// The longest.
    fn pause(&self) -> Duration {
        let lease = self.ballot.asks[self.at].term.lease();
        lease.mul_f64(0.36 + 0.2 * fastrand::f64())
    }

    /// Asks after `first`, then less and less often up to about every third of a lease, until it is
    /// granted or not wanted any more; as soon as it is back, if it is away, and as soon as it has a vote.
    ///
    /// Only while a majority is known to hold: one that was ended by force is to be told so by enough
    /// servers before it gets the first of them back. If some do not say, from a third of its lease on.
    async fn mend(self, first: Duration) {
        let quorum = self.quorum.upgrade();
        if !quorum.is_some_and(|quorum| quorum.is_renewed()) {
            // It would outlast its lease.
            return;
        }
        let clock = self.ballot.clock();
        let in_doubt_until = clock.now().after(self.pause());
        let mut pause = first;
        while self.waits(pause).await {
            pause = self.pause().min(pause * 2);
            if clock.now() < in_doubt_until && !self.is_certain() {
                continue;
            }
            let (said, share) = self.ballot.ask(self.at).await;
            if let Some(share) = share
                && self.join(share).await
            {
                return;
            }
            if let Said::Young { left, .. } = said {
                pause = left;
            }
        }
    }

    /// False if it is not wanted any more.
    async fn waits(&self, span: Duration) -> bool {
        let end = self.ballot.clock().now().after(span);
        tokio::select! {
            biased;
            () = self.over() => false,
            () = self.ballot.electorate.waits_for(self.at, end) => true,
        }
    }

    fn is_certain(&self) -> bool {
        let quorum = self.quorum.upgrade();
        quorum.is_some_and(|quorum| quorum.is_certain())
    }

    /// Resolves when it is not wanted any more.
    async fn over(&self) {
        let core = &self.ballot.asks[self.at].core;
        loop {
            let marks = (self.changed.mark(), core.closing.mark());
            if core.is_closed() || !self.is_wanted() {
                return;
            }
            tokio::select! {
                () = self.changed.past(marks.0) => {}
                () = core.closing.past(marks.1) => {}
            }
        }
    }

    fn is_wanted(&self) -> bool {
        let quorum = self.quorum.upgrade();
        quorum.is_some_and(|quorum| quorum.lacks(self.at))
    }

    /// Gives a share to the quorum, or back.
    async fn join(&self, share: Share) -> bool {
        let token = self.quorum.upgrade().and_then(|quorum| quorum.token());
        if let Some(token) = token
            && self.ballot.raise_one(&share, token).await.is_err()
        {
            return false;
        }
        let quorum = self.quorum.upgrade();
        quorum.is_some_and(|quorum| quorum.join(self.at, share, token))
    }
}

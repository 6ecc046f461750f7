//! Votes that come after a lock was granted: those that were not waited for, and those of servers
//! that were lost and are back.
//!
//! Without them a hold that is renewed for long would end with the third restart among five servers,
//! however much time lies between. Invariant: a place is mended by one task at a time, on the watchdog
//! of its server's client, which ends with the hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::round::{Pending, QuorumRequest};
use super::tally::VoteOutcome;
use crate::hint::Hint;
use crate::hold::Share;
use crate::hold::quorum::{QuorumHold, Rejoin};

/// The first pause: about what a release takes to get to all servers.
const SOON: Duration = Duration::from_millis(5);

/// Asks servers that have no part in a hold.
#[derive(Clone, Debug)]
pub(super) struct Rejoiner(pub(super) QuorumRequest);

impl Rejoin for Rejoiner {
    fn rejoin(&self, quorum: &Arc<QuorumHold>, server: usize) {
        let task = RejoinTask::of(self, quorum, server);
        // What ends a hold by force does not come to all servers at once.
        let first = self.0.vote_timeout;
        task.start(first);
    }
}

impl Rejoiner {
    /// Asks a server once more that did not grant a lock which was granted just now: it may not have
    /// heard yet that the holder before has given it back.
    pub(super) fn ask_again(&self, quorum: &Arc<QuorumHold>, server: usize) {
        let task = RejoinTask::of(self, quorum, server);
        task.start(RejoinTask::soon());
    }

    /// Goes on with a vote that was not waited for.
    pub(super) fn follow(&self, quorum: &Arc<QuorumHold>, pending: Pending) {
        let server = pending.server;
        let task = RejoinTask::of(self, quorum, server);
        let work = async move {
            // Dropped when it is over: what is under way is cancelled, and asked for behind that.
            let (_, _, share) = tokio::select! {
                biased;
                answer = pending => answer,
                () = task.over() => return,
            };
            let has_joined = match share {
                Some(share) => task.join(share).await,
                None => false,
            };
            if !has_joined {
                // As if it had been waited for: it has had no part in this hold.
                task.run(RejoinTask::soon()).await;
            }
        };
        self.0.asks[server].core.watchdog.drive(work.boxed());
    }
}

/// The place of one server in one quorum, which this keeps nobody from giving up.
struct RejoinTask {
    request: QuorumRequest,
    quorum: Weak<QuorumHold>,
    changed: Arc<Hint>,
    server: usize,
}

impl RejoinTask {
    fn of(rejoiner: &Rejoiner, quorum: &Arc<QuorumHold>, server: usize) -> Self {
        Self {
            request: rejoiner.0.clone(),
            quorum: Arc::downgrade(quorum),
            changed: quorum.changed(),
            server,
        }
    }

    fn start(self, first: Duration) {
        let watchdog = &Arc::clone(&self.request.asks[self.server].core).watchdog;
        watchdog.drive(self.run(first).boxed());
    }

    /// For a server that has had no part yet.
    fn soon() -> Duration {
        SOON.mul_f64(0.5 + 0.5 * fastrand::f64())
    }

    /// The longest.
    fn pause(&self) -> Duration {
        let lease = self.request.asks[self.server].term.lease();
        lease.mul_f64(0.36 + 0.2 * fastrand::f64())
    }

    /// Asks after `first`, then less and less often up to about every third of a lease, until it is
    /// granted or not wanted any more; as soon as it is back, if it is away, and as soon as it has a vote.
    ///
    /// Only while a majority is known to hold: one that was ended by force is to be told so by enough
    /// servers before it gets the first of them back. If some do not say, from a third of its lease on.
    async fn run(self, first: Duration) {
        let quorum = self.quorum.upgrade();
        if !quorum.is_some_and(|quorum| quorum.is_renewed()) {
            // It would outlast its lease.
            return;
        }
        let clock = self.request.clock();
        let in_doubt_until = clock.now().after(self.pause());
        let mut pause = first;
        while self.waits(pause).await {
            pause = self.pause().min(pause * 2);
            if clock.now() < in_doubt_until && !self.is_certain() {
                continue;
            }
            let (outcome, share) = self.request.ask(self.server).await;
            if let Some(share) = share
                && self.join(share).await
            {
                return;
            }
            if let VoteOutcome::TooYoung { remaining, .. } = outcome {
                pause = remaining;
            }
        }
    }

    /// False if it is not wanted any more.
    async fn waits(&self, span: Duration) -> bool {
        let end = self.request.clock().now().after(span);
        tokio::select! {
            biased;
            () = self.over() => false,
            () = self.request.servers.wait_while_down(self.server, end) => true,
        }
    }

    fn is_certain(&self) -> bool {
        let quorum = self.quorum.upgrade();
        quorum.is_some_and(|quorum| quorum.is_certain())
    }

    /// Resolves when it is not wanted any more.
    async fn over(&self) {
        let core = &self.request.asks[self.server].core;
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
        quorum.is_some_and(|quorum| quorum.is_missing(self.server))
    }

    /// Gives a share to the quorum, or back.
    async fn join(&self, share: Share) -> bool {
        let token = self.quorum.upgrade().and_then(|quorum| quorum.token());
        if let Some(token) = token
            && self.request.raise_one(&share, token).await.is_err()
        {
            return false;
        }
        let quorum = self.quorum.upgrade();
        quorum.is_some_and(|quorum| quorum.join(self.server, share, token))
    }
}

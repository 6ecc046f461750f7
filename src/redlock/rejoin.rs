//! Servers that join a hold after it was granted: servers whose vote was not awaited, and lost servers that are back.
//!
//! Without them a hold that is renewed for long would end with the third restart among five servers, even if the
//! restarts are far apart. Invariant: one task at a time asks a server to join a hold, on the watchdog of that server's
//! client, and it ends with the hold.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::hold::QuorumHold;
use super::round::Vote;
use super::tally::VoteOutcome;
use crate::engine::hold::Share;

/// The first pause before a server is asked that does not hold the lock: about the time that a release takes to reach
/// all servers.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause before a server is asked that has not refused: it is wanted as soon as possible.
const PAUSE_UNASKED_MAX: Duration = Duration::from_millis(200);

impl QuorumHold {
    /// Asks a server again after a pause that has dropped out, or that refused a lock which was granted just now.
    pub(super) fn ask_again(self: &Arc<Self>, server: usize, first: Duration) {
        self.drive(server, Arc::clone(self).win(server, first));
    }

    /// Follows a vote that was not awaited.
    pub(super) fn follow(self: &Arc<Self>, server: usize, vote: BoxFuture<'static, Vote>) {
        let hold = Arc::clone(self);
        let work = async move {
            // Dropped when the hold is over, which undoes the attempt.
            let vote = tokio::select! {
                biased;
                vote = vote => vote,
                () = hold.over_for(server) => return,
            };
            let has_joined = match vote {
                Ok(share) => hold.fence_and_join(server, share).await,
                Err(_) => false,
            };
            if !has_joined {
                // It was never a part of this hold, as if its vote had been awaited.
                hold.win(server, first_pause()).await;
            }
        };
        self.drive(server, work);
    }

    fn drive(&self, server: usize, work: impl Future<Output = ()> + Send + 'static) {
        let core = &self.request.requests[server].core;
        core.watchdog.drive(work.boxed());
    }

    /// The longest pause: about a third to a half of a lease.
    fn longest_pause(&self) -> Duration {
        let lease = self.request.lease();
        lease.mul_f64(0.36 + 0.2 * fastrand::f64())
    }

    /// Asks after `first`, then less and less often, until the server has joined or is no longer wanted. A server that
    /// is down is asked as soon as it is up, a restarted server as soon as it has a vote.
    ///
    /// Asks only while a majority is known to hold: if the hold was ended by force, enough servers have to report that
    /// before this adds the first of them again. If some do not answer, it asks from a third of the lease on.
    async fn win(self: Arc<Self>, server: usize, first: Duration) {
        if !self.is_renewed() {
            // A new grant would outlast the fixed lease.
            return;
        }
        let clock = self.request.clock();
        let in_doubt_until = clock.now().after(self.longest_pause());
        let mut pause = first;
        while self.wants_after(server, pause).await {
            if clock.now() < in_doubt_until && !self.is_certain() {
                pause = PAUSE_UNASKED_MAX.min(pause * 2);
                continue;
            }
            pause = match self.request.ask(server).await {
                Ok(share) => {
                    if self.fence_and_join(server, share).await {
                        return;
                    }
                    self.longest_pause().min(pause * 2)
                }
                Err(VoteOutcome::TooYoung { remaining, .. }) => remaining,
                // It is down, but cannot be skipped: too many others are down, or were a moment ago.
                Err(outcome) if outcome.is_unreachable() => PAUSE_UNASKED_MAX.min(pause * 2),
                Err(_) => self.longest_pause().min(pause * 2),
            };
        }
    }

    /// Waits for `pause`, and while the server is down. Returns false if the server is no longer wanted.
    async fn wants_after(&self, server: usize, pause: Duration) -> bool {
        let end = self.request.clock().now().after(pause);
        tokio::select! {
            biased;
            () = self.over_for(server) => false,
            () = self.request.servers.wait_while_down(server, end) => true,
        }
    }

    /// Resolves when the server is no longer wanted.
    async fn over_for(&self, server: usize) {
        let core = &self.request.requests[server].core;
        loop {
            let marks = (self.changed.mark(), core.closing.mark());
            if core.is_closed() || !self.is_missing(server) {
                return;
            }
            tokio::select! {
                biased;
                () = self.changed.changed_since(marks.0) => {}
                () = core.closing.changed_since(marks.1) => {}
            }
        }
    }

    /// Adds the server's grant to the hold, or releases it.
    async fn fence_and_join(self: &Arc<Self>, server: usize, share: Share) -> bool {
        let token = self.token();
        if let Some(token) = token
            && self.request.raise_token(share.hold(), token).await.is_err()
        {
            return false;
        }
        self.join(server, share, token)
    }
}

pub(super) fn first_pause() -> Duration {
    FIRST_PAUSE.mul_f64(0.5 + 0.5 * fastrand::f64())
}

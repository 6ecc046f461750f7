//! Servers that join a hold after it was granted: servers whose vote was not awaited, and lost servers that are back.
//!
//! Without them a hold that is renewed for long would end with the third restart among five servers, even if the
//! restarts are far apart. Invariant: one task at a time asks a server to join a hold, on the watchdog of that server's
//! client, and it ends with the hold.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::FutureExt;

use super::hold::{QuorumHold, Rejoin};
use super::round::{Pending, QuorumRequest};
use super::tally::VoteOutcome;
use crate::engine::hint::Hint;
use crate::engine::hold::Share;

/// The first pause before a server is asked that does not hold the lock: about the time that a release takes to reach
/// all servers.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause before a server is asked that has not refused: it is wanted as soon as possible.
const PAUSE_UNASKED_MAX: Duration = Duration::from_millis(200);

/// Asks servers that have no part in a hold.
#[derive(Clone, Debug)]
pub(super) struct Rejoiner(pub(super) QuorumRequest);

impl Rejoin for Rejoiner {
    fn rejoin(&self, hold: &Arc<QuorumHold>, server: usize) {
        // A forced release does not reach all servers at once.
        let first = self.0.vote_timeout;
        RejoinTask::new(self, hold, server).start(first);
    }
}

impl Rejoiner {
    /// Asks a server again that refused a lock which was granted just now: the release of the previous holder may not
    /// have reached it yet.
    pub(super) fn ask_again(&self, hold: &Arc<QuorumHold>, server: usize) {
        RejoinTask::new(self, hold, server).start(first_pause());
    }

    /// Follows a vote that was not awaited.
    pub(super) fn follow(&self, hold: &Arc<QuorumHold>, pending: Pending) {
        let server = pending.server;
        let task = RejoinTask::new(self, hold, server);
        let work = async move {
            // Dropped when the hold is over, which undoes the attempt.
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
                // It was never a part of this hold, as if its vote had been awaited.
                task.run(first_pause()).await;
            }
        };
        self.0.requests[server].core.watchdog.drive(work.boxed());
    }
}

fn first_pause() -> Duration {
    FIRST_PAUSE.mul_f64(0.5 + 0.5 * fastrand::f64())
}

/// Asks one server to join one hold, which it does not keep alive.
struct RejoinTask {
    request: QuorumRequest,
    hold: Weak<QuorumHold>,
    /// Given when the hold changes.
    changed: Arc<Hint>,
    server: usize,
}

impl RejoinTask {
    fn new(rejoiner: &Rejoiner, hold: &Arc<QuorumHold>, server: usize) -> Self {
        Self {
            request: rejoiner.0.clone(),
            hold: Arc::downgrade(hold),
            changed: Arc::clone(&hold.changed),
            server,
        }
    }

    fn start(self, first: Duration) {
        let watchdog = &Arc::clone(&self.request.requests[self.server].core).watchdog;
        watchdog.drive(self.run(first).boxed());
    }

    /// The longest pause: about a third to a half of a lease.
    fn longest_pause(&self) -> Duration {
        let lease = self.request.requests[self.server].policy.lease();
        lease.mul_f64(0.36 + 0.2 * fastrand::f64())
    }

    /// Asks after `first`, then less and less often, until the server has joined or is no longer wanted. A server that
    /// is down is asked as soon as it is up, a restarted server as soon as it has a vote.
    ///
    /// Asks only while a majority is known to hold: if the hold was ended by force, enough servers have to report that
    /// before this adds the first of them again. If some do not answer, it asks from a third of the lease on.
    async fn run(self, first: Duration) {
        if !self.hold.upgrade().is_some_and(|hold| hold.is_renewed()) {
            // A new grant would outlast the fixed lease.
            return;
        }
        let clock = self.request.clock();
        let in_doubt_until = clock.now().after(self.longest_pause());
        let mut pause = first;
        while self.is_wanted_after(pause).await {
            if clock.now() < in_doubt_until && !self.is_certain() {
                pause = PAUSE_UNASKED_MAX.min(pause * 2);
                continue;
            }
            let (outcome, share) = self.request.ask(self.server).await;
            if let Some(share) = share
                && self.join(share).await
            {
                return;
            }
            pause = match outcome {
                VoteOutcome::TooYoung { remaining, .. } => remaining,
                // It is down, but cannot be skipped: too many others are down, or were a moment ago.
                outcome if outcome.is_unreachable() => PAUSE_UNASKED_MAX.min(pause * 2),
                _ => self.longest_pause().min(pause * 2),
            };
        }
    }

    /// Waits for `pause`, and while the server is down. Returns false if the server is no longer wanted.
    async fn is_wanted_after(&self, pause: Duration) -> bool {
        let end = self.request.clock().now().after(pause);
        let health = &self.request.servers.health;
        tokio::select! {
            biased;
            () = self.over() => false,
            () = health.wait_while_down(self.server, end) => true,
        }
    }

    fn is_certain(&self) -> bool {
        self.hold.upgrade().is_some_and(|hold| hold.is_certain())
    }

    /// Resolves when the server is no longer wanted.
    async fn over(&self) {
        let core = &self.request.requests[self.server].core;
        loop {
            let marks = (self.changed.mark(), core.closing.mark());
            if core.is_closed() || !self.is_wanted() {
                return;
            }
            tokio::select! {
                biased;
                () = self.changed.changed_since(marks.0) => {}
                () = core.closing.changed_since(marks.1) => {}
            }
        }
    }

    fn is_wanted(&self) -> bool {
        let hold = self.hold.upgrade();
        hold.is_some_and(|hold| hold.is_missing(self.server))
    }

    /// Adds the server's grant to the hold, or releases it.
    async fn join(&self, share: Share) -> bool {
        let token = self.hold.upgrade().and_then(|hold| hold.token());
        if let Some(token) = token
            && self.request.raise_token(&share, token).await.is_err()
        {
            return false;
        }
        let hold = self.hold.upgrade();
        hold.is_some_and(|hold| hold.join(self.server, share, token))
    }
}

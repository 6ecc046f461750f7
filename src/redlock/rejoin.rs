//! Servers that join a hold after it was granted: servers whose vote was not awaited, and lost servers that are back.
//!
//! Without them a hold that is renewed for long would end with the third restart among five servers, even if the
//! restarts are far apart. Invariant: one task at a time asks a server to join a hold, on the watchdog of that server's
//! client, and it ends with the hold.

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;

use super::hold::QuorumHold;
use super::round::Vote;
use super::tally::VoteOutcome;
use crate::engine::hold::Share;

/// The first pause before a server is asked again that refused its vote for a new hold: about the time that the release
/// of the previous holder takes to reach all servers.
const FIRST_PAUSE: Duration = Duration::from_millis(5);

/// The longest pause before a server that has not refused is asked again. Its vote is wanted as soon as possible.
const PAUSE_UNASKED_MAX: Duration = Duration::from_millis(200);

impl QuorumHold {
    /// Asks a missing server in the background until it joins. Its `vote` may be under way. `first` is the pause before
    /// a server that has dropped out is asked; it is `None` for one that was never a member, which is asked soon.
    pub(super) fn win(
        self: &Arc<Self>,
        server: usize,
        vote: Option<BoxFuture<'static, Vote>>,
        first: Option<Duration>,
    ) {
        let hold = Arc::clone(self);
        let work = async move {
            let core = &hold.request.requests[server].core;
            let is_over = hold.until(|hold| !hold.is_missing(server));
            tokio::select! {
                biased;
                // The server is no longer wanted. Dropping an attempt under way undoes it.
                _ = core.until_closed(is_over) => {}
                () = hold.ask_until_joined(server, vote, first) => {}
            }
        };
        let core = &self.request.requests[server].core;
        core.watchdog.drive(work.boxed());
    }

    /// Whether a majority holds, and no server of that majority has left a question about its hold unanswered.
    fn is_certain(&self) -> bool {
        let members = self.members();
        let certain = members.iter().filter(|(_, member)| member.is_certain());
        certain.count() >= self.request.quorum()
    }

    /// The longest pause: about a third to a half of a lease.
    fn longest_pause(&self) -> Duration {
        let lease = self.request.first().policy.lease();
        lease.mul_f64(0.36 + 0.2 * fastrand::f64())
    }

    /// Awaits the vote that is under way, if there is one. Then asks after the first pause, and less and less often,
    /// until the server has joined. A server that is down is asked as soon as it is up, a restarted server as soon as
    /// it has a vote.
    ///
    /// At first, asks only while a majority is known to hold. If the hold was ended by force, enough servers have to
    /// report that before the first of them may be added again. Some may not answer, so after a third of the lease it
    /// asks in any case.
    async fn ask_until_joined(
        self: &Arc<Self>,
        server: usize,
        vote: Option<BoxFuture<'static, Vote>>,
        first: Option<Duration>,
    ) {
        if let Some(vote) = vote
            && let Ok(share) = vote.await
            && self.fence_and_join(server, share).await
        {
            return;
        }
        // A new grant would outlast a fixed lease.
        self.until(Self::is_renewed).await;
        let clock = self.request.clock();
        let in_doubt_until = clock.now().after(self.longest_pause());
        let mut pause = first.unwrap_or_else(|| FIRST_PAUSE.mul_f64(0.5 + 0.5 * fastrand::f64()));
        loop {
            let end = clock.now().after(pause);
            self.request.servers.wait_while_down(server, end).await;
            if clock.now() < in_doubt_until && !self.is_certain() {
                pause = PAUSE_UNASKED_MAX.min(pause * 2);
                continue;
            }
            pause = match self.request.ask(server, self.request.vote_timeout).await {
                Ok(share) => {
                    if self.fence_and_join(server, share).await {
                        return;
                    }
                    self.longest_pause().min(pause * 2)
                }
                // All holds wait for the same moment. A random part makes them ask at different times.
                Err(VoteOutcome::TooYoung { remaining, .. }) => {
                    remaining.mul_f64(1.0 + 0.1 * fastrand::f64())
                }
                // It is down, but cannot be skipped: too many others are down, or were a moment ago.
                Err(outcome) if outcome.is_unreachable() => PAUSE_UNASKED_MAX.min(pause * 2),
                Err(_) => self.longest_pause().min(pause * 2),
            };
        }
    }

    /// Resolves when `is_true` is true of the hold.
    async fn until(&self, is_true: impl Fn(&Self) -> bool) {
        loop {
            let mark = self.changed.mark();
            if is_true(self) {
                return;
            }
            self.changed.changed_since(mark).await;
        }
    }

    /// Adds the server's grant to the hold, or releases it. Returns whether it was added.
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

    use redis::Value;

    use super::*;
    use crate::client::Client;
    use crate::conn::Lane;
    use crate::redlock::Redlock;
    use crate::script::catalog::REENTRANT_ACQUIRE;
    use crate::testing::{Answer, Scripted, Sent, each, elsewhere, granted};

    const MS: Duration = Duration::from_millis(1);
    const LEASE: Duration = Duration::from_secs(30);
    const HOLDS: usize = 100;

    fn is_attempt(sent: &Sent) -> bool {
        sent.words[1] == REENTRANT_ACQUIRE.sha()
    }

    fn holding(sent: &Sent) -> Answer {
        match sent.lane {
            Lane::Renewal => Answer::Value(each(1, sent.script_keys())),
            _ if is_attempt(sent) => Answer::Value(granted()),
            _ => Answer::Value(Value::Int(1)),
        }
    }

    /// The third server is down, and later up. In the second case the first attempt there finds another holder, whose
    /// lease is longer than all known ones, so the server is too young until that lease is over.
    #[tokio::test(start_paused = true)]
    async fn a_server_that_is_back_is_not_asked_by_all_holds_at_once() {
        const LONGER: Duration = Duration::from_secs(1_000);
        for is_taken in [false, true] {
            let (is_up, refusals) = (Arc::new(AtomicBool::new(false)), AtomicUsize::new(0));
            let up = Arc::clone(&is_up);
            let third = Scripted::at("c:3", move |sent| {
                if !up.load(Ordering::SeqCst) {
                    return Answer::Silence;
                }
                match (&*sent.words[0], is_attempt(sent)) {
                    ("INFO", _) => {
                        let line = Value::BulkString("connected_slaves:0".into());
                        Answer::Late(MS, line)
                    }
                    (_, true) if is_taken && refusals.fetch_add(1, Ordering::SeqCst) == 0 => {
                        Answer::Value(elsewhere(i64::try_from(LONGER.as_millis()).unwrap()))
                    }
                    _ => holding(sent),
                }
            });
            let others = ["a:1", "b:2"].map(|address| Scripted::at(address, holding));
            let servers = [&others[0], &others[1], &third];
            // The servers are up for long enough to have a vote.
            tokio::time::sleep(LONGER * 7 / 10).await;
            let clients = servers.map(|server| Client::over(server, LEASE));
            let redlock = Redlock::builder(clients).build().unwrap();
            let mut guards = Vec::new();
            for n in 0..HOLDS {
                guards.push(redlock.lock(format!("x{n}")).lock().await.unwrap());
            }
            tokio::time::sleep(LEASE).await;
            let before = third.sent().len();
            is_up.store(true, Ordering::SeqCst);
            tokio::time::sleep(LONGER * 8 / 10).await;
            assert!(guards.iter().all(|guard| !guard.is_lost()));
            let sent = third.sent().split_off(before);
            let infos = sent.iter().filter(|sent| sent.is("INFO")).count();
            assert!(infos < 10, "{infos}");
            let mut attempts: Vec<_> = sent.iter().filter(|sent| is_attempt(sent)).collect();
            // The last attempt of each hold, which was granted.
            let attempts = attempts.split_off(attempts.len() - HOLDS);
            let spread = attempts[HOLDS - 1].at - attempts[0].at;
            assert!(spread > MS * 100, "{spread:?}");
        }
    }
}

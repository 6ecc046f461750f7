//! Elections: one of several candidates leads, and proclaims a value that all can read.
//!
//! The leader holds a fenced lock; its value is in a key beside the lock. Invariants: readers see the last value of the
//! current holder of the lock, never a value of an earlier leader; a leader's values are written in order, even if
//! calls are repeated.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::stream::{self, BoxStream, Stream, StreamExt};
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::api::error::{Error, Kind, Result};
use crate::api::fencing::FencingToken;
use crate::api::handle::Handle;
use crate::api::loss::{Loss, Lost, LostReason, drive};
use crate::api::options::LeasePolicy;
use crate::client::Client;
use crate::engine::clock::Tick;
use crate::engine::hold::{Share, ShareLease};
use crate::engine::keys::LockName;
use crate::engine::listen::Listener;
use crate::engine::synchronizer::{Synchronizer, Untaken, synchronizer_methods};
use crate::script::{Answer, Call, catalog, millis, reply};

/// The longest value in bytes, as every observer reads it.
const VALUE_BYTES_MAX: usize = 64 * 1024;

/// A value is kept for this many leases, and written again after each, because the server may lose it in a failover.
const LEASES_KEPT: u32 = 4;

impl Client {
    /// A handle on the election called `name`.
    ///
    /// An invalid name is reported by the first call on the handle ([`is_invalid`](Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn work() {}
    /// # async fn doc(client: lockset::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let election = client.election("scheduler").value("10.0.0.7:8080");
    /// let leadership = election.campaign().await?; // waits until it leads
    /// leadership.run(work()).await?; // dropped when it leads no longer
    /// leadership.resign().await?;
    /// # Ok(()) }
    /// ```
    pub fn election(&self, name: impl AsRef<str>) -> Election {
        let mut site = self.lock(name).fenced().0;
        site.what = "election";
        let value = "".into();
        Election { site, value }
    }
}

/// An election: one of several candidates leads; from [`Client::election`].
///
/// A handle: cheap to make and to clone, it holds nothing. The leader holds the lock of this name, with a fencing
/// token, so do not use the name for a lock too. A leader that is killed is replaced within its [`lease`](Self::lease),
/// a leader that [resigns](Leadership::resign) at once.
///
/// **A leader must check before it writes.** A process that was paused does not know yet that another one leads. So
/// have the resource check the [token](Leadership::token): it refuses a token smaller than the largest it has seen.
/// Where it cannot, run the work by [`Leadership::run`], which drops it when the leadership is lost, keep each step
/// much shorter than the lease, and check [`is_lost`](Leadership::is_lost) before each step. Even then two leaders may
/// overlap while one of them is paused between the check and the write.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// if let Some(leader) = client.election("scheduler").leader().await? {
///     println!("{} leads: {}", leader.id, leader.value);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct Election {
    /// The handle on its lock.
    site: Handle,
    value: Arc<str>,
}

synchronizer_methods!(Election, "election");

impl Election {
    /// Sets the value that a candidate proclaims as soon as it leads, such as its address. Default: the empty text.
    pub fn value(mut self, value: impl AsRef<str>) -> Self {
        self.value = value.as_ref().into();
        self
    }

    /// Sets the lease of a leader, as [`ReentrantLock::lease`](crate::ReentrantLock::lease): the longest time without a leader after the last was
    /// killed.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.site.options_mut().policy = Some(LeasePolicy::Renewed(lease));
        self
    }

    /// Waits until this candidate leads. Its [value](Self::value) has been written when this returns.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As for [`ReentrantLock::lock`](crate::ReentrantLock::lock); [`is_invalid`](Error::is_invalid) also for a value of more than 64 KiB. After an
    /// error this candidate does not lead.
    pub async fn campaign(&self) -> Result<Leadership> {
        loop {
            if let Some(leadership) = self.lead("campaign", Tick::NEVER).await? {
                return Ok(leadership);
            }
        }
    }

    /// Leads if there is no leader. Two round trips.
    ///
    /// # Cancel safety
    /// As for [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// As for [`campaign`](Self::campaign).
    pub async fn try_campaign(&self) -> Result<Option<Leadership>> {
        self.lead("try_campaign", Tick::ZERO).await
    }

    /// Waits until this candidate leads, for at most this long.
    ///
    /// # Cancel safety
    /// As for [`campaign`](Self::campaign).
    ///
    /// # Errors
    /// As for [`campaign`](Self::campaign).
    pub async fn campaign_for(&self, wait: Duration) -> Result<Option<Leadership>> {
        let deadline = self.site.deadline(Some(wait));
        self.lead("campaign_for", deadline).await
    }

    /// Leads once it is elected. `None`: it was not elected, or lost the lock before the value was written.
    async fn lead(&self, operation: &'static str, deadline: Tick) -> Result<Option<Leadership>> {
        let site = &self.site;
        check_value(site, operation, &self.value)?;
        let elected = site.acquire_until(operation, |_| deadline, drop).await;
        let Some(mut share) = elected.map_err(|error| site.error(error.during(operation)))? else {
            return Ok(None);
        };
        // The lock is not renewed before the value is written, because this future may never be polled again.
        let renewed = share.lease();
        share.set_lease(ShareLease::fixed(share.deadline()));
        let leadership = Leadership::new(self, site.name(operation)?, share);
        let said = Arc::clone(&leadership.said);
        // Resigns if the client is closed in the meantime.
        let (elected, _closed_with) = Untaken::new(site.core(), Some(leadership));
        let is_written = said.say(operation, deadline).await?;
        let Some(mut leadership) = elected.take() else {
            return Err(site.error(site.core().closed(operation)));
        };
        if let Some(share) = &mut leadership.share {
            share.set_lease(renewed);
        }
        let leads = is_written && !leadership.is_lost();
        Ok(leads.then_some(leadership))
    }

    /// Returns the leader and the value that it proclaimed last; `None` if there is no leader. One round trip.
    ///
    /// Another candidate may lead when this returns, so use it to show or to find the leader. A leader counts once its
    /// first value is written. A leader that was killed is returned until its lease ends.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) for a name that cannot work and for a key that holds something else;
    /// [`is_io`](Error::is_io) if the server does not answer.
    pub async fn leader(&self) -> Result<Option<Leader>> {
        self.ask_leader("leader").await
    }

    async fn ask_leader(&self, operation: &'static str) -> Result<Option<Leader>> {
        let name = self.site.name(operation)?;
        let keys = [name.key(), &*name.leader_key()];
        let call = Call::new(&catalog::LEADER_READ, name.key(), &keys);
        let read = |answer: &Answer| reply::leader(&answer.value);
        let seen = self.site.ask(operation, &call, Tick::NEVER, read).await?;
        Ok(seen.map(|(id, token, value)| Leader { id, token, value }))
    }

    /// Streams the leader from now on: the current one first, then every change.
    ///
    /// Of several changes between two looks only the last is seen, and the last change is never missed: a notification,
    /// a gap in the connection or a timer leads to a fresh look, at least once in a sixth of the client's lease. An
    /// error is an item once, and the stream continues when the server answers again. It ends after
    /// [`is_closed`](Error::is_closed) and [`is_invalid`](Error::is_invalid).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// use futures_util::StreamExt;
    ///
    /// let mut leaders = client.election("scheduler").observe();
    /// while let Some(seen) = leaders.next().await {
    ///     match seen {
    ///         Ok(Some(leader)) => println!("send it to {}", leader.value),
    ///         Ok(None) => println!("nobody leads"),
    ///         Err(error) => println!("not known: {error}"),
    ///     }
    /// }
    /// # Ok(()) }
    /// ```
    pub fn observe(&self) -> Leaders {
        let observer = Observer {
            election: self.clone(),
            listener: None,
            last: None,
        };
        let changes = stream::try_unfold(observer, |mut observer| async move {
            let seen = observer.change().await?;
            Ok(Some((seen, observer)))
        });
        // Fused, because the stream may be polled after its end.
        let seen = changes.map(|seen: Result<_>| seen?);
        // The mutex makes the stream `Sync`. It is never locked.
        Leaders(Mutex::new(seen.fuse().boxed()))
    }
}

impl fmt::Debug for Election {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Election")
            .field("name", &self.name())
            .field("value", &self.value)
            .finish_non_exhaustive()
    }
}

/// The leader of an election, as the server saw it; from [`Election::leader`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// The holder id of its lock, equal to [`Leadership::id`].
    pub id: String,
    /// The value that it proclaimed last.
    pub value: String,
    /// Its fencing token, larger than the tokens of all leaders before it.
    pub token: FencingToken,
}

/// The leaders of an election, one after the other; from [`Election::observe`].
#[must_use = "a stream does nothing unless it is polled"]
pub struct Leaders(Mutex<BoxStream<'static, Result<Option<Leader>>>>);

impl Stream for Leaders {
    type Item = Result<Option<Leader>>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        self.0.get_mut().poll_next_unpin(context)
    }
}

impl fmt::Debug for Leaders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leaders").finish_non_exhaustive()
    }
}

/// The state of a stream of leaders.
struct Observer {
    election: Election,
    /// Keeps the subscription between two items.
    listener: Option<Listener>,
    /// The last item; for an error, `Err`.
    last: Option<std::result::Result<Option<Leader>, ()>>,
}

impl Observer {
    /// Waits for the next change. Fails with an error that is permanent.
    async fn change(&mut self) -> Result<Result<Option<Leader>>> {
        const OPERATION: &str = "observe";
        let (site, channel) = (&self.election.site, LockName::leader_key);
        if self.listener.is_none() && site.options.polled.is_none() {
            let listener = site.listener(OPERATION, channel)?;
            listener.subscribe();
            self.listener = Some(listener);
        }
        let look = || async {
            let seen = self.election.ask_leader(OPERATION).await;
            if let Err(error) = &seen
                && (error.is_closed() || error.is_invalid())
            {
                return Err(error.clone());
            }
            let told = Some(seen.clone().map_err(drop));
            Ok((told != self.last).then_some((seen, told)))
        };
        let changed = site.wait(OPERATION, channel, Tick::NEVER, look).await?;
        let (seen, told) = changed.expect("a wait without an end");
        self.last = told;
        Ok(seen)
    }
}

/// A leader's identity, and the value that it proclaims.
struct Said {
    site: Synchronizer,
    name: LockName,
    id: String,
    token: FencingToken,
    kept: Duration,
    /// The version of the value, and the value.
    value: Mutex<(u64, Arc<str>)>,
}

impl Said {
    /// Writes the last value, unless a later one is there. Returns `false` if the leadership is lost.
    async fn say(&self, operation: &'static str, deadline: Tick) -> Result<bool> {
        let (site, name) = (&self.site, &self.name);
        let (version, value) = self.value.lock().clone();
        let keys = [name.key(), &*name.leader_key()];
        let call = Call::new(&catalog::LEADER_PROCLAIM, name.key(), &keys)
            .arg(&*self.id)
            .arg(self.token.get())
            .arg(version)
            .arg(&*value)
            .arg(millis(self.kept))
            .arg(site.told(name.leader_key()));
        let asked = site.ask(operation, &call, deadline, Answer::flag);
        asked.await
    }

    fn resignation(&self) -> Call {
        let name = &self.name;
        Call::new(&catalog::LEADER_RESIGN, name.key(), &[&*name.leader_key()])
            .arg(&*self.id)
            .arg(self.token.get())
            .arg(self.site.told(name.leader_key()))
    }
}

/// Writes the value again periodically, until the leadership is lost, resigned or dropped; the latter two drop the
/// sender of `gone`. After that, a write without an answer is not repeated, because it would arrive after the
/// resignation.
async fn say_again(said: Arc<Said>, every: Duration, gone: oneshot::Receiver<()>) {
    let clock = said.site.core().clock;
    let again = async {
        loop {
            clock.sleep_until(clock.now().after(every)).await;
            // A failed write is tried again later; the value is kept for longer than that.
            if let Ok(false) = said.say("proclaim", Tick::NEVER).await {
                return;
            }
        }
    };
    tokio::select! {
        biased;
        _ = gone => {}
        () = again => {}
    }
}

/// The leadership of an election; from [`Election::campaign`]. Dropping it resigns in the background.
///
/// It is lost like a guard: when its lease ends or its holder is removed at the server. Read what a leader [must
/// check](Election) before it writes.
///
/// ```no_run
/// # async fn write(token: lockset::FencingToken) {}
/// # async fn doc(client: lockset::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let leadership = client.election("scheduler").campaign().await?;
/// leadership.proclaim("10.0.0.7:8080").await?;
/// leadership.run(write(leadership.token())).await?;
/// leadership.resign().await?;
/// # Ok(()) }
/// ```
#[must_use = "if unused it resigns at once"]
#[clippy::has_significant_drop]
pub struct Leadership {
    share: Option<Share>,
    said: Arc<Said>,
    /// Dropped before the resignation, to end the repeated writes.
    gone: Option<oneshot::Sender<()>>,
}

impl Leadership {
    fn new(election: &Election, name: &LockName, share: Share) -> Self {
        let core = election.site.core();
        let lease = election.site.options.lease(core.timing.lease);
        let said = Arc::new(Said {
            site: Synchronizer::clone(&election.site),
            name: name.clone(),
            id: share.holder_id().to_owned(),
            token: share.fencing_token().expect("a fenced grant has a token"),
            kept: lease.saturating_mul(LEASES_KEPT),
            value: Mutex::new((0, Arc::clone(&election.value))),
        });
        let (sender, gone) = oneshot::channel();
        let again = say_again(Arc::clone(&said), lease, gone);
        core.watchdog.drive_while_needed(again.boxed());
        Self {
            share: Some(share),
            said,
            gone: Some(sender),
        }
    }

    /// The name of the election, as it was given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        self.share().name()
    }

    /// The holder id of this leader at the server, as in [`Leader::id`].
    #[must_use]
    pub fn id(&self) -> &str {
        &self.said.id
    }

    /// The fencing token of this leader, for the resource to check.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.said.token
    }

    /// How long the leadership is certain without a renewal, by the local monotonic clock. Zero once it is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.share().remaining()
    }

    /// Whether the leadership is lost. Once true, it stays true.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.share().is_lost()
    }

    /// Waits until the leadership is lost, and returns the reason; as [`ReentrantGuard::lost`](crate::ReentrantGuard::lost).
    ///
    /// # Cancel safety
    /// Cancel safe. It may be called any number of times, also after the loss.
    pub async fn lost(&self) -> LostReason {
        self.share().lost().await
    }

    /// Whether the leadership is lost, for tasks and threads that do not have it; as [`ReentrantGuard::loss`](crate::ReentrantGuard::loss).
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.share().loss_view()
    }

    /// Runs `work` to its end, or drops it when the leadership is lost; as [`ReentrantGuard::run`](crate::ReentrantGuard::run).
    ///
    /// # Cancel safety
    /// Dropping the future drops `work`.
    ///
    /// # Errors
    /// The leadership was lost before `work` ended.
    pub async fn run<F: Future>(&self, work: F) -> std::result::Result<F::Output, Lost> {
        drive(self.lost(), || self.share().lost_now(), work).await
    }

    /// Proclaims `value` in place of the value before. One round trip.
    ///
    /// # Cancel safety
    /// If the future is dropped, the value is written now, or within a lease while the leadership lasts.
    ///
    /// # Errors
    /// * [`is_not_held`](Error::is_not_held): the leadership is lost. Nothing was written.
    /// * [`is_invalid`](Error::is_invalid): the value has more than 64 KiB.
    /// * [`is_io`](Error::is_io): the server does not answer. If it answers again within a lease, the value is written
    ///   then.
    pub async fn proclaim(&self, value: impl AsRef<str>) -> Result<()> {
        const OPERATION: &str = "proclaim";
        let value = value.as_ref();
        check_value(&self.said.site, OPERATION, value)?;
        if let Some(lost) = self.share().lost_now() {
            return Err(self.said.site.error(Error::from(lost).during(OPERATION)));
        }
        {
            let mut said = self.said.value.lock();
            *said = (said.0 + 1, value.into());
        }
        if self.said.say(OPERATION, Tick::NEVER).await? {
            return Ok(());
        }
        let message = "it leads no longer, so nothing was written; campaign again";
        let error = Error::new(Kind::NotHeld, OPERATION, message);
        Err(self.said.site.error(error))
    }

    /// Ends the leadership, so that the next candidate leads at once. Two round trips.
    ///
    /// # Cancel safety
    /// If the future is dropped, it resigns in the background.
    ///
    /// # Errors
    /// As for [`ReentrantGuard::release`](crate::ReentrantGuard::release).
    pub async fn resign(self) -> Result<()> {
        let site = self.said.site.clone();
        // The client drives both steps, because this future may never be polled again, and the lock is renewed until
        // the second step.
        let until = site.deadline(Some(site.give_up("resign")?.saturating_mul(2)));
        let watchdog = &site.core().watchdog;
        let resigned = watchdog.finish("resign", until, self.resigned()).await;
        resigned.map_err(|error| site.error(error))?
    }

    async fn resigned(mut self) -> Result<()> {
        self.gone = None;
        let said = Arc::clone(&self.said);
        // Sent before the release, because the lock may then be handed off to a candidate of this client with the same
        // holder id.
        let resignation = said.resignation();
        let asked = said
            .site
            .ask("resign", &resignation, Tick::NEVER, Answer::flag);
        match asked.await {
            // The rest goes on in the background, because a release would wait for as long again.
            Err(error) if error.is_io() && !self.is_lost() => return Err(error),
            Err(_) => self.resign_later(),
            Ok(_) => {}
        }
        let Some(share) = self.share.take() else {
            return Ok(());
        };
        let released = share.release().await;
        released.map_err(|error| said.site.error(error.during("resign")))
    }

    fn resign_later(&self) {
        let (said, core) = (&self.said, self.said.site.core());
        core.undo_later(said.resignation(), said.kept, (None, None));
    }

    fn share(&self) -> &Share {
        // Only methods that consume the leadership take it out.
        self.share.as_ref().expect("a leader has its hold")
    }
}

impl Drop for Leadership {
    fn drop(&mut self) {
        if let Some(share) = self.share.take() {
            self.gone = None;
            self.resign_later();
            drop(share);
        }
    }
}

impl fmt::Debug for Leadership {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Leadership")
            .field("name", &self.name())
            .field("remaining", &self.remaining())
            .field("is_lost", &self.is_lost())
            .field("id", &self.id())
            .field("token", &self.token())
            .finish()
    }
}

fn check_value(site: &Synchronizer, operation: &'static str, value: &str) -> Result<()> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let bytes = value.len();
    let message = format!("a value of {bytes} bytes is too long; use at most {VALUE_BYTES_MAX}");
    Err(site.invalid(operation, message))
}

#[cfg(test)]
mod tests;

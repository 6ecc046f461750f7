//! The fair lock: one owner at a time, in the order of their requests.
//!
//! This module is the part on the wire; the engine does the rest. At the server the lock is Redisson's `RFairLock`: one
//! queue for Rust and Java. Each waiter has a place in the queue, a channel of its own for the handover, and a
//! heartbeat, which is its poll.

use std::time::Duration;

use crate::api::error::Result;
use crate::api::guard::guard_methods;
use crate::api::handle::Handle;
use crate::api::holder::HolderId;
use crate::api::verbs::{holder_methods, option_methods, verb_methods};
use crate::client::Client;
use crate::engine::clock::Tick;
use crate::engine::counts::Mode;
use crate::engine::hold::Share;
use crate::engine::hold::protocol::{AcquireTerms, Forced, HolderRef, Protocol, Queue};
use crate::engine::keys::LockName;
use crate::observe::counts::CountedKind;
use crate::script::{Answer, Call, Part, Script, catalog, millis, reply};

impl Client {
    /// A handle on the fair lock called `name`. Names are as for [`lock`](Self::lock).
    ///
    /// A fair and a reentrant lock of one name exclude each other, but do not wake each other's waiters: use
    /// a name for one kind only.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let guard = client.fair_lock("desk:1").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn fair_lock(&self, name: impl AsRef<str>) -> FairLock {
        FairLock(Handle::new(self, name.as_ref(), &PROTOCOL, Mode::Exclusive))
    }
}

/// A lock for one owner at a time, granted in the order of arrival at the server, across all processes; from
/// [`Client::fair_lock`].
///
/// A handle: cheap to make and to clone, it holds nothing. One task of one client, against 64 tasks of another, gets
/// one grant in 65. The cost of a grant at the server does not depend on the number of waiters.
///
/// **Places in the queue.** Each waiter has a place in a queue at the server and keeps it by polling at least every
/// second (more often with a short client lease); from six waiters of one client on, one script keeps the places of all
/// of them. A waiter that has not polled for the time of three polls, at least 1
/// s, is passed over when its turn comes, and goes to the end if it comes back. When the future is dropped or runs out
/// of time, its place is removed in the background, one round trip later.
///
/// **Handover.** A release hands the lock over to the next waiter, which holds it as soon as the notification arrives.
/// That hold starts with a short lease, the rest of the waiter's place; a renewal 100 ms later makes it a full lease
/// ([`FairGuard::remaining`] shows it). So a waiter that has just died delays the others for seconds, not for a lease.
///
/// **Tasks of one client** that stand directly behind each other in the queue hand the lock on in memory, in that order,
/// up to 16 times and for up to 5 ms. The holder id stays that of the first of them, and the others stay in
/// [`waiters`](Self::waiters) until the last of them releases. A future among them that is not polled is passed over
/// after two checks, a sixth of the client's lease apart (100 ms to 1 s).
///
/// **Blocking code.** A section that blocks the only thread of its runtime for a second or more right after a handover
/// may lose the lock, because the renewal cannot be sent. Move such work to
/// [`spawn_blocking`](tokio::task::spawn_blocking), or use a [fixed lease](Self::fixed_lease). Locks with a fixed lease
/// or [replicas](Self::replicated) are not handed over: the waiter asks, in one round trip, and has its full lease from
/// the start.
///
/// **Redisson's waiters** are in this queue too, under Redisson's rule: a dead waiter is passed over when its own time
/// is up, five minutes by default.
///
/// ```no_run
/// # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
/// let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
/// let desk = client.fair_lock("desk:1");
///
/// let guard = desk.lock().await?;
/// println!("{} are waiting", desk.waiters().await?.len());
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct FairLock(pub(crate) Handle);

option_methods!(FairLock);
verb_methods!(FairLock, FairGuard);
holder_methods!(FairLock);

impl FairLock {
    /// Returns the holder ids of the waiters, in queue order. One round trip; the answer may be outdated when it
    /// arrives, and may still contain a waiter that died.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// As for [`lock`](Self::lock).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// for (place, id) in client.fair_lock("desk:1").waiters().await?.iter().enumerate() {
    ///     println!("{place}: {id}");
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn waiters(&self) -> Result<Vec<String>> {
        let name = self.0.name("waiters")?;
        let keys = [name.key(), &*name.fair_queue_key(), &*name.fair_alive_key()];
        let call = Call::new(&catalog::FAIR_WAITERS, name.key(), &keys);
        let read = |answer: &Answer| reply::texts(&answer.value);
        self.0.ask("waiters", &call, Tick::NEVER, read).await
    }
}

/// One hold on a [`FairLock`]; dropping it releases in the background.
///
/// Use [`release`](Self::release) to know that the lock was held to the end.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown), which waits for the
/// releases of dropped guards.
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct FairGuard(Share);

guard_methods!(FairGuard);

/// The most places that the server looks through for one waiter. The server does nothing else during a search, and in a
/// long queue many calls wait for long enough to ask for one.
const PLACES_MAX: usize = 1000;

static PROTOCOL: FairProtocol = FairProtocol;

#[derive(Debug)]
struct FairProtocol;

impl Protocol for FairProtocol {
    fn kind(&self) -> &'static str {
        "fair"
    }

    fn counted(&self, _mode: Mode) -> CountedKind {
        CountedKind::Fair
    }

    fn acquire(&self, holder: &HolderRef<'_>, terms: &AcquireTerms) -> Call {
        let is_fenced = terms.tokens > 0;
        call_on_queue(&catalog::FAIR_ACQUIRE, holder.name, is_fenced)
            .arg(holder.id)
            .arg(millis(terms.lease))
            .arg(terms.tokens)
            .arg(terms.heartbeat.map_or(0, millis))
            .arg(on_turn(terms))
            .arg(holder.name.lock_channel())
            .arg(holder.publish)
            .arg(is_fenced.then_some(holder.token_retention))
    }

    fn release(&self, holder: &HolderRef<'_>, places: &[HolderId]) -> Call {
        let has_more = holder.fenced || !places.is_empty();
        let call = call_on_queue(&catalog::FAIR_RELEASE, holder.name, holder.fenced)
            .arg(holder.id)
            .arg(holder.name.lock_channel())
            .arg(holder.publish)
            .arg(has_more.then_some(holder.token_retention));
        places.iter().fold(call, |call, place| call.arg(&**place))
    }

    fn force(&self, name: &LockName, forced: &Forced<'_>) -> Call {
        call_on_queue(&catalog::FAIR_FORCE_UNLOCK, name, forced.fenced)
            .arg(name.lock_channel())
            .arg(forced.publish)
            .arg(forced.token_retention)
            .arg(forced.holder)
    }

    fn keep_call(&self, name: &LockName) -> Call {
        let (key, queue) = (name.key(), name.fair_queue_key());
        Call::new(&catalog::KEEP, key, &[key, &queue])
    }

    fn acquire_as_member<'a>(
        &self,
        holder: &HolderRef<'a>,
        terms: &AcquireTerms,
        _plain_lease: Duration,
    ) -> Part<'a> {
        let part = Part::acquire("fair", holder, terms, holder.name.lock_channel());
        queue_keys(holder.name).into_iter().fold(part, Part::key)
    }

    fn release_as_member<'a>(&self, holder: &HolderRef<'a>) -> Part<'a> {
        let part = Part::release("fair", holder, holder.name.lock_channel());
        queue_keys(holder.name).into_iter().fold(part, Part::key)
    }

    fn channel(&self, name: &LockName, holder: &str) -> String {
        format!("{}:{holder}", name.lock_channel())
    }

    fn queue(&self) -> Queue {
        Queue::Server
    }

    fn place(&self, name: &LockName, holder: &str) -> Option<Call> {
        let queue = name.fair_queue_key();
        let call = Call::new(&catalog::FAIR_PLACE, name.key(), &[&queue]);
        Some(call.arg(holder).arg(PLACES_MAX))
    }

    fn heartbeat(
        &self,
        any: &HolderRef<'_>,
        heartbeat: Duration,
        waiters: &[HolderId],
    ) -> Option<Call> {
        let call = call_on_queue(&catalog::FAIR_HEARTBEAT, any.name, any.fenced)
            .arg(millis(heartbeat))
            .arg(any.name.lock_channel())
            .arg(any.publish)
            .arg(any.token_retention);
        Some(
            waiters
                .iter()
                .fold(call, |call, waiter| call.arg(&**waiter)),
        )
    }
}

fn queue_keys(name: &LockName) -> [String; 3] {
    [
        name.fair_queue_key(),
        name.fair_timeouts_key(),
        name.fair_alive_key(),
    ]
}

fn call_on_queue(script: &'static Script, name: &LockName, fenced: bool) -> Call {
    let [queue, timeouts, alive] = queue_keys(name);
    let mut keys = vec![&**name.key(), &queue, &timeouts, &alive];
    let token = name.token_key();
    if fenced {
        keys.push(&token);
    }
    Call::new(script, name.key(), &keys)
}

/// The action for a waiter when its turn comes, as `mark_place` in `lua/includes` names it.
fn on_turn(terms: &AcquireTerms) -> &'static str {
    match (terms.accepts_handover, terms.tokens) {
        (false, _) => "wake",
        (true, 0) => "grant",
        (true, _) => "grant_fenced",
    }
}

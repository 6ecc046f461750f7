//! What all handles on a lock have in common: a client, a name, options, and the verbs.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::{self, Ask, Wait};
use crate::client::Client;
use crate::counts::Mode;
use crate::error::{Error, Result};
use crate::hold::Share;
use crate::hold::core::Core;
use crate::hold::protocol::Protocol;
use crate::keys::LockName;
use crate::options::{Options, check_give_up};
use crate::script::reply::{self, Inspected};
use crate::script::{Answer, Call};
use crate::watchdog::Leased;

#[derive(Clone)]
pub(crate) struct Handle {
    core: Arc<Core>,
    /// A name that cannot work is told by the first call that uses it.
    name: Result<LockName>,
    pub(crate) options: Options,
    protocol: &'static dyn Protocol,
    mode: Mode,
}

impl Handle {
    pub(crate) fn new(
        client: &Client,
        name: &str,
        protocol: &'static dyn Protocol,
        mode: Mode,
    ) -> Self {
        Self {
            core: Arc::clone(client.core()),
            name: LockName::new(client.key_prefix(), name),
            options: Options {
                replication: client.replication(),
                ..Options::new()
            },
            protocol,
            mode,
        }
    }

    /// The same lock, to be held in another mode.
    pub(crate) fn in_mode(&self, mode: Mode) -> Self {
        Self {
            mode,
            ..self.clone()
        }
    }

    pub(crate) fn name(&self) -> Result<&LockName> {
        self.name.as_ref().map_err(Clone::clone)
    }

    fn name_for(&self, operation: &'static str) -> Result<&LockName> {
        self.name().map_err(|error| error.during(operation))
    }

    /// As it was given, also if it cannot work.
    pub(crate) fn given_name(&self) -> &str {
        match &self.name {
            Ok(name) => name.as_str(),
            Err(error) => error.lock_name().unwrap_or_default(),
        }
    }

    /// What there is to say about it, on one line.
    pub(crate) fn show(&self, kind: &str, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct(kind);
        shown.field("name", &self.given_name());
        shown.field("client", &self.core.id());
        self.options.show(&mut shown);
        shown.finish()
    }

    /// What two handles on one key have not in common, if anything.
    pub(crate) fn differs_from(&self, other: &Self) -> Option<&'static str> {
        if !Arc::ptr_eq(&self.core, &other.core) {
            Some("of different clients")
        } else if self.protocol.kind() != other.protocol.kind() || self.mode != other.mode {
            Some("of different kinds")
        } else if self.options != other.options {
            Some("with different options")
        } else {
            None
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    pub(crate) fn ask(&self, operation: &'static str) -> Result<Ask> {
        let name = self.name_for(operation)?.clone();
        let unusable = |error: Error| error.during(operation).of_lock(name.as_str());
        let term = self.options.term(self.core.timing.lease);
        let term = term.map_err(unusable)?;
        if let Some(replication) = self.options.replication {
            replication.check(term.lease()).map_err(unusable)?;
        }
        if let Some(give_up) = self.options.give_up {
            check_give_up(give_up).map_err(|error| error.of_lock(name.as_str()))?;
        }
        Ok(Ask {
            core: Arc::clone(&self.core),
            protocol: self.protocol,
            name,
            options: self.options.clone(),
            term,
            mode: self.mode,
            operation,
        })
    }

    /// Takes it, waiting as long as it takes.
    pub(crate) async fn take(&self, operation: &'static str) -> Result<Share> {
        let ask = self.ask(operation)?;
        // Without a deadline the wait ends with the lock or with an error, so there is one turn.
        loop {
            if let Some(share) = acquire::run(&ask, Wait::Forever).await? {
                return Ok(share.guarded());
            }
        }
    }

    /// Takes it if it is free.
    pub(crate) async fn try_take(&self, operation: &'static str) -> Result<Option<Share>> {
        let share = acquire::run(&self.ask(operation)?, Wait::Never).await?;
        Ok(share.map(Share::guarded))
    }

    /// Takes it if it is free within this time.
    pub(crate) async fn try_take_for(
        &self,
        operation: &'static str,
        wait: Duration,
    ) -> Result<Option<Share>> {
        let deadline = self.core.clock.now().after(wait);
        let share = acquire::run(&self.ask(operation)?, Wait::Until(deadline)).await?;
        Ok(share.map(Share::guarded))
    }

    /// Asks something of the lock.
    pub(crate) async fn query<T>(
        &self,
        operation: &'static str,
        call: impl FnOnce(&LockName) -> Call,
        read: impl FnOnce(&Answer) -> Result<T>,
    ) -> Result<T> {
        let name = self.name_for(operation)?;
        let give_up = self.options.give_up.unwrap_or(self.core.timing.give_up);
        check_give_up(give_up).map_err(|error| error.of_lock(name.as_str()))?;
        let answer = acquire::query(&self.core, name, operation, &call(name), give_up).await?;
        read(&answer).map_err(|error: Error| error.during(operation).of_lock(name.as_str()))
    }

    /// Frees the lock, whoever holds it; tells the holds of this client that `are_ended`.
    pub(crate) async fn force_unlock(
        &self,
        call: impl FnOnce(&LockName, &str) -> Call,
        are_ended: Mode,
    ) -> Result<bool> {
        let publish = self.core.channels().publish();
        // Before it is sent: what is granted after it was executed is another hold.
        let name = self.name_for("force_unlock")?;
        let holds = acquire::holds(&self.core, self.protocol, name);
        let call = |name: &LockName| call(name, publish);
        // A repeat finds free what an attempt without an answer has freed.
        let read = |answer: &Answer| Ok(reply::flag(&answer.value)? || answer.repeated);
        let freed = self.query("force_unlock", call, read).await?;
        if freed {
            for hold in holds {
                if hold.is_exclusive() == (are_ended == Mode::Exclusive) {
                    hold.revoked();
                }
            }
        }
        Ok(freed)
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match (self.protocol.kind(), self.mode) {
            ("rw", Mode::Shared) => "read",
            ("rw", Mode::Exclusive) => "write",
            (kind, _) => kind,
        };
        self.show(kind, f)
    }
}

/// Who holds a lock, as the server saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The holder id, as [`holder_id`](crate::ReentrantGuard::holder_id) of its guard: opaque, and
    /// different each time a lock is taken at the server; it stays the same
    /// while the lock passes from task to task of one client.
    pub id: String,
    /// How often it is held.
    pub hold_count: u32,
    /// The rest of the lease by the server's clock; [`Duration::MAX`] if the key never expires, which
    /// no client of lockset or Redisson causes.
    pub remaining: Duration,
}

impl From<Inspected> for Holder {
    fn from(seen: Inspected) -> Self {
        Self {
            id: seen.holder,
            hold_count: seen.hold_count,
            remaining: seen.remaining.unwrap_or(Duration::MAX),
        }
    }
}

/// Stamps the name and the options onto a public handle, a newtype over [`Handle`].
macro_rules! option_methods {
    ($lock:ident) => {
        impl ::std::fmt::Debug for $lock {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                self.0.show(stringify!($lock), f)
            }
        }

        impl $lock {
            /// The name of the lock, as it was given, also if it is one that cannot work.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.given_name()
            }

            /// Asks in the name of `owner`: a call made while that owner holds the lock enters it
            /// again at once. Without an owner every call is a stranger to every other, so nothing
            /// re-enters by accident.
            pub fn owner(mut self, owner: &$crate::Owner) -> Self {
                self.0.options.owner = Some(owner.clone());
                self
            }

            /// A lease of `lease`, renewed in the background until the guard is gone. The default is
            /// the client's lease (30 s). From 50 ms to a year.
            ///
            /// The shorter it is, the sooner others get in after a crash, and the shorter a pause of
            /// this process or of the network has to be to lose the lock.
            pub fn lease(mut self, lease: ::std::time::Duration) -> Self {
                self.0.options.term = Some($crate::options::Term::Renewed(lease));
                self
            }

            /// A lease of `lease` that is never renewed: the guard is lost at its end, also if other
            /// guards of its [owner](Self::owner) hold the lock for longer. From 50 ms to a year.
            ///
            /// The lock is renewed as long as its owner has a guard with a renewed lease.
            pub fn fixed_lease(mut self, lease: ::std::time::Duration) -> Self {
                self.0.options.term = Some($crate::options::Term::Fixed(lease));
                self
            }

            /// Every new grant carries a [fencing token]($crate::FencingToken).
            ///
            /// Use it on all handles of a lock or on none: grants without it do not raise the token.
            /// The server keeps a small key for it, for 30 days after the last such grant: see
            /// [`token_retention`]($crate::ClientBuilder::token_retention).
            pub fn fenced(mut self) -> Self {
                self.0.options.fenced = true;
                self
            }

            /// A call goes on for at most `span` without an answer of the server, and then fails with
            /// [`is_io`]($crate::Error::is_io), whichever call it is, those of its guards included. The
            /// default is the client's
            /// ([`ClientBuilder::give_up_after`]($crate::ClientBuilder::give_up_after)): a third of
            /// its lease. From 1 ms; with [`Duration::MAX`](::std::time::Duration::MAX) nobody gives up,
            /// and a wait goes on through an outage.
            ///
            /// It does not bound the wait for a lock that is held while the server answers. Whatever a
            /// call has given up is undone in the background.
            ///
            /// ```no_run
            /// # use std::time::Duration;
            /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
            /// let lock = client.lock("report").give_up_after(Duration::from_millis(200));
            /// match lock.try_lock().await {
            ///     Ok(Some(guard)) => guard.release().await?,
            ///     Ok(None) => println!("somebody else is at it"),
            ///     Err(error) if error.is_transient() => println!("not today: {error}"),
            ///     Err(error) => return Err(error),
            /// }
            /// # Ok(()) }
            /// ```
            pub fn give_up_after(mut self, span: ::std::time::Duration) -> Self {
                self.0.options.give_up = Some(span);
                self
            }

            /// A grant counts only once `count` replicas of the server have it, and has
            /// `within` (at most a third of the lease) for that: with `WAIT`, one round trip and
            /// what the slowest of them takes. If there are not so many in time, the grant is
            /// released again and the call fails with
            /// [`is_not_replicated`]($crate::Error::is_not_replicated).
            ///
            /// **What it gives.** When one of those replicas takes over, it knows of the hold.
            /// **What it does not give.** It makes the gap through which a fail-over loses a lock
            /// narrower and never closes it: nothing makes one of *those* replicas take over, a
            /// replica may lose its memory too, and fencing tokens remain what keeps data right.
            /// Only the grant is waited for: no renewal, no release, and no further entry of an
            /// owner that has the lock already. A replica that takes over may know of an earlier
            /// end of the lease than its holder, until the next renewal.
            ///
            /// The wait comes on top of that of [`try_lock_for`](crate::ReentrantLock::try_lock_for),
            /// and uses up a part of the lease. Grants of one client and server that come while
            /// such a wait is under way are waited for together by the next one, so that it can
            /// take up to twice as long. The client opens one more connection for it, on which
            /// nothing else waits. The user needs the right to `WAIT`.
            ///
            /// ```no_run
            /// # use std::time::Duration;
            /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
            /// let lock = client.lock("report").replicated(1, Duration::from_millis(200));
            /// match lock.lock().await {
            ///     Ok(guard) => guard.release().await?,
            ///     Err(error) if error.is_not_replicated() => println!("not safe now: {error}"),
            ///     Err(error) => return Err(error),
            /// }
            /// # Ok(()) }
            /// ```
            pub fn replicated(mut self, count: u32, within: ::std::time::Duration) -> Self {
                let replication = $crate::options::Replication { count, within };
                self.0.options.replication = Some(replication);
                self
            }
        }
    };
}

/// Stamps the verbs onto a public handle, a newtype over [`Handle`].
macro_rules! verb_methods {
    ($lock:ident, $guard:ident) => {
        impl $lock {
            /// Takes the lock, waiting as long as it takes.
            ///
            /// One round trip if it is free; if it is held elsewhere, one more and a subscription.
            ///
            /// # Cancel safety
            /// Dropping the future gives up the place in the queue. A grant that is under way is
            /// released in the background. One that is not polled any more is passed over by those
            /// behind it, and keeps its claim; what it was granted unseen lasts for its lease.
            ///
            /// # Errors
            /// [`is_io`]($crate::Error::is_io) if the server does not answer for so long as
            /// [`give_up_after`](Self::give_up_after) says; [`is_invalid`]($crate::Error::is_invalid) for a name, option or key
            /// that cannot work; [`is_refused`]($crate::Error::is_refused) if the server cannot do
            /// it now, or has too few [replicas](Self::replicated). That the lock is held is not an
            /// error. If a grant comes so late that its lease is over by then, it is given back and asked
            /// for again, up to three times; then that is an error (`is_io`), and not a guard that is
            /// lost already, nor `None`.
            pub async fn lock(&self) -> $crate::Result<$guard> {
                self.0.take("lock").await.map($guard)
            }

            /// Takes the lock if it is free (or held by the same owner), in one round trip. `None`:
            /// it is held elsewhere, or others come first. Takes no place in a queue.
            ///
            /// # Cancel safety
            /// As for [`lock`](Self::lock).
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            pub async fn try_lock(&self) -> $crate::Result<Option<$guard>> {
                let share = self.0.try_take("try_lock").await?;
                Ok(share.map($guard))
            }

            /// Takes the lock, waiting at most `wait`; `None`: it did not become free in time. Asks
            /// once more at the deadline.
            ///
            /// # Cancel safety
            /// As for [`lock`](Self::lock).
            ///
            /// # Errors
            /// As for [`lock`](Self::lock). If the server is silent, the call ends at the end of `wait`
            /// or the time of one reply (a sixth of the client's lease, at most a second) after it
            /// began to ask in vain, whichever is later; never later than
            /// [`give_up_after`](Self::give_up_after) says.
            pub async fn try_lock_for(
                &self,
                wait: ::std::time::Duration,
            ) -> $crate::Result<Option<$guard>> {
                let share = self.0.try_take_for("try_lock_for", wait).await?;
                Ok(share.map($guard))
            }
        }
    };
}

/// Stamps the questions onto a public handle on a lock of one holder, a newtype over [`Handle`].
macro_rules! holder_methods {
    ($lock:ident) => {
        impl $lock {
            /// Whether anybody holds the lock. One round trip; the answer may be outdated when it
            /// arrives.
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            pub async fn is_locked(&self) -> $crate::Result<bool> {
                Ok(self.inspect("is_locked").await?.is_some())
            }

            /// Who holds the lock, how often and for how long still. One round trip; the answer may
            /// be outdated when it arrives.
            ///
            /// # Cancel safety
            /// Cancel safe.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            pub async fn holder(&self) -> $crate::Result<Option<$crate::Holder>> {
                self.inspect("holder").await
            }

            /// Frees the lock, whoever holds it; `false` if nobody did. For operators: the holder is
            /// told by its next renewal at the latest, and may be in the middle of its work until
            /// then. If an answer is lost the call is repeated, and may free the lock of a holder
            /// that came in between.
            ///
            /// # Cancel safety
            /// If the future is dropped, the lock may or may not be freed.
            ///
            /// # Errors
            /// As for [`lock`](Self::lock).
            pub async fn force_unlock(&self) -> $crate::Result<bool> {
                self.force().await
            }
        }
    };
}

pub(crate) use {holder_methods, option_methods, verb_methods};

//! The guard of a semaphore: permits that are held together.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::oneshot;

use super::client::Held;
use super::permits::Permits;
use crate::api::error::{Error, Result};
use crate::api::loss::{Losable, Loss, LossCell, Lost, LostReason, drive};
use crate::observe::observer::{GuardTimer, HoldSpan};

/// Permits of a [`Semaphore`](crate::Semaphore); dropping them releases in the background. A later attempt of this client
/// goes behind that release.
///
/// **A program that ends right after the drop leaves them taken** until their leases end. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown).
#[must_use = "if unused the permits are released at once"]
#[clippy::has_significant_drop]
pub struct SemaphoreGuard {
    held: Box<Held>,
    /// Whether the permits expire by themselves, without a release.
    expires_alone: bool,
    view: LossCell,
    pub(super) timer: GuardTimer,
    _span: HoldSpan,
}

impl SemaphoreGuard {
    pub(super) fn new(held: Held, expires_alone: bool) -> Self {
        let first = held.permits().0.first();
        let holder = || first.map_or("", |permit| &*permit.id);
        let span = HoldSpan::begin(|| (held.semaphore.name(), holder(), None));
        if expires_alone {
            // The end of a window is no loss.
            held.permits().release();
        }
        Self {
            held: Box::new(held),
            expires_alone,
            view: LossCell::default(),
            timer: GuardTimer::default(),
            _span: span,
        }
    }

    fn permits(&self) -> &Permits {
        self.held.permits()
    }

    /// The name of the semaphore, as it was given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        self.held.semaphore.name()
    }

    /// The number of permits.
    #[must_use]
    pub fn count(&self) -> u32 {
        self.permits().len()
    }

    /// The ids of the permits at the server, as in [`Holder::id`](crate::Holder::id).
    pub fn holder_ids(&self) -> impl Iterator<Item = &str> {
        self.permits().0.iter().map(|permit| &*permit.id)
    }

    /// How long all permits are certainly still held, by the local monotonic clock. Zero once a permit is lost.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.permits().remaining()
    }

    /// Whether a permit is lost. Once true, it stays true. It reads the clock, so it is right even after the process
    /// was stopped for longer than the lease.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.held.loss().is_some()
    }

    /// Waits until a permit is lost, and returns the reason. It resolves when the local deadline passes at the latest,
    /// even without a network. A normal release never resolves it.
    ///
    /// # Cancel safety
    /// Cancel safe. It may be called any number of times, also after the loss.
    pub async fn lost(&self) -> LostReason {
        self.permits().lost().await
    }

    /// A view of whether a permit is lost, for tasks and threads that do not have the guard. See [`Loss`].
    #[must_use]
    pub fn loss(&self) -> Loss {
        self.view.view(|| Arc::new(self.permits().clone()))
    }

    /// Runs `work` to its end, or drops it when a permit is lost.
    ///
    /// # Cancel safety
    /// Dropping this future drops `work`; the guard is not touched.
    ///
    /// # Errors
    /// [`Lost`]: a permit was lost before the work ended.
    ///
    /// ```no_run
    /// # async fn doc(guard: lockset::SemaphoreGuard) -> Result<(), lockset::Lost> {
    /// let pages = guard.run(async { 3 /* work */ }).await?;
    /// # drop(pages); Ok(()) }
    /// ```
    pub async fn run<F: Future>(&self, work: F) -> Result<F::Output, Lost> {
        let lost_now = || {
            let loss = self.held.loss();
            loss.map(|reason| Lost::of("semaphore", self.name(), reason))
        };
        drive(self.lost(), lost_now, work).await
    }

    /// Releases the permits and waits for the outcome. `Ok` means that all were held to the end, as far as this client
    /// knows. One round trip, or none if they are handed off to the next caller of this client, or end with their
    /// [window](crate::Semaphore::per).
    ///
    /// # Cancel safety
    /// If the future is dropped, the release continues in the background.
    ///
    /// # Errors
    /// * [`is_not_held`](Error::is_not_held): a permit was lost before. The others are released.
    /// * [`is_io`](Error::is_io), [`is_refused`](Error::is_refused), [`is_denied`](Error::is_denied): the release
    ///   continues in the background until the lease ends.
    /// * [`is_closed`](Error::is_closed): the client's runtime has ended. The lease runs out.
    pub async fn release(mut self) -> Result<()> {
        if self.expires_alone {
            return Ok(());
        }
        let semaphore = Arc::clone(&self.held.semaphore);
        let give_up = self.held.give_up;
        let (sender, receiver) = oneshot::channel();
        self.held.done = Some(sender);
        drop(self);
        let core = semaphore.core();
        let until = core.clock.now().after(give_up);
        let released = core.watchdog.in_time("release", until, receiver).await;
        let released = released.map_err(|error| semaphore.of_this(error))?;
        // No task is left to drive the release.
        released.map_err(|_| semaphore.of_this(core.closed("release")))?
    }

    /// Drops the guard without releasing: renewals stop, and the permits stay taken until their leases end.
    pub fn forget(mut self) {
        self.end();
        self.held.forget();
    }

    /// Takes `count` of the permits out into a guard of their own. A [`loss`](Self::loss) view made before covers the
    /// permits that are left here.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid) unless at least one permit is left on each side; nothing changes then.
    pub fn split(&mut self, count: u32) -> Result<Self> {
        let all = self.count();
        if !(1..all).contains(&count) {
            let message = format!(
                "{count} of {all} permits cannot be split off; leave at least one on each side"
            );
            return Err(Error::invalid("split", message).about("semaphore", self.name()));
        }
        let permits = &self.permits().0;
        let (kept, taken) = permits.split_at(permits.len() - count as usize);
        let [kept, taken] = [kept, taken].map(|part| Permits(part.into()));
        let held = self.held.part(taken);
        self.set_permits(kept);
        Ok(Self::new(held, self.expires_alone))
    }

    /// Adds the permits of `other` to these. A [`loss`](Self::loss) view made before covers them too.
    ///
    /// # Errors
    /// Returns the other guard if its semaphore, client, lease, [`per`](crate::Semaphore::per) or
    /// [`fair`](crate::Semaphore::fair) differs.
    pub fn merge(&mut self, mut other: Self) -> Result<(), Self> {
        let is_alike = {
            let (held, others) = (&self.held, &other.held);
            let (terms, other_terms) = (held.terms, others.terms);
            Arc::ptr_eq(&held.semaphore, &others.semaphore)
                && (terms.policy, terms.is_fair) == (other_terms.policy, other_terms.is_fair)
                && self.expires_alone == other.expires_alone
        };
        if !is_alike {
            return Err(other);
        }
        other.end();
        let taken = other.held.permits.take();
        let all = [self.held.permits.take(), taken].into_iter().flatten();
        let all: Vec<_> = all.flat_map(|part| part.0.to_vec()).collect();
        self.set_permits(Permits(all.into()));
        Ok(())
    }

    fn set_permits(&mut self, permits: Permits) {
        self.held.permits = Some(permits);
        self.view.follow(|| Arc::new(self.permits().clone()));
    }

    fn end(&mut self) {
        self.view.end(|| self.held.loss());
        self.timer = GuardTimer::default();
    }
}

impl Drop for SemaphoreGuard {
    fn drop(&mut self) {
        self.end();
        if self.expires_alone {
            self.held.forget();
        }
    }
}

impl fmt::Debug for SemaphoreGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SemaphoreGuard")
            .field("name", &self.name())
            .field("permits", self.permits())
            .field("remaining", &self.permits().remaining())
            .finish()
    }
}

//! The loss of a hold: why it happened, how work stops at it, and a view of it that needs no guard.
//!
//! The view is for other tasks and for threads. Invariant: it agrees with the guard of the hold, and after the guard is
//! gone it keeps the last state. So the view of a guard that was released never reports a loss, and a view that
//! outlives its guard keeps nothing alive.

use std::fmt::{self, Debug};
use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::future::{BoxFuture, FutureExt};
use parking_lot::Mutex;

use crate::engine::hint::Hint;

/// Why a guard no longer holds its lock.
///
/// ```no_run
/// # async fn doc(guard: lockset::ReentrantGuard) {
/// use lockset::LostReason;
///
/// match guard.lost().await {
///     LostReason::Expired => println!("the server did not answer for a lease"),
///     LostReason::Revoked => println!("the lock was freed by force, or its key deleted"),
///     LostReason::Closed => println!("this client was shut down"),
///     LostReason::MaxHold => println!("held for as long as its handle allows"),
///     reason => println!("lost: {reason}"),
/// }
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LostReason {
    /// The local deadline passed without a confirmed renewal, or a fixed lease ended.
    Expired,
    /// The server no longer has this holder: the lock was freed by force, its key was deleted, or the server
    /// lost its data.
    Revoked,
    /// The client was shut down while the guard was alive.
    Closed,
    /// It was held for as long as [`max_hold`](crate::ReentrantLock::max_hold) allows.
    MaxHold,
}

impl fmt::Display for LostReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "the lease ran out",
            Self::Revoked => "the server no longer has this holder",
            Self::Closed => "the client was shut down",
            Self::MaxHold => "it was held for as long as it may be",
        })
    }
}

impl std::error::Error for LostReason {}

/// The error of [`run`](crate::ReentrantGuard::run): the lock was lost before the work ended, or while its
/// last step blocked the thread.
///
/// ```no_run
/// # async fn doc(guard: lockset::ReentrantGuard) {
/// if let Err(lost) = guard.run(async { /* work */ }).await {
///     eprintln!("{} was lost: {}", lost.lock_name(), lost.reason());
/// }
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lost {
    /// A lock or a semaphore.
    what: &'static str,
    name: String,
    reason: LostReason,
}

impl Lost {
    /// Returns the loss of a lock.
    pub(crate) fn new(name: &str, reason: LostReason) -> Self {
        Self::of("lock", name, reason)
    }

    pub(crate) fn of(what: &'static str, name: &str, reason: LostReason) -> Self {
        Self {
            what,
            name: name.to_owned(),
            reason,
        }
    }

    /// Why the lock was lost.
    #[must_use]
    pub fn reason(&self) -> LostReason {
        self.reason
    }

    /// The name of the lock that was lost, as it was given to the client.
    #[must_use]
    pub fn lock_name(&self) -> &str {
        &self.name
    }

    pub(crate) fn what(&self) -> &'static str {
        self.what
    }
}

impl fmt::Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} was lost: {}", self.what, self.name, self.reason)
    }
}

impl std::error::Error for Lost {}

/// Runs `work` to its end, or drops it when the lock is lost.
///
/// `lost` wakes the task at the loss, and may resolve late, because a blocked thread polls nothing. So `check` reads
/// the clock before each step of the work, and once more at its end.
pub(crate) async fn drive<T>(
    lost: impl Future,
    check: impl Fn() -> Option<Lost>,
    work: impl Future<Output = T>,
) -> Result<T, Lost> {
    let (mut lost, mut work) = (pin!(lost.fuse()), pin!(work));
    poll_fn(|context| {
        let _the_clock_says_it = lost.as_mut().poll(context);
        if let Some(lost) = check() {
            return Poll::Ready(Err(lost));
        }
        let done = std::task::ready!(work.as_mut().poll(context));
        Poll::Ready(check().map_or(Ok(done), Err))
    })
    .await
}

/// Whether a guard is lost, for code that does not have the guard; from
/// [`loss`](crate::ReentrantGuard::loss).
///
/// It is `'static`, and cheap to clone: give it to a task that the work spawns, or to a thread that blocks. It does not
/// keep the lock held. Once the guard was released, forgotten or dropped, it keeps the state of that moment for ever,
/// even if another guard of the same owner holds the lock for longer. A view of a guard that is downgraded continues
/// with the new guard.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let guard = client.lock("report").lock().await?;
/// let loss = guard.loss();
/// let rows = tokio::task::spawn_blocking(move || {
///     let mut rows = 0;
///     while rows < 1000 && !loss.is_lost() {
///         rows += 1; // one step of work that blocks
///     }
///     rows
/// });
/// println!("{} rows", rows.await?);
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Loss(Arc<View>);

struct View {
    seen: Mutex<Seen>,
    /// Signalled when the guard is gone, or has other holds.
    ended: Hint,
}

struct Seen {
    /// `None` once the guard is gone.
    guard: Option<Arc<dyn Losable>>,
    /// The loss that this view has reported, or that the guard ended with.
    loss: Option<LostReason>,
}

/// The hold of a guard, as far as it can be lost.
pub(crate) trait Losable: Send + Sync {
    fn loss(&self) -> Option<LostReason>;

    fn remaining(&self) -> Duration;

    /// Resolves when the hold is lost. Cancel safe.
    fn lost(&self) -> BoxFuture<'_, LostReason>;
}

impl Loss {
    fn new(losable: Arc<dyn Losable>) -> Self {
        Self(Arc::new(View {
            seen: Mutex::new(Seen {
                guard: Some(losable),
                loss: None,
            }),
            ended: Hint::default(),
        }))
    }

    fn guarded(&self) -> Result<Arc<dyn Losable>, Option<LostReason>> {
        let seen = self.0.seen.lock();
        seen.guard.clone().ok_or(seen.loss)
    }

    /// Whether the lock is lost. Once true, it stays true.
    ///
    /// It reads the clock, so it is right even after the process or the machine was stopped for longer than
    /// the lease. Check it before each step of code that blocks its thread.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.reason().is_some()
    }

    /// Why the lock is lost; `None` while it is held, and after a normal release.
    #[must_use]
    pub fn reason(&self) -> Option<LostReason> {
        let losable = match self.guarded() {
            Ok(losable) => losable,
            Err(loss) => return loss,
        };
        let loss = losable.loss();
        let mut seen = self.0.seen.lock();
        // The loss is noted, so that the view reports it for ever, even if the guard is being dropped at this moment.
        // If the guard has gone in the meantime, its last state stays.
        if seen.guard.is_some() {
            seen.loss = seen.loss.or(loss);
        }
        seen.loss
    }

    /// How long the lock is certainly still held, by the local monotonic clock. Zero once it is lost, or the
    /// guard is gone.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.guarded()
            .map_or(Duration::ZERO, |losable| losable.remaining())
    }

    /// Waits until the lock is lost, and returns the reason.
    ///
    /// It resolves by the local deadline, even if the network fails; after the machine was suspended for longer than
    /// the lease, within a quarter of a second. If the guard is released, forgotten or dropped before it is lost, this
    /// never resolves: wait for the end of the work too, or abort the task that waits.
    ///
    /// # Cancel safety
    /// Cancel safe. It may be called any number of times, also after the loss.
    ///
    /// ```no_run
    /// # async fn doc(guard: lockset::ReentrantGuard) -> lockset::Result<()> {
    /// let loss = guard.loss();
    /// let part = tokio::spawn(async move {
    ///     tokio::select! {
    ///         () = work() => println!("done"),
    ///         reason = loss.wait() => println!("stopped: {reason}"),
    ///     }
    /// });
    /// part.await.expect("it does not panic");
    /// guard.release().await?;
    /// # Ok(()) }
    /// # async fn work() {}
    /// ```
    pub async fn wait(&self) -> LostReason {
        loop {
            let mark = self.0.ended.mark();
            let losable = match self.guarded() {
                Ok(losable) => losable,
                Err(Some(reason)) => return reason,
                Err(None) => return std::future::pending().await,
            };
            tokio::select! {
                biased;
                _ = losable.lost() => {}
                () = self.0.ended.changed_since(mark) => {}
            }
            if let Some(reason) = self.reason() {
                return reason;
            }
        }
    }
}

impl Debug for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loss")
            .field("reason", &self.reason())
            .field("remaining", &self.remaining())
            .finish()
    }
}

/// The view of one guard, made when it is first needed.
#[derive(Debug, Default)]
pub(crate) struct LossCell(OnceLock<Loss>);

impl LossCell {
    pub(crate) fn view(&self, losable: impl FnOnce() -> Arc<dyn Losable>) -> Loss {
        self.0.get_or_init(|| Loss::new(losable())).clone()
    }

    /// Continues with the holds that the guard has now.
    pub(crate) fn follow(&self, losable: impl FnOnce() -> Arc<dyn Losable>) {
        let Some(Loss(view)) = self.0.get() else {
            return;
        };
        let mut seen = view.seen.lock();
        let Some(guard) = &mut seen.guard else {
            return;
        };
        let before = std::mem::replace(guard, losable());
        drop(seen);
        drop(before);
        view.ended.notify();
    }

    /// Fixes the state when the guard is gone. Only the first call counts.
    pub(crate) fn end(&self, loss: impl FnOnce() -> Option<LostReason>) {
        let Some(Loss(view)) = self.0.get() else {
            return;
        };
        // Called without the mutex, because a loss that is due at this moment is reported here, and the receiver may
        // ask this view.
        let loss = loss();
        let mut seen = view.seen.lock();
        let Some(guard) = seen.guard.take() else {
            return;
        };
        seen.loss = seen.loss.or(loss);
        drop(seen);
        // Dropped without the mutex, because it may be the last reference that keeps a client alive.
        drop(guard);
        view.ended.notify();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// A hold that is lost once a test says so.
    #[derive(Default)]
    struct Held(AtomicBool);

    impl Losable for Held {
        fn loss(&self) -> Option<LostReason> {
            let is_lost = self.0.load(Ordering::Relaxed);
            is_lost.then_some(LostReason::Expired)
        }

        fn remaining(&self) -> Duration {
            Duration::ZERO
        }

        fn lost(&self) -> BoxFuture<'_, LostReason> {
            std::future::pending().boxed()
        }
    }

    fn held() -> (LossCell, Arc<Held>, Loss) {
        let (cell, held) = (LossCell::default(), Arc::<Held>::default());
        let view = cell.view(|| Arc::clone(&held) as _);
        (cell, held, view)
    }

    /// A subscriber of `tracing` may ask the view when it gets a loss that was found as the guard goes.
    #[test]
    fn who_is_told_of_a_loss_may_ask_the_view_of_its_guard() {
        let (cell, _, view) = held();
        cell.end(|| {
            assert!(!view.is_lost(), "it may be asked");
            Some(LostReason::Expired)
        });
        assert_eq!(view.reason(), Some(LostReason::Expired));
    }

    #[test]
    fn what_it_has_said_as_its_guard_went_it_says_for_ever() {
        let (cell, held, view) = held();
        cell.end(|| {
            // The lease ends after the last check, and then the view is asked.
            held.0.store(true, Ordering::Relaxed);
            assert!(view.is_lost());
            None
        });
        assert!(view.is_lost());
    }

    #[test]
    fn a_guard_that_went_before_the_end_of_its_lease_is_never_lost() {
        let (cell, held, view) = held();
        cell.end(|| None);
        held.0.store(true, Ordering::Relaxed);
        assert!(!view.is_lost());
    }
}

//! A job that runs in one process at a time, and not again too soon.
//!
//! Its lock is asked for once, held while the work runs, and left held until the job may run again.

use std::fmt;
use std::future::Future;
use std::time::Duration;

use crate::api::error::{Error, Kind, Result};
use crate::api::loss::drive;
use crate::client::Client;
use crate::reentrant::ReentrantLock;

impl Client {
    /// A job called `name`, which runs in one process at a time.
    ///
    /// For work that a timer starts in every instance of a service: the first instance runs it, the others skip it. At
    /// the server it is the lock of that name.
    ///
    /// ```no_run
    /// # async fn clean_up() {}
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// use std::time::Duration;
    ///
    /// let job = client
    ///     .job("nightly-clean-up")
    ///     .at_least(Duration::from_secs(10 * 60))
    ///     .at_most(Duration::from_secs(60 * 60));
    /// job.run(clean_up()).await?;
    /// # Ok(()) }
    /// ```
    pub fn job(&self, name: impl AsRef<str>) -> Job {
        Job(self.lock(name))
    }
}

/// Work that runs in one process at a time, while the others skip it; from [`Client::job`].
///
/// A handle: cheap to make and to clone, it holds nothing. It keeps ShedLock's contract, without its wait after a
/// crash: while the work runs, a short lease is renewed, so a process that dies keeps the job from others for the rest
/// of its [`lease`](Self::lease) (30 s unless the client says otherwise), not for `at_most`.
///
/// * A job that is held elsewhere is skipped, at once. Nothing waits.
/// * [`at_least`](Self::at_least): the job does not run again sooner than that after it began, even if it ended long
///   before. Choose about the time between two runs, less the difference between the clocks of the instances.
/// * [`at_most`](Self::at_most): work that hangs is dropped then, and the job is free.
///
/// ```no_run
/// # async fn report() -> u64 { 7 }
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// use lockset::JobRun;
///
/// match client.job("report").run(report()).await? {
///     JobRun::Ran(rows) => println!("{rows} rows"),
///     JobRun::Skipped { remaining, .. } => println!("another process has it, for {remaining:?} or more"),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until it is run"]
pub struct Job(ReentrantLock);

impl Job {
    /// The name, as it was given to the client.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name()
    }

    /// Keeps the job from all others for `span` from its beginning, even if it ends early; as
    /// [`ReentrantLock::at_least`]. Not if the process dies: then the job is free at the end of its lease.
    pub fn at_least(self, span: Duration) -> Self {
        Self(self.0.at_least(span))
    }

    /// Bounds how long one run takes; as [`ReentrantLock::max_hold`].
    pub fn at_most(self, span: Duration) -> Self {
        Self(self.0.max_hold(span))
    }

    /// Sets the lease that is renewed while the work runs. A process that dies keeps the job from others for that long.
    pub fn lease(self, lease: Duration) -> Self {
        Self(self.0.lease(lease))
    }

    /// Counts the job in the group `name`; as [`ReentrantLock::group`].
    pub fn group(self, name: &str) -> Self {
        Self(self.0.group(name))
    }

    /// Sets how long a call continues without an answer from the server; as
    /// [`ReentrantLock::give_up_after`].
    pub fn give_up_after(self, span: Duration) -> Self {
        Self(self.0.give_up_after(span))
    }

    /// Runs `work`, unless the job is held elsewhere; then `work` is never polled.
    ///
    /// One round trip before the work and one after it. Once the work has ended, the run counts: a release that could
    /// not be sent is no error, and continues in the background. If the work panics or this future is dropped, the job
    /// is released too, and `at_least` still counts.
    ///
    /// # Cancel safety
    /// Dropping the future drops `work` and releases in the background.
    ///
    /// # Errors
    /// * As for [`ReentrantLock::try_lock`].
    /// * [`is_not_held`](crate::Error::is_not_held): the job was lost before the work ended, and the work was dropped.
    ///   The message gives the reason, also if the work took longer than [`at_most`](Self::at_most) allows.
    /// * [`is_invalid`](crate::Error::is_invalid): `at_least` is longer than `at_most`, or one cannot work.
    pub async fn run<F: Future>(&self, work: F) -> Result<JobRun<F::Output>> {
        const OPERATION: &str = "run";
        let share = match self.0.0.try_or_remaining(OPERATION).await? {
            Ok(share) => share,
            Err(remaining) => return Ok(JobRun::Skipped { remaining }),
        };
        let done = drive(share.lost(), || share.lost_now(), work).await;
        let released = share.release().await;
        match (done, released) {
            (Ok(value), _) => Ok(JobRun::Ran(value)),
            (Err(_), Err(error)) => Err(error.during(OPERATION)),
            // Lost, with the error that a release would have returned.
            (Err(lost), Ok(())) => {
                let error = Error::new(Kind::NotHeld, OPERATION, lost.reason().to_string());
                Err(error.of_lock(lost.lock_name()))
            }
        }
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.0.show("Job", f)
    }
}

/// The outcome of [`Job::run`]. `use lockset::JobRun::{Ran, Skipped}` makes for short matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JobRun<T> {
    /// The work ran to its end, with this result.
    Ran(T),
    /// The job is held elsewhere, or it has run and may not run again yet. The work was not begun.
    #[non_exhaustive]
    Skipped {
        /// How long the lease of the job still lasts, as the server saw it. It may be renewed, or released before.
        remaining: Duration,
    },
}

impl<T> JobRun<T> {
    /// The result, if the work ran.
    pub fn ran(self) -> Option<T> {
        match self {
            Self::Ran(value) => Some(value),
            Self::Skipped { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use super::*;
    use crate::testing::{Answer, Scripted, granted};

    #[tokio::test(start_paused = true)]
    async fn no_error_of_a_job_speaks_of_an_option_that_it_does_not_have() {
        let server = Scripted::new(|_| Answer::Value(granted()));
        let job = Client::over(&server, Duration::from_secs(30)).job("x");
        let [short, long] = [Duration::from_millis(1), Duration::from_secs(1)];
        for job in [
            job.clone().at_most(short),
            job.clone().at_most(long).at_least(long * 2),
            job.at_most(long),
        ] {
            let error = job.run(pending::<()>()).await.unwrap_err();
            assert!(!error.to_string().contains("max_hold"), "{error}");
        }
    }
}

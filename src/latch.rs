//! The latch: callers wait until others have counted it down.
//!
//! At the server it is Redisson's `RCountDownLatch`. Invariants: a call counts at most once, however often it is sent;
//! a waiter sees that the latch was open, even if it has been closed again before the look, for as long as the server
//! knows the call that opened it.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use crate::api::error::Result;
use crate::client::Client;
use crate::conn::Channels;
use crate::engine::clock::Tick;
use crate::engine::keys::{LockName, NAME_BYTES_MAX};
use crate::engine::synchronizer::{Synchronizer, shown_by_name, synchronizer_methods};
use crate::script::reply::{self, Counted};
use crate::script::{Answer, Call, catalog, millis};

/// An id does not count again for this long.
const ID_KEPT: Duration = Duration::from_secs(24 * 60 * 60);

/// Scripts count exactly below this.
const COUNT_MAX: u64 = 1 << 53;

impl Client {
    /// A handle on the latch called `name`.
    ///
    /// An invalid name is reported by the first call on the handle ([`is_invalid`](crate::Error::is_invalid)).
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let latch = client.latch("import:2026-11");
    /// latch.init(3).await?;
    /// latch.wait().await?; // until three workers have counted down
    /// # Ok(()) }
    /// ```
    pub fn latch(&self, name: impl AsRef<str>) -> Latch {
        Latch {
            site: Synchronizer::new(self, "latch", name.as_ref(), Arc::default()),
        }
    }
}

/// A latch, which keeps callers waiting until others have counted it down to zero; from [`Client::latch`].
///
/// A handle: cheap to make and to clone. At the server it is Redisson's `RCountDownLatch`, and Java and Rust share it.
/// A latch that was never closed by [`init`](Self::init) is open, and so is a latch at zero. It has no lease: a latch
/// whose workers die stays closed until [`delete`](Self::delete).
///
/// One process closes it, before it hands out the parts. Workers do not: one that is started again after the latch has
/// opened would close it again, and its id would not count again.
///
/// **A server that loses its data opens all latches**, and a failover to a replica may forget that a latch was closed, or
/// a count. The server cannot tell that from a latch that was counted down, nor can lockset. Where it would do harm to go on
/// too early, check the parts themselves. After a failover each worker may call [`count_down_as`](Self::count_down_as)
/// once more: it counts once.
///
/// ```no_run
/// # async fn load(part: u32) {}
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// let latch = client.latch("import:2026-11");
/// latch.init(3).await?; // before any part is handed out
/// for part in 0..3 {
///     let latch = latch.clone();
///     tokio::spawn(async move {
///         load(part).await;
///         latch.count_down_as(format!("part-{part}")).await
///     });
/// }
/// latch.wait().await?;
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct Latch {
    site: Synchronizer,
}

synchronizer_methods!(Latch, "latch");
shown_by_name!(Latch);

impl Latch {
    /// Closes the latch until it has been counted down `count` times. `false`: it was closed already, and stays as it
    /// is. One round trip.
    ///
    /// # Cancel safety
    /// If the future is dropped, the latch may or may not be closed.
    ///
    /// # Errors
    /// [`is_invalid`](crate::Error::is_invalid) for a name or a `count` that cannot work (less than 1, or 2^53 and
    /// more) and for a key that holds something else; [`is_io`](crate::Error::is_io) if the server does not answer. A
    /// call that is repeated because its answer was lost counts once.
    pub async fn init(&self, count: u64) -> Result<bool> {
        if !(1..COUNT_MAX).contains(&count) {
            let message = format!("a latch cannot be closed with {count}; use 1 to 2^53 - 1");
            return Err(self.site.invalid("init", message));
        }
        let name = self.site.name("init")?;
        let call = self.site.new_call();
        let key = name.latch_call_key(&call);
        let call = Call::new(&catalog::LATCH_INIT, name.key(), &[name.key(), &key])
            .arg(count)
            .arg(millis(self.site.call_kept()))
            .arg(self.site.told(self.channel(name)));
        self.site
            .ask("init", &call, Tick::NEVER, Answer::flag)
            .await
    }

    /// Counts down by one. The last count-down opens the latch. An open latch stays as it is. One round trip.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call may or may not have counted. Where that matters, use
    /// [`count_down_as`](Self::count_down_as), which may be called again.
    ///
    /// # Errors
    /// As for [`init`](Self::init).
    pub async fn count_down(&self) -> Result<()> {
        self.arrive("count_down", None).await.map(drop)
    }

    /// Counts down by one, once for this `id`: `false` if the id has counted before, or if the latch is open. One round
    /// trip.
    ///
    /// For work that may be done twice: a message that is delivered again, a job that is started again. The server
    /// knows an id for a day, even if the latch was opened and closed again, so a late repeat does not count for the
    /// next round. **So give the work of each round ids of its own**, such as `2026-11-25:part-7`.
    ///
    /// # Cancel safety
    /// If the future is dropped, the call may or may not have counted. It may be repeated.
    ///
    /// # Errors
    /// As for [`init`](Self::init); [`is_invalid`](crate::Error::is_invalid) also for an id that is empty or longer
    /// than a name may be.
    pub async fn count_down_as(&self, id: impl AsRef<str>) -> Result<bool> {
        const OPERATION: &str = "count_down_as";
        let id = id.as_ref();
        if id.is_empty() || id.len() > NAME_BYTES_MAX {
            let bytes = id.len();
            let message = format!("an id has 1 to {NAME_BYTES_MAX} bytes, not {bytes}");
            return Err(self.site.invalid(OPERATION, message));
        }
        let counted = self.arrive(OPERATION, Some(id)).await?;
        Ok(!matches!(counted, Counted::No))
    }

    /// Counts down by one, once for this id. Without one, the call counts under an id of its own.
    async fn arrive(&self, operation: &'static str, id: Option<&str>) -> Result<Counted> {
        let (name, call) = (self.site.name(operation)?, self.site.new_call());
        let (done, kept) = match id {
            Some(id) => (name.latch_done_key(id), ID_KEPT),
            None => (name.latch_call_key(&call), self.site.call_kept()),
        };
        let keys = [name.key(), &*done, &*name.latch_opened_key()];
        let call = Call::new(&catalog::LATCH_COUNT_DOWN, name.key(), &keys)
            .arg(&*call)
            .arg(millis(kept))
            .arg(millis(self.site.call_kept()))
            .arg(self.site.told(self.channel(name)));
        let read = |answer: &Answer| reply::latch_counted(&answer.value);
        self.site.ask(operation, &call, Tick::NEVER, read).await
    }

    /// Returns the channel on which waiters listen.
    fn channel(&self, name: &LockName) -> String {
        name.latch_channel(self.site.core().channels() == Channels::Sharded)
    }

    /// Returns how many count-downs are left; 0: the latch is open. One round trip.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    ///
    /// # Errors
    /// As for [`init`](Self::init).
    pub async fn count(&self) -> Result<u64> {
        let (left, _) = self.look("count", Tick::NEVER).await?;
        Ok(left)
    }

    /// Returns how many count-downs are left, and the id of the call that opened the latch last.
    async fn look(&self, operation: &'static str, deadline: Tick) -> Result<(u64, String)> {
        let name = self.site.name(operation)?;
        let keys = [name.key(), &*name.latch_opened_key()];
        let call = Call::new(&catalog::LATCH_COUNT, name.key(), &keys);
        let read = |answer: &Answer| reply::latch_count(&answer.value);
        self.site.ask(operation, &call, deadline, read).await
    }

    /// Waits until the latch is open. One round trip if it is.
    ///
    /// Once the latch has opened, the wait ends even if it is closed again at once, unless a Java client opened it. The
    /// server knows of the opening for a minute, or for twice the [`give_up_after`](Self::give_up_after) of the handle
    /// that opened it if that is longer. A waiter that cannot look at the latch for all that time, because the server is
    /// out of reach or the future is not polled, misses an opening that was followed by [`init`](Self::init), and waits
    /// for the next one.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As for [`init`](Self::init); [`is_closed`](crate::Error::is_closed) when the client is shut down.
    pub async fn wait(&self) -> Result<()> {
        let is_open = self
            .wait_until("wait", OnceLock::new(), Tick::NEVER)
            .await?;
        debug_assert!(is_open, "a wait without an end");
        Ok(())
    }

    /// Waits until the latch is open, for at most this long: `false` if it is still closed. The last look at the latch
    /// is at the end of that time. With [`Duration::ZERO`] there is one look.
    ///
    /// # Cancel safety
    /// Dropping the future leaves nothing behind.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub async fn wait_for(&self, limit: Duration) -> Result<bool> {
        let deadline = self.site.deadline(Some(limit));
        self.wait_until("wait_for", OnceLock::new(), deadline).await
    }

    /// Waits until the latch is open, or was opened by another call than `before`, the call that opened it last before
    /// the wait. If `before` is not set, the first look sets it.
    async fn wait_until(
        &self,
        operation: &'static str,
        before: OnceLock<String>,
        deadline: Tick,
    ) -> Result<bool> {
        let look = || async {
            let (left, opened) = self.look(operation, deadline).await?;
            let before = before.get_or_init(|| opened.clone());
            // After a while the server forgets which call opened the latch last. An empty id is therefore no opening.
            let was_opened = !opened.is_empty() && opened != *before;
            Ok((left == 0 || was_opened).then_some(()))
        };
        let channel = |name: &LockName| self.channel(name);
        let opened = self.site.wait(operation, channel, deadline, look).await?;
        Ok(opened.is_some())
    }

    /// Counts down by one and waits until the latch is open, for parties that wait for each other once. For more than
    /// one round, take a [`Barrier`](crate::Barrier).
    ///
    /// # Cancel safety
    /// If the future is dropped, the call may or may not have counted.
    ///
    /// # Errors
    /// As for [`wait`](Self::wait).
    pub async fn arrive_and_wait(&self) -> Result<()> {
        const OPERATION: &str = "arrive_and_wait";
        let (_, opened_before) = self.look(OPERATION, Tick::NEVER).await?;
        let before = match self.arrive(OPERATION, None).await? {
            Counted::Now { opened } => opened,
            // The latch may have been opened after the earlier run.
            Counted::Earlier => opened_before,
            Counted::No => return Ok(()), // It is open.
        };
        self.wait_until(OPERATION, before.into(), Tick::NEVER)
            .await?;
        Ok(())
    }

    /// Opens the latch, however many count-downs are left: all waiters continue, in Java too (its own `delete` does not
    /// wake them). `false` if it was open. One round trip.
    ///
    /// # Cancel safety
    /// If the future is dropped, the latch may or may not be open. The call may be repeated.
    ///
    /// # Errors
    /// As for [`init`](Self::init).
    pub async fn delete(&self) -> Result<bool> {
        let (name, call) = (self.site.name("delete")?, self.site.new_call());
        let keys = [
            name.key(),
            &*name.latch_opened_key(),
            &*name.latch_call_key(&call),
        ];
        let call = Call::new(&catalog::LATCH_DELETE, name.key(), &keys)
            .arg(&*call)
            .arg(millis(self.site.call_kept()))
            .arg(self.site.told(self.channel(name)));
        self.site
            .ask("delete", &call, Tick::NEVER, Answer::flag)
            .await
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use redis::Value;

    use super::*;
    use crate::testing::{Answer as Reply, Scripted};

    /// The first command or its reply is lost, and the latch was open all the time.
    #[tokio::test(start_paused = true)]
    async fn a_repeated_delete_of_an_open_latch_opens_nothing() {
        let is_lost = AtomicBool::new(true);
        let server = Scripted::new(move |_| match is_lost.swap(false, Ordering::Relaxed) {
            true => Reply::Silence,
            false => Reply::Value(Value::Int(0)),
        });
        let latch = Client::over(&server, Duration::from_secs(30)).latch("x");
        assert!(!latch.delete().await.unwrap());
        assert_eq!(server.sent().len(), 2);
    }

    /// When the party looked, the latch had been opened by another call. It was closed again before the party counted.
    #[tokio::test(start_paused = true)]
    async fn an_opening_before_a_party_has_counted_does_not_end_its_wait() {
        let has_counted = AtomicBool::new(false);
        let by = |by: &str| Value::BulkString(by.into());
        let server = Scripted::new(move |sent| match sent.words.get(1) {
            Some(word) if word == catalog::LATCH_COUNT_DOWN.sha() => {
                has_counted.store(true, Ordering::Relaxed);
                Reply::Value(by("second"))
            }
            Some(word) if word == catalog::LATCH_COUNT.sha() => {
                let opened = match has_counted.load(Ordering::Relaxed) {
                    false => by("first"),
                    true => by("second"),
                };
                Reply::Value(Value::Array(vec![Value::Int(1), opened]))
            }
            _ => Reply::Value(Value::Okay),
        });
        let latch = Client::over(&server, Duration::from_secs(30)).latch("x");
        let arrived = tokio::time::timeout(Duration::from_secs(5), latch.arrive_and_wait());
        assert!(arrived.await.is_err(), "one more has to come");
    }

    /// The latch was open when the party looked, and was closed before the party counted.
    #[tokio::test(start_paused = true)]
    async fn a_party_that_has_counted_waits() {
        let is_open = AtomicBool::new(true);
        let server = Scripted::new(move |sent| match sent.words.get(1) {
            Some(word) if word == catalog::LATCH_COUNT_DOWN.sha() => Reply::Value(Value::Int(1)),
            Some(word) if word == catalog::LATCH_COUNT.sha() => {
                let left = i64::from(!is_open.swap(false, Ordering::Relaxed));
                Reply::Value(Value::Array(vec![
                    Value::Int(left),
                    Value::BulkString(vec![]),
                ]))
            }
            _ => Reply::Value(Value::Okay),
        });
        let latch = Client::over(&server, Duration::from_secs(30)).latch("x");
        let arrived = tokio::time::timeout(Duration::from_secs(5), latch.arrive_and_wait());
        assert!(arrived.await.is_err(), "one more has to come");
    }

    /// A call without an id is forgotten sooner. An id would then count again.
    #[tokio::test(start_paused = true)]
    async fn an_id_is_known_for_a_day() {
        let server = Scripted::new(|_| Reply::Value(Value::BulkString(vec![])));
        let latch = Client::over(&server, Duration::from_secs(30)).latch("x");
        latch.count_down().await.unwrap();
        assert!(latch.count_down_as("one").await.unwrap());
        let sent = server.sent();
        let kept: Vec<_> = sent.iter().map(|sent| &*sent.words[7]).collect();
        assert_eq!(kept, ["60000", "86400000"]);
    }
}

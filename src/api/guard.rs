//! The methods that all guards share, stamped onto each public guard.

/// Stamps the shared methods onto a public guard, a newtype over a share: of one hold, of several, or of a quorum.
macro_rules! guard_methods {
    ($guard:ident) => {
        impl $guard {
            /// The name of the lock, as it was given to the client; of a multi-lock, the name of its first member.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }

            /// The owner that holds the lock: the one set on the handle, or one made for this hold. If the handles of a
            /// multi-lock named several, it is the owner of the first member.
            #[must_use]
            pub fn owner(&self) -> &$crate::Owner {
                self.0.owner()
            }

            /// The holder id of this hold at the server, as in [`Holder::id`]($crate::Holder::id). For logs, and for
            /// inspecting the server. Readers of one client may share a holder id. Each member of a multi-lock, and each
            /// server of a quorum, has one of its own; this is the first.
            ///
            /// ```no_run
            /// # fn doc(guard: impl lockset::Guard) {
            /// println!("{} is held as {}", guard.name(), guard.holder_id());
            /// # }
            /// ```
            #[must_use]
            pub fn holder_id(&self) -> &str {
                self.0.holder_id()
            }

            /// How many guards of this owner share this hold, in the mode of this guard: those of an owner that writes
            /// and reads are counted apart. Two tasks of one owner that begin to read at the same moment may have a
            /// hold each. Of several locks it is the smallest count.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.0.hold_count()
            }

            /// The fencing token of this hold; `None` unless the handle is `fenced()`.
            ///
            /// A quorum has one token, larger than the tokens of all holds before this one. A multi-lock has one for
            /// each member that is `fenced()`; this is the largest, for one resource behind all members: it grows with
            /// each grant of the same members.
            ///
            /// ```no_run
            /// # fn doc(guard: impl lockset::Guard) {
            /// println!("{} is held, with token {:?}", guard.name(), guard.fencing_token());
            /// # }
            /// ```
            #[must_use]
            pub fn fencing_token(&self) -> Option<$crate::FencingToken> {
                self.0.fencing_token()
            }

            /// The fencing token of this hold, for code that cannot work without.
            ///
            /// # Errors
            /// [`is_invalid`]($crate::Error::is_invalid): the handle is not `fenced()`.
            ///
            /// ```no_run
            /// # fn doc(guard: impl lockset::Guard) -> lockset::Result<()> {
            /// let token = guard.token()?;
            /// println!("UPDATE orders SET fence = {token} WHERE id = 7 AND fence <= {token}");
            /// # Ok(()) }
            /// ```
            pub fn token(&self) -> $crate::Result<$crate::FencingToken> {
                $crate::FencingToken::required(self.fencing_token(), self.name())
            }

            /// How long the lock is certainly still held, by the local monotonic clock: all members of a multi-lock, a
            /// majority of the servers of a quorum. Zero once it is lost.
            ///
            /// It is counted from before the last confirmed request was sent, so it ends before the lease at
            /// the server does. A renewal extends it.
            #[must_use]
            pub fn remaining(&self) -> ::std::time::Duration {
                self.0.remaining()
            }

            /// Whether the lock is lost: one member of a multi-lock, or the majority of a quorum. Once true, it stays
            /// true.
            ///
            /// It reads the clock, so it is right even after the process or the machine was stopped for
            /// longer than the lease. Check it before each step of code that blocks its thread.
            ///
            /// ```no_run
            /// # fn doc(guard: impl lockset::Guard) -> Result<(), &'static str> {
            /// for step in 1..=3 {
            ///     if guard.is_lost() {
            ///         return Err("another process may hold the lock now");
            ///     }
            ///     println!("step {step}");
            /// }
            /// # Ok(()) }
            /// ```
            #[must_use]
            pub fn is_lost(&self) -> bool {
                self.0.loss().is_some()
            }

            /// Waits until the lock is lost, and returns the reason.
            ///
            /// It resolves by the local deadline, even if the network fails; after the machine was suspended for longer
            /// than the lease, within a quarter of a second. A normal release never resolves it.
            ///
            /// # Cancel safety
            /// Cancel safe. It may be called any number of times, also after the loss.
            ///
            /// ```no_run
            /// # async fn doc(guard: impl lockset::Guard) {
            /// tokio::select! {
            ///     () = work() => println!("done"),
            ///     reason = guard.lost() => println!("stopped: {reason}"),
            /// }
            /// # }
            /// # async fn work() {}
            /// ```
            pub async fn lost(&self) -> $crate::LostReason {
                self.0.lost().await
            }

            /// Resolves when another call, in this process or in another, is waiting for the lock. Release it as soon
            /// as you can.
            ///
            /// For work that can stop at certain points, such as a batch between two items. It resolves at once if a
            /// waiter has asked for this hold before, even if that waiter has left since. Not all waiters ask: neither
            /// clients of Redisson nor `try_lock` do. A lost message is repeated within a second. A waiter that a
            /// [reader]($crate::ReadGuard) does not keep out does not count. Without a waiter this never resolves, even
            /// if the lock is lost; use [`lost`](Self::lost) for that.
            ///
            /// From the first call on, the client listens to one channel of its own: see
            /// [docs/rights.md](https://github.com/lockset-rs/lockset/blob/main/docs/rights.md).
            ///
            /// # Cancel safety
            /// Cancel safe. It may be called any number of times.
            ///
            /// ```no_run
            /// # async fn doc(guard: impl lockset::Guard) -> lockset::Result<()> {
            /// for item in 0..1000 {
            ///     work(item).await;
            ///     tokio::select! {
            ///         biased;
            ///         () = guard.recalled() => break,
            ///         () = std::future::ready(()) => {} // nobody waits
            ///     }
            /// }
            /// guard.release().await?;
            /// # Ok(()) }
            /// # async fn work(_: u32) {}
            /// ```
            pub async fn recalled(&self) {
                self.0.recalled().await;
            }

            /// Whether the lock is lost, for tasks and threads that do not have the guard: `'static`, and cheap to
            /// clone. See [`Loss`]($crate::Loss).
            ///
            /// ```no_run
            /// # async fn doc(guard: impl lockset::Guard) {
            /// let loss = guard.loss();
            /// tokio::spawn(async move { println!("lost: {}", loss.wait().await) });
            /// # }
            /// ```
            #[must_use]
            pub fn loss(&self) -> $crate::Loss {
                self.0.loss_view()
            }

            /// Runs `work` to its end, or drops it when the lock is lost.
            ///
            /// The clock is read before each step of the work and once more at its end, so `Ok` means that the lock was
            /// held until then. A loss stops only what `work` itself awaits, not a task that it spawned, nor a call
            /// that blocks its thread. If such a call outlasts the lease, this returns `Lost` when the call comes back,
            /// although the work was done.
            ///
            /// # Cancel safety
            /// Dropping this future drops `work`; the guard is not touched.
            ///
            /// # Errors
            /// [`Lost`]($crate::Lost): the lock was lost before the work ended.
            ///
            /// ```no_run
            /// # async fn doc(guard: impl lockset::Guard) -> Result<(), lockset::Lost> {
            /// let pages = guard.run(async { 3 /* work */ }).await?;
            /// # drop(pages); Ok(()) }
            /// ```
            pub async fn run<F: ::std::future::Future>(
                &self,
                work: F,
            ) -> ::std::result::Result<F::Output, $crate::Lost> {
                $crate::api::loss::drive(self.lost(), || self.lost_now(), work).await
            }

            /// Enters the lock once more for the same owner. Never waits for another owner.
            ///
            /// It takes no round trip while more than half of the lease is left. Otherwise, or after the server was
            /// out of reach, a renewal is sent first.
            ///
            /// # Cancel safety
            /// Dropping the future leaves the guards as they are. A renewal under way goes on in the background.
            ///
            /// # Errors
            /// * [`is_not_held`]($crate::Error::is_not_held): the lock is lost.
            /// * [`is_io`]($crate::Error::is_io): the server does not answer; of a quorum, [`is_quorum`]($crate::Error::is_quorum):
            ///   no majority answers.
            /// * [`is_refused`]($crate::Error::is_refused): the server cannot do it now.
            /// * [`is_closed`]($crate::Error::is_closed): the client's runtime has ended.
            ///
            /// ```no_run
            /// # async fn doc(guard: impl lockset::Guard) -> lockset::Result<()> {
            /// let inner = guard.reenter().await?;
            /// assert_eq!(guard.hold_count(), 2);
            /// inner.release().await?;
            /// # Ok(()) }
            /// ```
            pub async fn reenter(&self) -> $crate::Result<Self> {
                self.0.reenter().await.map(Self)
            }

            /// Releases this hold and waits for the server to confirm it. `Ok` means that the lock was held
            /// to the end, as far as this client knows.
            ///
            /// Takes one round trip, or none if it does not end the hold: another guard of this owner or other readers
            /// have it, a waiting task of this client gets it, or it stays with the client. In these cases this is
            /// `Ok` even if the lock was freed by force after the last renewal, and another client may have had it
            /// since. Only the next task, or the last guard to be released, gets the loss.
            ///
            /// A multi-lock waits for all servers, one round trip to each; a quorum for a majority, while the others
            /// release in the background.
            ///
            /// A release without an answer is repeated. If the server then has no such hold, the result is `Ok` if the
            /// first release was sent within the lease, because it was executed. It cannot be distinguished from a
            /// third party that freed the lock after the last renewal.
            ///
            /// # Cancel safety
            /// If the future is dropped, the release continues in the background.
            ///
            /// # Errors
            /// * [`is_not_held`]($crate::Error::is_not_held): the lock was lost before. Work done under it may have
            ///   overlapped with another holder. The message says whether the lease ended or the server had no such
            ///   hold; of a multi-lock, it names the member, and the others are released nevertheless.
            /// * [`is_io`]($crate::Error::is_io): the server does not answer. The release continues in the
            ///   background until the lease ends.
            /// * [`is_refused`]($crate::Error::is_refused), [`is_denied`]($crate::Error::is_denied): the server
            ///   cannot do it now, or the user lacks a right. The release continues in the background too.
            /// * [`is_closed`]($crate::Error::is_closed): the client's runtime has ended. The lease runs out.
            ///
            /// ```no_run
            /// # async fn doc(guard: impl lockset::Guard) -> lockset::Result<()> {
            /// match guard.release().await {
            ///     Err(error) if error.is_not_held() => println!("check what was written: {error}"),
            ///     released => released?,
            /// }
            /// # Ok(()) }
            /// ```
            pub async fn release(self) -> $crate::Result<()> {
                // Pinned here, because moving a future into another one doubles its size.
                let released = ::std::pin::pin!(self.0.release());
                released.await
            }

            /// Drops the guard without releasing: renewals stop, and the lock stays held until its lease
            /// ends.
            ///
            /// Other guards of the same owner stay valid and renewed. When the last of them is gone, renewals
            /// stop and the forgotten hold runs out.
            ///
            /// ```no_run
            /// # fn doc(guard: impl lockset::Guard) {
            /// guard.forget(); // nobody else gets the lock for the rest of its lease
            /// # }
            /// ```
            pub fn forget(self) {
                self.0.forget();
            }

            pub(crate) fn lost_now(&self) -> Option<$crate::Lost> {
                self.0.lost_now()
            }
        }
    };
}

pub(crate) use guard_methods;

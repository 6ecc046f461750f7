//! The methods all guards share, stamped onto each public guard.

/// Stamps the shared methods onto a public guard, a newtype over a share of a hold.
macro_rules! guard_methods {
    ($guard:ident) => {
        impl $guard {
            /// The name of the lock, as it was given to the client.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.name()
            }

            /// The owner that holds the lock: the one given to the handle, or one made for this
            /// hold.
            #[must_use]
            pub fn owner(&self) -> &$crate::Owner {
                self.0.owner()
            }

            /// The holder id under which the server knows this hold, as in
            /// [`Holder::id`]($crate::Holder::id): for logs and for questions to the server.
            #[must_use]
            pub fn holder_id(&self) -> &str {
                self.0.holder_id()
            }

            /// How many guards of this owner share this hold now. Two tasks of one owner that began
            /// to read at the same moment may have a hold each.
            #[must_use]
            pub fn hold_count(&self) -> u32 {
                self.0.hold_count()
            }

            /// The fencing token of this hold; `None` unless the handle asked for one with
            /// `fenced()`.
            #[must_use]
            pub fn fencing_token(&self) -> Option<$crate::FencingToken> {
                self.0.fencing_token()
            }

            /// How long the lock is still held for certain, by the local monotonic clock.
            ///
            /// Counted from before the last confirmed request was sent, so it ends before the
            /// server's lease does. Zero once the lock is lost.
            #[must_use]
            pub fn remaining(&self) -> ::std::time::Duration {
                self.0.remaining()
            }

            /// Whether the lock is lost. Once true it stays true.
            ///
            /// Read from the clock, so it is right even after the process or the machine was
            /// stopped for longer than the lease.
            #[must_use]
            pub fn is_lost(&self) -> bool {
                self.0.is_lost()
            }

            /// Resolves when the lock is lost, with the reason; at the latest when the local
            /// deadline passes, whatever the network does. After the machine was suspended for
            /// longer than the lease: within a quarter of a second.
            ///
            /// # Cancel safety
            /// Cancel safe; may be called any number of times, also after the loss.
            pub async fn lost(&self) -> $crate::LostReason {
                self.0.lost().await
            }

            /// Drives `work` to its end, or drops it the moment the lock is lost.
            ///
            /// The clock is read before each step of the work and once more at its end: `Ok` means that the
            /// lock was still held then. Only what is awaited in `work` itself stops with it: not a task it
            /// spawned, nor a call that blocks its thread. What blocks for longer than the lease is found out
            /// when it comes back, and `Lost` is the answer though the work was done.
            ///
            /// # Cancel safety
            /// Dropping this future drops `work`; the guard is not touched.
            ///
            /// # Errors
            /// [`Lost`]($crate::Lost) if the lock was lost before the end.
            pub async fn run<F: ::std::future::Future>(
                &self,
                work: F,
            ) -> ::std::result::Result<F::Output, $crate::Lost> {
                self.0.run(work).await
            }

            /// One more hold for the same owner; never waits for anybody. One round trip.
            ///
            /// # Cancel safety
            /// If the future is dropped, a count that the server may have raised is put right in
            /// the background.
            ///
            /// # Errors
            /// [`is_not_held`]($crate::Error::is_not_held) if the lock is lost;
            /// [`is_io`]($crate::Error::is_io) if the server does not answer;
            /// [`is_closed`]($crate::Error::is_closed) if the client's runtime has ended.
            pub async fn reenter(&self) -> $crate::Result<Self> {
                self.0.reenter().await.map(Self)
            }

            /// Gives this hold back and waits until the server has done so: the exact way out. One
            /// round trip; or none, if the lock passes to a task of this client that waits for it. Then
            /// it was held to the end as far as this client knows: that a third party took it away
            /// since the last renewal is told to those who have it when the server is asked next.
            ///
            /// If its answer is lost, the release is repeated. That the server has no such hold by then
            /// is `Ok` if the first was sent within the lease: then it was that one which released. That
            /// a third party took the lock away between the last renewal and that, nobody can tell.
            ///
            /// # Cancel safety
            /// If the future is dropped, the release goes on in the background.
            ///
            /// # Errors
            /// [`is_not_held`]($crate::Error::is_not_held) if the lock was lost before: what was
            /// done under it may have overlapped with another holder. Its message says whether the
            /// lease ran out or the server had no such hold within the lease.
            /// [`is_io`]($crate::Error::is_io) if the server does not answer: the release goes on
            /// in the background until the lease is over.
            pub async fn release(self) -> $crate::Result<()> {
                self.0.release().await
            }

            /// Gives up the guard without releasing: renewals stop, and the lock stays taken until
            /// its lease runs out.
            ///
            /// Other guards of the same owner stay valid and renewed; when the last of them is
            /// gone, renewals stop and the forgotten hold runs out.
            pub fn forget(self) {
                self.0.forget();
            }

            pub(crate) fn loss(&self) -> Option<$crate::LostReason> {
                self.0.loss()
            }
        }
    };
}

pub(crate) use guard_methods;

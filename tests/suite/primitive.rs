//! What all primitives have in common, as the generic suites see it.

use std::future::Future;
use std::time::Duration;

use lockset::{
    Client, FairGuard, FairLock, FencingToken, Lost, LostReason, Owner, ReentrantGuard,
    ReentrantLock, Result, WriteGuard, WriteSide,
};

/// A handle on a lock that one owner can hold at a time.
pub(crate) trait Primitive: Clone + Send + Sync + 'static {
    type Guard: Guard;

    fn of(client: &Client, name: &str) -> Self;
    fn owner(self, owner: &Owner) -> Self;
    fn lease(self, lease: Duration) -> Self;
    fn fixed_lease(self, lease: Duration) -> Self;
    fn fenced(self) -> Self;
    fn lock(&self) -> impl Future<Output = Result<Self::Guard>> + Send;
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;
    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;
    fn is_locked(&self) -> impl Future<Output = Result<bool>> + Send;
    fn force_unlock(&self) -> impl Future<Output = Result<bool>> + Send;
}

pub(crate) trait Guard: Sized + Send + Sync + 'static {
    fn name(&self) -> &str;
    fn owner(&self) -> &Owner;
    fn hold_count(&self) -> u32;
    fn fencing_token(&self) -> Option<FencingToken>;
    fn remaining(&self) -> Duration;
    fn is_lost(&self) -> bool;
    fn lost(&self) -> impl Future<Output = LostReason> + Send;
    fn run<F: Future<Output: Send> + Send>(
        &self,
        work: F,
    ) -> impl Future<Output = std::result::Result<F::Output, Lost>> + Send;
    fn reenter(&self) -> impl Future<Output = Result<Self>> + Send;
    fn release(self) -> impl Future<Output = Result<()>> + Send;
    fn forget(self);
}

macro_rules! primitive {
    ($lock:ident, $of:expr) => {
        impl Primitive for $lock {
            type Guard = <Self as Guarded>::Guard;

            fn of(client: &Client, name: &str) -> Self {
                let of: fn(&Client, &str) -> Self = $of;
                of(client, name)
            }
            fn owner(self, owner: &Owner) -> Self {
                $lock::owner(self, owner)
            }
            fn lease(self, lease: Duration) -> Self {
                $lock::lease(self, lease)
            }
            fn fixed_lease(self, lease: Duration) -> Self {
                $lock::fixed_lease(self, lease)
            }
            fn fenced(self) -> Self {
                $lock::fenced(self)
            }
            async fn lock(&self) -> Result<Self::Guard> {
                $lock::lock(self).await
            }
            async fn try_lock(&self) -> Result<Option<Self::Guard>> {
                $lock::try_lock(self).await
            }
            async fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>> {
                $lock::try_lock_for(self, wait).await
            }
            async fn is_locked(&self) -> Result<bool> {
                $lock::is_locked(self).await
            }
            async fn force_unlock(&self) -> Result<bool> {
                $lock::force_unlock(self).await
            }
        }
    };
}

/// Names the guard of a lock for the macro above.
pub(crate) trait Guarded {
    type Guard: Guard;
}

macro_rules! guard {
    ($lock:ident, $guard:ident) => {
        impl Guarded for $lock {
            type Guard = $guard;
        }

        impl Guard for $guard {
            fn name(&self) -> &str {
                $guard::name(self)
            }
            fn owner(&self) -> &Owner {
                $guard::owner(self)
            }
            fn hold_count(&self) -> u32 {
                $guard::hold_count(self)
            }
            fn fencing_token(&self) -> Option<FencingToken> {
                $guard::fencing_token(self)
            }
            fn remaining(&self) -> Duration {
                $guard::remaining(self)
            }
            fn is_lost(&self) -> bool {
                $guard::is_lost(self)
            }
            async fn lost(&self) -> LostReason {
                $guard::lost(self).await
            }
            async fn run<F: Future<Output: Send> + Send>(
                &self,
                work: F,
            ) -> std::result::Result<F::Output, Lost> {
                $guard::run(self, work).await
            }
            async fn reenter(&self) -> Result<Self> {
                $guard::reenter(self).await
            }
            async fn release(self) -> Result<()> {
                $guard::release(self).await
            }
            fn forget(self) {
                $guard::forget(self);
            }
        }
    };
}

primitive!(ReentrantLock, |client, name| client.lock(name));
guard!(ReentrantLock, ReentrantGuard);
primitive!(FairLock, |client, name| client.fair_lock(name));
guard!(FairLock, FairGuard);
primitive!(WriteSide, |client, name| client.rw_lock(name).write_side());
guard!(WriteSide, WriteGuard);

/// Makes a test of each generic one for every primitive, in a module of its name. A new primitive is
/// a line here.
macro_rules! for_every_primitive {
    ($flavor:tt: $($test:ident)*) => {
        $crate::primitive::for_every_primitive!(@reentrant lockset::ReentrantLock, $flavor: $($test)*);
        $crate::primitive::for_every_primitive!(@fair lockset::FairLock, $flavor: $($test)*);
        $crate::primitive::for_every_primitive!(@write lockset::WriteSide, $flavor: $($test)*);
    };
    (@$primitive:ident $lock:ty, $flavor:tt: $($test:ident)*) => {
        mod $primitive {
            $(
                #[tokio::test(flavor = $flavor)]
                async fn $test() {
                    super::$test::<$lock>().await;
                }
            )*
        }
    };
}

pub(crate) use for_every_primitive;

//! Implements the public traits for each lock, for each guard and for the boxed guard.
//!
//! Every method forwards to the method of that name on the type. The `Debug` output of the guards is made here too, so
//! that all guards show the same fields.

use std::fmt::{self, Debug};
use std::future::Future;
use std::time::Duration;

use super::with::{complete, with_methods};
use super::{Boxed, Guard, Lock, sealed};
use crate::any_lock::{AnyGuard, AnyLock};
use crate::api::busy::Busy;
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::loss::Loss;
use crate::api::lost::{Lost, LostReason};
use crate::api::owner::Owner;
use crate::api::with::{Completed, Wait, WithError};
use crate::fair::{FairGuard, FairLock};
use crate::multilock::{MultiGuard, MultiLock};
use crate::redlock::{RedlockGuard, RedlockLock};
use crate::reentrant::{ReentrantGuard, ReentrantLock};
use crate::rwlock::{ReadGuard, ReadSide, WriteGuard, WriteSide};

macro_rules! locks {
    ($($lock:ident => $guard:ident,)*) => {
        $(
            impl sealed::Lock for $lock {
                async fn refused(&self) -> Busy {
                    $lock::refused(self).await
                }
            }

            with_methods!($lock, $guard);

            impl Lock for $lock {
                type Guard = $guard;

                fn name(&self) -> &str {
                    $lock::name(self)
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
                fn at_least(self, span: Duration) -> Self {
                    $lock::at_least(self, span)
                }
                fn max_hold(self, span: Duration) -> Self {
                    $lock::max_hold(self, span)
                }
                fn fenced(self) -> Self {
                    $lock::fenced(self)
                }
                fn replicated(self, count: u32, within: Duration) -> Self {
                    $lock::replicated(self, count, within)
                }
                fn group(self, name: &str) -> Self {
                    $lock::group(self, name)
                }
                async fn lock(&self) -> Result<$guard> {
                    $lock::lock(self).await
                }
                async fn try_lock(&self) -> Result<Option<$guard>> {
                    $lock::try_lock(self).await
                }
                async fn try_lock_for(&self, wait: Duration) -> Result<Option<$guard>> {
                    $lock::try_lock_for(self, wait).await
                }
                async fn with<T, E, F>(
                    &self,
                    wait: impl Into<Wait>,
                    body: F,
                ) -> Result<T, WithError<E>>
                where
                    F: AsyncFnOnce(&$guard) -> Result<T, E>,
                {
                    $lock::with(self, wait, body).await
                }
                async fn with_completed<T, E, F>(
                    &self,
                    wait: impl Into<Wait>,
                    body: F,
                ) -> Result<Completed<T>, WithError<E>>
                where
                    F: AsyncFnOnce(&$guard) -> Result<T, E>,
                {
                    $lock::with_completed(self, wait, body).await
                }
                async fn busy(&self) -> Result<Option<Busy>> {
                    $lock::busy(self).await
                }
            }
        )*
    };
}

locks! {
    ReentrantLock => ReentrantGuard,
    FairLock => FairGuard,
    ReadSide => ReadGuard,
    WriteSide => WriteGuard,
    AnyLock => AnyGuard,
    MultiLock => MultiGuard,
    RedlockLock => RedlockGuard,
}

/// Each guard with its name method, which its `Debug` output shows.
macro_rules! guards {
    ($($guard:ident: $name:ident,)*) => {
        $(
            impl sealed::Guard for $guard {
                fn lost_now(&self) -> Option<Lost> {
                    $guard::lost_now(self)
                }
                fn lost_lock(&self) -> Boxed<'_, Lost> {
                    Box::pin($guard::lost_lock(self))
                }
                fn run_boxed<'a>(&'a self, work: Boxed<'a, ()>) -> Boxed<'a, Result<(), Lost>> {
                    Box::pin(self.run(work))
                }
                fn reenter_boxed(&self) -> Boxed<'_, Result<Box<dyn Guard>>> {
                    Box::pin(async { Ok(Box::new(self.reenter().await?) as Box<dyn Guard>) })
                }
                fn release_boxed(self: Box<Self>) -> Boxed<'static, Result<()>> {
                    Box::pin((*self).release())
                }
                fn forget_boxed(self: Box<Self>) {
                    (*self).forget();
                }
            }

            impl Guard for $guard {
                fn name(&self) -> &str {
                    $guard::name(self)
                }
                fn owner(&self) -> &Owner {
                    $guard::owner(self)
                }
                fn holder_id(&self) -> &str {
                    $guard::holder_id(self)
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
                fn lost(&self) -> Boxed<'_, LostReason> {
                    Box::pin($guard::lost(self))
                }
                fn recalled(&self) -> Boxed<'_, ()> {
                    Box::pin($guard::recalled(self))
                }
                fn loss(&self) -> Loss {
                    $guard::loss(self)
                }
                async fn run<F>(&self, work: F) -> Result<F::Output, Lost>
                where
                    F: Future<Output: Send> + Send,
                {
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

            impl Debug for $guard {
                fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    let mut shown = f.debug_struct(stringify!($guard));
                    shown.field(stringify!($name), &self.$name());
                    show(&mut shown, self, self.lost_now());
                    shown.finish()
                }
            }
        )*
    };
}

guards! {
    ReentrantGuard: name,
    FairGuard: name,
    ReadGuard: name,
    WriteGuard: name,
    AnyGuard: name,
    MultiGuard: names,
    RedlockGuard: name,
}

/// Adds the common `Debug` fields of a guard.
fn show(shown: &mut fmt::DebugStruct<'_, '_>, guard: &dyn Guard, lost: Option<Lost>) {
    shown.field("holder_id", &guard.holder_id());
    shown.field("owner", guard.owner());
    shown.field("hold_count", &guard.hold_count());
    if let Some(token) = guard.fencing_token() {
        shown.field("fencing_token", &token.get());
    }
    match lost {
        Some(lost) => shown.field("lost", &lost.reason()),
        None => {
            let millis = u64::try_from(guard.remaining().as_millis());
            let remaining = Duration::from_millis(millis.unwrap_or(u64::MAX));
            shown.field("remaining", &remaining)
        }
    };
}

impl sealed::Guard for Box<dyn Guard> {
    fn lost_now(&self) -> Option<Lost> {
        (**self).lost_now()
    }
    fn lost_lock(&self) -> Boxed<'_, Lost> {
        (**self).lost_lock()
    }
    fn run_boxed<'a>(&'a self, work: Boxed<'a, ()>) -> Boxed<'a, Result<(), Lost>> {
        (**self).run_boxed(work)
    }
    fn reenter_boxed(&self) -> Boxed<'_, Result<Box<dyn Guard>>> {
        (**self).reenter_boxed()
    }
    fn release_boxed(self: Box<Self>) -> Boxed<'static, Result<()>> {
        (*self).release_boxed()
    }
    fn forget_boxed(self: Box<Self>) {
        (*self).forget_boxed();
    }
}

impl Guard for Box<dyn Guard> {
    fn name(&self) -> &str {
        (**self).name()
    }
    fn owner(&self) -> &Owner {
        (**self).owner()
    }
    fn holder_id(&self) -> &str {
        (**self).holder_id()
    }
    fn hold_count(&self) -> u32 {
        (**self).hold_count()
    }
    fn fencing_token(&self) -> Option<FencingToken> {
        (**self).fencing_token()
    }
    fn remaining(&self) -> Duration {
        (**self).remaining()
    }
    fn is_lost(&self) -> bool {
        (**self).is_lost()
    }
    fn lost(&self) -> Boxed<'_, LostReason> {
        (**self).lost()
    }
    fn recalled(&self) -> Boxed<'_, ()> {
        (**self).recalled()
    }
    fn loss(&self) -> Loss {
        (**self).loss()
    }
    async fn run<F>(&self, work: F) -> Result<F::Output, Lost>
    where
        F: Future<Output: Send> + Send,
    {
        let mut done = None;
        let work = Box::pin(async { done = Some(work.await) });
        sealed::Guard::run_boxed(&**self, work).await?;
        Ok(done.expect("work that was driven to its end has a result"))
    }
    async fn reenter(&self) -> Result<Self> {
        sealed::Guard::reenter_boxed(&**self).await
    }
    async fn release(self) -> Result<()> {
        sealed::Guard::release_boxed(self).await
    }
    fn forget(self) {
        sealed::Guard::forget_boxed(self);
    }
}

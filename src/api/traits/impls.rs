//! Implements the public traits for each lock, for each guard and for the boxed guard.
//!
//! Every method forwards to the method of that name on the type. The `Debug` output of the guards is made here too, so
//! that all guards show the same fields.

use std::fmt::{self, Debug};
use std::future::Future;
use std::time::Duration;

use super::{Boxed, Guard, Lock, complete, sealed, with_methods};
use crate::any_lock::{AnyGuard, AnyLock};
use crate::api::error::Result;
use crate::api::fencing::FencingToken;
use crate::api::holder::{Busy, Owner};
use crate::api::loss::{Loss, Lost, LostReason};
use crate::fair::{FairGuard, FairLock};
use crate::multilock::{MultiGuard, MultiLock};
use crate::redlock::{RedlockGuard, RedlockLock};
use crate::reentrant::{ReentrantGuard, ReentrantLock};
use crate::rwlock::{ReadGuard, ReadSide, WriteGuard, WriteSide};
use crate::semaphore::Semaphore;

/// Writes methods of a trait that call the methods of the same name on a type.
macro_rules! forward {
    ($to:ty: $(fn $name:ident($this:ident: $receiver:ty $(, $given:ident: $kind:ty)*) -> $result:ty;)*) => {
        $(
            fn $name($this: $receiver $(, $given: $kind)*) -> $result {
                <$to>::$name($this $(, $given)*)
            }
        )*
    };
}

macro_rules! locks {
    ($($lock:ident => $guard:ident,)*) => {
        $(
            impl sealed::Lock for $lock {
                forward! { $lock: fn refused(self: &Self) -> impl Future<Output = Busy> + Send; }
            }

            with_methods!($lock, $guard);

            impl Lock for $lock {
                type Guard = $guard;

                forward! { $lock:
                    fn name(self: &Self) -> &str;
                    fn owner(self: Self, owner: &Owner) -> Self;
                    fn lease(self: Self, lease: Duration) -> Self;
                    fn fixed_lease(self: Self, lease: Duration) -> Self;
                    fn at_least(self: Self, span: Duration) -> Self;
                    fn max_hold(self: Self, span: Duration) -> Self;
                    fn fenced(self: Self) -> Self;
                    fn replicated(self: Self, count: u32, within: Duration) -> Self;
                    fn group(self: Self, name: &str) -> Self;
                    fn lock(self: &Self) -> impl Future<Output = Result<$guard>> + Send;
                    fn try_lock(self: &Self) -> impl Future<Output = Result<Option<$guard>>> + Send;
                    fn try_lock_for(self: &Self, wait: Duration) -> impl Future<Output = Result<Option<$guard>>> + Send;
                    fn busy(self: &Self) -> impl Future<Output = Result<Option<Busy>>> + Send;
                }
            }
        )*
    };
}

impl sealed::Lock for Semaphore {
    forward! { Semaphore: fn refused(self: &Self) -> impl Future<Output = Busy> + Send; }
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

/// Implements the traits for each guard. The named method returns what its `Debug` output shows as the name.
macro_rules! guards {
    ($($guard:ident: $name:ident,)*) => {
        $(
            impl sealed::Guard for $guard {
                forward! { $guard: fn lost_now(self: &Self) -> Option<Lost>; }
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
                forward! { $guard:
                    fn name(self: &Self) -> &str;
                    fn owner(self: &Self) -> &Owner;
                    fn holder_id(self: &Self) -> &str;
                    fn hold_count(self: &Self) -> u32;
                    fn fencing_token(self: &Self) -> Option<FencingToken>;
                    fn remaining(self: &Self) -> Duration;
                    fn is_lost(self: &Self) -> bool;
                    fn loss(self: &Self) -> Loss;
                    fn reenter(self: &Self) -> impl Future<Output = Result<Self>> + Send;
                    fn release(self: Self) -> impl Future<Output = Result<()>> + Send;
                    fn forget(self: Self) -> ();
                }
                fn lost(&self) -> Boxed<'_, LostReason> {
                    Box::pin($guard::lost(self))
                }
                fn recalled(&self) -> Boxed<'_, ()> {
                    Box::pin($guard::recalled(self))
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

macro_rules! of_boxed {
    ($(fn $name:ident() -> $result:ty;)*) => {
        $(
            fn $name(&self) -> $result {
                (**self).$name()
            }
        )*
    };
}

impl sealed::Guard for Box<dyn Guard> {
    of_boxed! {
        fn lost_now() -> Option<Lost>;
        fn reenter_boxed() -> Boxed<'_, Result<Box<dyn Guard>>>;
    }
    fn release_boxed(self: Box<Self>) -> Boxed<'static, Result<()>> {
        (*self).release_boxed()
    }
    fn forget_boxed(self: Box<Self>) {
        (*self).forget_boxed();
    }
}

impl Guard for Box<dyn Guard> {
    of_boxed! {
        fn name() -> &str;
        fn owner() -> &Owner;
        fn holder_id() -> &str;
        fn hold_count() -> u32;
        fn fencing_token() -> Option<FencingToken>;
        fn remaining() -> Duration;
        fn is_lost() -> bool;
        fn lost() -> Boxed<'_, LostReason>;
        fn recalled() -> Boxed<'_, ()>;
        fn loss() -> Loss;
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

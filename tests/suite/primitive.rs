//! The common interface of all primitives for the generic suites.

use std::future::Future;
use std::time::Duration;

pub(crate) use lockset::Guard;
use lockset::{
    Busy, Client, FairGuard, FairLock, Lock, Member, MultiGuard, MultiLock, Owner, ReadGuard,
    ReadSide, Redlock, RedlockGuard, RedlockLock, ReentrantGuard, ReentrantLock, Result,
    WriteGuard, WriteSide,
};

/// A handle of a lock.
pub(crate) trait Primitive: Clone + Send + Sync + 'static {
    type Guard: Guard;

    /// The lock that other callers take in a test, which excludes this one. It is `Self` unless
    /// holders share the lock.
    type Rival: Primitive;

    /// Whether several owners can hold it together.
    const IS_SHARED: bool = false;
    /// Whether each waiter has a place in a queue at the server.
    const QUEUES_AT_SERVER: bool = false;

    /// The section of the documentation with the extra rights, in addition to a reentrant lock's.
    const RIGHTS: &[&str] = &[];

    fn of(client: &Client, name: &str) -> Self;

    fn rival(client: &Client, name: &str) -> Self::Rival {
        Self::Rival::of(client, name)
    }

    /// The names of its parts, each the key of a lock at the server. `name` is the first.
    fn names(name: &str) -> Vec<String> {
        vec![name.to_owned()]
    }

    fn owner(self, owner: &Owner) -> Self;
    fn lease(self, lease: Duration) -> Self;
    fn fixed_lease(self, lease: Duration) -> Self;
    fn at_least(self, span: Duration) -> Self;
    fn max_hold(self, span: Duration) -> Self;
    fn fenced(self) -> Self;
    fn give_up_after(self, span: Duration) -> Self;
    fn group(self, name: &str) -> Self;
    fn report_wait_after(self, span: Duration) -> Self;
    fn lock(&self) -> impl Future<Output = Result<Self::Guard>> + Send;
    fn try_lock(&self) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;
    fn try_lock_for(
        &self,
        wait: Duration,
    ) -> impl Future<Output = Result<Option<Self::Guard>>> + Send;
    fn busy(&self) -> impl Future<Output = Result<Option<Busy>>> + Send;
    fn is_locked(&self) -> impl Future<Output = Result<bool>> + Send;
    fn force_unlock(&self) -> impl Future<Output = Result<bool>> + Send;
}

/// Whether an error or a loss names this lock: the affected member, or all members.
pub(crate) fn names_it<P: Primitive>(name: &str, said: Option<&str>) -> bool {
    let names = P::names(name);
    said.is_some_and(|said| names.iter().any(|name| name == said) || said == names.join(", "))
}

macro_rules! primitive {
    ($lock:ident, $guard:ident, $rival:ident, shared: $shared:expr, at_server: $at_server:expr, $rights:expr, $of:expr) => {
        impl Primitive for $lock {
            type Guard = $guard;
            type Rival = $rival;
            const IS_SHARED: bool = $shared;
            const QUEUES_AT_SERVER: bool = $at_server;
            const RIGHTS: &[&str] = $rights;

            fn of(client: &Client, name: &str) -> Self {
                let of: fn(&Client, &str) -> Self = $of;
                of(client, name)
            }
            fn owner(self, owner: &Owner) -> Self {
                Lock::owner(self, owner)
            }
            fn lease(self, lease: Duration) -> Self {
                Lock::lease(self, lease)
            }
            fn fixed_lease(self, lease: Duration) -> Self {
                Lock::fixed_lease(self, lease)
            }
            fn at_least(self, span: Duration) -> Self {
                Lock::at_least(self, span)
            }
            fn max_hold(self, span: Duration) -> Self {
                Lock::max_hold(self, span)
            }
            fn fenced(self) -> Self {
                Lock::fenced(self)
            }
            fn give_up_after(self, span: Duration) -> Self {
                $lock::give_up_after(self, span)
            }
            fn group(self, name: &str) -> Self {
                Lock::group(self, name)
            }
            fn report_wait_after(self, span: Duration) -> Self {
                $lock::report_wait_after(self, span)
            }
            async fn lock(&self) -> Result<Self::Guard> {
                Lock::lock(self).await
            }
            async fn try_lock(&self) -> Result<Option<Self::Guard>> {
                Lock::try_lock(self).await
            }
            async fn try_lock_for(&self, wait: Duration) -> Result<Option<Self::Guard>> {
                Lock::try_lock_for(self, wait).await
            }
            async fn busy(&self) -> Result<Option<Busy>> {
                Lock::busy(self).await
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

const FAIR_RIGHTS: &[&str] = &["fair locks, also"];
const RW_RIGHTS: &[&str] = &["read-write locks, also"];
const QUORUM_RIGHTS: &[&str] = &["a `Redlock`, also"];

primitive!(ReentrantLock, ReentrantGuard, ReentrantLock, shared: false, at_server: false, &[], |client, name| {
    client.lock(name)
});
primitive!(FairLock, FairGuard, FairLock, shared: false, at_server: true, FAIR_RIGHTS, |client, name| {
    client.fair_lock(name)
});
primitive!(ReadSide, ReadGuard, WriteSide, shared: true, at_server: false, RW_RIGHTS, |client, name| {
    client.rw_lock(name).read_side()
});
primitive!(WriteSide, WriteGuard, WriteSide, shared: false, at_server: false, RW_RIGHTS, |client, name| {
    client.rw_lock(name).write_side()
});
// A quorum of one server. Features of several servers have separate tests.
primitive!(RedlockLock, RedlockGuard, RedlockLock, shared: false, at_server: false, QUORUM_RIGHTS, |client, name| {
    let redlock = Redlock::builder([client.clone()]).persistent_nodes();
    redlock.build().expect("a single server").lock(name)
});

/// A multi-lock with a member of each kind, and substitutes for two features it lacks as a
/// primitive: a query of all members at once, and invalid names that the first call reports.
#[derive(Clone)]
pub(crate) struct Multi {
    lock: Result<MultiLock>,
    reentrant: ReentrantLock,
    fair: FairLock,
    read: ReadSide,
    write: WriteSide,
}

impl Multi {
    fn lock(&self) -> Result<&MultiLock> {
        self.lock.as_ref().map_err(Clone::clone)
    }

    fn with(self, option: impl FnOnce(MultiLock) -> MultiLock) -> Self {
        Self {
            lock: self.lock.map(option),
            ..self
        }
    }
}

/// Whether any of them is true.
fn any((a, b, c, d): (Result<bool>, Result<bool>, Result<bool>, Result<bool>)) -> Result<bool> {
    Ok(a? | b? | c? | d?)
}

impl Primitive for Multi {
    type Guard = MultiGuard;
    type Rival = Self;
    const RIGHTS: &[&str] = &["fair locks, also", "read-write locks, also"];

    fn of(client: &Client, name: &str) -> Self {
        let [first, fair, read, write] = member_names(name);
        let reentrant = client.lock(first);
        let fair = client.fair_lock(fair);
        let read = client.rw_lock(read).read_side();
        let write = client.rw_lock(write).write_side();
        let members = [
            Member::from(&reentrant),
            Member::from(&fair),
            Member::from(&read),
            Member::from(&write),
        ];
        Self {
            lock: MultiLock::new(members),
            reentrant,
            fair,
            read,
            write,
        }
    }
    fn names(name: &str) -> Vec<String> {
        member_names(name).into()
    }
    fn owner(self, owner: &Owner) -> Self {
        self.with(|lock| lock.owner(owner))
    }
    fn lease(self, lease: Duration) -> Self {
        self.with(|lock| lock.lease(lease))
    }
    fn fixed_lease(self, lease: Duration) -> Self {
        self.with(|lock| lock.fixed_lease(lease))
    }
    fn at_least(self, span: Duration) -> Self {
        self.with(|lock| lock.at_least(span))
    }
    fn max_hold(self, span: Duration) -> Self {
        self.with(|lock| lock.max_hold(span))
    }
    fn fenced(self) -> Self {
        self.with(MultiLock::fenced)
    }
    fn give_up_after(self, span: Duration) -> Self {
        Self {
            reentrant: self.reentrant.give_up_after(span),
            fair: self.fair.give_up_after(span),
            read: self.read.give_up_after(span),
            write: self.write.give_up_after(span),
            lock: self.lock.map(|lock| lock.give_up_after(span)),
        }
    }
    fn group(self, name: &str) -> Self {
        self.with(|lock| lock.group(name))
    }
    fn report_wait_after(self, span: Duration) -> Self {
        self.with(|lock| lock.report_wait_after(span))
    }
    async fn lock(&self) -> Result<MultiGuard> {
        self.lock()?.lock().await
    }
    async fn try_lock(&self) -> Result<Option<MultiGuard>> {
        self.lock()?.try_lock().await
    }
    async fn try_lock_for(&self, wait: Duration) -> Result<Option<MultiGuard>> {
        self.lock()?.try_lock_for(wait).await
    }
    async fn busy(&self) -> Result<Option<Busy>> {
        self.lock()?.busy().await
    }
    async fn is_locked(&self) -> Result<bool> {
        any(tokio::join!(
            self.reentrant.is_locked(),
            self.fair.is_locked(),
            self.read.is_locked(),
            self.write.is_locked(),
        ))
    }
    async fn force_unlock(&self) -> Result<bool> {
        any(tokio::join!(
            self.reentrant.force_unlock(),
            self.fair.force_unlock(),
            self.read.force_unlock(),
            self.write.force_unlock(),
        ))
    }
}

/// In the order of the members, starting with `name`.
fn member_names(name: &str) -> [String; 4] {
    ["", ":fair", ":read", ":write"].map(|suffix| format!("{name}{suffix}"))
}

/// Instantiates each generic test for every primitive, in a module named after the test. A new
/// primitive is one more line here.
///
/// - `"multi_thread": a b` makes tests of `a::<P>` and `b::<P>` on that kind of runtime;
/// - `; of_one_name: c` at the end adds a test for locks with a single name;
/// - `@in World, ...` in front makes tests of `a::<P, World>`;
/// - `@name Lock, [], ...` in front, or `@name Lock, [World], ...`, makes tests of one lock, in a module `name`.
macro_rules! for_every_primitive {
    (@in $world:ident, $flavor:tt: $($test:ident)* ; of_one_name: $($single:ident)*) => {
        $crate::primitive::for_every_primitive!(@singles [super::$world], $flavor: $($test)* $($single)*);
        $crate::primitive::for_every_primitive!(
            @multi $crate::primitive::Multi, [super::$world], $flavor: $($test)*
        );
    };
    ($flavor:tt: $($test:ident)*) => {
        $crate::primitive::for_every_primitive!(@singles [], $flavor: $($test)*);
        $crate::primitive::for_every_primitive!(
            @multi $crate::primitive::Multi, [], $flavor: $($test)*
        );
    };
    (@singles $world:tt, $flavor:tt: $($test:ident)*) => {
        $crate::primitive::for_every_primitive!(
            @reentrant lockset::ReentrantLock, $world, $flavor: $($test)*
        );
        $crate::primitive::for_every_primitive!(
            @fair lockset::FairLock, $world, $flavor: $($test)*
        );
        $crate::primitive::for_every_primitive!(
            @read lockset::ReadSide, $world, $flavor: $($test)*
        );
        $crate::primitive::for_every_primitive!(
            @write lockset::WriteSide, $world, $flavor: $($test)*
        );
    };
    (@$primitive:ident $lock:ty, $world:tt, $flavor:tt: $($test:ident)* ; of_one_name: $($single:ident)*) => {
        $crate::primitive::for_every_primitive!(@$primitive $lock, $world, $flavor: $($test)* $($single)*);
    };
    (@$primitive:ident $lock:ty, $world:tt, $flavor:tt: $($test:ident)*) => {
        mod $primitive {
            $($crate::primitive::test_of!($test, $lock, $world, $flavor);)*
        }
    };
}

/// Instantiates a generic test, which may also be generic over the world.
macro_rules! test_of {
    ($test:ident, $lock:ty, [], $flavor:tt) => {
        #[tokio::test(flavor = $flavor)]
        async fn $test() {
            super::$test::<$lock>().await;
        }
    };
    ($test:ident, $lock:ty, [$world:ty], $flavor:tt) => {
        #[tokio::test(flavor = $flavor)]
        async fn $test() {
            super::$test::<$lock, $world>().await;
        }
    };
}

pub(crate) use {for_every_primitive, test_of};

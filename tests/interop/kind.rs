//! The kinds of lock that both sides have, under one name.

use std::time::Duration;

use lockset::{
    Client, FairGuard, FairLock, FencingToken, Holder, LostReason, Member, MultiGuard, MultiLock,
    ReadGuard, ReadSide, ReentrantGuard, ReentrantLock, Result, WriteGuard, WriteSide,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Lock,
    Fenced,
    Fair,
    Read,
    Write,
    /// A multi-lock with one member of each other kind.
    Multi,
}

impl Kind {
    pub(crate) fn of(word: &str) -> Self {
        let all = [
            Self::Lock,
            Self::Fenced,
            Self::Fair,
            Self::Read,
            Self::Write,
            Self::Multi,
        ];
        all.into_iter().find(|kind| kind.word() == word).unwrap()
    }

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Lock => "lock",
            Self::Fenced => "fenced",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
            Self::Multi => "multi",
        }
    }

    /// The kind that excludes this one.
    pub(crate) fn rival(self) -> Self {
        match self {
            Self::Read => Self::Write,
            other => other,
        }
    }

    /// The description of this lock for the Java side.
    pub(crate) fn java(self, name: &str) -> String {
        match self {
            Self::Multi => {
                let members =
                    Self::members().map(|kind| format!("{}={}", kind.word(), kind.member(name)));
                format!("multi {}", members.join(","))
            }
            kind => format!("{} {name}", kind.word()),
        }
    }

    /// Creates the lock in Rust.
    pub(crate) fn rust(self, client: &Client, name: &str) -> Lock {
        match self {
            Self::Lock => Lock::Reentrant(client.lock(name)),
            Self::Fenced => Lock::Reentrant(client.lock(name).fenced()),
            Self::Fair => Lock::Fair(client.fair_lock(name)),
            Self::Read => Lock::Read(client.rw_lock(name).read_side()),
            Self::Write => Lock::Write(client.rw_lock(name).write_side()),
            Self::Multi => {
                let member = |kind: Self| match kind.rust(client, &kind.member(name)) {
                    Lock::Reentrant(lock) => Member::from(lock),
                    Lock::Fair(lock) => Member::from(lock),
                    Lock::Read(lock) => Member::from(lock),
                    Lock::Write(lock) => Member::from(lock),
                    Lock::Multi(_) => unreachable!("a member is one lock"),
                };
                Lock::Multi(MultiLock::new(Self::members().map(member)).unwrap())
            }
        }
    }

    pub(crate) fn members() -> [Self; 5] {
        [
            Self::Lock,
            Self::Fenced,
            Self::Fair,
            Self::Read,
            Self::Write,
        ]
    }

    /// The name of the multi-lock's member of this kind.
    pub(crate) fn member(self, name: &str) -> String {
        format!("{name}-{}", self.word())
    }

    /// The key of a lock of this kind, or of one member of a multi-lock.
    pub(crate) fn key(self, name: &str) -> String {
        match self {
            Self::Multi => Self::Lock.member(name),
            _ => name.to_owned(),
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) enum Lock {
    Reentrant(ReentrantLock),
    Fair(FairLock),
    Read(ReadSide),
    Write(WriteSide),
    Multi(MultiLock),
}

#[derive(Debug)]
pub(crate) enum Guard {
    Reentrant(ReentrantGuard),
    Fair(FairGuard),
    Read(ReadGuard),
    Write(WriteGuard),
    Multi(MultiGuard),
}

/// Evaluates an expression for every variant.
macro_rules! each {
    ($self:expr, $inner:ident => $work:expr) => {
        match $self {
            Self::Reentrant($inner) => $work,
            Self::Fair($inner) => $work,
            Self::Read($inner) => $work,
            Self::Write($inner) => $work,
            Self::Multi($inner) => $work,
        }
    };
}

/// Evaluates an expression for every lock variant and wraps the result in the matching guard
/// variant.
macro_rules! guard {
    ($self:expr, $inner:ident => $work:expr, $then:ident) => {
        match $self {
            Self::Reentrant($inner) => $work.$then(Guard::Reentrant),
            Self::Fair($inner) => $work.$then(Guard::Fair),
            Self::Read($inner) => $work.$then(Guard::Read),
            Self::Write($inner) => $work.$then(Guard::Write),
            Self::Multi($inner) => $work.$then(Guard::Multi),
        }
    };
}

impl Lock {
    pub(crate) async fn lock(&self) -> Guard {
        guard!(self, lock => lock.lock().await, map).unwrap()
    }

    pub(crate) async fn try_lock(&self) -> Option<Guard> {
        guard!(self, lock => lock.try_lock().await.unwrap(), map)
    }

    pub(crate) async fn try_lock_for(&self, wait: Duration) -> Option<Guard> {
        guard!(self, lock => lock.try_lock_for(wait).await.unwrap(), map)
    }

    /// All holders of the lock.
    pub(crate) async fn holders(&self) -> Vec<Holder> {
        match self {
            Self::Reentrant(lock) => Vec::from_iter(lock.holder().await.unwrap()),
            Self::Fair(lock) => Vec::from_iter(lock.holder().await.unwrap()),
            Self::Read(lock) => lock.holders().await.unwrap(),
            Self::Write(lock) => Vec::from_iter(lock.holder().await.unwrap()),
            Self::Multi(_) => unreachable!("its members have holders"),
        }
    }

    pub(crate) async fn force_unlock(&self) -> bool {
        match self {
            Self::Reentrant(lock) => lock.force_unlock().await,
            Self::Fair(lock) => lock.force_unlock().await,
            Self::Read(lock) => lock.force_unlock().await,
            Self::Write(lock) => lock.force_unlock().await,
            Self::Multi(_) => unreachable!("its members are freed one by one"),
        }
        .unwrap()
    }
}

impl Guard {
    pub(crate) async fn reenter(&self) -> Self {
        guard!(self, guard => guard.reenter().await, map).unwrap()
    }

    pub(crate) fn hold_count(&self) -> u32 {
        each!(self, guard => guard.hold_count())
    }

    pub(crate) fn token(&self) -> Option<FencingToken> {
        each!(self, guard => guard.fencing_token())
    }

    pub(crate) fn is_lost(&self) -> bool {
        each!(self, guard => guard.is_lost())
    }

    pub(crate) async fn lost(&self) -> LostReason {
        each!(self, guard => guard.lost().await)
    }

    pub(crate) async fn release(self) -> Result<()> {
        each!(self, guard => guard.release().await)
    }
}

/// Makes each generic test a test per kind, in a module named after the test.
macro_rules! for_kinds {
    ($($test:ident: $($kind:ident)*;)*) => {
        $(
            mod $test {
                $(
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    #[ignore = "needs a JDK: make interop"]
                    async fn $kind() {
                        super::$test($crate::kind::Kind::of(stringify!($kind))).await;
                    }
                )*
            }
        )*
    };
}

pub(crate) use for_kinds;

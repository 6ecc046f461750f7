//! A lock whose kind is chosen at run time, such as by a setting.
//!
//! Kinds differ in the protocol and the mode of their handles only, so this is the handle of the kind that was chosen.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::guard::guard_methods;
use crate::api::handle::Handle;
use crate::api::verbs::{holder_methods, option_methods, verb_methods};
use crate::client::Client;
use crate::engine::hold::Share;
use crate::fair::FairLock;
use crate::reentrant::ReentrantLock;
use crate::rwlock::{ReadSide, WriteSide};

impl Client {
    /// A handle on the lock called `name`, of a kind that is chosen at run time. Names are as for [`lock`](Self::lock).
    ///
    /// All processes that share the name must choose the same kind, apart from the two sides of a read-write lock.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let kind = std::env::var("DESK_LOCK").unwrap_or("fair".to_owned());
    /// let guard = client.any_lock(kind.parse()?, "desk:1").lock().await?;
    /// guard.release().await?;
    /// # Ok(()) }
    /// ```
    pub fn any_lock(&self, kind: LockKind, name: impl AsRef<str>) -> AnyLock {
        match kind {
            LockKind::Reentrant => self.lock(name).into(),
            LockKind::Fair => self.fair_lock(name).into(),
            LockKind::Read => self.rw_lock(name).read_side().into(),
            LockKind::Write => self.rw_lock(name).write_side().into(),
        }
    }
}

/// A kind of lock, for [`Client::any_lock`]. Its text is `reentrant`, `fair`, `read` or `write`, also for the feature
/// `serde`.
///
/// ```
/// use lockset::LockKind;
///
/// assert_eq!("fair".parse::<LockKind>().unwrap(), LockKind::Fair);
/// assert_eq!(LockKind::Write.to_string(), "write");
/// assert!("spin".parse::<LockKind>().unwrap_err().is_invalid());
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum LockKind {
    /// A [`ReentrantLock`](crate::ReentrantLock).
    #[default]
    Reentrant,
    /// A [`FairLock`](crate::FairLock).
    Fair,
    /// The [read side](crate::RwLock::read_side) of a read-write lock.
    Read,
    /// The [write side](crate::RwLock::write_side) of a read-write lock.
    Write,
}

impl LockKind {
    const ALL: [Self; 4] = [Self::Reentrant, Self::Fair, Self::Read, Self::Write];

    fn text(self) -> &'static str {
        match self {
            Self::Reentrant => "reentrant",
            Self::Fair => "fair",
            Self::Read => "read",
            Self::Write => "write",
        }
    }
}

impl fmt::Display for LockKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.text())
    }
}

/// Parses the text that [`Display`](fmt::Display) writes.
impl FromStr for LockKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let kind = Self::ALL.into_iter().find(|kind| kind.text() == text);
        kind.ok_or_else(|| {
            let message = format!(
                "there is no kind of lock called {text:?}; use reentrant, fair, read or write"
            );
            Error::invalid("any_lock", message)
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for LockKind {
    fn serialize<S: serde::Serializer>(
        &self,
        serializer: S,
    ) -> std::result::Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text())
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for LockKind {
    fn deserialize<D: serde::Deserializer<'de>>(
        deserializer: D,
    ) -> std::result::Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// A lock of a kind that is chosen at run time; from [`Client::any_lock`], or from a handle of that kind.
///
/// A handle: cheap to make and to clone, it holds nothing. It behaves as the handle of its [kind](Self::kind). Locks of
/// several kinds go into one list, and each is a [`Lock`](crate::Lock) and a [`Member`](crate::Member).
/// [`holder`](Self::holder) of a lock that is read is one of its readers. Of a read-write lock,
/// [`is_locked`](Self::is_locked), [`holder`](Self::holder) and [`force_unlock`](Self::force_unlock) are about the side of
/// the kind alone: for [`LockKind::Write`] a lock that only readers have is not locked, and they keep it.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// use lockset::AnyLock;
///
/// let locks: [AnyLock; 2] = [client.lock("order:7").into(), client.fair_lock("desk:1").into()];
/// for lock in &locks {
///     println!("{} ({}): {}", lock.name(), lock.kind(), lock.is_locked().await?);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
#[must_use = "a handle does nothing until one of its verbs is awaited"]
pub struct AnyLock(pub(crate) Handle, LockKind);

option_methods!(AnyLock);
verb_methods!(AnyLock, AnyGuard);
holder_methods!(AnyLock);

impl AnyLock {
    /// The kind of the lock.
    #[must_use]
    pub fn kind(&self) -> LockKind {
        self.1
    }
}

macro_rules! any_lock {
    ($($lock:ident $kind:ident)*) => {
        $(
            impl From<$lock> for AnyLock {
                fn from(lock: $lock) -> Self {
                    Self(lock.0, LockKind::$kind)
                }
            }
        )*
    };
}

any_lock!(ReentrantLock Reentrant FairLock Fair ReadSide Read WriteSide Write);

/// One hold on an [`AnyLock`]; dropping it releases in the background.
///
/// **A program that ends right after the drop leaves the lock held** until its lease ends. End with
/// [`release`](Self::release), or with [`Client::shutdown`](crate::Client::shutdown), which waits for the
/// releases of dropped guards.
#[must_use = "if unused the lock is released at once"]
#[clippy::has_significant_drop]
pub struct AnyGuard(Share);

guard_methods!(AnyGuard);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_its_text_wherever_it_goes() {
        for kind in LockKind::ALL {
            assert_eq!(kind.to_string().parse::<LockKind>().unwrap(), kind);
        }
        let error = "".parse::<LockKind>().unwrap_err();
        assert!(error.is_invalid(), "{error}");
    }

    #[cfg(feature = "serde")]
    #[test]
    fn a_kind_is_a_text_of_json() {
        for kind in LockKind::ALL {
            let json = serde_json::to_string(&kind).unwrap();
            assert_eq!(json, format!("\"{kind}\""));
            assert_eq!(serde_json::from_str::<LockKind>(&json).unwrap(), kind);
        }
        assert!(serde_json::from_str::<LockKind>("\"spin\"").is_err());
    }
}

//! The holder of a lock: as the server shows it, by its id, in the way of a call that got no lock, and as the owner that
//! asks for a lock.
//!
//! An owner is a value that is passed, never a thread or a task: the branches of one `join!` share a task, and a future
//! may change its thread at any await. The server does not know owners. It knows holder ids, and each hold has a new id.

use std::fmt::{self, Debug};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::engine::clock::Rounded;

/// The holder of a lock, as the server saw it; from [`holder`](crate::ReentrantLock::holder).
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// if let Some(holder) = client.lock("report").holder().await? {
///     println!("{} has it for {:?} more, unless renewed", holder.id, holder.remaining);
/// }
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The holder id, equal to [`holder_id`](crate::ReentrantGuard::holder_id) of its guard. Opaque. It is
    /// new each time the server grants the lock, and stays while the lock is handed off between tasks of one
    /// client.
    pub id: String,
    /// The count at the server. 1 for a holder of this library, however often its owner has entered: re-entries are
    /// counted in its client. Redisson counts each of them here.
    pub hold_count: u32,
    /// The time left of the lease by the server's clock; [`Duration::MAX`] if the key never expires, which no client of
    /// lockset or Redisson causes.
    pub remaining: Duration,
}

/// The identity that asks for a lock.
///
/// A call for an owner that already holds the lock enters it again at once instead of waiting. Clones are the
/// same owner and share the right to enter again; each [`Owner::new`] is a new one. An owner means something
/// inside this process only: the server knows a holder id, which is new each time the lock is granted there.
///
/// ```
/// use lockset::Owner;
///
/// let me = Owner::new();
/// assert_eq!(me, me.clone());
/// assert_ne!(me, Owner::new());
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Owner(u64);

impl Owner {
    /// A new owner, different from every other.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let me = lockset::Owner::new();
    /// let outer = client.lock("order:7").owner(&me).lock().await?;
    /// let inner = client.lock("order:7").owner(&me).lock().await?; // does not wait
    /// assert_eq!(inner.hold_count(), 2);
    /// # drop(outer); Ok(()) }
    /// ```
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default suggests a common value, and every owner is a new one"
    )]
    pub fn new() -> Self {
        #[cfg(test)]
        if let Some(owner) = NUMBERED.with_borrow_mut(std::collections::VecDeque::pop_front) {
            return owner;
        }
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

#[cfg(test)]
thread_local! {
    /// The next owners that [`Owner::new`] returns on this thread.
    static NUMBERED: std::cell::RefCell<std::collections::VecDeque<Owner>> = const {
        std::cell::RefCell::new(std::collections::VecDeque::new())
    };
}

#[cfg(test)]
impl Owner {
    /// Has [`Owner::new`] return these on this thread.
    pub(crate) fn number_next(owners: impl Iterator<Item = Self>) {
        NUMBERED.set(owners.collect());
    }

    /// Returns an owner with the same number in each run, which no call of [`Owner::new`] makes.
    pub(crate) fn numbered(number: u32) -> Self {
        Self(u64::MAX - u64::from(number))
    }
}

/// A UUID, a colon and the longest number take 57 bytes.
const BYTES_MAX: usize = 63;

/// A holder id: Redisson's `uuid:number`. Kept by value, because each hold has a new id.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct HolderId {
    bytes: [u8; BYTES_MAX],
    length: u8,
}

impl HolderId {
    /// Returns the id of this client's hold with this number.
    ///
    /// # Panics
    /// If the id of the client is longer than 42 bytes.
    pub(crate) fn new(client: &str, number: u64) -> Self {
        // Without `fmt`, because each call makes a new id.
        let mut digits = itoa::Buffer::new();
        let number = digits.format(number);
        let mut bytes = [0; BYTES_MAX];
        let before = client.len() + 1;
        let length = before + number.len();
        bytes[..before - 1].copy_from_slice(client.as_bytes());
        bytes[before - 1] = b':';
        bytes[before..length].copy_from_slice(number.as_bytes());
        Self {
            bytes,
            length: u8::try_from(length).expect("a length below 64"),
        }
    }

    /// Reads an id that the server sent. `None` if it is longer than any id of a client of lockset.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut bytes = [0; BYTES_MAX];
        bytes
            .get_mut(..text.len())?
            .copy_from_slice(text.as_bytes());
        let length = u8::try_from(text.len()).ok()?;
        Some(Self { bytes, length })
    }

    /// Returns the text as bytes, for callers that need no `str`.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.length)]
    }
}

impl Deref for HolderId {
    type Target = str;

    fn deref(&self) -> &str {
        let text = str::from_utf8(self.as_bytes());
        text.expect("it was made of text")
    }
}

impl Debug for HolderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Debug::fmt(&**self, f)
    }
}

/// A lock that others hold, and its holder; from [`busy`](crate::ReentrantLock::busy) and
/// [`with`](crate::ReentrantLock::with).
///
/// It is an error type of its own and converts into [`Error`](crate::Error), for functions that fail when they do not
/// get their lock.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// let lock = client.lock("report");
/// let Some(guard) = lock.try_lock().await? else {
///     if let Some(busy) = lock.busy().await? {
///         println!("{busy}"); // lock "report" is held by 8f0c..:17, for 12.3s more unless it is renewed
///     }
///     return Ok(());
/// };
/// guard.release().await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Busy {
    /// The name of the lock that others hold, as it was given to the client. Of several locks, the first that is held.
    pub lock: String,
    /// The holder id of the lock, equal to [`holder_id`](crate::ReentrantGuard::holder_id) of its guard. `None` if the
    /// lock had become free when the server was asked, or the server did not say.
    ///
    /// Of several readers, the reader whose lease lasts longest.
    pub holder: Option<String>,
    /// The time left of that holder's lease. The lease may be renewed, so this is no promise. `None` as for
    /// [`holder`](Self::holder).
    pub remaining: Option<Duration>,
    /// Whether the holder belongs to the client that asked: another task of the program, the owner that asked, or a hold
    /// that stays with the client by `sticky` or is left by `at_least`.
    pub by_this_client: bool,
    /// The kind of the thing with this name: a lock, or a semaphore.
    pub(crate) what: &'static str,
}

impl Busy {
    pub(crate) fn new(lock: &str) -> Self {
        Self {
            lock: lock.to_owned(),
            holder: None,
            remaining: None,
            by_this_client: false,
            what: "lock",
        }
    }

    pub(crate) fn held_by(lock: &str, holder: String, remaining: Duration) -> Self {
        Self {
            holder: Some(holder),
            remaining: Some(remaining),
            ..Self::new(lock)
        }
    }

    /// Notes whether the holder belongs to the client with this id. Its holder ids begin with the id.
    pub(crate) fn seen_by(mut self, client: &str) -> Self {
        let behind = self
            .holder
            .as_deref()
            .and_then(|id| id.strip_prefix(client));
        self.by_this_client |= behind.is_some_and(|rest| rest.starts_with(':'));
        self
    }

    /// Returns the description without the name of the lock.
    pub(crate) fn says(&self) -> String {
        let who = match &self.holder {
            Some(holder) if self.by_this_client => {
                format!("held by this client ({holder})")
            }
            Some(holder) => format!("held by {holder}"),
            None => "held elsewhere, or others come first".to_owned(),
        };
        match self.remaining {
            Some(Duration::MAX) | None => who,
            Some(remaining) => {
                format!(
                    "{who}, for {} more unless it is renewed",
                    Rounded(remaining)
                )
            }
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted, so that a name with line breaks cannot forge a line of a log.
        write!(f, "{} {:?} is {}", self.what, self.lock, self.says())
    }
}

impl std::error::Error for Busy {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_reads_as_redisson_writes_it() {
        for number in [0, 7, 9, 10, 99, 100, 1_234_567_890, u64::MAX] {
            let client = "6f2a5b0e-6f0f-4f0e-9b7e-2f1c6e5a9d10";
            assert_eq!(
                &*HolderId::new(client, number),
                format!("{client}:{number}")
            );
        }
    }

    #[test]
    fn it_says_who_and_for_how_long() {
        let held = Busy::held_by("a\nb", "id:7".to_owned(), Duration::from_micros(1_500_700));
        assert_eq!(
            held.to_string(),
            r#"lock "a\nb" is held by id:7, for 1.5s more unless it is renewed"#
        );
        let own = held.clone().seen_by("id").to_string();
        assert_eq!(
            own,
            r#"lock "a\nb" is held by this client (id:7), for 1.5s more unless it is renewed"#
        );
        assert_eq!(held.clone().seen_by("i"), held, "another client");
        let gone = Busy::new("a").to_string();
        assert_eq!(gone, r#"lock "a" is held elsewhere, or others come first"#);
    }
}

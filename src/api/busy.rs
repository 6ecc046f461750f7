//! The holder in the way of a call that got no lock.

use std::fmt;
use std::time::Duration;

use crate::engine::clock::Rounded;

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
    /// Whether the holder is another owner of the client that asked, such as another task of the same program.
    pub by_this_client: bool,
}

impl Busy {
    pub(crate) fn new(lock: &str) -> Self {
        Self {
            lock: lock.to_owned(),
            holder: None,
            remaining: None,
            by_this_client: false,
        }
    }

    pub(crate) fn held_by(lock: &str, holder: String, remaining: Duration) -> Self {
        Self {
            lock: lock.to_owned(),
            holder: Some(holder),
            remaining: Some(remaining),
            by_this_client: false,
        }
    }

    /// Notes whether the holder belongs to the client with this id, as its holder ids begin with it.
    pub(crate) fn seen_by(mut self, client: &str) -> Self {
        let behind = self
            .holder
            .as_deref()
            .and_then(|id| id.strip_prefix(client));
        self.by_this_client |= behind.is_some_and(|rest| rest.starts_with(':'));
        self
    }

    /// The description without the name of the lock.
    pub(crate) fn says(&self) -> impl fmt::Display + '_ {
        Says(self)
    }
}

struct Says<'a>(&'a Busy);

impl fmt::Display for Says<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Busy {
            holder, remaining, ..
        } = self.0;
        match holder {
            Some(holder) if self.0.by_this_client => {
                write!(f, "held by this client, by another owner ({holder})")?;
            }
            Some(holder) => write!(f, "held by {holder}")?,
            None => f.write_str("held elsewhere, or others come first")?,
        }
        match remaining {
            Some(Duration::MAX) | None => Ok(()),
            Some(remaining) => {
                write!(f, ", for {} more unless it is renewed", Rounded(*remaining))
            }
        }
    }
}

impl fmt::Display for Busy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Quoted, so that a name with line breaks cannot forge a line of a log.
        write!(f, "lock {:?} is {}", self.lock, self.says())
    }
}

impl std::error::Error for Busy {}

#[cfg(test)]
mod tests {
    use super::*;

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
            r#"lock "a\nb" is held by this client, by another owner (id:7), for 1.5s more unless it is renewed"#
        );
        assert_eq!(held.clone().seen_by("i"), held, "another client");
        let gone = Busy::new("a").to_string();
        assert_eq!(gone, r#"lock "a" is held elsewhere, or others come first"#);
    }
}

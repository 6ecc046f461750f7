//! The one error type.
//!
//! It is opaque: callers branch on its predicates or its kind, people read its message. A message names the lock and
//! the operation, and says what happened and what to do. Invariants: contention is never an error, and no message
//! contains a password.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use crate::api::holder::Busy;
use crate::api::loss::Lost;

/// The result of every fallible call of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of this crate: what went wrong, with which lock, during which operation.
///
/// Branch on the predicates (`is_io`, `is_not_held`, ...) and show the message to people. It never contains a
/// password.
///
/// ```no_run
/// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
/// match client.lock("report").try_lock().await {
///     Ok(Some(guard)) => guard.release().await?,
///     Ok(None) => println!("another process holds the lock"),
///     Err(error) if error.is_io() => println!("the server is unreachable: {error}"),
///     Err(error) => return Err(error),
/// }
/// # Ok(()) }
/// ```
#[derive(Clone)]
pub struct Error(Box<Inner>);

#[derive(Clone)]
struct Inner {
    kind: Kind,
    /// What the error is about: a lock or another synchronizer, and its name.
    subject: Option<(&'static str, String)>,
    operation: &'static str,
    message: String,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    busy: Option<Busy>,
    /// Whether the same call fails again until something is changed, although other errors of this kind may pass.
    is_lasting: bool,
}

/// The kind of an [`Error`], for the label of a metric or for a match over all kinds.
///
/// To decide what to do next, ask the predicates of [`Error`] instead: some are true of several kinds.
///
/// ```
/// use lockset::{Error, ErrorKind};
///
/// fn label(error: &Error) -> &'static str {
///     match error.kind() {
///         ErrorKind::Io | ErrorKind::Refused => "server",
///         ErrorKind::Quorum => "quorum",
///         ErrorKind::NotHeld => "lost",
///         _ => "other",
///     }
/// }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// A name, option, URL or server that cannot work: [`Error::is_invalid`].
    Invalid,
    /// The server rejected the credentials, or the user lacks a right: [`Error::is_denied`].
    Denied,
    /// The key holds something that is not a lock of this kind: [`Error::is_wrong_type`].
    WrongType,
    /// An owner that holds the read lock asked for the write lock: [`Error::is_upgrade`].
    Upgrade,
    /// The hold was lost before the call: [`Error::is_not_held`].
    NotHeld,
    /// The server is unreachable, or did not answer in time: [`Error::is_io`].
    Io,
    /// The server answered that it cannot do this now: [`Error::is_refused`].
    Refused,
    /// The client was shut down, or its runtime has ended: [`Error::is_closed`].
    Closed,
    /// Too few independent servers agreed: [`Error::is_quorum`].
    Quorum,
    /// Too few replicas confirmed the grant in time: [`Error::is_not_replicated`].
    NotReplicated,
    /// Others hold the lock, and the caller made an error of it: [`Error::is_busy`].
    Busy,
    /// A party at a barrier died, could not reach the server, or gave up: [`Error::is_broken`].
    Broken,
}

pub(crate) use ErrorKind as Kind;

impl Error {
    pub(crate) fn new(kind: Kind, operation: &'static str, message: impl Into<String>) -> Self {
        Self(Box::new(Inner {
            kind,
            subject: None,
            operation,
            message: message.into(),
            source: None,
            busy: None,
            is_lasting: false,
        }))
    }

    /// Notes whether the same call fails again until something is changed.
    pub(crate) fn lasting(mut self, is_lasting: bool) -> Self {
        self.0.is_lasting = is_lasting;
        self
    }

    pub(crate) fn invalid(operation: &'static str, message: impl Into<String>) -> Self {
        Self::new(Kind::Invalid, operation, message)
    }

    /// Returns an [invalid](Self::invalid) error unless `works`.
    pub(crate) fn ensure(
        works: bool,
        operation: &'static str,
        message: impl FnOnce() -> String,
    ) -> Result<()> {
        match works {
            true => Ok(()),
            false => Err(Self::invalid(operation, message())),
        }
    }

    pub(crate) fn closed(operation: &'static str) -> Self {
        Self::new(
            Kind::Closed,
            operation,
            "the client was shut down; connect a new one",
        )
    }

    /// Makes the error of a client whose background task has ended.
    pub(crate) fn orphaned(operation: &'static str) -> Self {
        Self::new(
            Kind::Closed,
            operation,
            "the tokio runtime on which the client was built has ended, or the task of the client there has \
             panicked, so nothing is renewed or released any more; build a client on a runtime that outlives it",
        )
    }

    pub(crate) fn of_lock(self, name: &str) -> Self {
        self.about("lock", name)
    }

    pub(crate) fn about(mut self, what: &'static str, name: &str) -> Self {
        self.0.subject = Some((what, name.to_owned()));
        self
    }

    pub(crate) fn during(mut self, operation: &'static str) -> Self {
        self.0.operation = operation;
        self
    }

    /// Names the server that the error is about, if there are several.
    pub(crate) fn at(mut self, server: &str) -> Self {
        self.0.message = format!("{server}: {}", self.0.message);
        self
    }

    pub(crate) fn caused_by(mut self, source: impl StdError + Send + Sync + 'static) -> Self {
        self.0.source = Some(Arc::new(source));
        self
    }

    pub(crate) fn caused_by_any(
        self,
        source: Option<impl StdError + Send + Sync + 'static>,
    ) -> Self {
        match source {
            Some(source) => self.caused_by(source),
            None => self,
        }
    }

    /// The message without lock and operation.
    pub(crate) fn message(&self) -> &str {
        &self.0.message
    }

    /// The kind of this error.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        self.0.kind
    }

    /// The operation that failed: the name of the method, such as `"try_lock"` or `"release"`.
    ///
    /// It is `"connect"` while a [`Client`](crate::Client) is built or by
    /// [`Redlock::connect`](crate::Redlock::connect), and `"multi_lock"` or `"redlock"` while a
    /// [`MultiLock`](crate::MultiLock) or a [`Redlock`](crate::Redlock) is made from its parts. It is `"survey"`
    /// for all questions of the crate `lockset-operator`.
    #[must_use]
    pub fn operation(&self) -> &'static str {
        self.0.operation
    }

    /// The hold was lost before the call: its lease ended, or its holder was removed at the server.
    ///
    /// Work done under the lock may have overlapped with another holder.
    ///
    /// ```no_run
    /// # async fn doc(guard: lockset::ReentrantGuard) -> lockset::Result<()> {
    /// match guard.release().await {
    ///     Err(error) if error.is_not_held() => println!("check what was written: {error}"),
    ///     released => released?,
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_not_held(&self) -> bool {
        self.0.kind == Kind::NotHeld
    }

    /// The server could not be reached, or did not answer in time.
    ///
    /// The call may or may not have been executed. If it was, its effect at the server is undone in the background.
    #[must_use]
    pub fn is_io(&self) -> bool {
        self.0.kind == Kind::Io
    }

    /// Something given to the library cannot work: a name, an option, a URL, credentials, or a key that holds something
    /// else. The call fails again until that is changed. Never true for an error of a [quorum](Self::is_quorum).
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(
            self.0.kind,
            Kind::Invalid | Kind::Denied | Kind::WrongType | Kind::Upgrade
        )
    }

    /// The owner asked to write while it reads, and would have waited for itself.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let config = client.rw_lock("config").owner(&lockset::Owner::new());
    /// let reading = config.read().await?;
    /// assert!(config.write().await.unwrap_err().is_upgrade());
    /// # drop(reading); Ok(()) }
    /// ```
    #[must_use]
    pub fn is_upgrade(&self) -> bool {
        self.0.kind == Kind::Upgrade
    }

    /// The server rejected the credentials, or the user lacks a right. The message says which.
    #[must_use]
    pub fn is_denied(&self) -> bool {
        self.0.kind == Kind::Denied
    }

    /// The key of the lock holds something that is not a lock of this kind, such as an application's hash. It
    /// was not changed.
    ///
    /// A lock without a lease counts as something else too, except to its holder, whose next renewal repairs it. Only a
    /// `PERSIST` by hand makes such a lock.
    ///
    /// For an error of a [quorum](Self::is_quorum): whether this is why too few servers agreed.
    #[must_use]
    pub fn is_wrong_type(&self) -> bool {
        let of_quorum = || {
            let source = self.0.source.as_deref()?;
            Some(source.downcast_ref::<Self>()?.is_wrong_type())
        };
        match self.0.kind {
            Kind::WrongType => true,
            Kind::Quorum => of_quorum().unwrap_or(false),
            _ => false,
        }
    }

    /// The server answered that it cannot do this now: it is out of memory, busy, loading or read-only, or
    /// has [too few replicas](Self::is_not_replicated). Nothing was changed, or the change was undone. Also, a connection
    /// got no login from a [provider](crate::ClientBuilder::credentials), or one that the server rejects.
    #[must_use]
    pub fn is_refused(&self) -> bool {
        matches!(self.0.kind, Kind::Refused | Kind::NotReplicated)
    }

    /// The lock was granted, but too few replicas confirmed the grant in time, so it was released again. See
    /// [`ReentrantLock::replicated`].
    ///
    /// ```no_run
    /// # use std::time::Duration;
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// let lock = client.lock("report").replicated(1, Duration::from_millis(200));
    /// match lock.lock().await {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(error) if error.is_not_replicated() => println!("replicas lag behind: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    ///
    /// [`ReentrantLock::replicated`]: crate::ReentrantLock::replicated
    #[must_use]
    pub fn is_not_replicated(&self) -> bool {
        self.0.kind == Kind::NotReplicated
    }

    /// The client was shut down, or the tokio runtime on which it was built has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.0.kind == Kind::Closed
    }

    /// Too few of the independent servers of a [`Redlock`](crate::Redlock) agreed. The message lists the vote of each.
    #[must_use]
    pub fn is_quorum(&self) -> bool {
        self.0.kind == Kind::Quorum
    }

    /// A later call may succeed: the server was [unreachable](Self::is_io), could not do it [just
    /// then](Self::is_refused), or too few of [several](Self::is_quorum) could. It is false if most of several will refuse
    /// until something is changed, such as a right of the user.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) -> lockset::Result<()> {
    /// match client.lock("report").try_lock().await {
    ///     Ok(Some(guard)) => guard.release().await?,
    ///     Ok(None) => println!("another process holds the lock"),
    ///     Err(error) if error.is_transient() => println!("trying again tomorrow: {error}"),
    ///     Err(error) => return Err(error),
    /// }
    /// # Ok(()) }
    /// ```
    #[must_use]
    pub fn is_transient(&self) -> bool {
        self.is_io() || self.is_refused() || (self.is_quorum() && !self.0.is_lasting)
    }

    /// Others hold the lock. No method of this crate returns this error; they return `None` or a [`Busy`] instead. It
    /// is for functions that turn contention into an error, such as functions with the attribute `#[locked]`.
    ///
    /// It is not [transient](Self::is_transient): the call did what it should, and the caller decides whether to try
    /// again.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) {
    /// async fn rebuild(client: &lockset::Client) -> lockset::Result<()> {
    ///     let lock = client.lock("index");
    ///     let Some(guard) = lock.try_lock().await? else {
    ///         return match lock.busy().await? {
    ///             Some(busy) => Err(busy.into()),
    ///             None => Ok(()), // free by now
    ///         };
    ///     };
    ///     guard.release().await
    /// }
    /// match rebuild(&client).await {
    ///     Err(error) if error.is_busy() => println!("another process rebuilds it: {error}"),
    ///     rebuilt => rebuilt.expect("the index"),
    /// }
    /// # }
    /// ```
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.0.kind == Kind::Busy
    }

    /// A party of a [`Barrier`](crate::Barrier) died, could not reach the server for its lease, or gave up, so the round
    /// is over for all that waited with it. The message names the party.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        self.0.kind == Kind::Broken
    }

    /// The holder in the way, if [others hold the lock](Self::is_busy).
    #[must_use]
    pub fn busy(&self) -> Option<&Busy> {
        self.0.busy.as_ref()
    }

    /// The name of the lock as it was given to the client. If the error is about all locks of a
    /// [`MultiLock`](crate::MultiLock): their names, as `"a, b"`. `None` if it is about no lock.
    #[must_use]
    pub fn lock_name(&self) -> Option<&str> {
        self.0.subject.as_ref().map(|(_, name)| &**name)
    }
}

impl From<Busy> for Error {
    fn from(busy: Busy) -> Self {
        let message = format!("it is {}; wait longer, or try again later", busy.says());
        let operation = match busy.what {
            "semaphore" => "acquire",
            _ => "lock",
        };
        let mut error = Self::new(Kind::Busy, operation, message).about(busy.what, &busy.lock);
        error.0.busy = Some(busy);
        error
    }
}

impl From<Lost> for Error {
    fn from(lost: Lost) -> Self {
        let message = format!(
            "{}; the work was stopped, and what it had done may have overlapped with another holder",
            lost.reason()
        );
        Self::new(Kind::NotHeld, "run", message).about(lost.what(), lost.lock_name())
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some((what, name)) = &self.0.subject {
            // Quoted, so that a name with line breaks cannot forge a line of a log.
            write!(f, "{what} {name:?}: ")?;
        }
        write!(f, "{}: {}", self.0.operation, self.0.message)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error")
            .field("kind", &self.0.kind)
            .field("lock", &self.lock_name())
            .field("operation", &self.0.operation)
            .field("message", &self.0.message)
            .finish()
    }
}

impl StdError for Error {
    /// The error of the server or the socket; for a socket, a [`std::io::Error`].
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source: &(dyn StdError + 'static) = self.0.source.as_deref()?;
        Some(socket_error(source).unwrap_or(source))
    }
}

/// Returns the socket's error, which the client library keeps in a shared box.
fn socket_error<'a>(error: &'a (dyn StdError + 'static)) -> Option<&'a (dyn StdError + 'static)> {
    let kept = error.source()?;
    let kept = kept.downcast_ref::<Arc<dyn StdError + Send + Sync>>()?;
    let kept: &(dyn StdError + 'static) = &**kept;
    kept.is::<std::io::Error>().then_some(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_names_lock_and_operation_and_cannot_forge_a_line() {
        let error = Error::new(Kind::NotHeld, "release", "the lease ran out").of_lock("a\nb");
        assert_eq!(
            error.to_string(),
            "lock \"a\\nb\": release: the lease ran out"
        );
        assert_eq!(error.lock_name(), Some("a\nb"));
        assert!(error.is_not_held() && !error.is_io() && !error.is_invalid());
    }

    #[test]
    fn what_may_pass_is_transient() {
        let transient = [Kind::Io, Kind::Refused, Kind::Quorum, Kind::NotReplicated];
        for kind in [
            Kind::Invalid,
            Kind::Denied,
            Kind::WrongType,
            Kind::Upgrade,
            Kind::NotHeld,
            Kind::Io,
            Kind::Refused,
            Kind::Closed,
            Kind::Quorum,
            Kind::NotReplicated,
        ] {
            let error = Error::new(kind, "lock", "");
            assert_eq!(error.is_transient(), transient.contains(&kind), "{kind:?}");
        }
    }
}

//! Support code for the attribute `#[locked]`.
//!
//! Public only for the code that the attribute generates: as `lockset::__private`, hidden, and not part of the promised
//! API. Invariant: code that can stand here is not generated, so that expansions stay short and a compiler error names
//! one trait.

pub use std::format;
use std::future::Future;
use std::time::Duration;

use crate::api::error::{Error, Result};
use crate::api::fencing::FencingToken;
use crate::api::holder::Busy;
use crate::api::loss::Lost;
use crate::api::traits::{Guard, sealed};
use crate::client::Client;
pub use crate::multilock::Member;
use crate::multilock::MultiLock;
use crate::redlock::Redlock;
use crate::semaphore::SemaphoreGuard;

/// The return type of a function with `#[locked]`: a `Result` whose error can report why there was no lock.
#[diagnostic::on_unimplemented(
    message = "`#[locked]` needs a function that returns a `Result`, and this one returns `{Self}`",
    label = "acquiring a lock can fail",
    note = "write `Result<{Self}, E>`, where `E: From<lockset::Error>`"
)]
pub trait Outcome: Sized {
    /// Makes the return value from an error of the lock.
    fn failed(error: Error) -> Self;
}

impl<T, E: Failure> Outcome for std::result::Result<T, E> {
    fn failed(error: Error) -> Self {
        Err(E::of_lock(error))
    }
}

/// The error type of a function with `#[locked]`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not made from `lockset::Error`, and acquiring a lock can fail",
    label = "the error of a function with `#[locked]`",
    note = "write `impl From<lockset::Error> for {Self}`"
)]
pub trait Failure: Sized {
    /// Converts an error of the lock.
    fn of_lock(error: Error) -> Self;
}

#[diagnostic::do_not_recommend]
impl<E: From<Error>> Failure for E {
    fn of_lock(error: Error) -> Self {
        error.into()
    }
}

/// A receiver of a method that has a client.
#[diagnostic::on_unimplemented(
    message = "no client for this method: `{Self}` has none",
    label = "is not `AsRef<lockset::Client>`",
    note = "write one of\n\
            - `client = EXPR` in the attribute, like `client = self.locks`\n\
            - an argument of type `&lockset::Client`\n\
            - `impl AsRef<lockset::Client> for {Self}`"
)]
pub trait HasClient {
    /// Returns the client.
    fn client(&self) -> &Client;
}

#[diagnostic::do_not_recommend]
impl<T: AsRef<Client> + ?Sized> HasClient for T {
    fn client(&self) -> &Client {
        self.as_ref()
    }
}

/// The return type of a function with `busy = skip`.
#[diagnostic::on_unimplemented(
    message = "`busy = skip` returns `Ok(None)` if the lock is held, and this function returns `{Self}`",
    label = "write `Result<Option<T>, E>`"
)]
pub trait Skippable: Outcome {
    /// Returns `Ok(None)`.
    fn skipped() -> Self;
}

impl<T, E: Failure> Skippable for std::result::Result<Option<T>, E> {
    fn skipped() -> Self {
        Ok(None)
    }
}

/// The value of `busy = EXPR`: the error of the function, or its whole return value.
#[diagnostic::on_unimplemented(
    message = "`busy = ..` is the error of the function, or all that it returns; `{Self}` is neither",
    label = "this function returns `{R}`"
)]
pub trait WhenBusy<R> {
    /// Converts it to the return value of the function.
    fn outcome(self) -> R;
}

impl<T, E> WhenBusy<Self> for std::result::Result<T, E> {
    fn outcome(self) -> Self {
        self
    }
}

impl<T, E> WhenBusy<std::result::Result<T, E>> for E {
    fn outcome(self) -> std::result::Result<T, E> {
        Err(self)
    }
}

/// A guard of the attribute: of a lock or of permits.
pub trait Releasable {
    /// Releases what it holds.
    fn end(self) -> impl Future<Output = Result<()>> + Send;
}

impl<T: Guard> Releasable for T {
    async fn end(self) -> Result<()> {
        self.release().await
    }
}

impl Releasable for SemaphoreGuard {
    async fn end(self) -> Result<()> {
        self.release().await
    }
}

/// Fixes the return type of a block for type inference. Always `None`.
#[must_use]
pub fn returns<R: Outcome>() -> Option<R> {
    None
}

/// Returns the client of `client = EXPR`, or of an argument.
#[must_use]
pub fn client(client: &Client) -> &Client {
    client
}

/// Returns the client of `self`.
#[must_use]
pub fn client_of<T: HasClient + ?Sized>(receiver: &T) -> &Client {
    receiver.client()
}

/// Makes the lock of `all(..)`.
///
/// # Errors
/// As [`MultiLock::new`].
pub fn all<const N: usize>(members: [Member; N]) -> Result<MultiLock> {
    MultiLock::new(members)
}

/// Makes the lock of `each(..)`.
///
/// # Errors
/// As [`MultiLock::new`].
pub fn each<N: AsRef<str>>(
    client: &Client,
    names: impl IntoIterator<Item = N>,
    member: impl Fn(&Client, &str) -> Member,
) -> Result<MultiLock> {
    let names = names.into_iter();
    let members: Vec<Member> = names.map(|name| member(client, name.as_ref())).collect();
    MultiLock::new(members)
}

/// Returns the `Redlock` of `redlock = EXPR`.
#[must_use]
pub fn redlock(redlock: &Redlock) -> &Redlock {
    redlock
}

/// Makes a span of time of the attribute.
#[must_use]
pub fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// Returns the error of a lock that was not acquired.
pub fn failed<R: Outcome>(error: Error) -> R {
    R::failed(error)
}

/// `busy = error`
pub async fn busy<R: Outcome>(lock: &impl sealed::Lock) -> R {
    R::failed(lock.refused().await.into())
}

/// `busy = |busy| ..`
pub async fn busy_with<R, V: WhenBusy<R>>(
    lock: &impl sealed::Lock,
    value: impl FnOnce(Busy) -> V,
) -> R {
    value(lock.refused().await).outcome()
}

/// `busy = EXPR`
pub fn busy_value<R, V: WhenBusy<R>>(value: V) -> R {
    value.outcome()
}

/// `busy = skip`
#[must_use]
pub fn skipped<R: Skippable>() -> R {
    R::skipped()
}

/// `fenced = token`
///
/// # Panics
/// Never: the handle of the guard is fenced.
#[must_use]
pub fn token(guard: &impl Guard) -> FencingToken {
    guard
        .fencing_token()
        .expect("a grant of a fenced handle has a token")
}

/// Ends the function after its body has returned, or was dropped because the lock was lost.
pub async fn finish<R: Outcome>(guard: impl Releasable, done: std::result::Result<R, Lost>) -> R {
    match done {
        Ok(value) => {
            // The body has committed. An unconfirmed release continues in the background, and a hold that the server no
            // longer has was lost after the last renewal. Neither undoes the work.
            _ = guard.end().await;
            value
        }
        Err(lost) => R::failed(lost.into()),
    }
}

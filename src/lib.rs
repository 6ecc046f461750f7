//! Distributed locks for tokio on Redis and Valkey.
//!
//! Wire-compatible with Redisson: a Rust and a Java process share one lock.
//!
//! * [`Client::lock`]: a lock for one owner at a time, who may enter it again;
//! * [`Client::fair_lock`]: the same, first come, first served between all processes;
//! * [`Client::rw_lock`]: many readers or one writer;
//! * [`MultiLock`]: several of these, all or none;
//! * [`Redlock`]: one lock on several independent servers, of which a majority decides.
//!
//! What all of them have in common are the traits [`Lock`] and [`Guard`].
//!
//! ```no_run
//! # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
//! let guard = client.lock("shop:order:7").fenced().lock().await?;
//!
//! // The resource refuses a token smaller than the largest it has seen.
//! let token = guard.fencing_token();
//! guard.run(async move { /* write, with the token */ }).await?;
//!
//! guard.release().await?;
//! # drop(token); Ok(()) }
//! ```
//!
//! # The end of a program
//!
//! A dropped guard is released in the background. **A program that ends right after the drop leaves the lock
//! taken** until its lease is over, 30 s by default. So a program ends with `release().await`, or with
//! [`Client::shutdown`], which waits for what dropped guards, and futures that were dropped, have left
//! to do. A service does that when it is told to end, after its last request:
//!
//! ```no_run
//! # mod axum {
//! #     pub struct Serving;
//! #     impl Serving {
//! #         pub async fn with_graceful_shutdown(self, end: impl Future<Output = ()>) -> std::io::Result<()> {
//! #             end.await;
//! #             Ok(())
//! #         }
//! #     }
//! #     pub fn serve(_listener: (), _app: ()) -> Serving { Serving }
//! # }
//! # async fn doc(client: lockset::Client, (listener, app): ((), ())) -> Result<(), Box<dyn std::error::Error>> {
//! use tokio::signal::unix::{SignalKind, signal};
//!
//! let mut term = signal(SignalKind::terminate())?;
//! let end = async move { drop(term.recv().await) };
//! axum::serve(listener, app).with_graceful_shutdown(end).await?;
//! client.shutdown().await?;
//! # Ok(()) }
//! ```
//!
//! # What a lock here promises, and what it cannot
//!
//! * While [`ReentrantGuard::is_lost`] is false, no other guard of that lock is valid; for a
//!   [`ReadGuard`], no [`WriteGuard`] of another owner.
//! * Losing a lease is never silent: [`ReentrantGuard::lost`] resolves at the latest when the lease
//!   ends by the local clock, whatever the network does.
//! * A dropped future, a dropped guard, a panic or a lost reply leaves no hold and no place in a
//!   queue behind.
//! * A call that is repeated, by whomever, counts once.
//! * Every wait ends without needing a message.
//!
//! A lease cannot stop a process that was paused between looking at its lock and writing, and a
//! server that fails over to a replica may forget a grant. Where two writers would do harm, have
//! the resource check the [fencing token](FencingToken).
//!
//! # Where to begin
//!
//! The [guide] goes by task: jobs, transactions, fencing, loss, owners, time limits, shutting down,
//! testing, errors, operating.
//!
//! A guard that is dropped is released in the background. A program that ends right after the drop
//! leaves the lock taken until its lease is over: end with `release().await`, or with
//! [`Client::shutdown`].

mod acquire;
mod client;
mod clock;
mod conn;
mod counts;
mod error;
mod fair;
mod fencing;
mod guard;
mod handle;
mod hint;
mod hold;
mod keys;
mod lost;
mod multilock;
mod options;
mod owner;
mod redlock;
mod reentrant;
mod replicas;
mod rwlock;
mod script;
#[cfg(test)]
mod testing;
mod traits;
mod watchdog;

pub use client::{Client, ClientBuilder, ClientStats};
#[cfg(feature = "tls")]
pub use conn::tls::Tls;
pub use error::{Error, ErrorKind, Result};
pub use fair::{FairGuard, FairLock};
pub use fencing::FencingToken;
pub use handle::Holder;
pub use keys::NAME_BYTES_MAX;
pub use lost::{Lost, LostReason};
pub use multilock::{MULTI_LOCK_MEMBERS_MAX, Member, MultiGuard, MultiLock};
pub use options::{LEASE_MAX, LEASE_MIN};
pub use owner::Owner;
pub use redlock::{Redlock, RedlockBuilder, RedlockGuard, RedlockLock};
pub use reentrant::{ReentrantGuard, ReentrantLock};
pub use rwlock::{ReadGuard, ReadSide, RwLock, WriteGuard, WriteSide};
pub use traits::{Guard, Lock};

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

/// The examples of the README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

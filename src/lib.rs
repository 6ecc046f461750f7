//! Distributed locks for tokio on Redis and Valkey, wire-compatible with Redisson: a Rust and a Java process
//! share one lock.
//!
//! | lock | made by | holders |
//! |---|---|---|
//! | [`ReentrantLock`] | [`Client::lock`] | one owner, which may enter again |
//! | [`FairLock`] | [`Client::fair_lock`] | the same, first come, first served between all processes |
//! | [`RwLock`] | [`Client::rw_lock`] | many readers or one writer |
//! | [`MultiLock`] | [`MultiLock::new`] | one owner of several locks, all or none |
//! | [`RedlockLock`] | [`Redlock::lock`] | one owner, decided by a majority of independent servers |
//!
//! Every lock has the methods of the trait [`Lock`], every guard those of [`Guard`]. Beside the locks:
//!
//! | type | made by | for |
//! |---|---|---|
//! | [`Semaphore`] | [`Client::semaphore`] | at most N at once, or N in any window; a dead holder's permits come back |
//! | [`PlainSemaphore`] | [`Client::plain_semaphore`] | a number of permits shared with Redisson's `RSemaphore` |
//! | [`Latch`] | [`Client::latch`] | waiting until others have counted down |
//! | [`Barrier`] | [`Client::barrier`] | parties that wait for each other, round after round |
//! | [`Election`] | [`Client::election`] | one of several candidates leads |
//! | [`Once`], [`Job`] | [`Client::once`], [`Client::job`] | work that runs once for a key, or in one process at a time |
//!
//! ```no_run
//! # async fn doc() -> Result<(), Box<dyn std::error::Error>> {
//! let client = lockset::Client::connect("redis://127.0.0.1:6379").await?;
//! let guard = client.lock("shop:order:7").fenced().lock().await?;
//!
//! // The resource refuses a token smaller than the largest it has seen.
//! let token = guard.token()?;
//! guard.run(async move { /* write, with the token */ }).await?;
//!
//! guard.release().await?;
//! # drop(token); Ok(()) }
//! ```
//!
//! # Ending a program
//!
//! A dropped guard is released in the background. **A program that ends right after the drop leaves the lock
//! held** until its lease ends, 30 s by default. End with `release().await`, or with [`Client::shutdown`],
//! which waits for the background work of dropped guards and dropped futures. A service shuts its client down
//! after its last request:
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
//! # What a lock promises, and what it cannot
//!
//! * **Exclusion.** While [`is_lost`](ReentrantGuard::is_lost) is false and the server keeps the grant, no other
//!   guard of the lock is valid; for a [`ReadGuard`], no [`WriteGuard`] of another owner. A failover that forgets
//!   the grant, lost data or a forced unlock can break this until the next renewal.
//! * **Loss is reported.** [`lost`](ReentrantGuard::lost) resolves no later than the local end of the lease, even if
//!   the network fails.
//! * **Nothing leaks.** A dropped future, a dropped guard, a panic or a lost reply leaves no hold and no
//!   place in a queue behind.
//! * **Repeats count once.** Every call may be executed twice.
//! * **No wait depends on a notification.** Every wait has a timer.
//!
//! A lease cannot stop a process that was paused between checking its lock and writing. A server that fails
//! over to a replica may forget a grant. Where two writers would do harm, have the resource check the
//! [fencing token](FencingToken).
//!
//! # Features
//!
//! All are off by default.
//!
//! | feature | what it adds |
//! |---|---|
//! | `macros` | the attribute `#[locked]` |
//! | `metrics` | counters, gauges and histograms through the facade `metrics` |
//! | `serde` | `ClientConfig`, settings in a file; [`FencingToken`] as a number, [`LockKind`] as its name |
//! | `tls` | connections over TLS: `rediss://` |
//! | `tracing` | spans and events through `tracing` |
//!
//! # Where to begin
//!
//! The [guide] goes by task: jobs, transactions, fencing, loss, owners, time limits, shutting down, testing,
//! errors, operating. More pages are in the repository: [which topology to
//! choose](https://github.com/lockset-rs/lockset/blob/main/docs/topology.md), [the rights to give at the
//! server](https://github.com/lockset-rs/lockset/blob/main/docs/rights.md), [sharing locks with
//! Redisson](https://github.com/lockset-rs/lockset/blob/main/docs/redisson.md), [what each call
//! costs](https://github.com/lockset-rs/lockset/blob/main/docs/performance.md).

mod any_lock;
mod api;
mod barrier;
mod client;
mod conn;
mod election;
mod engine;
mod fair;
pub mod fence;
mod job;
mod latch;
mod multilock;
mod observe;
mod once;
#[doc(hidden)]
pub mod operator;
mod plain_semaphore;
mod redlock;
mod reentrant;
mod rwlock;
mod script;
mod semaphore;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub mod simulated;
#[cfg(test)]
mod testing;
mod watchdog;

pub use any_lock::{AnyGuard, AnyLock, LockKind};
pub use api::builder::ClientBuilder;
#[cfg(feature = "serde")]
pub use api::config::ClientConfig;
pub use api::error::{Error, ErrorKind, Result};
pub use api::fencing::FencingToken;
pub use api::holder::{Busy, Holder, Owner};
pub use api::loss::{Loss, Lost, LostReason};
pub use api::options::{Backoff, LEASE_MAX, LEASE_MIN, STICKY_MAX};
pub use api::traits::{Completed, Guard, Lock, Wait, WithError};
pub use barrier::Barrier;
pub use client::{Client, ClientStats};
pub use conn::credentials::Credentials;
#[cfg(feature = "tls")]
pub use conn::tls::Tls;
pub use election::{Election, Leader, Leaders, Leadership};
pub use engine::keys::NAME_BYTES_MAX;
pub use fair::{FairGuard, FairLock};
pub use job::{Job, JobRun};
pub use latch::Latch;
pub use multilock::{MULTI_LOCK_MEMBERS_MAX, Member, Members, MultiGuard, MultiLock};
pub use observe::counts::{Grants, Losses, Reconnects, Renewals, RoundTrips, Totals};
pub use observe::events::{Event, Place};
pub use observe::observer::Observer;
pub use once::{Claim, Once, OnceKey, OnceRun};
pub use plain_semaphore::{PlainPermits, PlainSemaphore};
pub use redlock::{Redlock, RedlockBuilder, RedlockGuard, RedlockLock};
pub use reentrant::{ReentrantGuard, ReentrantLock};
pub use rwlock::{ReadGuard, ReadSide, RwLock, WriteGuard, WriteSide};
pub use script::NativePath;
pub use semaphore::{Semaphore, SemaphoreGuard};

#[doc = include_str!("../docs/guide.md")]
pub mod guide {}

#[cfg(feature = "macros")]
#[doc = include_str!("../docs/locked.md")]
pub use lockset_macros::locked;

/// For the code that `#[locked]` generates.
#[cfg(feature = "macros")]
#[doc(hidden)]
pub mod __private {
    pub use crate::api::attribute::{
        Member, all, busy, busy_value, busy_with, client, client_of, each, failed, finish, format,
        millis, redlock, returns, skipped, token,
    };
}

/// The examples of the README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExamples;

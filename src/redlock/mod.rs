//! The Redlock: one lock on several independent servers, decided by a majority.
//!
//! On each server it is the ordinary reentrant lock, so it excludes callers that take that lock there, and Redisson's
//! `RedissonRedLock`. This folder adds the rest: the servers with a vote (`servers`), the servers that are down
//! (`health`), one round (`round`), the outcome of its votes (`tally`), the wait (`acquire`, `backoff`), entering again
//! (`reenter`), the return of servers (`rejoin`), and questions without acquiring (`inspect`).

mod acquire;
mod backoff;
mod builder;
mod guard;
mod handle;
mod health;
mod inspect;
mod lock;
mod reenter;
mod rejoin;
mod round;
mod servers;
mod sightings;
mod tally;

pub use builder::{Redlock, RedlockBuilder};
pub use guard::RedlockGuard;
pub use lock::RedlockLock;

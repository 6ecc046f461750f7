//! The Redlock: one lock on several independent servers, decided by a majority.
//!
//! On each server it is the ordinary reentrant lock, so it excludes callers that take that lock there, and Redisson's
//! `RedissonRedLock`. This folder adds the rest:
//!
//! ```text
//! lock.rs         the public handle; guard.rs: the guard and its share; builder.rs: from clients to a Redlock
//! acquire.rs      the wait: a round, a pause, again; backoff.rs: pure: how long a pause
//! round.rs        one round: every server votes; tally.rs: the votes, and the error they add up to
//! servers.rs      the servers, and which have a vote; health.rs: which are down and left alone
//! hold.rs         one hold at a majority; hold_state.rs: which guard has which share
//! reenter.rs      one more share for an owner; rejoin.rs: late votes, and lost servers that have come back
//! inspect.rs      reads the holder
//! ```

mod acquire;
mod backoff;
mod builder;
mod guard;
mod handle;
mod health;
mod hold;
mod hold_state;
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

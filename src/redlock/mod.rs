//! The Redlock: one lock on several independent servers, of which a majority decides.
//!
//! On each server it is the ordinary reentrant lock, so that it excludes whoever takes that there, and
//! Redisson's `RedissonRedLock`. What is added is here: who has a vote (`servers`) and who is
//! down (`health`), one round (`round`), what the votes amount to (`tally`), the wait (`acquire`,
//! `backoff`), entering again (`reenter`), getting servers back (`rejoin`), and what is asked without
//! acquiring (`inspect`).

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

//! The tests against real servers, one module a concern.
//!
//! What holds for every primitive is written once, over [`primitive::Primitive`], and made a test
//! for each by `for_every_primitive!`.

mod primitive;
mod support;
mod world;

mod addresses;
mod barrier;
mod busy;
mod cancellation;
mod cluster;
mod comeback;
mod conformance;
mod cost;
mod distance;
mod election;
mod fair;
mod fairness;
mod faults;
mod fenced;
mod foreign;
mod hammer;
mod handoff;
mod impatient;
mod input;
mod interleavings;
mod latch;
mod lazy;
mod limits;
#[cfg(feature = "macros")]
mod locked;
mod loss;
mod loss_view;
mod many_holds;
mod messages;
#[cfg(feature = "metrics")]
mod metered;
mod mix;
mod multilock;
mod names;
mod native;
mod observed;
mod once;
mod operator;
mod outage;
mod paused;
mod plain_semaphore;
mod polled;
mod process;
mod redlock;
mod replicas;
mod retention;
mod rights;
mod runtime;
mod rwlock;
mod sentinel;
mod share_leases;
mod shown;
mod shutdown;
mod spans;
mod sticky;
#[cfg(feature = "tls")]
mod tls;
mod tokens;
#[cfg(feature = "tracing")]
mod traced;
mod traits;
mod undoing;
mod unpolled;
mod wire;
mod with;

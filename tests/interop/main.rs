//! One lock, two languages: `lockset` beside the real Redisson, on one server or in one cluster.
//!
//! The Java side is under `java/`, built by `scripts/build-interop` and driven line by line. Where it
//! has not been built these tests say so and pass, unless `LOCKSET_INTEROP=1` demands them, as
//! `make interop` does; `LOCKSET_INTEROP=0` skips them.

mod java;
mod kind;
mod pair;
mod rust_process;

mod cluster;
mod counting;
mod defects;
mod exclusion;
mod force_unlock;
mod killed;
mod prefix;
mod queue;
mod readers;
mod stress;
mod watchdogs;

//! One lock, two languages: `lockset` beside the real Redisson, on one server or in one cluster.
//!
//! The Java side is under `java/`, built by `scripts/build-interop` and driven line by line. These tests
//! are ignored unless they are asked for, as `make interop` does, which builds it first; with the version
//! of Redisson that `LOCKSET_REDISSON` names, if it names one.

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
mod once;
mod prefix;
mod queue;
mod quorum;
mod readers;
mod stress;
mod synchronizers;
mod watchdogs;

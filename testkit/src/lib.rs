//! Test support for `lockset`: real servers, a fault-injecting proxy, a foreign peer and bounded waiting.
//!
//! Nothing here pretends to be a server. A [`Server`] is a real Redis or Valkey process of the test's
//! own, a [`Cluster`], [`Sentinels`] or [`Replicated`] are several of them that know each other, a [`Proxy`] stands in front of it and misbehaves on demand, a [`Redisson`] is another client on
//! the same wire, and [`within`] and [`eventually`] put a bound on every wait, so that a broken test
//! fails instead of hanging.

mod cluster;
mod find;
mod ports;
mod proxy;
mod redisson;
mod replicated;
mod replication;
mod rights;
mod sentinels;
mod server;
mod tls;
mod wait;

pub use cluster::{Cluster, ClusterBuilder, FailOver};
pub use proxy::Proxy;
pub use redisson::Redisson;
pub use replicated::{Replicated, ReplicatedBuilder};
pub use sentinels::{Sentinels, SentinelsBuilder};
pub use server::{ClientKind, ClientLine, Server, ServerBuilder};
pub use tls::Certificates;
pub use wait::{eventually, unique_name, within};

//! Test support for `lockset`: real servers, a fault-injecting proxy, a foreign peer and bounded waiting.
//!
//! Nothing here simulates a server. A [`Server`] is a real Redis or Valkey process; a [`Cluster`],
//! [`Sentinels`] or [`Replicated`] consists of several. A [`Proxy`] in front of a server causes
//! faults on demand. [`Redisson`] is another client of the same wire format. [`within`] and
//! [`eventually`] bound every wait, so that a broken test fails instead of hanging.

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
pub mod stalls;
mod task;
mod tls;
mod wait;

pub use cluster::{Cluster, ClusterBuilder, FailOver};
pub use proxy::Proxy;
pub use redisson::Redisson;
pub use replicated::{Replicated, ReplicatedBuilder};
pub use sentinels::{Sentinels, SentinelsBuilder};
pub use server::{ClientKind, ClientLine, Server, ServerBuilder};
pub use stalls::{took_less, took_less_until};
pub use task::spawn;
pub use tls::Certificates;
pub use wait::{eventually, unique_name, within};

//! Clusters, sentinels, replicas, and addresses.

mod addresses;
mod cluster;
mod led_away;
mod replicas;
mod sentinel;
#[cfg(feature = "tls")]
mod tls;

//! The engine of lockset on a simulated server, in virtual time.
//!
//! For tests of programs that use lockset: [`Server`] is a server without a process, a port or a wait; [`Sentinel`] and
//! [`Cluster`] are several, with failovers. The client on them is the real one, and the scripts that they run are the
//! real ones, in the same Lua. Faults are calls. With tokio's paused time, a loss after thirty seconds takes microseconds.
//!
//! [`Server::in_real_time`] lets a program run without Redis, for as long as it is one process: take
//! `Server::in_real_time().client().await` in place of `Client::connect`.

mod called;
mod channels;
mod clients;
mod cluster;
mod commands;
#[cfg(test)]
mod conformance;
mod deployment;
mod double;
mod lua;
mod net;
mod node;
mod number;
mod process;
mod replication;
mod reply;
mod rights;
mod sentinel;
mod server;
mod slots;
mod store;
mod words;
mod world;

pub use double::{Cluster, Sentinel};
pub use server::Server;
pub use world::{Report, World};

/// The example of the README, compiled with the tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct ReadmeExample;

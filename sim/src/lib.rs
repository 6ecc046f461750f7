//! The engine of lockset on a simulated server, in virtual time.
//!
//! For tests of programs that use lockset: [`Server`] is a server without a process, a port or a wait. The
//! client on it is the real one, and the scripts that the server runs are the real ones, in the same Lua.
//! Faults are calls. With tokio's paused time, a loss after thirty seconds takes microseconds.

mod called;
mod commands;
#[cfg(test)]
mod conformance;
mod connections;
mod lua;
mod net;
mod node;
mod number;
mod process;
mod reply;
mod server;
mod store;
mod words;
mod world;

pub use server::Server;
pub use world::{Report, World};

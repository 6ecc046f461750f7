//! The connection of one lane to one server: how a command gets it, and how it is replaced when it falls silent.
//!
//! Invariant: a new connection is used only after the server was told to kill the one before it, by its id. Every
//! command on the old connection is then executed or dead, and none can arrive late and overtake a new one. Only a
//! reconnect pays for this. Without the right to kill its own connections, the earlier commands of a user stay
//! unsettled for a while, and the engine cancels repeatedly.
//!
//! Invariant: no caller's time limit ends an attempt to connect, a dial. There is one dial at a time, in its own task,
//! and all callers wait for its result. A caller whose limit is over leaves; the dial continues, and the next caller
//! finds its result. A dial ends with its link or with the client's runtime, and its callers then get an error.
//!
//! ```text
//! dialer.rs       a link: its connection, and the next one when that falls silent
//! connector.rs    makes a connection, or says why it cannot
//! connection.rs   a connection: its socket, its scripts, its last reply
//! handshake.rs    the first exchange: the login, names, the kill of earlier connections
//! server.rs       what all links to a server share: pauses between attempts, the process behind the address
//! wire/           our end of a connection: one buffer, replies in order, one timer
//! pace.rs         pure: portions of replies, so that many tasks keep a connection busy
//! ```

mod connection;
mod connector;
mod dialer;
mod handshake;
mod pace;
mod server;
mod wire;

pub(super) use self::connection::Socket;
pub(crate) use self::connector::RENEWAL_WAIT_MIN;
pub(crate) use self::dialer::Link;
pub(super) use self::handshake::{check_greeting, greeting};
pub(crate) use self::server::{Reachability, SharedProcess};
pub(super) use self::wire::WireParams;

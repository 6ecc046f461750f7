//! Ports of 127.0.0.1 for servers and proxies.
//!
//! Invariant: a port given out here is below the ranges from which systems take the ports of outgoing
//! connections. A port from those could be taken by any connection while its server is down; worse, a
//! client that keeps connecting to it could by chance connect to itself, and would keep it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use uuid::Uuid;

const FIRST: u16 = 10_000;
const COUNT: u128 = 20_000;
const ATTEMPTS: usize = 1_000;

/// Listens on a random port that was free.
pub(crate) fn listen() -> io::Result<TcpListener> {
    let mut last = io::Error::other("no attempt was made");
    for _ in 0..ATTEMPTS {
        let offset = Uuid::new_v4().as_u128() % COUNT;
        let port = FIRST + u16::try_from(offset).expect("the range fits");
        match TcpListener::bind((Ipv4Addr::LOCALHOST, port)) {
            Ok(listener) => return Ok(listener),
            Err(error) => last = error,
        }
    }
    Err(last)
}

/// A random port that is free now, and may be taken the moment after.
pub(crate) fn free() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}

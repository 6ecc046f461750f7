//! Ports of 127.0.0.1 for servers and proxies.
//!
//! Invariant: a port given out here is below the ranges from which systems take the ports of outgoing
//! connections. A port from those could be taken by any connection while its server is down; worse, a
//! client that keeps connecting to it could by chance connect to itself, and would keep it.

use std::io;
use std::net::{Ipv4Addr, TcpListener};

use uuid::Uuid;

const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;
const ATTEMPTS: usize = 1_000;

/// How far above its port a cluster node listens to the other nodes.
const BUS: u16 = 10_000;

/// Listens on a random port that was free.
pub(crate) fn listen() -> io::Result<TcpListener> {
    attempt(|| TcpListener::bind((Ipv4Addr::LOCALHOST, random(COUNT))))
}

/// A random port that is free now, and may be taken the moment after.
pub(crate) fn free() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}

/// As [`free`], for a cluster node: its bus port is free too, and in the same range.
pub(crate) fn free_with_bus() -> io::Result<u16> {
    attempt(|| {
        let port = random(COUNT - BUS);
        let _port = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
        let _bus = TcpListener::bind((Ipv4Addr::LOCALHOST, port + BUS))?;
        Ok(port)
    })
}

/// A port among the first `count` ones.
fn random(count: u16) -> u16 {
    let offset = Uuid::new_v4().as_u128() % u128::from(count);
    FIRST + u16::try_from(offset).expect("the range fits")
}

fn attempt<T>(mut bind: impl FnMut() -> io::Result<T>) -> io::Result<T> {
    let mut last = io::Error::other("no attempt was made");
    for _ in 0..ATTEMPTS {
        match bind() {
            Ok(bound) => return Ok(bound),
            Err(error) => last = error,
        }
    }
    Err(last)
}

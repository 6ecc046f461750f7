//! Ports of 127.0.0.1 for servers and proxies.
//!
//! Invariants: a port given out here is below the ranges that systems use for outgoing connections.
//! While a server is down, any connection could take a port in those ranges; worse, a client that
//! keeps connecting could connect to itself. A port is also given out only once, because clients
//! that look for a killed server would otherwise find another test's.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Mutex;

use uuid::Uuid;

const FIRST: u16 = 10_000;
const COUNT: u16 = 20_000;
const ATTEMPTS: usize = 1_000;

/// The distance from the port of a cluster node to its bus port.
const BUS: u16 = 10_000;

static GIVEN: Mutex<BTreeSet<u16>> = Mutex::new(BTreeSet::new());

/// Listens on a random free port.
pub(crate) fn listen() -> io::Result<TcpListener> {
    attempt(|| bind(random(COUNT)))
}

/// Fails if the port is in use or was given out before.
fn bind(port: u16) -> io::Result<TcpListener> {
    let bound = TcpListener::bind((Ipv4Addr::LOCALHOST, port))?;
    let mut given = GIVEN.lock().expect("not poisoned");
    let is_new = given.insert(port).then_some(bound);
    is_new.ok_or_else(|| io::ErrorKind::AddrInUse.into())
}

/// A random port that is free now. Another process may still take it.
pub(crate) fn free() -> io::Result<u16> {
    Ok(listen()?.local_addr()?.port())
}

/// Like [`free`], for a cluster node: its bus port is free too, and in the same range.
pub(crate) fn free_with_bus() -> io::Result<u16> {
    attempt(|| {
        let port = random(COUNT - BUS);
        let _port = bind(port)?;
        let _bus = bind(port + BUS)?;
        Ok(port)
    })
}

/// A random port among the first `count`.
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

#[cfg(test)]
mod tests {
    use super::*;

    /// Without the check, about six ports would be equal.
    #[test]
    fn no_port_is_given_out_twice() {
        let ports: BTreeSet<u16> = (0..500).map(|_| free().unwrap()).collect();
        assert_eq!(ports.len(), 500);
    }
}

//! A way to a server that takes time: each byte arrives half a round trip later, in order, and others follow meanwhile.
//!
//! It delays both directions and serialises nothing: any number of requests can be under way. Threads do the work, as
//! tokio's timers count whole milliseconds.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use lockset_testkit::Server;

const CHUNK: usize = 64 * 1024;

/// Opens a way to `server` and returns the URL at its near end. It stays open until the process ends.
pub(crate) fn way_to(server: &Server, round_trip: Duration) -> String {
    let listener = TcpListener::bind(("127.0.0.1", 0)).expect("a port");
    let near = listener.local_addr().expect("its own address");
    let far = server.addr();
    thread::spawn(move || {
        for client in listener.incoming() {
            let client = client.expect("a connection");
            let server = TcpStream::connect(far).expect("the server takes connections");
            carry(&client, &server, round_trip / 2);
            carry(&server, &client, round_trip / 2);
        }
    });
    server.url().replace(&far.to_string(), &near.to_string())
}

/// Passes on what `from` sends, `takes` after it has come.
fn carry(from: &TcpStream, to: &TcpStream, takes: Duration) {
    let mut from = from.try_clone().expect("a second handle");
    let mut to = to.try_clone().expect("a second handle");
    to.set_nodelay(true).expect("a socket of TCP");
    let (under_way, arriving) = mpsc::channel::<(Instant, Vec<u8>)>();
    thread::spawn(move || {
        let mut buffer = vec![0; CHUNK];
        // A reset is an end, too.
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let chunk = (Instant::now() + takes, buffer[..length].to_vec());
            if under_way.send(chunk).is_err() {
                break;
            }
        }
    });
    thread::spawn(move || {
        for (due, chunk) in arriving {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&chunk).is_err() {
                break;
            }
        }
        // The other side may have closed it already.
        let _ = to.shutdown(Shutdown::Both);
    });
}

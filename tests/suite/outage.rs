//! A server that is away: how long each call goes on without an answer, and what it says then.
//!
//! Bounds are upper ones: a busy machine makes a call end later, never sooner.

use std::error::Error as _;
use std::io;

use lockset::{Client, Error};
use lockset_testkit::{Server, unique_name, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{SOON, client};

/// What the socket said, by way of the causes.
fn socket_error(error: &Error) -> Option<io::ErrorKind> {
    let mut cause = error.source();
    while let Some(error) = cause {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return Some(error.kind());
        }
        cause = error.source();
    }
    None
}

async fn an_outage_is_transient_and_keeps_what_the_socket_said<P: Primitive>() {
    let server = Server::start();
    let ours = client(&server.url()).await;
    let lock = P::of(&ours, &unique_name("lock"));
    lock.try_lock()
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    server.kill();
    let error = within(SOON, lock.try_lock())
        .await
        .err()
        .expect("no server");
    assert!(error.is_transient(), "{error}");
    let said = socket_error(&error);
    assert_eq!(said, Some(io::ErrorKind::ConnectionRefused), "{error}");
}

for_every_primitive! {"multi_thread":
    an_outage_is_transient_and_keeps_what_the_socket_said
}

#[tokio::test]
async fn a_refused_connect_keeps_what_the_socket_said() {
    let server = Server::start();
    let url = server.url();
    server.kill();
    let error = Client::connect(&url).await.unwrap_err();
    assert!(error.is_io() && error.is_transient(), "{error}");
    let said = error
        .source()
        .and_then(|source| source.downcast_ref::<io::Error>());
    let kind = said.map(io::Error::kind);
    assert_eq!(kind, Some(io::ErrorKind::ConnectionRefused), "{error}");
}

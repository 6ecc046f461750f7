//! Finding out who blocks a call, and the error that reports it.

use std::time::Duration;

use lockset::{Busy, Error, ErrorKind, MultiLock, RedlockLock};
use lockset_testkit::{Server, within};

use crate::primitive::{Guard, Primitive, for_every_primitive};
use crate::support::{LEASE, SOON, patient_client};

async fn the_error_names_the_holder<P: Primitive>() {
    let server = Server::start();
    let holder = patient_client(&server.url()).await;
    let guard = P::Rival::of(&holder, "x")
        .lease(SOON * 2)
        .lock()
        .await
        .unwrap();
    let asking = patient_client(&server.url()).await;
    let lock = P::of(&asking, "x");
    assert!(lock.try_lock().await.unwrap().is_none());
    let busy = lock.busy().await.unwrap().expect("it is held");
    assert_eq!(busy.lock, "x");
    assert_eq!(busy.holder.as_deref(), Some(guard.holder_id()));
    assert!(!busy.by_this_client, "{busy}");
    let own = P::of(&holder, "x").busy().await.unwrap();
    let own = own.expect("it is held for another owner");
    let says = format!("is held by this client ({})", guard.holder_id());
    assert!(
        own.by_this_client && own.to_string().contains(&says),
        "{own}"
    );
    let remaining = busy.remaining.expect("a lease");
    assert!(
        remaining > SOON && remaining <= SOON * 2,
        "{remaining:?} is left"
    );

    let error = Error::from(busy.clone());
    assert!(error.is_busy() && error.kind() == ErrorKind::Busy);
    assert!(!error.is_transient() && !error.is_refused() && !error.is_not_held());
    assert_eq!(error.busy(), Some(&busy));
    assert_eq!(error.lock_name(), Some("x"));
    for said in [error.to_string(), busy.to_string()] {
        assert!(
            said.contains(guard.holder_id()) && said.contains("\"x\""),
            "{said}"
        );
    }

    guard.release().await.unwrap();
    assert_eq!(lock.busy().await.unwrap(), None);
}

for_every_primitive!("current_thread": the_error_names_the_holder);

#[tokio::test]
async fn the_error_names_the_holders_of_a_redlock() {
    the_error_names_the_holder::<RedlockLock>().await;
}

/// Readers do not block a reader. A writer waits for all readers, so the error names the reader
/// with the longest remaining lease.
#[tokio::test]
async fn of_several_readers_the_longest_is_in_the_way() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = client.rw_lock("x");
    let read = lock.read_side();
    let short = read.clone().lease(SOON).lock().await.unwrap();
    let long = read.clone().lease(SOON * 9).lock().await.unwrap();
    assert_eq!(read.busy().await.unwrap(), None);
    let write = lock.write_side();
    let busy = write.busy().await.unwrap().expect("it is read");
    assert_eq!(busy.holder.as_deref(), Some(long.holder_id()));
    long.release().await.unwrap();
    let busy = write.busy().await.unwrap().expect("it is read");
    assert_eq!(busy.holder.as_deref(), Some(short.holder_id()));
    short.release().await.unwrap();
}

#[tokio::test]
async fn a_multi_lock_names_the_member_that_is_held() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let all = MultiLock::new(["a", "b", "c"].map(|name| client.lock(name))).unwrap();
    let guard = client.lock("b").lock().await.unwrap();
    let busy: Busy = all.busy().await.unwrap().expect("one is held");
    assert_eq!(busy.lock, "b");
    assert_eq!(busy.holder.as_deref(), Some(guard.holder_id()));
    guard.release().await.unwrap();
    assert_eq!(all.busy().await.unwrap(), None);
}

/// A silent server must not be reported as a free lock.
#[tokio::test]
async fn a_silent_server_is_an_error() {
    let server = Server::start();
    let client = patient_client(&server.url()).await;
    let lock = client.lock("x").give_up_after(LEASE);
    server.kill();
    let asked = within(SOON + Duration::from_secs(1), lock.busy()).await;
    assert!(asked.unwrap_err().is_io());
}

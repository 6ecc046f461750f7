//! How the loss of a lock is reported to the work it protects.

use std::time::Duration;

use lockset::{LostReason, RedlockLock};
use lockset_testkit::Server;

use crate::primitive::{Guard, Primitive, for_every_primitive, names_it};
use crate::support::{LEASE, client};

/// The work is finished, but its last step blocked for longer than the lease.
async fn work_that_blocks_past_the_end_is_lost<P: Primitive>() {
    let server = Server::start();
    let client = client(&server.url()).await;
    for lock in [P::of(&client, "x").fixed_lease(LEASE), P::of(&client, "x")] {
        let guard = lock.lock().await.unwrap();
        let done = guard.run(async { std::thread::sleep(LEASE + Duration::from_millis(50)) });
        let lost = done.await.expect_err("it was lost before the end");
        assert_eq!(lost.reason(), LostReason::Expired);
        assert!(names_it::<P>("x", Some(lost.lock_name())), "{lost}");
        // Work that finishes in time is not lost.
        let guard = lock.lock().await.unwrap();
        assert_eq!(guard.run(async { 7 }).await, Ok(7));
        guard.release().await.unwrap();
    }
}

for_every_primitive!("current_thread":
    work_that_blocks_past_the_end_is_lost
);

#[tokio::test]
async fn work_that_blocks_past_the_end_of_a_redlock_is_lost() {
    work_that_blocks_past_the_end_is_lost::<RedlockLock>().await;
}

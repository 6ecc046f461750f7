//! The scripts of the library as it sends them, for what is measured without its engine.
//!
//! Their texts are put together by the library's own list, which is compiled in here.

#[path = "../../src/script/catalog.rs"]
#[allow(dead_code, reason = "the library's own")]
pub(crate) mod catalog;
#[path = "../../src/script/payload.rs"]
#[allow(
    dead_code,
    unused_imports,
    reason = "the library's own, with its tests"
)]
mod payload;

use std::time::Duration;

use redis::Cmd;

use super::LEASE;
use super::redisson::{channel, latch_channel, permit_timeouts, permits_channel, script};

/// The default of the library.
const TOKEN_RETENTION: Duration = Duration::from_secs(30 * 24 * 60 * 60);

/// Whose hold on which lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Hold<'a> {
    pub(crate) key: &'a str,
    pub(crate) holder: &'a str,
}

impl Hold<'_> {
    pub(crate) fn acquire(self) -> Cmd {
        let mut call = script(catalog::REENTRANT_ACQUIRE.sha(), &[self.key]);
        self.bid(&mut call, false);
        call
    }

    /// Takes it, if it is free, by a plain command.
    pub(crate) fn restore(self) -> Cmd {
        let dump = payload::of_one_hold(self.holder.as_bytes()).expect("a short holder id");
        let mut restore = redis::cmd("RESTORE");
        restore.arg(self.key).arg(lease()).arg(&dump[..]);
        restore
    }

    /// Releases the whole hold by plain commands.
    pub(crate) fn release_plain(self) -> [Cmd; 2] {
        let (mut hdel, mut publish) = (redis::cmd("HDEL"), redis::cmd("PUBLISH"));
        hdel.arg(self.key).arg(self.holder);
        publish.arg(channel(self.key)).arg("0");
        [hdel, publish]
    }

    pub(crate) fn acquire_fenced(self) -> Cmd {
        let keys = [self.key, &self.helper("redisson_lock_token")];
        let mut call = script(catalog::REENTRANT_ACQUIRE.sha(), &keys);
        self.bid(&mut call, true);
        call.arg(TOKEN_RETENTION.as_millis() as u64);
        call
    }

    pub(crate) fn release(self) -> Cmd {
        let mut call = script(catalog::REENTRANT_RELEASE.sha(), &[self.key]);
        call.arg(self.holder);
        call.arg(channel(self.key)).arg("PUBLISH");
        call
    }

    /// Takes a fair lock when it is its turn, or a place in the queue for this long.
    pub(crate) fn fair_acquire(self, heartbeat_ms: u64) -> Cmd {
        let [queue, timeouts, alive] = self.queue();
        let keys = [self.key, &queue, &timeouts, &alive];
        let mut call = script(catalog::FAIR_ACQUIRE.sha(), &keys);
        self.bid(&mut call, false);
        call.arg(heartbeat_ms).arg("grant");
        call.arg(channel(self.key)).arg("PUBLISH");
        call
    }

    pub(crate) fn fair_release(self) -> Cmd {
        let [queue, timeouts, alive] = self.queue();
        let keys = [self.key, &queue, &timeouts, &alive];
        let mut call = script(catalog::FAIR_RELEASE.sha(), &keys);
        call.arg(self.holder);
        call.arg(channel(self.key)).arg("PUBLISH");
        call
    }

    pub(crate) fn read_acquire(self) -> Cmd {
        let keys = [self.key, &self.helper("lockset_rw_waiting")];
        let mut call = script(catalog::READ_ACQUIRE.sha(), &keys);
        self.bid(&mut call, false);
        // It would not wait, and has not waited.
        call.arg(0).arg(0);
        call
    }

    pub(crate) fn write_acquire(self) -> Cmd {
        let keys = [self.key, &self.helper("lockset_rw_waiting")];
        let mut call = script(catalog::WRITE_ACQUIRE.sha(), &keys);
        self.bid(&mut call, false);
        // It would not wait.
        call.arg(0);
        call
    }

    /// Of either side.
    pub(crate) fn rw_release(self) -> Cmd {
        let keys = [self.key, &self.helper("lockset_rw_waiting")];
        let mut call = script(catalog::RW_RELEASE.sha(), &keys);
        call.arg(self.holder);
        call.arg(self.helper("redisson_rwlock")).arg("PUBLISH");
        call
    }

    /// Takes one of a semaphore's permits, with the holder as its id.
    pub(crate) fn permit_acquire(self, declared: u32) -> Cmd {
        let mut call = script(catalog::SEMAPHORE_ACQUIRE.sha(), &self.permit_keys());
        call.arg(lease()).arg(1).arg(declared);
        call.arg(permits_channel(self.key)).arg("PUBLISH");
        // It takes no place in a queue.
        call.arg(0).arg(self.holder);
        call
    }

    pub(crate) fn permit_release(self) -> Cmd {
        let mut call = script(catalog::SEMAPHORE_RELEASE.sha(), &self.permit_keys());
        call.arg(permits_channel(self.key)).arg("PUBLISH");
        call.arg("").arg(self.holder);
        call
    }

    /// Counts a latch down, with the holder as the id of the call.
    pub(crate) fn count_down(self) -> Cmd {
        let done = format!("lockset_latch_done:{{{}}}:{}", self.key, self.holder);
        let keys = [self.key, &done, &self.helper("lockset_latch_opened")];
        let mut call = script(catalog::LATCH_COUNT_DOWN.sha(), &keys);
        call.arg(self.holder).arg(lease()).arg(lease());
        call.arg(latch_channel(self.key)).arg("PUBLISH");
        call
    }

    fn permit_keys(self) -> [String; 2] {
        [self.key.to_owned(), permit_timeouts(self.key)]
    }

    fn bid(self, call: &mut Cmd, fenced: bool) {
        call.arg(self.holder);
        call.arg(lease()).arg(u8::from(fenced));
    }

    fn queue(self) -> [String; 3] {
        [
            "redisson_lock_queue",
            "redisson_lock_timeout",
            "lockset_fair_alive",
        ]
        .map(|what| self.helper(what))
    }

    fn helper(self, what: &str) -> String {
        format!("{what}:{{{}}}", self.key)
    }
}

/// Takes reentrant locks, all or none.
pub(crate) fn multi_acquire(holds: &[Hold<'_>]) -> Cmd {
    let keys: Vec<&str> = holds.iter().map(|hold| hold.key).collect();
    let mut call = script(catalog::MULTI_ACQUIRE.sha(), &keys);
    // Queued nowhere, and no tokens to keep.
    call.arg("PUBLISH").arg(0).arg(0).arg(lease());
    for hold in holds {
        call.arg(hold.holder);
    }
    call
}

/// Releases all of them: each before any waiter is notified.
pub(crate) fn multi_release(holds: &[Hold<'_>]) -> Vec<Cmd> {
    let pairs: Vec<[Cmd; 2]> = holds.iter().map(|hold| hold.release_plain()).collect();
    let of = |at: usize| pairs.iter().map(move |pair| pair[at].clone());
    of(0).chain(of(1)).collect()
}

pub(crate) fn renew(locks: &[(String, String)]) -> Cmd {
    let keys: Vec<&str> = locks.iter().map(|(key, _)| key.as_str()).collect();
    let mut call = script(catalog::RENEW.sha(), &keys);
    for (_, holder) in locks {
        call.arg(holder).arg(lease());
    }
    call
}

fn lease() -> u64 {
    LEASE.as_millis() as u64
}

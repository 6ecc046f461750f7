//! Shared by the benches: the floor, Redisson's way, where processes run, and how rounds compare.
//!
//! Nothing here or in a bench reports a bare time: all that is printed is a ratio of two subjects
//! that took turns in one run, on one server.

#![allow(dead_code, reason = "each bench uses a part of it")]

pub(crate) mod arguments;
pub(crate) mod distance;
pub(crate) mod floor;
pub(crate) mod ours;
mod paced_read;
pub(crate) mod place;
pub(crate) mod redisson;
pub(crate) mod rounds;
pub(crate) mod slow;

use std::time::Duration;

use lockset::Client;
use tokio::runtime::{Builder, Runtime};

/// How many of many holds are taken at a time.
pub(crate) const TAKERS: usize = 64;

/// The lease of every lock in a bench.
pub(crate) const LEASE: Duration = Duration::from_secs(30);

/// The runtimes a program may use. Of the second kind two workers: one for the caller, one for the
/// task that owns the connection.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Flavour {
    CurrentThread,
    MultiThread,
}

impl Flavour {
    pub(crate) const ALL: [Self; 2] = [Self::CurrentThread, Self::MultiThread];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::CurrentThread => "current_thread",
            Self::MultiThread => "multi_thread",
        }
    }

    pub(crate) fn runtime(self) -> Runtime {
        let mut builder = match self {
            Self::CurrentThread => Builder::new_current_thread(),
            Self::MultiThread => Builder::new_multi_thread(),
        };
        if matches!(self, Self::MultiThread) {
            builder.worker_threads(2);
        }
        builder.enable_all().build().expect("a runtime")
    }
}

/// Runs `work` in a task. The thread of `block_on` is not a worker of a multi-thread runtime: what
/// runs there pays for a change of threads with each reply.
pub(crate) fn in_a_task<T: Send + 'static>(
    runtime: &Runtime,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    runtime
        .block_on(runtime.spawn(work))
        .expect("the task of a bench does not panic")
}

pub(crate) async fn lockset_client(url: &str) -> Client {
    Client::builder(url)
        .lease(LEASE)
        .build()
        .await
        .expect("a client of the bench's own server")
}

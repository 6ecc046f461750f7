//! Shared by the Rust harnesses: the line protocol, the tasks of a job, the check of exclusion.
//!
//! A harness implements [`Peer`] the way its library's documentation tells users to use it, and calls
//! [`serve`]. The protocol is described in `benches/peers/README.md`.

mod inside;
mod job;

use std::future::Future;
use std::io::{BufRead as _, Write as _};
use std::time::Duration;

use job::Job;

/// The kind of lock to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Exclusive,
    Fair,
    Read,
    Write,
    /// A permit of a semaphore with [`PERMITS`].
    Permit,
    /// A latch: each turn counts it down, and it does not open.
    CountDown,
}

/// The permits of the semaphore of a job.
pub const PERMITS: u32 = 8;

/// No run counts a latch down so often.
pub const COUNT: u32 = 1_000_000_000;

/// A library under comparison, connected.
pub trait Peer: Send + Sync + 'static {
    type Lock: PeerLock;

    /// Makes a semaphore or a latch of this name, unless it is there.
    fn prepare(&self, _: Kind, _name: &str) -> impl Future<Output = ()> + Send {
        std::future::ready(())
    }

    /// A lock of this name, or what the library lacks for it.
    ///
    /// With a lease, a lock that a dying holder leaves behind; without, a lock as the library's documentation shows it.
    fn lock(
        &self,
        kind: Kind,
        name: &str,
        lease: Option<Duration>,
    ) -> Result<Self::Lock, &'static str>;
}

/// A lock as one task has it.
pub trait PeerLock: Send + 'static {
    type Guard: Send;

    /// Waits for the lock; an error says that the library gave up.
    fn acquire(&mut self) -> impl Future<Output = Result<Self::Guard, String>> + Send;

    fn release(&mut self, guard: Self::Guard) -> impl Future<Output = ()> + Send;
}

/// Serves requests until the input ends.
pub async fn serve<P, F>(versions: &str, connect: impl FnOnce(String) -> F)
where
    P: Peer,
    F: Future<Output = P>,
{
    let address = std::env::args().nth(1).expect("an address: host:port");
    let peer = connect(format!("redis://{address}/")).await;
    say(&format!("ready {versions}"));
    // There is no other work during this time, so the thread of `main` may block.
    for line in std::io::stdin().lock().lines() {
        let line = line.expect("requests in UTF-8");
        let words: Vec<&str> = line.split(' ').collect();
        match words[..] {
            ["hold", name, lease] => hold(&peer, name, lease).await,
            ["wait", name, lease] => wait(&peer, name, lease).await,
            _ => say(&Job::parse(&words).run(&peer).await),
        }
    }
}

/// Takes a lock and keeps it until this process is killed.
async fn hold<P: Peer>(peer: &P, name: &str, lease: &str) {
    match peer.lock(Kind::Exclusive, name, Some(milliseconds(lease))) {
        Ok(mut lock) => {
            let guard = lock.acquire().await.expect("nobody else wants it");
            say("held");
            // If it is not killed, it ends with its input.
            let _ = std::io::stdin().lock().lines().next();
            drop(guard);
        }
        Err(lack) => say(&format!("lacks {lack}")),
    }
}

/// Waits for a lock that another process holds; gives it back once it has it.
async fn wait<P: Peer>(peer: &P, name: &str, lease: &str) {
    match peer.lock(Kind::Exclusive, name, Some(milliseconds(lease))) {
        Ok(mut lock) => {
            say("waiting");
            let guard = job::persist(&mut lock, &mut 0).await;
            say("held");
            lock.release(guard).await;
        }
        Err(lack) => say(&format!("lacks {lack}")),
    }
}

fn milliseconds(word: &str) -> Duration {
    Duration::from_millis(word.parse().expect("milliseconds"))
}

fn say(answer: &str) {
    let mut output = std::io::stdout().lock();
    // If the pipe is closed, the caller is gone, and this process ends soon after.
    let _ = writeln!(output, "{answer}").and_then(|()| output.flush());
}

//! The parts of the engine that the crate `lockset-operator` needs: questions to the servers, the names of keys and
//! channels, the form of announcements, and taking a hold from its holder.
//!
//! For that crate alone. It is not part of the documented API, and it changes with the engine. Invariant: it decides
//! nothing. That crate decides which questions are asked, and what the answers mean.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, Value};

use crate::api::error::{Error, ErrorKind, Result};
use crate::api::handle::Handle;
use crate::client::Client;
use crate::conn::Lane;
pub use crate::conn::{Channels, command, value::text};
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::engine::hold::facts::leave;
pub use crate::engine::keys::{HOLDS_OF_PERMITS, LockName, within_braces};
use crate::fair::FairLock;
pub use crate::observe::announce::{Entry, INDEX_KEY, Record, key_of};
use crate::reentrant::ReentrantLock;
use crate::rwlock::{ReadSide, RwLock, WriteSide};
pub use crate::script::reply::permit_id;
use crate::script::{Answer, Call, catalog, reply};
use crate::semaphore::Semaphore;

/// The operation that errors of questions name.
const ASKING: &str = "survey";

/// The least time for one reply, even if leases are short.
const REPLY_MIN: Duration = Duration::from_secs(1);

/// The servers of a client, for commands that read.
#[derive(Clone, Debug)]
pub struct Servers {
    core: Arc<Core>,
    prefix: Arc<str>,
    sent: Arc<AtomicU64>,
}

impl Servers {
    /// The servers of this client.
    pub fn of(client: &Client) -> Self {
        Self {
            core: Arc::clone(client.core()),
            prefix: client.key_prefix().into(),
            sent: Arc::default(),
        }
    }

    /// The client's key prefix.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Checks a name.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid): no lock can have this name.
    pub fn name(&self, name: &str) -> Result<LockName> {
        LockName::new(&self.prefix, name).map_err(|error| error.during(ASKING))
    }

    /// How many commands were sent.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    /// Returns one key of each server that has locks.
    pub fn routes(&self) -> Vec<Arc<str>> {
        let routes = self.core.scripts.transport.routes();
        routes.into_iter().map(Arc::from).collect()
    }

    /// The address of all servers.
    pub fn address(&self) -> &str {
        self.core.scripts.transport.address()
    }

    /// The host and port of the server that has this key.
    pub fn endpoint(&self, route: &str) -> String {
        self.core.scripts.transport.endpoint(route)
    }

    /// The slot of a key.
    pub fn slot(&self, route: &str) -> u16 {
        self.core.scripts.transport.slot(route)
    }

    /// Returns the id of the process that was met last at the address of the server with this key. After an answer,
    /// that is the process that sent the answer, or a later one.
    pub fn run_id(&self, route: &str) -> Option<Arc<str>> {
        let process = self.core.scripts.transport.process(Lane::Command, route);
        process.map(|process| process.run_id)
    }

    /// The error of a question that cannot be answered now.
    pub fn refused(&self, why: &str) -> Error {
        Error::new(ErrorKind::Refused, ASKING, why)
    }

    /// How channels reach their subscribers.
    pub fn channels(&self) -> Channels {
        self.core.channels()
    }

    /// Sends a command on the lane of callers, and repeats it until it is answered or the client's limit is over.
    ///
    /// # Errors
    /// As for calls that acquire a lock.
    pub async fn ask(&self, route: &str, command: &Cmd) -> Result<Value> {
        self.core.ensure_open(ASKING)?;
        let core = &self.core;
        let until = core.clock.now().after(core.timing.give_up);
        let limit = || {
            self.sent.fetch_add(1, Ordering::Relaxed);
            core.timing.reply.max(REPLY_MIN)
        };
        let answer = core.scripts.ask(route, command, limit, until);
        answer.await.map_err(|failure| failure.into_error(ASKING))
    }
}

/// Leaves a reason for the holder of a permit, before the permit is taken away.
pub async fn leave_reason(semaphore: &Semaphore, permit: &str, reason: &str) {
    leave(semaphore.core(), permit, reason).await;
}

/// Takes the permit with this id away; `false` if there is none.
///
/// # Errors
/// As for calls that acquire permits.
pub async fn end_permit(
    semaphore: &Semaphore,
    operation: &'static str,
    permit: &str,
) -> Result<bool> {
    semaphore.end(operation, permit).await
}

/// The holds of one lock, in the mode of its handle.
#[derive(Debug)]
pub struct Holds<'a>(&'a Handle);

macro_rules! from_handles {
    ($($lock:ident)*) => {
        $(impl<'a> From<&'a $lock> for Holds<'a> {
            fn from(lock: &'a $lock) -> Self {
                Self(&lock.0)
            }
        })*
    };
}

from_handles!(ReentrantLock FairLock RwLock ReadSide WriteSide);

impl Holds<'_> {
    /// The ids of the holders.
    ///
    /// # Errors
    /// As for calls that acquire a lock.
    pub async fn holders(&self, operation: &'static str) -> Result<Vec<String>> {
        self.0.name_to_free(operation)?;
        let holds = self.0.inspect(operation).await?.into_iter();
        let in_mode = holds.filter(|hold| hold.mode == self.0.mode);
        Ok(in_mode.map(|hold| hold.holder.id).collect())
    }

    /// Leaves a reason for the holder with this id, before its hold is taken away. Without the right to write it the
    /// holder learns no reason.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid): it is no lock that can be taken away.
    pub async fn leave_reason(&self, holder: &str, reason: &str) -> Result<()> {
        self.0.name_to_free("leave_reason")?;
        leave(self.0.core(), holder, reason).await;
        Ok(())
    }

    /// Takes the hold with this id away; `false` if there is none.
    ///
    /// # Errors
    /// As for calls that acquire a lock.
    pub async fn end(&self, operation: &'static str, holder: &str) -> Result<bool> {
        // The field of a writer has this suffix.
        let holder = holder.strip_suffix(":write").unwrap_or(holder);
        let forced = self.0.forced(Some(holder));
        let call = (self.0.protocol).force(self.0.name_to_free(operation)?, &forced);
        let asked = self.0.ask(operation, &call, Tick::NEVER, Answer::is_done);
        asked.await
    }

    /// Runs the script of this name on keys of one slot. `read` gets its status, and whether an earlier
    /// attempt may have been executed.
    ///
    /// # Errors
    /// As for calls that acquire a lock, and if `read` does not know the status.
    pub async fn purge<T>(
        &self,
        operation: &'static str,
        keys: &[&str],
        arguments: &[&str],
        read: impl FnOnce(i64, bool) -> Option<T>,
    ) -> Result<T> {
        let mut scripts = catalog::ALL.iter().filter(|(name, _)| *name == operation);
        let (_, script) = scripts.next().expect("a script of the catalog");
        let route = self.0.name(operation)?.key();
        let call = Call::new(script, route, keys).arg(arguments);
        let read = |answer: &Answer| {
            let status = reply::int(&answer.value)?;
            read(status, answer.repeated).ok_or_else(|| reply::unreadable(&answer.value))
        };
        self.0.ask(operation, &call, Tick::NEVER, read).await
    }

    /// The error of a call with an argument that cannot work.
    pub fn invalid(&self, operation: &'static str, message: &str) -> Error {
        Error::invalid(operation, message).of_lock(self.0.given_name())
    }
}

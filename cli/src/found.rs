//! Looks up a lock of any kind by its name.

use lockset::{Client, Error, Holder};
use lockset_operator::{LockKind, ReleaseHolder, Survey};

use crate::connect::Context;
use crate::failure::Failure;
use crate::output::quoted;
use crate::status;

/// A lock that is free at one look and taken at the next looks like no lock; the number of such pairs in a row.
const LOOKS_MAX: usize = 10;

/// The prefix of the hashes with the holders of plain semaphores, which have the form of a lock. A client with a key prefix
/// cannot name them.
const HOLDERS_OF_PERMITS: &str = "lockset_sem_holds:";

/// The two layouts of a lock at the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// One holder: a reentrant or a fair lock.
    Single,
    /// Readers or a writer.
    ReadWrite,
    /// Permits of a semaphore.
    Permits,
}

impl Form {
    /// The word for it in a message.
    pub(crate) fn what(self) -> &'static str {
        match self {
            Self::Permits => "semaphore",
            _ => "lock",
        }
    }
}

/// A lock and its holders.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) form: Form,
    /// None of them: the lock is free.
    pub(crate) holders: Vec<Holder>,
}

/// The name of a lock that was given by its name or by its whole key, as other tools show it. A lock of the given name
/// comes first.
pub(crate) async fn named(context: &Context, client: &Client, given: &str) -> String {
    let name = match given.strip_prefix(context.prefix()) {
        Some(name) if !name.is_empty() && name != given => name,
        _ => return given.to_owned(),
    };
    match Survey::new(client).has_key(given).await {
        Ok(true) => given.to_owned(),
        // Nobody has a lock of that name. Without the right to ask, the whole key is likelier.
        _ => name.to_owned(),
    }
}

/// Asks the server. A key that is no lock is an error.
pub(crate) async fn find(client: &Client, name: &str) -> Result<Found, Failure> {
    if name.starts_with(HOLDERS_OF_PERMITS) {
        let message = format!(
            "{} is no lock: lockset counts there who has permits of a plain semaphore",
            quoted(name)
        );
        return Err(Failure::new(status::NOT_A_LOCK, message));
    }
    match look(client, name).await {
        Err(error) if error.is_wrong_type() => {
            let survey = Survey::new(client);
            if let Ok(Some(found)) = survey.inspect(name).await
                && let Some(count) = found.lock.count
            {
                return Err(latch(name, count));
            }
            Err(number(&survey, name).await.unwrap_or_else(|| error.into()))
        }
        found => Ok(found?),
    }
}

fn latch(name: &str, count: u64) -> Failure {
    let message = format!(
        "{} is no lock but a latch with {count} to count down",
        quoted(name)
    );
    Failure::new(status::NOT_A_LOCK, message)
}

/// Says what a number may be, as it is no lock. `None` for another key, or for a user who may not ask.
pub(crate) async fn number(survey: &Survey, name: &str) -> Option<Failure> {
    let number = survey.number(name).await.ok()??;
    let message = format!(
        "{} is no lock but the number {number}: a semaphore with {}, all free; a latch with {number} to count \
         down and no subscribed waiter; or a value of an application",
        quoted(name),
        permits(number.into())
    );
    Some(Failure::new(status::NOT_A_LOCK, message))
}

/// The number of permits in a sentence.
pub(crate) fn permits(count: i128) -> String {
    match count {
        1 => "1 permit".to_owned(),
        _ => format!("{count} permits"),
    }
}

async fn look(client: &Client, name: &str) -> Result<Found, Error> {
    let single = client.lock(name).holder().await;
    let not_single = match single {
        Ok(holder) => {
            return Ok(Found {
                form: Form::Single,
                holders: holder.into_iter().collect(),
            });
        }
        Err(error) if error.is_wrong_type() => error,
        Err(error) => return Err(error),
    };
    let lock = client.rw_lock(name);
    let holders = match lock.write_side().holder().await {
        Ok(Some(writer)) => vec![writer],
        Ok(None) => lock.read_side().holders().await?,
        Err(error) if error.is_wrong_type() => {
            return taken_permits(client, name).await?.ok_or(not_single);
        }
        Err(error) => return Err(error),
    };
    Ok(Found {
        form: Form::ReadWrite,
        holders,
    })
}

/// The semaphore of this name, if a permit is or was taken. Without that, its number may be anything.
async fn taken_permits(client: &Client, name: &str) -> Result<Option<Found>, Error> {
    let holders = match client.semaphore(name).holders().await {
        Ok(holders) => holders,
        Err(error) if error.is_wrong_type() => return Ok(None),
        Err(error) => return Err(error),
    };
    if holders.is_empty() {
        // The leases of permits may have ended, which only a look at all of them tells.
        match Survey::new(client).inspect(name).await {
            Ok(Some(found)) if found.lock.kind == LockKind::Semaphore => {}
            _ => return Ok(None),
        }
    }
    Ok(Some(Found {
        form: Form::Permits,
        holders,
    }))
}

/// Whether the lock is free, asked with the rights of a user who may only read. A key that is no lock is an
/// error. After a look that `had_permits`, a plain number is a semaphore with all its permits.
pub(crate) async fn is_free_to_readers(
    client: &Client,
    name: &str,
    had_permits: &mut bool,
) -> Result<bool, Failure> {
    let survey = Survey::new(client);
    for _ in 0..LOOKS_MAX {
        if let Some(found) = survey.inspect(name).await? {
            if let Some(count) = found.lock.count {
                return Err(latch(name, count));
            }
            *had_permits = found.lock.kind == LockKind::Semaphore;
            return Ok(found.lock.holders.is_empty());
        }
        if *had_permits || !survey.has_key(name).await? {
            return Ok(true);
        }
        // No lock, or a lock that was taken in between.
    }
    if let Some(failure) = number(&survey, name).await {
        return Err(failure);
    }
    let message = format!(
        "lock {}: its key is no lock, or a lock without a lease",
        quoted(name)
    );
    Err(Failure::new(status::NOT_A_LOCK, message))
}

/// Ends one holder's hold, or its place in a queue, and leaves the reason at the server; `false` if it has
/// neither.
pub(crate) async fn evict(
    client: &Client,
    name: &str,
    form: Form,
    holder: &str,
    reason: &str,
) -> Result<bool, Error> {
    match form {
        Form::ReadWrite => {
            let lock = client.rw_lock(name);
            return lock.release_holder_because(holder, reason).await;
        }
        Form::Permits => {
            let semaphore = client.semaphore(name);
            return semaphore.release_holder_because(holder, reason).await;
        }
        Form::Single => {}
    }
    // Both kinds have this key, but other waiters to notify.
    let fair = client.fair_lock(name);
    if fair.waiters().await?.is_empty() {
        let lock = client.lock(name);
        lock.release_holder_because(holder, reason).await
    } else {
        fair.release_holder_because(holder, reason).await
    }
}

//! Looks up a lock of any kind by its name.

use lockset::{Client, Error, Holder};
use lockset_operator::{LockInfo, LockKind, ReleaseHolder, Survey};

use crate::connect::Context;
use crate::failure::Failure;
use crate::output::quoted;
use crate::status;

/// A lock that is free at one look and taken at the next looks like no lock; the number of such pairs in a row.
const LOOKS_MAX: usize = 10;

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
    let survey = Survey::new(client);
    if let Some(semaphore) = survey.semaphore_noted_at(name) {
        let message = format!(
            "{} is no lock: lockset notes there who has permits of the plain semaphore {}; `show` that one",
            quoted(name),
            quoted(&semaphore)
        );
        return Err(Failure::new(status::NOT_A_LOCK, message));
    }
    match look(client, name).await {
        Err(error) if error.is_wrong_type() => {
            if let Ok(Some(found)) = survey.inspect(name).await
                && let Some(failure) = no_lock(name, &found.lock)
            {
                return Err(failure);
            }
            Err(number(&survey, name).await.unwrap_or_else(|| error.into()))
        }
        found => Ok(found?),
    }
}

/// Says what it is, if it has no holder that can be evicted: a latch, or a plain semaphore.
fn no_lock(name: &str, found: &LockInfo) -> Option<Failure> {
    let what = match (found.count, found.free_permits) {
        (Some(count), _) => format!("a latch with {count} to count down"),
        (None, Some(free)) if found.kind == LockKind::PlainSemaphore => {
            let left = permits(free.into());
            format!(
                "a plain semaphore with {left} left; it has no leases, and its holders give their permits back"
            )
        }
        // Permits with leases would be known.
        (None, Some(0)) if found.holders.is_empty() => {
            "a semaphore with no permit left: a plain one whose holders are not noted, or one with 0 permits in all"
                .to_owned()
        }
        _ => return None,
    };
    let message = format!("{} is no lock but {what}", quoted(name));
    Some(Failure::new(status::NOT_A_LOCK, message))
}

/// Says what a number may be, as it is no lock. `None` for another key, or for a user who may not ask.
pub(crate) async fn number(survey: &Survey, name: &str) -> Option<Failure> {
    let number = survey.number(name).await.ok()??;
    let what = match number {
        1.. => format!(
            "a semaphore with {permits}, all free; a plain one with {permits} left; a latch with {number} to count \
             down and no subscribed waiter",
            permits = permits(number.into())
        ),
        // A semaphore of the other kind would be known by its permits.
        _ => "a plain semaphore with no permit left; a semaphore with 0 permits in all; an open latch of \
              Redisson"
            .to_owned(),
    };
    let name = quoted(name);
    let message =
        format!("{name} is no lock but the number {number}: {what}; or a value of an application");
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
            Ok(Some(found))
                if found.lock.kind == LockKind::Semaphore
                    && no_lock(name, &found.lock).is_none() => {}
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
        // A barrier of this name has keys of its own.
        let found = survey.inspect(name).await?;
        if let Some(found) = found.filter(|found| found.lock.kind != LockKind::Barrier) {
            if let Some(failure) = no_lock(name, &found.lock)
                && !*had_permits
            {
                return Err(failure);
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

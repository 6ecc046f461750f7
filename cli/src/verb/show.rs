//! `show`: one lock with all that the server knows of it.

use clap::Args;
use lockset_operator::{
    HoldMode, LockDetail, LockHolder, LockInfo, LockKind, QueuedWaiter, Survey,
};
use serde::Serialize;

use crate::connect::Context;
use crate::facts::{ClientFact, LockFact, WaiterFact, numbers, short, times, who};
use crate::failure::{Failure, Outcome};
use crate::found::{find, is_free_to_readers, named, number, permits};
use crate::output::{Style, quoted, shown};
use crate::{span, status};

/// Show one lock: holders, counts, age, remaining lease, waiters in their order, token, server.
///
/// Of a semaphore it shows the permits, with the lease of each; of a plain semaphore the permits of
/// clients of lockset; of an election the value of its leader; of a latch that is waited for its count; of a barrier the parties
/// that wait. The status is 0 if it is held or waited for, and 1 if it is free.
#[derive(Args)]
#[command(after_help = "Example:\n  lockset show order:7")]
pub(crate) struct Show {
    /// The name of the lock, semaphore, latch, barrier or election, or its whole key with the prefix.
    name: String,
}

/// The answer for a lock that is held or waited for.
#[derive(Serialize)]
struct Shown<'a> {
    #[serde(flatten)]
    lock: LockFact<'a>,
    /// A latch or a barrier is free while no client waits there.
    free: bool,
    server: &'a str,
    queue: Vec<WaiterFact<'a>>,
    announced_waits: Vec<AnnouncedWait<'a>>,
    channels: Vec<Channel<'a>>,
}

#[derive(Serialize)]
struct AnnouncedWait<'a> {
    waited_ms: u128,
    #[serde(flatten)]
    client: ClientFact<'a>,
}

#[derive(Serialize)]
struct Channel<'a> {
    name: &'a str,
    subscribers: u64,
}

/// The answer for a lock that is neither.
#[derive(Serialize)]
struct Free<'a> {
    name: &'a str,
    free: bool,
}

impl Show {
    pub(crate) async fn run(mut self, context: &Context) -> Outcome {
        let client = context.client().await?;
        self.name = named(context, &client, &self.name).await;
        let survey = Survey::new(&client);
        let Some(found) = survey.inspect(&self.name).await? else {
            // A user who may not ask learns less.
            if let Some(failure) = number(&survey, &self.name).await {
                return Err(failure);
            }
            // Names a key that is no lock. A user who may only read asks in another way.
            match find(&client, &self.name).await {
                Err(failure) if failure.is_without_rights() => {
                    is_free_to_readers(&client, &self.name, &mut false).await?;
                }
                found => drop(found?),
            }
            let (name, free) = (self.name.as_str(), true);
            let text = || format!("lock {} is free and has no waiters", quoted(name));
            context.output.say(&Free { name, free }, text)?;
            client.shutdown().await?;
            return Ok(status::NO);
        };
        let (fact, lock) = (fact(&found), &found.lock);
        let is_free = lock.holders.is_empty() && lock.waiters == 0;
        if context.output.json {
            context.output.say(&fact, String::new)?;
        } else if let (true, Some(free)) = (is_free, lock.free_permits) {
            let (name, permits) = (quoted(&self.name), permits(free.into()));
            let text = format!("{name} is a semaphore with {permits}, all free");
            context.output.line(&text)?;
        } else {
            print(context, &found)?;
        }
        client.shutdown().await?;
        Ok(if is_free { status::NO } else { status::OK })
    }
}

fn is_free(lock: &LockInfo) -> bool {
    let is_awaited = lock.count.or(lock.parties).is_some() && lock.waiters > 0;
    lock.holders.is_empty() && lock.free_permits != Some(0) && !is_awaited
}

fn fact(found: &LockDetail) -> Shown<'_> {
    let waits = found.announced_waits.iter();
    let channels = found.channels.iter();
    Shown {
        lock: (&found.lock).into(),
        free: is_free(&found.lock),
        server: &found.server,
        queue: found.queue.iter().map(Into::into).collect(),
        announced_waits: waits
            .map(|(client, lasts)| AnnouncedWait {
                waited_ms: lasts.as_millis(),
                client: ClientFact::of(Some(client)),
            })
            .collect(),
        channels: channels
            .map(|(name, subscribers)| Channel {
                name,
                subscribers: *subscribers,
            })
            .collect(),
    }
}

fn print(context: &Context, found: &LockDetail) -> Result<(), Failure> {
    let (output, lock) = (&context.output, &found.lock);
    let line = |name: &str, value: String| {
        output.line(&format!(
            "{} {value}",
            output.paint(Style::Dim, &format!("{name:<8}"))
        ))
    };
    output.line(&output.paint(Style::Bold, &shown(&lock.name)))?;
    line("kind", lock.kind.as_str().to_owned())?;
    if lock.key != lock.name {
        line("key", shown(&lock.key))?;
    }
    line("server", found.server.clone())?;
    if let Some(numbers) = numbers(lock) {
        line("count", numbers)?;
    }
    if let Some(value) = &lock.value {
        line("value", quoted(value))?;
    }
    match &*lock.holders {
        // Of a semaphore, others may have the rest.
        [] if lock.count.or(lock.parties).or(lock.free_permits).is_some() => {}
        [] => line("held", "free at this moment".to_owned())?,
        holders => {
            for holder in holders {
                line("held", holder_text(holder, lock.kind))?;
            }
            if lock.free_permits.is_none() {
                line("lease", format!("{} left", span::show(lock.remaining)))?;
            }
        }
    }
    if let Some(token) = lock.token {
        line("token", token.to_string())?;
    }
    line("waiters", waiters_text(found))?;
    for (place, waiter) in found.queue.iter().enumerate() {
        line("", format!("{}. {}", place + 1, waiter_text(waiter)))?;
    }
    for (client, lasts) in &found.announced_waits {
        line(
            "waits",
            format!(
                "{} for {}",
                who(&client.id, Some(client)),
                span::show(*lasts)
            ),
        )?;
    }
    Ok(())
}

fn holder_text(holder: &LockHolder, kind: LockKind) -> String {
    let mut text = format!("by {}", who(&holder.id, holder.client.as_deref()));
    if !matches!(holder.mode, HoldMode::Exclusive | HoldMode::Permit) {
        text = format!("{text}, to {}", holder.mode.as_str());
    }
    text.push_str(&times(holder));
    if let Some(held) = holder.held_for {
        text = format!("{text}, for {}", span::show(held));
    }
    if let Some(left) = holder.remaining {
        text = format!("{text}, lease {}", span::show(left));
    }
    let version = holder
        .client
        .as_ref()
        .and_then(|client| client.announced.as_ref());
    let library = match (&holder.client, version) {
        (Some(client), Some(of)) if client.addresses.is_empty() => {
            format!(
                "lockset {}, no connection of it is seen",
                shown(&of.version)
            )
        }
        (_, Some(of)) => format!("lockset {}", shown(&of.version)),
        (Some(_), None) => "lockset".to_owned(),
        (None, _) if kind == LockKind::PlainSemaphore => "a client that has ended".to_owned(),
        (None, _) => "Redisson, or a client that has ended".to_owned(),
    };
    format!("{text} ({library}; holder {})", shown(&holder.id))
}

fn waiters_text(found: &LockDetail) -> String {
    let count = found.lock.waiters;
    if found.lock.parties.is_some() {
        return "the parties that have come, in no order:".to_owned();
    }
    if !found.queue.is_empty() {
        return format!("{count}, of whom in this order:");
    }
    match count {
        0 => "none".to_owned(),
        1 => "1 client".to_owned(),
        _ => format!("{count} clients"),
    }
}

fn waiter_text(waiter: &QueuedWaiter) -> String {
    let who = who(&waiter.id, waiter.client.as_deref());
    let wants = match waiter.mode {
        HoldMode::Exclusive | HoldMode::Permit => String::new(),
        // Its own name may stand behind its id.
        HoldMode::Party => format!(" ({})", short(&waiter.id)),
        mode => format!(", to {}", mode.as_str()),
    };
    let kept = span::show(waiter.kept_for);
    let kept = match (waiter.has_heartbeat, waiter.kept_for.is_zero()) {
        (true, true) => "gone: its heartbeat has ended".to_owned(),
        (true, false) => format!("heartbeat {kept}"),
        (false, true) => "no heartbeat".to_owned(),
        (false, false) => format!("Redisson, place kept {kept}"),
    };
    format!("{who}{wants}, {kept}")
}

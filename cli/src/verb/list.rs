//! `list`: the locks, semaphores, latches, barriers and elections that are held or waited for.

use std::time::Duration;

use clap::Args;
use lockset_operator::{LockInfo, LockKind, Survey};

use crate::connect::Context;
use crate::facts::{LockFact, remaining, table, taken, who};
use crate::failure::{Failure, Outcome};
use crate::output::{Style, shown};
use crate::{span, status};

/// List the locks that are held: kind, holder, count, age, remaining lease, waiters, token.
///
/// Semaphores are listed with their permits, taken and in all, plain ones with their free permits, barriers with their
/// parties, here and in all, and elections with their leaders. It scans all keys of the server
/// three times, a thousand at a time, in a tenth of its time, and leaves out all other keys. --contended scans no key:
/// it finds the locks, semaphores, latches and barriers that have waiters by their channels. It does not see tasks that wait in the process that holds the lock, nor polled waiters.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  lockset list 'order:*'\n  lockset list --contended\n  \
    lockset list --held-longer 10m --json | jq -r .name"
)]
pub(crate) struct List {
    /// Only names that match: `*` any letters, `?` one, `[ab]` one of these.
    #[arg(default_value = "*")]
    glob: String,
    /// Only locks that other clients wait for, found without a scan of the keys.
    #[arg(long)]
    contended: bool,
    /// Only locks that are known to be held for longer. Holds are announced by clients of lockset when they are
    /// older than one announcement (10 s with the default lease); permits, and holds of Redisson, are never announced.
    #[arg(long, value_parser = span::read, value_name = "SPAN")]
    held_longer: Option<Duration>,
    /// The part of the server's time that looking may take, in percent.
    #[arg(long, default_value_t = 10.0, value_parser = span::percent, value_name = "PERCENT")]
    budget: f64,
}

impl List {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let client = context.client().await?;
        let survey = Survey::new(&client)
            .matching(&self.glob)
            .share(self.budget / 100.0);
        let (mut found, mut ended): (Vec<LockInfo>, _) = (Vec::new(), status::OK);
        let mut scan = match self.contended {
            true => survey.scan_contended(),
            false => survey.scan(),
        };
        'pass: loop {
            let locks = match scan.next().await {
                Ok(Some(locks)) => locks,
                Ok(None) => break,
                Err(error) => {
                    ended = Failure::of_one_server(error)?.report();
                    scan.leave_out();
                    continue;
                }
            };
            let locks = locks.into_iter().filter(|lock| self.wants(lock));
            if context.output.json {
                // Printed as they are found, because there may be many.
                for lock in locks {
                    if !context.output.say(&LockFact::from(&lock), String::new)? {
                        break 'pass;
                    }
                }
            } else {
                found.extend(locks);
            }
        }
        found.sort_by(|a, b| a.name.cmp(&b.name));
        if found.is_empty() && ended != status::OK {
            return Ok(ended);
        }
        if !context.output.json {
            print(context, &found)?;
        }
        client.shutdown().await?;
        Ok(ended)
    }

    fn wants(&self, lock: &LockInfo) -> bool {
        self.held_longer
            .is_none_or(|least| lock.held_for() >= Some(least))
    }
}

fn print(context: &Context, locks: &[LockInfo]) -> Result<(), Failure> {
    let output = &context.output;
    if locks.is_empty() {
        output.note("no such locks");
        return Ok(());
    }
    let rows: Vec<Vec<String>> = locks.iter().map(row).collect();
    let headings = [
        "NAME", "KIND", "HOLDER", "COUNT", "AGE", "LEFT", "WAIT", "TOKEN",
    ];
    let mut lines = table(&headings, &rows).into_iter();
    if let Some(headings) = lines.next() {
        output.line(&output.paint(Style::Bold, &headings))?;
    }
    lines.try_for_each(|line| output.line(&line))
}

fn row(lock: &LockInfo) -> Vec<String> {
    let first = lock.holders.first();
    let mut holder = first.map_or("-".to_owned(), |first| {
        who(&first.id, first.client.as_deref())
    });
    if lock.holders.len() > 1 {
        holder = format!("{holder} and {} more", lock.holders.len() - 1);
    }
    let kind = match first {
        Some(first) if lock.kind == LockKind::ReadWrite => first.mode.as_str(),
        _ => lock.kind.as_str(),
    };
    let taken = taken(lock);
    let count = match (lock.free_permits, lock.count, lock.parties) {
        // Of a plain semaphore others may have more.
        (Some(free), ..) if lock.kind == LockKind::PlainSemaphore || taken == 0 => {
            format!("{free} free")
        }
        (Some(free), ..) => format!("{taken}/{}", taken.saturating_add(free)),
        (None, Some(count), _) => count.to_string(),
        (None, None, Some(parties)) => format!("{}/{parties}", lock.waiters),
        (None, None, None) => first.map_or(0, |first| first.hold_count).to_string(),
    };
    vec![
        shown(&lock.name),
        kind.to_owned(),
        holder,
        count,
        lock.held_for().map_or("-".to_owned(), span::show),
        remaining(lock).map_or("-".to_owned(), span::show),
        lock.waiters.to_string(),
        lock.token.map_or("-".to_owned(), |token| token.to_string()),
    ]
}

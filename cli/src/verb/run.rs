//! `run`: a command under one or several locks.

use std::borrow::Cow;
use std::convert::Infallible;
use std::ffi::OsString;
use std::future::pending;
use std::time::Duration;

use clap::{ArgGroup, Args};
use tokio::time::{Instant, timeout};

use crate::child::{Child, Ended, Limits, Signals};
use crate::connect::{Context, END_MAX, Reasons, Servers};
use crate::failure::{Failure, Outcome};
use crate::held::{Asked, Held, Kind, Patience};
use crate::outage::Outage;
use crate::output::{complain, shown};
use crate::{span, status};

/// Run a command while holding a lock.
///
/// Waits for the lock, runs the command in a process group of its own, releases the lock, and ends with the
/// command's status. Signals are passed on to the command, which also gets the terminal.
///
/// While the command runs, the lock is renewed. If the renewals fail, or the lock is lost, the command gets
/// SIGTERM and then SIGKILL before another client can be granted the lock. It is killed, too, if this program
/// is.
#[derive(Args)]
#[command(
    after_help = EXAMPLES,
    group = ArgGroup::new("kind").args(["fair", "read", "write"]),
    group = ArgGroup::new("patience").args(["wait", "attempt"])
)]
pub(crate) struct Run {
    /// The lock. Several are taken together, all or none.
    #[arg(required_unless_present_any = ["with", "with_fair", "with_read", "with_write"], value_name = "NAME")]
    names: Vec<String>,
    /// Take the locks in the order of asking.
    #[arg(long)]
    fair: bool,
    /// Take read locks: others may read at the same time.
    #[arg(long)]
    read: bool,
    /// Take write locks, which exclude readers and writers.
    #[arg(long)]
    write: bool,
    /// Take one of N permits instead of a lock: at most N such commands run at once. With --fair in the order of
    /// asking.
    #[arg(
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(1..=i64::from(i32::MAX)),
        conflicts_with_all = [
            "read", "write", "with", "with_fair", "with_read", "with_write", "at_least", "max_hold", "fenced"
        ]
    )]
    permits: Option<u32>,
    /// Take this plain lock as well, beside locks of any kind. May be repeated.
    #[arg(long, value_name = "NAME")]
    with: Vec<String>,
    /// Take this fair lock as well. May be repeated.
    #[arg(long, value_name = "NAME")]
    with_fair: Vec<String>,
    /// Take this read lock as well. May be repeated.
    #[arg(long, value_name = "NAME")]
    with_read: Vec<String>,
    /// Take this write lock as well. May be repeated.
    #[arg(long, value_name = "NAME")]
    with_write: Vec<String>,
    /// Wait at most this long for the lock, and for a server that cannot be reached yet; then end with status 75
    /// or 69. Default: as long as it takes for the lock, 10s for a server.
    #[arg(long, value_parser = span::read, value_name = "SPAN")]
    wait: Option<Duration>,
    /// Do not wait at all: neither for the lock nor for a server.
    #[arg(long = "try", alias = "no-wait")]
    attempt: bool,
    /// How long the lock stays taken if this machine dies; renewed every third of it.
    #[arg(long, value_parser = span::read, default_value = "30s", value_name = "SPAN")]
    lease: Duration,
    /// Keep the lock taken for this long, even if the command ends before.
    #[arg(long, value_parser = span::read, value_name = "SPAN")]
    at_least: Option<Duration>,
    /// Hold the lock for at most this long. The command is ended before that, with status 76.
    #[arg(long, value_parser = span::read, value_name = "SPAN")]
    max_hold: Option<Duration>,
    /// The time between SIGTERM and the end of the lock; at most a third of the lease, or of --max-hold if that is
    /// shorter. Default: 5s, or that third if it is less. 0s: SIGKILL alone.
    #[arg(long, value_parser = span::read, value_name = "SPAN")]
    grace: Option<Duration>,
    /// The name of the holder for operators, for example in `lockset show`. Default: the command without its
    /// arguments, because those may have secrets.
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    /// Ask for a fencing token; the command finds it in LOCKSET_TOKEN.
    #[arg(long)]
    fenced: bool,
    /// The command and its arguments. After one NAME the `--` may be left out, unless the command has one of its own.
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

const EXAMPLES: &str = "\
The command's environment:
  LOCKSET_NAME      the lock; of several, one a line, as in the next two
  LOCKSET_HOLDER    the holder id, by which the server knows this hold
  LOCKSET_TOKEN     the fencing token, with --fenced
  LOCKSET_DEADLINE  when the lock ends unless it is renewed: milliseconds since 1970

Exit status: that of the command, 128 + n if signal n ended it, or
  64  wrong usage                    75  busy: another client holds the lock
  65  not a lock of this kind        76  the lock was lost and the command ended
  69  the server cannot be reached   77  no right, or a wrong password
  70  internal error                 126, 127  the command cannot be run, is not found
                                     130  Ctrl-C while waiting for the lock

Examples:
  lockset run nightly-report --try ./report.sh
  lockset run deploy --wait 10m --fenced -- sh -c './deploy --token \"$LOCKSET_TOKEN\"'
  lockset run order:7 order:8 --with-read prices -- ./rebook
  lockset run convert --permits 3 -- ./convert.sh";

/// Characters of a label.
const LABEL_MAX: usize = 200;

/// The default of `--grace`.
const GRACE: Duration = Duration::from_secs(5);
/// The kill comes a twentieth of the shortest hold before the local end of the lock, within these.
const MARGIN: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(500));
/// How often to look how long the lock is held: a twentieth of the shortest hold, within these.
const LOOK: (Duration, Duration) = (Duration::from_millis(5), Duration::from_millis(250));

/// A call for a lock that took longer than this and its lease had answers.
const SILENCE_MAX: Duration = Duration::from_secs(20);

/// The bound on the wait for reasons, should a client still be alive.
const REASON_WAIT: Duration = Duration::from_millis(500);

/// A signal that comes while the lock is released leaves it the time for a round trip.
const RELEASE_WAIT: Duration = Duration::from_millis(500);

impl Run {
    pub(crate) async fn run(self, context: &Context) -> Outcome {
        let limits = limits(self.shortest(), self.grace)?;
        let (wait, label) = (self.patience(), self.label());
        let mut signals = Signals::ending().map_err(Failure::internal)?;
        let mut outage = Outage::new(&context.output, wait.until());
        let connected = outage.retried(Duration::MAX, async || {
            context.servers(self.lease, &label).await
        });
        let (servers, reasons) = tokio::select! {
            servers = connected => servers?,
            signal = signals.next() => return Ok(status::signalled(signal)),
        };
        // A call without an answer ends after a third of the lease, or a few seconds.
        let acquired = outage.retried(self.lease.max(SILENCE_MAX), async || {
            // After an outage the call has the rest of its wait.
            let asked = self.asked(wait);
            Held::acquire(context, &servers, &asked).await
        });
        let ended = tokio::select! {
            held = acquired => match held {
                Ok(Some(held)) => self.under(held, &servers, limits, &mut signals).await,
                Ok(None) => Ok(status::BUSY),
                Err(failure) => Err(failure),
            },
            signal = signals.next() => Ok(status::signalled(signal)),
        };
        servers.end(END_MAX).await;
        if ended.as_ref().is_err_and(Failure::is_lost) {
            say_why(reasons).await;
        }
        ended
    }

    /// Runs the command while the locks are held.
    async fn under(
        &self,
        held: Held,
        servers: &Servers,
        limits: Limits,
        signals: &mut Signals,
    ) -> Outcome {
        let began = Instant::now();
        held.settled(self.shortest() / 2).await;
        let ended = match Child::start(&self.command, held.environment(), limits) {
            Ok(child) => tokio::select! {
                ended = child.run(signals, || held.remaining(), held.lost()) => ended,
                never = announced(servers) => match never {},
            },
            Err(error) => Err(error),
        };
        let over = self.max_hold.filter(|max| {
            let held_for = began.elapsed();
            held_for >= *max || !held.is_lost() && held_for + limits.grace + limits.look >= *max
        });
        let name = held.name();
        let mut release = std::pin::pin!(held.release());
        let was_held = tokio::select! {
            was_held = &mut release => was_held,
            // The signal asks for a quick end, or was meant for the command and came late.
            _ = signals.next_ending() => {
                let released = timeout(RELEASE_WAIT, release).await;
                released.unwrap_or_else(|_| {
                    complain(&format!("lock {name} was not released in time, as far as is known; it ends with its lease at the latest"));
                    true
                })
            }
        };
        status_of(&name, ended.map_err(Failure::internal)?, was_held, over)
    }

    fn label(&self) -> String {
        let command = || {
            self.command
                .first()
                .map(|program| program.to_string_lossy())
        };
        let label = self.label.as_deref().map(Cow::Borrowed).or_else(command);
        label.unwrap_or_default().chars().take(LABEL_MAX).collect()
    }

    fn patience(&self) -> Patience {
        match self.wait {
            _ if self.attempt => Patience::Until(Instant::now()),
            // A wait without an end that the clock can show.
            Some(wait) => Instant::now()
                .checked_add(wait)
                .map_or(Patience::Unbounded, Patience::Until),
            None => Patience::Unbounded,
        }
    }

    fn asked(&self, patience: Patience) -> Asked {
        let kind = if self.fair {
            Kind::Fair
        } else if self.read {
            Kind::Read
        } else if self.write {
            Kind::Write
        } else {
            Kind::Plain
        };
        let each = [
            (kind, &self.names),
            (Kind::Plain, &self.with),
            (Kind::Fair, &self.with_fair),
            (Kind::Read, &self.with_read),
            (Kind::Write, &self.with_write),
        ];
        let of_kind = |(kind, names): (Kind, &Vec<String>)| {
            let named = names.iter().map(move |name| (kind, name.clone()));
            named.collect::<Vec<_>>()
        };
        Asked {
            locks: each.into_iter().flat_map(of_kind).collect(),
            permits: self.permits,
            lease: self.lease,
            at_least: self.at_least,
            max_hold: self.max_hold,
            fenced: self.fenced,
            patience,
        }
    }

    /// The shortest time that the lock can be held.
    fn shortest(&self) -> Duration {
        self.max_hold.unwrap_or(self.lease).min(self.lease)
    }
}

/// Announces the holder once. Never returns.
async fn announced(servers: &Servers) -> Infallible {
    servers.announce().await;
    pending().await
}

/// For a lock that is held for `shortest` at least.
fn limits(shortest: Duration, grace: Option<Duration>) -> Result<Limits, Failure> {
    let longest = shortest / 3;
    let margin = (shortest / 20).clamp(MARGIN.0, MARGIN.1);
    if let Some(grace) = grace.filter(|grace| *grace > longest) {
        return Err(Failure::usage(format!(
            "a grace of {} needs a lease (and --max-hold) of {} at least: it has to fit between two \
             renewals",
            span::show(grace),
            span::show(grace.saturating_mul(3))
        )));
    }
    // A grace of zero asks for SIGKILL alone.
    if let Some(grace) = grace.filter(|grace| !grace.is_zero() && *grace <= margin) {
        return Err(Failure::usage(format!(
            "a grace of {} leaves no time between SIGTERM and SIGKILL, which comes {} before the lock has \
             to be given up: ask for more, or for 0s to have SIGKILL alone",
            span::show(grace),
            span::show(margin)
        )));
    }
    Ok(Limits {
        grace: grace.unwrap_or(GRACE).min(longest),
        margin,
        look: (shortest / 20).clamp(LOOK.0, LOOK.1),
    })
}

/// Writes the reasons that operators gave when they freed the lock. The clients have ended, so no further
/// reason comes.
async fn say_why(mut reasons: Reasons) {
    while let Ok(Some(reason)) = timeout(REASON_WAIT, reasons.recv()).await {
        complain(&format!("taken away by an operator: {}", shown(&reason)));
    }
}

/// `over`: the `--max-hold` that was reached.
fn status_of(name: &str, ended: Ended, was_held: bool, over: Option<Duration>) -> Outcome {
    let (status, message) = match (ended, over) {
        (Ended::Command(exit) | Ended::NotBegun(exit), _) if was_held => return Ok(exit),
        (Ended::Command(_) | Ended::NotBegun(_), _) => (
            status::LOST,
            format!("lock {name} was lost as the command ended; check what it wrote last"),
        ),
        (Ended::Lost, Some(max)) => (
            status::LOST,
            format!(
                "lock {name} was held for as long as --max-hold {} allows, so the command was ended; \
                 what it wrote last may be incomplete",
                span::show(max)
            ),
        ),
        (Ended::Lost, None) => (
            status::LOST,
            format!(
                "lock {name} could not be kept, so the command was ended; what it wrote last may \
                 be incomplete"
            ),
        ),
        (Ended::Unsupervised, _) => (
            status::INTERNAL,
            "the supervisor of the command was killed, so the command was killed too".to_owned(),
        ),
    };
    Err(Failure::new(status, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn there_is_time_between_the_request_to_end_and_the_kill() {
        for (shortest, grace, expected) in [
            (30_000, None, (5_000, 500)),
            (6_000, None, (2_000, 300)),
            (1_000, None, (333, 50)),
            (1_000, Some(300), (300, 50)),
            (100, None, (33, 10)),
            (30_000, Some(501), (501, 500)),
            (30_000, Some(0), (0, 500)),
        ] {
            let limits = limits(ms(shortest), grace.map(ms)).expect("it is accepted");
            let found = (limits.grace.as_millis(), limits.margin.as_millis());
            assert_eq!(found, expected, "{shortest} ms, grace {grace:?}");
            assert!(limits.look <= limits.margin, "{shortest} ms");
        }
        for (shortest, grace) in [(30_000, 500), (1_000, 50), (1_000, 334), (100, 10)] {
            let refused = limits(ms(shortest), Some(ms(grace)));
            assert!(refused.is_err(), "{shortest} ms, grace {grace} ms");
        }
    }
}

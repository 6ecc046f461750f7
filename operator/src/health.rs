//! The servers of a client as a program meets them: their own reports, their distance, and the user's rights there.

use std::time::{Duration, SystemTime};

use futures_util::future::join_all;
use lockset::Result;
use lockset::operator::{Servers, text};
use tokio::time::Instant;

use crate::ask::{command, list, microseconds};
use crate::info::{ServerLoad, ServerReport};
use crate::{Survey, rights};

/// How many times the clock of a server is read.
const LOOKS: usize = 9;

impl Survey {
    /// Returns every server that has locks, as this client meets it. For tools that find faults of a server.
    ///
    /// Some twenty commands to each server, and one for each right.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks), except that missing rights are part of the answer, and so is a server that does not
    /// answer ([`ServerReport::failure`]) while another one does.
    pub async fn servers(&self) -> Result<Vec<ServerReport>> {
        let mut reports = Vec::new();
        for route in self.servers.routes() {
            let mut report = ServerReport {
                address: self.servers.endpoint(&route),
                ..ServerReport::default()
            };
            match measure(&self.servers, &route, &mut report).await {
                Err(error) if error.is_denied() => {}
                Err(error) if error.is_io() || error.is_refused() => {
                    report.failure = Some(error);
                    reports.push(report);
                    continue;
                }
                measured => measured?,
            }
            if let Ok(info) = self.servers.ask(&route, &command(&["INFO"])).await {
                let lines = text(&info).unwrap_or_default().lines();
                let fields = lines.filter_map(|line| line.split_once(':'));
                report.info = fields
                    .map(|(name, value)| (name.into(), value.trim().into()))
                    .collect();
            }
            report.has_restore = self.has(&route, &["RESTORE"]).await;
            let channels = self.servers.channels();
            let waking = [channels.subscribe(), channels.publish()];
            report.has_pubsub = self.has(&route, &waking).await;
            let user = self.servers.ask(&route, &command(&["ACL", "WHOAMI"])).await;
            report.user = user.ok().as_ref().and_then(text).map(str::to_owned);
            if let Some(user) = &report.user {
                report.rights = rights::given(&self.servers, &route, user).await;
            }
            reports.push(report);
        }
        if reports.iter().all(|report| report.failure.is_some())
            && let Some(failure) = reports.pop().and_then(|report| report.failure)
        {
            return Err(failure);
        }
        Ok(reports)
    }

    /// Whether the server has all of these commands; `None` without the right to ask.
    async fn has(&self, route: &str, commands: &[&str]) -> Option<bool> {
        let ask = command(&[&["COMMAND", "INFO"], commands].concat());
        let found = self.servers.ask(route, &ask).await.ok()?;
        let is_known = |command| !list(command).is_empty();
        Some(list(&found).len() == commands.len() && list(&found).iter().all(is_known))
    }

    /// Returns the slot of a lock of this name in a cluster, and the server that has it. Without a cluster the slot is
    /// 0.
    ///
    /// # Errors
    /// [`is_invalid`](lockset::Error::is_invalid): no lock can have this name.
    pub fn place(&self, name: &str) -> Result<(u16, String)> {
        let name = self.servers.name(name)?;
        let slot = self.servers.slot(name.key());
        Ok((slot, self.servers.endpoint(name.key())))
    }

    /// Returns how busy the servers are, with one command to each.
    ///
    /// The first call returns the servers' own figure for the last second or so. Later calls count from the call
    /// before, and leave out the commands of this survey and its clones.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks). Without the right to ask, the answer has only the round trip. A server that does not
    /// answer is part of the answer ([`ServerLoad::failures`]) while another one does.
    pub async fn load(&self) -> Result<ServerLoad> {
        let mut load = ServerLoad {
            address: self.servers.address().to_owned(),
            ..ServerLoad::default()
        };
        let mut now = Commands {
            at: Instant::now(),
            executed: 0,
            sent: self.servers.sent(),
        };
        let routes = self.servers.routes();
        let asked = routes.iter().map(async |route| {
            let began = Instant::now();
            let info = self.servers.ask(route, &command(&["INFO", "stats"])).await;
            (self.servers.endpoint(route), began.elapsed(), info)
        });
        for (address, trip, info) in join_all(asked).await {
            let info = match info {
                Err(error) if error.is_io() || error.is_refused() => {
                    load.failures.insert(address, error);
                    continue;
                }
                info => info,
            };
            load.round_trip = load.round_trip.max(trip);
            let info = match info {
                Err(error) if error.is_denied() => continue,
                info => info?,
            };
            let lines = text(&info).unwrap_or_default().lines();
            let fields: Vec<_> = lines.filter_map(|line| line.split_once(':')).collect();
            let number = |wanted: &str| {
                let field = fields.iter().find(|(name, _)| *name == wanted);
                field.and_then(|(_, value)| value.trim().parse::<u64>().ok())
            };
            let rate = number("instantaneous_ops_per_sec").unwrap_or_default();
            load.commands_per_second = load.commands_per_second.saturating_add(rate);
            let executed = number("total_commands_processed").unwrap_or_default();
            now.executed = now.executed.saturating_add(executed);
        }
        if load.failures.len() == routes.len()
            && let Some((_, failure)) = load.failures.pop_first()
        {
            return Err(failure);
        }
        // The sum over some of the servers is compared with no sum over all.
        let last = match load.failures.is_empty() {
            true => self.last_load.lock().replace(now),
            false => {
                *self.last_load.lock() = None;
                None
            }
        };
        if let Some(rate) = last.and_then(|last| now.rate_since(&last)) {
            load.commands_per_second = rate;
        }
        Ok(load)
    }
}

async fn measure(servers: &Servers, route: &str, report: &mut ServerReport) -> Result<()> {
    let mut trips: Vec<(Duration, i64)> = Vec::new();
    let ask = command(&["TIME"]);
    for _ in 0..LOOKS {
        let began = Instant::now();
        let time = servers.ask(route, &ask).await?;
        let trip = began.elapsed();
        let ours = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let ours = i64::try_from(ours.unwrap_or_default().as_micros()).unwrap_or(i64::MAX);
        let half = i64::try_from(trip.as_micros() / 2).unwrap_or_default();
        trips.push((
            trip,
            microseconds(&time).saturating_sub(ours.saturating_sub(half)),
        ));
    }
    trips.sort_unstable();
    report.round_trips = [trips[0].0, trips[LOOKS / 2].0];
    report.clock_ahead_ms = trips[0].1 / 1000;
    Ok(())
}

/// The commands of the servers until one moment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Commands {
    pub(crate) at: Instant,
    /// All commands that the servers have executed.
    pub(crate) executed: u64,
    /// The commands of the survey among them.
    pub(crate) sent: u64,
}

impl Commands {
    /// The commands of others per second since an earlier moment. `None` if a server was restarted in between.
    pub(crate) fn rate_since(&self, earlier: &Self) -> Option<u64> {
        let executed = self.executed.checked_sub(earlier.executed)?;
        let others = executed.saturating_sub(self.sent.saturating_sub(earlier.sent));
        let ms = u64::try_from((self.at - earlier.at).as_millis()).ok()?;
        others.saturating_mul(1000).checked_div(ms)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each looks at the servers in its own time, and the one that began first may end last.
    #[test]
    fn two_looks_at_the_load_at_once_are_no_panic() {
        let at = Instant::now();
        let commands = |ms, executed, sent| Commands {
            at: at + Duration::from_millis(ms),
            executed,
            sent,
        };
        let earlier = commands(500, 100, 9);
        assert_eq!(commands(1500, 140, 19).rate_since(&earlier), Some(30));
        assert_eq!(commands(400, 140, 5).rate_since(&earlier), None);
    }
}

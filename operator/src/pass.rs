//! A pass over the keys of all servers, slice by slice, at a bounded part of their time.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{Servers, text};
use tokio::time::{Instant, sleep_until};

use crate::ask::{command, list, texts};

/// The keys of one `SCAN`. A call of 100 costs the server 40 % more for each key, and a call of 10 000 holds it up for
/// 7 to 25 ms.
const SLICE_KEYS: u64 = 1000;

const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How often a pass goes back to the beginning of a server, because another one took over.
const RESTARTS_MAX: u32 = 8;

/// The keys that are still to look at.
#[derive(Debug)]
pub(crate) struct Pass {
    servers: Servers,
    glob: String,
    /// The type of the keys; empty: any.
    kind: &'static str,
    share: f64,
    /// The servers whose keys have all been looked at.
    done: HashSet<Run>,
    /// The address of the server that was asked last.
    asked: Option<String>,
    /// The addresses of servers that are not asked.
    left_out: HashSet<String>,
    /// In the keys of the current server.
    place: Option<Place>,
    restarts: u32,
    next_at: Instant,
    looked_at: u64,
}

/// A server by its address, and by the id of its process as far as that is known.
type Run = (String, Option<Arc<str>>);

/// A cursor, and the process that gave it: it means nothing to any other.
#[derive(Clone, Debug)]
struct Place {
    /// A key of the server.
    route: Arc<str>,
    run: Run,
    cursor: String,
}

/// The cursor that begins a pass over a server, and ends it. Other cursors mean nothing here.
const START: &str = "0";

/// Some keys of one server.
pub(crate) struct Slice {
    pub(crate) server: Arc<str>,
    pub(crate) keys: Vec<String>,
    next: Place,
    restarts: u32,
    busy: Duration,
}

impl Pass {
    /// A pass over the keys of one type that match, or of any type.
    pub(crate) fn new(servers: &Servers, glob: String, kind: &'static str, share: f64) -> Self {
        Self {
            servers: servers.clone(),
            glob,
            kind,
            share,
            done: HashSet::new(),
            asked: None,
            left_out: HashSet::new(),
            place: None,
            restarts: 0,
            next_at: Instant::now(),
            looked_at: 0,
        }
    }

    /// Counts the keys of the pass before it as well, and leaves out the same servers.
    pub(crate) fn after(self, before: &Self) -> Self {
        Self {
            looked_at: before.looked_at,
            left_out: before.left_out.clone(),
            ..self
        }
    }

    /// Returns the next keys, and repeats them until they are [`done`](Self::done); `None` after the last. Sleeps
    /// first, so that the server keeps its share of time.
    pub(crate) async fn slice(&mut self) -> Result<Option<Slice>> {
        let mut place = self.place.clone();
        for restarts in self.restarts..=RESTARTS_MAX {
            let Some(place) = place.take().or_else(|| self.begin()) else {
                return Ok(None);
            };
            sleep_until(self.next_at).await;
            self.asked = Some(place.run.0.clone());
            if let Some(slice) = self.slice_at(place, restarts).await? {
                return Ok(Some(slice));
            }
        }
        let why = "other servers took over again and again during a pass; try it later";
        Err(self.servers.refused(why))
    }

    /// The beginning of a server whose keys are still to look at. A slot that moves takes its keys from one server to
    /// another, so the servers are looked up each time.
    fn begin(&self) -> Option<Place> {
        let routes = self.servers.routes().into_iter();
        let mut places = routes.map(|route| Place {
            run: self.run(&route),
            route,
            cursor: START.to_owned(),
        });
        places
            .find(|place| !self.done.contains(&place.run) && !self.left_out.contains(&place.run.0))
    }

    /// Leaves out the server that was asked last.
    pub(crate) fn leave_out(&mut self) {
        self.left_out.extend(self.asked.take());
        self.place = None;
    }

    fn run(&self, route: &str) -> Run {
        (self.servers.endpoint(route), self.servers.run_id(route))
    }

    /// The keys from this place on; `None` if another process may have answered.
    async fn slice_at(&self, place: Place, restarts: u32) -> Result<Option<Slice>> {
        let Place { route, run, cursor } = place;
        if self.run(&route) != run {
            return Ok(None);
        }
        let began = Instant::now();
        let count = SLICE_KEYS.to_string();
        let mut slice = command(&["SCAN", &cursor, "MATCH", &self.glob, "COUNT", &count]);
        if !self.kind.is_empty() {
            slice.arg("TYPE").arg(self.kind);
        }
        let reply = self.servers.ask(&route, &slice).await?;
        let (cursor, keys) = match list(&reply) {
            [cursor, keys] => (text(cursor).unwrap_or(START), texts(keys)),
            _ => (START, Vec::new()),
        };
        let busy = began.elapsed();
        let now = self.run(&route);
        // The id is known once the process has answered.
        if now != run && (now.0 != run.0 || run.1.is_some()) {
            return Ok(None);
        }
        Ok(Some(Slice {
            server: Arc::clone(&route),
            keys,
            next: Place {
                route,
                run: now,
                cursor: cursor.to_owned(),
            },
            restarts,
            busy,
        }))
    }

    /// Finishes a slice. Reading its keys took the server `busy` in addition to the search.
    pub(crate) fn done(&mut self, slice: &Slice, busy: Duration) {
        self.next_at = Instant::now() + pause(slice.busy + busy, self.share);
        self.looked_at += SLICE_KEYS;
        self.restarts = slice.restarts;
        self.place = Some(slice.next.clone()).filter(|next| next.cursor != START);
        if self.place.is_none() {
            self.done.insert(slice.next.run.clone());
        }
    }

    pub(crate) fn looked_at(&self) -> u64 {
        self.looked_at
    }
}

/// Returns the cost of this many calls.
pub(crate) fn times(cost: Duration, count: usize) -> Duration {
    cost * u32::try_from(count).unwrap_or(u32::MAX)
}

/// Returns how long to leave a server alone after a call that took it at most `busy`.
fn pause(busy: Duration, share: f64) -> Duration {
    // A share that is not a positive number counts as the smallest one.
    busy.mul_f64((1.0 / share.max(0.0) - 1.0).clamp(0.0, 1000.0))
        .min(PAUSE_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_leaves_the_server_its_time() {
        let ms = Duration::from_millis;
        assert_eq!(pause(ms(2), 0.5), ms(2));
        assert_eq!(pause(ms(2), 0.125), ms(14));
        assert_eq!(pause(ms(2), 1.0), ms(0));
        assert_eq!(pause(ms(900), 0.01), PAUSE_MAX);
        assert_eq!(pause(ms(900), 0.0), PAUSE_MAX);
    }
}

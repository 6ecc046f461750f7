//! A pass over the keys of all servers, slice by slice, at a bounded part of their time.

use std::collections::VecDeque;
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

/// The keys that are still to look at.
#[derive(Debug)]
pub(crate) struct Pass {
    servers: Servers,
    glob: String,
    kind: &'static str,
    share: f64,
    /// A key of each server that is still to ask, the current one first.
    routes: VecDeque<Arc<str>>,
    cursor: String,
    next_at: Instant,
    looked_at: u64,
}

/// The cursor that begins a pass over a server, and ends it. Other cursors mean nothing here.
const START: &str = "0";

/// Some keys of one server.
pub(crate) struct Slice {
    pub(crate) server: Arc<str>,
    pub(crate) keys: Vec<String>,
    cursor: String,
    busy: Duration,
}

impl Pass {
    /// A pass over the keys of one type that match.
    pub(crate) fn new(servers: &Servers, glob: String, kind: &'static str, share: f64) -> Self {
        Self {
            routes: servers.routes().into(),
            servers: servers.clone(),
            glob,
            kind,
            share,
            cursor: START.to_owned(),
            next_at: Instant::now(),
            looked_at: 0,
        }
    }

    /// Counts the keys of the pass before it as well.
    pub(crate) fn after(self, before: &Self) -> Self {
        Self {
            looked_at: before.looked_at,
            ..self
        }
    }

    /// Returns the next keys, and repeats them until they are [`done`](Self::done); `None` after the last. Sleeps
    /// first, so that the server keeps its share of time.
    pub(crate) async fn slice(&self) -> Result<Option<Slice>> {
        let Some(server) = self.routes.front().cloned() else {
            return Ok(None);
        };
        sleep_until(self.next_at).await;
        let began = Instant::now();
        let count = SLICE_KEYS.to_string();
        let slice = command(&[
            "SCAN",
            &self.cursor,
            "MATCH",
            &self.glob,
            "COUNT",
            &count,
            "TYPE",
            self.kind,
        ]);
        let reply = self.servers.ask(&server, &slice).await?;
        let (cursor, keys) = match list(&reply) {
            [cursor, keys] => (text(cursor).unwrap_or(START), texts(keys)),
            _ => (START, Vec::new()),
        };
        let busy = began.elapsed();
        Ok(Some(Slice {
            server,
            keys,
            cursor: cursor.to_owned(),
            busy,
        }))
    }

    /// Finishes a slice. Reading its keys took the server `busy` in addition to the search.
    pub(crate) fn done(&mut self, slice: &Slice, busy: Duration) {
        self.next_at = Instant::now() + pause(slice.busy + busy, self.share);
        self.looked_at += SLICE_KEYS;
        self.cursor.clone_from(&slice.cursor);
        if slice.cursor == START {
            self.routes.pop_front();
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

//! The deliveries of a network as moments at which something can go wrong: it stops before any of them.
//!
//! Invariant: the same plan makes the same deliveries, so the number of one means the same moment in each run, up to
//! the first fault that one run has and the other has not.

use std::time::Duration;

use super::event::{Direction, Event, Moment, What};
use super::state::{Net, State};
use super::wire::WireId;

const LATE_CHECKED_EVERY: Duration = Duration::from_millis(100);

impl Net {
    /// Stops before the delivery with this number. Waits for ever if there is none.
    pub(crate) async fn stop_before(&self, number: u64) {
        self.with(|state| state.moments.stop = Some(number));
        self.stopped.notified().await;
    }

    /// Goes on after a stop.
    pub(crate) fn go_on(&self) {
        self.with(|state| (state.moments.stop, state.moments.has_stopped) = (None, false));
        self.changed.notify_one();
    }

    /// The connection of the next delivery breaks: that is lost, with all that is on its way there.
    pub(crate) fn break_next(&self) {
        self.with(|state| {
            if let Some((wire, _)) = state.next_on_its_way() {
                state.lose_in_flight(wire);
                state.end_at_server(wire);
            }
        });
    }

    /// The next delivery comes this much later, and so does what is behind it on its connection.
    pub(crate) fn delay_next(&self, span: Duration) {
        self.with(|state| {
            if let Some(late) = state.next_on_its_way() {
                state.late.insert(late);
                state.post_at(state.now() + span, What::InTime(late.0, late.1));
            }
        });
    }

    /// Waits until nothing is late any more.
    pub(crate) async fn all_in_time(&self) {
        while self.with(|state| state.has_late()) {
            tokio::time::sleep(LATE_CHECKED_EVERY).await;
        }
    }
}

impl State {
    /// Whether something is late on a connection that is still there.
    fn has_late(&self) -> bool {
        self.late
            .iter()
            .any(|(wire, _)| self.wires.contains_key(wire))
    }

    /// Counts a delivery.
    pub(super) fn count(&mut self, client: Option<usize>) {
        let number = self.deliveries;
        if let Some(noted) = &mut self.moments.noted {
            noted.push(Moment { number, client });
        }
        self.deliveries += 1;
    }

    /// Whether the network stops before this event. `true` once for each stop that was not there before.
    pub(super) fn stops_before_next(&mut self) -> Option<bool> {
        let is_next = self.moments.stop == Some(self.deliveries);
        let counts = self.queue.peek().is_some_and(|event| self.counts(event));
        if !is_next || !counts {
            return None;
        }
        Some(!std::mem::replace(&mut self.moments.has_stopped, true))
    }

    /// Whether this event is delivered now: its connection exists, and nothing holds it back.
    fn counts(&self, event: &Event) -> bool {
        let Some(id) = event.what.wire() else {
            return true;
        };
        let Some(wire) = self.wires.get(&id) else {
            return false;
        };
        event.what.direction().is_none_or(|direction| {
            let is_paused = self.peers[wire.client].is_paused && direction == Direction::ToClient;
            let is_cut_off = self
                .partitions
                .contains(&(wire.client, wire.server, direction));
            !is_paused && !is_cut_off && !self.late.contains(&(id, direction))
        })
    }

    /// The connection and the way of the next delivery.
    fn next_on_its_way(&self) -> Option<(WireId, Direction)> {
        let what = &self.queue.peek()?.what;
        Some((what.wire()?, what.direction()?))
    }

    /// The late bytes of a connection, this way, arrive now.
    pub(super) fn in_time(&mut self, late: (WireId, Direction)) {
        self.late.remove(&late);
        let is_late = |event: &Event| {
            event.what.wire() == Some(late.0) && event.what.direction() == Some(late.1)
        };
        let (due, held) = std::mem::take(&mut self.held)
            .into_iter()
            .partition(is_late);
        self.held = held;
        let due: Vec<Event> = due;
        // In their old places: before what was sent behind them, though that may be due by now too.
        self.queue.extend(due);
    }
}

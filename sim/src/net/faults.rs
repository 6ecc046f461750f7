//! What can go wrong, each as one call.

use super::event::{Direction, What};
use super::state::{Net, State};
use super::wire::{Phase, Wire, WireId};

impl Net {
    /// The server ends: connections are reset, and new ones fail until it is started again.
    pub(crate) fn kill(&self, server: usize) {
        self.with(|state| {
            let wires: Vec<WireId> = state.slots[server].wires.values().copied().collect();
            for wire in wires {
                state.end_at_server(wire);
            }
            state.slots[server].is_up = false;
        });
    }

    /// A server that was killed is there again, with its keys or without.
    pub(crate) fn restart(&self, server: usize, keeps_keys: bool) {
        self.with(|state| {
            let now_us = state.server_us(server);
            state.node(server).restart(keeps_keys, now_us);
            state.slots[server].is_up = true;
            state.reconnect(server);
        });
    }

    /// Stops all traffic in this direction, until it is healed; then all of it arrives.
    pub(crate) fn cut_off(&self, client: usize, server: usize, direction: Direction) {
        self.with(|state| state.partitions.insert((client, server, direction)));
    }

    pub(crate) fn heal(&self) {
        self.with(|state| {
            state.partitions.clear();
            state.splits.clear();
            // In their old places: before what was sent behind them, though that may be due by now too.
            let held = std::mem::take(&mut state.held);
            state.queue.extend(held);
        });
    }

    /// The connections of a client are reset: what was on its way is lost.
    pub(crate) fn reset(&self, client: usize) {
        self.with(|state| {
            for wire in state.open_wires(client) {
                state.lose_in_flight(wire);
                state.end_at_server(wire);
            }
        });
    }

    /// One connection of a client loses all that is sent on it from now on, this way, unnoticed.
    pub(crate) fn stall(&self, client: usize, direction: Direction) {
        self.with(|state| {
            let wires = state.open_wires(client);
            if wires.is_empty() {
                return;
            }
            let wire = wires[state.draw.usize(..wires.len())];
            if let Some(wire) = state.wires.get_mut(&wire) {
                wire.is_stalled[direction.index()] = true;
            }
        });
    }

    /// The process of a client stands still, and gets no messages.
    pub(crate) fn pause(&self, client: usize) {
        self.with(|state| state.peers[client].is_paused = true);
    }

    pub(crate) fn resume(&self, client: usize) {
        self.with(|state| state.resume(client));
    }

    /// The client is gone: its connections are closed.
    pub(crate) fn forget(&self, client: usize) {
        self.with(|state| {
            state.peers[client].inbox.clear();
            // Connections that it has left are closed too, and unfinished ones.
            let wires = state.wires.iter();
            let wires = wires.filter(|(_, wire)| wire.client == client);
            let wires: Vec<WireId> = wires.map(|(id, _)| *id).collect();
            for wire in wires {
                state.post(wire, Direction::ToServer, What::Closed(wire));
            }
        });
    }
}

impl State {
    /// Whether a connection has stalled.
    pub(crate) fn has_stalled(&self) -> bool {
        self.wires
            .values()
            .any(|wire| wire.is_stalled != [false; 2])
    }

    fn open_wires(&self, client: usize) -> Vec<WireId> {
        let is_meant = |wire: &Wire| wire.client == client && wire.phase == Phase::Open;
        let open = self.wires.iter().filter(|(_, wire)| is_meant(wire));
        open.map(|(id, _)| *id).collect()
    }

    /// Nothing that is on its way on this connection arrives.
    pub(super) fn lose_in_flight(&mut self, wire: WireId) {
        self.queue.retain(|event| event.what.wire() != Some(wire));
        self.held.retain(|event| event.what.wire() != Some(wire));
    }
}

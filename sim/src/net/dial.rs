//! How a connection is made, and how it ends.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use super::event::{Direction, What};
use super::inbox::Inbox;
use super::state::State;
use super::wire::{Phase, Wire, WireId};

impl State {
    /// Begins to make a connection of a client to a server.
    pub(super) fn dial(&mut self, client: usize, server: usize, inbox: &Arc<Inbox>) -> WireId {
        self.last_wire += 1;
        let wire = self.last_wire;
        let made = Wire {
            client,
            server,
            phase: Phase::Dialing,
            inbox: Arc::clone(inbox),
            accepted: None,
            waiting: None,
            behind: VecDeque::new(),
            free_at: [Duration::ZERO; 2],
            is_stalled: [false; 2],
        };
        self.wires.insert(wire, made);
        self.post(wire, Direction::ToServer, What::Hello(wire));
        wire
    }

    /// The server accepts a connection, if it is up.
    pub(super) fn hello(&mut self, wire: WireId) {
        let Some(made) = self.wires.get(&wire) else {
            return;
        };
        let (client, server) = (made.client, made.server);
        if made.phase != Phase::Dialing {
            return;
        }
        if !self.slots[server].is_up {
            self.post(wire, Direction::ToClient, What::NobodyThere(wire));
            return;
        }
        let id = self.node(server).connect(client);
        self.slots[server].wires.insert(id, wire);
        self.wires.get_mut(&wire).expect("seen").accepted = Some(id);
        self.post(wire, Direction::ToClient, What::Welcome(wire));
    }

    /// The client has an answer of the server: it now uses the connection.
    pub(super) fn welcome(&mut self, wire: WireId) {
        if let Some(made) = self.wires.get_mut(&wire)
            && made.phase == Phase::Dialing
        {
            made.phase = Phase::Open;
            made.inbox.open();
        }
    }

    /// Nobody is there.
    pub(super) fn refused(&mut self, wire: WireId) {
        if let Some(made) = self.wires.get_mut(&wire)
            && made.phase == Phase::Dialing
        {
            made.phase = Phase::Over;
            made.inbox.end();
        }
    }

    /// The client learns that the server has closed it: it is over.
    pub(super) fn reset(&mut self, wire: WireId) {
        if let Some(known) = self.wires.remove(&wire) {
            known.inbox.end();
        }
    }

    /// The client uses it no longer, and closes it.
    pub(super) fn close(&mut self, wire: WireId) {
        if let Some(known) = self.wires.get_mut(&wire) {
            known.phase = Phase::Over;
            self.post(wire, Direction::ToServer, What::Closed(wire));
        }
    }

    /// The server learns that the client has closed it: it is over.
    pub(super) fn closed(&mut self, wire: WireId) {
        let Some(known) = self.wires.remove(&wire) else {
            return;
        };
        known.inbox.end();
        if let Some(id) = known.accepted {
            let server = known.server;
            self.slots[server].wires.remove(&id);
            self.node(server).disconnect(id);
        }
    }

    /// The server ends a connection, and its client may notice.
    pub(super) fn end_at_server(&mut self, wire: WireId) {
        let Some(ended) = self.wires.get_mut(&wire) else {
            return;
        };
        let server = ended.server;
        if let Some(id) = ended.accepted.take() {
            self.slots[server].wires.remove(&id);
            self.node(server).disconnect(id);
            self.post(wire, Direction::ToClient, What::Reset(wire));
        }
    }
}

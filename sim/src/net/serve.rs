//! A server's end of connections: commands are done in order, and a `WAIT` holds up what comes behind it.

use std::time::Duration;

use super::event::{Direction, What};
use super::resp;
use super::state::State;
use super::wire::{Waiting, WireId};
use crate::channels::Push;
use crate::node::ConnectionId;
use crate::number;
use crate::reply::Reply;
use crate::words::Words;

impl State {
    /// Does what has come over a connection.
    pub(super) fn serve(&mut self, wire: WireId, commands: Vec<Words>) {
        let Some(known) = self.wires.get_mut(&wire) else {
            return;
        };
        known.behind.extend(commands);
        let mut written = Vec::new();
        while let Some(command) = self.next_command(wire) {
            let is_held_up = *command.verb() == *b"WAIT" && self.waits(wire, &command);
            if is_held_up {
                break;
            }
            self.do_command(wire, &command, &mut written);
        }
        self.write(wire, written);
    }

    fn next_command(&mut self, wire: WireId) -> Option<Words> {
        let known = self.wires.get_mut(&wire)?;
        // The connection may have ended at the server: nothing more of it is executed.
        known.accepted?;
        if known.waiting.is_some() {
            return None;
        }
        known.behind.pop_front()
    }

    fn do_command(&mut self, wire: WireId, command: &Words, written: &mut Vec<u8>) {
        let Some(known) = self.wires.get(&wire) else {
            return;
        };
        let (client, server) = (known.client, known.server);
        let Some(id) = known.accepted else { return };
        let reply = self.execute(client, server, id, command);
        let is_newer = self.node(server).is_newer(id);
        resp::write(&reply, is_newer, written);
        self.deliver_unasked(server);
    }

    /// Has a server do a command of a connection.
    fn execute(
        &mut self,
        client: usize,
        server: usize,
        id: ConnectionId,
        command: &Words,
    ) -> Reply {
        let now_us = self.server_us(server);
        let lacks_replicas = self.lacks_replicas(server);
        let slot = &mut self.slots[server];
        let mut node = slot.node.take().expect("one command at a time");
        node.lacks_replicas = lacks_replicas;
        node.store.set_clock(now_us);
        let (mut node, reply) = node.execute(id, command);
        let is_short = matches!(&reply, Reply::Error(why) if why.contains("NOREPLICAS"));
        node.shortages += u64::from(is_short);
        if let Some(trace) = &mut self.trace {
            trace(
                client,
                server,
                node.name_of(id),
                command,
                &reply,
                &node.store,
            );
        }
        self.slots[server].node = Some(node);
        reply
    }

    /// Sends a message of a server on its way.
    pub(super) fn push(&mut self, server: usize, push: &Push) {
        let Some(&to) = self.slots[server].wires.get(&push.to) else {
            return;
        };
        let mut bytes = Vec::new();
        let is_newer = self.node(server).is_newer(push.to);
        resp::write(&push.reply(), is_newer, &mut bytes);
        self.write(to, bytes);
    }

    fn write(&mut self, wire: WireId, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.post(wire, Direction::ToClient, What::Bytes(wire, bytes));
        }
    }

    /// Whether this `WAIT` has to wait; it ends when replicas have confirmed, or its time is over.
    fn waits(&mut self, wire: WireId, command: &Words) -> bool {
        let Some((server, id)) = self
            .wires
            .get(&wire)
            .and_then(|known| Some((known.server, known.accepted?)))
        else {
            return false;
        };
        let word = |at| command.get(at).and_then(number::int).unwrap_or(0);
        let replicas = usize::try_from(word(1)).unwrap_or(0);
        let limit = Duration::from_millis(u64::try_from(word(2)).unwrap_or(0));
        let node = self.node(server);
        let changes = node.changes_of(id);
        if node.replication.is_replica() || node.replication.confirmed(changes) >= replicas {
            return false;
        }
        self.last_wait += 1;
        let number = self.last_wait;
        let ends = self.now() + limit;
        if !limit.is_zero() {
            self.post_at(ends, What::WaitEnds(wire, number));
        }
        if let Some(known) = self.wires.get_mut(&wire) {
            known.waiting = Some(Waiting {
                number,
                replicas,
                changes,
            });
        }
        true
    }

    /// A `WAIT` ends, with as many as have confirmed by now.
    pub(super) fn wait_ends(&mut self, wire: WireId, number: u64) {
        let Some(known) = self.wires.get_mut(&wire) else {
            return;
        };
        let ended = known.waiting.take_if(|waiting| waiting.number == number);
        let Some(ended) = ended else { return };
        let server = known.server;
        let confirmed = self.node(server).replication.confirmed(ended.changes);
        let mut written = Vec::new();
        resp::write(&Reply::count(confirmed), false, &mut written);
        self.write(wire, written);
        self.serve(wire, Vec::new());
    }

    /// A replica of this server has confirmed: ends the waits that this satisfies.
    pub(super) fn confirmed(&mut self, server: usize) {
        let wires: Vec<WireId> = self.slots[server].wires.values().copied().collect();
        for wire in wires {
            let waiting = self.wires.get(&wire).and_then(|known| {
                let waiting = known.waiting.as_ref()?;
                Some((waiting.number, waiting.replicas, waiting.changes))
            });
            if let Some((number, replicas, changes)) = waiting
                && self.node(server).replication.confirmed(changes) >= replicas
            {
                self.wait_ends(wire, number);
            }
        }
    }
}

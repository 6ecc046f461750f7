//! The refusals of a server: for users who lack a right, and for writes it does not take.
//!
//! Invariant: who is refused has changed nothing by that command; a script may have, before it calls it.

use super::{Caller, ConnectionId, Node};
use crate::commands::writes;
use crate::reply::Reply;
use crate::rights::{Lacking, Right, User};
use crate::words::Words;

/// The refusal of a write by a server that has too few replicas.
pub(super) const TOO_FEW_REPLICAS: &str = "NOREPLICAS Not enough good replicas to write.";

impl Node {
    /// Takes a right away. Listeners without the right to their channel are disconnected.
    pub(crate) fn deny(&mut self, user: User, right: Right) {
        self.rights.deny(user, right);
        let Right::Channels(prefix) = right else {
            return;
        };
        for id in self.channels.listening_below(prefix.as_bytes()) {
            if self
                .connections
                .get(&id)
                .is_some_and(|one| one.user == user)
            {
                self.disconnect(id);
                self.killed.push(id);
            }
        }
    }

    /// Gives it back.
    pub(crate) fn allow(&mut self, user: User, right: Right) {
        self.rights.allow(user, right);
    }

    /// The refusal of a command that the user of a connection, or its script, may not run; `None` if it may.
    pub(super) fn denial(
        &self,
        from: ConnectionId,
        verb: &[u8],
        words: &Words,
        caller: Caller,
    ) -> Option<String> {
        let user = self.connections.get(&from)?.user;
        let why = match (self.rights.lacking(user, verb, words)?, caller) {
            (Lacking::Command(name), Caller::Client) => {
                return Some(format!(
                    "NOPERM this user has no permissions to run the '{name}' command"
                ));
            }
            (Lacking::Command(_), Caller::Script) => {
                "ERR The user executing the script can't run this command or subcommand"
            }
            (Lacking::Channel, Caller::Client) => {
                "NOPERM this user has no permissions to access one of the channels used as arguments"
            }
            (Lacking::Channel, Caller::Script) => {
                "ERR The user executing the script can't publish to the channel mentioned in the command"
            }
        };
        Some(why.to_owned())
    }

    /// The reply to a command of a connection whose user may not do it.
    pub(super) fn denied(
        &mut self,
        verb: &[u8],
        from: ConnectionId,
        words: &Words,
    ) -> Option<Reply> {
        let why = self.denial(from, verb, words, Caller::Client)?;
        self.denials += 1;
        Some(Reply::error(why))
    }

    /// Whether it refuses a write: as a replica, or as too few replicas are well connected to it.
    pub(super) fn refuses(&self, verb: &[u8]) -> Option<Reply> {
        let is_replica = self.replication.is_replica();
        if !(is_replica || self.lacks_replicas) || !writes(verb) {
            return None;
        }
        Some(if is_replica {
            Reply::error("READONLY You can't write against a read only replica.")
        } else {
            Reply::error(TOO_FEW_REPLICAS)
        })
    }
}

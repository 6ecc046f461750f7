//! `MULTI` and `EXEC`: commands on keys that a connection gathers, done one after the other with nothing in between.
//!
//! Other commands are not simulated inside of them. Invariant: after `EXEC`, whatever it replies, the connection
//! gathers no more.

use super::refusals::TOO_FEW_REPLICAS;
use super::{Caller, ConnectionId, Node, Transaction};
use crate::commands::{Command, writes};
use crate::reply::Reply;
use crate::slots::keys_of;
use crate::words::Words;

impl Node {
    fn gathered(&mut self, from: ConnectionId) -> Option<&mut Option<Transaction>> {
        let connection = self.connections.get_mut(&from)?;
        Some(&mut connection.transaction)
    }

    /// Whether what this connection sends is gathered.
    pub(super) fn gathers(&self, from: ConnectionId) -> bool {
        let connection = self.connections.get(&from);
        connection.is_some_and(|one| one.transaction.is_some())
    }

    pub(super) fn multi(&mut self, from: ConnectionId, words: &Words) -> Reply {
        if words.len() != 1 {
            return self.spoil(from, Caller::Client.wrong_arity(words));
        }
        match self.gathered(from) {
            Some(Some(_)) => Reply::error("ERR MULTI calls can not be nested"),
            Some(none) => {
                *none = Some(Transaction::default());
                Reply::OK
            }
            None => Reply::OK,
        }
    }

    /// A command between the two.
    pub(super) fn gather(&mut self, verb: &[u8], from: ConnectionId, words: &Words) -> Reply {
        let refusal = match Command::named(verb) {
            None => Some(Caller::Client.unknown(words)),
            Some(command) if !command.accepts(words) => Some(Caller::Client.wrong_arity(words)),
            Some(_) => self
                .admit(verb, from, words)
                .err()
                .or_else(|| self.refuses(verb)),
        };
        if let Some(no) = refusal {
            return self.spoil(from, no);
        }
        if let Some(Some(transaction)) = self.gathered(from) {
            transaction.commands.push(words.clone());
        }
        Reply::Status("QUEUED")
    }

    /// A refusal, after which the commands that are gathered are not done.
    pub(super) fn spoil(&mut self, from: ConnectionId, refusal: Reply) -> Reply {
        if let Some(Some(transaction)) = self.gathered(from) {
            transaction.is_spoilt = true;
        }
        refusal
    }

    /// The end; `refusal` is what the server says to it, if it does not do it.
    pub(super) fn exec(&mut self, from: ConnectionId, refusal: Option<&str>) -> Reply {
        let gathered = self.gathered(from).and_then(Option::take);
        let discarded = "EXECABORT Transaction discarded because of";
        if let Some(refusal) = refusal {
            return Reply::error(format!("{discarded}: {refusal}"));
        }
        let Some(transaction) = gathered else {
            return Reply::error("ERR EXEC without MULTI");
        };
        if self.lacks_replicas && transaction.commands.iter().any(|one| writes(&one.verb())) {
            return Reply::error(format!("{discarded}: {TOO_FEW_REPLICAS}"));
        }
        if transaction.is_spoilt {
            return Reply::error(format!("{discarded} previous errors."));
        }
        if let Some(membership) = &self.membership {
            let commands = transaction.commands.iter();
            let keys: Vec<&[u8]> = commands
                .flat_map(|words| keys_of(&words.verb(), words))
                .collect();
            if let Err(no) = membership.admit_keys(&keys, true, self.is_asking, &self.store) {
                return no;
            }
        }
        let mut replies = Vec::new();
        for words in transaction.commands {
            let reply = self.on_keys(&words.verb(), &words, Caller::Client);
            replies.push(reply.clone());
            self.done_together.push((words, reply));
        }
        Reply::Array(replies)
    }
}

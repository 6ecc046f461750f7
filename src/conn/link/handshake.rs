//! What is exchanged on a new connection before it is used: who we are, who the server is, and that the
//! connections before this one are to be killed.
//!
//! Invariant: once it has run, what was sent on earlier connections is executed or dead, or
//! [`Handshake::earlier_commands_settled`] is false until nothing can arrive any more.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisError, ServerError, Value};

use super::socket::Step;
use crate::clock::{Clock, Tick};
use crate::conn::error_reply::{code, is_temporary};
use crate::conn::process::Process;
use crate::conn::setup::{Preload, Setup};
use crate::conn::transport::{EventHandler, LATE_ARRIVAL_MAX};
use crate::conn::value::text;

/// What the connections of one link have in common, and what is known of those before.
#[derive(Debug)]
pub(super) struct Handshake {
    /// Shown by `CLIENT LIST`, so that an operator knows whose connection it is.
    label: String,
    clock: Clock,
    preload: Arc<Preload>,
    /// Told when the server was restarted.
    events: Arc<dyn EventHandler>,
    /// Which process answered when the last connection was made. Set before that is used.
    process: Mutex<Option<Process>>,
    /// The connections that may still have commands at the server; `None` for one that cannot be named.
    earlier: Mutex<Vec<Option<Identity>>>,
    /// Until then something sent on an earlier connection may still arrive.
    unsettled_until: AtomicU64,
}

/// A connection as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    id: u64,
    addr: String,
}

impl Handshake {
    pub(super) fn new(label: String, setup: &Setup) -> Self {
        Self {
            label,
            clock: setup.clock,
            preload: Arc::clone(&setup.preload),
            events: Arc::clone(&setup.events),
            process: Mutex::default(),
            earlier: Mutex::default(),
            unsettled_until: AtomicU64::new(Tick::ZERO.nanos()),
        }
    }

    pub(super) fn earlier_commands_settled(&self) -> bool {
        self.clock.now().nanos() >= self.unsettled_until.load(Ordering::Acquire)
    }

    pub(super) fn process(&self) -> Option<Process> {
        self.process.lock().clone()
    }

    pub(super) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        step: Step,
    ) -> Result<(), RedisError> {
        let missing = step.made("answer", self.introduce(connection)).await?;
        if !missing.is_empty() {
            // Only now: a server cuts off an unauthenticated client that sends it much.
            let loaded = pipelined(connection, missing);
            step.made("answer", loaded).await?;
        }
        Ok(())
    }

    /// In one write: names the connection, asks how the server knows it and since when the server is up,
    /// kills what may be left of earlier connections, and checks the preload, of which the missing parts
    /// are returned. A user without the right to ask gets a connection without an identity, or without a
    /// process, and loads all of the preload.
    async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<Cmd>, RedisError> {
        let earlier = self.earlier.lock().clone();
        let mut commands = vec![
            command("CLIENT", &["SETNAME", &self.label]),
            command("CLIENT", &["INFO"]),
            command("INFO", &["server"]),
        ];
        commands.extend(earlier.iter().flatten().map(Identity::kill));
        // The check is a request of its own: a server cuts off an unauthenticated client that sends a
        // long one, and its reply to the other request says why.
        let mut other = connection.clone();
        let (replies, present) = join(
            pipelined(connection, commands),
            pipelined(&mut other, Vec::from_iter(self.preload.check.clone())),
        )
        .await;
        let replies = replies?;
        let identity = permitted(replies.get(1))?.and_then(Identity::of);
        let info = permitted(replies.get(2))?;
        self.note_process(info.and_then(|info| Process::of(info, self.clock.now())));
        let kills = replies.get(3..).unwrap_or_default();
        self.settle(&earlier, identity.as_ref(), kills)?;
        self.earlier.lock().push(identity);
        let present = present?;
        let present = permitted(present.first())?;
        Ok(self.preload.missing(present))
    }

    fn note_process(&self, process: Option<Process>) {
        let is_another = {
            // From here on, a question about replies on an earlier connection is answered for a later
            // process, which is the careful way round.
            let mut known = self.process.lock();
            let run =
                |process: &Option<Process>| process.as_ref().map(|one| Arc::clone(&one.run_id));
            let is_another = known.is_some() && run(&known) != run(&process);
            *known = process.map(|process| process.after(known.as_ref(), self.clock.now()));
            is_another
        };
        if is_another {
            // The server was restarted, and may have lost what is held. Reported now: if this connection
            // fails, the change is not seen again.
            self.events.moved();
        }
    }

    /// Finds out whether nothing sent on earlier connections can be executed any more, from the replies
    /// to the kills of those that can be named.
    fn settle(
        &self,
        earlier: &[Option<Identity>],
        current: Option<&Identity>,
        kills: &[Value],
    ) -> Result<(), RedisError> {
        let mut kills = kills.iter();
        let mut is_settled = true;
        for old in earlier {
            is_settled &= match old {
                None => false,
                Some(old) => {
                    let killed = kills.next();
                    // Ids only grow while a server runs: a smaller one means that it was restarted, and
                    // that its connections died with it.
                    let died = current.is_some_and(|current| current.id < old.id);
                    died || permitted(killed)?.is_some()
                }
            };
        }
        if !is_settled {
            let until = self.clock.now().after(LATE_ARRIVAL_MAX);
            self.unsettled_until.store(until.nanos(), Ordering::Release);
        }
        self.earlier.lock().clear();
        Ok(())
    }
}

fn command(verb: &str, rest: &[&str]) -> Cmd {
    let mut command = redis::cmd(verb);
    command.arg(rest);
    command
}

/// Sends these in one request; error replies come as values.
async fn pipelined(
    connection: &mut MultiplexedConnection,
    commands: Vec<Cmd>,
) -> Result<Vec<Value>, RedisError> {
    let mut pipe = redis::pipe();
    for command in commands {
        pipe.add_command(command);
    }
    match pipe.len() {
        0 => Ok(Vec::new()),
        all => connection.send_packed_commands(&pipe, 0, all).await,
    }
}

/// A reply, or `None` where the user lacks the right to ask: that is refused for good, and acceptable.
/// A refusal for now makes the connection fail, so that it is made again; so does one for lack of
/// authentication, without which nothing can be done.
fn permitted(reply: Option<&Value>) -> Result<Option<&Value>, RedisError> {
    match reply {
        Some(Value::ServerError(no)) => refused_for_good(no).map(|()| None),
        reply => Ok(reply),
    }
}

fn refused_for_good(no: &ServerError) -> Result<(), RedisError> {
    let error = RedisError::from(no.clone());
    if is_temporary(&error) || code(&error) == Some("NOAUTH") {
        return Err(error);
    }
    Ok(())
}

impl Identity {
    fn of(line: &Value) -> Option<Self> {
        let line = text(line)?;
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        Some(Self {
            id: field("id")?.parse().ok()?,
            addr: field("addr")?.to_owned(),
        })
    }

    fn kill(&self) -> Cmd {
        let id = self.id.to_string();
        command("CLIENT", &["KILL", "ID", &id, "ADDR", &self.addr])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_is_read_from_a_client_line() {
        let line = "id=7 addr=127.0.0.1:5000 laddr=127.0.0.1:6379 fd=8 name= age=0 user=default\n";
        let identity = Identity::of(&Value::BulkString(line.as_bytes().to_vec()));
        assert_eq!(
            identity,
            Some(Identity {
                id: 7,
                addr: "127.0.0.1:5000".to_owned()
            })
        );
        assert_eq!(Identity::of(&Value::Nil), None);
    }
}

//! What is said on a new connection before it is used: who we are, who they are, and that the
//! connection before it is to be ended.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::join;
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Cmd, ConnectionAddr, ErrorKind, PushInfo, RedisError, ServerError, Value,
};

use super::socket::{Socket, Step};
use super::words::{Meaning, Words};
use super::{Inner, Live};
use crate::conn::error_reply::{code, is_temporary};
use crate::conn::hearing::Hearing;
use crate::conn::process::{Process, text};
use crate::conn::{Fault, LATE_ARRIVAL_MAX, Reason, tls};

/// Commands that may wait for the connection's writer before a sender has to wait its turn.
const WRITE_QUEUE: usize = 1024;

/// A connection as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    id: u64,
    addr: String,
}

impl Inner {
    /// Makes a connection, and has it used from now on.
    pub(super) async fn make(&self) -> Result<(), Fault> {
        self.ensure_in_use()?;
        let words = Words::default();
        let began = self.clock.now();
        let hearing = Arc::new(Hearing::new(self.events.clone()));
        let made = self.connect(&hearing, &words).await;
        let socket = match made {
            Ok(socket) => socket,
            Err(error) => {
                let fault = self.fault(error, &words);
                self.reach.failed(self.clock.now());
                return Err(fault);
            }
        };
        let now = self.clock.now();
        self.reach.got_through(began.until(now));
        let live = Arc::new(Live {
            socket,
            heard: AtomicU64::new(now.nanos()),
            hearing,
        });
        let mut slot = self.live.lock();
        // Under the lock: it may have been retired meanwhile.
        self.ensure_in_use()?;
        *slot = Some(live);
        Ok(())
    }

    async fn connect(&self, hearing: &Arc<Hearing>, words: &Words) -> Result<Socket, RedisError> {
        let step = Step {
            clock: self.clock,
            limit: self.reach.patience(self.step_timeout),
        };
        let (info, name) = (self.info.clone(), self.server_name.as_deref());
        let (info, config) = tls::under_name(info, name, self.config(hearing));
        let mut socket = Socket::connect(&info, config, step, words, &self.disconnected).await?;
        let connection = &mut socket.connection;
        let missing = step.made("answer", self.introduce(connection)).await?;
        if !missing.is_empty() {
            // Only now: a server cuts off a stranger who sends it much.
            let told = pipelined(connection, missing);
            step.made("answer", told).await?;
        }
        Ok(socket)
    }

    fn config(&self, hearing: &Arc<Hearing>) -> AsyncConnectionConfig {
        // Timeouts are ours: they cover connecting, and differ from call to call.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        if self.events.is_none() {
            return config;
        }
        let hearing = Arc::clone(hearing);
        config.set_push_sender(move |push: PushInfo| {
            hearing.heard(&push);
            Ok::<(), std::convert::Infallible>(())
        })
    }

    /// In one write: names the connection, asks how the server knows us and since when it is up, makes
    /// sure that nothing sent on an earlier connection can be executed any more, and asks what of the
    /// preload it does not know, which is returned. A user without the right to ask gets a connection
    /// without an identity, or without a process, and loads all of it.
    async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<Vec<Cmd>, RedisError> {
        let past = self.past.lock().clone();
        let mut commands = vec![
            words("CLIENT", &["SETNAME", &self.label]),
            words("CLIENT", &["INFO"]),
            words("INFO", &["server"]),
        ];
        let kills = past.iter().flatten().map(Identity::kill);
        commands.extend(kills);
        // A request of its own: a stranger who sends one that is long is cut off, and what the server
        // says to the others is why.
        let mut other = connection.clone();
        let (replies, known) = join(
            pipelined(connection, commands),
            pipelined(&mut other, Vec::from_iter(self.preload.check.clone())),
        )
        .await;
        let replies = replies?;
        let identity = said(replies.get(1))?.and_then(Identity::of);
        let process = said(replies.get(2))?;
        self.has_process(process.and_then(|lines| Process::of(lines, self.clock.now())));
        self.settle(
            &past,
            identity.as_ref(),
            replies.get(3..).unwrap_or_default(),
        )?;
        self.past.lock().push(identity);
        let known = known?;
        let known = said(known.first())?;
        Ok(self.preload.missing(known))
    }

    fn has_process(&self, process: Option<Process>) {
        let is_another = {
            // From here on, what is asked about answers of an earlier connection is answered for a
            // later process: that is the careful way round.
            let mut known = self.process.lock();
            let run =
                |process: &Option<Process>| process.as_ref().map(|one| Arc::clone(&one.run_id));
            let is_another = known.is_some() && run(&known) != run(&process);
            *known = process.map(|process| process.after(known.as_ref(), self.clock.now()));
            is_another
        };
        if is_another {
            // It was restarted, and may have forgotten what is held. Told now: it is not seen again
            // if this connection comes to nothing.
            self.watcher.moved();
        }
    }

    /// Whether nothing sent on these connections can be executed any more, by what the server said when
    /// it was told to end those that can be named.
    fn settle(
        &self,
        past: &[Option<Identity>],
        me: Option<&Identity>,
        replies: &[Value],
    ) -> Result<(), RedisError> {
        let mut replies = replies.iter();
        let mut is_settled = true;
        for old in past {
            is_settled &= match old {
                None => false,
                Some(old) => {
                    let killed = replies.next();
                    // Ids only grow while a server runs: a smaller one means that it was restarted,
                    // and that its connections died with it.
                    let died = me.is_some_and(|me| me.id < old.id);
                    died || said(killed)?.is_some()
                }
            };
        }
        if !is_settled {
            let until = self.clock.now().after(LATE_ARRIVAL_MAX);
            self.unsettled_until.store(until.nanos(), Ordering::Release);
        }
        self.past.lock().clear();
        Ok(())
    }

    /// Why a connection came to nothing, in the server's own words if it has said why.
    fn fault(&self, error: RedisError, words: &Words) -> Fault {
        if error.kind() == ErrorKind::AuthenticationFailed {
            // The library says no more than that.
            let what = "authentication failed";
            return Fault::Declined(match words.refusal() {
                Some(words) => (ErrorKind::AuthenticationFailed, what, words).into(),
                None => error,
            });
        }
        if error.code().is_some() || tls::advice(&error).is_some() {
            return Fault::Declined(error);
        }
        let is_cut = error.is_connection_dropped() && !error.is_connection_refusal();
        let hint = match (self.info.addr(), words.meaning()) {
            (_, Meaning::Error(said)) => return Fault::Declined(said),
            (ConnectionAddr::Tcp(..), Meaning::Tls) => tls::USE_IT,
            // Who had a connection before is not mistaken in the protocol.
            _ if self.reach.is_known() => "",
            (ConnectionAddr::Tcp(..), Meaning::Silence) if is_cut => tls::USE_IT,
            (ConnectionAddr::TcpTls { .. }, _) if is_cut || error.is_timeout() => tls::DOES_IT,
            _ => "",
        };
        let words = format!("{error}{hint}");
        self.unsent(Reason::from(error).with_message(words))
    }
}

fn words(verb: &str, rest: &[&str]) -> Cmd {
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

/// What was replied. A refusal that is for good is fine, and nothing: the right is missing. One for now
/// makes the connection fail, so that it is made again; so does one of a stranger, who can do nothing.
fn said(reply: Option<&Value>) -> Result<Option<&Value>, RedisError> {
    match reply {
        Some(Value::ServerError(no)) => answered(no).map(|()| None),
        reply => Ok(reply),
    }
}

fn answered(no: &ServerError) -> Result<(), RedisError> {
    let error = RedisError::from(no.clone());
    match is_temporary(&error) || code(&error) == Some("NOAUTH") {
        true => Err(error),
        false => Ok(()),
    }
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
        words("CLIENT", &["KILL", "ID", &id, "ADDR", &self.addr])
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

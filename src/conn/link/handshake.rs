//! What is said on a new connection before it is used: who we are, who they are, and that the
//! connection before it is to be ended.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, PushInfo, RedisError, ServerError, Value};

use super::Link;
use crate::conn::LATE_MAX;
use crate::conn::answer::{code, is_not_now};
use crate::conn::hearing::Hearing;
use crate::conn::process::{Process, text};

/// Commands that may wait for the connection's writer before a sender has to wait its turn.
const WRITE_QUEUE: usize = 1024;

/// A connection as the server knows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    id: u64,
    addr: String,
}

impl Link {
    pub(super) fn config(&self, hearing: &Arc<Hearing>) -> AsyncConnectionConfig {
        // Timeouts are ours: they cover connecting, and differ from call to call.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None)
            .set_pipeline_buffer_size(WRITE_QUEUE);
        if self.listener.is_none() {
            return config;
        }
        let hearing = Arc::clone(hearing);
        config.set_push_sender(move |push: PushInfo| {
            hearing.heard(&push);
            Ok::<(), std::convert::Infallible>(())
        })
    }

    /// Names the connection, greets the server and asks how it knows us and since when it is up. A
    /// user without the right to ask gets a connection without an identity, or without a process.
    pub(super) async fn introduce(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(Option<Identity>, Option<Process>), RedisError> {
        let mut name = redis::cmd("CLIENT");
        name.arg("SETNAME").arg(&self.label);
        let mut ask = redis::cmd("CLIENT");
        ask.arg("INFO");
        let mut info = redis::cmd("INFO");
        info.arg("server");
        // Pipelines: one round trip each, and error replies come as values.
        let mut pipe = redis::pipe();
        pipe.add_command(name);
        pipe.add_command(ask);
        pipe.add_command(info);
        let replies = connection
            .send_packed_commands(&pipe, 0, pipe.len())
            .await?;
        let identity = match replies.get(1) {
            Some(Value::ServerError(no)) => answered(no).map(|()| None)?,
            Some(line) => Identity::of(line),
            None => None,
        };
        let process = match replies.get(2) {
            Some(Value::ServerError(no)) => answered(no).map(|()| None)?,
            Some(lines) => Process::of(lines, self.clock.now()),
            None => None,
        };
        // Only now: a server cuts off a stranger who sends it much.
        let mut pipe = redis::pipe();
        for command in &*self.greeting {
            pipe.add_command(command.clone());
        }
        if !self.greeting.is_empty() {
            connection
                .send_packed_commands(&pipe, 0, pipe.len())
                .await?;
        }
        Ok((identity, process))
    }

    /// Makes sure that nothing sent on an earlier connection can be executed any more.
    pub(super) async fn settle(
        &self,
        connection: &mut MultiplexedConnection,
        past: &mut Vec<Option<Identity>>,
        me: Option<&Identity>,
    ) -> Result<(), RedisError> {
        while let Some(old) = past.last() {
            let killed = match old {
                // Ids only grow while a server runs: a smaller one means that it was restarted,
                // and that its connections died with it.
                Some(old) if me.is_some_and(|me| me.id < old.id) => true,
                Some(old) => {
                    let mut kill = redis::cmd("CLIENT");
                    kill.arg("KILL").arg("ID").arg(old.id);
                    kill.arg("ADDR").arg(&old.addr);
                    match connection.send_packed_command(&kill).await? {
                        Value::ServerError(no) => answered(&no).map(|()| false)?,
                        _ => true,
                    }
                }
                None => false,
            };
            if !killed {
                let until = self.clock.now().after(LATE_MAX);
                self.unsettled_until.store(until.nanos(), Ordering::Release);
            }
            past.pop();
        }
        Ok(())
    }
}

/// A refusal that is for good is fine: the right is missing. One for now makes the connection fail,
/// so that it is made again; so does one of a stranger, who can do nothing.
fn answered(no: &ServerError) -> Result<(), RedisError> {
    let error = RedisError::from(no.clone());
    match is_not_now(&error) || code(&error) == Some("NOAUTH") {
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

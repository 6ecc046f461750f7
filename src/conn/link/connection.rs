//! One connection to one server, ready for use, with the time of its last reply.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join;
use redis::{Cmd, ErrorKind, RedisError, Value};

use super::loaded_scripts::{LoadedScripts, Loads};
use super::shared_process::Generation;
use super::socket::Socket;
use super::wire::SharedTick;
use crate::conn::push::PushState;
use crate::conn::transport::Replies;
use crate::engine::clock::{Clock, Tick};

/// The replies to a request. `None`: some reply is missing after its limit.
type Exchanged = Option<Result<Replies, RedisError>>;

#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    made: Tick,
    /// Of the process behind it.
    generation: Generation,
    last_reply: SharedTick,
    /// The send time of the first abandoned call since the last reply.
    given_up: SharedTick,
    scripts: LoadedScripts,
    pub(super) push: Arc<PushState>,
}

impl Connection {
    /// A connection made just now.
    pub(super) fn new(
        socket: Socket,
        push: Arc<PushState>,
        clock: Clock,
        last_reply: SharedTick,
        generation: Generation,
        scripts: LoadedScripts,
    ) -> Self {
        // A reply read at this instant must count as later.
        let made = clock.now().before(Duration::from_nanos(1));
        last_reply.set(made);
        Self {
            socket,
            made,
            generation,
            last_reply,
            given_up: SharedTick::default(),
            scripts,
            push,
        }
    }

    pub(super) fn last_reply_at(&self) -> Tick {
        self.last_reply.get()
    }

    pub(super) fn generation(&self) -> Generation {
        self.generation
    }

    pub(super) fn made_at(&self) -> Tick {
        self.made
    }

    /// Whether the server has replied to a call. Replies to the handshake do not count.
    pub(super) fn has_answered(&self) -> bool {
        self.last_reply_at() > self.made
    }

    /// Whether there has been no reply for `silence`, judged by an abandoned call that was sent at `sent`. The first
    /// of several such calls counts, because a caller's limit may be shorter than `silence`. If other calls had
    /// replies since, or the connection was made since, it is slow and not dead.
    pub(super) fn is_silent(&self, sent: Tick, now: Tick, silence: Duration) -> bool {
        let last_reply = self.last_reply_at();
        if last_reply >= sent {
            return false;
        }
        let known = self.given_up.get();
        let since = if known <= last_reply {
            sent
        } else {
            known.min(sent)
        };
        self.given_up.set(since);
        since.until(now) >= silence
    }

    /// Sends these in one request, behind the scripts that they need.
    pub(super) async fn exchange(&self, commands: &[&Cmd], limit: Duration) -> Exchanged {
        let wire = &self.socket.wire;
        let loads = self.scripts.missing(commands);
        let sent = wire.send(commands.iter().copied(), limit, Replies::take);
        match loads {
            None => sent.await,
            // Boxed because it is rare and large.
            Some(loads) => Box::pin(self.behind(loads, limit, sent)).await,
        }
    }

    /// Loads scripts, and sends a request behind them in the same write.
    async fn behind(
        &self,
        loads: Loads,
        limit: Duration,
        sent: impl Future<Output = Exchanged>,
    ) -> Exchanged {
        let wire = &self.socket.wire;
        let loading = wire.send(loads.commands.iter(), limit, |replies| {
            replies.drain(..).all(|reply| is_of_load(&reply))
        });
        let sent = async {
            self.scripts.are_sent(&loads);
            sent.await
        };
        // Polled in this order.
        match join(loading, sent).await {
            (Some(Ok(false)), Some(_)) => {
                let what = "a reply to SCRIPT LOAD that is no text";
                Some(Err((ErrorKind::UnexpectedReturnType, what).into()))
            }
            (_, replies) => replies,
        }
    }
}

/// Whether a server replies to `SCRIPT LOAD` like this. One that refuses it refuses the call, too, which is then repeated
/// with the text of its script.
fn is_of_load(reply: &Value) -> bool {
    let is_text = matches!(reply, Value::BulkString(_) | Value::SimpleString(_));
    is_text || matches!(reply, Value::ServerError(_))
}

#[cfg(test)]
mod tests {
    use redis::{IntoConnectionInfo, ProtocolVersion};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::conn::link::socket::DialParams;
    use crate::conn::link::wire::FirstBytes;
    use crate::conn::link::wire::WireParams;
    use crate::conn::network::Network;

    /// A connection, and the time of its last reply.
    async fn connected(listener: &TcpListener) -> (Socket, Arc<PushState>, SharedTick) {
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let info = url.into_connection_info().unwrap();
        let push = Arc::new(PushState::new(None));
        let last_reply = SharedTick::default();
        let wire = WireParams {
            clock: Clock::System,
            protocol: ProtocolVersion::RESP2,
            silence: Duration::from_secs(5),
            last_reply: last_reply.clone(),
            push: Arc::clone(&push),
            first_bytes: FirstBytes::default(),
        };
        let terms = DialParams {
            info: &info,
            security: &Default::default(),
            limit: Duration::from_secs(5),
            wire: &wire,
            disconnected: &Arc::default(),
            network: &Network::System,
        };
        let socket = Socket::connect(terms).await.unwrap();
        (socket, push, last_reply)
    }

    fn connection(socket: Socket, push: Arc<PushState>, last_reply: SharedTick) -> Connection {
        let script = |sha: &[u8]| (sha == b"known").then_some((3, "return 1"));
        Connection::new(
            socket,
            push,
            Clock::System,
            last_reply,
            Generation::default(),
            LoadedScripts::new(script),
        )
    }

    #[tokio::test]
    async fn a_reply_that_nobody_waits_for_any_more_says_that_the_server_is_alive() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (socket, push, last_reply) = connected(&listener).await;
        let (mut server, _) = listener.accept().await.unwrap();
        let connection = connection(socket, push, last_reply);
        let ping = redis::cmd("PING");
        let limit = Duration::from_millis(10);
        assert!(connection.exchange(&[&ping], limit).await.is_none());
        let gave_up = Clock::System.now();
        assert!(connection.last_reply_at() < gave_up);
        server.write_all(b"+PONG\r\n").await.unwrap();
        let is_noted = async {
            while connection.last_reply_at() < gave_up {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        let noted = tokio::time::timeout(Duration::from_secs(10), is_noted).await;
        noted.expect("it is noted");
    }

    #[tokio::test]
    async fn a_script_is_loaded_in_the_write_of_its_first_call() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (socket, push, last_reply) = connected(&listener).await;
        let (mut server, _) = listener.accept().await.unwrap();
        let connection = connection(socket, push, last_reply);
        let [known, other] = ["known", "other"].map(|sha| {
            let mut call = redis::cmd("EVALSHA");
            call.arg(sha).arg(0);
            call
        });
        let mut load = redis::cmd("SCRIPT");
        load.arg("LOAD").arg("return 1");
        let limit = Duration::from_secs(10);
        for (asked, loads) in [
            (&[&other][..], false),
            (&[&known, &known], true),
            (&[&known], false),
        ] {
            let mut expected = Vec::new();
            for command in loads.then_some(&load).iter().chain(asked) {
                expected.extend(command.get_packed_command());
            }
            let replies = b"+x\r\n".repeat(asked.len() + usize::from(loads));
            let served = async {
                let mut received = vec![0; expected.len()];
                server.read_exact(&mut received).await.unwrap();
                assert_eq!(received, expected);
                server.write_all(&replies).await.unwrap();
            };
            let (answered, ()) = join(connection.exchange(asked, limit), served).await;
            assert_eq!(answered.unwrap().unwrap().all().len(), asked.len());
        }
    }

    #[tokio::test]
    async fn of_those_who_gave_up_the_one_that_was_sent_first_tells_of_a_silence() {
        const SILENCE: Duration = Duration::from_secs(1);
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (socket, push, last_reply) = connected(&listener).await;
        let connection = connection(socket, push, last_reply.clone());
        last_reply.set(Tick::ZERO);
        let at = |millis| Tick::ZERO.after(Duration::from_millis(millis));
        let is_silent = |sent, now| connection.is_silent(at(sent), at(now), SILENCE);
        assert!(!is_silent(1_900, 1_950), "for 50 ms");
        assert!(is_silent(1_000, 2_000), "this call was sent first");
        assert!(is_silent(2_100, 2_150), "there was no reply since");
        last_reply.set(at(2_160));
        assert!(!is_silent(2_155, 2_900), "there was a reply since");
        assert!(!is_silent(2_200, 3_150), "for 950 ms");
        assert!(is_silent(3_190, 3_200), "for a second, over two calls");
    }
}

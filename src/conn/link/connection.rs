//! One connection to one server, ready to be used: what is sent over it, and when it last replied.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis::{Cmd, RedisError, Value};

use super::socket::Socket;
use crate::clock::Tick;
use crate::conn::push::PushState;

#[derive(Debug)]
pub(super) struct Connection {
    socket: Socket,
    /// When the server last replied on this connection.
    last_reply: AtomicU64,
    pub(super) push: Arc<PushState>,
}

impl Connection {
    /// The server has replied on it at `now`.
    pub(super) fn new(socket: Socket, push: Arc<PushState>, now: Tick) -> Self {
        Self {
            socket,
            last_reply: AtomicU64::new(now.nanos()),
            push,
        }
    }

    pub(super) fn last_reply_at(&self) -> Tick {
        let nanos = self.last_reply.load(Ordering::Relaxed);
        Tick::ZERO.after(Duration::from_nanos(nanos))
    }

    pub(super) fn has_replied(&self, now: Tick) {
        self.last_reply.store(now.nanos(), Ordering::Relaxed);
    }

    /// Sends `first`, if there is one, and right behind it the command that counts.
    pub(super) async fn send(
        &self,
        first: Option<&Cmd>,
        command: &Cmd,
    ) -> Result<Value, RedisError> {
        let mut connection = self.socket.connection.clone();
        let Some(first) = first else {
            let _in_flight = self.socket.in_flight.add(1);
            return connection.send_packed_command(command).await;
        };
        let mut pipe = redis::pipe();
        pipe.add_command(first.clone());
        pipe.add_command(command.clone());
        let _in_flight = self.socket.in_flight.add(pipe.len());
        let replies = connection
            .send_packed_commands(&pipe, 0, pipe.len())
            .await?;
        let mut replies = replies.into_iter();
        let before = replies.next();
        match (before, replies.next()) {
            // The second error is but a consequence of the first.
            (Some(no @ Value::ServerError(_)), Some(Value::ServerError(_))) => Ok(no),
            (_, reply) => Ok(reply.unwrap_or(Value::Nil)),
        }
    }

    /// Sends these in one request.
    pub(super) async fn send_all(&self, commands: &[Cmd]) -> Result<Vec<Value>, RedisError> {
        let mut pipe = redis::pipe();
        for command in commands {
            pipe.add_command(command.clone());
        }
        let _in_flight = self.socket.in_flight.add(pipe.len());
        let mut connection = self.socket.connection.clone();
        connection.send_packed_commands(&pipe, 0, pipe.len()).await
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use redis::IntoConnectionInfo;
    use tokio::net::TcpListener;

    use super::*;
    use crate::clock::Clock;
    use crate::conn::link::first_bytes::FirstBytes;
    use crate::conn::link::socket::Step;

    #[tokio::test]
    async fn a_command_whose_caller_gave_up_is_not_counted_as_in_flight() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("redis://{}", listener.local_addr().unwrap());
        let info = url.into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_skip_set_lib_name();
        let info = info.set_redis_settings(settings);
        let config = redis::AsyncConnectionConfig::new().set_response_timeout(None);
        let step = Step {
            clock: Clock::System,
            limit: Duration::from_secs(5),
        };
        let (first_bytes, disconnected) = (FirstBytes::default(), Arc::default());
        let socket = Socket::connect(&info, config, step, &first_bytes, &disconnected);
        let socket = socket.await.unwrap();
        let in_flight = Arc::clone(&socket.in_flight);
        let push = Arc::new(PushState::new(None));
        let connection = Connection::new(socket, push, Tick::ZERO);
        let ping = redis::cmd("PING");
        let commands = vec![ping.clone(); 5];
        {
            let mut one = pin!(connection.send(None, &ping));
            let mut two = pin!(connection.send(Some(&ping), &ping));
            let mut five = pin!(connection.send_all(&commands));
            let mut context = Context::from_waker(Waker::noop());
            // Nobody replies.
            assert!(one.as_mut().poll(&mut context).is_pending());
            assert_eq!(in_flight.count(), 1);
            assert!(two.as_mut().poll(&mut context).is_pending());
            assert_eq!(in_flight.count(), 3);
            assert!(five.as_mut().poll(&mut context).is_pending());
            assert_eq!(in_flight.count(), 8);
        }
        assert_eq!(in_flight.count(), 0);
    }
}

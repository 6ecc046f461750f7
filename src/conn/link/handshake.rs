//! The exchange on a new connection before its use: it logs in, selects the database, names itself, identifies the
//! server, and kills earlier connections.
//!
//! Invariants: after it, every command on earlier connections is executed or dead, or
//! [`Handshake::earlier_commands_settled`] is false until none can arrive. It never kills a connection of another
//! client.

use std::net::SocketAddr;
use std::slice;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures_util::future::join4;
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, ProtocolVersion, RedisConnectionInfo, RedisError, ServerError, Value};

use super::server::SharedProcess;
use super::wire::{SharedTick, Wire};
use crate::conn::error_reply::{
    code, is_no_cluster, is_out_of_connections, is_temporary, is_unknown_command, nonsense,
    without_arguments,
};
use crate::conn::setup::Setup;
use crate::conn::transport::{EventHandler, LATE_ARRIVAL_MAX, command};
use crate::conn::value::{Process, text};
use crate::engine::clock::Clock;

/// The number of remembered connections to servers that the address no longer leads to.
const ELSEWHERE_MAX: usize = 2;

/// The shared state of the connections of one link, with the earlier ones.
#[derive(Debug)]
pub(super) struct Handshake {
    /// Shown by `CLIENT LIST`, so that an operator can identify the connection.
    label: String,
    clock: Clock,
    /// Notified when the server was restarted.
    events: Arc<dyn EventHandler>,
    /// The process behind the address, shared by all links to it. Noted before a connection is used.
    process: Arc<SharedProcess>,
    /// The connections that may still have commands at the server; `None` for one that cannot be identified.
    earlier: Mutex<Vec<Option<Identity>>>,
    /// The time until which a command from an earlier connection may still arrive.
    unsettled_until: SharedTick,
}

/// The identity of a connection at the server.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Identity {
    /// Unique within one run of the server, but not across runs.
    id: u64,
    /// The client's address. `None` if other connections share it, as over a Unix socket.
    addr: Option<String>,
    /// The run of the server that assigned the id, if the server reports it.
    run_id: Option<Arc<str>>,
}

impl Handshake {
    pub(super) fn new(label: String, setup: &Setup, process: &Arc<SharedProcess>) -> Self {
        Self {
            label,
            clock: setup.clock,
            events: Arc::clone(&setup.events),
            process: Arc::clone(process),
            earlier: Mutex::default(),
            unsettled_until: SharedTick::default(),
        }
    }

    pub(super) fn earlier_commands_settled(&self) -> bool {
        self.clock.now() >= self.unsettled_until.get()
    }

    /// Introduces the connection in one write: logs in, selects the database, names the connection, asks for its
    /// identity and the server's uptime, and kills what may be left of earlier connections. Connections without an
    /// address of their own are killed in a second write, once the server is known to be in the run that assigned
    /// their ids. A user without the right to ask gets a connection without an identity, or without a process.
    pub(super) async fn run(
        &self,
        wire: &Wire,
        settings: &RedisConnectionInfo,
        limit: Duration,
    ) -> Result<u64, RedisError> {
        let earlier = self.earlier.lock().clone();
        let name = command(&["CLIENT", "SETNAME", &self.label]);
        let mut commands = vec![command(&["CLIENT", "INFO"]), command(&["INFO", "server"])];
        commands.extend(earlier.iter().flatten().filter_map(Identity::kill));
        let asks_node = self.process.asks_node.load(Ordering::Relaxed);
        if asks_node {
            commands.push(command(&["CLUSTER", "MYID"]));
        }
        // Separate requests, because a server may end the connection after it has refused the first.
        let greeting = greeting(settings);
        let select = Some(settings.db()).filter(|db| *db != 0);
        let select = select.map(|db| command(&["SELECT", &db.to_string()]));
        let (greeted, selected, named, replies) = join4(
            wire.ask(greeting.as_slice(), limit),
            wire.ask(select.as_slice(), limit),
            wire.ask(slice::from_ref(&name), limit),
            wire.ask(&commands, limit),
        )
        .await;
        check_greeting(greeted?.first())?;
        if let Some(Value::ServerError(no)) = selected?.first() {
            return Err(no.clone().into());
        }
        // Without a login, this is the first command.
        permitted(named?.first())?;
        let replies = replies?;
        let node = node_of(replies.last().filter(|_| asks_node))?;
        let process = permitted(replies.get(1))?;
        let process = process.and_then(|info| Process::of(info, self.clock.now()));
        let run_id = process.as_ref().map(|process| Arc::clone(&process.run_id));
        let identity =
            permitted(replies.first())?.and_then(|line| Identity::of(line, run_id.clone()));
        let (generation, is_another) = self.process.met(process, node, self.clock.now())?;
        if is_another {
            // The server was restarted or replaced and may lack holds. Reported at once, because the change is not
            // seen again if this connection fails.
            self.events.moved();
        }
        let same_run = earlier.iter().flatten();
        let same_run = same_run.filter_map(|old| old.kill_in_run(run_id.as_deref()));
        let by_id = wire.ask(&same_run.collect::<Vec<_>>(), limit).await?;
        let by_address = replies.get(2..).unwrap_or_default();
        let kills = [by_address, &by_id];
        self.settle(&earlier, identity.as_ref(), run_id.as_deref(), kills)?;
        self.earlier.lock().push(identity);
        Ok(generation)
    }

    /// Decides whether commands on earlier connections can still be executed, from the replies to the kills by address
    /// and by id.
    fn settle(
        &self,
        earlier: &[Option<Identity>],
        current: Option<&Identity>,
        run_id: Option<&str>,
        [by_address, by_id]: [&[Value]; 2],
    ) -> Result<(), RedisError> {
        let (mut by_address, mut by_id) = (by_address.iter(), by_id.iter());
        let mut is_settled = true;
        for old in earlier {
            is_settled &= match old {
                None => false,
                Some(old) => {
                    let killed = match (old.kill(), old.kill_in_run(run_id)) {
                        (Some(_), _) => by_address.next(),
                        (None, Some(_)) => by_id.next(),
                        (None, None) => None,
                    };
                    // Ids only grow while a server runs. A smaller id means that the server was restarted, and its
                    // connections died with it.
                    let died = current.is_some_and(|current| current.id < old.id)
                        || old.is_of_another_run(run_id);
                    died || permitted(killed)?.is_some()
                }
            };
        }
        if !is_settled {
            let until = self.clock.now().after(LATE_ARRIVAL_MAX);
            self.unsettled_until.set(until);
        }
        let mut earlier = self.earlier.lock();
        // A server that the address no longer leads to may be alive, and the address may lead to it again.
        earlier.retain(|old| {
            let old = old.as_ref();
            old.is_some_and(|old| old.is_of_another_run(run_id))
        });
        let excess = earlier.len().saturating_sub(ELSEWHERE_MAX);
        earlier.drain(..excess);
        Ok(())
    }
}

/// The id in a reply to `CLUSTER MYID`, empty if the server is in no cluster; `None` for a user without the right to ask,
/// who has to accept any node.
fn node_of(reply: Option<&Value>) -> Result<Option<&str>, RedisError> {
    match reply {
        Some(Value::ServerError(no)) if is_no_cluster(&no.clone().into()) => Ok(Some("")),
        reply => Ok(permitted(reply)?.and_then(text)),
    }
}

/// A reply, or `None` if the user lacks the right to ask, which is acceptable. A temporary refusal fails the
/// connection, so that it is made again. A missing authentication, and Redis's protected mode, also fail it, because nothing
/// works then.
fn permitted(reply: Option<&Value>) -> Result<Option<&Value>, RedisError> {
    let Some(Value::ServerError(no)) = reply else {
        return Ok(reply);
    };
    let error = RedisError::from(no.clone());
    if is_temporary(&error) || matches!(code(&error), Some("NOAUTH" | "DENIED")) {
        return Err(error);
    }
    Ok(None)
}

impl Identity {
    fn of(line: &Value, run_id: Option<Arc<str>>) -> Option<Self> {
        let line = text(line)?;
        let field = |name: &str| {
            line.split_whitespace()
                .find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
        };
        let addr = field("addr").filter(|addr| addr.parse::<SocketAddr>().is_ok());
        Some(Self {
            id: field("id")?.parse().ok()?,
            addr: addr.map(str::to_owned),
            run_id,
        })
    }

    /// The kill of this connection, which is safe in any run of the server: another connection with the id has
    /// another address.
    fn kill(&self) -> Option<Cmd> {
        let (id, addr) = (self.id.to_string(), self.addr.as_ref()?);
        Some(command(&["CLIENT", "KILL", "ID", &id, "ADDR", addr]))
    }

    /// The kill of a connection without an address of its own, if the server is still in the run that assigned its
    /// id.
    fn kill_in_run(&self, run_id: Option<&str>) -> Option<Cmd> {
        let is_here = self.addr.is_none() && run_id.is_some() && self.run_id.as_deref() == run_id;
        is_here.then(|| command(&["CLIENT", "KILL", "ID", &self.id.to_string()]))
    }

    /// Whether it died with an earlier run of its server.
    fn is_of_another_run(&self, run_id: Option<&str>) -> bool {
        let runs = self.run_id.as_deref().zip(run_id);
        runs.is_some_and(|(own, current)| own != current)
    }
}

/// The first command of a connection, which logs in and chooses the protocol; `None` if there is no password and the
/// server begins with the right protocol.
pub(crate) fn greeting(settings: &RedisConnectionInfo) -> Option<Cmd> {
    let (user, password) = (settings.username(), settings.password());
    if settings.protocol() == ProtocolVersion::RESP2 {
        let mut login = redis::cmd("AUTH");
        login.arg(user).arg(password?);
        return Some(login);
    }
    let user = user.unwrap_or("default");
    Some(match password {
        Some(password) => command(&["HELLO", "3", "AUTH", user, password]),
        None => command(&["HELLO", "3"]),
    })
}

/// Checks the reply to the [`greeting`].
pub(crate) fn check_greeting(reply: Option<&Value>) -> Result<(), RedisError> {
    match reply {
        None | Some(Value::Okay | Value::Map(_)) => Ok(()),
        Some(Value::ServerError(no)) => Err(refusal(no)),
        Some(_) => Err(nonsense("a reply that is none to this command")),
    }
}

/// An error without a code of its own is about the user or the password.
fn refusal(no: &ServerError) -> RedisError {
    let error = without_arguments(no.clone().into());
    let is_other = is_out_of_connections(&error) || is_unknown_command(&error);
    match error.detail() {
        Some(words) if code(&error) == Some("ERR") && !is_other => {
            let what = "authentication failed";
            (ErrorKind::AuthenticationFailed, what, words.to_owned()).into()
        }
        _ => error,
    }
}

#[cfg(test)]
mod tests {
    use redis::IntoConnectionInfo;

    use super::*;

    fn identity(line: &str) -> Option<Identity> {
        Identity::of(
            &Value::BulkString(line.as_bytes().to_vec()),
            Some("a".into()),
        )
    }

    #[test]
    fn an_identity_is_read_from_a_client_line() {
        let line = "id=7 addr=127.0.0.1:5000 laddr=127.0.0.1:6379 fd=8 name= age=0 user=default\n";
        let known = identity(line).unwrap();
        assert_eq!(
            (known.id, known.addr.as_deref()),
            (7, Some("127.0.0.1:5000"))
        );
        let line = "id=7 addr=[::1]:5000 laddr=[::1]:6379 fd=8\n";
        assert_eq!(identity(line).unwrap().addr.as_deref(), Some("[::1]:5000"));
        assert_eq!(Identity::of(&Value::Nil, None), None);
    }

    /// Ids start again in each run of the server, and all connections over its socket share one address.
    #[test]
    fn one_without_an_address_of_its_own_is_killed_in_the_run_that_gave_it_its_id() {
        for path in ["/run/redis.sock:0", "/with a blank/redis.sock:0"] {
            let line = format!("id=7 addr={path} laddr={path} fd=8 name=\n");
            let known = identity(&line).unwrap();
            assert!(known.kill().is_none());
            let kill = known.kill_in_run(Some("a")).unwrap();
            assert_eq!(
                kill.get_packed_command(),
                b"*4\r\n$6\r\nCLIENT\r\n$4\r\nKILL\r\n$2\r\nID\r\n$1\r\n7\r\n"
            );
            assert!(known.kill_in_run(Some("b")).is_none() && known.is_of_another_run(Some("b")));
            assert!(known.kill_in_run(None).is_none() && !known.is_of_another_run(None));
        }
    }
    fn words(url: &str, protocol: ProtocolVersion) -> Option<Vec<u8>> {
        let info = url.into_connection_info().unwrap();
        let settings = info.redis_settings().clone().set_protocol(protocol);
        greeting(&settings).map(|command| {
            let words = command.args_iter().map(|word| match word {
                redis::Arg::Simple(word) => word,
                _ => b"?",
            });
            words.collect::<Vec<_>>().join(&b' ')
        })
    }

    #[test]
    fn it_logs_in_as_the_url_says() {
        use ProtocolVersion::{RESP2, RESP3};

        let cases = [
            ("redis://h", RESP2, None),
            ("redis://:pass@h", RESP2, Some("AUTH pass")),
            ("redis://user:pass@h", RESP2, Some("AUTH user pass")),
            ("redis://h", RESP3, Some("HELLO 3")),
            ("redis://:pass@h", RESP3, Some("HELLO 3 AUTH default pass")),
            ("redis://user:pass@h", RESP3, Some("HELLO 3 AUTH user pass")),
        ];
        for (url, protocol, expected) in cases {
            let expected = expected.map(|words| words.as_bytes().to_vec());
            assert_eq!(words(url, protocol), expected, "{url} {protocol:?}");
        }
    }

    #[test]
    fn a_refusal_keeps_the_words_of_the_server() {
        let refused = |line: &str| {
            let reply = redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
            check_greeting(Some(&reply)).unwrap_err()
        };
        let about_password = refused("ERR AUTH <password> called without any password configured");
        assert_eq!(about_password.kind(), ErrorKind::AuthenticationFailed);
        assert!(
            about_password
                .detail()
                .unwrap()
                .starts_with("AUTH <password>")
        );
        for (line, code) in [
            ("WRONGPASS invalid username-password pair", "WRONGPASS"),
            ("LOADING Redis is loading", "LOADING"),
            ("ERR max number of clients reached", "ERR"),
            ("ERR unknown command 'AUTH'", "ERR"),
        ] {
            assert_eq!(refused(line).code(), Some(code), "{line}");
        }
        for nonsense in [Value::Int(1), Value::Array(Vec::new()), Value::Nil] {
            assert!(check_greeting(Some(&nonsense)).is_err(), "{nonsense:?}");
        }
        assert!(check_greeting(Some(&Value::Okay)).is_ok() && check_greeting(None).is_ok());
    }
}

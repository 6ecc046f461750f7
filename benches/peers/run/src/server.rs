//! The server's counts, and the origin of its commands.
//!
//! `INFO commandstats` counts each command, also commands that a script calls, and does not distinguish them. `MONITOR`
//! does, but costs too much for a measurement. So it listens for a moment in the uncounted round, and its list gives
//! the origin of each command by its name (for the few names that both send, the proportion).

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Shutdown, TcpStream};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use lockset_testkit::Server;
use serde::{Deserialize, Serialize};

use crate::arguments::Arguments;

/// Commands of the measurement itself, which are not counted.
const OURS: [&str; 3] = ["info", "monitor", "quit"];

/// The server that is measured.
#[derive(Debug)]
pub(crate) enum Measured {
    Own(Box<Server>),
    /// The address of one that somebody else has started.
    Elsewhere(String),
}

impl Measured {
    pub(crate) fn of(arguments: &Arguments) -> Self {
        match &arguments.address {
            Some(address) => Self::Elsewhere(address.clone()),
            None => Self::Own(Box::new(Server::start())),
        }
    }

    /// `HOST:PORT`.
    pub(crate) fn address(&self) -> String {
        match self {
            Self::Own(server) => server.addr().to_string(),
            Self::Elsewhere(address) => address.clone(),
        }
    }
}

/// The server's cost of a job.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Cost {
    /// Commands that clients sent.
    pub(crate) sent: f64,
    /// Commands that scripts called.
    pub(crate) scripted: f64,
    /// Microseconds of the main thread.
    pub(crate) cpu: f64,
}

impl Cost {
    pub(crate) fn each(&self, grants: usize) -> Self {
        let grants = grants as f64;
        Self {
            sent: self.sent / grants,
            scripted: self.scripted / grants,
            cpu: self.cpu / grants,
        }
    }
}

/// The server's counters at one moment.
#[derive(Debug)]
pub(crate) struct Counts {
    calls: BTreeMap<String, u64>,
    cpu: f64,
}

/// One connection, to ask the server what it counted.
pub(crate) struct Meter(redis::Connection);

impl Meter {
    pub(crate) fn of(server: &Measured) -> Self {
        let url = format!("redis://{}/", server.address());
        let client = redis::Client::open(url).expect("HOST:PORT of a server");
        Self(
            client
                .get_connection()
                .expect("the server takes connections"),
        )
    }

    /// Its name and version.
    pub(crate) fn kind(&mut self) -> String {
        let mut info = redis::cmd("INFO");
        let info: String = info.arg("server").query(&mut self.0).expect("INFO");
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        match (field("valkey_version:"), field("redis_version:")) {
            (Some(version), _) => format!("Valkey {version}"),
            (None, version) => format!("Redis {}", version.unwrap_or("?")),
        }
    }

    pub(crate) fn counts(&mut self) -> Counts {
        let mut info = redis::cmd("INFO");
        let info: String = info
            .arg("commandstats")
            .arg("cpu")
            .query(&mut self.0)
            .expect("INFO");
        Counts::read(&info)
    }

    /// Milliseconds until a key is gone; none if it is.
    pub(crate) fn time_to_live(&mut self, key: &str) -> u64 {
        let left: i64 = redis::cmd("PTTL")
            .arg(key)
            .query(&mut self.0)
            .expect("PTTL");
        left.max(0) as u64
    }
}

impl Counts {
    fn read(info: &str) -> Self {
        let mut counts = Self {
            calls: BTreeMap::new(),
            cpu: 0.0,
        };
        let mut process = 0.0;
        for line in info.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let seconds = || value.trim().parse::<f64>().unwrap_or(0.0) * 1e6;
            match key {
                "used_cpu_sys_main_thread" | "used_cpu_user_main_thread" => counts.cpu += seconds(),
                "used_cpu_sys" | "used_cpu_user" => process += seconds(),
                _ => {
                    let calls = value
                        .split(',')
                        .find_map(|field| field.strip_prefix("calls="));
                    if let (Some(name), Some(calls)) = (key.strip_prefix("cmdstat_"), calls) {
                        // `client|kill` is a `client`, as it is to MONITOR.
                        let name = name.split('|').next().unwrap_or(name);
                        *counts.calls.entry(name.to_owned()).or_default() +=
                            calls.parse::<u64>().unwrap_or(0);
                    }
                }
            }
        }
        if counts.cpu == 0.0 {
            counts.cpu = process;
        }
        counts
    }

    /// The cost since `before`.
    pub(crate) fn since(&self, before: &Self, origins: &Origins) -> Cost {
        let mut cost = Cost {
            cpu: self.cpu - before.cpu,
            ..Cost::default()
        };
        for (name, calls) in &self.calls {
            let calls = calls - before.calls.get(name).copied().unwrap_or(0);
            if OURS.contains(&&**name) {
                continue;
            }
            let scripted = calls as f64 * origins.share_of_scripts(name);
            cost.scripted += scripted;
            cost.sent += calls as f64 - scripted;
        }
        cost
    }
}

/// Where the commands of one peer at one job come from: how many of each name were heard from its
/// clients, and how many from scripts.
#[derive(Debug, Default)]
pub(crate) struct Origins(BTreeMap<String, [u64; 2]>);

impl Origins {
    /// The share of the commands of this name that scripts called.
    fn share_of_scripts(&self, name: &str) -> f64 {
        match self.0.get(name) {
            Some(&[clients, scripts]) => scripts as f64 / (clients + scripts) as f64,
            // Commands too rare for the list belong to connections.
            None => 0.0,
        }
    }

    /// Listens to all that is done while `work` is.
    pub(crate) fn learn<T>(server: &Measured, work: impl FnOnce() -> T) -> (Self, T) {
        let (stream, listener) = listen(server);
        let done = work();
        let _ = stream.shutdown(Shutdown::Both);
        (listener.join().expect("listening does not panic"), done)
    }

    /// `1700000000.123456 [0 127.0.0.1:1234] "SET" "key" ..`, and `[0 lua]` from a script.
    fn note(&mut self, line: &str) {
        let Some((head, words)) = line.split_once("] \"") else {
            return;
        };
        let name = words.split('"').next().unwrap_or_default().to_lowercase();
        let origin = usize::from(head.ends_with(" lua"));
        self.0.entry(name).or_default()[origin] += 1;
    }
}

fn listen(server: &Measured) -> (TcpStream, JoinHandle<Origins>) {
    let mut stream = TcpStream::connect(server.address()).expect("the server takes connections");
    stream.write_all(b"MONITOR\r\n").expect("the server reads");
    let mut reader = BufReader::new(stream.try_clone().expect("a second handle"));
    let mut answer = String::new();
    reader.read_line(&mut answer).expect("an answer to MONITOR");
    let listener = thread::spawn(move || {
        let mut origins = Origins::default();
        let lines = reader.lines().map_while(Result::ok);
        lines.for_each(|line| origins.note(&line));
        origins
    });
    (stream, listener)
}

/// Long enough to see each command a peer uses.
pub(crate) const LISTENING: Duration = Duration::from_millis(300);

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "# CPU\r\nused_cpu_sys:9\r\nused_cpu_sys_main_thread:1.5\r\n\
        used_cpu_user_main_thread:0.5\r\n# Commandstats\r\ncmdstat_get:calls=3,usec=9\r\n";
    const AFTER: &str = "used_cpu_sys_main_thread:2.5\r\nused_cpu_user_main_thread:0.5\r\n\
        cmdstat_get:calls=5,usec=9\r\ncmdstat_evalsha:calls=2,usec=1\r\ncmdstat_info:calls=7,\r\n\
        cmdstat_client|kill:calls=1,usec=1\r\ncmdstat_del:calls=4,usec=1\r\n";

    #[test]
    fn commands_are_told_apart_by_what_was_heard() {
        let mut origins = Origins::default();
        origins.note(r#"1.2 [0 127.0.0.1:5] "EVALSHA" "abc" "1""#);
        origins.note(r#"1.2 [0 lua] "GET" "k""#);
        origins.note(r#"1.2 [0 lua] "del" "k""#);
        origins.note(r#"1.2 [0 127.0.0.1:5] "DEL" "k""#);
        let cost = Counts::read(AFTER).since(&Counts::read(BEFORE), &origins);
        assert_eq!((cost.sent, cost.scripted), (5.0, 4.0));
        assert_eq!(cost.cpu, 1e6);
    }
}

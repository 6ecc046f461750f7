//! One sentinel's view of the primary that it watches.
//!
//! The view is set from outside: how sentinels come to agree is not simulated, so any of them may be behind, or wrong,
//! for as long as a test wants.

use crate::reply::Reply;
use crate::words::Words;

/// The name under which every simulated sentinel watches the primary.
pub(crate) const NAME: &str = "main";

#[derive(Debug)]
pub(crate) struct Watch {
    /// Host and port.
    pub(crate) primary: String,
    pub(crate) epoch: u64,
    pub(crate) id: String,
    /// The addresses and ids of the other sentinels.
    pub(crate) others: Vec<(String, String)>,
}

fn parts(address: &str) -> (&str, &str) {
    address.rsplit_once(':').expect("an address")
}

fn flat(fields: &[(&str, &str)]) -> Reply {
    let words = fields.iter().flat_map(|(name, value)| [name, value]);
    Reply::Array(words.map(|word| Reply::bulk(word.as_bytes())).collect())
}

impl Watch {
    pub(crate) fn answer(&self, words: &Words) -> Reply {
        let verb = words.get(1).unwrap_or_default().to_ascii_uppercase();
        if verb == b"MYID" {
            return Reply::bulk(self.id.as_bytes());
        }
        let is_known = words.get(2) == Some(NAME.as_bytes());
        let (host, port) = parts(&self.primary);
        match &*verb {
            b"GET-MASTER-ADDR-BY-NAME" if !is_known => Reply::Nil,
            b"MASTER" | b"SENTINELS" if !is_known => {
                Reply::error("ERR No such master with that name")
            }
            b"GET-MASTER-ADDR-BY-NAME" => {
                let both = [host, port].map(|word| Reply::bulk(word.as_bytes()));
                Reply::Array(both.into())
            }
            b"MASTER" => flat(&[
                ("name", NAME),
                ("ip", host),
                ("port", port),
                ("flags", "master"),
                ("config-epoch", &self.epoch.to_string()),
                ("num-other-sentinels", &self.others.len().to_string()),
            ]),
            b"SENTINELS" => {
                let others = self.others.iter().map(|(address, id)| {
                    let (host, port) = parts(address);
                    flat(&[("name", id), ("ip", host), ("port", port), ("runid", id)])
                });
                Reply::Array(others.collect())
            }
            _ => Reply::error("ERR unknown subcommand of SENTINEL on this server"),
        }
    }

    /// It learns of a failover. Returns what it announces, and on which channel.
    pub(crate) fn learn(&mut self, primary: &str, epoch: u64) -> (&'static str, String) {
        let before = std::mem::replace(&mut self.primary, primary.to_owned());
        self.epoch = epoch;
        let ((host, port), (to_host, to_port)) = (parts(&before), parts(primary));
        let switched = format!("{NAME} {host} {port} {to_host} {to_port}");
        ("+switch-master", switched)
    }
}

//! `CLIENT`: what a connection says of itself, and the end of another one.

use super::{ConnectionId, Node};
use crate::number;
use crate::reply::Reply;
use crate::words::Words;

impl Node {
    pub(super) fn client(&mut self, from: ConnectionId, words: &Words) -> Reply {
        match &*words.get(1).unwrap_or_default().to_ascii_uppercase() {
            b"ID" => Reply::Int(i64::try_from(from).unwrap_or(i64::MAX)),
            b"INFO" => Reply::Bulk(
                format!(
                    "id={from} addr={} name={}\n",
                    self.address_of(from),
                    String::from_utf8_lossy(self.name_of(from))
                )
                .into_bytes(),
            ),
            b"SETINFO" => Reply::OK,
            b"SETNAME" => {
                if let Some(connection) = self.connections.get_mut(&from) {
                    connection.name = words.get(2).unwrap_or_default().to_vec();
                }
                Reply::OK
            }
            b"GETNAME" => self
                .connections
                .get(&from)
                .map_or(Reply::Nil, |one| Reply::bulk(&one.name)),
            b"KILL" => {
                let filter = |name: &[u8]| {
                    let mut words = words.from(2);
                    words.find(|word| word.eq_ignore_ascii_case(name))?;
                    words.next()
                };
                let id = filter(b"ID").and_then(number::int);
                let Some(id) = id.and_then(|id| u64::try_from(id).ok()) else {
                    return Reply::syntax();
                };
                let is_at = |address: &[u8]| *address == *self.address_of(id).as_bytes();
                // The caller's own connection is spared.
                let is_meant =
                    id != from && self.is_connected(id) && filter(b"ADDR").is_none_or(is_at);
                if is_meant {
                    self.disconnect(id);
                    self.killed.push(id);
                }
                Reply::Int(is_meant.into())
            }
            _ => Reply::error("ERR unknown subcommand of CLIENT on this server"),
        }
    }

    /// Where a connection comes from.
    fn address_of(&self, id: ConnectionId) -> String {
        let port = self.connections.get(&id).map_or(0, |one| one.port);
        format!("10.0.0.1:{port}")
    }
}

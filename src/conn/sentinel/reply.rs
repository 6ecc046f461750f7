//! The reply of one sentinel. Pure.

use std::collections::HashMap;

use redis::{RedisError, Value, from_redis_value};

use super::view::View;
use crate::conn::address::Address;

/// The reply of one sentinel.
#[derive(Debug)]
pub(super) struct Reply {
    pub(super) from: Address,
    pub(super) outcome: SentinelAnswer,
    /// Its own id, if it reports one.
    pub(super) id: Option<String>,
    /// The other sentinels that it knows; `None` if it does not report them.
    pub(super) peers: Option<Vec<Peer>>,
}

/// The outcome of asking one sentinel for the primary.
#[derive(Debug)]
pub(super) enum SentinelAnswer {
    Names(View),
    /// It watches no primary of that name.
    UnknownName,
    /// It replied with an error.
    Refused(RedisError),
    /// There is no usable reply, for this reason.
    NoReply(String),
}

/// A sentinel that another one names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Peer {
    pub(super) address: Address,
    pub(super) id: Option<String>,
}

impl Reply {
    /// A reply without an id and peers.
    pub(super) fn bare(from: Address, outcome: SentinelAnswer) -> Self {
        Self {
            from,
            outcome,
            id: None,
            peers: None,
        }
    }

    /// Parses the replies to `SENTINEL MASTER`, `GET-MASTER-ADDR-BY-NAME`, `SENTINELS` and `MYID`.
    ///
    /// The second reply has the address, because it changes as soon as a replica is promoted; the first changes only
    /// when all other replicas follow. The epoch is asked for before the address, so an address is never considered
    /// newer than it is.
    pub(super) fn of(from: Address, replies: Vec<Value>) -> Self {
        let Ok([primary, address, peers, id]) = <[Value; 4]>::try_from(replies) else {
            let why = "its answer is incomplete".to_owned();
            return Self::bare(from, SentinelAnswer::NoReply(why));
        };
        let outcome = match (address.extract_error(), primary.extract_error()) {
            (Ok(Value::Nil), _) => SentinelAnswer::UnknownName,
            (Err(no), _) | (_, Err(no)) => SentinelAnswer::Refused(no),
            (Ok(address), Ok(primary)) => view(address, primary).map_or_else(
                || SentinelAnswer::NoReply("its answer makes no sense".to_owned()),
                SentinelAnswer::Names,
            ),
        };
        Self {
            from,
            outcome,
            id: from_redis_value(id)
                .ok()
                .filter(|id: &String| !id.is_empty()),
            peers: peers.extract_error().ok().map(peers_in),
        }
    }

    /// Replaces announced addresses by the ones to use.
    pub(super) fn with_addresses(mut self, resolve: impl Fn(Address) -> Address) -> Self {
        if let SentinelAnswer::Names(view) = &mut self.outcome {
            view.primary = resolve(view.primary.clone());
        }
        for peer in self.peers.iter_mut().flatten() {
            peer.address = resolve(peer.address.clone());
        }
        self
    }

    pub(super) fn view(&self) -> Option<&View> {
        match &self.outcome {
            SentinelAnswer::Names(view) => Some(view),
            _ => None,
        }
    }
}

fn view(address: Value, primary: Value) -> Option<View> {
    let (host, port): (String, u16) = from_redis_value(address).ok()?;
    let primary: HashMap<String, Value> = from_redis_value(primary).ok()?;
    let epoch = primary.get("config-epoch")?.clone();
    Some(View {
        primary: Address {
            host: host.into(),
            port,
        },
        epoch: from_redis_value(epoch).ok()?,
    })
}

/// The peers in a list of descriptions. Peers without an address are left out.
fn peers_in(list: Value) -> Vec<Peer> {
    let list: Vec<HashMap<String, Value>> = from_redis_value(list).unwrap_or_default();
    list.into_iter()
        .filter_map(|mut one| {
            let host: String = from_redis_value(one.remove("ip")?).ok()?;
            let port: u16 = from_redis_value(one.remove("port")?).ok()?;
            let id = one.remove("runid").and_then(|id| from_redis_value(id).ok());
            (!host.is_empty() && port != 0).then(|| Peer {
                address: Address {
                    host: host.into(),
                    port,
                },
                id: id.filter(|id: &String| !id.is_empty()),
            })
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcome(replies: Vec<Value>) -> SentinelAnswer {
        Reply::of(address(1), replies).outcome
    }

    fn address(port: u16) -> Address {
        Address {
            host: "10.0.0.1".into(),
            port,
        }
    }

    fn text(text: &str) -> Value {
        Value::BulkString(text.as_bytes().to_vec())
    }

    fn map(fields: &[(&str, &str)]) -> Value {
        let fields = fields.iter().map(|(name, value)| (text(name), text(value)));
        Value::Map(fields.collect())
    }

    #[test]
    fn a_reply_has_the_address_of_the_promoted_replica() {
        // The first reply keeps the old address until the other replicas follow.
        let primary = map(&[("ip", "10.0.0.1"), ("port", "1"), ("config-epoch", "7")]);
        let address_now = Value::Array(vec![text("10.0.0.1"), text("2")]);
        let peers = Value::Array(vec![
            map(&[("ip", "10.0.0.1"), ("port", "26379"), ("runid", "a")]),
            map(&[("ip", ""), ("port", "26379")]),
            map(&[("ip", "10.0.0.1"), ("port", "0")]),
            map(&[("name", "x")]),
        ]);
        let reply = Reply::of(address(1), vec![primary, address_now, peers, text("me")]);
        let expected = View {
            primary: address(2),
            epoch: 7,
        };
        assert_eq!(reply.view(), Some(&expected));
        assert_eq!(reply.id.as_deref(), Some("me"));
        let peer = Peer {
            address: address(26379),
            id: Some("a".to_owned()),
        };
        assert_eq!(reply.peers, Some(vec![peer]));
    }

    #[test]
    fn a_reply_may_be_an_unknown_name_an_error_or_nonsense() {
        let no = |line: &str| redis::parse_redis_value(format!("-{line}\r\n").as_bytes()).unwrap();
        let unknown = no("ERR No such master with that name");
        let replies = vec![unknown.clone(), Value::Nil, unknown, text("me")];
        let reply = Reply::of(address(1), replies);
        assert!(reply.view().is_none() && matches!(reply.outcome, SentinelAnswer::UnknownName));
        let denied = no("NOAUTH Authentication required.");
        let replies = vec![denied; 4];
        assert!(matches!(outcome(replies), SentinelAnswer::Refused(_)));
        for nonsense in [
            vec![],
            vec![Value::Okay; 4],
            vec![
                map(&[("config-epoch", "x")]),
                Value::Array(vec![text("h"), text("1")]),
                Value::Nil,
                Value::Nil,
            ],
        ] {
            let outcome = outcome(nonsense);
            assert!(matches!(outcome, SentinelAnswer::NoReply(_)), "{outcome:?}");
        }
    }
}

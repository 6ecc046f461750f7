//! Reentrant locks: each script or plain command that takes one, gives one up or renews it.
//!
//! The state of the server is its holder.

use std::collections::BTreeMap;

use super::line::{Line, is_over, shown};
use crate::called::Called;
use crate::reply::Reply;
use crate::store::{Bytes, Data, Store};
use crate::words::Words;

/// Its holder, and when its lease ends.
#[derive(Default)]
struct Lock(Option<(Bytes, Option<i64>)>);

#[derive(Default)]
pub(super) struct Plain {
    locks: BTreeMap<Bytes, Lock>,
}

/// A call about one lock.
struct Call<'a> {
    step: &'static str,
    key: &'a [u8],
    /// The holder of a `RESTORE` is read from the result.
    holder: Option<&'a [u8]>,
    is_granted: bool,
}

impl<'a> Call<'a> {
    fn all(command: &'a Words, called: Option<&Called<'a>>, reply: &Reply) -> Vec<Self> {
        let one = |step, key, holder, is_granted| Self {
            step,
            key,
            holder,
            is_granted,
        };
        let is_granted = matches!(reply, Reply::Nil | Reply::Bulk(_));
        match (called, &*command.verb()) {
            (Some(("reentrant_acquire", key, args)), _) => {
                vec![one("plain_acquire", *key, Some(args[0]), is_granted)]
            }
            (Some(("reentrant_release", key, args)), _) => {
                vec![one("plain_release", *key, Some(args[0]), false)]
            }
            (Some(("renew", _, args)), _) => {
                let Reply::Array(replies) = reply else {
                    return Vec::new();
                };
                // Keys come before the arguments, two for each key.
                let locks = command.from(3).zip(args.chunks(2)).zip(replies);
                let renewed = locks.map(|((key, args), reply)| {
                    one("plain_renew", key, Some(args[0]), *reply == Reply::Int(1))
                });
                renewed.collect()
            }
            (None, b"RESTORE") => {
                let is_granted = *reply == Reply::OK;
                vec![one("plain_acquire", command.at(1), None, is_granted)]
            }
            (None, b"HDEL") => {
                let holder = command.get(2);
                vec![one("plain_release", command.at(1), holder, false)]
            }
            _ => Vec::new(),
        }
    }
}

/// Whether it is the refusal of a plain command that says that a lock is held.
fn is_busy(reply: &Reply) -> bool {
    matches!(reply, Reply::Error(text) if text.starts_with("BUSYKEY"))
}

impl Plain {
    /// A command was done.
    pub(super) fn done(
        &mut self,
        command: &Words,
        called: Option<&Called<'_>>,
        reply: &Reply,
        keys: &Store,
    ) -> Vec<Line> {
        let mut lines = Vec::new();
        for call in Call::all(command, called, reply) {
            // One script renews fair locks too: locks without a known acquire are not followed.
            let is_known = self.locks.contains_key(call.key);
            if !is_known && call.step == "plain_renew" {
                continue;
            }
            let lock = self.locks.entry(call.key.into()).or_default();
            let before = lock.shown(keys);
            lock.look(call.key, keys);
            let is_refusal = matches!(reply, Reply::Error(_)) && !is_busy(reply);
            if !is_known || is_refusal {
                continue;
            }
            let after = lock.shown(keys);
            let holder = match call.holder {
                Some(holder) => shown(holder),
                None if call.is_granted => after.clone(),
                None => "?".to_owned(),
            };
            lines.push(Line {
                step: call.step,
                key: shown(call.key),
                holder,
                detail: String::new(),
                is_granted: call.is_granted,
                before,
                after,
            });
        }
        for (key, lock) in &mut self.locks {
            lock.look(key, keys);
        }
        lines
    }
}

impl Lock {
    fn look(&mut self, key: &[u8], keys: &Store) {
        self.0 = match keys.get(key) {
            Some(Data::Hash(fields)) => fields
                .first()
                .map(|(holder, _)| (holder.clone(), keys.ends_at(key))),
            _ => None,
        };
    }

    /// By now.
    fn shown(&self, keys: &Store) -> String {
        let holder = self.0.as_ref().filter(|(_, end)| !is_over(*end, keys));
        holder.map_or("-".into(), |(holder, _)| shown(holder))
    }
}

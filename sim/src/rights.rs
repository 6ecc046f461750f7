//! Which rights the users of a server lack: commands, and channels.
//!
//! Each client is a user of its own, who may do everything but what is named here.

use std::collections::{BTreeMap, BTreeSet};

use crate::words::Words;

/// A user, by the number of its client.
pub(crate) type User = usize;

/// One right, as an operator gives it or takes it away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Right {
    /// A command, in small letters; one with subcommands as `client|kill`.
    Command(&'static str),
    /// All channels that begin so.
    Channels(&'static str),
}

/// A right that a user lacks.
pub(crate) enum Lacking {
    /// The command of this name.
    Command(String),
    Channel,
}

/// Which rights each user lacks.
#[derive(Debug, Default)]
pub(crate) struct Rights(BTreeMap<User, BTreeSet<Right>>);

impl Rights {
    pub(crate) fn deny(&mut self, user: User, right: Right) {
        self.0.entry(user).or_default().insert(right);
    }

    pub(crate) fn allow(&mut self, user: User, right: Right) {
        if let Some(lacking) = self.0.get_mut(&user) {
            lacking.remove(&right);
        }
        self.0.retain(|_, lacking| !lacking.is_empty());
    }

    /// Why a user may not do this; `None` if it may.
    pub(crate) fn lacking(&self, user: User, verb: &[u8], words: &Words) -> Option<Lacking> {
        let lacking = self.0.get(&user)?;
        let name = full_name(verb, words);
        let is_command = |right: &Right| matches!(right, Right::Command(other) if *other == name);
        if lacking.iter().any(is_command) {
            return Some(Lacking::Command(name));
        }
        let channel = words.get(1).filter(|_| is_on_channels(verb))?;
        let is_channel = |right: &Right| match right {
            Right::Channels(prefix) => channel.starts_with(prefix.as_bytes()),
            Right::Command(_) => false,
        };
        let may_not = lacking.iter().any(is_channel);
        may_not.then_some(Lacking::Channel)
    }
}

/// As the server names it in a refusal.
fn full_name(verb: &[u8], words: &Words) -> String {
    let mut name = String::from_utf8_lossy(verb).to_ascii_lowercase();
    if let (b"CLIENT" | b"SCRIPT" | b"PUBSUB" | b"CLUSTER" | b"SENTINEL", Some(part)) =
        (verb, words.get(1))
    {
        name.push('|');
        name.push_str(&String::from_utf8_lossy(part).to_ascii_lowercase());
    }
    name
}

fn is_on_channels(verb: &[u8]) -> bool {
    matches!(
        verb,
        b"PUBLISH" | b"SPUBLISH" | b"SUBSCRIBE" | b"SSUBSCRIBE"
    )
}

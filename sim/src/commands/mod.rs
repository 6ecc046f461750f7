//! The commands on keys, as scripts and clients call them: names, numbers of arguments, and what each does.
//!
//! Each is a function of the keys and the words. Invariant: a command that replies with an error has changed
//! nothing.

mod hashes;
mod keys;
mod lists;
mod restore;
mod sorted_sets;
mod strings;
mod typed;

#[cfg(test)]
pub(crate) use self::restore::checksum;
use self::typed::{Draw, Outcome};
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

type Run = fn(&mut Store, &Words) -> Outcome;

pub(crate) struct Command {
    /// Words it takes, its name among them; negative: at least this many.
    arity: i64,
    run: Run,
}

const fn command(arity: i64, run: Run) -> Command {
    Command { arity, run }
}

/// Commands that only read.
const READS: &[&str] = &[
    "EXISTS", "PTTL", "TYPE", "KEYS", "DBSIZE", "TIME", "GET", "HEXISTS", "HGET", "HGETALL",
    "HLEN", "HMGET", "LINDEX", "LLEN", "LPOS", "LRANGE", "ZCARD", "ZCOUNT", "ZMSCORE", "ZRANGE",
    "ZSCORE",
];

/// Whether a replica refuses it.
pub(crate) fn writes(verb: &[u8]) -> bool {
    Command::named(verb).is_some() && !READS.iter().any(|reads| reads.as_bytes() == verb)
}

impl Command {
    /// The command of this name, in capitals.
    pub(crate) fn named(verb: &[u8]) -> Option<Self> {
        Some(match verb {
            b"DEL" | b"UNLINK" => command(-2, keys::del),
            b"EXISTS" => command(-2, keys::exists),
            b"PEXPIRE" => command(-3, keys::pexpire),
            b"PTTL" => command(2, keys::pttl),
            b"PERSIST" => command(2, keys::persist),
            b"TYPE" => command(2, keys::kind),
            b"KEYS" => command(2, keys::all),
            b"DBSIZE" => command(1, keys::count),
            b"FLUSHALL" | b"FLUSHDB" => command(-1, keys::flush),
            b"TIME" => command(1, keys::time),
            b"RESTORE" => command(-4, restore::restore),
            b"GET" => command(2, strings::get),
            b"SET" => command(-3, strings::set),
            b"INCR" => command(2, strings::incr),
            b"INCRBY" => command(3, strings::incr_by),
            b"HDEL" => command(-3, hashes::del),
            b"HEXISTS" => command(3, hashes::exists),
            b"HGET" => command(3, hashes::get),
            b"HGETALL" => command(2, hashes::get_all),
            b"HINCRBY" => command(4, hashes::incr_by),
            b"HLEN" => command(2, hashes::len),
            b"HMGET" => command(-3, hashes::get_many),
            b"HSET" => command(-4, hashes::set),
            b"LINDEX" => command(3, lists::index),
            b"LLEN" => command(2, lists::len),
            b"LPOP" => command(2, lists::pop),
            b"LPOS" => command(-3, lists::position),
            b"LRANGE" => command(4, lists::range),
            b"LREM" => command(4, lists::remove),
            b"LPUSH" => command(-3, lists::push_front),
            b"RPUSH" => command(-3, lists::push),
            b"ZADD" => command(-4, sorted_sets::add),
            b"ZCARD" => command(2, sorted_sets::len),
            b"ZCOUNT" => command(4, sorted_sets::count),
            b"ZMSCORE" => command(-3, sorted_sets::scores),
            b"ZRANGE" => command(-4, sorted_sets::range),
            b"ZREM" => command(-3, sorted_sets::remove),
            b"ZREMRANGEBYSCORE" => command(4, sorted_sets::remove_by_score),
            b"ZSCORE" => command(3, sorted_sets::score),
            _ => return None,
        })
    }

    pub(crate) fn accepts(&self, words: &Words) -> bool {
        let count = i64::try_from(words.len()).unwrap_or(i64::MAX);
        if self.arity < 0 {
            count >= -self.arity
        } else {
            count == self.arity
        }
    }

    pub(crate) fn run(&self, store: &mut Store, words: &Words) -> Reply {
        (self.run)(store, words).unwrap_or_else(|error| error)
    }
}

/// `HRANDFIELD` apart: it is the one that leaves something to chance.
pub(crate) fn random_fields(store: &Store, words: &Words, draw: Draw<'_>) -> Reply {
    hashes::random(store, words, draw).unwrap_or_else(|error| error)
}

//! Calls drawn at random: every script, and commands that put something else into its keys.

use fastrand::Rng;

use super::arguments::{Drawing, HOLDERS};
use crate::commands::checksum;

/// The scripts of what is no lock: the keys, and the kinds of their arguments.
const SYNCHRONIZERS: &[(&str, &str, &str)] = &[
    ("latch_count", "latch opened", ""),
    (
        "latch_count_down",
        "latch done opened",
        "holder lease lease channel publish",
    ),
    (
        "latch_delete",
        "latch opened",
        "holder lease channel publish",
    ),
    ("latch_init", "latch call", "count lease channel publish"),
    (
        "plain_acquire",
        "permits holds",
        "holder small count lease channel publish",
    ),
    ("plain_available", "permits", ""),
    ("plain_give", "permits call", "count lease channel publish"),
    (
        "plain_init",
        "permits call holds",
        "count lease channel publish",
    ),
    (
        "plain_release",
        "permits holds",
        "holder lease channel publish",
    ),
    (
        "leader_proclaim",
        "lock leader",
        "holder count count text lease channel publish",
    ),
    ("leader_read", "lock leader", ""),
    ("leader_resign", "leader", "holder count channel publish"),
    (
        "barrier_arrive",
        "parties arrivals over",
        "holder count lease text lease channel publish flag holder",
    ),
    (
        "barrier_leave",
        "parties arrivals over",
        "holder flag text lease channel publish",
    ),
    (
        "semaphore_acquire",
        "permits taken queue alive",
        "lease small count channel publish heartbeat holder holder holder",
    ),
    (
        "semaphore_release",
        "permits taken queue alive",
        "channel publish holder holder holder",
    ),
    ("semaphore_inspect", "permits taken", ""),
    ("semaphore_resize", "permits taken", "count channel publish"),
];

/// Each script by its name, with its SHA.
pub(super) type Scripts = Vec<(&'static str, &'static str)>;

/// The arguments of most scripts.
#[derive(Clone)]
struct Call {
    keys: Vec<String>,
    holder: String,
    lease: String,
    channel: String,
    publish: String,
    retention: String,
}

impl Call {
    /// Where a release is announced, and how.
    fn message(&self) -> Vec<String> {
        vec![self.channel.clone(), self.publish.clone()]
    }

    /// The arguments of a release.
    fn release(&self) -> Vec<String> {
        [std::slice::from_ref(&self.holder), &self.message()].concat()
    }
}

impl Drawing<'_> {
    fn member_acquire(&mut self, keys: &mut Vec<String>, args: &mut Vec<String>) {
        let kind = self.one_of(&["plain", "reentrant", "fair", "read", "write"]);
        let mut own = self.keys(&kind);
        if kind == "plain" {
            own.truncate(1);
            args.push(self.holder());
        } else {
            args.extend([kind, self.holder(), self.lease()]);
            args.extend([
                self.flag(),
                self.heartbeat(),
                self.one_of(&["0", "500"]),
                self.channel(),
            ]);
        }
        keys.append(&mut own);
    }

    fn member_release(&mut self, keys: &mut Vec<String>, args: &mut Vec<String>) {
        let kind = self.one_of(&["plain", "fair", "rw"]);
        let mut own = self.keys(&kind);
        own.remove(1);
        args.extend([kind, self.holder(), self.channel()]);
        keys.append(&mut own);
    }

    fn many(
        &mut self,
        first: Vec<String>,
        member: fn(&mut Self, &mut Vec<String>, &mut Vec<String>),
    ) -> (Vec<String>, Vec<String>) {
        let (mut keys, mut args) = (Vec::new(), first);
        for _ in 0..self.draw.usize(1..4) {
            member(self, &mut keys, &mut args);
        }
        (keys, args)
    }

    fn renewed(&mut self, kind: &'static str) -> (Vec<String>, Vec<String>) {
        let (mut keys, mut args) = (Vec::new(), Vec::new());
        for _ in 0..self.draw.usize(1..4) {
            keys.push(self.keys(kind).remove(0));
            args.extend([self.holder(), self.lease()]);
        }
        (keys, args)
    }

    /// Keys and arguments of a script, as its header says.
    fn script(&mut self, name: &str) -> (Vec<String>, Vec<String>) {
        if let Some((_, keys, args)) = SYNCHRONIZERS.iter().find(|(script, ..)| *script == name) {
            return self.synchronizer(keys, args);
        }
        let kind = name.split('_').next().expect("a kind");
        if ["multi", "rw", "read", "write"].contains(&kind) {
            self.holders = &HOLDERS[..2];
        }
        let mut call = Call {
            keys: self.keys(kind),
            holder: self.holder(),
            lease: self.lease(),
            channel: self.channel(),
            publish: self.publish(),
            retention: self.retention(),
        };
        let args = match kind {
            "reentrant" => self.reentrant(name, &mut call),
            "fair" => self.fair(name, &mut call),
            "read" | "write" | "rw" if name != "rw_renew" => self.read_write(name, &mut call),
            "rw" => return self.renewed("rw"),
            "renew" | "semaphore" => return self.renewed("plain"),
            "keep" => self.keep(&mut call),
            "recall" => {
                call.keys.truncate(1);
                vec!["ch:".to_owned(), call.publish]
            }
            "raise" => {
                call.keys = vec![call.keys.remove(1)];
                let token = self.number(&["5", "1790000000000000", "99999999999999"]);
                vec![token, call.retention.clone()]
            }
            "take" => {
                let kind = self.one_of(&["reentrant", "rw"]);
                call.keys = self.keys(&kind);
                call.keys.truncate(2);
                vec![call.holder, call.retention]
            }
            "multi" if name == "multi_acquire" => {
                let tokens = self.one_of(&["0", "1", "2"]);
                let first = vec![call.publish, tokens, call.retention, call.lease];
                return self.many(first, Self::member_acquire);
            }
            "multi" => return self.many(vec![call.publish], Self::member_release),
            _ => panic!("{name} is not drawn here"),
        };
        (call.keys, args)
    }

    fn synchronizer(&mut self, keys: &str, args: &str) -> (Vec<String>, Vec<String>) {
        let keys = keys.split_whitespace().map(|key| match key {
            "lock" => "a".to_owned(),
            key => format!("{key}:{{s}}"),
        });
        let args = args.split_whitespace().map(|arg| match arg {
            "holder" => self.holder(),
            "count" => self.count(),
            // A script reads as many arguments as this says, or takes as many permits, of which no call takes none:
            // servers differ in how they write -0.
            "small" => self.one_of(&["1", "1", "2"]),
            "lease" => self.lease(),
            "flag" => self.flag(),
            "heartbeat" => self.heartbeat(),
            "channel" => self.channel(),
            "publish" => self.publish(),
            _ => self.one_of(&["over:{s}:", "text"]),
        });
        (keys.collect(), args.collect())
    }

    fn reentrant(&mut self, name: &str, call: &mut Call) -> Vec<String> {
        if name == "reentrant_acquire" {
            let Call {
                holder,
                lease,
                retention,
                ..
            } = call.clone();
            return vec![holder, lease, self.count(), retention];
        }
        call.keys.truncate(1);
        match name {
            "reentrant_release" => call.release(),
            "reentrant_inspect" => vec![],
            "reentrant_force_unlock" => call.message(),
            _ => panic!("{name} is not drawn here"),
        }
    }

    fn fair(&mut self, name: &str, call: &mut Call) -> Vec<String> {
        if name == "fair_waiters" {
            call.keys = [0, 2, 4].map(|at| call.keys[at].clone()).into();
            return vec![];
        }
        if name == "fair_place" {
            call.keys = vec![call.keys.remove(2)];
            return vec![call.holder.clone(), self.count()];
        }
        let token = call.keys.remove(1);
        call.keys.push(token);
        let retention = [call.retention.clone()];
        match name {
            "fair_acquire" => {
                let (tokens, heartbeat, turn) = (self.flag(), self.heartbeat(), self.on_turn());
                let Call { holder, lease, .. } = call.clone();
                let args = [holder, lease, tokens, heartbeat, turn];
                [&args[..], &call.message(), &retention].concat()
            }
            "fair_release" => {
                let used = self.draw.usize(..3);
                let used: Vec<_> = (0..used).map(|_| self.holder()).collect();
                [&call.release()[..], &retention, &used].concat()
            }
            "fair_heartbeat" => {
                let waiters = self.draw.usize(..5);
                let waiters: Vec<_> = (0..waiters).map(|_| self.holder()).collect();
                let heartbeat = [self.heartbeat()];
                [&heartbeat[..], &call.message(), &retention, &waiters].concat()
            }
            "fair_force_unlock" => [&call.message()[..], &retention].concat(),
            _ => panic!("{name} is not drawn here"),
        }
    }

    fn read_write(&mut self, name: &str, call: &mut Call) -> Vec<String> {
        let Call {
            holder,
            lease,
            retention,
            ..
        } = call.clone();
        match name {
            "read_acquire" => {
                call.keys.swap(1, 2);
                let waited = self.number(&["0", "500", "5000"]);
                return vec![
                    holder,
                    lease,
                    self.flag(),
                    self.heartbeat(),
                    waited,
                    retention,
                ];
            }
            "write_acquire" => {
                call.keys.swap(1, 2);
                return vec![holder, lease, self.count(), self.heartbeat(), retention];
            }
            "rw_release" => {
                call.keys.remove(1);
                return call.release();
            }
            "rw_downgrade" => {
                call.keys.remove(1);
                return [&[holder, lease], &call.message()[..]].concat();
            }
            _ => call.keys.truncate(1),
        }
        match name {
            "rw_inspect" => vec![],
            "rw_keep" => {
                let kept_as = self.holder();
                [&[holder, kept_as, lease], &call.message()[..]].concat()
            }
            "rw_force_unlock" => [&[self.one_of(&["read", "write"])], &call.message()[..]].concat(),
            _ => panic!("{name} is not drawn here"),
        }
    }

    fn keep(&mut self, call: &mut Call) -> Vec<String> {
        if self.flag() == "1" {
            call.keys = self.keys("fair");
            call.keys.swap(1, 2);
            call.keys.truncate(2);
        } else {
            call.keys.truncate(1);
        }
        let held = [call.holder.clone(), self.holder(), call.lease.clone()];
        [&held, &call.message()[..]].concat()
    }

    /// A key that is no lock, or not yet, or no longer.
    fn disturb(&mut self) -> Vec<String> {
        let kind = self.one_of(&["plain", "fair", "rw"]);
        let keys = self.keys(&kind);
        let key = keys[self.draw.usize(..keys.len())].clone();
        let words: Vec<&str> = match self.draw.usize(..9) {
            0 => vec!["SET", &key, "x"],
            1 => vec!["SET", &key, "12345", "PX", "30000"],
            2 | 3 => vec!["DEL", &key],
            4 => vec!["PERSIST", &key],
            5 => vec!["PEXPIRE", &key, "1"],
            // One of Redisson's waits.
            6 if kind == "fair" => vec!["RPUSH", &keys[2], HOLDERS[3]],
            7 if kind == "fair" => vec!["ZADD", &keys[3], "1890000000000", HOLDERS[3]],
            // One of Redisson's enters again.
            8 if kind == "plain" => vec!["HINCRBY", &keys[0], HOLDERS[2], "1"],
            8 if kind == "rw" => vec!["HINCRBY", &keys[0], HOLDERS[1], "1"],
            _ => vec!["PEXPIRE", &key, "30000"],
        };
        words.into_iter().map(str::to_owned).collect()
    }
}

/// A hold of this holder, as a client has the server restore it.
fn dump(holder: &str) -> Vec<u8> {
    let length = u8::try_from(holder.len()).expect("a short one");
    let mut dump = [&[4, 1, length], holder.as_bytes(), &[1, b'1', 6, 0]].concat();
    let sum = checksum(&dump).to_le_bytes();
    dump.extend(sum);
    dump
}

impl Drawing<'_> {
    /// Takes a free lock by a plain command.
    fn restore(&mut self) -> Vec<Vec<u8>> {
        let [key, _] = self.keys("plain").try_into().expect("two keys");
        let lease = self.one_of(&["5", "30000"]);
        let words = ["RESTORE", &key, &lease].map(|word| word.as_bytes().to_vec());
        let holder = self.one_of(HOLDERS);
        words.into_iter().chain([dump(&holder)]).collect()
    }
}

/// One command, or several that are sent together.
pub(super) fn draw(draw: &mut Rng, scripts: &Scripts) -> Vec<Vec<Vec<u8>>> {
    let mut drawing = Drawing {
        draw,
        holders: HOLDERS,
    };
    let words = match drawing.draw.usize(..20) {
        0 => return vec![drawing.restore()],
        1 | 2 => drawing.disturb(),
        _ => {
            let (name, sha) = scripts[drawing.draw.usize(..scripts.len())];
            let (keys, args) = drawing.script(name);
            let head = ["EVALSHA".to_owned(), sha.to_owned(), keys.len().to_string()];
            head.into_iter().chain(keys).chain(args).collect()
        }
    };
    vec![words.into_iter().map(String::into_bytes).collect()]
}

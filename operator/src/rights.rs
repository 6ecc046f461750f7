//! The rights that locks need and the user has, asked by `ACL DRYRUN`, so nothing is executed.

use std::sync::Arc;

use lockset::operator::{Channels, LockName, Servers};
use redis::Value;

use crate::ask::{Question, ask_all, command};
use crate::info::Right;

/// The name of a lock that only appears in questions.
const NAME: &str = "lockset-doctor";

/// A command with valid arguments (`K` is a key of a lock), its purpose, and whether locks fail without it.
type Sample = (&'static str, &'static str, bool);

const EVERY: &str = "every lock";
const FENCED: &str = "fenced and read-write locks";
const FAIR: &str = "fair locks";
const READ_WRITE: &str = "read-write locks";
const LATE: &str = "late commands made impossible";
const LOADED: &str = "scripts loaded with their first call";
const NAMES: &str = "names in CLIENT LIST";
const SHOWN: &str = "being shown to operators";
const WAKING: &str = "waking those who wait";
const PLAIN: &str = "locks taken by plain commands";
const CARE: &str = "care for a fair queue";

const SAMPLES: &[Sample] = &[
    ("EVAL x 0", EVERY, true),
    ("EVALSHA x 0", EVERY, true),
    ("PEXPIRE K 1", EVERY, true),
    ("PTTL K", EVERY, true),
    ("HSET K f v", EVERY, true),
    ("HDEL K f", EVERY, true),
    ("HEXISTS K f", EVERY, true),
    ("HGETALL K", EVERY, true),
    ("HRANDFIELD K", EVERY, true),
    ("DEL K", EVERY, true),
    ("GET K", FENCED, true),
    ("SET K v", FENCED, true),
    ("TIME", FENCED, true),
    ("LINDEX K 0", FAIR, true),
    ("LLEN K", FAIR, true),
    ("LREM K 0 v", FAIR, true),
    ("RPUSH K v", FAIR, true),
    ("ZADD K 1 v", FAIR, true),
    ("ZCARD K", FAIR, true),
    ("ZREM K v", FAIR, true),
    ("ZREMRANGEBYSCORE K 0 1", FAIR, true),
    ("ZSCORE K v", FAIR, true),
    ("EXISTS K", READ_WRITE, true),
    ("HGET K f", READ_WRITE, true),
    ("HLEN K", READ_WRITE, true),
    ("HMGET K f", READ_WRITE, true),
    ("ZCOUNT K 0 1", READ_WRITE, true),
    ("ZMSCORE K v", READ_WRITE, true),
    ("CLIENT INFO", LATE, false),
    ("CLIENT KILL ID 1", LATE, false),
    ("SCRIPT LOAD x", LOADED, false),
    ("CLIENT SETNAME x", NAMES, false),
    ("LPOS K v", CARE, false),
    ("LPUSH K v", CARE, false),
    ("RESTORE K 1 x", PLAIN, false),
];

/// Returns each right, and whether the user has it. Empty if the server does not know `ACL DRYRUN`.
pub(crate) async fn given(servers: &Servers, route: &str, user: &str) -> Vec<Right> {
    let Ok(name) = servers.name(NAME) else {
        return Vec::new();
    };
    let mut wanted = commands(&name, servers.channels());
    wanted.extend(helper_keys(&name));
    let questions: Vec<Question> = wanted
        .iter()
        .map(|(_, words)| {
            let mut dry = command(&["ACL", "DRYRUN", user]);
            dry.arg(words);
            (Arc::from(route), dry)
        })
        .collect();
    let answers = ask_all(servers, &questions).await;
    // It is an error, too, if the server lacks the command in question.
    let answered = wanted
        .into_iter()
        .zip(&answers)
        .filter(|(_, answer)| answer.is_ok());
    answered
        .map(|((mut right, _), answer)| {
            right.is_given = matches!(answer, Ok(Value::Okay));
            right
        })
        .collect()
}

/// A right, and a command that shows whether the user has it.
type Wanted = (Right, Vec<String>);

fn wanted(rule: String, words: Vec<String>, purpose: &'static str, is_needed: bool) -> Wanted {
    let right = Right {
        rule,
        purpose,
        is_for_notifications: purpose == WAKING,
        is_needed,
        is_given: false,
    };
    (right, words)
}

fn commands(name: &LockName, channels: Channels) -> Vec<Wanted> {
    let words = |text: &str| -> Vec<String> {
        let of_lock = |word: &str| match word {
            "K" => name.key().to_string(),
            other => other.to_owned(),
        };
        text.split(' ').map(of_lock).collect()
    };
    let samples = SAMPLES.iter();
    let mut all: Vec<Wanted> = samples
        .map(|(sample, purpose, is_needed)| {
            wanted(rule_of(sample), words(sample), purpose, *is_needed)
        })
        .collect();
    for (command, more) in [
        (channels.subscribe(), ""),
        (channels.unsubscribe(), ""),
        (channels.publish(), " x"),
    ] {
        let line = format!("{command} {}{more}", name.lock_channel());
        let rule = format!("+{}", command.to_lowercase());
        all.push(wanted(rule, words(&line), WAKING, false));
    }
    all
}

fn helper_keys(name: &LockName) -> Vec<Wanted> {
    let keys = [
        (name.token_key(), "fenced locks", true),
        (name.fair_queue_key(), FAIR, true),
        (name.fair_timeouts_key(), FAIR, true),
        (name.fair_alive_key(), FAIR, true),
        (name.rw_waiting_key(), READ_WRITE, true),
        (name.read_lease_key("u:1", 1), READ_WRITE, true),
        ("lockset_client:{u}".to_owned(), SHOWN, false),
        ("lockset_clients".to_owned(), SHOWN, false),
    ];
    let keys = keys.into_iter();
    keys.map(|(key, purpose, is_needed)| {
        let words = vec!["DEL".to_owned(), key.clone()];
        wanted(pattern_of(&key, name), words, purpose, is_needed)
    })
    .collect()
}

/// Returns the rule for a command: `CLIENT KILL ID 1` needs `+client|kill`.
fn rule_of(sample: &str) -> String {
    let mut words = sample.split(' ');
    let first = words.next().unwrap_or_default().to_lowercase();
    match (first.as_str(), words.next()) {
        ("client" | "script", Some(second)) => format!("+{first}|{}", second.to_lowercase()),
        _ => format!("+{first}"),
    }
}

/// Returns the pattern of the keys like this one.
fn pattern_of(key: &str, name: &LockName) -> String {
    if key.contains(":rwlock_timeout:") {
        return "~{*}:*:rwlock_timeout:*".to_owned();
    }
    match key.find([':']) {
        Some(at) if !key.starts_with(&**name.key()) => format!("~{}:*", &key[..at]),
        _ => format!("~{key}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_those_of_the_server() {
        assert_eq!(rule_of("CLIENT KILL ID 1"), "+client|kill");
        assert_eq!(rule_of("EVAL x 0"), "+eval");
        let name = LockName::new("app:", NAME).unwrap();
        assert_eq!(
            pattern_of(&name.token_key(), &name),
            "~redisson_lock_token:*"
        );
        assert_eq!(pattern_of("lockset_clients", &name), "~lockset_clients");
        assert_eq!(
            pattern_of(&name.read_lease_key("u:1", 1), &name),
            "~{*}:*:rwlock_timeout:*"
        );
    }
}

//! The right that a user lacks, as exactly as the error allows.
//!
//! Valkey names the command that a user may not call inside a script. Redis names the line of the script at best, and
//! no server names a key. Pure.

use std::collections::BTreeSet;

use redis::RedisError;

use super::call::Call;
use crate::conn::error_reply::code;

/// The largest number of keys that an error message names.
const KEYS_NAMED: usize = 8;

/// The right that the user needs for this call; `None` if `error` is about something else, or names the right itself.
pub(super) fn right(call: &Call, error: &RedisError) -> Option<String> {
    let is_inside = match code(error)? {
        "NOPERM" => false,
        "NOPERM-INSIDE" => true,
        _ => return None,
    };
    let said = error.detail().unwrap_or_default();
    if said.contains("key") {
        return Some(format!("its keys are {}", keys(call)));
    }
    if !is_inside || said.contains("run the '") {
        return None;
    }
    let text = call.script.text();
    let line = line(said).and_then(|number| text.lines().nth(number.checked_sub(1)?));
    let at_line = line.map(commands).filter(|named| !named.is_empty());
    let named = at_line.unwrap_or_else(|| commands(text));
    let named: Vec<String> = named.iter().map(|name| format!("+{name}")).collect();
    Some(match &*named {
        [one] => format!("the right is {one}"),
        _ => format!("the right is one of {}", named.join(" ")),
    })
}

fn keys(call: &Call) -> String {
    let mut words = call
        .by_sha()
        .args_iter()
        .skip(2)
        .filter_map(|arg| match arg {
            redis::Arg::Simple(word) => Some(String::from_utf8_lossy(word)),
            _ => None,
        });
    let count: usize = words
        .next()
        .and_then(|count| count.parse().ok())
        .unwrap_or_default();
    let mut keys: Vec<String> = words
        .take(count.min(KEYS_NAMED))
        .map(|key| format!("{key:?}"))
        .collect();
    if count > KEYS_NAMED {
        keys.push(format!("{} more", count - KEYS_NAMED));
    }
    if call.script.text().contains(":rwlock_timeout:") {
        keys.push("those like *:rwlock_timeout:*".to_owned());
    }
    keys.join(", ")
}

/// The line number after `user_script:`. Redis 6 writes a space before it, and writes it twice.
fn line(said: &str) -> Option<usize> {
    let (_, behind) = said.rsplit_once("user_script:")?;
    let digits = behind
        .trim_start()
        .split(|c: char| !c.is_ascii_digit())
        .next()?;
    digits.parse().ok()
}

/// The commands that this part of a script calls, in lower case.
fn commands(text: &str) -> BTreeSet<String> {
    let calls = text.split("call('").skip(1);
    let names = calls.filter_map(|behind| behind.split_once('\''));
    names.map(|(name, _)| name.to_ascii_lowercase()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::catalog;
    use crate::testing::error;

    fn right_of(answer: &str) -> Option<String> {
        let call = Call::new(
            &catalog::REENTRANT_ACQUIRE,
            &"app:x".into(),
            &["app:x", "t:{app:x}"],
        );
        right(&call, &error(answer))
    }

    #[test]
    fn what_is_missing_is_named_as_exactly_as_the_server_lets_it() {
        let text = catalog::REENTRANT_ACQUIRE.text();
        let at = text
            .lines()
            .position(|line| line.contains("'PEXPIRE'"))
            .unwrap()
            + 1;
        let denied = "The user executing the script can't run this command or subcommand";
        for answer in [
            format!("ERR {denied} script: 5b68, on @user_script:{at}."),
            format!(
                "ERR Error running script (call to f_5b68): @user_script:{at}: @user_script: {at}: {denied}"
            ),
        ] {
            assert_eq!(
                right_of(&answer).as_deref(),
                Some("the right is +pexpire"),
                "{answer}"
            );
        }
        let any = right_of(&format!("ERR {denied}")).unwrap();
        for name in ["+hset", "+pexpire", "+get", "+time"] {
            assert!(any.contains(name), "{any}");
        }
        for answer in [
            "NOPERM this user has no permissions to access one of the keys used as arguments",
            "NOPERM No permissions to access a key",
            "ERR ACL failure in script: No permissions to access a key script: on @user_script:1.",
        ] {
            let keys = right_of(answer).unwrap();
            assert!(keys.contains("\"app:x\", \"t:{app:x}\""), "{keys}");
        }
        for answer in [
            "NOPERM this user has no permissions to run the 'evalsha' command",
            "ERR ACL failure in script: User u has no permissions to run the 'hset' command script: on @user_script:1.",
            "ERR unknown command 'EVAL'",
            "READONLY You can't write against a read only replica.",
        ] {
            assert_eq!(right_of(answer), None, "{answer}");
        }
    }

    #[test]
    fn of_many_keys_a_few_are_named() {
        let keys: Vec<String> = (0..100).map(|i| format!("k{i}")).collect();
        let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
        let call = Call::new(&catalog::RW_FORCE_UNLOCK, &"k0".into(), &keys);
        let told = right(&call, &error("NOPERM No permissions to access a key")).unwrap();
        assert!(told.contains("\"k7\", 92 more, those like"), "{told}");
    }
}

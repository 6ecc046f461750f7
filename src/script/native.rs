//! Plain commands that do what a script would do, for less of the server's time.
//!
//! `RESTORE` of a hash with a lease takes a free lock. It replies `BUSYKEY` if the key exists. `HDEL` and `PUBLISH`
//! release a whole hold. Their replies are translated into replies of the script, so the callers see one
//! kind of reply. Invariants:
//!
//! * after any other error from `RESTORE` the script is asked, and its reply counts;
//! * a command without a reply may have been executed: an acquire continues with the script, which recognizes its
//!   holder; a release is repeated unchanged, because its message may not have been sent;
//! * a release that finds nothing asks the script for the reason.

use std::cell::RefCell;
use std::mem;
use std::ops::Deref;
use std::sync::{Arc, OnceLock};

use redis::{Cmd, RedisError, RedisWrite, Value};

use super::payload;
use crate::conn::error_reply::{code, is_about_keys, is_unknown_command};
use crate::conn::{Fault, command, words};

/// `HDEL key holder` and `PUBLISH channel 0`. All holds of a lock share the second command.
#[derive(Clone, Debug)]
pub(super) struct Release {
    pub(super) hdel: Short,
    pub(super) tell: Arc<Cmd>,
}

/// Whether a client takes and releases locks by plain commands; from
/// [`ClientStats::native`](crate::ClientStats::native).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum NativePath {
    /// Plain commands are used.
    #[default]
    On,
    /// [`ClientBuilder::native`](crate::ClientBuilder::native) turned them off: only scripts are used.
    Off,
    /// The user lacks the right `+restore`: locks are taken by script, and released by plain commands.
    Denied,
    /// The server has no `RESTORE`: locks are taken by script, and released by plain commands.
    Unknown,
    /// The server cannot read the hash that `RESTORE` sends: locks are taken by script, and released by plain
    /// commands.
    Unreadable,
}

/// The plain commands that the servers of a client support. The result of one server applies to all.
#[derive(Debug, Default)]
pub(crate) struct NativeState {
    /// Why not all plain commands are used. Set once.
    reason: OnceLock<NativePath>,
}

impl NativeState {
    pub(crate) fn new(path: NativePath) -> Self {
        let state = Self::default();
        if path != NativePath::On {
            let _ = state.reason.set(path);
        }
        state
    }

    pub(crate) fn get(&self) -> NativePath {
        self.reason.get().copied().unwrap_or_default()
    }

    pub(crate) fn may_acquire(&self) -> bool {
        self.get() == NativePath::On
    }

    pub(crate) fn may_release(&self) -> bool {
        self.get() != NativePath::Off
    }

    /// Stops sending `RESTORE` if the server would always refuse it.
    pub(super) fn refused(&self, error: &RedisError) {
        if let Some(path) = lasting(error) {
            // The first reason counts.
            let _ = self.reason.set(path);
        }
    }
}

/// Returns why the server would always refuse a plain command after this error; `None` if it would not.
fn lasting(error: &RedisError) -> Option<NativePath> {
    let said = error.detail().unwrap_or_default();
    let is_denied = code(error) == Some("NOPERM");
    // An error about one key does not apply to other keys.
    if is_denied && !is_about_keys(said) {
        Some(NativePath::Denied)
    } else if is_unknown_command(error) {
        Some(NativePath::Unknown)
    } else if said.contains("DUMP payload") || said.contains("Bad data format") {
        Some(NativePath::Unreadable)
    } else {
        None
    }
}

/// `RESTORE` for one hold of a free lock.
#[derive(Clone, Debug)]
pub(crate) struct Restore(Short);

impl Restore {
    /// `None` if the holder id is too long.
    pub(crate) fn new(key: &str, holder: &str, lease_ms: u64) -> Option<Self> {
        let dump = payload::of_one_hold(holder.as_bytes())?;
        // `RESTORE` reads 0 as "no lease".
        let mut digits = itoa::Buffer::new();
        let lease = digits.format(lease_ms.max(1)).as_bytes();
        let words: [&[u8]; 4] = [b"RESTORE", key.as_bytes(), lease, &dump];
        Some(Self(Short::new(&words)))
    }

    pub(crate) fn command(&self) -> &Cmd {
        &self.0
    }
}

/// Makes the command that notifies of a free lock.
pub(crate) fn tell(publish: &str, channel: &str) -> Cmd {
    command(&[publish, channel, "0"])
}

pub(super) fn release(key: &str, holder: &[u8], tell: Arc<Cmd>) -> Release {
    Release {
        hdel: Short::new(&[b"HDEL", key.as_bytes(), holder]),
        tell,
    }
}

impl Release {
    /// Makes the call of the script that does the same.
    pub(super) fn by_script(&self, sha: &str) -> Cmd {
        let mut script = redis::cmd("EVALSHA");
        script.arg(sha).arg(1).arg(word(&self.hdel, 1));
        let (channel, publish) = (word(&self.tell, 1), word(&self.tell, 0));
        script.arg(word(&self.hdel, 2)).arg(channel).arg(publish);
        script
    }
}

/// The remaining lease, in ms, that is assumed after a refused `RESTORE`. The script is asked after this time, or as
/// soon as messages reach the client.
const ASKED_AFTER_MS: i64 = 50;

/// Translates the end of a `RESTORE` into the script's reply. After a failure, the script has to be asked.
pub(super) fn restored(end: Result<Value, Fault>) -> Result<Value, Fault> {
    match end {
        Ok(Value::Okay) => Ok(Value::Nil),
        Ok(_) => Err(Fault::Unknown(
            "a reply to RESTORE that no server sends".into(),
        )),
        // There is a lock, or another key. Only the script returns its remaining lease.
        Err(Fault::Answered(error)) if code(&error) == Some("BUSYKEY") => {
            Ok(Value::Int(ASKED_AFTER_MS))
        }
        failed => failed,
    }
}

/// Translates the replies to a release into the script's. `None` if nothing was found: only the script says why.
pub(super) fn released(replies: &[Value]) -> Result<Option<Value>, RedisError> {
    match replies {
        [Value::ServerError(no), ..] => Err(no.clone().into()),
        [Value::Int(0), _] => Ok(None),
        [Value::Int(_), Value::Int(receivers)] => Ok(Some(Value::Int(*receivers))),
        // A user without the right to publish still frees the lock, because waiters poll.
        [Value::Int(_), _] => Ok(Some(Value::Int(0))),
        _ => Ok(Some(Value::Nil)),
    }
}

fn word(command: &Cmd, at: usize) -> &[u8] {
    words(command).nth(at).unwrap_or_default()
}

/// The number of buffers that each thread keeps. Each takes about 1 KB at most, as names and holder ids are bounded.
const KEPT_MAX: usize = 32;

thread_local! {
    static KEPT: RefCell<Vec<Cmd>> = const { RefCell::new(Vec::new()) };
}

/// A command of a few short words. Every call makes one, and all have about the same length, so a dropped command
/// leaves its buffer to a later one of the same thread. Invariant: the number of kept buffers is bounded, and a reused
/// buffer contains nothing of the previous command.
#[derive(Clone, Debug)]
pub(super) struct Short(Cmd);

impl Short {
    fn new(words: &[&[u8]]) -> Self {
        // A thread that is ending has no buffers left.
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop());
        let mut command = kept.ok().flatten().unwrap_or_else(|| {
            let bytes = words.iter().map(|word| word.len()).sum();
            Cmd::with_capacity(words.len(), bytes)
        });
        words.iter().for_each(|word| command.write_arg(word));
        Self(command)
    }
}

impl Deref for Short {
    type Target = Cmd;

    fn deref(&self) -> &Cmd {
        &self.0
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        let mut command = mem::take(&mut self.0);
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                command.clear();
                kept.push(command);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::script::Executed;
    use crate::script::reply::{Acquired, acquired};
    use crate::testing::error;

    #[test]
    fn a_restore_is_granted_or_held_or_the_script_is_asked() {
        let queued = Value::SimpleString("QUEUED".to_owned());
        let said = |line| Err(Fault::Answered(error(line)));
        let is = |end| match restored(end).map(|value| acquired(&value).unwrap()) {
            Ok(Acquired::Held { .. }) => "granted",
            Ok(Acquired::Elsewhere { .. }) => "held",
            Err(fault) if Executed::after(&fault) == Executed::No => "not executed",
            Err(_) => "maybe executed",
        };
        for (end, expected) in [
            (Ok(Value::Okay), "granted"),
            (said("BUSYKEY Target key name already exists."), "held"),
            (said("OOM no"), "not executed"),
            (Err(Fault::Unsent("no".into())), "not executed"),
            (Err(Fault::Unknown("no".into())), "maybe executed"),
            // A reply that no server sends.
            (Ok(queued), "maybe executed"),
        ] {
            assert_eq!(is(end), expected);
        }
    }

    #[test]
    fn what_a_server_will_never_do_is_not_asked_for_again() {
        for (answer, path) in [
            ("BUSYKEY Target key name already exists.", NativePath::On),
            (
                "OOM command not allowed when used memory > 'maxmemory'.",
                NativePath::On,
            ),
            ("NOPERM No permissions to access a key", NativePath::On),
            (
                "NOPERM this user has no permissions to access one of the keys used as arguments",
                NativePath::On,
            ),
            (
                "NOPERM this user has no permissions to run the 'restore' command",
                NativePath::Denied,
            ),
            (
                "NOPERM User keycloak has no permissions to run the 'restore' command",
                NativePath::Denied,
            ),
            (
                "ERR unknown command 'RESTORE', with args beginning with: 'a' ",
                NativePath::Unknown,
            ),
            (
                "ERR DUMP payload version or checksum are wrong",
                NativePath::Unreadable,
            ),
            ("ERR Bad data format", NativePath::Unreadable),
        ] {
            let state = NativeState::default();
            state.refused(&error(answer));
            assert_eq!(state.get(), path, "{answer}");
            assert!(state.may_release());
        }
        assert!(!NativeState::new(NativePath::Off).may_release());
    }

    #[test]
    fn replies_are_put_in_the_words_of_the_script() {
        let no = redis::parse_redis_value(b"-NOPERM no\r\n").unwrap();
        let wrong = redis::parse_redis_value(b"-WRONGTYPE no\r\n").unwrap();
        let read = |first: Value, second: &Value| released(&[first, second.clone()]);
        let two = Value::Int(2);
        assert_eq!(read(Value::Int(1), &two).unwrap(), Some(Value::Int(2)));
        assert_eq!(read(Value::Int(1), &no).unwrap(), Some(Value::Int(0)));
        assert_eq!(read(Value::Int(0), &two).unwrap(), None);
        assert_eq!(read(Value::Nil, &two).unwrap(), Some(Value::Nil));
        assert_eq!(code(&read(wrong, &two).unwrap_err()), Some("WRONGTYPE"));
    }

    #[test]
    fn the_script_is_asked_for_the_same() {
        let release = release("a", b"h:1", Arc::new(tell("SPUBLISH", "c:a")));
        let asked = release.by_script("sha");
        let words: Vec<&[u8]> = (0..7).map(|at| word(&asked, at)).collect();
        let expected = ["EVALSHA", "sha", "1", "a", "h:1", "c:a", "SPUBLISH"];
        assert_eq!(words, expected.map(str::as_bytes));
    }

    #[test]
    fn nothing_is_left_of_what_it_said_before() {
        let long: Vec<Vec<u8>> = (0..9).map(|word| vec![b'x'; word * 10]).collect();
        let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        drop(Short::new(&long));
        let short = Short::new(&[b"HDEL", b"key", b"holder"]);
        let mut fresh = redis::cmd("HDEL");
        fresh.arg("key").arg("holder");
        assert_eq!(short.get_packed_command(), fresh.get_packed_command());
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let many: Vec<Short> = (0..KEPT_MAX * 2).map(|_| Short::new(&[b"PING"])).collect();
        drop(many);
        assert_eq!(KEPT.with_borrow(Vec::len), KEPT_MAX);
    }
}

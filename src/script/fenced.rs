//! A free lock taken with a fencing token, without a script.
//!
//! `MULTI`, `RESTORE`, `INCRBY`, `EXEC` in one write. Lock and token are one step at the server: after a forced unlock
//! between the two, the next holder would have the smaller token. Which numbers are tokens says `known_token.rs`.
//! Invariants: what may be no token is given to nobody; a lock that may have been taken without one is asked for
//! again by the script, which knows its holder.

use std::sync::LazyLock;
use std::time::Duration;

use redis::{Cmd, Value};

use super::call::Call;
use super::known_token::WantedToken;
use super::native::{Fenced, acquired};
use super::run::{Attempt, Scripts};
use crate::conn::Fault;

static MULTI: LazyLock<Cmd> = LazyLock::new(|| redis::cmd("MULTI"));
static EXEC: LazyLock<Cmd> = LazyLock::new(|| redis::cmd("EXEC"));

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Granted(u64),
    /// The lock is not free.
    Busy,
    /// The server did not take it, for whatever reason.
    Refused,
    /// It may have taken it. There is no token with it.
    Doubtful,
}

impl Scripts {
    /// What the script would have said; `None` if it has to be asked.
    pub(super) async fn acquire_fenced(
        &self,
        call: &Call,
        fenced: &Fenced,
        attempt: Attempt,
        reply: Duration,
    ) -> Result<Option<Value>, Fault> {
        let commands: [&Cmd; 4] = [&MULTI, &fenced.restore, &fenced.incrby, &EXEC];
        let over = fenced.wanted.connection;
        let (lane, route) = (attempt.lane, &call.route);
        let sent = self
            .transport
            .send_transaction(over, lane, route, &commands, reply);
        let replies = match sent.await {
            Ok(replies) => replies,
            Err(Fault::Unsent(_)) => return Ok(None),
            Err(fault) => return Err(fault),
        };
        self.native.note_transaction(&replies);
        match outcome(&replies, &fenced.wanted) {
            Outcome::Granted(token) => {
                let token = token.to_string();
                Ok(Some(Value::BulkString(token.into_bytes())))
            }
            Outcome::Busy => Ok(Some(Value::Int(0))),
            Outcome::Refused => Ok(None),
            Outcome::Doubtful => Err(Fault::Unknown("no token came with the lock".into())),
        }
    }
}

fn outcome(replies: &[Value], wanted: &WantedToken) -> Outcome {
    match replies.last() {
        Some(Value::Array(done)) => match &**done {
            [Value::Okay, Value::Int(number)] => wanted
                .accept(*number)
                .map_or(Outcome::Doubtful, Outcome::Granted),
            [Value::ServerError(no), _] => match acquired(&Err(no.clone().into())) {
                Some(_) => Outcome::Busy,
                None => Outcome::Refused,
            },
            _ => Outcome::Doubtful,
        },
        Some(Value::ServerError(no)) if no.code() == "EXECABORT" && has_begun(replies) => {
            Outcome::Refused
        }
        // Without `MULTI` a server has done them one by one, whatever it says to `EXEC`.
        _ => Outcome::Doubtful,
    }
}

/// Whether what came behind `MULTI` was gathered.
fn has_begun(replies: &[Value]) -> bool {
    replies.first() == Some(&Value::Okay)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::Tick;
    use crate::conn::ConnectionId;
    use crate::script::known_token::KnownToken;

    const GIVEN: u64 = 1_790_000_000_000_000 / 64 * 64;

    fn after(replies: &str) -> Outcome {
        let connection = ConnectionId::of_number(0);
        let known = KnownToken::given(GIVEN.into(), 0, connection, Tick::ZERO).unwrap();
        let second = Tick::ZERO.after(Duration::from_secs(1));
        let wanted = known.wanted(second, 0, 0).unwrap();
        let read = |line: &str| {
            let reply = line.replace(' ', "\r\n").replace('_', " ") + "\r\n";
            redis::parse_redis_value(reply.as_bytes()).unwrap()
        };
        let replies: Vec<Value> = replies.split(" | ").map(read).collect();
        outcome(&replies, &wanted)
    }

    #[test]
    fn a_lock_and_a_number_that_is_a_token_are_a_grant() {
        let replies = |number| format!("+OK | +QUEUED | +QUEUED | *2 +OK :{number}");
        let granted = |number| after(&replies(number));
        assert_eq!(granted(GIVEN + 64), Outcome::Granted(GIVEN + 64));
        for none in [64, GIVEN, GIVEN + 65, GIVEN + 2_000_000] {
            assert_eq!(granted(none), Outcome::Doubtful, "{none}");
        }
    }

    #[test]
    fn what_the_server_has_not_taken_is_not_in_doubt() {
        let begun = "+OK | +QUEUED | +QUEUED";
        for (replies, expected) in [
            (
                "*2 -BUSYKEY_Target_key_name_already_exists. :64",
                Outcome::Busy,
            ),
            ("*2 -ERR_DUMP_payload_version :64", Outcome::Refused),
            (
                "-EXECABORT_Transaction_discarded_because_of_previous_errors.",
                Outcome::Refused,
            ),
            ("*2 +OK -WRONGTYPE_no", Outcome::Doubtful),
            ("*1 +OK", Outcome::Doubtful),
            ("$-1", Outcome::Doubtful),
            ("-MOVED_1_a:1", Outcome::Doubtful),
        ] {
            assert_eq!(
                after(&format!("{begun} | {replies}")),
                expected,
                "{replies}"
            );
        }
        let one_by_one = format!("-ERR_unknown | +OK | :{} | -ERR_no", GIVEN + 64);
        assert_eq!(after(&one_by_one), Outcome::Doubtful, "not in one step");
        let denied = format!(
            "-NOPERM_no | +OK | :{} | -EXECABORT_because_of:_NOPERM",
            GIVEN + 64
        );
        assert_eq!(after(&denied), Outcome::Doubtful, "done one by one, too");
    }
}

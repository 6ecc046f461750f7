//! Semaphores and latches as operators see them.
//!
//! Invariant: a number of an application is never shown. A semaphore has permits with ids like ours or Redisson's, or
//! waiters; a plain semaphore has holders that are noted with ids like ours, or waiters; a latch has waiters.

use std::sync::Arc;
use std::time::Duration;

use lockset::Result;
use lockset::operator::{Channels, LockName, permit_id, within_braces};
use redis::Value;

use crate::ask::{
    Question, ask_all, command, integer, milliseconds, pairs, scored, scored_as, span_of,
};
use crate::info::{HoldMode, LockHolder, LockInfo, LockKind, QueuedWaiter};
use crate::read::Reader;
use crate::recognize::client_of;

/// The type of the keys that hold the permits which are taken.
pub(crate) const KEY_TYPE: &str = "zset";

/// A pattern that matches these keys.
pub(crate) const GLOB: &str = "*:timeout";

/// Read this many permits and waiters at most.
const LAST: &str = "9999";

/// The bytes of a permit of Redisson. Before 3.17 it was their hexadecimal digits.
const REDISSON_PERMIT_LEN: usize = 16;

/// The number of questions for each key.
const QUESTIONS: usize = 5;

/// Returns the keys of the semaphores whose permits may be in the sorted set with this key. `x` and `{x}` share it.
pub(crate) fn keys_of(timeouts: &str) -> Vec<String> {
    let Some(key) = timeouts.strip_suffix(":timeout") else {
        return Vec::new();
    };
    let plain = within_braces(key).map(str::to_owned);
    plain.into_iter().chain([key.to_owned()]).collect()
}

/// Returns the id of a permit; `None` for a member of an application. 16 printable bytes are taken for that, as Redisson's
/// ids are random bytes.
fn permit(member: &Value) -> Option<String> {
    let Value::BulkString(member) = member else {
        return None;
    };
    let id = permit_id(member);
    let is_word = member.iter().all(|byte| matches!(byte, b' '..=b'~'));
    let is_redisson = match member.len() {
        REDISSON_PERMIT_LEN => !is_word,
        length => length == 2 * REDISSON_PERMIT_LEN && id.bytes().all(|c| c.is_ascii_hexdigit()),
    };
    (is_redisson || client_of(&id).is_some()).then_some(id)
}

/// Reads who of ours has permits of a plain semaphore, and how many; empty if it is a hash of an application.
fn noted(fields: &[(String, String)]) -> Vec<(String, u32)> {
    let read = fields.iter().map(|(holder, count)| {
        client_of(holder)?;
        let count = count.parse().ok().filter(|count| *count > 0)?;
        Some((holder.clone(), count))
    });
    read.collect::<Option<_>>().unwrap_or_default()
}

fn holder(id: &str, hold_count: u32, remaining: Option<Duration>) -> LockHolder {
    LockHolder {
        id: id.to_owned(),
        mode: HoldMode::Permit,
        hold_count,
        remaining,
        held_for: None,
        client: None,
    }
}

/// The replies about one key.
struct Replies {
    now: f64,
    count: i64,
    /// Permits with the ends of their leases.
    permits: Vec<(String, f64)>,
    places: usize,
    /// The holders of permits of a plain semaphore that are ours, each with its number of permits.
    noted: Vec<(String, u32)>,
}

impl Replies {
    /// `None` if the key is not a number.
    fn read(answers: &[Result<Value>]) -> Result<Option<Self>> {
        let count = match &answers[0] {
            Err(error) if !error.is_wrong_type() => return Err(error.clone()),
            answer => answer.as_ref().ok().and_then(integer),
        };
        let Some(count) = count else {
            return Ok(None);
        };
        let permits = answers[2].as_ref().map(|all| scored_as(all, permit));
        let places = answers[3].as_ref().map(|all| scored(all).len());
        let fields = answers[4].as_ref().ok().and_then(pairs);
        Ok(Some(Self {
            now: answers[1].as_ref().map(milliseconds).unwrap_or_default(),
            count,
            permits: permits.unwrap_or_default(),
            places: places.unwrap_or_default(),
            noted: noted(&fields.unwrap_or_default()),
        }))
    }

    /// `None` if the number is neither a semaphore nor a latch, or no permit was taken and nothing waits.
    fn into_info(self, name: &LockName, subscribed: [u64; 2]) -> Option<LockInfo> {
        let [semaphore, latch] =
            subscribed.map(|count| usize::try_from(count).unwrap_or(usize::MAX));
        let left = |end: f64| span_of(end - self.now);
        let (taken, ended): (Vec<_>, Vec<_>) =
            self.permits.iter().partition(|(_, end)| *end > self.now);
        let mut holders: Vec<LockHolder> = taken
            .iter()
            .map(|(id, end)| holder(id, 1, Some(left(*end))))
            .collect();
        let is_plain = self.permits.is_empty() && !self.noted.is_empty();
        if is_plain {
            let noted = self.noted.iter();
            holders = noted.map(|(id, count)| holder(id, *count, None)).collect();
        }
        // Renewals change the order of the ends.
        holders.sort_by(|a, b| a.id.cmp(&b.id));
        let waiters = semaphore.max(self.places);
        let was_taken = latch == 0 && !ended.is_empty();
        let is_semaphore = !holders.is_empty() || waiters > 0 || was_taken;
        if !is_semaphore && latch == 0 {
            return None;
        }
        let ended = i64::try_from(ended.len()).unwrap_or(i64::MAX);
        let number = |count: i64| u64::try_from(count).unwrap_or_default();
        let ends = holders.iter().filter_map(|holder| holder.remaining);
        Some(LockInfo {
            name: name.as_str().to_owned(),
            key: name.key().as_ref().to_owned(),
            kind: match is_semaphore {
                true if is_plain => LockKind::PlainSemaphore,
                true => LockKind::Semaphore,
                false => LockKind::Latch,
            },
            remaining: ends.max().unwrap_or_default(),
            waiters: if is_semaphore { waiters } else { latch },
            token: None,
            free_permits: is_semaphore.then(|| number(self.count.saturating_add(ended))),
            count: (!is_semaphore).then(|| number(self.count)),
            parties: None,
            value: None,
            holders,
        })
    }
}

impl Reader {
    /// Returns the semaphores and latches among these keys that have a holder or a waiter.
    pub(crate) async fn read_counted(&self, keys: Vec<String>) -> Result<Vec<LockInfo>> {
        let mut found = self.read_numbers(keys).await?;
        found.retain(|lock| !lock.holders.is_empty() || lock.waiters > 0);
        Ok(found)
    }

    /// Returns also semaphores whose permits are free because their leases have ended.
    pub(crate) async fn read_numbers(&self, keys: Vec<String>) -> Result<Vec<LockInfo>> {
        let named: Vec<LockName> = keys.iter().filter_map(|key| self.name(key)).collect();
        let questions = named.iter().flat_map(|name| -> [Question; QUESTIONS] {
            let ask = |words: &[&str]| (Arc::clone(name.key()), command(words));
            let all = |key: &str| ask(&["ZRANGE", key, "0", LAST, "WITHSCORES"]);
            [
                ask(&["GET", name.key()]),
                ask(&["TIME"]),
                all(&name.semaphore_timeouts_key()),
                all(&name.semaphore_alive_key()),
                ask(&["HGETALL", &name.semaphore_holds_key()]),
            ]
        });
        let answers = ask_all(self.servers(), &questions.collect::<Vec<_>>()).await;
        let mut numbers = Vec::new();
        for (name, answers) in named.into_iter().zip(answers.chunks_exact(QUESTIONS)) {
            if let Some(replies) = Replies::read(answers)? {
                numbers.push((name, replies));
            }
        }
        let channels = numbers.iter().flat_map(|(name, _)| {
            let channels = self.counted_channels(name);
            channels.map(|channel| (Arc::clone(name.key()), channel))
        });
        let channels: Vec<_> = channels.collect();
        let subscribers = self.subscribers(&channels).await;
        let count = |channel: &str| subscribers.get(channel).copied().unwrap_or_default();
        let found = numbers.into_iter().filter_map(|(name, replies)| {
            let channels = self.counted_channels(&name);
            replies.into_info(&name, channels.map(|channel| count(&channel)))
        });
        let mut found: Vec<LockInfo> = found.collect();
        self.tell_clients(&mut found).await;
        Ok(found)
    }

    /// The channels of the semaphore and of the latch of this name.
    pub(crate) fn counted_channels(&self, name: &LockName) -> [String; 2] {
        let has_slot = self.servers().channels() == Channels::Sharded;
        [name.semaphore_channel(), name.latch_channel(has_slot)]
    }

    /// Returns the waiters of a fair semaphore in their order.
    pub(crate) async fn places_of(&self, name: &LockName) -> Vec<QueuedWaiter> {
        let ask = |words: &[&str]| (Arc::clone(name.key()), command(words));
        let all = |key: &str| ask(&["ZRANGE", key, "0", LAST, "WITHSCORES"]);
        let questions = [
            ask(&["TIME"]),
            all(&name.semaphore_queue_key()),
            all(&name.semaphore_alive_key()),
        ];
        let answers = ask_all(self.servers(), &questions).await;
        let scores = |at: usize| answers[at].as_ref().map(scored).unwrap_or_default();
        let now = answers[0].as_ref().map(milliseconds).unwrap_or_default();
        let (queue, alive) = (scores(1), scores(2));
        let places = queue.into_iter().map(|(id, _)| {
            let until = alive.iter().find(|(other, _)| *other == id);
            QueuedWaiter {
                kept_for: span_of(until.map_or(0.0, |(_, until)| until - now)),
                id,
                mode: HoldMode::Permit,
                has_heartbeat: true,
                client: None,
            }
        });
        places.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: &str = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:7";
    const JAVAS: &str = "0123456789abcdef0123456789ABCDEF";

    fn replies(permits: &[(&str, f64)]) -> Replies {
        let permits = permits.iter().map(|(id, end)| ((*id).to_owned(), *end));
        Replies {
            now: 1000.0,
            count: 2,
            permits: permits.collect(),
            places: 0,
            noted: Vec::new(),
        }
    }

    fn info(replies: Replies, subscribed: [u64; 2]) -> Option<LockInfo> {
        replies.into_info(&LockName::new("", "x").unwrap(), subscribed)
    }

    /// A caller compares two looks, and another order is not another holder.
    #[test]
    fn a_renewal_changes_no_order_of_holders() {
        let (early, late) = (2000.0, 3000.0);
        let ids = |permits: &[(&str, f64)]| {
            let found = info(replies(permits), [0, 0]).unwrap();
            let holders = found.holders.into_iter();
            holders.map(|holder| holder.id).collect::<Vec<_>>()
        };
        let before = ids(&[(OURS, early), (JAVAS, late)]);
        assert_eq!(before, ids(&[(JAVAS, early), (OURS, late)]));
    }

    #[test]
    fn permits_that_are_taken_and_permits_whose_lease_has_ended() {
        let found = info(replies(&[(OURS, 3000.0), (JAVAS, 1000.0)]), [1, 0]).unwrap();
        assert_eq!(
            (found.kind, found.free_permits),
            (LockKind::Semaphore, Some(3))
        );
        assert_eq!((found.holders.len(), found.waiters), (1, 1));
        assert_eq!(found.remaining, Duration::from_secs(2));
        let waited_for = info(replies(&[]), [1, 0]).unwrap();
        assert_eq!((waited_for.free_permits, waited_for.count), (Some(2), None));
        let free = info(replies(&[(OURS, 1000.0)]), [0, 0]).unwrap();
        assert_eq!(
            (free.kind, free.free_permits),
            (LockKind::Semaphore, Some(3))
        );
        assert_eq!((free.holders.len(), free.waiters), (0, 0));
        let latch = info(replies(&[(OURS, 1000.0)]), [0, 1]).unwrap();
        assert_eq!((latch.kind, latch.count), (LockKind::Latch, Some(2)));
    }

    #[test]
    fn permits_of_a_plain_semaphore_are_those_that_ours_have_noted() {
        let fields = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            let pairs = pairs.map(|(id, count)| ((*id).to_owned(), (*count).to_owned()));
            noted(&pairs.collect::<Vec<_>>())
        };
        let noted = fields(&[(OURS, "2")]);
        assert_eq!(noted, [(OURS.to_owned(), 2)]);
        for foreign in [
            &[(OURS, "2"), ("state", "x")][..],
            &[(OURS, "0")],
            &[(OURS, "two")],
        ] {
            assert_eq!(fields(foreign), [], "{foreign:?}");
        }
        let plain = Replies {
            noted,
            ..replies(&[])
        };
        let found = info(plain, [0, 0]).unwrap();
        assert_eq!(
            (found.kind, found.free_permits),
            (LockKind::PlainSemaphore, Some(2))
        );
        assert_eq!(
            (found.holders[0].hold_count, found.remaining),
            (2, Duration::ZERO)
        );
    }

    #[test]
    fn a_number_is_a_latch_only_while_a_client_waits() {
        let latch = info(replies(&[]), [0, 2]).unwrap();
        assert_eq!(
            (latch.kind, latch.count, latch.waiters),
            (LockKind::Latch, Some(2), 2)
        );
        assert_eq!(info(replies(&[]), [0, 0]), None);
    }

    #[test]
    fn the_keys_of_applications_are_not_semaphores() {
        let permit = |member: &[u8]| permit(&Value::BulkString(member.to_vec()));
        let bytes = b"no word\nof words";
        for (member, id) in [
            (OURS.as_bytes(), OURS),
            (JAVAS.as_bytes(), JAVAS),
            (bytes, "6e6f20776f72640a6f6620776f726473"),
            (&[0xff; 16], &"f".repeat(32)),
        ] {
            assert_eq!(permit(member).as_deref(), Some(id));
        }
        let foreign = ["user:7", "0123", "", &"x".repeat(32), "session:12345678"];
        for foreign in foreign
            .map(str::as_bytes)
            .into_iter()
            .chain([&[0xff; 15][..]])
        {
            assert_eq!(permit(foreign), None);
        }
        assert_eq!(keys_of("{x}:timeout"), ["x", "{x}"]);
        assert_eq!(keys_of("a{b}:timeout"), ["a{b}"]);
        assert!(keys_of("x:timeouts").is_empty());
    }
}

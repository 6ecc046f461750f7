//! Names of locks and every key and channel made from them.
//!
//! The layout is Redisson's: the lock's own key is the name itself, helpers are `prefix:{name}`, or `prefix:name` if
//! the name holds a `{` of its own. Invariant: all keys of one lock hash to one cluster slot; a name that would break
//! this under Redisson's rule is refused.

use std::fmt::Display;
use std::sync::Arc;

use crate::api::error::{Error, Result};

/// The longest name of a lock, in bytes of UTF-8, including the client's prefix.
pub const NAME_BYTES_MAX: usize = 512;

/// The beginning of the channels of read-write locks.
pub(crate) const RW_CHANNEL: &str = "redisson_rwlock";

/// The prefix of the keys with our holders of permits of plain semaphores. They have the form of a lock.
pub const HOLDS_OF_PERMITS: &str = "lockset_sem_holds";

/// The channel on which waiters recall holds of a client, before the client's uuid.
pub(crate) const RECALL_CHANNEL: &str = "lockset_recall:";

/// A checked name: the lock's name as the user wrote it, and its key. In one allocation, because each call and each
/// hold has a clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct LockName(Arc<Names>);

#[derive(Debug, PartialEq, Eq, Hash)]
struct Names {
    name: Arc<str>,
    key: Arc<str>,
}

impl LockName {
    /// Checks a name.
    ///
    /// # Errors
    /// [`is_invalid`](Error::is_invalid): no lock can have this name.
    pub fn new(prefix: &str, name: &str) -> Result<Self> {
        let invalid = |message: String| Err(Error::invalid("name", message).of_lock(name));
        if name.is_empty() {
            return invalid("the name is empty; a lock needs at least one character".to_owned());
        }
        let bytes = prefix.len() + name.len();
        if bytes > NAME_BYTES_MAX {
            return invalid(format!(
                "the name has {bytes} bytes with its prefix; use at most {NAME_BYTES_MAX}"
            ));
        }
        let name: Arc<str> = name.into();
        let key = if prefix.is_empty() {
            Arc::clone(&name)
        } else {
            format!("{prefix}{name}").into()
        };
        if !one_slot(&key) {
            return Err(Error::invalid(
                "name",
                format!(
                    "the braces in {key:?} would put the keys of this lock in different cluster \
                     slots; use no braces, or one non-empty pair such as \"{{order}}:7\" first"
                ),
            )
            .of_lock(&name));
        }
        Ok(Self::of(name, key))
    }

    fn of(name: Arc<str>, key: Arc<str>) -> Self {
        Self(Arc::new(Names { name, key }))
    }

    /// The name as the user wrote it.
    pub fn as_str(&self) -> &str {
        &self.0.name
    }

    /// The lock's own key, prefix included.
    pub fn key(&self) -> &Arc<str> {
        &self.0.key
    }

    /// The channel on which a release of a reentrant lock is published.
    pub fn lock_channel(&self) -> String {
        self.helper("redisson_lock__channel")
    }

    /// The counter of fencing tokens.
    pub fn token_key(&self) -> String {
        self.helper("redisson_lock_token")
    }

    /// All keys that exist while a lock that uses these tokens is held or waited for. The counter is not among them.
    pub fn keys_in_use(&self) -> Vec<String> {
        let key = &**self.key();
        let twin = match within_braces(key) {
            Some(inner) => Some(inner.to_owned()),
            None => (!key.contains('{')).then(|| format!("{{{key}}}")),
        };
        let twin = twin.map(|key| Self::of(Arc::clone(&self.0.name), key.into()));
        let mut keys = vec![self.fair_queue_key(), self.fair_alive_key()];
        for lock in [Some(self), twin.as_ref()].into_iter().flatten() {
            keys.push(lock.key().as_ref().to_owned());
            keys.push(lock.rw_waiting_key());
        }
        keys
    }

    /// The queue of a fair lock.
    pub fn fair_queue_key(&self) -> String {
        self.helper("redisson_lock_queue")
    }

    /// The ends of the places of Redisson's waiters for a fair lock.
    pub fn fair_timeouts_key(&self) -> String {
        self.helper("redisson_lock_timeout")
    }

    /// The ends of the places of our waiters for a fair lock. There is one such key for each queue, which `x` and `{x}`
    /// share: the scores say which of the two a waiter waits for.
    pub fn fair_alive_key(&self) -> String {
        self.helper("lockset_fair_alive")
    }

    /// The channel on which the end of a read or write hold is published.
    pub fn rw_channel(&self) -> String {
        self.helper(RW_CHANNEL)
    }

    /// Our waiters for a read-write lock. No two names share this key.
    pub fn rw_waiting_key(&self) -> String {
        self.own_helper("lockset_rw_waiting")
    }

    /// The lease of one read hold of a holder; the first has number 1.
    pub fn read_lease_key(&self, holder: &str, number: u32) -> String {
        self.tagged("", format_args!(":{holder}:rwlock_timeout:{number}"))
    }

    /// The channel of a latch. Redisson puts braces around every name. Where channels have slots, that would put the
    /// channel of a name with braces in another slot than its latch. Redisson has no such latch there.
    pub fn latch_channel(&self, has_slot: bool) -> String {
        const CHANNEL: &str = "redisson_countdownlatch__channel__";
        if has_slot && self.key().contains('{') {
            self.helper(CHANNEL)
        } else {
            format!("{CHANNEL}{{{}}}", self.key())
        }
    }

    /// The call that opened a latch last.
    pub fn latch_opened_key(&self) -> String {
        self.own_helper("lockset_latch_opened")
    }

    /// A key that exists once this call has closed a latch or counted it down.
    pub(crate) fn latch_call_key(&self, call: &str) -> String {
        self.own_helper_of("lockset_latch_call", call)
    }

    /// The call that counted a latch down for this id.
    pub(crate) fn latch_done_key(&self, id: &str) -> String {
        self.own_helper_of("lockset_latch_done", id)
    }

    /// The channel of a semaphore.
    pub fn semaphore_channel(&self) -> String {
        self.helper("redisson_sc")
    }

    /// The permits of a semaphore that have been taken.
    pub fn semaphore_timeouts_key(&self) -> String {
        self.tagged("", ":timeout")
    }

    /// The waiters of a fair semaphore.
    pub fn semaphore_queue_key(&self) -> String {
        self.own_helper("lockset_sem_queue")
    }

    /// The ends of the places of the waiters of a fair semaphore.
    pub fn semaphore_alive_key(&self) -> String {
        self.own_helper("lockset_sem_alive")
    }

    /// Our holders of permits of a plain semaphore.
    pub fn semaphore_holds_key(&self) -> String {
        self.own_helper(HOLDS_OF_PERMITS)
    }

    /// A key that exists once this call has made a plain semaphore or added permits.
    pub(crate) fn semaphore_call_key(&self, call: &str) -> String {
        self.own_helper_of("lockset_sem_call", call)
    }

    /// The last value of the leader of an election, and the channel that notifies its observers.
    pub fn leader_key(&self) -> String {
        self.own_helper("lockset_leader")
    }

    /// The number of parties of a barrier; exists while a party waits. The channel that notifies parties of the end of a
    /// round has the same name.
    pub fn barrier_key(&self) -> String {
        self.own_helper("lockset_barrier")
    }

    /// The parties that wait at a barrier, with the ends of their leases.
    pub fn barrier_arrivals_key(&self) -> String {
        self.own_helper("lockset_barrier_arrived")
    }

    /// The prefix of the key with the outcome of a party's round. The id of the party follows.
    pub(crate) fn barrier_over_prefix(&self) -> String {
        format!("{}:", self.own_helper("lockset_barrier_over"))
    }

    /// A key for each id. Includes the length of the id, because names and ids may contain colons.
    fn own_helper_of(&self, prefix: &str, id: &str) -> String {
        format!("{}:{id}:{}", self.own_helper(prefix), id.len())
    }

    /// A key that Redisson does not have. A second colon keeps the keys of `{x}` apart from the keys of `x`.
    fn own_helper(&self, prefix: &str) -> String {
        let is_tagged = self.key().contains('{');
        let colons = if is_tagged { "::" } else { ":" };
        self.tagged(format_args!("{prefix}{colons}"), "")
    }

    fn helper(&self, prefix: &str) -> String {
        self.tagged(format_args!("{prefix}:"), "")
    }

    /// A text that contains the key, in braces unless the key has braces of its own. The text in the braces decides on
    /// the slot.
    fn tagged(&self, before: impl Display, after: impl Display) -> String {
        let key = self.key();
        if key.contains('{') {
            format!("{before}{key}{after}")
        } else {
            format!("{before}{{{key}}}{after}")
        }
    }
}

/// The key of an operator's reason for taking away the hold with this holder id. `None` if `holder` is no holder id.
pub(crate) fn freed_key(holder: &str) -> Option<String> {
    let (client, number) = holder
        .strip_suffix(":write")
        .unwrap_or(holder)
        .split_once(':')?;
    let is_client = client
        .bytes()
        .all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
    let is_number = number.bytes().all(|byte| byte.is_ascii_digit());
    (is_client && is_number && !client.is_empty() && !number.is_empty())
        .then(|| format!("lockset_client:{{{client}}}:freed:{number}"))
}

/// The text between the braces, if they enclose the whole key. Redisson gives `x` and `{x}` the same helper keys and
/// channels, and no other two names.
pub fn within_braces(key: &str) -> Option<&str> {
    let inner = key.strip_prefix('{')?.strip_suffix('}')?;
    (!inner.contains(['{', '}'])).then_some(inner)
}

/// Whether `key` and its helper keys hash to one slot. A cluster hashes the text between the first `{` and the next
/// `}`, or the whole key if there is no such text.
fn one_slot(key: &str) -> bool {
    match key.find('{') {
        // The helper is `prefix:{key}`: its tag must be the whole key.
        None => !key.contains('}'),
        // The helper is `prefix:key`: both must have the same, non-empty tag.
        Some(open) => key[open + 1..].find('}').is_some_and(|tag| tag > 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The part of a key that a cluster hashes, from the cluster specification.
    fn tag(key: &str) -> &str {
        if let Some(open) = key.find('{')
            && let Some(len) = key[open + 1..].find('}')
            && len > 0
        {
            return &key[open + 1..open + 1 + len];
        }
        key
    }

    #[test]
    fn helpers_follow_redissons_rule() {
        let plain = LockName::new("", "abc").unwrap();
        assert_eq!(&**plain.key(), "abc");
        assert_eq!(plain.lock_channel(), "redisson_lock__channel:{abc}");
        let tagged = LockName::new("app:", "{order}:7").unwrap();
        assert_eq!(&**tagged.key(), "app:{order}:7");
        assert_eq!(tagged.as_str(), "{order}:7");
        assert_eq!(tagged.token_key(), "redisson_lock_token:app:{order}:7");
        assert_eq!(plain.fair_queue_key(), "redisson_lock_queue:{abc}");
        assert_eq!(plain.fair_timeouts_key(), "redisson_lock_timeout:{abc}");
        assert_eq!(plain.rw_channel(), "redisson_rwlock:{abc}");
        for (lock, lease_key) in [
            (plain, "{abc}:u:7:rwlock_timeout:2"),
            (tagged, "app:{order}:7:u:7:rwlock_timeout:2"),
        ] {
            assert_eq!(lock.read_lease_key("u:7", 2), lease_key);
        }
    }

    #[test]
    fn a_reason_is_left_for_a_holder_and_for_nobody_else() {
        let client = "8b2d9a1c-3f04-4c52-9a7e-0d1f6b5e4c3a";
        let key = format!("lockset_client:{{{client}}}:freed:57");
        for holder in [format!("{client}:57"), format!("{client}:57:write")] {
            assert_eq!(freed_key(&holder).as_deref(), Some(&*key));
        }
        for holder in [
            "",
            "x",
            "x:1",
            "a}b:1",
            &format!("{client}:x"),
            ":",
            "a:",
            "a:1:2",
        ] {
            assert_eq!(freed_key(holder), None, "{holder}");
        }
    }

    #[test]
    fn names_that_cannot_work_are_refused_by_name() {
        for bad in ["", "a{b", "{a", "a}b", "{}a", "x{}{y}", "}"] {
            let error = LockName::new("", bad).unwrap_err();
            assert!(error.is_invalid(), "{bad:?}");
            assert_eq!(error.lock_name(), Some(bad));
        }
        let long = "x".repeat(NAME_BYTES_MAX);
        assert!(LockName::new("", &long).is_ok());
        assert!(LockName::new("p", &long).unwrap_err().is_invalid());
        for good in ["abc", "a{b}c", "x{y}{z}", "a}b{c}", "\r\n\0", "ключ"] {
            assert!(LockName::new("", good).is_ok(), "{good:?}");
        }
    }

    #[test]
    fn what_shows_the_use_of_a_counter_is_in_its_slot() {
        let holder = "9f2c3a44-0d5e-4c7b-8f6a-1b2c3d4e5f60:7";
        for name in ["abc", "{abc}", "a{b}c", &format!("a{{b}}:{holder}")] {
            let name = LockName::new("", name).unwrap();
            assert!(!name.keys_in_use().contains(&name.token_key()));
            assert!(
                name.keys_in_use()
                    .iter()
                    .all(|key| tag(key) == tag(name.key()))
            );
        }
        let sorted = |name| {
            let mut keys = LockName::new("", name).unwrap().keys_in_use();
            keys.sort();
            keys
        };
        assert_eq!(sorted("abc"), sorted("{abc}"), "they share the counter");
        assert!(sorted("abc").contains(&"{abc}".to_owned()));
    }

    /// Messages and waiters of the two have to be distinguished.
    #[test]
    fn two_names_share_a_channel_only_with_and_without_braces() {
        let shared = |a: &str, b: &str| {
            let [a, b] = [a, b].map(|name| LockName::new("", name).unwrap());
            assert_ne!(a.rw_waiting_key(), b.rw_waiting_key());
            a.lock_channel() == b.lock_channel()
        };
        assert!(shared("abc", "{abc}"));
        assert!(!shared("abc", ":{abc}") && !shared("{abc}", ":{abc}"));
        assert_eq!(within_braces("{abc}"), Some("abc"));
        for other in ["abc", "{a}{b}", "{a}b", "a{b}", "a}b{c}", "{"] {
            assert_eq!(within_braces(other), None, "{other:?}");
        }
    }

    proptest! {
        #[test]
        fn no_other_names_share_a_channel(one in "[ab:{}]{1,6}", two in "[ab:{}]{1,6}") {
            if let (Ok(a), Ok(b)) = (LockName::new("", &one), LockName::new("", &two))
                && one != two
            {
                prop_assert_ne!(a.rw_waiting_key(), b.rw_waiting_key());
                let family = |name| within_braces(name).unwrap_or(name).to_owned();
                prop_assert_eq!(a.lock_channel() == b.lock_channel(), family(&one) == family(&two));
            }
        }

        #[test]
        fn all_keys_of_an_accepted_name_share_a_tag(prefix in "[a-z{}:]{0,4}", name in "[ab{}]{1,8}") {
            if let Ok(lock) = LockName::new(&prefix, &name) {
                for helper in [
                    lock.lock_channel(),
                    format!("{}:u:7", lock.lock_channel()),
                    lock.token_key(),
                    lock.read_lease_key("u:7", 1),
                    lock.fair_queue_key(),
                    lock.fair_timeouts_key(),
                    lock.fair_alive_key(),
                    lock.rw_channel(),
                    lock.rw_waiting_key(),
                    lock.latch_channel(true),
                    lock.latch_opened_key(),
                    lock.semaphore_channel(),
                    lock.semaphore_call_key("}{"),
                    lock.semaphore_holds_key(),
                    lock.semaphore_timeouts_key(),
                    lock.semaphore_queue_key(),
                    lock.semaphore_alive_key(),
                    lock.leader_key(),
                    lock.barrier_key(),
                    lock.barrier_arrivals_key(),
                    format!("{}u:7", lock.barrier_over_prefix()),
                    lock.latch_done_key(&name),
                    lock.latch_call_key("}{"),
                ] {
                    prop_assert_eq!(tag(lock.key()), tag(&helper));
                }
            }
        }

        #[test]
        fn a_refused_name_would_have_split_slots(name in "[ab{}]{1,8}") {
            if LockName::new("", &name).is_err() {
                let helper = if name.contains('{') { format!("p:{name}") } else { format!("p:{{{name}}}") };
                prop_assert_ne!(tag(&name), tag(&helper));
            }
        }
    }
}

//! Recalls that this client has received: the numbers of its holds that waiters elsewhere want.
//!
//! A recall is a hint. Invariant: receiving a message only notes it here. One task acts on it.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;

use crate::engine::hint::Hint;

/// Recalls beyond this number are not noted, because waiters repeat them.
const NOTED_MAX: usize = 4096;

#[derive(Debug, Default)]
pub(crate) struct Recalls {
    /// Whether this client listens, or is about to.
    is_used: AtomicBool,
    /// The holds, by the number in their holder ids.
    noted: Mutex<BTreeSet<u64>>,
    /// Signalled when there is work: holds were recalled, a subscription was lost, or the client was closed.
    pub(super) changed: Hint,
}

impl Recalls {
    /// True for the first caller, which has to begin to listen.
    pub(super) fn begin(&self) -> bool {
        !self.is_used.load(Ordering::Relaxed) && !self.is_used.swap(true, Ordering::Relaxed)
    }

    /// Notes a recall. The message contains the number of the hold.
    pub(super) fn on_message(&self, message: &[u8]) {
        let number = std::str::from_utf8(message).ok();
        let Some(number) = number.and_then(|number| number.parse().ok()) else {
            return;
        };
        let mut noted = self.noted.lock();
        if noted.len() < NOTED_MAX {
            noted.insert(number);
        }
        drop(noted);
        self.changed.notify();
    }

    pub(super) fn take(&self) -> BTreeSet<u64> {
        std::mem::take(&mut *self.noted.lock())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whatever_comes_is_a_number_or_nothing(messages in proptest::collection::vec(
            prop_oneof!["[0-9]{1,20}".prop_map(String::into_bytes), any::<Vec<u8>>()],
            0..20,
        )) {
            let recalls = Recalls::default();
            let mut expected = BTreeSet::new();
            for message in &messages {
                recalls.on_message(message);
                let number = std::str::from_utf8(message).ok();
                expected.extend(number.and_then(|number| number.parse::<u64>().ok()));
            }
            prop_assert_eq!(recalls.take(), expected);
        }
    }

    #[test]
    fn a_message_names_a_hold_and_anything_else_is_nothing() {
        let recalls = Recalls::default();
        for message in ["7", "", "x", "-3", "8:write", "7", "12"] {
            recalls.on_message(message.as_bytes());
        }
        recalls.on_message(b"\xff");
        assert_eq!(recalls.take(), BTreeSet::from([7, 12]));
        assert_eq!(recalls.take(), BTreeSet::new());
    }

    #[test]
    fn what_is_noted_is_bounded() {
        let recalls = Recalls::default();
        for number in 0..2 * NOTED_MAX {
            recalls.on_message(number.to_string().as_bytes());
        }
        assert_eq!(recalls.take().len(), NOTED_MAX);
    }

    #[test]
    fn one_sees_to_it_that_recalls_come() {
        let recalls = Recalls::default();
        assert!(recalls.begin());
        assert!(!recalls.begin());
    }
}

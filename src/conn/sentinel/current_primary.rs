//! The current primary, and the switch to another.
//!
//! Invariant: at a switch, every command in flight to the old primary ends for its caller before any hold is checked,
//! and nothing is sent to the old one afterwards.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::RedisError;

use crate::conn::error_reply::code;
use crate::conn::single::SingleServer;
use crate::conn::transport::{EventHandler, Fault, Replies};
use crate::engine::hint::{Hint, Mark};

#[derive(Debug)]
pub(super) struct CurrentPrimary {
    events: Arc<dyn EventHandler>,
    /// The primary, or the reason why there is none.
    primary: Mutex<Result<Arc<SingleServer>, String>>,
    /// Given when the primary is replaced or dropped.
    switched: Hint,
    /// Given when the primary may be down, or may no longer be a primary.
    pub(super) doubted: Hint,
}

impl CurrentPrimary {
    pub(super) fn unknown(events: Arc<dyn EventHandler>) -> Self {
        Self {
            events,
            primary: Mutex::new(Err("no sentinel was asked yet".to_owned())),
            switched: Hint::default(),
            doubted: Hint::default(),
        }
    }

    /// The primary, and a mark for [`Self::during`].
    pub(super) fn get(&self) -> Result<(Arc<SingleServer>, Mark), Fault> {
        let primary = self.primary.lock();
        match &*primary {
            Ok(server) => Ok((Arc::clone(server), self.switched.mark())),
            Err(why) => Err(Fault::Unsent(why.clone().into())),
        }
    }

    /// Drives `work` at the primary of `mark`. The result counts only while that is the primary.
    pub(super) async fn during(
        &self,
        mark: Mark,
        work: impl Future<Output = Result<Replies, Fault>>,
    ) -> Result<Replies, Fault> {
        let result = tokio::select! {
            biased;
            () = self.switched.changed_since(mark) => {
                return Err(Fault::Unknown("another server became the primary meanwhile".into()));
            }
            result = work => result,
        };
        let is_doubtful = match &result {
            Ok(replies) => replies.errors().any(|error| says_no_primary(&error)),
            Err(Fault::Answered(error) | Fault::Declined(error)) => says_no_primary(error),
            Err(Fault::Unsent(_) | Fault::Unknown(_)) => true,
        };
        if is_doubtful {
            self.doubted.notify();
        }
        result
    }

    /// Makes this server the primary.
    pub(super) fn switch_to(&self, next: &Arc<SingleServer>) {
        self.put(Ok(Arc::clone(next)));
        self.changed();
    }

    /// Reports that another server is or was the primary.
    pub(super) fn changed(&self) {
        // Subscriptions ended with the old primary, and its grants may not have reached the next one.
        self.events.gap();
        self.events.moved();
    }

    /// Removes the primary, for this reason.
    pub(super) fn clear(&self, why: String) {
        self.put(Err(why));
    }

    fn put(&self, next: Result<Arc<SingleServer>, String>) {
        let last = {
            let mut primary = self.primary.lock();
            let last = std::mem::replace(&mut *primary, next);
            if last.is_ok() {
                self.switched.notify();
            }
            last
        };
        if let Ok(last) = last {
            last.retire();
        }
    }
}

fn says_no_primary(error: &RedisError) -> bool {
    matches!(code(error), Some("READONLY" | "MASTERDOWN" | "LOADING"))
}

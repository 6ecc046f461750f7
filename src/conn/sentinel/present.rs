//! The primary as it is known now, and the exchange of it for another.
//!
//! Invariant: when a primary is exchanged, everything that is under way to the old one has ended for
//! its caller before anybody is told, and nothing is sent to it any more.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::conn::single::SingleServer;
use crate::conn::{EventHandler, Fault};
use crate::hint::{Hint, Mark};

#[derive(Debug)]
pub(super) struct Present {
    events: Arc<dyn EventHandler>,
    /// The primary, or why there is none.
    primary: Mutex<Result<Arc<SingleServer>, String>>,
    /// Given at each exchange.
    pub(super) exchanged: Hint,
    /// Given when it is in doubt whether the primary is one, or is there.
    pub(super) doubted: Hint,
}

impl Present {
    pub(super) fn unknown(events: Arc<dyn EventHandler>) -> Self {
        Self {
            events,
            primary: Mutex::new(Err("nobody was asked yet".to_owned())),
            exchanged: Hint::default(),
            doubted: Hint::default(),
        }
    }

    /// The primary, and a mark that a later exchange goes past.
    pub(super) fn primary(&self) -> Result<(Arc<SingleServer>, Mark), Fault> {
        let primary = self.primary.lock();
        match &*primary {
            Ok(server) => Ok((Arc::clone(server), self.exchanged.mark())),
            Err(why) => Err(Fault::Unsent(why.clone().into())),
        }
    }

    /// From now on this one is the primary.
    pub(super) fn exchange(&self, next: &Arc<SingleServer>) {
        self.put(Ok(Arc::clone(next)));
        // Subscriptions went with the old one, and what it had granted may not have reached this.
        self.events.gap();
        self.events.moved();
    }

    /// From now on there is none, for this reason.
    pub(super) fn dismiss(&self, why: String) {
        self.put(Err(why));
    }

    fn put(&self, next: Result<Arc<SingleServer>, String>) {
        let last = {
            let mut primary = self.primary.lock();
            let last = std::mem::replace(&mut *primary, next);
            if last.is_ok() {
                self.exchanged.give();
            }
            last
        };
        if let Ok(last) = last {
            last.retire();
        }
    }
}

//! Reports connections of a link that replace an earlier one.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::conn::setup::Setup;
use crate::conn::transport::EventHandler;

#[derive(Debug)]
pub(super) struct Reconnects {
    events: Arc<dyn EventHandler>,
    /// `None` for a helper's connection that is not one of the client's lanes.
    lane: Option<&'static str>,
    /// Whether there was a connection before.
    has_connected: AtomicBool,
}

impl Reconnects {
    /// For a link whose connections have this name at the server.
    pub(super) fn new(label: &str, setup: &Setup) -> Self {
        Self {
            events: Arc::clone(&setup.events),
            lane: lane(label),
            has_connected: AtomicBool::new(false),
        }
    }

    pub(super) fn note_connected(&self, endpoint: &str) {
        let is_another = self.has_connected.swap(true, Ordering::AcqRel);
        if let (true, Some(lane)) = (is_another, self.lane) {
            self.events.reconnected(lane, endpoint);
        }
    }
}

fn lane(label: &str) -> Option<&'static str> {
    let rest = label.strip_prefix("lockset-")?;
    // Commands behind a subscription belong to the waiters for messages.
    let rest = rest.strip_prefix("behind-").unwrap_or(rest);
    let lanes = ["command", "renewal", "push", "confirm"];
    lanes.into_iter().find(|lane| rest.starts_with(lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lane_is_in_the_name() {
        assert_eq!(lane("lockset-renewal-8f0c"), Some("renewal"));
        assert_eq!(lane("lockset-behind-push-8f0c"), Some("push"));
        assert_eq!(lane("lockset-sentinel-8f0c"), None);
        assert_eq!(lane("other"), None);
    }
}

//! A server's side of a connection that carries bytes.

use std::collections::VecDeque;
use std::sync::Arc;

use super::inbox::Inbox;
use crate::words::Words;

#[derive(Debug)]
pub(super) struct ServedStream {
    pub(super) inbox: Arc<Inbox>,
    pub(super) waiting: Option<Waiting>,
    /// Commands that wait for it.
    pub(super) behind: VecDeque<Words>,
}

/// A `WAIT` that has not ended.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) number: u64,
    pub(super) replicas: usize,
    pub(super) changes: u64,
}

impl ServedStream {
    pub(super) fn new(inbox: &Arc<Inbox>) -> Self {
        Self {
            inbox: Arc::clone(inbox),
            waiting: None,
            behind: VecDeque::new(),
        }
    }

    /// The server has accepted it.
    pub(super) fn opened(&self) {
        self.inbox.open();
    }
}

//! A place in the local queue of one lock, until it is one's turn.

use super::{Ask, Party, Sought, ensure_open};
use crate::clock::Tick;
use crate::error::Result;
use crate::hold::attend;
use crate::hold::line::{Place, Wish};
use crate::hold::protocol::Queue;

impl<'a> Party<'a> {
    /// Takes a place in the local queue, unless the lock queues at the server. Who wants several locks
    /// takes nothing over: it gets them together.
    pub(super) fn enter_line(self, at: usize) -> Option<Place<'a>> {
        let ask: &Ask = &self.asks[at];
        if ask.protocol.queue() == Queue::Server {
            return None;
        }
        let wish = (self.asks.len() == 1).then(|| Wish {
            owner: ask.options.owner.clone(),
            term: ask.term,
            fenced: ask.options.fenced,
            replication: ask.options.replication,
        });
        Some(self.locals[at].line.enter(ask.mode, wish))
    }

    /// Waits until it is at the head, unless the wait ends otherwise: then how. Who was passed over
    /// meanwhile is the next one.
    pub(super) async fn turn(
        self,
        at: usize,
        place: &Place<'_>,
        deadline: Option<Tick>,
    ) -> Result<Option<Sought>> {
        if place.is_head() {
            return Ok(None);
        }
        let core = &self.asks[at].core;
        attend::behind(core, &self.locals[at]);
        tokio::select! {
            biased;
            () = place.turn() => Ok(None),
            sought = self.owner_gets_it(at, deadline) => Ok(Some(sought?)),
            () = core.clock.sleep_until(deadline.unwrap_or(Tick::NEVER)), if deadline.is_some() => {
                Ok(Some(Sought::NotInTime))
            }
        }
    }

    /// Resolves when the owner who asks gets a lock through another of its tasks: then it enters at
    /// once, wherever it stands in the queue.
    async fn owner_gets_it(self, at: usize, deadline: Option<Tick>) -> Result<Sought> {
        if self.asks[at].options.owner.is_none() {
            return std::future::pending().await;
        }
        loop {
            let (entered, closing) = (&self.locals[at].entered, &self.core().closing);
            let marks = (entered.mark(), closing.mark());
            ensure_open(&self.asks[at])?;
            if let Some(sought) = self.owned(at, deadline).await? {
                return Ok(sought);
            }
            tokio::select! {
                () = entered.past(marks.0) => {}
                () = closing.past(marks.1) => {}
            }
        }
    }
}

//! A place in the local queue of one lock, until it is one's turn.

use super::{Ask, Party, Sought, ensure_open};
use crate::error::Result;
use crate::hold::attend;
use crate::hold::line::{Place, Wish};
use crate::hold::protocol::Queue;
use crate::hold::silence::Over;

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
            give_up: ask.give_up(),
        });
        Some(self.locals[at].line.enter(ask.mode, wish))
    }

    /// Waits until it is at the head, unless the wait ends otherwise: then how. Who was passed over
    /// meanwhile is the next one.
    pub(super) async fn turn(self, at: usize, place: &Place<'_>) -> Result<Option<Sought>> {
        if place.is_head() {
            return Ok(None);
        }
        let (ask, local) = (&self.asks[at], &self.locals[at]);
        attend::behind(&ask.core, local);
        tokio::select! {
            biased;
            () = place.turn() => Ok(None),
            sought = self.owner_gets_it(at) => Ok(Some(sought?)),
            over = local.silence.over(ask.core.clock, &self.bound) => match over {
                Over::NotInTime => Ok(Some(Sought::NotInTime)),
                Over::Silent(why) => Err(ask.silent(why)),
            },
        }
    }

    /// Resolves when the owner who asks gets a lock through another of its tasks: then it enters at
    /// once, wherever it stands in the queue.
    async fn owner_gets_it(self, at: usize) -> Result<Sought> {
        if self.asks[at].options.owner.is_none() {
            return std::future::pending().await;
        }
        loop {
            let (entered, closing) = (&self.locals[at].entered, &self.core().closing);
            let marks = (entered.mark(), closing.mark());
            ensure_open(&self.asks[at])?;
            if let Some(sought) = self.owned(at).await? {
                return Ok(sought);
            }
            tokio::select! {
                () = entered.past(marks.0) => {}
                () = closing.past(marks.1) => {}
            }
        }
    }
}

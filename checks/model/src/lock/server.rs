//! The scripts, each as one step.
//!
//! Invariant: a reply states what the server has after the step; a repeated step changes nothing.

use super::state::{Holder, Lane, Place, Reply, Request, State};
use super::{Bounds, Rules};

impl State {
    /// Executes a call, and says what is answered to it.
    pub fn execute(&mut self, bounds: &Bounds, rules: &Rules, request: Request) -> Reply {
        match request {
            Request::Acquire(holder) => self.acquire(bounds, rules, holder),
            Request::Renew(holder) => {
                let is_his = self.server.holder == Some(holder);
                let is_renewed =
                    is_his || (!rules.renewal_checks_holder && self.server.holder.is_some());
                self.is_renewed_in_vain |= is_renewed && !is_his;
                if is_renewed {
                    self.server.left = self.server.left.max(bounds.lease);
                }
                Reply::Renewed(holder, is_renewed)
            }
            Request::Release(holder) => {
                self.server.queue.retain(|place| place.holder != holder);
                if self.server.holder == Some(holder)
                    || (!rules.release_checks_holder && self.server.holder.is_some())
                {
                    self.free();
                    self.hand_over(bounds, rules);
                }
                Reply::Released(holder)
            }
        }
    }

    fn acquire(&mut self, bounds: &Bounds, rules: &Rules, holder: Holder) -> Reply {
        if self.server.holder == Some(holder) {
            self.server.left = self.server.left.max(bounds.lease);
            return Reply::Granted(holder, self.next_token(bounds, rules));
        }
        if self.server.holder.is_none() && self.is_next(rules, holder) {
            let before = self
                .server
                .queue
                .iter()
                .take_while(|place| place.holder != holder);
            // Only live waiters count: the script removes dead waiters that it finds before it.
            self.is_overtaken |= before.into_iter().any(|place| place.left > 0);
            self.server.queue.retain(|place| place.holder != holder);
            self.server.holder = Some(holder);
            self.server.left = bounds.lease;
            return Reply::Granted(holder, self.next_token(bounds, rules));
        }
        if bounds.is_fair {
            self.outdate_notifications(holder);
            let left = bounds.heartbeat;
            match self
                .server
                .queue
                .iter_mut()
                .find(|place| place.holder == holder)
            {
                Some(place) => place.left = left,
                None => self.server.queue.push(Place { holder, left }),
            }
        }
        Reply::Refused(holder)
    }

    /// It has another place from now on, with another end, which its notifications would name.
    fn outdate_notifications(&mut self, holder: Holder) {
        let client = &mut self.clients[usize::from(holder.client)];
        for reply in &mut client.lane(Lane::Push).replies {
            if let Reply::HandedOver(of, token) = *reply
                && of == holder
            {
                *reply = Reply::HandedOverBefore(of, token);
            }
        }
    }

    /// Whether no live waiter is before it.
    fn is_next(&self, rules: &Rules, holder: Holder) -> bool {
        let mut alive = self.server.queue.iter().filter(|place| place.left > 0);
        !rules.free_lock_goes_to_head || alive.next().is_none_or(|head| head.holder == holder)
    }

    fn next_token(&mut self, bounds: &Bounds, rules: &Rules) -> u8 {
        if !bounds.is_fenced {
            return 0;
        }
        let server = &mut self.server;
        let last = if rules.token_is_above_clock {
            server.token.max(server.clock)
        } else {
            server.token
        };
        let aside = if rules.server_sets_tokens_aside && !bounds.is_fair {
            bounds.handoffs
        } else {
            0
        };
        server.token = last + 1 + aside;
        // Tokens count microseconds, so time adds more to them than grants do.
        server.clock = server.clock.max(server.token);
        last + 1
    }

    fn free(&mut self) {
        self.server.holder = None;
        self.server.left = 0;
    }

    /// A fair lock that was released goes to the next waiter, and that is notified.
    fn hand_over(&mut self, bounds: &Bounds, rules: &Rules) {
        if !bounds.is_fair {
            return;
        }
        let mut queue = self.server.queue.iter();
        let next = queue.position(|place| place.left > 0);
        let Some(next) = next else {
            return;
        };
        let place = self.server.queue[next];
        self.server.queue.drain(..=next);
        let token = self.next_token(bounds, rules);
        self.server.holder = Some(place.holder);
        // A waiter that has died delays the others no longer than its place would.
        self.server.left = place.left;
        let client = &mut self.clients[usize::from(place.holder.client)];
        let notification = Reply::HandedOver(place.holder, token);
        client.lane(Lane::Push).replies.push(notification);
    }

    /// One tick of the server's clock.
    pub(super) fn tick_server(&mut self, rules: &Rules) {
        let server = &mut self.server;
        if server.holder.is_some() && rules.hold_has_lease {
            server.left = server.left.saturating_sub(1);
            if server.left == 0 {
                server.holder = None;
            }
        }
        for place in &mut server.queue {
            place.left = place.left.saturating_sub(1);
        }
    }
}

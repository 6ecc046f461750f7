//! The steps of the clients, and the faults.

use super::{Action, Client, Guard, Phase, Reply, Request, Semaphore, Sent, State};

impl Semaphore {
    fn tick(&self, state: &mut State) {
        let lease = self.bounds.lease;
        state.server.tick(&self.rules);
        for client in &mut state.clients {
            for sent in client.lane.iter_mut().chain(&mut client.renewal) {
                sent.age = (sent.age + 1).min(lease);
            }
            if let Phase::Held(guard) = &mut client.phase {
                guard.left = guard.left.saturating_sub(1);
                guard.is_lost |= guard.left == 0;
            }
        }
    }

    fn ask(&self, state: &mut State, at: usize) {
        let attempt = if self.rules.attempt_has_new_permits {
            // The same states as with a new number, if nothing is left of an attempt that had it.
            (0..).find(|number| !state.knows(at, *number)).unwrap_or(0)
        } else {
            0
        };
        let client = &mut state.clients[at];
        client.attempt = attempt;
        (client.phase, client.is_woken) = (Phase::Asking, false);
        client.send(Request::Acquire(client.attempt));
    }

    fn abandon(&self, client: &mut Client) {
        if client.phase == Phase::Asking && self.rules.attempt_is_undone {
            let undo = Request::Release(client.attempt);
            client.send(undo);
            if !self.rules.undo_takes_same_lane {
                client.lane.rotate_right(1);
            }
        }
        self.end(client);
    }

    /// The caller is gone.
    fn end(&self, client: &mut Client) {
        if self.bounds.is_fair && client.wants() {
            client.send(Request::Leave);
        }
        client.phase = Phase::Idle;
        (client.is_subscribed, client.is_woken) = (false, false);
    }

    fn execute(&self, state: &mut State, at: usize) {
        let lane = &state.clients[at].lane;
        let Some(first) = lane.iter().position(|sent| sent.reply.is_none()) else {
            return;
        };
        let request = lane[first].request;
        let (reply, tells) = self.done(state, at, request);
        state.clients[at].lane[first].reply = Some(reply);
        if tells {
            state.publish();
        }
    }

    fn done(&self, state: &mut State, at: usize, request: Request) -> (Reply, bool) {
        let client = at as u8;
        state
            .server
            .execute(client, request, &self.bounds, &self.rules)
    }

    fn read(&self, client: &mut Client, sent: Sent) {
        let left = |counts: bool| self.bounds.lease - if counts { sent.age } else { 0 };
        match (sent.request, sent.reply) {
            (Request::Acquire(attempt), Some(reply))
                if client.phase == Phase::Asking && attempt == client.attempt =>
            {
                if reply == Reply::Granted {
                    let left = left(self.rules.grant_counts_from_sending);
                    (client.is_subscribed, client.is_woken) = (false, false);
                    client.phase = Phase::Held(Guard {
                        attempt,
                        left,
                        is_lost: left == 0,
                    });
                } else {
                    client.phase = Phase::Waiting;
                    client.is_woken &= self.rules.message_during_attempt_counts;
                }
            }
            (Request::Renew(attempt), Some(Reply::Renewed(is_renewed))) => {
                if let Phase::Held(guard) = &mut client.phase
                    && guard.attempt == attempt
                {
                    let longer = left(self.rules.renewal_counts_from_sending);
                    guard.left = if is_renewed {
                        guard.left.max(longer)
                    } else {
                        0
                    };
                    guard.is_lost |= guard.left == 0;
                }
            }
            (Request::Release(attempt), _) => {
                // Without the rule the guard lives until its release is answered.
                if let Phase::Held(guard) = client.phase
                    && guard.attempt == attempt
                {
                    client.phase = Phase::Idle;
                }
            }
            _ => {}
        }
    }

    pub(super) fn step(&self, next: &mut State, action: Action) {
        match action {
            Action::Tick => self.tick(next),
            Action::Call(at) => {
                next.calls -= u8::from(!self.bounds.is_endless);
                self.ask(next, at);
            }
            Action::Wake(at) | Action::Timer(at) => self.ask(next, at),
            Action::Subscribe(at) => {
                let client = &mut next.clients[at];
                client.is_subscribed = true;
                client.is_woken |= self.rules.asks_after_subscribing;
            }
            Action::Abandon(at) => self.abandon(&mut next.clients[at]),
            Action::Execute(at) => self.execute(next, at),
            Action::Read(at) => {
                let sent = next.clients[at].lane.remove(0);
                self.read(&mut next.clients[at], sent);
            }
            Action::Renew(at) => {
                let client = &mut next.clients[at];
                if let Phase::Held(guard) = client.phase {
                    client.renewal = Some(Sent::new(Request::Renew(guard.attempt)));
                }
            }
            Action::ExecuteRenewal(at) => {
                let request = next.clients[at].renewal.map(|sent| sent.request);
                let reply = request.map(|request| self.done(next, at, request).0);
                if let Some(sent) = &mut next.clients[at].renewal {
                    sent.reply = reply;
                }
            }
            Action::ReadRenewal(at) => {
                let was_held = matches!(next.clients[at].phase, Phase::Held(_));
                let was_valid = next.clients[at].is_valid(&self.rules);
                if let Some(sent) = next.clients[at].renewal.take() {
                    self.read(&mut next.clients[at], sent);
                }
                let is_valid = next.clients[at].is_valid(&self.rules);
                next.is_revived |= was_held && !was_valid && is_valid;
            }
            Action::Release(at) => {
                let client = &mut next.clients[at];
                if let Phase::Held(guard) = client.phase {
                    client.send(Request::Release(guard.attempt));
                    if self.rules.guard_ends_before_release {
                        client.phase = Phase::Idle;
                    }
                }
            }
            Action::Arrive(at) => {
                let request = next.clients[at].late.remove(0);
                let (_, tells) = self.done(next, at, request);
                if tells {
                    next.publish();
                }
            }
            fault => self.fault(next, fault),
        }
    }

    /// Whether what was sent on a connection that was given up may arrive.
    fn is_late(&self) -> bool {
        self.bounds.is_late || !self.rules.connection_is_killed_before_next
    }

    fn fault(&self, next: &mut State, fault: Action) {
        next.faults -= 1;
        match fault {
            Action::LoseReply(at) => {
                let lane = &mut next.clients[at].lane;
                if self.rules.unanswered_is_repeated {
                    // Of all that follows too, as the connection is gone.
                    lane.iter_mut().for_each(|sent| sent.reply = None);
                } else {
                    lane.remove(0);
                }
            }
            Action::HoldBack(at) => {
                let client = &mut next.clients[at];
                let request = client.lane[0].request;
                if self.is_late() {
                    client.late.push(request);
                }
                if !self.rules.unanswered_is_repeated {
                    client.lane.remove(0);
                }
            }
            Action::LoseMessage(at) => next.clients[at].is_woken = false,
            Action::Crash(at) => {
                // What it has sent may arrive or not.
                let client = &mut next.clients[at];
                client.phase = Phase::Dead;
                (client.is_subscribed, client.is_woken) = (false, false);
                client.lane.retain(|sent| sent.reply.is_none());
            }
            _ => {}
        }
    }

    pub(super) fn client_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[at];
        let is_renewing = client.renewal.is_some();
        let is_silent = client.lane.is_empty() && !(is_renewing && self.bounds.is_endless);
        let is_releasing = |sent: &Sent| matches!(sent.request, Request::Release(_));
        match client.phase {
            Phase::Idle if state.calls > 0 && is_silent => actions.push(Action::Call(at)),
            Phase::Waiting => {
                if client.is_woken {
                    actions.push(Action::Wake(at));
                } else if self.rules.waits_have_timers {
                    actions.push(Action::Timer(at));
                }
                if !client.is_subscribed {
                    actions.push(Action::Subscribe(at));
                }
            }
            Phase::Held(_) if !client.lane.iter().any(is_releasing) => {
                actions.push(Action::Release(at));
                if client.is_valid(&self.rules) && !is_renewing {
                    actions.push(Action::Renew(at));
                }
            }
            _ => {}
        }
        if client.wants() && !self.bounds.is_endless {
            actions.push(Action::Abandon(at));
        }
        if client.lane.iter().any(|sent| sent.reply.is_none()) {
            actions.push(Action::Execute(at));
        }
        let first = client.lane.first();
        if first.is_some_and(|sent| sent.reply.is_some()) {
            actions.push(Action::Read(at));
        }
        match client.renewal.map(|sent| sent.reply) {
            Some(None) => actions.push(Action::ExecuteRenewal(at)),
            Some(Some(_)) => actions.push(Action::ReadRenewal(at)),
            None => {}
        }
        if !client.late.is_empty() {
            actions.push(Action::Arrive(at));
        }
    }

    pub(super) fn fault_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[at];
        if state.faults > 0 && client.phase != Phase::Dead {
            let reply = client.lane.first().map(|sent| sent.reply);
            match reply {
                Some(Some(_)) => actions.push(Action::LoseReply(at)),
                Some(None) if self.is_late() || !self.rules.unanswered_is_repeated => {
                    actions.push(Action::HoldBack(at));
                }
                _ => {}
            }
            if client.is_woken {
                actions.push(Action::LoseMessage(at));
            }
            actions.push(Action::Crash(at));
        }
    }
}

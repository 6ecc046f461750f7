//! The steps of a client, and its reactions to answers.
//!
//! Invariant: an abandoned request is in `releasing` until the server has answered.

use super::state::{Client, Connection, Guard, Holder, LANES, Lane, Phase, Reply, Request, State};
use super::{Bounds, Rules};

impl State {
    /// The holder id of what this client is about.
    #[must_use]
    pub(super) fn current(&self, rules: &Rules, client: usize) -> Holder {
        let number = self.clients[client].attempts;
        Holder {
            client: client as u8,
            number: if rules.attempt_has_new_holder {
                number
            } else {
                1
            },
        }
    }

    /// A new attempt, or the next one of a waiter.
    pub(super) fn ask(&mut self, rules: &Rules, client: usize) {
        if self.clients[client].phase == Phase::Idle {
            self.clients[client].attempts += 1;
            self.attempts -= 1;
        }
        let holder = self.current(rules, client);
        let client = &mut self.clients[client];
        client.phase = Phase::Asking { age: 0 };
        client
            .lane(Lane::Command)
            .requests
            .push(Request::Acquire(holder));
    }

    /// The caller drops its attempt or its place.
    pub(super) fn abandon(&mut self, bounds: &Bounds, rules: &Rules, client: usize) {
        let holder = self.current(rules, client);
        let client = &mut self.clients[client];
        let may_have_something = matches!(client.phase, Phase::Asking { .. }) || bounds.is_fair;
        client.phase = Phase::Idle;
        if !may_have_something || !rules.attempt_is_undone {
            return;
        }
        let lane = if rules.undo_takes_same_lane {
            Lane::Command
        } else {
            Lane::Renewal
        };
        client.send_release(holder, lane);
    }

    /// The guard is released.
    pub(super) fn release(&mut self, rules: &Rules, client: usize) {
        let holder = self.current(rules, client);
        let client = &mut self.clients[client];
        if let Phase::Held(guard) = &mut client.phase {
            if rules.guard_ends_before_release {
                client.phase = Phase::Idle;
                client.renewal = None;
            } else {
                guard.is_releasing = true;
            }
        }
        client.send_release(holder, Lane::Command);
    }

    /// The next task of the client has the lock, without the server.
    pub(super) fn hand_off(&mut self, rules: &Rules, client: usize) {
        let Phase::Held(mut guard) = self.clients[client].phase else {
            return;
        };
        guard.handoffs += u8::from(rules.handoffs_have_bound);
        guard.worked = 0;
        guard.token += u8::from(rules.handoff_takes_next_token && guard.token > 0);
        self.note_token(guard.token);
        self.clients[client].phase = Phase::Held(guard);
    }

    /// The local deadline has passed.
    pub(super) fn lose(&mut self, client: usize) {
        let client = &mut self.clients[client];
        client.lost.push(client.attempts);
        client.phase = Phase::Idle;
        client.renewal = None;
    }

    /// Forgets lost holds that have gone from the server.
    pub(super) fn forget_lost(&mut self) {
        let holder = self.server.holder;
        for (at, client) in self.clients.iter_mut().enumerate() {
            client.lost.retain(|number| {
                holder.is_some_and(|holder| {
                    usize::from(holder.client) == at && holder.number == *number
                })
            });
        }
    }

    /// The watchdog renews what is held.
    pub(super) fn renew(&mut self, rules: &Rules, client: usize) {
        let holder = self.current(rules, client);
        let client = &mut self.clients[client];
        client.renewal = Some((client.attempts, 0));
        client
            .lane(Lane::Renewal)
            .requests
            .push(Request::Renew(holder));
    }

    /// A connection is replaced. Unanswered requests are sent again, oldest first.
    pub(super) fn reconnect(&mut self, rules: &Rules, client: usize, lane: Lane) {
        let holder = self.current(rules, client);
        let of = &mut self.clients[client];
        let old = std::mem::take(of.lane(lane));
        if !rules.connection_is_killed_before_next {
            self.late.extend(old.requests);
            self.late.sort_unstable();
        }
        if lane == Lane::Renewal {
            of.renewal = None;
        }
        if !rules.unanswered_is_repeated {
            of.releasing.retain(|(_, taken)| *taken != lane);
        }
        let number = holder.number;
        let again: Vec<_> = of.releasing.iter().filter(|each| each.1 == lane).collect();
        let again = again.into_iter().map(|(number, _)| Holder {
            client: holder.client,
            number: *number,
        });
        let mut requests: Vec<_> = again.map(Request::Release).collect();
        if lane == Lane::Command
            && let Phase::Asking { age } = &mut of.phase
        {
            debug_assert_eq!(number, holder.number);
            *age = 0;
            requests.push(Request::Acquire(holder));
        }
        of.lane(lane).requests = requests;
    }

    /// The process of a client is gone. Its requests may still be executed.
    pub(super) fn crash(&mut self, client: usize) {
        let of = &mut self.clients[client];
        for lane in LANES {
            let connection = std::mem::take(of.lane(lane));
            self.late.extend(connection.requests);
        }
        self.late.sort_unstable();
        *of = Client {
            phase: Phase::Dead,
            attempts: of.attempts,
            ..Client::new()
        };
    }

    /// The server starts again; its clients reconnect.
    pub(super) fn restart(&mut self, rules: &Rules, with_data: bool) {
        if !with_data {
            let clock = self.server.clock;
            self.server = super::state::Server {
                clock,
                ..Default::default()
            };
        }
        // Requests to the old process are gone with it.
        self.late.clear();
        for client in &mut self.clients {
            for lane in LANES {
                client.lane(lane).requests.clear();
            }
        }
        for client in 0..self.clients.len() {
            if self.clients[client].phase != Phase::Dead {
                for lane in LANES {
                    self.reconnect(rules, client, lane);
                }
            }
        }
    }

    /// Applies an answer to the client.
    pub(super) fn take_reply(
        &mut self,
        bounds: &Bounds,
        rules: &Rules,
        client: usize,
        reply: Reply,
    ) {
        let current = self.current(rules, client);
        match reply {
            Reply::Granted(holder, token) => {
                self.take_grant(bounds, rules, client, (holder, token))
            }
            Reply::Refused(holder) => {
                let client = &mut self.clients[client];
                if let Phase::Asking { age } = client.phase
                    && holder == current
                {
                    client.phase = Phase::Waiting { age };
                }
            }
            Reply::Renewed(holder, is_renewed) => {
                self.take_renewal(bounds, rules, client, holder, is_renewed)
            }
            Reply::Released(holder) => {
                let client = &mut self.clients[client];
                client
                    .releasing
                    .retain(|(number, _)| *number != holder.number);
                if matches!(client.phase, Phase::Held(guard) if guard.is_releasing) {
                    client.phase = Phase::Idle;
                    client.renewal = None;
                }
            }
            Reply::HandedOver(holder, token) => {
                self.take_handover(bounds, rules, client, (holder, token))
            }
            Reply::HandedOverBefore(holder, token) => {
                if !rules.notification_names_place {
                    self.take_handover(bounds, rules, client, (holder, token));
                }
            }
        }
    }

    fn take_grant(&mut self, bounds: &Bounds, rules: &Rules, client: usize, grant: (Holder, u8)) {
        let (holder, token) = grant;
        let Phase::Asking { age } = self.clients[client].phase else {
            return;
        };
        if holder != self.current(rules, client) {
            return;
        }
        let left = if rules.grant_counts_from_sending {
            bounds.lease - age
        } else {
            bounds.lease
        };
        self.make_guard(client, left, token);
    }

    fn take_handover(
        &mut self,
        bounds: &Bounds,
        rules: &Rules,
        client: usize,
        grant: (Holder, u8),
    ) {
        let (holder, token) = grant;
        let Phase::Waiting { age } = self.clients[client].phase else {
            return;
        };
        if rules.notification_names_holder && holder != self.current(rules, client) {
            return;
        }
        let left = if rules.handover_counts_from_poll {
            bounds.heartbeat.saturating_sub(age)
        } else {
            bounds.heartbeat
        };
        // Else it asks.
        if left > 0 {
            self.make_guard(client, left, token);
        }
    }

    fn make_guard(&mut self, client: usize, left: u8, token: u8) {
        if left > 0 {
            self.note_token(token);
        }
        self.clients[client].phase = Phase::Held(Guard {
            left,
            token,
            handoffs: 0,
            worked: 0,
            is_releasing: false,
        });
    }

    fn note_token(&mut self, token: u8) {
        if token > 0 {
            self.is_token_reused |= token <= self.top_token;
            self.top_token = self.top_token.max(token);
        }
    }

    fn take_renewal(
        &mut self,
        bounds: &Bounds,
        rules: &Rules,
        client: usize,
        holder: Holder,
        is_renewed: bool,
    ) {
        let current = self.current(rules, client);
        let Some((number, age)) = self.clients[client].renewal else {
            return;
        };
        if holder != current || number != self.clients[client].attempts {
            return;
        }
        self.clients[client].renewal = None;
        let Phase::Held(guard) = &mut self.clients[client].phase else {
            return;
        };
        if !is_renewed {
            self.lose(client);
            return;
        }
        let left = if rules.renewal_counts_from_sending {
            bounds.lease - age
        } else {
            bounds.lease
        };
        if guard.left > 0 {
            guard.left = guard.left.max(left);
        } else if !rules.lost_is_final {
            guard.left = left;
            self.is_revived |= left > 0;
        }
    }

    /// One tick of the clocks of the clients; `paused` stands still if its clock does.
    pub(super) fn tick_clients(&mut self, bounds: &Bounds, paused: Option<usize>) {
        let older = |age: u8| (age + 1).min(bounds.lease);
        for (at, client) in self.clients.iter_mut().enumerate() {
            if paused == Some(at) {
                continue;
            }
            match &mut client.phase {
                Phase::Asking { age } | Phase::Waiting { age } => *age = older(*age),
                Phase::Held(guard) => {
                    guard.left = guard.left.saturating_sub(1);
                    guard.worked = (guard.worked + 1).min(bounds.work.unwrap_or(0));
                }
                Phase::Idle | Phase::Dead => {}
            }
            if let Some((_, age)) = &mut client.renewal {
                *age = older(*age);
            }
        }
    }
}

impl Client {
    fn send_release(&mut self, holder: Holder, lane: Lane) {
        self.releasing.push((holder.number, lane));
        self.lane(lane).requests.push(Request::Release(holder));
    }

    /// Whether this connection carries something that a cut would lose.
    pub(super) fn is_used(&self, lane: Lane) -> bool {
        let Connection { requests, replies } = &self.connections[lane as usize];
        !requests.is_empty() || !replies.is_empty()
    }
}

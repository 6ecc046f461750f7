//! The steps of a client, and its reactions to answers.
//!
//! Invariant: a guard vouches only for what the request sent for it allows. It ends, or becomes a reader, before the
//! request is sent, and counts from before its request was sent.

use super::state::{Client, Guard, LANES, Lane, Mode, Phase, Reply, Request, State, Terms};
use super::{Bounds, Rules};
use crate::lock::Holder;

impl Bounds {
    /// The terms of this client's requests.
    #[must_use]
    pub fn terms(&self, client: usize) -> Terms {
        Terms {
            lease: self.leases[client],
            heartbeat: self.heartbeat,
        }
    }

    /// The longest lease of all.
    #[must_use]
    pub fn longest(&self) -> u8 {
        self.leases.into_iter().max().unwrap_or(0)
    }
}

impl State {
    /// The holder id of what this client is about.
    #[must_use]
    pub(super) fn current(&self, client: usize) -> Holder {
        Holder {
            client: client as u8,
            number: self.clients[client].attempts,
        }
    }

    /// A new attempt.
    pub(super) fn ask(&mut self, bounds: &Bounds, client: usize, mode: Mode) {
        // Runs without an end give all attempts one number, so that they come back to where they were.
        if !bounds.is_endless {
            self.clients[client].attempts += 1;
            self.attempts -= 1;
        }
        self.send_attempt(client, mode);
    }

    /// The next attempt of a waiter.
    pub(super) fn poll(&mut self, client: usize) {
        if let Phase::Waiting { mode, .. } = self.clients[client].phase {
            self.send_attempt(client, mode);
        }
    }

    fn send_attempt(&mut self, client: usize, mode: Mode) {
        self.clients[client].phase = Phase::Asking {
            mode,
            age: 0,
            is_notified: false,
        };
        self.send(client, Lane::Command, |holder| {
            Request::Acquire(holder, mode)
        });
    }

    fn send(&mut self, client: usize, lane: Lane, request: impl FnOnce(Holder) -> Request) {
        let request = request(self.current(client));
        self.clients[client].lane(lane).requests.push(request);
    }

    /// The caller drops its attempt.
    pub(super) fn abandon(&mut self, rules: &Rules, client: usize) {
        self.clients[client].phase = Phase::Idle;
        if rules.attempt_is_undone {
            self.send(client, Lane::Command, Request::Release);
        }
    }

    pub(super) fn renew(&mut self, client: usize) {
        self.clients[client].renewal = Some(0);
        self.send(client, Lane::Renewal, Request::Renew);
    }

    /// The guard is released.
    pub(super) fn release(&mut self, client: usize) {
        self.clients[client].phase = Phase::Idle;
        self.clients[client].renewal = None;
        self.send(client, Lane::Command, Request::Release);
    }

    /// The writer becomes a reader.
    pub(super) fn downgrade(&mut self, rules: &Rules, client: usize) {
        let Phase::Held(guard) = &mut self.clients[client].phase else {
            return;
        };
        guard.is_downgraded = true;
        if rules.writer_ends_before_downgrade {
            guard.mode = Mode::Read;
        }
        if rules.downgrade_is_one_step {
            self.send(client, Lane::Command, Request::Downgrade);
        } else {
            self.send(client, Lane::Command, Request::Release);
            self.send(client, Lane::Command, |holder| {
                Request::Acquire(holder, Mode::Read)
            });
        }
    }

    /// The local deadline has passed, or the server has no such hold.
    pub(super) fn lose(&mut self, client: usize) {
        let client = &mut self.clients[client];
        if !client.lost.contains(&client.attempts) {
            client.lost.push(client.attempts);
        }
        client.phase = Phase::Idle;
        client.renewal = None;
    }

    /// The process ends. Requests under way are lost: their execution would have been an earlier step.
    pub(super) fn crash(&mut self, client: usize) {
        let client = &mut self.clients[client];
        *client = Client {
            phase: Phase::Dead { ticks: 0 },
            attempts: client.attempts,
            ..Client::new()
        };
    }

    /// Applies an answer to the client.
    pub(super) fn take_reply(&mut self, bounds: &Bounds, rules: &Rules, at: usize, reply: Reply) {
        let current = self.current(at);
        let lease = bounds.leases[at];
        let client = &mut self.clients[at];
        match (reply, &mut client.phase) {
            (Reply::Granted(holder), Phase::Asking { mode, age, .. }) if holder == current => {
                let late = if rules.grant_counts_from_sending {
                    *age
                } else {
                    0
                };
                client.phase = Phase::Held(Guard {
                    mode: *mode,
                    left: lease - late.min(lease),
                    worked: 0,
                    is_downgraded: false,
                });
            }
            (
                Reply::Refused(holder),
                Phase::Asking {
                    mode, is_notified, ..
                },
            ) if holder == current => {
                client.phase = Phase::Waiting {
                    mode: *mode,
                    has_polled: !*is_notified,
                };
            }
            (Reply::Downgraded(holder, is_his), Phase::Held(guard)) if holder == current => {
                guard.mode = Mode::Read;
                if !is_his {
                    self.lose(at);
                }
            }
            (Reply::Renewed(holder, is_renewed), Phase::Held(guard)) if holder == current => {
                let Some(age) = client.renewal.take() else {
                    return;
                };
                if !is_renewed {
                    self.lose(at);
                } else if guard.left > 0 {
                    guard.left = guard.left.max(lease - age.min(lease));
                }
            }
            _ => {}
        }
    }

    /// One tick of the clocks of the clients.
    pub(super) fn tick_clients(&mut self, bounds: &Bounds) {
        let longest = bounds.longest();
        let older = |age: u8| (age + 1).min(longest);
        for client in &mut self.clients {
            match &mut client.phase {
                Phase::Asking { age, .. } => *age = older(*age),
                Phase::Waiting { has_polled, .. } => *has_polled = !bounds.is_endless,
                Phase::Held(guard) => {
                    guard.left = guard.left.saturating_sub(1);
                    guard.worked = (guard.worked + 1).min(bounds.work.unwrap_or(0));
                }
                Phase::Dead { ticks } => *ticks = (*ticks + 1).min(longest + 1),
                Phase::Idle => {}
            }
            if let Some(age) = &mut client.renewal {
                *age = older(*age);
            }
        }
    }

    /// Forgets lost holds that are no longer at the server.
    pub(super) fn forget_lost(&mut self) {
        let server = &self.server;
        for (at, client) in self.clients.iter_mut().enumerate() {
            let is_silent = client.is_silent();
            client.lost.retain(|number| {
                let client = at as u8;
                let number = *number;
                !is_silent || server.has(Holder { client, number })
            });
        }
    }

    /// Executes what comes first on a connection.
    pub(super) fn execute(&mut self, bounds: &Bounds, rules: &Rules, client: usize, lane: Lane) {
        let request = self.clients[client].lane(lane).requests.remove(0);
        let reply = self.server.execute(bounds.terms(client), rules, request);
        if let (Request::Acquire(_, Mode::Write), Reply::Refused(_)) = (request, reply) {
            let server = &self.server;
            let is_held = server.writer.is_some() || server.is_read();
            self.is_kept_out_by_dead |= !is_held && !server.is_readers_turn;
        }
        if bounds.is_endless && matches!(request, Request::Release(_) | Request::Downgrade(_)) {
            // Others may enter: who waits is notified, and asks again.
            for client in &mut self.clients {
                match &mut client.phase {
                    Phase::Waiting { has_polled, .. } => *has_polled = false,
                    Phase::Asking { is_notified, .. } => *is_notified = true,
                    _ => {}
                }
            }
        }
        // A process that is gone reads nothing.
        if !matches!(self.clients[client].phase, Phase::Dead { .. }) {
            self.clients[client].lane(lane).replies.push(reply);
        }
    }

    /// Whether nothing is on its way.
    pub(super) fn is_silent(&self) -> bool {
        self.clients.iter().all(Client::is_silent)
    }

    /// Whether a connection of this client has something for one of its ends.
    pub(super) fn lanes(&self, client: usize) -> impl Iterator<Item = (Lane, bool, bool)> + '_ {
        LANES.into_iter().map(move |lane| {
            let connection = &self.clients[client].connections[lane as usize];
            let has = |is_empty: bool| !is_empty;
            (
                lane,
                has(connection.requests.is_empty()),
                has(connection.replies.is_empty()),
            )
        })
    }
}

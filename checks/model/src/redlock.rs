//! One lock on three servers; two of them are a majority.
//!
//! Invariants (the properties): no two guards are valid at once; what is lost stays lost. The first one depends on
//! a rule about restarts: a server that came back without its data has no vote for the time of a lease.
//!
//! Three simplifications keep it small, and none hides a violation. A release is executed at once, which lets others in
//! as early as can be, and takes along what was still on its way: that could only keep others out. An answer is read
//! when its round ends. And the servers are interchangeable, so they are kept in order.

use stateright::{Model, Property};

use crate::lock::{EXCLUSION, FINAL};

const SERVERS: usize = 3;
const CLIENTS: usize = 2;

/// Which rules are kept.
#[allow(clippy::struct_excessive_bools, reason = "each is a switch of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// A server that has been up for less than a lease has no vote.
    pub restarted_server_has_no_vote: bool,
    /// A guard is valid while two servers of three count, not one.
    pub majority_counts: bool,
    /// Validity is counted from before the round, not from its last answer.
    pub round_counts_from_sending: bool,
    /// The server renews a lock only for its holder.
    pub renewal_checks_holder: bool,
    /// A guard whose majority was gone for a moment is lost, though a renewal is answered later.
    pub lost_is_final: bool,
    /// A failed round is released at every server.
    pub round_in_vain_is_released: bool,
}

impl Rules {
    /// The protocol as it is.
    pub const ALL: Self = Self {
        restarted_server_has_no_vote: true,
        majority_counts: true,
        round_counts_from_sending: true,
        renewal_checks_holder: true,
        lost_is_final: true,
        round_in_vain_is_released: true,
    };
}

/// Of a client, as its position; and the number of its round.
pub type Holder = (u8, u8);

/// A client's knowledge of one server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum View {
    /// Nothing.
    Nothing,
    /// It was asked for its vote.
    Asked,
    /// It has answered.
    Voted(bool),
    /// It counts until its lease is over by the clock of the client.
    Member {
        /// The rest of its lease.
        left: u8,
        /// The renewal under way.
        renewal: Renewal,
    },
}

/// A renewal at one server, and how long ago it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Renewal {
    /// None is under way.
    No,
    /// It is on its way there.
    Sent(u8),
    /// It was executed, with this answer.
    Done(u8, bool),
}

/// The state of a server, and the clients' knowledge of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Server {
    /// The client that has its vote.
    pub holder: Option<Holder>,
    /// The rest of that lease.
    pub left: u8,
    /// For how long it has been up: at most a lease.
    pub up: u8,
    /// By client.
    pub views: [View; CLIENTS],
}

/// The phase of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It wants nothing.
    Idle,
    /// A round is under way, and began this long ago.
    Round(u8),
    /// It has a guard.
    Held {
        /// The majority was gone for a moment.
        is_lost: bool,
    },
}

/// The whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// In order.
    pub servers: [Server; SERVERS],
    /// The phase of each client, and the number of its last round.
    pub clients: [(Phase, u8); CLIENTS],
    /// How many more rounds may begin.
    pub rounds: u8,
    /// How many more restarts may happen.
    pub restarts: u8,
    /// A guard was valid again after its majority was gone.
    pub is_revived: bool,
}

/// One step of a client or a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A client begins a round.
    Begin(usize),
    /// It reads the votes: a guard, or a failed round.
    End(usize),
    /// A server executes the attempt of a client.
    Vote(usize, usize),
    /// A guard asks one server for a longer lease.
    Renew(usize, usize),
    /// The server executes that.
    ExecuteRenewal(usize, usize),
    /// The client reads the answer.
    ReadRenewal(usize, usize),
    /// A guard is released.
    Release(usize),
    /// A server restarts without its data.
    Restart(usize),
}

/// The model.
#[derive(Clone, Debug)]
pub struct Redlock {
    /// How many rounds begin in all.
    pub rounds: u8,
    /// How many servers restart in all.
    pub restarts: u8,
    /// How long a lease is, in ticks.
    pub lease: u8,
    /// Whether guards are renewed.
    pub is_renewed: bool,
    /// Which rules are kept.
    pub rules: Rules,
}

impl Rules {
    fn majority(&self) -> usize {
        SERVERS / 2 + usize::from(self.majority_counts)
    }
}

impl State {
    fn members(&self, client: usize) -> usize {
        let counts = |server: &&Server| matches!(server.views[client], View::Member { left, .. } if left > 0);
        self.servers.iter().filter(counts).count()
    }

    fn is_valid(&self, rules: &Rules, client: usize) -> bool {
        let Phase::Held { is_lost } = self.clients[client].0 else {
            return false;
        };
        self.members(client) >= rules.majority() && !(is_lost && rules.lost_is_final)
    }

    /// Its round is over, and so is what the servers have of it.
    fn release(&mut self, client: usize, at_servers: bool) {
        let holder = (client as u8, self.clients[client].1);
        self.clients[client].0 = Phase::Idle;
        for server in &mut self.servers {
            server.views[client] = View::Nothing;
            if at_servers && server.holder == Some(holder) {
                (server.holder, server.left) = (None, 0);
            }
        }
    }
}

impl Server {
    fn tick(&mut self, lease: u8) {
        self.up = (self.up + 1).min(lease);
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.holder = None;
        }
        for view in &mut self.views {
            if let View::Member { left, renewal } = view {
                *left = left.saturating_sub(1);
                match renewal {
                    Renewal::No => {}
                    Renewal::Sent(age) | Renewal::Done(age, _) => *age = (*age + 1).min(lease),
                }
            }
        }
    }
}

impl Redlock {
    /// With all rules, without renewals.
    #[must_use]
    pub fn new(rounds: u8, restarts: u8) -> Self {
        Self {
            rounds,
            restarts,
            lease: 2,
            is_renewed: false,
            rules: Rules::ALL,
        }
    }

    fn tick(&self, state: &mut State) {
        for server in &mut state.servers {
            server.tick(self.lease);
        }
        for (phase, _) in &mut state.clients {
            if let Phase::Round(age) = phase {
                *age = (*age + 1).min(self.lease);
            }
        }
    }

    fn vote(&self, server: &mut Server, holder: Holder) {
        let has_vote = server.up >= self.lease || !self.rules.restarted_server_has_no_vote;
        let is_granted = has_vote && server.holder.is_none();
        if is_granted {
            (server.holder, server.left) = (Some(holder), self.lease);
        }
        server.views[usize::from(holder.0)] = View::Voted(is_granted);
    }

    fn execute_renewal(&self, server: &mut Server, holder: Holder) {
        let is_his = server.holder == Some(holder);
        let is_renewed = is_his || (!self.rules.renewal_checks_holder && server.holder.is_some());
        if is_renewed {
            server.left = self.lease;
        }
        if let View::Member { renewal, .. } = &mut server.views[usize::from(holder.0)]
            && let Renewal::Sent(age) = *renewal
        {
            *renewal = Renewal::Done(age, is_renewed);
        }
    }

    fn read_renewal(&self, state: &mut State, client: usize, server: usize) {
        let was_valid = state.is_valid(&self.rules, client);
        if let View::Member { left, renewal } = &mut state.servers[server].views[client]
            && let Renewal::Done(age, is_renewed) = std::mem::replace(renewal, Renewal::No)
        {
            let longer = (*left).max(self.lease - age);
            *left = if is_renewed { longer } else { 0 };
        }
        state.is_revived |= !was_valid && state.is_valid(&self.rules, client);
    }

    /// A guard, if the votes are enough and their time is not over.
    fn end_round(&self, state: &mut State, client: usize) {
        let Phase::Round(age) = state.clients[client].0 else {
            return;
        };
        let late = if self.rules.round_counts_from_sending {
            age
        } else {
            0
        };
        for server in &mut state.servers {
            let is_granted = server.views[client] == View::Voted(true);
            server.views[client] = View::Member {
                left: if is_granted { self.lease - late } else { 0 },
                renewal: Renewal::No,
            };
        }
        if state.members(client) >= self.rules.majority() {
            state.clients[client].0 = Phase::Held { is_lost: false };
        } else {
            state.release(client, self.rules.round_in_vain_is_released);
        }
    }

    fn step(&self, next: &mut State, action: Action) {
        match action {
            Action::Tick => self.tick(next),
            Action::Begin(client) => {
                next.rounds -= 1;
                next.clients[client].0 = Phase::Round(0);
                next.clients[client].1 += 1;
                for server in &mut next.servers {
                    server.views[client] = View::Asked;
                }
            }
            Action::End(client) => self.end_round(next, client),
            Action::Vote(client, server) => {
                let holder = (client as u8, next.clients[client].1);
                self.vote(&mut next.servers[server], holder);
            }
            Action::Renew(client, server) => {
                if let View::Member { renewal, .. } = &mut next.servers[server].views[client] {
                    *renewal = Renewal::Sent(0);
                }
            }
            Action::ExecuteRenewal(client, server) => {
                let holder = (client as u8, next.clients[client].1);
                self.execute_renewal(&mut next.servers[server], holder);
            }
            Action::ReadRenewal(client, server) => self.read_renewal(next, client, server),
            Action::Release(client) => next.release(client, true),
            Action::Restart(server) => {
                next.restarts -= 1;
                let server = &mut next.servers[server];
                (server.holder, server.left, server.up) = (None, 0, 0);
            }
        }
        for client in 0..CLIENTS {
            let is_short = next.members(client) < self.rules.majority();
            if let Phase::Held { is_lost } = &mut next.clients[client].0 {
                *is_lost |= is_short;
            }
        }
        next.servers.sort_unstable();
    }

    fn client_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        match state.clients[at].0 {
            Phase::Idle if state.rounds > 0 => actions.push(Action::Begin(at)),
            Phase::Idle => {}
            Phase::Round(_) => actions.push(Action::End(at)),
            Phase::Held { .. } => actions.push(Action::Release(at)),
        }
        for (number, server) in state.servers.iter().enumerate() {
            match server.views[at] {
                View::Asked => actions.push(Action::Vote(at, number)),
                View::Member {
                    renewal: Renewal::No,
                    left,
                } if self.is_renewed && left > 0 => {
                    actions.push(Action::Renew(at, number));
                }
                View::Member {
                    renewal: Renewal::Sent(_),
                    ..
                } => {
                    actions.push(Action::ExecuteRenewal(at, number));
                }
                View::Member {
                    renewal: Renewal::Done(..),
                    ..
                } => {
                    actions.push(Action::ReadRenewal(at, number));
                }
                _ => {}
            }
        }
    }
}

impl Model for Redlock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let server = Server {
            holder: None,
            left: 0,
            up: self.lease,
            views: [View::Nothing; CLIENTS],
        };
        vec![State {
            servers: [server; SERVERS],
            clients: [(Phase::Idle, 0); CLIENTS],
            rounds: self.rounds,
            restarts: self.restarts,
            is_revived: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for client in 0..CLIENTS {
            self.client_actions(state, client, actions);
        }
        if state.restarts > 0 {
            actions.extend((0..SERVERS).map(Action::Restart));
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |model: &Self, state: &State| {
                let valid = (0..CLIENTS).filter(|client| state.is_valid(&model.rules, *client));
                valid.count() <= 1
            }),
            Property::always(FINAL, |_, state: &State| !state.is_revived),
            Property::sometimes(LAST, |model: &Self, state: &State| {
                let mut clients = 0..CLIENTS;
                state.rounds == 0 && clients.any(|client| state.is_valid(&model.rules, client))
            }),
        ]
    }
}

/// Something happens at all.
pub const LAST: &str = "the last round is granted";

//! One lock on one server, and the clients that want it.
//!
//! Invariants (the properties): no two guards are valid at once; a valid guard is the holder at the server; tokens rise
//! from valid guard to valid guard; a lost guard is never valid again; the server has no hold without an owner, except
//! the holds of dead clients and lost guards until their leases end; a fair lock is granted in the order of its queue.

mod client;
mod rules;
mod server;
mod state;

pub use rules::Rules;
pub use state::{
    Client, Connection, Guard, Holder, LANES, Lane, Phase, Place, Reply, Request, Server, State,
};

use stateright::{Model, Property};

/// How large a model is.
#[allow(
    clippy::struct_excessive_bools,
    reason = "each is a question of its own"
)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many clients there are.
    pub clients: u8,
    /// How many attempts they begin in all, a retry of a waiter not counted.
    pub attempts: u8,
    /// How many faults happen in all.
    pub faults: u8,
    /// How long a lease is, in ticks.
    pub lease: u8,
    /// How long a place in a queue lasts after a poll, in ticks.
    pub heartbeat: u8,
    /// How many hand-offs in a row there are at most.
    pub handoffs: u8,
    /// Whether there is a queue at the server.
    pub is_fair: bool,
    /// Whether grants have tokens.
    pub is_fenced: bool,
    /// After how many ticks a task is done with its guard; `None`: whenever it likes.
    pub work: Option<u8>,
    /// Which faults there are.
    pub kinds: Faults,
}

/// Which faults may happen. A delay or a pause needs none: every step may come late.
#[allow(clippy::struct_excessive_bools, reason = "each is a fault of its own")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// A connection breaks, and what has no answer is sent again: calls and answers are lost or doubled.
    pub cut: bool,
    /// A process ends without a word.
    pub crash: bool,
    /// The server restarts with its data.
    pub restart: bool,
    /// The server restarts without them.
    pub data_loss: bool,
    /// The user may not kill connections, so what was sent on one that was replaced may arrive late.
    pub late: bool,
}

impl Faults {
    /// All that leave the promise of exclusion standing.
    pub const WITHOUT_DATA_LOSS: Self = Self {
        cut: true,
        crash: true,
        restart: true,
        data_loss: false,
        late: false,
    };
}

impl Bounds {
    /// Two clients, three attempts, one fault.
    pub const SMALL: Self = Self {
        clients: 2,
        attempts: 3,
        faults: 1,
        lease: 2,
        heartbeat: 2,
        handoffs: 0,
        is_fair: false,
        is_fenced: true,
        work: None,
        kinds: Faults::WITHOUT_DATA_LOSS,
    };
}

/// The model.
#[derive(Clone, Debug)]
pub struct Lock {
    /// How large it is.
    pub bounds: Bounds,
    /// Which rules are kept.
    pub rules: Rules,
}

/// One step of a client, a server or a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes for everybody.
    Tick,
    /// Time passes for all but the clock of this client.
    TickWithout(usize),
    /// A client makes an attempt, the next one if it waits.
    Ask(usize),
    /// Its call is dropped or its time is over.
    Abandon(usize),
    /// The server executes what comes first on a connection.
    Execute(usize, Lane),
    /// The server executes what came late.
    ExecuteLate(usize),
    /// A client reads what comes first on a connection.
    Read(usize, Lane),
    /// The watchdog sends a renewal.
    Renew(usize),
    /// The guard is released or dropped.
    Release(usize),
    /// The next task of this client has it.
    HandOff(usize),
    /// The local deadline is noticed.
    Lose(usize),
    /// A connection breaks and is replaced.
    Cut(usize, Lane),
    /// The process of a client ends.
    Crash(usize),
    /// The server restarts, with its data or without.
    Restart(bool),
}

impl Action {
    /// Whether it is a fault.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(self, Self::Cut(..) | Self::Crash(_) | Self::Restart(_))
    }

    /// Whether a client begins something new with it.
    #[must_use]
    pub fn begins(&self, state: &State) -> bool {
        matches!(self, Self::Ask(client) if state.clients[*client].phase == Phase::Idle)
    }
}

impl Lock {
    /// With all rules.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let rules = Rules {
            connection_is_killed_before_next: !bounds.kinds.late,
            ..Rules::ALL
        };
        Self { bounds, rules }
    }

    fn client_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[at];
        match client.phase {
            Phase::Dead => return,
            Phase::Idle if state.attempts > 0 => actions.push(Action::Ask(at)),
            Phase::Idle => {}
            Phase::Asking { .. } => actions.push(Action::Abandon(at)),
            Phase::Waiting { .. } => actions.extend([Action::Ask(at), Action::Abandon(at)]),
            Phase::Held(guard) => self.guard_actions(client, at, guard, actions),
        }
        for lane in LANES {
            if !client.connections[lane as usize].replies.is_empty() {
                actions.push(Action::Read(at, lane));
            }
            if self.bounds.kinds.cut && state.faults > 0 && client.is_used(lane) {
                actions.push(Action::Cut(at, lane));
            }
        }
        if self.bounds.kinds.crash && state.faults > 0 && client.attempts > 0 {
            actions.push(Action::Crash(at));
        }
    }

    fn guard_actions(&self, client: &Client, at: usize, guard: Guard, actions: &mut Vec<Action>) {
        if guard.is_releasing {
            return;
        }
        if guard.left == 0 {
            // A release too reads the clock first.
            actions.push(Action::Lose(at));
            return;
        }
        actions.push(Action::Release(at));
        if client.renewal.is_none() {
            actions.push(Action::Renew(at));
        }
        // Less than half a lease left, or a renewal in doubt: no hand-off.
        if guard.handoffs < self.bounds.handoffs && guard.left * 2 >= self.bounds.lease {
            actions.push(Action::HandOff(at));
        }
    }

    /// A task that is done with its guard does not keep it.
    fn may_tick(&self, state: &State) -> bool {
        let is_done = |client: &Client| {
            matches!(client.phase, Phase::Held(guard)
                if guard.left > 0 && Some(guard.worked) >= self.bounds.work)
        };
        self.bounds.work.is_none() || !state.clients.iter().any(is_done)
    }

    fn step(&self, next: &mut State, action: Action) {
        let (bounds, rules) = (&self.bounds, &self.rules);
        next.faults -= u8::from(action.is_fault());
        match action {
            Action::Tick => {
                next.tick_server(rules);
                next.tick_clients(bounds, None);
            }
            Action::TickWithout(client) => {
                next.tick_server(rules);
                next.tick_clients(bounds, Some(client));
            }
            Action::Ask(client) => next.ask(rules, client),
            Action::Abandon(client) => next.abandon(bounds, rules, client),
            Action::Execute(client, lane) => {
                let request = next.clients[client].lane(lane).requests.remove(0);
                let reply = next.execute(bounds, rules, request);
                next.clients[client].lane(lane).replies.push(reply);
            }
            Action::ExecuteLate(at) => {
                let request = next.late.remove(at);
                next.execute(bounds, rules, request);
            }
            Action::Read(client, lane) => {
                let reply = next.clients[client].lane(lane).replies.remove(0);
                next.take_reply(bounds, rules, client, reply);
            }
            Action::Renew(client) => next.renew(rules, client),
            Action::Release(client) => next.release(rules, client),
            Action::HandOff(client) => next.hand_off(rules, client),
            Action::Lose(client) => next.lose(client),
            Action::Cut(client, lane) => next.reconnect(rules, client, lane),
            Action::Crash(client) => next.crash(client),
            Action::Restart(with_data) => next.restart(rules, with_data),
        }
        next.forget_lost();
        // A process that is gone reads nothing.
        for client in next
            .clients
            .iter_mut()
            .filter(|client| client.phase == Phase::Dead)
        {
            for lane in LANES {
                client.lane(lane).replies.clear();
            }
        }
    }
}

/// No two guards are valid at once.
pub const EXCLUSION: &str = "no two guards are valid at once";
/// A valid guard is the holder at the server, for at least as long.
pub const HOLDER: &str = "a valid guard is the holder at the server";
/// Tokens rise from valid guard to valid guard.
pub const TOKENS: &str = "tokens rise";
/// A lost guard is never valid again.
pub const FINAL: &str = "what is lost stays lost";
/// The next renewal reports a hold that the server has forgotten.
pub const GONE: &str = "what the server has forgotten is not renewed";
/// The server has no hold without an owner.
pub const NO_LEAK: &str = "what nobody has is not at the server";
/// No live waiter in the queue is passed over.
pub const ORDER: &str = "the queue is served in order";

/// Something happens at all.
pub const SECOND: &str = "a second grant is valid";

fn is_leaked(state: &State) -> bool {
    let Some(holder) = state.server.holder else {
        return false;
    };
    let client = &state.clients[usize::from(holder.client)];
    client.is_done() && !client.lost.contains(&holder.number)
}

fn is_holder(state: &State, at: usize) -> bool {
    match state.clients[at].phase {
        Phase::Held(guard) if guard.left > 0 => {
            let holder = state.server.holder;
            holder.is_some_and(|holder| usize::from(holder.client) == at)
                && state.server.left >= guard.left
        }
        _ => true,
    }
}

impl Model for Lock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            clients: vec![Client::new(); self.bounds.clients.into()],
            late: Vec::new(),
            attempts: self.bounds.attempts,
            faults: self.bounds.faults,
            top_token: 0,
            is_token_reused: false,
            is_renewed_in_vain: false,
            is_revived: false,
            is_overtaken: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.may_tick(state) {
            actions.push(Action::Tick);
        }
        for (at, client) in state.clients.iter().enumerate() {
            self.client_actions(state, at, actions);
            for lane in LANES {
                if !client.connections[lane as usize].requests.is_empty() {
                    actions.push(Action::Execute(at, lane));
                }
            }
            if !self.rules.clock_runs_while_paused && client.is_valid() {
                actions.push(Action::TickWithout(at));
            }
        }
        actions.extend((0..state.late.len()).map(Action::ExecuteLate));
        if state.faults > 0 {
            if self.bounds.kinds.restart {
                actions.push(Action::Restart(true));
            }
            if self.bounds.kinds.data_loss {
                actions.push(Action::Restart(false));
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always(TOKENS, |_, state: &State| !state.is_token_reused),
            Property::always(FINAL, |_, state: &State| !state.is_revived),
            Property::always(GONE, |_, state: &State| !state.is_renewed_in_vain),
            Property::always(ORDER, |_, state: &State| !state.is_overtaken),
            Property::sometimes(SECOND, |model: &Self, state: &State| {
                state.top_token > 1 + model.bounds.handoffs
            }),
        ];
        if !self.bounds.kinds.data_loss {
            properties.push(Property::always(EXCLUSION, |_, state: &State| {
                state.clients.iter().filter(|each| each.is_valid()).count() <= 1
            }));
            properties.push(Property::always(HOLDER, |_, state: &State| {
                (0..state.clients.len()).all(|at| is_holder(state, at))
            }));
        }
        if !self.bounds.kinds.late {
            properties.push(Property::always(NO_LEAK, |_, state: &State| {
                !is_leaked(state)
            }));
        }
        properties
    }
}

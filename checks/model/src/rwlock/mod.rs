//! One read-write lock on one server, and the clients that read and write.
//!
//! Invariants (the properties): a valid writer is alone; a valid guard has its hold at the server; the server has no
//! hold without an owner; holds of dead clients are gone after a lease, even while others read on; dead readers keep no
//! writer out. The model of a plain [`lock`](crate::lock) has the broken connections.

mod client;
mod rules;
mod server;
mod state;

use stateright::{Model, Property};

pub use self::rules::Rules;
pub use self::state::{
    Client, Connection, Guard, LANES, Lane, Mode, Phase, Reader, Reply, Request, Server, State,
    Terms, Waiter,
};
pub use crate::lock::{EXCLUSION, HOLDER, Holder, NO_LEAK};

/// How large a model is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// How many clients there are.
    pub clients: u8,
    /// How many attempts they begin in all, without the attempts of waiters.
    pub attempts: u8,
    /// How many processes end in all.
    pub faults: u8,
    /// How long the lease of each client is, in ticks.
    pub leases: [u8; 3],
    /// For how long a refused caller is known to wait, in ticks.
    pub heartbeat: u8,
    /// After how many ticks a task is done with its guard; `None`: whenever it likes.
    pub work: Option<u8>,
    /// The last client writes, the others read, or the other way round; `None`: as they like.
    pub last: Option<Mode>,
    /// Attempts have no end, and time passes when nothing is left to do: for what may last for ever.
    pub is_endless: bool,
}

impl Bounds {
    /// Two clients, two attempts, no fault.
    pub const SMALL: Self = Self {
        clients: 2,
        attempts: 2,
        faults: 0,
        leases: [2; 3],
        heartbeat: 2,
        work: None,
        last: None,
        is_endless: false,
    };

    /// Two who want the same for ever, and a last one who wants the other.
    #[must_use]
    pub const fn endless(last: Mode) -> Self {
        Self {
            clients: 3,
            work: Some(1),
            last: Some(last),
            is_endless: true,
            ..Self::SMALL
        }
    }
}

/// The model.
#[derive(Clone, Debug)]
pub struct RwLock {
    /// How large it is.
    pub bounds: Bounds,
    /// Which rules are kept.
    pub rules: Rules,
}

/// One step of a client or the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Action {
    /// Time passes.
    Tick,
    /// A client makes an attempt.
    Ask(usize, Mode),
    /// A waiter makes the next one.
    Poll(usize),
    /// Its call is dropped or its time is over.
    Abandon(usize),
    /// The server executes what comes first on a connection.
    Execute(usize, Lane),
    /// A client reads what comes first on a connection.
    Read(usize, Lane),
    /// The watchdog sends a renewal.
    Renew(usize),
    /// A writer goes on as a reader.
    Downgrade(usize),
    /// The guard is released or dropped.
    Release(usize),
    /// The local deadline is noticed.
    Lose(usize),
    /// The process of a client ends.
    Crash(usize),
}

/// The hold of a dead client is gone after a lease.
pub const DEAD_ARE_GONE: &str = "what a dead client had is gone after a lease";
/// Dead readers keep no writer out.
pub const ALIVE: &str = "the dead keep no writer out";

/// Something happens at all.
pub const SHARED: &str = "two read at once, and one of them has written before";

impl RwLock {
    /// With all rules.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        let rules = Rules::ALL;
        Self { bounds, rules }
    }

    fn ask(&self, at: usize, actions: &mut Vec<Action>) {
        let is_last = at + 1 == usize::from(self.bounds.clients);
        for mode in [Mode::Read, Mode::Write] {
            if self
                .bounds
                .last
                .is_none_or(|last| (mode == last) == is_last)
            {
                actions.push(Action::Ask(at, mode));
            }
        }
    }

    fn client_actions(&self, state: &State, at: usize, actions: &mut Vec<Action>) {
        let client = &state.clients[at];
        let is_endless = self.bounds.is_endless;
        match client.phase {
            Phase::Dead { .. } => return,
            // A client whose release is under way may ask behind it.
            Phase::Idle if state.attempts > 0 => self.ask(at, actions),
            Phase::Idle => {}
            Phase::Asking { .. } | Phase::Waiting { .. } => {
                if let Phase::Waiting { has_polled, .. } = client.phase
                    && !(is_endless && has_polled)
                {
                    actions.push(Action::Poll(at));
                }
                if !is_endless {
                    actions.push(Action::Abandon(at));
                }
            }
            Phase::Held(guard) => self.guard_actions(client, at, guard, actions),
        }
        if state.faults > 0 && client.attempts > 0 {
            actions.push(Action::Crash(at));
        }
    }

    fn guard_actions(&self, client: &Client, at: usize, guard: Guard, actions: &mut Vec<Action>) {
        if guard.left == 0 {
            // A release too reads the clock first.
            actions.push(Action::Lose(at));
            return;
        }
        actions.push(Action::Release(at));
        if self.bounds.is_endless {
            return;
        }
        if client.renewal.is_none() {
            actions.push(Action::Renew(at));
        }
        if guard.mode == Mode::Write && !guard.is_downgraded {
            actions.push(Action::Downgrade(at));
        }
    }

    /// For runs without end: each waiter asks in time, is answered, and works for a bounded time.
    fn may_tick(&self, state: &State) -> bool {
        let is_done = |client: &Client| match client.phase {
            Phase::Held(guard) => Some(guard.worked) < self.bounds.work,
            Phase::Waiting { has_polled, .. } => has_polled,
            _ => true,
        };
        !self.bounds.is_endless || (state.is_silent() && state.clients.iter().all(is_done))
    }

    fn step(&self, next: &mut State, action: Action) {
        let (bounds, rules) = (&self.bounds, &self.rules);
        match action {
            Action::Tick => {
                next.server.tick();
                next.tick_clients(bounds);
            }
            Action::Ask(client, mode) => next.ask(bounds, client, mode),
            Action::Poll(client) => next.poll(client),
            Action::Abandon(client) => next.abandon(rules, client),
            Action::Execute(client, lane) => next.execute(bounds, rules, client, lane),
            Action::Read(client, lane) => {
                let reply = next.clients[client].lane(lane).replies.remove(0);
                next.take_reply(bounds, rules, client, reply);
            }
            Action::Renew(client) => next.renew(client),
            Action::Downgrade(client) => next.downgrade(rules, client),
            Action::Release(client) => next.release(client),
            Action::Lose(client) => next.lose(client),
            Action::Crash(client) => {
                next.faults -= 1;
                next.crash(client);
            }
        }
        next.forget_lost();
        let valid = || next.clients.iter().filter_map(Client::valid);
        let reads = valid().filter(|guard| guard.mode == Mode::Read).count();
        next.is_shared |= reads > 1 && valid().any(|guard| guard.is_downgraded);
    }
}

/// Whether a valid writer and another valid guard exist at once.
fn is_broken(state: &State) -> bool {
    let valid = || state.clients.iter().filter_map(Client::valid);
    valid().count() > 1 && valid().any(|guard| guard.mode == Mode::Write)
}

/// Whether the server has what its guard vouches for, for at least as long.
fn is_held(state: &State, at: usize) -> bool {
    let Some(guard) = state.clients[at].valid() else {
        return true;
    };
    let (server, me) = (&state.server, state.current(at));
    let reader = server.readers.iter().find(|reader| reader.holder == me);
    let is_writer = server.writer == Some(me);
    let is_reader =
        guard.mode == Mode::Read && reader.is_some_and(|reader| reader.left >= guard.left);
    // Until its downgrade is executed, a reader still writes there.
    (is_writer || is_reader) && server.left >= guard.left
}

/// The holders with a live entry at the server.
fn holders(server: &Server) -> impl Iterator<Item = Holder> + '_ {
    let readers = server.readers.iter().filter(|reader| reader.left > 0);
    server
        .writer
        .into_iter()
        .chain(readers.map(|reader| reader.holder))
}

fn is_leaked(state: &State, holder: Holder) -> bool {
    let client = &state.clients[usize::from(holder.client)];
    client.phase == Phase::Idle && client.is_silent() && !client.lost.contains(&holder.number)
}

fn is_long_dead(bounds: &Bounds, state: &State, holder: Holder) -> bool {
    let at = usize::from(holder.client);
    matches!(state.clients[at].phase, Phase::Dead { ticks } if ticks >= bounds.leases[at])
}

impl Model for RwLock {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            server: Server::default(),
            clients: vec![Client::new(); self.bounds.clients.into()],
            attempts: self.bounds.attempts,
            faults: self.bounds.faults,
            is_kept_out_by_dead: false,
            is_shared: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if self.may_tick(state) {
            actions.push(Action::Tick);
        }
        for at in 0..state.clients.len() {
            self.client_actions(state, at, actions);
            for (lane, has_request, has_reply) in state.lanes(at) {
                if has_request {
                    actions.push(Action::Execute(at, lane));
                }
                if has_reply {
                    actions.push(Action::Read(at, lane));
                }
            }
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(EXCLUSION, |_, state: &State| !is_broken(state)),
            Property::always(HOLDER, |_, state: &State| {
                (0..state.clients.len()).all(|at| is_held(state, at))
            }),
            Property::always(NO_LEAK, |_, state: &State| {
                !holders(&state.server).any(|holder| is_leaked(state, holder))
            }),
            Property::always(DEAD_ARE_GONE, |model: &Self, state: &State| {
                let bounds = &model.bounds;
                !holders(&state.server).any(|holder| is_long_dead(bounds, state, holder))
            }),
            Property::always(ALIVE, |_, state: &State| !state.is_kept_out_by_dead),
            Property::sometimes(SHARED, |_, state: &State| state.is_shared),
        ]
    }
}

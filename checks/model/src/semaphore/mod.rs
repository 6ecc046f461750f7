//! The permits of one semaphore on one server, and the clients that take them.
//!
//! Invariants (the properties): no more permits are valid than there are, each by the clock of its client; the server's
//! count is right; a valid guard has its permits at the server; the server has no permits without an owner; without a
//! fault, no waiter sleeps while what it wants is free; no live waiter of a fair semaphore is passed over.
//!
//! A client has one caller. Many callers of a client, and hand-offs between them, are in the library's own exploration
//! of its queue (`src/semaphore/queue/tests.rs`). An attempt takes or gives back all of its permits together.

pub mod cases;
mod client;
mod rules;
mod server;
mod state;

use stateright::{Model, Property};

pub use self::rules::{Bounds, Rules};
pub use self::server::{Place, Reply, Request, Server, Taken};
pub use self::state::{Client, Guard, Phase, Sent, State};
pub use crate::lock::{FINAL, HOLDER, NO_LEAK, ORDER};

/// No more permits are valid than there are.
pub const NO_OVER_ISSUE: &str = "no more permits are valid than there are";
/// The server counts right.
pub const COUNT: &str = "free and taken permits are all there are";
/// No wake-up is lost.
pub const AWAKE: &str = "without a fault nobody sleeps while its permits are free";
/// Something happens at all.
pub const LAST: &str = "the last call is granted";

/// The model.
#[derive(Clone, Debug)]
pub struct Semaphore {
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
    /// A call begins with an attempt.
    Call(usize),
    /// A waiter makes the next attempt, for a message.
    Wake(usize),
    /// It makes one because its time has come.
    Timer(usize),
    /// A waiter begins to listen.
    Subscribe(usize),
    /// Its call is dropped or its time is over.
    Abandon(usize),
    /// The server executes the first command of a lane that it has not.
    Execute(usize),
    /// A client reads the first reply.
    Read(usize),
    /// The watchdog sends a renewal, on a lane of its own.
    Renew(usize),
    /// The server executes it.
    ExecuteRenewal(usize),
    /// The client reads the reply.
    ReadRenewal(usize),
    /// The guard is released or dropped.
    Release(usize),
    /// Fault: the first reply is lost, and the command is sent again.
    LoseReply(usize),
    /// Fault: a command is lost or held back with a connection that is given up, and is sent again on the next one.
    HoldBack(usize),
    /// It arrives, if the connection was not killed.
    Arrive(usize),
    /// Fault: a message does not reach this client.
    LoseMessage(usize),
    /// Fault: its process ends.
    Crash(usize),
}

impl Action {
    /// Whether it is a fault.
    #[must_use]
    pub fn is_fault(&self) -> bool {
        matches!(
            self,
            Self::LoseReply(_) | Self::HoldBack(_) | Self::LoseMessage(_) | Self::Crash(_)
        )
    }
}

impl Semaphore {
    /// With all rules.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self {
            bounds,
            rules: Rules::ALL,
        }
    }
}

/// Whether a waiter listens, has heard nothing, and could have its permits.
fn sleeps_beside_free(state: &State, bounds: &Bounds) -> bool {
    let could = |(at, client): (u8, &Client)| {
        let sleeps = client.phase == Phase::Waiting && client.is_subscribed && !client.is_woken;
        let is_next = !bounds.is_fair || state.server.is_next(at);
        sleeps && is_next && state.server.free >= bounds.wants(at)
    };
    (0..).zip(&state.clients).any(could)
}

/// Whether each of these permits at the server has an owner, or ends by itself with the guard that had them.
fn is_owned(state: &State, taken: &Taken) -> bool {
    let client = &state.clients[usize::from(taken.by.0)];
    taken.left == 0 || client.owns(taken.by.1)
}

impl Model for Semaphore {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State::new(&self.bounds)]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        actions.push(Action::Tick);
        for client in 0..state.clients.len() {
            self.client_actions(state, client, actions);
            self.fault_actions(state, client, actions);
        }
    }

    fn next_state(&self, last: &State, action: Action) -> Option<State> {
        let mut next = last.clone();
        self.step(&mut next, action);
        let is_answered = next.faults == 0;
        for client in &mut next.clients {
            client.forget(is_answered, self.rules.lost_is_final);
        }
        (next != *last).then_some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NO_OVER_ISSUE, |model: &Self, state: &State| {
                let valid = (0..).zip(&state.clients);
                let valid = valid.filter(|(_, client)| client.is_valid(&model.rules));
                let valid: i8 = valid.map(|(at, _)| model.bounds.wants(at)).sum();
                valid <= model.bounds.total
            }),
            Property::always(COUNT, |model: &Self, state: &State| {
                state.server.total() == model.bounds.total
            }),
            Property::always(HOLDER, |model: &Self, state: &State| {
                (0..).zip(&state.clients).all(|(at, client)| {
                    let Phase::Held(guard) = client.phase else {
                        return true;
                    };
                    let mut taken = state.server.taken.iter();
                    !client.is_valid(&model.rules)
                        || taken.any(|taken| {
                            taken.by == (at, guard.attempt) && taken.left >= guard.left
                        })
                })
            }),
            Property::always(FINAL, |_, state: &State| !state.is_revived),
            Property::always(NO_LEAK, |model: &Self, state: &State| {
                // What arrives late ends with its lease.
                let is_owned = |taken| model.bounds.is_late || is_owned(state, taken);
                state.server.taken.iter().all(is_owned)
            }),
            Property::always(AWAKE, |model: &Self, state: &State| {
                // Where a place has ended, no message says so, but the timer of the next waiter.
                let is_excused = state.faults < model.bounds.faults || state.server.has_lapsed;
                is_excused || !sleeps_beside_free(state, &model.bounds)
            }),
            Property::always(ORDER, |_, state: &State| !state.server.is_unfair),
            Property::sometimes(LAST, |model: &Self, state: &State| {
                let mut clients = state.clients.iter();
                state.calls == 0 && clients.any(|client| client.is_valid(&model.rules))
            }),
        ]
    }
}

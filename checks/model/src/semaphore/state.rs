//! The state of a client, of its connection, and of the whole system.

use super::rules::{Bounds, Rules};
use super::server::{Reply, Request, Server};

/// A command whose reply the client has not read yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Sent {
    /// The command.
    pub request: Request,
    /// How long ago it was sent first, at most a lease.
    pub age: u8,
    /// The server has executed it.
    pub reply: Option<Reply>,
}

/// A guard, until it is released.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Guard {
    /// The attempt that got its permits.
    pub attempt: u8,
    /// The rest of its lease by the clock of the client.
    pub left: u8,
    /// It has been over.
    pub is_lost: bool,
}

/// The phase of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Phase {
    /// It wants nothing.
    Idle,
    /// An attempt is under way.
    Asking,
    /// It was refused, and waits.
    Waiting,
    /// It has permits.
    Held(Guard),
    /// Its process has ended.
    Dead,
}

/// One client with one caller.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Client {
    /// The phase of its call.
    pub phase: Phase,
    /// The number of the last attempt.
    pub attempt: u8,
    /// Whether it listens to messages.
    pub is_subscribed: bool,
    /// A message has come that no attempt has answered yet.
    pub is_woken: bool,
    /// Its commands, the next one first.
    pub lane: Vec<Sent>,
    /// The renewal under way.
    pub renewal: Option<Sent>,
    /// Commands of earlier connections that may arrive late.
    pub late: Vec<Request>,
}

/// The whole system.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct State {
    /// The server.
    pub server: Server,
    /// The clients.
    pub clients: Vec<Client>,
    /// How many more calls may begin.
    pub calls: u8,
    /// How many more faults may happen.
    pub faults: u8,
    /// A lost guard was valid again.
    pub is_revived: bool,
}

impl Sent {
    pub(super) fn new(request: Request) -> Self {
        Self {
            request,
            age: 0,
            reply: None,
        }
    }
}

impl Client {
    /// Whether its guard vouches for its permits.
    #[must_use]
    pub fn is_valid(&self, rules: &Rules) -> bool {
        match self.phase {
            Phase::Held(guard) => guard.left > 0 && !(guard.is_lost && rules.lost_is_final),
            _ => false,
        }
    }

    /// Whether it waits or asks.
    #[must_use]
    pub fn wants(&self) -> bool {
        matches!(self.phase, Phase::Asking | Phase::Waiting)
    }

    /// Whether a command under way, or to be repeated, gives these permits back.
    fn gives_back(&self, attempt: u8) -> bool {
        let release = Request::Release(attempt);
        self.lane
            .iter()
            .any(|sent| sent.request == release && sent.reply.is_none())
    }

    /// Whether it answers for permits of this attempt at the server.
    #[must_use]
    pub fn owns(&self, attempt: u8) -> bool {
        let has = match self.phase {
            Phase::Dead => true,
            Phase::Asking => attempt == self.attempt,
            Phase::Held(guard) => guard.attempt == attempt,
            Phase::Idle | Phase::Waiting => false,
        };
        has || self.gives_back(attempt)
    }

    /// Whether its caller still needs the reply to this command.
    fn needs(&self, sent: &Sent) -> bool {
        match (sent.request, self.phase) {
            (Request::Acquire(attempt), Phase::Asking) => attempt == self.attempt,
            (Request::Renew(attempt) | Request::Release(attempt), Phase::Held(guard)) => {
                attempt == guard.attempt
            }
            _ => false,
        }
    }

    /// Forgets everything that makes no difference. `is_answered`: no fault is left that loses a reply.
    pub(super) fn forget(&mut self, is_answered: bool, lost_is_final: bool) {
        while let Some(first) = self.lane.first()
            && first.reply.is_some()
            && (is_answered || self.phase == Phase::Dead)
            && !self.needs(first)
        {
            self.lane.remove(0);
        }
        let known = self.clone();
        for sent in self.lane.iter_mut().chain(&mut self.renewal) {
            if !known.needs(sent) || sent.reply == Some(Reply::Refused) {
                sent.age = 0;
            }
        }
        self.renewal
            .take_if(|sent| sent.reply.is_some() && !known.needs(sent));
        match &mut self.phase {
            Phase::Asking => {}
            Phase::Held(guard) => {
                self.attempt = 0;
                if guard.is_lost && lost_is_final {
                    guard.left = 0;
                }
            }
            _ => self.attempt = 0,
        }
    }

    pub(super) fn send(&mut self, request: Request) {
        self.lane.push(Sent::new(request));
    }
}

impl State {
    /// The first state: all permits are free.
    #[must_use]
    pub fn new(bounds: &Bounds) -> Self {
        let client = Client {
            phase: Phase::Idle,
            attempt: 0,
            is_subscribed: false,
            is_woken: false,
            lane: Vec::new(),
            renewal: None,
            late: Vec::new(),
        };
        Self {
            server: Server {
                free: bounds.total,
                taken: Vec::new(),
                queue: Vec::new(),
                has_lapsed: false,
                is_unfair: false,
            },
            clients: vec![client; bounds.sizes.len()],
            calls: bounds.calls,
            faults: bounds.faults,
            is_revived: false,
        }
    }

    /// Whether anything is left of this attempt of a client.
    pub(super) fn knows(&self, at: usize, attempt: u8) -> bool {
        let client = &self.clients[at];
        let lane = client.lane.iter().chain(&client.renewal);
        let mut sent = lane
            .map(|sent| sent.request)
            .chain(client.late.iter().copied());
        let names = |request| match request {
            Request::Acquire(number) | Request::Renew(number) | Request::Release(number) => {
                number == attempt
            }
            Request::Leave => false,
        };
        let mut taken = self.server.taken.iter();
        sent.any(names) || taken.any(|taken| taken.by == (at as u8, attempt))
    }

    /// A message reaches all who listen.
    pub(super) fn publish(&mut self) {
        for client in &mut self.clients {
            client.is_woken |= client.is_subscribed;
        }
    }
}

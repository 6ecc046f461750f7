//! The server: its permits, its queue, and the scripts as steps.

use super::rules::{Bounds, Rules};

/// A command, by the number of the attempt that it is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Request {
    /// Take the permits of this attempt.
    Acquire(u8),
    /// Lengthen their lease.
    Renew(u8),
    /// Give them back, if they are taken.
    Release(u8),
    /// Give up the place in the queue.
    Leave,
}

/// The permits of one attempt.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Taken {
    /// The client that asked, and the number of its attempt: the ids of the permits.
    pub by: (u8, u8),
    /// How many permits.
    pub permits: i8,
    /// The rest of their lease, or 0 until an attempt reclaims them.
    pub left: u8,
}

/// A place in the queue of a fair semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Place {
    /// Whose.
    pub client: u8,
    /// For how long it is kept.
    pub alive: u8,
}

/// The keys of a semaphore.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Server {
    /// The counter.
    pub free: i8,
    /// In order.
    pub taken: Vec<Taken>,
    /// In the order of arrival.
    pub queue: Vec<Place>,
    /// A waiter that is alive has lost its place, as it has not asked in time.
    pub has_lapsed: bool,
    /// A live waiter was passed over.
    pub is_unfair: bool,
}

/// The reply to a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reply {
    /// The permits are taken.
    Granted,
    /// There are not enough.
    Refused,
    /// Whether a renewal found its permits.
    Renewed(bool),
    /// It is done.
    Done,
}

impl Server {
    pub(super) fn tick(&mut self, rules: &Rules) {
        for taken in &mut self.taken {
            taken.left = taken.left.saturating_sub(1);
        }
        if rules.places_end {
            for place in &mut self.queue {
                place.alive = place.alive.saturating_sub(1);
                self.has_lapsed |= place.alive == 0;
            }
        }
    }

    /// How many permits there are, free and taken.
    #[must_use]
    pub fn total(&self) -> i8 {
        self.free + self.taken.iter().map(|taken| taken.permits).sum::<i8>()
    }

    /// Whether this client comes before all others with a live place.
    #[must_use]
    pub fn is_next(&self, client: u8) -> bool {
        let head = self.queue.iter().find(|place| place.alive > 0);
        head.is_none_or(|head| head.client == client)
    }

    /// Executes a command. Returns its reply, and whether it publishes.
    pub(super) fn execute(
        &mut self,
        client: u8,
        request: Request,
        bounds: &Bounds,
        rules: &Rules,
    ) -> (Reply, bool) {
        match request {
            Request::Acquire(attempt) => self.acquire(client, attempt, bounds, rules),
            Request::Renew(attempt) => {
                let lease = bounds.lease;
                let known = self.position((client, attempt));
                match known {
                    Some(at) => self.taken[at].left = self.taken[at].left.max(lease),
                    None if rules.renewal_is_of_taken => {}
                    None => self.take((client, attempt), bounds),
                }
                let is_renewed = known.is_some() || !rules.renewal_is_of_taken;
                (Reply::Renewed(is_renewed), false)
            }
            Request::Release(attempt) => {
                let removed = self.position((client, attempt));
                let removed = removed.map_or(0, |at| self.taken.remove(at).permits);
                let named = bounds.wants(client);
                let given = if rules.release_counts_what_it_removes {
                    removed
                } else {
                    named
                };
                self.free += given;
                (Reply::Done, rules.release_tells && given > 0)
            }
            Request::Leave => {
                let before = self.queue.len();
                self.queue.retain(|place| place.client != client);
                let has_left = self.queue.len() < before;
                (Reply::Done, rules.leaving_tells && has_left)
            }
        }
    }

    fn position(&self, by: (u8, u8)) -> Option<usize> {
        self.taken.iter().position(|taken| taken.by == by)
    }

    fn take(&mut self, by: (u8, u8), bounds: &Bounds) {
        self.taken.push(Taken {
            by,
            permits: bounds.wants(by.0),
            left: bounds.lease,
        });
        self.taken.sort_unstable();
    }

    fn acquire(
        &mut self,
        client: u8,
        attempt: u8,
        bounds: &Bounds,
        rules: &Rules,
    ) -> (Reply, bool) {
        let (by, wants) = ((client, attempt), bounds.wants(client));
        let known = self.position(by);
        if let Some(at) = known.filter(|_| rules.repeat_finds_its_permits) {
            self.taken[at].left = self.taken[at].left.max(bounds.lease);
            return (Reply::Granted, false);
        }
        let mut reclaimed = 0;
        if rules.ended_are_given_back {
            let ended = self.taken.iter().filter(|taken| taken.left == 0);
            reclaimed = ended.map(|taken| taken.permits).sum::<i8>();
            self.taken.retain(|taken| taken.left > 0);
            self.free += reclaimed;
        }
        let mut has_news = rules.reclaim_tells && reclaimed > 0;
        if bounds.is_fair {
            self.queue.retain(|place| place.alive > 0);
            match self.queue.iter_mut().find(|place| place.client == client) {
                Some(place) => place.alive = bounds.heartbeat,
                None => self.queue.push(Place {
                    client,
                    alive: bounds.heartbeat,
                }),
            }
        }
        let is_next = !bounds.is_fair || self.is_next(client);
        let is_enough = self.free >= wants || (!rules.all_or_none && self.free > 0);
        let goes = is_enough && (is_next || !rules.free_permits_go_to_head);
        if goes {
            self.is_unfair |= !is_next;
            self.free -= wants;
            if known.is_none() {
                self.take(by, bounds);
            }
            if bounds.is_fair {
                self.queue.retain(|place| place.client != client);
                has_news |= rules.rest_is_told && !self.queue.is_empty();
            }
        }
        let reply = if goes { Reply::Granted } else { Reply::Refused };
        (reply, has_news && self.free > 0)
    }
}

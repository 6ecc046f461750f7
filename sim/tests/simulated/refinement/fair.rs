//! Fair locks: who holds the lock and who waits, in order, and whether the caller was told that it holds it.

use lockset_model::lock::{Bounds, Holder, Place, Reply, Request, Rules, Server};

use super::{Line, Numbers, state_of};

/// A lock as the server has it: who holds it, and who waits, with whether its place is kept.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Lock<'a> {
    holder: Option<&'a str>,
    waiting: Vec<(&'a str, bool)>,
}

#[derive(Debug)]
struct Step<'a> {
    script: &'a str,
    holder: &'a str,
    takes_place: bool,
    is_granted: bool,
    before: Lock<'a>,
    after: Lock<'a>,
}

impl<'a> Lock<'a> {
    fn read(shown: &'a str) -> Self {
        let (holder, waiting) = shown.split_once('#').expect("both");
        let waiting = waiting.split_terminator(',');
        Self {
            holder: (holder != "-").then_some(holder),
            waiting: waiting
                .map(|one| match one.strip_suffix('!') {
                    Some(over) => (over, false),
                    None => (one, true),
                })
                .collect(),
        }
    }

    /// Those whose places are over may be anywhere, or gone.
    fn alive(mut self) -> Self {
        self.waiting.retain(|(_, is_kept)| *is_kept);
        self
    }
}

impl<'a> Step<'a> {
    fn read(line: &Line<'a>) -> Self {
        Self {
            script: line.step,
            holder: line.holder,
            takes_place: line.detail != "0",
            is_granted: line.is_granted,
            before: Lock::read(line.before),
            after: Lock::read(line.after),
        }
    }

    /// Returns the model's result, and whether it grants the caller the lock.
    fn by_model(&self, before: &Lock<'a>) -> (Lock<'a>, bool) {
        let waiting = before.waiting.iter().map(|(one, _)| *one);
        let known = Numbers::of(
            [self.holder]
                .into_iter()
                .chain(before.holder)
                .chain(waiting),
        );
        let number = |one: &str| Holder {
            client: known.of_name(one),
            number: 0,
        };
        let places = before.waiting.iter().map(|(one, is_kept)| Place {
            holder: number(one),
            left: u8::from(*is_kept),
        });
        let server = Server {
            holder: before.holder.map(number),
            left: u8::from(before.holder.is_some()),
            queue: places.collect(),
            ..Server::default()
        };
        let mut state = state_of(server, known.len());
        let is_release = self.script == "fair_release";
        let bounds = Bounds {
            lease: 1,
            heartbeat: 1,
            is_fair: is_release || self.takes_place,
            is_fenced: false,
            ..Bounds::SMALL
        };
        let me = number(self.holder);
        let request = if is_release {
            Request::Release(me)
        } else {
            Request::Acquire(me)
        };
        let reply = state.execute(&bounds, &Rules::ALL, request);
        let name = |holder: Holder| known.name(holder.client);
        let queue = state.server.queue.iter();
        let after = Lock {
            holder: state.server.holder.map(name),
            waiting: queue
                .map(|place| (name(place.holder), place.left > 0))
                .collect(),
        };
        (after, matches!(reply, Reply::Granted(..)))
    }

    /// Why it is no step of the model.
    fn refused(&self) -> Option<String> {
        let mut allowed = vec![self.by_model(&self.before)];
        // A caller whose place was over keeps it, or comes last.
        allowed.push(self.by_model(&self.before.clone().alive()));
        if self.script == "fair_release" {
            // A waiter that the message does not reach, or with little time left, has to ask: the lock is free.
            let mut free = self.before.clone().alive();
            free.waiting.retain(|(one, _)| *one != self.holder);
            if free.holder == Some(self.holder) {
                free.holder = None;
            }
            // A waiter that leaves the head of a free lock's queue hands the lock over to the next one, as a holder
            // does.
            let was_head = self
                .before
                .clone()
                .alive()
                .waiting
                .first()
                .map(|(one, _)| *one);
            if self.before.holder.is_none()
                && was_head == Some(self.holder)
                && let Some((next, _)) = free.waiting.first().copied()
            {
                let mut handed_over = free.clone();
                handed_over.waiting.remove(0);
                handed_over.holder = Some(next);
                allowed.push((handed_over, false));
            }
            allowed.push((free, false));
        }
        let is_granted = self.is_granted && self.script == "fair_acquire";
        let after = (self.after.clone().alive(), is_granted);
        let mut allowed = allowed
            .into_iter()
            .map(|(lock, is_granted)| (lock.alive(), is_granted));
        (!allowed.any(|one| one == after))
            .then(|| format!("{self:#?}\nthe model: {:#?}", self.by_model(&self.before)))
    }
}

/// Why a line is no step of the model.
pub(super) fn refused(line: &Line<'_>) -> Option<String> {
    Step::read(line).refused()
}

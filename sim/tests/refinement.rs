//! What the server does in worlds is what the model says that it does: the scripts refine its steps.
//!
//! Compared for fair locks, script by script: who holds the lock and who waits, in order, before and after it,
//! and whether the caller was told that it holds the lock. Tokens, how long leases last, and what the clients
//! make of replies are not.

use lockset_model::lock::{Bounds, Client, Holder, Place, Reply, Request, Rules, Server, State};
use lockset_sim::World;

/// Worlds of which each step is compared.
const WORLDS: u64 = 100;

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
    /// A line of a history, if it is about a step that is compared.
    fn read(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_once("server|")?.1.split('|').collect();
        let [script, _, holder, heartbeat, is_granted, before, after] = words[..] else {
            panic!("{line}");
        };
        Some(Self {
            script,
            holder,
            takes_place: heartbeat != "0",
            is_granted: is_granted == "true",
            before: Lock::read(before),
            after: Lock::read(after),
        })
    }

    /// What the model makes of it, and whether it says that the caller holds the lock.
    fn by_model(&self, before: &Lock<'a>) -> (Lock<'a>, bool) {
        let mut known = vec![self.holder];
        for one in before
            .holder
            .into_iter()
            .chain(before.waiting.iter().map(|(one, _)| *one))
        {
            if !known.contains(&one) {
                known.push(one);
            }
        }
        let number = |one: &str| Holder {
            client: u8::try_from(known.iter().position(|it| *it == one).expect("known"))
                .expect("few"),
            number: 0,
        };
        let places = before.waiting.iter().map(|(one, is_kept)| Place {
            holder: number(one),
            left: u8::from(*is_kept),
        });
        let mut state = State {
            server: Server {
                holder: before.holder.map(number),
                left: u8::from(before.holder.is_some()),
                queue: places.collect(),
                ..Server::default()
            },
            clients: vec![Client::new(); known.len()],
            late: Vec::new(),
            attempts: 0,
            faults: 0,
            top_token: 0,
            is_token_reused: false,
            is_renewed_in_vain: false,
            is_revived: false,
            is_overtaken: false,
        };
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
        let name = |holder: Holder| known[usize::from(holder.client)];
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
        // Who asks after its place was over is where it was, or comes last.
        allowed.push(self.by_model(&self.before.clone().alive()));
        if self.script == "fair_release" {
            // Whom the message does not reach, or who would have little time left, has to ask: the lock is free.
            let mut free = self.before.clone().alive();
            free.waiting.retain(|(one, _)| *one != self.holder);
            if free.holder == Some(self.holder) {
                free.holder = None;
            }
            // Whoever leaves the head of the queue of a free lock hands it over to the next, as a holder does.
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

/// How many steps were compared, and the first that is none of the model.
fn compared(world: World) -> (usize, Option<String>) {
    let report = world.with_history().run();
    let steps: Vec<Step> = report
        .history
        .iter()
        .filter_map(|line| Step::read(line))
        .collect();
    (steps.len(), steps.iter().find_map(Step::refused))
}

#[test]
fn what_the_server_does_is_a_step_of_the_model() {
    let mut steps = 0;
    for seed in 0..WORLDS {
        let (some, refused) = compared(World::new(seed));
        assert_eq!(refused, None, "in the world of seed {seed}");
        steps += some;
    }
    println!("{steps} steps");
    assert!(steps > 1_000, "{steps}");
}

#[test]
fn a_server_that_does_otherwise_is_refused() {
    for (there, instead) in [
        (
            "redis.call('RPUSH', q.queue, holder)",
            "redis.call('LPUSH', q.queue, holder)",
        ),
        (
            "  local left = fair_dequeue(q.queue, q.timeouts, q.alive, holder)",
            "  local left = 1",
        ),
        ("  if not score or score <= now then", "  if true then"),
    ] {
        let is_there = |(_, _, text): (_, _, &str)| text.contains(there);
        assert!(
            lockset::simulated::scripts().any(is_there),
            "no script says {there:?}"
        );
        let refused = (0..100).find(|seed| {
            let world = World::new(*seed).with_scripts(move |text| text.replace(there, instead));
            compared(world).1.is_some()
        });
        let seed = refused.unwrap_or_else(|| panic!("not found in 100 worlds: {instead}"));
        println!("{instead}: in world {}", seed + 1);
    }
}

//! The server in worlds acts as the model: the scripts refine its steps.
//!
//! Compared call by call, for reentrant, fair and read-write locks: what the server has before and after it, and
//! what the caller was told. Tokens, how long leases last, and what the clients make of replies are not.

mod fair;
mod plain;
mod rw;

use std::collections::BTreeMap;

use lockset_model::lock::{Client, Server, State};
use lockset_sim::World;

/// Worlds that are compared step by step.
const WORLDS: u64 = 100;

/// A line of a history about one call.
#[derive(Debug)]
struct Line<'a> {
    step: &'a str,
    holder: &'a str,
    detail: &'a str,
    is_granted: bool,
    before: &'a str,
    after: &'a str,
}

impl<'a> Line<'a> {
    /// If it is about a step that is compared.
    fn read(line: &'a str) -> Option<Self> {
        let words: Vec<&str> = line.split_once("server|")?.1.split('|').collect();
        let [step, _, holder, detail, is_granted, before, after] = words[..] else {
            panic!("{line}");
        };
        Some(Self {
            step,
            holder,
            detail,
            is_granted: is_granted == "true",
            before,
            after,
        })
    }

    /// Why it is no step of the model.
    fn refused(&self) -> Option<String> {
        match self.step.split_once('_').expect("a kind").0 {
            "fair" => fair::refused(self),
            "plain" => plain::refused(self),
            "rw" => rw::refused(self),
            other => panic!("no kind: {other}"),
        }
    }
}

/// The numbers that holders have in the model.
struct Numbers<'a>(Vec<&'a str>);

impl<'a> Numbers<'a> {
    fn of(names: impl Iterator<Item = &'a str>) -> Self {
        let mut known = Vec::new();
        for name in names {
            if !known.contains(&name) {
                known.push(name);
            }
        }
        Self(known)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn of_name(&self, name: &str) -> u8 {
        let at = self.0.iter().position(|one| *one == name).expect("known");
        u8::try_from(at).expect("few")
    }

    fn name(&self, number: u8) -> &'a str {
        self.0[usize::from(number)]
    }
}

/// A state of the model with this server, and clients that have nothing to say.
fn state_of(server: Server, clients: usize) -> State {
    State {
        server,
        clients: vec![Client::new(); clients],
        late: Vec::new(),
        attempts: 0,
        faults: 0,
        top_token: 0,
        is_token_reused: false,
        is_renewed_in_vain: false,
        is_revived: false,
        is_overtaken: false,
    }
}

/// How many steps of each kind were compared, and the first that is none of the model.
fn compared(world: World, steps: &mut BTreeMap<String, usize>) -> Option<String> {
    let report = world.with_history().run();
    let lines = report.history.iter().filter_map(|line| Line::read(line));
    let refused = lines.map(|line| {
        *steps.entry(line.step.to_owned()).or_default() += 1;
        line.refused()
    });
    // All are counted.
    refused.fold(None, Option::or)
}

#[test]
fn what_the_server_does_is_a_step_of_the_model() {
    let mut steps = BTreeMap::new();
    for seed in 0..WORLDS {
        let refused = compared(World::new(seed), &mut steps);
        assert_eq!(refused, None, "in the world of seed {seed}");
    }
    println!("{steps:?}");
    for (step, least) in [
        ("fair_acquire", 500),
        ("fair_release", 500),
        ("plain_acquire", 1_000),
        ("plain_release", 500),
        ("plain_renew", 10),
        ("rw_read", 500),
        ("rw_write", 500),
        ("rw_release", 500),
        ("rw_downgrade", 10),
        ("rw_renew", 10),
    ] {
        let count = steps.get(step).copied().unwrap_or(0);
        assert!(count >= least, "{step}: {count}");
    }
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
        // A reentrant lock is granted though it is held, and its release does nothing.
        (
            "  must_be_lock(lock, remaining)\n  return remaining\nend\nif remaining",
            "end\nif remaining",
        ),
        (
            "if redis.call('HDEL', lock, holder) == 0 then return not_held(lock) end",
            "",
        ),
        // A hold is renewed, but its holder gets the answer that it is gone.
        (
            "    lengthen(lock, ARGV[2 * i])\n    reply[i] = 1",
            "    lengthen(lock, ARGV[2 * i])\n    reply[i] = 0",
        ),
        // A reader enters beside a writer; another one before a writer that waits; one that leaves frees the lock.
        (
            "if held[1] ~= 'read' then return remaining, remaining end",
            "",
        ),
        (
            "  return not has_asked and now - waited_ms >= done, true",
            "  return false, true",
        ),
        (
            "local others = (fields or redis.call('HLEN', lock)) - 1",
            "local others = 0",
        ),
        // A writer enters beside readers; it does not wait for those whose turn it is.
        ("if left ~= -2 then", "if false then"),
        (
            "if left > 0 and left <= readers_turn_ms then",
            "if false then",
        ),
        // Readers have no turn after a writer.
        ("    redis.call('ZADD', waiting, 0, 'turn')", ""),
    ] {
        let is_there = |(_, _, text): (_, _, &str)| text.contains(there);
        assert!(
            lockset::simulated::scripts().any(is_there),
            "no script says {there:?}"
        );
        let refused = (0..100).find(|seed| {
            let world = World::new(*seed).with_scripts(move |text| text.replace(there, instead));
            compared(world, &mut BTreeMap::new()).is_some()
        });
        let seed = refused.unwrap_or_else(|| panic!("not found in 100 worlds: {there}"));
        println!("{there} -> {instead}: in world {}", seed + 1);
    }
}

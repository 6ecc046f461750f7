//! The checks of a world find defects: each of these was put into the scripts, and has to be found.

use lockset_sim::World;

/// What it is, what stands in a script, and what stands there instead.
const MUTANTS: &[(&str, &str, &str)] = &[
    (
        "a lock that is held is granted",
        "  if hold_count ~= '1' then return -3 end\n  return remaining\nend\nif remaining",
        "end\nif remaining",
    ),
    (
        "a grant has a lease of a tenth of a second",
        "local leased = redis.pcall('PEXPIRE', lock, ARGV[3])",
        "local leased = redis.pcall('PEXPIRE', lock, 100)",
    ),
    (
        "tokens are those of a clock that ticks each tenth of a second",
        "  return string.format('%.0f', token)",
        "  return string.format('%.0f', token - token % 100000)",
    ),
    (
        "a release frees the lock, whoever holds it",
        "if redis.call('HDEL', lock, holder) == 0 then return not_held(lock) end",
        "redis.call('DEL', lock)",
    ),
    (
        "a reader enters while somebody writes",
        "if is_new and held[1] ~= 'read' then return remaining, remaining end",
        "",
    ),
    (
        "several locks are granted whatever holds one of them",
        "    looked, why = pcall(member_refusal, m)",
        "    looked, why = true, nil",
    ),
    (
        "the lease of a read hold stays when it is given back",
        "redis.call('DEL', lock, read_timeout(lock, holder, '1'))",
        "redis.call('DEL', lock)",
    ),
    (
        "a waiter that gives up stays in the queue",
        "  local left = fair_dequeue(q.queue, q.timeouts, q.alive, holder)",
        "  local left = 1",
    ),
    (
        "who comes last to a fair lock is served first",
        "redis.call('RPUSH', q.queue, holder)",
        "redis.call('LPUSH', q.queue, holder)",
    ),
    (
        "a release by script notifies nobody",
        "return tonumber(redis.pcall(publish, channel, '0')) or 0",
        "return 0",
    ),
    (
        "what is to be left is freed at once",
        "PTTL', lock)\nredis.call('PEXPIRE', lock, remaining)",
        "PTTL', lock)\nredis.call('PEXPIRE', lock, 1)",
    ),
    (
        "a token of a Redlock is not raised at the other servers",
        "if last < token then",
        "if false then",
    ),
];

const SEEDS_MAX: u64 = 400;

/// How many worlds it takes from this seed on.
fn worlds_until_found(from: u64, what: &str, there: &'static str, instead: &'static str) -> u64 {
    for seed in from..from + SEEDS_MAX {
        let world = World::new(seed).with_scripts(move |text| text.replace(there, instead));
        if world.run().violation.is_some() {
            return seed - from + 1;
        }
    }
    panic!("not found in {SEEDS_MAX} worlds: {what}");
}

#[test]
fn every_seeded_defect_is_found() {
    for (what, there, instead) in MUTANTS {
        let is_there = |(_, _, text): (_, _, &str)| text.contains(there);
        assert!(
            lockset::simulated::scripts().any(is_there),
            "no script says {there:?}"
        );
        let mut needed: Vec<u64> = [1_000, 2_000, 3_000]
            .map(|from| worlds_until_found(from, what, there, instead))
            .into();
        needed.sort_unstable();
        println!("| {what} | {} | {} |", needed[1], needed[2]);
    }
}

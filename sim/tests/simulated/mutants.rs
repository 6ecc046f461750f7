//! The checks of a world find defects: each of these was put into the scripts, and has to be found.

use lockset_sim::World;

/// The name of the mistake, the text in a script, and its replacement.
const MUTANTS: &[(&str, &str, &str)] = &[
    (
        "a lock that is held is granted",
        "  must_be_lock(lock, remaining)\n  return remaining\nend\nif remaining",
        "end\nif remaining",
    ),
    (
        "a grant has a lease of a tenth of a second",
        "local leased = redis.pcall('PEXPIRE', lock, lease)",
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
        "if held[1] ~= 'read' then return remaining, remaining end",
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
        "redis.call('PEXPIRE', lock, remaining)\nredis.call('HSET', lock, kept_as, '1')",
        "redis.call('PEXPIRE', lock, 1)\nredis.call('HSET', lock, kept_as, '1')",
    ),
    (
        "a token of a Redlock is not raised at the other servers",
        "if last < token then",
        "if false then",
    ),
    (
        "permits are granted that are not free",
        "if is_next and free >= wanted then",
        "if is_next then",
    ),
    (
        "a release of permits gives back what it names",
        "removed = removed + redis.call('ZREM', timeouts, ARGV[i]) end",
        "redis.call('ZREM', timeouts, ARGV[i]) removed = removed + 1 end",
    ),
    (
        "a release of permits notifies nobody",
        "if free and free > 0 then receivers",
        "if false then receivers",
    ),
    (
        "a latch says that it is open while it is not",
        "return {count or 0, redis.call('GET', KEYS[2]) or ''}",
        "return {0, ''}",
    ),
    (
        "a repeat of a count-down counts again",
        "not redis.call('SET', done, call, 'NX', 'PX', ARGV[2]) then",
        "not redis.call('SET', done, call, 'PX', ARGV[2]) then",
    ),
    (
        "a party of a barrier does not wait for the others",
        "if count >= wanted then\n  end_round(round, party, 'passed')",
        "if count >= 1 then\n  end_round(round, party, 'passed')",
    ),
];

/// A defect is found in this many worlds that are drawn from seeds.
const SEEDS_MAX: usize = 400;

/// Or in this many that are made of pairs.
const PAIRS_MAX: usize = 1_500;

/// How many of these worlds it takes until one of them says this.
fn worlds_until_found(
    worlds: impl Iterator<Item = World>,
    what: &str,
    says: &str,
    there: &'static str,
    instead: &'static str,
) -> u64 {
    for (world, tried) in worlds.zip(1..) {
        let sound = world.clone();
        let world = world.with_scripts(move |text| text.replace(there, instead));
        let violation = world.run().violation;
        if violation.is_some_and(|violation| violation.contains(says)) {
            // Found by the mistake, and by nothing else that is wrong there.
            assert_eq!(sound.run().violation, None, "{what}");
            return tried;
        }
    }
    panic!("not found: {what}");
}

fn must_be_there(text: &str) {
    let is_there = |(_, _, script): (_, _, &str)| script.contains(text);
    assert!(
        lockset::simulated::scripts().any(is_there),
        "no script says {text:?}"
    );
}

/// From each of these first seeds every defect is found; says how many worlds that took.
fn each_is_found<const SERIES: usize>(first_seeds: [u64; SERIES]) {
    for (what, there, instead) in MUTANTS {
        must_be_there(there);
        let mut needed: Vec<u64> = first_seeds
            .map(|from| {
                worlds_until_found(
                    (from..).map(World::new).take(SEEDS_MAX),
                    what,
                    "",
                    there,
                    instead,
                )
            })
            .into();
        needed.sort_unstable();
        println!(
            "| {what} | {} | {} |",
            needed[SERIES / 2],
            needed[SERIES - 1]
        );
    }
}

#[test]
fn every_seeded_defect_is_found() {
    each_is_found([1_000]);
}

/// Defects that pairs do not show: there, no server of a `Redlock` loses its data, and tasks seldom meet at a latch or a
/// barrier.
const NOT_IN_PAIRS: [&str; 4] = [
    "a token of a Redlock is not raised at the other servers",
    "a latch says that it is open while it is not",
    "a repeat of a count-down counts again",
    "a party of a barrier does not wait for the others",
];

/// Worlds of pairs, each once without a fault and once with one, in an order that mixes the kinds.
fn pairs() -> impl Iterator<Item = World> {
    let pairs: Vec<World> = World::pairs().collect();
    (0..pairs.len()).flat_map(move |number| {
        let pair = pairs[number * 577 % pairs.len()].clone();
        let (_, mut more) = pair.explore();
        let one = more.swap_remove(number * 7 % more.len());
        [pair, one]
    })
}

#[test]
fn every_seeded_defect_is_found_in_pairs() {
    for (what, there, instead) in MUTANTS {
        if !NOT_IN_PAIRS.contains(what) {
            let needed = worlds_until_found(pairs().take(PAIRS_MAX), what, "", there, instead);
            println!("| {what} | {needed} |");
        }
    }
}

#[test]
#[ignore = "three series of worlds, for the table of docs/proof.md: make sim"]
fn every_seeded_defect_is_found_in_three_series() {
    each_is_found([1_000, 2_000, 3_000]);
}

/// Found in each kind of world, in one that says this.
fn is_found_in_every_kind(what: &str, says: &str, there: &'static str, instead: &'static str) {
    must_be_there(there);
    let kinds = [
        World::new,
        World::on_one_server,
        World::behind_sentinels,
        World::in_cluster,
    ];
    for kind in kinds {
        let worlds = (0..).step_by(4).map(kind).take(SEEDS_MAX);
        let needed = worlds_until_found(worlds, what, says, there, instead);
        println!("| {what} | {needed} |");
    }
}

/// Without faults that end a hold, no hold may be lost in any kind of world: a false loss stops work for no reason.
#[test]
fn a_loss_without_a_cause_is_found_in_every_kind_of_world() {
    is_found_in_every_kind(
        "a renewal for a whole lease fails",
        "lost without cause",
        "    lengthen(lock, ARGV[2 * i])\n    reply[i] = 1",
        "    reply[i] = ARGV[2 * i] == '3000' and 0 or 1",
    );
}

/// Where nothing goes wrong, no call may fail: its caller would take back what it has done.
#[test]
fn an_error_without_a_cause_is_found_in_every_kind_of_world() {
    is_found_in_every_kind(
        "a release says that the lock was not held",
        "nothing went wrong",
        "return tonumber(redis.pcall(publish, channel, '0')) or 0",
        "redis.pcall(publish, channel, '0')\nreturn -1",
    );
}

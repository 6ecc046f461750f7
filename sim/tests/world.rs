//! Worlds of many seeds: no promise is broken, and the same seed makes the same history.

use lockset_sim::World;

/// Runs the worlds of these seeds; says how to see the first that ends badly.
fn run_all(seeds: std::ops::Range<u64>) {
    let began = std::time::Instant::now();
    let (mut calls, mut commands, mut grants, mut losses, mut joins) = (0, 0, 0, 0, 0);
    let worlds = seeds.end - seeds.start;
    for seed in seeds {
        let report = World::new(seed).run();
        calls += report.operations as u64;
        commands += report.commands;
        grants += report.grants;
        losses += report.losses;
        joins += report.joins;
        if let Some(violation) = report.violation {
            panic!(
                "seed {seed}: {violation}\nsee it by\n  \
                 LOCKSET_SEED={seed} cargo test -p lockset-sim --test world -- --nocapture one_seed"
            );
        }
    }
    let took = began.elapsed();
    #[expect(clippy::cast_precision_loss, reason = "for people")]
    let a_minute = |count: u64| count as f64 / took.as_secs_f64() * 60.0;
    println!(
        "{worlds} worlds, {calls} calls, {commands} commands, {grants} grants, {joins} of them by joining, \
         {losses} losses in {took:.1?}; \
         a minute: {:.0} worlds, {:.0} calls, {:.0} commands",
        a_minute(worlds),
        a_minute(calls),
        a_minute(commands),
    );
    assert!(joins >= worlds, "readers join: {joins}");
}

#[test]
fn no_promise_is_broken_in_any_world() {
    run_all(0..120);
}

#[test]
#[ignore = "as many as LOCKSET_WORLDS says, from a random seed on: make sim"]
fn no_promise_is_broken_in_many_worlds() {
    let worlds = std::env::var("LOCKSET_WORLDS").map_or(10_000, |count| count.parse().unwrap());
    let first = std::env::var("LOCKSET_SEED")
        .map_or_else(|_| fastrand::u64(..1 << 40), |seed| seed.parse().unwrap());
    run_all(first..first + worlds);
}

/// `LOCKSET_SEED` says which: prints what happens there, and the smallest plan that still ends so.
#[test]
fn one_seed_can_be_seen() {
    let seed = std::env::var("LOCKSET_SEED").map_or(1, |seed| seed.parse().unwrap());
    let world = World::new(seed).with_history();
    let report = world.run();
    assert!(!report.history.is_empty());
    if report.violation.is_some() {
        let small = world.shrink();
        let report = small.run();
        panic!(
            "{}\n{}\n{}",
            small.plan(),
            report.history.join("\n"),
            report.violation.unwrap()
        );
    }
}

#[test]
fn the_same_seed_makes_the_same_history() {
    for seed in 0..12 {
        let [one, other] = [(); 2].map(|()| World::new(seed).with_history().run());
        let differs = one
            .history
            .iter()
            .zip(&other.history)
            .position(|(a, b)| a != b);
        if let Some(at) = differs {
            let from = at.saturating_sub(20);
            panic!(
                "seed {seed} at {at}:\n{}\n---\n{}",
                one.history[from..=at].join("\n"),
                other.history[from..=at].join("\n")
            );
        }
        assert_eq!(one, other, "seed {seed}");
    }
}

//! Small worlds in which each two mechanisms meet, without a fault, with one at each moment, and with two: no promise is
//! broken.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use lockset_sim::World;

/// Each time, one of this many pairs is run, and one of its worlds with one fault.
const ONE_PAIR_OF: usize = 3;

/// At length, all worlds with one fault are run, and of one in this many of them one in as many with two.
const ONE_OF: usize = 149;

#[derive(Default)]
struct Runs {
    next: AtomicUsize,
    worlds: AtomicUsize,
    bad: Mutex<Vec<String>>,
}

impl Runs {
    /// Runs a world; the worlds with one fault more.
    fn explore(&self, world: &World) -> Vec<World> {
        self.worlds.fetch_add(1, Ordering::Relaxed);
        let (report, more) = world.explore();
        if let Some(violation) = report.violation {
            let (plan, history) = (world.plan(), world.clone().with_history().run().history);
            let bad = format!("{violation}\n{plan}{}", history.join("\n"));
            self.bad.lock().unwrap().push(bad);
        }
        more
    }

    fn is_bad(&self) -> bool {
        !self.bad.lock().unwrap().is_empty()
    }
}

/// Runs this for one of this many pairs, which has this number, on as many cores as said, until a promise is broken.
/// Returns the number of worlds.
fn for_pairs(one_of: usize, cores: usize, run: impl Fn(&Runs, usize, &World) + Sync) -> usize {
    let pairs: Vec<World> = World::pairs().step_by(one_of).collect();
    let (runs, began) = (Runs::default(), Instant::now());
    std::thread::scope(|scope| {
        for _ in 0..cores {
            scope.spawn(|| {
                while let Some(number) = Some(runs.next.fetch_add(1, Ordering::Relaxed))
                    && let Some(pair) = pairs.get(number)
                    && !runs.is_bad()
                {
                    run(&runs, number, pair);
                }
            });
        }
    });
    let bad = runs.bad.into_inner().unwrap();
    assert!(bad.is_empty(), "{}", bad.join("\n\n"));
    let worlds = runs.worlds.into_inner();
    let (pairs, took) = (pairs.len(), began.elapsed());
    println!("{worlds} worlds of {pairs} pairs in {took:.1?} on {cores} cores");
    worlds
}

#[test]
fn none_breaks_a_promise_with_one_fault() {
    let worlds = for_pairs(ONE_PAIR_OF, 1, |runs, number, pair| {
        let with_one = runs.explore(pair);
        assert!(with_one.len() > 50, "{}", pair.plan());
        runs.explore(&with_one[number * 7 % with_one.len()]);
    });
    assert!(worlds > 1_000);
}

#[test]
#[ignore = "all worlds with one fault, and some with two: make sim"]
fn none_breaks_a_promise_with_any_fault_or_with_two() {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    for_pairs(1, cores, |runs, number, pair| {
        for (at, with_one) in runs.explore(pair).iter().enumerate() {
            let with_two = runs.explore(with_one);
            if (number + at).is_multiple_of(ONE_OF) {
                let some = with_two.iter().skip(at % ONE_OF).step_by(ONE_OF);
                for world in some {
                    runs.explore(world);
                }
            }
        }
    });
}

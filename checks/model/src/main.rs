//! Explores the larger models to their end and prints a table: `make model`.

use std::process::ExitCode;

use lockset_model::cases::{
    LARGE_LOCKS, LARGE_RW_LOCKS, LOCKS, RW_LOCKS, large_redlocks, redlocks,
};
use lockset_model::explore::{Explored, to_the_end};
use lockset_model::lock::Lock;
use lockset_model::rwlock::RwLock;
use lockset_model::semaphore::{Semaphore, cases};

fn row(name: &str, explored: Result<Explored, String>) -> bool {
    match explored {
        Ok(explored) => {
            let Explored {
                states,
                steps,
                depth,
                took,
            } = explored;
            println!(
                "| {name} | {states} | {steps} | {depth} | {:.1} s |",
                took.as_secs_f64()
            );
            true
        }
        Err(violation) => {
            println!("| {name} | {violation} | | | |");
            false
        }
    }
}

fn main() -> ExitCode {
    println!("| model | states | steps | depth | time |\n|---|---:|---:|---:|---:|");
    let mut is_good = true;
    for (name, bounds) in LOCKS.into_iter().chain(LARGE_LOCKS) {
        is_good &= row(name, to_the_end(Lock::new(bounds)));
    }
    for (name, bounds) in RW_LOCKS.into_iter().chain(LARGE_RW_LOCKS) {
        is_good &= row(name, to_the_end(RwLock::new(bounds)));
    }
    for (name, model) in redlocks().into_iter().chain(large_redlocks()) {
        is_good &= row(name, to_the_end(model));
    }
    for (name, bounds) in cases::CASES.into_iter().chain(cases::LARGE) {
        is_good &= row(name, to_the_end(Semaphore::new(bounds)));
    }
    if is_good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

//! `make bench-peers`: lockset and other libraries at the same jobs, on one server, in turns.
//!
//! ```text
//! peers-run measure --rounds 5 --seconds 1.5 --out target/bench-peers --results benches/peers/results
//! peers-run build   --out ..          only what building takes; a failure is a peer that is not run
//! peers-run draw    --results ..      table and plots again, from results.json
//! ```
//!
//! Data flows one way. A harness answers with the times of its turns (`harness`), and `figures` makes numbers of them
//! and of the counts of the `server`. `measure` collects the numbers of all rounds into `results`, and `table` and
//! `plot` show them as ratios. A measurement fails if a lockset process had too little of a lock (`fairness`).

mod arguments;
mod facts;
mod failover;
mod fairness;
mod figures;
mod harness;
mod jobs;
mod measure;
mod peers;
mod place;
mod plot;
mod ratios;
mod results;
mod server;
mod table;

use std::path::Path;
use std::process::ExitCode;

use arguments::{Arguments, Verb};
use results::Results;

fn main() -> ExitCode {
    let arguments = match Arguments::of_this_run() {
        Ok(arguments) => arguments,
        Err(usage) => {
            eprintln!("{usage}");
            return ExitCode::FAILURE;
        }
    };
    match arguments.verb {
        Verb::Build => drop(peers::build_all(&arguments)),
        Verb::Measure => {
            let results = measure::run(&arguments);
            results.write(&arguments.results);
            show(&results, &arguments.results);
            let broken = fairness::broken(&results);
            for what in &broken {
                eprintln!("{what}");
            }
            if !broken.is_empty() {
                return ExitCode::FAILURE;
            }
        }
        Verb::Draw => show(&Results::read(&arguments.results), &arguments.results),
    }
    ExitCode::SUCCESS
}

fn show(results: &Results, folder: &Path) {
    let table = table::of(results);
    println!("\n{table}");
    results::write_file(&folder.join("table.md"), &table);
    for (name, drawing) in plot::all(results) {
        results::write_file(&folder.join(name), &drawing);
    }
    eprintln!("written to {}", folder.display());
}

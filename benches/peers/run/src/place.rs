//! Which processor the server and the harnesses run on: as in lockset's own benches.
//!
//! A round trip between two processors takes several times as long as one on the same, and a scheduler
//! that is left alone changes its mind within a run. So the server gets a processor of its own and
//! the harnesses share the others. `LOCKSET_BENCH_PLACEMENT=free` leaves it to the scheduler.

use std::fs;
use std::process::{Command, Stdio};

/// Gives the server and this process, whose children the harnesses are, their places; says which.
pub(crate) fn take(server: u32) -> String {
    places(server).unwrap_or_else(|why| format!("left to the scheduler ({why})"))
}

fn places(server: u32) -> Result<String, &'static str> {
    if std::env::var("LOCKSET_BENCH_PLACEMENT").is_ok_and(|place| place == "free") {
        return Err("as asked");
    }
    let allowed = allowed().ok_or("what is allowed cannot be read here")?;
    let [first, others @ ..] = &allowed[..] else {
        return Err("no processors are known");
    };
    if others.is_empty() {
        return Err("there is one processor");
    }
    let count = others.len();
    let others: Vec<String> = others.iter().map(u32::to_string).collect();
    if pin(server, &first.to_string()) && pin(std::process::id(), &others.join(",")) {
        Ok(format!(
            "the server has one processor for itself, the clients have {count}"
        ))
    } else {
        Err("taskset is missing or may not do it")
    }
}

/// `taskset` instead of the system call, which no safe dependency of ours offers.
fn pin(pid: u32, cpus: &str) -> bool {
    Command::new("taskset")
        .args(["-a", "-p", "-c", cpus, &pid.to_string()])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// The processors this process may use.
fn allowed() -> Option<Vec<u32>> {
    let status = fs::read_to_string("/proc/self/status").ok()?;
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let mut cpus = Vec::new();
    for range in list.trim().split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        cpus.extend(first.parse::<u32>().ok()?..=last.parse::<u32>().ok()?);
    }
    Some(cpus)
}

//! Which processor the server and the clients run on.
//!
//! A round trip between two processors takes several times as long as one on the same, and a
//! scheduler that is left alone changes its mind within a run. So the server gets a processor of
//! its own and the clients share the others. `LOCKSET_BENCH_PLACEMENT=free` leaves it to the
//! scheduler.

use std::fs;
use std::process::{Command, Stdio};

use lockset_testkit::Server;

/// Starts a server, and gives it and this process their places. To be called before any thread is
/// started: those inherit the place.
pub(crate) fn server() -> Server {
    servers(1).remove(0)
}

/// Likewise several servers, which share their place.
pub(crate) fn servers(count: usize) -> Vec<Server> {
    let servers: Vec<Server> = (0..count).map(|_| Server::start()).collect();
    let first = &servers[0];
    let kind = if first.is_valkey() { "Valkey" } else { "Redis" };
    let pids: Vec<u32> = servers.iter().map(Server::pid).collect();
    let place = take_places(&pids)
        .unwrap_or_else(|why| format!("placement is left to the scheduler ({why})"));
    eprintln!("{kind} {}; {place}", first.version());
    servers
}

/// For servers that have been started elsewhere.
pub(crate) fn take_places(servers: &[u32]) -> Result<String, &'static str> {
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
    let others: Vec<String> = others.iter().map(u32::to_string).collect();
    let others = others.join(",");
    let placed = servers
        .iter()
        .all(|&server| pin(server, &first.to_string()))
        && pin(std::process::id(), &others);
    if placed {
        Ok(format!("server on CPU {first}, clients on CPU {others}"))
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

/// Time spent on processors so far, in nanoseconds. `None` where the kernel does not say.
pub(crate) mod cpu {
    use std::fs;
    use std::path::Path;

    use lockset_testkit::Server;

    /// By the server's main thread, which is the one that runs commands.
    pub(crate) fn of_server(server: &Server) -> Option<u64> {
        let pid = server.pid();
        of_thread(Path::new(&format!("/proc/{pid}/task/{pid}")))
    }

    /// By all threads that this process has now.
    pub(crate) fn of_clients() -> Option<u64> {
        let mut sum = 0;
        for thread in fs::read_dir("/proc/self/task").ok()? {
            // A thread that has ended is not one of the measured ones.
            sum += of_thread(&thread.ok()?.path()).unwrap_or(0);
        }
        Some(sum)
    }

    fn of_thread(thread: &Path) -> Option<u64> {
        let line = fs::read_to_string(thread.join("schedstat")).ok()?;
        line.split_whitespace().next()?.parse().ok()
    }
}

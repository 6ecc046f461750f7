//! The server's log of slow commands: which script kept it longest.

use std::time::Duration;

use super::floor::Floor;

/// Has the server note all commands that take it this long from now on.
pub(crate) async fn note(admin: &mut Floor, limit: Duration) {
    let limit = limit.as_micros().to_string();
    for words in [
        &["CONFIG", "SET", "slowlog-log-slower-than", &limit][..],
        &["CONFIG", "SET", "slowlog-max-len", "4096"],
        &["SLOWLOG", "RESET"],
    ] {
        admin.ask(&command(words)).await;
    }
}

/// The longest time of a script since then; zero if none was noted.
pub(crate) async fn longest_script(admin: &mut Floor) -> Duration {
    let log = admin.ask(&command(&["SLOWLOG", "GET", "-1"])).await;
    let entries: Vec<(u64, u64, u64, Vec<String>, String, String)> =
        redis::from_redis_value(log).expect("entries of a slow log");
    let scripts = entries.iter().filter(|entry| entry.3[0] == "EVALSHA");
    let longest = scripts.map(|entry| entry.2).max();
    Duration::from_micros(longest.unwrap_or(0))
}

fn command(words: &[&str]) -> redis::Cmd {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(word);
    }
    command
}

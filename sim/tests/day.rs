//! Locks held for a day, and others that come and go: neither the server nor the process grows.

use std::time::Duration;

use lockset_sim::Server;

const HOUR: Duration = Duration::from_secs(3600);

/// Memory of this process, in KiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let size = line.and_then(|line| line.trim().split(' ').next());
    size.and_then(|size| size.parse().ok()).expect("a number")
}

/// This number is held, and every minute one more with a new name is taken and released.
async fn hold(locks: usize, hours: u32) {
    let server = Server::new();
    let client = server.client().await;
    let mut held = Vec::new();
    for at in 0..locks {
        held.push(client.lock(format!("held:{at}")).lock().await.unwrap());
    }
    let mut at_first = None;
    for hour in 0..hours {
        for minute in 0..60 {
            let lock = client.lock(format!("short:{hour}:{minute}"));
            lock.lock().await.unwrap().release().await.unwrap();
            server.advance(HOUR / 60).await;
        }
        assert!(held.iter().all(|guard| !guard.is_lost()), "hour {hour}");
        assert_eq!(server.keys().len(), locks, "hour {hour}");
        // The first hour fills what is kept for reuse.
        let now = resident();
        let before = *at_first.get_or_insert(now);
        assert!(
            now < before + 8 * 1024,
            "{before} KiB, {now} after hour {hour}"
        );
    }
    println!(
        "{locks} locks, {hours} h: {} commands, {} KiB",
        server.commands(),
        resident()
    );
    drop(held);
    client.shutdown().await.unwrap();
    assert_eq!(server.keys().len(), 0);
}

#[tokio::test(start_paused = true)]
#[cfg_attr(not(target_os = "linux"), ignore = "reads /proc")]
async fn some_hours_leave_nothing() {
    hold(50, 4).await;
}

#[tokio::test(start_paused = true)]
#[ignore = "a day with 1 000 locks: make sim"]
async fn a_day_leaves_nothing() {
    hold(1_000, 24).await;
}

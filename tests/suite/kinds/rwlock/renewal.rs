//! Renewals of read holds on the wire.

use std::time::Instant;

use futures_util::future::join_all;
use lockset::Owner;
use lockset_testkit::Server;

use super::Scene;
use crate::support::LEASE;

async fn scripts(server: &Server) -> u64 {
    let stats = server.commandstats().await;
    stats.get("evalsha").copied().unwrap_or(0) + stats.get("eval").copied().unwrap_or(0)
}

#[tokio::test]
async fn many_read_holds_are_renewed_by_few_scripts() {
    const HOLDS: usize = 300;
    // All of them are granted within a third of it, on a busy machine too.
    let lease = LEASE * 3;
    let scene = Scene::new().await;
    let [ours] = scene.patient().await;
    // Half of them are on one lock. Each has an owner, so none joins another hold.
    let locks = (0..HOLDS).map(|number| {
        let lock = match number % 2 {
            0 => scene.lock(&ours),
            _ => ours.rw_lock(format!("{}:{number}", scene.name)),
        };
        lock.lease(lease).owner(&Owner::new())
    });
    let guards = join_all(locks.map(|lock| async move { lock.read().await.unwrap() })).await;
    scene.server.reset_stats().await;
    let started = Instant::now();
    while started.elapsed() < lease * 3 {
        tokio::time::sleep(lease / 10).await;
        if let Some(lost) = guards.iter().find(|guard| guard.is_lost()) {
            panic!("{:?} after {:?}", lost.lost().await, started.elapsed());
        }
    }
    let scripts = scripts(&scene.server).await;
    // Each was due about nine times, and three scripts can carry all of them.
    assert!(scripts >= 3 * 7, "{scripts} scripts");
    assert!(scripts < HOLDS as u64 * 7 / 10, "{scripts} scripts");
    drop(guards);
    scene.nothing_left([&ours]).await;
}

#[tokio::test]
async fn a_fixed_lease_is_not_renewed() {
    let scene = Scene::new().await;
    let [ours] = scene.quick().await;
    let lock = scene.lock(&ours).fixed_lease(LEASE * 20);
    let guards = join_all((0..50).map(|_| async { lock.read().await.unwrap() })).await;
    let name = format!("{}:other", scene.name);
    let other = ours.rw_lock(name).fixed_lease(LEASE * 20);
    let writer = other.write().await.unwrap();
    scene.server.reset_stats().await;
    tokio::time::sleep(LEASE * 2).await;
    assert_eq!(scripts(&scene.server).await, 0);
    assert!(!guards.iter().any(|guard| guard.is_lost()) && !writer.is_lost());
    drop((guards, writer));
    scene.nothing_left([&ours]).await;
}

//! Public types and the futures of their verbs may go to other tasks and threads.

use std::time::Duration;

use futures_util::Stream;
use lockset::{
    AnyGuard, AnyLock, Barrier, Claim, Election, Error, FairGuard, FairLock, Job, Latch, Leader,
    Leaders, Leadership, LostReason, MultiGuard, MultiLock, Once, OnceKey, PlainPermits,
    PlainSemaphore, ReadGuard, RedlockGuard, RedlockLock, ReentrantGuard, ReentrantLock, RwLock,
    Semaphore, SemaphoreGuard, WriteGuard,
};

#[test]
fn handles_guards_and_errors_may_go_to_any_thread() {
    fn check<T: Send + Sync + 'static>() {}
    fn clones<T: Send + Sync + Clone + 'static>() {}
    fn streams<T: Stream + Send + Sync + Unpin + 'static>() {}
    fn errors<T: std::error::Error + Clone>() {}
    check::<ReentrantLock>();
    check::<ReentrantGuard>();
    check::<FairLock>();
    check::<FairGuard>();
    check::<RwLock>();
    check::<ReadGuard>();
    check::<WriteGuard>();
    check::<AnyLock>();
    check::<AnyGuard>();
    check::<MultiLock>();
    check::<MultiGuard>();
    check::<RedlockLock>();
    check::<RedlockGuard>();
    check::<Semaphore>();
    check::<SemaphoreGuard>();
    check::<PlainSemaphore>();
    check::<PlainPermits>();
    check::<Latch>();
    check::<Barrier>();
    check::<Election>();
    check::<Leadership>();
    check::<Leader>();
    streams::<Leaders>();
    check::<OnceKey>();
    check::<Once>();
    check::<Claim>();
    check::<Job>();
    clones::<Error>();
    errors::<Error>();
    errors::<LostReason>();
}

#[test]
fn the_futures_of_verbs_may_go_to_any_thread() {
    fn sends<H, T: Send>(_: impl Fn(H) -> T) {}
    sends(|lock: ReentrantLock| async move { lock.lock().await });
    sends(|lock: ReentrantLock| async move {
        let tried = lock.try_lock_for(Duration::ZERO).await?;
        tried.unwrap().reenter().await
    });
    sends(|lock: FairLock| async move { lock.lock().await });
    sends(|lock: RwLock| async move { lock.read().await });
    sends(|lock: RwLock| async move { lock.write().await?.downgrade().await });
    sends(|lock: AnyLock| async move { lock.lock().await });
    sends(|lock: MultiLock| async move { lock.lock().await });
    sends(|lock: MultiLock| async move { lock.lock().await.unwrap().release().await });
    sends(|lock: MultiLock| async move { lock.lock().await.unwrap().run(async {}).await });
    sends(|lock: RedlockLock| async move { lock.lock().await?.release().await });
    sends(|semaphore: Semaphore| async move { semaphore.acquire().await?.release().await });
    sends(|semaphore: PlainSemaphore| async move { semaphore.acquire().await?.release().await });
    sends(|latch: Latch| async move { latch.wait().await });
    sends(|latch: Latch| async move { latch.arrive_and_wait().await });
    sends(|barrier: Barrier| async move { barrier.wait_for(Duration::ZERO).await });
    sends(|election: Election| async move { election.campaign().await?.resign().await });
    sends(|once: Once| async move { once.claim().await?.unwrap().undo().await });
    sends(|once: Once| async move { once.run(async { Ok::<_, Error>(()) }).await });
    sends(|job: Job| async move { job.run(async { 7 }).await });
}

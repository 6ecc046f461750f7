//! The promises of each kind of lock beyond the common ones.

mod any_lock;
mod barrier;
mod election;
mod fair;
mod fenced;
mod latch;
mod left_at_shutdown;
mod multilock;
mod once;
mod plain_semaphore;
mod redlock;
mod rwlock;
mod semaphore;
mod semaphore_guards;
mod semaphore_messages;
mod semaphore_places;

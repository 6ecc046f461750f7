//! One hold at the server and everything local that belongs to it.
//!
//! [`state`] is the state machine of a hold, a plain value. [`shell`] carries out its effects. A guard keeps a
//! [`Share`], or a [`bundle`](bundle::Bundle) of shares. The modules below do not know about
//! holds: the core of a client, its locks and queues, and the undoing of abandoned attempts.
//!
//! ```text
//! shared.rs       the state that all handles of a client on one synchronizer share
//! state.rs        pure: the state of a hold: held -> released or lost; event.rs: its events
//!   claim.rs        pure: whether a task has taken it; counts.rs: its shares, here and at the server
//!   lease.rs        pure: its local deadline, and when to renew it
//!   passing.rs      pure: which holds can be handed off; joining.rs: which readers may join
//!   keeping.rs      pure: until when a released hold stays at the server
//! shell.rs        the mutex and the I/O around the state; settle.rs: downgrade and release
//!  operations.rs   one operation at a time, driven by the client
//!  release_call.rs the call that releases or downgrades one hold or several
//!  releasing.rs    whether the server may have executed a release that has no reply
//! facts.rs        what a hold notes of itself, and the reason of an operator who took it away
//! server_lease.rs pure: the latest end of the lease at the server, unanswered requests included
//! keep.rs         leaves a hold with `at_least` at the server, under another holder id
//! loss.rs         the loss of a hold and of a share, and who hears of it
//! share.rs        a guard's share of a hold; share_lease.rs: pure: the lease of each share
//! bundle.rs       shares that stand and fall together: the guard of a multi-lock
//! reenter.rs      one more share, mostly without the server, and a token after the grant; transfer.rs: a hand-off to the next task
//! readers.rs      pure: the readers that share one hold
//! join.rs         adds a reader; joinable_read.rs: the hold that the next may join, and what they agree on
//! deferred_downgrade.rs  readers under a write hold, between two writers
//! sticky.rs       leaves a hold to its client when the last guard goes; sticky_slot.rs: its place
//! sticky_span.rs  pure: for how long; recall.rs, recalls.rs: requests of waiters elsewhere
//! subscribing.rs  subscribes and unsubscribes, in the order of the changes of the state
//! owner_waiters.rs  wakes waiters of an owner when it gets the lock by another of its tasks
//! local.rs        a client's state of one lock: registry.rs, subscription.rs
//! queue.rs        the local queue, which skips a head that is not polled; queue/places.rs: its places
//!   cohort.rs       the waiters that would share one grant
//! handoff.rs      the hand-off, and its limit in a row
//! followers.rs    waiters of this client that follow each other in a queue at the server
//! heartbeats.rs   keeps the places of these waiters, with one script for all
//! turns.rs        turns between clients: how long this one goes on, and when it asks again
//! silence.rs      since when the server is silent; bound.rs: the limits of one call
//! undo.rs         attempts still to be undone; unguarded.rs: holds without a guard
//! core.rs         the state that a client shares; protocol.rs: the trait of a primitive
//! ```

pub(crate) mod bound;
pub(crate) mod bundle;
pub(crate) mod core;
pub(crate) mod deferred_downgrade;
mod event;
pub(crate) mod facts;
pub(crate) mod followers;
pub(crate) mod grant_message;
pub(crate) mod handoff;
pub(crate) mod heartbeats;
mod join;
pub(crate) mod joinable_read;
mod keep;
pub(crate) mod local;
mod loss;
mod operations;
pub(crate) mod owner_waiters;
pub(crate) mod protocol;
pub(crate) mod queue;
mod readers;
pub(crate) mod recall;
mod recalls;
pub(crate) mod reenter;
pub(crate) mod registry;
mod release_call;
mod releasing;
mod server_lease;
mod settle;
mod share;
mod share_lease;
mod shared;
mod shell;
pub(crate) mod silence;
mod state;
mod sticky;
mod sticky_slot;
mod sticky_span;
pub(crate) mod subscribing;
pub(crate) mod subscription;
mod transfer;
mod turns;
pub(crate) mod undo;
pub(crate) mod unguarded;

pub(crate) use event::{NewHold, Tokens};
pub(crate) use loss::{LossListener, ShareView, SharedHold};
pub(crate) use share::Share;
pub(crate) use share_lease::{ShareLease, local_deadline};
pub(crate) use shell::Hold;

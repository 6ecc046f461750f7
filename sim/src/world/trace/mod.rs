//! The server's state of a lock before and after each call that acquires, releases or renews it: lines of a history,
//! for comparison with the model.
//!
//! Invariant: what was before a call is what the server had after the one before it, by the clock of the call. So
//! a lease that has ended in between has ended before it.

mod fair;
mod line;
mod plain;
mod rw;

use self::line::Line;
use crate::called::script;
use crate::reply::Reply;
use crate::store::Store;
use crate::words::Words;

#[derive(Default)]
pub(super) struct Trace {
    fair: fair::Fair,
    plain: plain::Plain,
    rw: rw::Rw,
}

impl Trace {
    /// A command was done: a line for each lock that it is about.
    pub(super) fn done(&mut self, command: &Words, reply: &Reply, keys: &Store) -> Vec<Line> {
        let called = script(command);
        let called = called.as_ref();
        let mut lines = self.plain.done(command, called, reply, keys);
        lines.extend(self.fair.done(command, called, reply, keys));
        lines.extend(self.rw.done(command, called, reply, keys));
        lines
    }
}

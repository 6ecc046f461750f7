//! The scripts, each as one step.
//!
//! Invariant: a reply states what the server has after the step; a repeated step changes nothing.

use super::Rules;
use super::state::{Mode, Reader, Reply, Request, Server, Terms, Waiter};
use crate::lock::Holder;

impl Server {
    /// Executes a call, and says what is answered to it.
    pub fn execute(&mut self, terms: Terms, rules: &Rules, request: Request) -> Reply {
        match request {
            Request::Acquire(holder, mode) => {
                let is_granted = match mode {
                    Mode::Read => self.read(terms, rules, holder),
                    Mode::Write => self.write(terms, rules, holder),
                };
                if is_granted {
                    self.waiting.retain(|waiter| waiter.holder != holder);
                    return Reply::Granted(holder);
                }
                self.wait(terms, holder, mode);
                Reply::Refused(holder)
            }
            Request::Renew(holder) => Reply::Renewed(holder, self.renew(terms, rules, holder)),
            Request::Downgrade(holder) => {
                let writes = self.writer == Some(holder);
                let is_his = self.has(holder);
                if is_his {
                    self.enter(terms, rules, holder);
                }
                if writes {
                    self.writer = None;
                    self.writer_ends();
                }
                Reply::Downgraded(holder, is_his)
            }
            Request::Release(holder) => {
                self.waiting.retain(|waiter| waiter.holder != holder);
                self.release(rules, holder);
                Reply::Released(holder)
            }
        }
    }

    /// Whether a reader's own lease still runs.
    #[must_use]
    pub fn is_read(&self) -> bool {
        self.readers.iter().any(|reader| reader.left > 0)
    }

    /// Whether it is a hold of this one, dead or alive.
    #[must_use]
    pub fn has(&self, holder: Holder) -> bool {
        self.writer == Some(holder) || self.readers.iter().any(|reader| reader.holder == holder)
    }

    fn is_waiting(&self, is_meant: impl Fn(&Waiter) -> bool) -> bool {
        let mut alive = self.waiting.iter().filter(|waiter| waiter.left > 0);
        alive.any(is_meant)
    }

    fn read(&mut self, terms: Terms, rules: &Rules, holder: Holder) -> bool {
        if !self.has(holder) {
            if rules.writer_keeps_readers_out && self.writer.is_some() {
                return false;
            }
            let is_writer_first =
                rules.writer_goes_first && self.is_waiting(|waiter| waiter.mode == Mode::Write);
            // One that was refused before the last writer was done enters beside the next that waits.
            let is_its_turn = rules.readers_that_waited_go_first
                && self.is_waiting(|waiter| waiter.holder == holder && waiter.saw_writer_end);
            if is_writer_first && !is_its_turn {
                return false;
            }
            self.is_readers_turn = false;
        }
        self.enter(terms, rules, holder);
        true
    }

    /// Makes it a reader, for at least its lease.
    fn enter(&mut self, terms: Terms, rules: &Rules, holder: Holder) {
        match self
            .readers
            .iter_mut()
            .find(|reader| reader.holder == holder)
        {
            Some(reader) => reader.left = reader.left.max(terms.lease),
            None => {
                let left = terms.lease;
                self.readers.push(Reader { holder, left });
                self.readers.sort_unstable();
            }
        }
        self.lengthen(terms, rules);
    }

    fn lengthen(&mut self, terms: Terms, rules: &Rules) {
        self.left = if rules.longest_lease_counts {
            self.left.max(terms.lease)
        } else {
            terms.lease
        };
        if !rules.reader_has_own_lease {
            for reader in &mut self.readers {
                reader.left = reader.left.max(self.left);
            }
        }
    }

    fn write(&mut self, terms: Terms, rules: &Rules, holder: Holder) -> bool {
        if self.writer == Some(holder) {
            self.left = self.left.max(terms.lease);
            return true;
        }
        let is_read = if rules.dead_readers_keep_nobody_out {
            self.is_read()
        } else {
            !self.readers.is_empty()
        };
        if self.writer.is_some() || (is_read && rules.readers_keep_writer_out) {
            return false;
        }
        if !is_read {
            self.readers.clear();
            if self.is_readers_turn && rules.readers_that_waited_go_first {
                return false;
            }
        }
        self.writer = Some(holder);
        self.left = terms.lease;
        true
    }

    fn wait(&mut self, terms: Terms, holder: Holder, mode: Mode) {
        if terms.heartbeat == 0 {
            return;
        }
        self.waiting.retain(|waiter| waiter.holder != holder);
        self.waiting.push(Waiter {
            holder,
            mode,
            left: terms.heartbeat,
            saw_writer_end: false,
        });
        self.waiting.sort_unstable();
    }

    fn renew(&mut self, terms: Terms, rules: &Rules, holder: Holder) -> bool {
        if !self.has(holder) {
            return false;
        }
        self.lengthen(terms, rules);
        if rules.renewal_lengthens_own_lease {
            let mut readers = self.readers.iter_mut();
            if let Some(reader) = readers.find(|reader| reader.holder == holder) {
                reader.left = reader.left.max(terms.lease);
            }
        }
        true
    }

    fn release(&mut self, rules: &Rules, holder: Holder) {
        if self.writer == Some(holder) || (!rules.release_checks_holder && self.writer.is_some()) {
            self.writer = None;
            self.free();
            self.writer_ends();
        } else if self.has(holder) {
            self.readers.retain(|reader| reader.holder != holder);
            // The lock may outlive the readers that stay: the script shortens its lease only sometimes.
            if !self.is_read() || !rules.leaving_reader_leaves_the_others {
                self.free();
            }
        }
    }

    fn free(&mut self) {
        self.readers.clear();
        self.left = 0;
    }

    /// Readers that wait need not wait for the next writer too.
    fn writer_ends(&mut self) {
        for waiter in &mut self.waiting {
            waiter.saw_writer_end = waiter.mode == Mode::Read;
        }
        self.is_readers_turn = self.is_waiting(|waiter| waiter.mode == Mode::Read);
    }

    /// One tick of the server's clock.
    pub(super) fn tick(&mut self) {
        for reader in &mut self.readers {
            reader.left = reader.left.saturating_sub(1);
        }
        self.left = self.left.saturating_sub(1);
        if self.left == 0 {
            self.writer = None;
            self.readers.clear();
        }
        for waiter in &mut self.waiting {
            waiter.left -= 1;
        }
        self.waiting.retain(|waiter| waiter.left > 0);
        self.is_readers_turn = false;
    }
}

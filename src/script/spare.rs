//! Commands whose buffers are reused. Every call makes one, and all have about the same length.
//!
//! Each thread keeps a few of its used buffers. Invariant: their number is bounded, and a reused buffer contains
//! nothing of the previous command.

use std::cell::RefCell;
use std::mem;
use std::ops::Deref;

use redis::{Cmd, RedisWrite};

/// The number of buffers that each thread keeps. Each takes about 1 KB at most, as names and holder ids are bounded.
const KEPT_MAX: usize = 32;

thread_local! {
    static KEPT: RefCell<Vec<Cmd>> = const { RefCell::new(Vec::new()) };
}

/// A command of a few short words. Its drop keeps the buffer for the next one.
#[derive(Clone, Debug)]
pub(super) struct Short(Cmd);

impl Short {
    pub(super) fn new(words: &[&[u8]]) -> Self {
        // A thread that is ending has no buffers left.
        let kept = KEPT.try_with(|kept| kept.borrow_mut().pop());
        let mut command = kept.ok().flatten().unwrap_or_else(|| {
            let bytes = words.iter().map(|word| word.len()).sum();
            Cmd::with_capacity(words.len(), bytes)
        });
        words.iter().for_each(|word| command.write_arg(word));
        Self(command)
    }
}

impl Deref for Short {
    type Target = Cmd;

    fn deref(&self) -> &Cmd {
        &self.0
    }
}

impl Drop for Short {
    fn drop(&mut self) {
        let mut command = mem::take(&mut self.0);
        let _ = KEPT.try_with(|kept| {
            let mut kept = kept.borrow_mut();
            if kept.len() < KEPT_MAX {
                command.clear();
                kept.push(command);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_left_of_what_it_said_before() {
        let long: Vec<Vec<u8>> = (0..9).map(|word| vec![b'x'; word * 10]).collect();
        let long: Vec<&[u8]> = long.iter().map(Vec::as_slice).collect();
        drop(Short::new(&long));
        let short = Short::new(&[b"HDEL", b"key", b"holder"]);
        let mut fresh = redis::cmd("HDEL");
        fresh.arg("key").arg("holder");
        assert_eq!(short.get_packed_command(), fresh.get_packed_command());
    }

    #[test]
    fn what_is_kept_has_a_bound() {
        let many: Vec<Short> = (0..KEPT_MAX * 2).map(|_| Short::new(&[b"PING"])).collect();
        drop(many);
        assert_eq!(KEPT.with_borrow(Vec::len), KEPT_MAX);
    }
}

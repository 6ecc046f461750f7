//! What a client knows of a lock's fencing counter, and which numbers it may take for tokens without a script.
//!
//! A script gives `max(last + 1, microseconds of the server's clock)`, which is right whatever became of the counter.
//! A plain command only adds to it. That makes a token as long as the counter cannot have been lost since a script
//! has set it: for a short time, on the connection over which that script was answered, as a server that took over
//! meanwhile has another. Invariants: a number is a token only if it is larger than all that are known, and not ahead
//! of the clock by which the script gave its own, so that a script goes on above it without the counter. Pure.

use std::time::Duration;

use crate::clock::Tick;
use crate::conn::ConnectionId;
use crate::fencing::FencingToken;

/// The counter of a lock stands at a multiple of it, unless Redisson counts too (`lua/includes/counter_stays.lua`).
const STEP: u64 = 64;

/// For so long after a script, plain commands count on: so far at most a token lies behind the time of its grant.
pub(crate) const COUNTS_ON: Duration = Duration::from_secs(10);

/// What a client knows of the counter of one lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KnownToken {
    /// What a script gave last.
    given: u64,
    /// When its reply was there, and so later than the time that it shows.
    at: Tick,
    /// Over which connection it came.
    connection: ConnectionId,
    /// The largest number that the counter is known to have had.
    counter: u64,
}

/// A number that is asked for by a plain command, and what it has to be to count as a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WantedToken {
    pub(crate) connection: ConnectionId,
    /// How many tokens follow it.
    pub(crate) spare: u32,
    /// What the counter had before.
    pub(crate) known: u64,
    /// The server's clock has come as far as this at least.
    clock: u64,
}

impl KnownToken {
    /// A script gave this token and so many more, over a connection; `now` is after that. `None` if the counter is
    /// one that stays for ever, which scripts alone count.
    pub(crate) fn given(
        token: FencingToken,
        spare: u32,
        connection: ConnectionId,
        now: Tick,
    ) -> Option<Self> {
        let given = token.get();
        given.is_multiple_of(STEP).then_some(Self {
            given,
            at: now,
            connection,
            counter: given.saturating_add(room(spare)),
        })
    }

    /// What the counter has had at least, while it cannot have gone unless it was lost.
    pub(crate) fn counter(&self, now: Tick, retention_ms: u64) -> Option<u64> {
        self.is_kept(now, retention_ms).then_some(self.counter)
    }

    /// Whether it is well before the counter can have gone. It is kept for so many ms after a script, or for ever (0).
    fn is_kept(&self, now: Tick, retention_ms: u64) -> bool {
        retention_ms == 0 || self.at.until(now) < Duration::from_millis(retention_ms / 2)
    }

    /// Knows of this token too, and of so many more.
    pub(crate) fn counted(self, token: FencingToken, spare: u32) -> Self {
        Self {
            counter: self.counter.max(token.get().saturating_add(room(spare))),
            ..self
        }
    }

    /// The next token and so many more, if they can be had without a script now. The counter is kept for so many ms
    /// after a script, or for ever (0).
    pub(crate) fn wanted(&self, now: Tick, spare: u32, retention_ms: u64) -> Option<WantedToken> {
        let since = self.at.until(now);
        let micros = u64::try_from(since.as_micros()).ok()?;
        let wanted = WantedToken {
            connection: self.connection,
            spare,
            known: self.counter,
            // The server's may go slower than this one.
            clock: self.given.saturating_add(micros - micros / 100),
        };
        let next = self.counter.saturating_add(wanted.step());
        (since < COUNTS_ON && self.is_kept(now, retention_ms) && next <= wanted.clock)
            .then_some(wanted)
    }
}

impl WantedToken {
    /// What the counter is raised by.
    pub(crate) fn step(&self) -> u64 {
        STEP + room(self.spare)
    }

    /// The token, if the counter was raised to this number by [`step`](Self::step) and it is one.
    pub(crate) fn accept(&self, number: i64) -> Option<u64> {
        let number = u64::try_from(number).ok()?;
        let token = number.checked_sub(room(self.spare))?;
        let is_ours = number.is_multiple_of(STEP);
        (is_ours && token > self.known && number <= self.clock).then_some(token)
    }
}

/// What the counter has room for beyond a token, if so many more are given with it.
fn room(spare: u32) -> u64 {
    u64::from(spare).next_multiple_of(STEP)
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = 1_790_000_000_000_000 / STEP * STEP;
    const SECOND: u64 = 1_000_000;

    fn tick(micros: u64) -> Tick {
        Tick::ZERO.after(Duration::from_micros(micros))
    }

    fn connection() -> ConnectionId {
        ConnectionId::of_number(7)
    }

    fn given(token: u64, spare: u32) -> Option<KnownToken> {
        KnownToken::given(token.into(), spare, connection(), tick(SECOND))
    }

    fn known() -> KnownToken {
        given(T, 0).unwrap()
    }

    /// So many µs after the reply of the script, with a counter that is kept for long.
    fn wanted_after(known: KnownToken, micros: u64, spare: u32) -> Option<WantedToken> {
        known.wanted(tick(SECOND + micros), spare, 60_000)
    }

    #[test]
    fn a_counter_that_redisson_raises_too_is_left_to_scripts() {
        assert!(given(T, 0).is_some());
        for beside in [1, 2, 63] {
            assert_eq!(given(T + beside, 0), None);
        }
    }

    #[test]
    fn plain_commands_count_on_for_a_short_time() {
        let longest = u64::try_from(COUNTS_ON.as_micros()).unwrap();
        assert!(wanted_after(known(), longest - 1, 0).is_some());
        assert_eq!(wanted_after(known(), longest, 0), None);
    }

    #[test]
    fn they_end_well_before_the_counter_does() {
        let at = |micros, retention| {
            known()
                .wanted(tick(SECOND + micros), 0, retention)
                .is_some()
        };
        assert!(at(999_999, 2_000));
        assert!(!at(1_000_000, 2_000));
        assert!(at(9_999_999, 0), "kept for ever");
        // It is not known any more then, for scripts either.
        let counter = |micros, retention| known().counter(tick(SECOND + micros), retention);
        assert_eq!(counter(999_999, 2_000), Some(T));
        assert_eq!(counter(1_000_000, 2_000), None);
        assert_eq!(counter(3_600 * SECOND, 0), Some(T), "kept for ever");
    }

    #[test]
    fn the_counter_never_gets_ahead_of_the_clock() {
        assert_eq!(wanted_after(known(), 63, 0), None);
        let wanted = wanted_after(known(), 64, 0).unwrap();
        assert_eq!(wanted.step(), 64);
        assert_eq!(wanted.accept(number(T + 64)), Some(T + 64));
        // Another client was granted the lock meanwhile, and its token is of this time.
        assert_eq!(wanted.accept(number(T + 128)), None);
        let later = wanted_after(known(), 129, 0).unwrap();
        assert_eq!(later.accept(number(T + 128)), Some(T + 128));
        // A hundredth of the time is left to clocks that differ.
        let second = wanted_after(known(), SECOND, 0).unwrap();
        let last = T + 990_000 / STEP * STEP;
        assert_eq!(second.accept(number(last)), Some(last));
        assert_eq!(second.accept(number(last + 64)), None);
    }

    #[test]
    fn what_is_not_larger_than_all_that_is_known_is_no_token() {
        let known = known().counted((T + 640).into(), 0);
        let wanted = wanted_after(known, SECOND, 0).unwrap();
        assert_eq!(wanted.known, T + 640);
        assert_eq!(wanted.accept(number(T + 704)), Some(T + 704));
        // It was lost, set back, or is no number of ours at all.
        for less in [64, T, T + 640] {
            assert_eq!(wanted.accept(number(less)), None, "{less}");
        }
        assert_eq!(wanted.accept(-64), None);
        let earlier = known.counted((T + 64).into(), 0);
        assert_eq!(earlier, known, "a token that came late changes nothing");
    }

    #[test]
    fn what_is_no_multiple_is_no_token() {
        let wanted = wanted_after(known(), SECOND, 0).unwrap();
        for beside in [1, 63] {
            assert_eq!(wanted.accept(number(T + 64 + beside)), None);
        }
    }

    /// As the script hands them out: the token, those that follow, and the counter above all of them.
    #[test]
    fn tokens_that_come_together_have_room_in_the_counter() {
        let known = given(T, 16).unwrap();
        let wanted = wanted_after(known, SECOND, 16).unwrap();
        assert_eq!((wanted.known, wanted.step()), (T + 64, 128));
        assert_eq!(wanted.accept(number(T + 64)), None);
        assert_eq!(
            wanted.accept(number(T + 128)),
            None,
            "a token that was given"
        );
        assert_eq!(wanted.accept(number(T + 192)), Some(T + 128));
        let next = known.counted((T + 128).into(), 16);
        assert_eq!(wanted_after(next, SECOND, 0).unwrap().known, T + 192);
        assert_eq!(wanted_after(known, 192, 16), None);
        assert!(wanted_after(known, 193, 16).is_some());
        let many = wanted_after(known, SECOND, 65).unwrap();
        assert_eq!(many.step(), 192);
    }

    /// What answers in the place of a server may say any number.
    #[test]
    fn no_number_is_too_large() {
        let largest = u64::MAX / STEP * STEP;
        for spare in [0, 16, u32::MAX] {
            let known = given(largest, spare).unwrap();
            assert!(wanted_after(known, SECOND, spare).is_none_or(|wanted| {
                [i64::MIN, 0, i64::MAX, number(T)].map(|number| wanted.accept(number)) == [None; 4]
            }));
            let counted = given(T, 0).unwrap().counted(largest.into(), spare);
            assert_eq!(wanted_after(counted, SECOND, spare), None);
        }
    }

    fn number(number: u64) -> i64 {
        i64::try_from(number).unwrap()
    }
}

//! Arguments drawn at random: those that clients send, and some that no client does.

use fastrand::Rng;

/// Channels with a listener.
pub(super) const HEARD: &[&str] = &[
    "ch",
    "ch:1a2b3c4d-0000-4000-8000-00000000000a:1",
    "ch:1a2b3c4d-0000-4000-8000-00000000000a",
];

/// Holder ids. On a read-write lock only the first two, so that its hash mostly has three fields at most and
/// `HRANDFIELD` leaves nothing to chance.
pub(super) const HOLDERS: &[&str] = &[
    "1a2b3c4d-0000-4000-8000-00000000000a:1",
    "1a2b3c4d-0000-4000-8000-00000000000b:2",
    "1a2b3c4d-0000-4000-8000-00000000000c:3",
    "1a2b3c4d-0000-4000-8000-00000000000d:-4",
];

/// Arguments that no client sends. Nothing that a script would count up to.
const ODD: &[&str] = &[
    "", "x", "-1", "0", "1.5", "-0", "007", " 1", "nan", "mode", "nil",
];
const ODD_LEASES: &[&str] = &[
    "",
    "x",
    "-1",
    "0",
    "1.5",
    "1e3",
    "1e400",
    "9223372036854775807",
    "inf",
];

pub(super) struct Drawing<'a> {
    pub(super) draw: &'a mut Rng,
    pub(super) holders: &'static [&'static str],
}

impl Drawing<'_> {
    pub(super) fn one_of(&mut self, of: &[&str]) -> String {
        of[self.draw.usize(..of.len())].to_owned()
    }

    pub(super) fn is_odd(&mut self) -> bool {
        self.draw.u8(..) < 3
    }

    pub(super) fn holder(&mut self) -> String {
        if self.is_odd() {
            return self.one_of(ODD);
        }
        self.one_of(self.holders)
    }

    pub(super) fn number(&mut self, of: &[&str]) -> String {
        if self.is_odd() {
            self.one_of(ODD)
        } else {
            self.one_of(of)
        }
    }

    pub(super) fn count(&mut self) -> String {
        self.number(&["0", "1", "1", "1", "2", "3"])
    }

    pub(super) fn flag(&mut self) -> String {
        self.number(&["0", "1"])
    }

    pub(super) fn lease(&mut self) -> String {
        if self.is_odd() {
            return self.one_of(ODD_LEASES);
        }
        self.one_of(&["1", "5", "2000", "30000", "30000", "30000", "90000"])
    }

    pub(super) fn heartbeat(&mut self) -> String {
        self.number(&["0", "1000", "3000"])
    }

    pub(super) fn retention(&mut self) -> String {
        self.number(&["0", "60000", "2592000000"])
    }

    pub(super) fn publish(&mut self) -> String {
        if self.is_odd() {
            self.one_of(&["NOTHING", ""])
        } else {
            "PUBLISH".to_owned()
        }
    }

    pub(super) fn channel(&mut self) -> String {
        self.one_of(&["ch", "elsewhere"])
    }

    pub(super) fn on_turn(&mut self) -> String {
        self.one_of(&["wake", "grant", "grant_fenced"])
    }

    /// The keys of a lock of a kind: itself, its counter, and the kind's own keys.
    pub(super) fn keys(&mut self, kind: &str) -> Vec<String> {
        let name = match kind {
            "rw" | "read" | "write" => self.one_of(&["r", "{r}"]),
            "fair" => self.one_of(&["f", "{f}"]),
            _ => self.one_of(&["a", "b"]),
        };
        let inner = name.trim_matches(['{', '}']);
        let helper = |what: &str| format!("{what}:{{{inner}}}");
        let mut keys = vec![name.clone(), helper("token")];
        match kind {
            "fair" => keys.extend(["queue", "timeouts", "alive"].map(helper)),
            "rw" | "read" | "write" => keys.push(helper("waiting")),
            _ => {}
        }
        keys
    }
}

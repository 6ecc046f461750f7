//! Whether two servers said the same and have the same, but for the time that passed between them.

use redis::{ServerError, Value};

use crate::node::Node;
use crate::store::{Data, SortedSet};

/// When a call was executed, by the real server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) from_us: u64,
    until_us: u64,
    /// Uncertainty about earlier times.
    slack_us: u64,
}

impl Bounds {
    pub(super) fn between(before: &Value, after: &Value, slack_us: u64) -> Self {
        Self {
            from_us: time(before),
            until_us: time(after),
            slack_us,
        }
    }

    pub(super) fn span_us(self) -> u64 {
        self.until_us - self.from_us
    }

    /// Whether two numbers of ms, or of µs, differ by no more than the call may explain.
    fn allow(self, a: f64, b: f64, is_us: bool) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "small")]
        let apart_us = (self.span_us() + self.slack_us) as f64;
        // A token is rounded to a multiple of 64.
        let most = if is_us {
            apart_us + 128.0
        } else {
            apart_us / 1000.0 + 2.0
        };
        (a - b).abs() <= most
    }
}

fn time(reply: &Value) -> u64 {
    let Value::Array(parts) = reply else {
        panic!("a time: {reply:?}")
    };
    let part = |at: usize| text(&parts[at]).parse::<u64>().expect("a number");
    part(0) * 1_000_000 + part(1)
}

fn text(value: &Value) -> String {
    match value {
        Value::BulkString(bytes) => String::from_utf8_lossy(bytes).into_owned(),
        other => panic!("a text: {other:?}"),
    }
}

/// A key of a server, in words.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Key {
    pub(super) name: String,
    kind: String,
    /// In ms; -1 without an end.
    pub(super) life: i64,
    data: Vec<String>,
}

impl Key {
    /// Whether it has more fields than a script looks at (`lua/includes/must_be_lock.lua`).
    pub(super) fn is_large_hash(&self) -> bool {
        self.kind == "hash" && self.data.len() > 2 * 3
    }

    /// From a reply to the dump: when it began and ended, and all keys in the order of their names.
    pub(super) fn all(dump: &Value) -> (&Value, &Value, Vec<Self>) {
        let Value::Array(parts) = dump else {
            panic!("a dump: {dump:?}")
        };
        let [began, ended, Value::Array(keys)] = &parts[..] else {
            panic!("a dump: {dump:?}")
        };
        let mut keys: Vec<Self> = keys.iter().map(Self::of).collect();
        keys.sort_by(|a, b| a.name.cmp(&b.name));
        (began, ended, keys)
    }

    fn of(entry: &Value) -> Self {
        let Value::Array(parts) = entry else {
            panic!("a key: {entry:?}")
        };
        let (Value::Int(life), Value::Array(data)) = (&parts[2], &parts[3]) else {
            panic!("a key: {entry:?}");
        };
        Self {
            name: text(&parts[0]),
            kind: text(&parts[1]),
            life: *life,
            data: data.iter().map(text).collect(),
        }
    }

    fn is_like(&self, other: &Self, bounds: Bounds) -> bool {
        #[expect(clippy::cast_precision_loss, reason = "below a year of ms")]
        let life = bounds.allow(self.life as f64, other.life as f64, false);
        let are_alike = |(a, b): (&String, &String)| is_like(a, b, bounds);
        self.name == other.name
            && self.kind == other.kind
            && (self.life == -1) == (other.life == -1)
            && life
            && self.data.len() == other.data.len()
            && self.data.iter().zip(&other.data).all(are_alike)
    }
}

/// Equal, or two times or tokens that are about equal: both are far above any count.
fn is_like(a: &str, b: &str, bounds: Bounds) -> bool {
    if a == b {
        return true;
    }
    let (Ok(a), Ok(b)) = (a.parse::<f64>(), b.parse::<f64>()) else {
        return false;
    };
    let is_us = a.abs() > 1e14;
    let is_time = a.abs() > 1e11 && a.fract() == b.fract();
    is_time && bounds.allow(a, b, is_us)
}

fn is_reply_like(real: &Value, ours: &Value, bounds: Bounds) -> bool {
    match (real, ours) {
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| is_reply_like(a, b, bounds))
        }
        #[expect(clippy::cast_precision_loss, reason = "times and leases")]
        (Value::Int(a), Value::Int(b)) => {
            // Small numbers are counts and codes; no lease between calls is as short.
            a == b || a.abs().min(b.abs()) > 100 && bounds.allow(*a as f64, *b as f64, false)
        }
        (Value::BulkString(_), Value::BulkString(_)) => is_like(&text(real), &text(ours), bounds),
        (Value::ServerError(real), Value::ServerError(ours)) => {
            real.code() == ours.code() && cause_and_line(real) == cause_and_line(ours)
        }
        (real, ours) => real == ours,
    }
}

/// The text of a refusal, without the script's SHA: Redis tells it, Valkey does not.
fn cause_and_line(refusal: &ServerError) -> (&str, Option<&str>) {
    let text = refusal.details().unwrap_or_default();
    let (cause, place) = text.split_once(" script: ").unwrap_or((text, ""));
    // Redis begins this one with more words than Valkey.
    const NIL: &str = "ommand arguments must be strings or integers";
    let cause = if cause.ends_with(NIL) { NIL } else { cause };
    (
        cause,
        place.split_once("@user_script:").map(|(_, line)| line),
    )
}

/// The difference, if there is one.
pub(super) fn differs(
    real: &Value,
    simulated: &Value,
    keys: &[Key],
    ours: &[Key],
    bounds: Bounds,
) -> Option<&'static str> {
    if !is_reply_like(real, simulated, bounds) {
        return Some("the replies differ");
    }
    // A key that ends within the call may be gone on one of them.
    let lasts = |key: &&Key| key.life == -1 || key.life > 50;
    let keys: Vec<&Key> = keys.iter().filter(lasts).collect();
    let ours: Vec<&Key> = ours.iter().filter(lasts).collect();
    let are_alike =
        keys.len() == ours.len() && keys.iter().zip(&ours).all(|(a, b)| a.is_like(b, bounds));
    (!are_alike).then_some("the keys differ")
}

pub(super) fn dump_of(node: &Node) -> Vec<Key> {
    let names = node.store.keys();
    let word = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let keys = names.iter().map(|name| {
        let data = node.store.get(name).expect("listed");
        let words = match data {
            Data::Text(text) => vec![word(text)],
            Data::Hash(fields) => fields
                .iter()
                .flat_map(|(f, v)| [word(f), word(v)])
                .collect(),
            Data::List(items) => items.iter().map(|item| word(item)).collect(),
            Data::Sorted(set) => set
                .iter()
                .flat_map(|(score, member)| [word(member), crate::number::text(score)])
                .collect(),
        };
        let end = node.store.ends_at(name);
        Key {
            name: word(name),
            kind: data.kind().to_owned(),
            life: end.map_or(-1, |end| end - node.store.now_ms()),
            data: words,
        }
    });
    keys.collect()
}

/// Gives the simulated server the keys of the real one.
pub(super) fn sync(node: &mut Node, keys: &[Key], bounds: Bounds) {
    node.store.set_clock(bounds.until_us);
    node.store.clear();
    for key in keys {
        let bytes = |text: &String| text.as_bytes().into();
        let pairs = || key.data.chunks(2);
        let data = match &*key.kind {
            "string" => Data::Text(bytes(&key.data[0])),
            "hash" => Data::Hash(
                pairs()
                    .map(|pair| (bytes(&pair[0]), bytes(&pair[1])))
                    .collect(),
            ),
            "list" => Data::List(key.data.iter().map(bytes).collect()),
            _ => {
                let mut set = SortedSet::default();
                for pair in pairs() {
                    set.insert(pair[1].parse().expect("a score"), pair[0].as_bytes());
                }
                Data::Sorted(set)
            }
        };
        let end = (key.life >= 0).then(|| node.store.now_ms() + key.life);
        node.store.set(key.name.as_bytes(), data, end);
    }
}

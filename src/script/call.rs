//! A script with its keys and arguments, as a command that can be sent repeatedly.

use std::borrow::Cow;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use redis::{Cmd, ToRedisArgs, Value};

use super::catalog::{self, Script};
use super::native::{self, Release};
use crate::api::holder::HolderId;
use crate::conn::words;
use crate::engine::Few;
use crate::engine::clock::Tick;

/// A script with its keys and arguments, ready to be sent repeatedly.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(super) script: &'static Script,
    /// The key that selects the server of a cluster.
    pub(super) route: Arc<str>,
    /// Plain commands with the same effect, preferred where the server allows them.
    pub(super) native: Option<Release>,
    /// Built on first use if there are plain commands.
    by_sha: OnceLock<Cmd>,
}

impl Call {
    /// `route` must be the first of `keys`, or share its slot.
    pub(crate) fn new(script: &'static Script, route: &Arc<str>, keys: &[&str]) -> Self {
        let mut by_sha = Cmd::with_capacity(8 + keys.len(), 192);
        by_sha.arg("EVALSHA").arg(script.sha()).arg(keys.len());
        for key in keys {
            by_sha.arg(key);
        }
        Self {
            script,
            route: Arc::clone(route),
            native: None,
            by_sha: by_sha.into(),
        }
    }

    /// Makes the call that releases a whole hold of a lock, by `HDEL` and `PUBLISH` if possible.
    pub(crate) fn release_plain(key: &Arc<str>, holder: &HolderId, tell: Arc<Cmd>) -> Self {
        Self {
            script: &catalog::REENTRANT_RELEASE,
            route: Arc::clone(key),
            native: Some(native::release(key, holder.as_bytes(), tell)),
            by_sha: OnceLock::new(),
        }
    }

    pub(crate) fn by_sha(&self) -> &Cmd {
        self.by_sha.get_or_init(|| {
            let native = self.native.as_ref();
            native.map_or_else(Cmd::new, |release| release.by_script(self.script.sha()))
        })
    }

    /// Makes the call of a script for several locks: the arguments for all of them, then the keys and arguments of
    /// each.
    pub(crate) fn of_parts<'a>(
        script: &'static Script,
        for_all: &[&str],
        parts: impl Iterator<Item = Part<'a>>,
    ) -> Self {
        let parts: Vec<Part<'a>> = parts.collect();
        let keys = parts.iter().flat_map(|part| &part.keys);
        let keys: Vec<&str> = keys.map(|key| &**key).collect();
        let route = keys.first().copied().unwrap_or_default().into();
        let call = Self::new(script, &route, &keys).arg(for_all);
        let args = parts.iter().flat_map(|part| &part.args);
        args.fold(call, |call, arg| call.arg(&**arg))
    }

    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        if let Some(by_sha) = self.by_sha.get_mut() {
            by_sha.arg(arg);
        }
        self
    }

    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    pub(super) fn by_text(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(self.script.text());
        for word in words(self.by_sha()).skip(2) {
            cmd.arg(word);
        }
        cmd
    }
}

/// The keys and arguments of one lock in a script for several.
#[derive(Debug, Default)]
pub(crate) struct Part<'a> {
    keys: Few<Cow<'a, str>>,
    args: Few<Cow<'a, str>>,
}

impl<'a> Part<'a> {
    pub(crate) fn key(mut self, key: impl Into<Cow<'a, str>>) -> Self {
        self.keys.push(key.into());
        self
    }

    pub(crate) fn word(mut self, word: impl Into<Cow<'a, str>>) -> Self {
        self.args.push(word.into());
        self
    }

    pub(crate) fn number(self, number: impl Into<u64>) -> Self {
        self.word(number.into().to_string())
    }
}

/// Returns a duration in ms for a script, rounded up.
pub(crate) fn millis(span: Duration) -> u64 {
    let rest = u64::from(span.subsec_nanos().div_ceil(1_000_000));
    span.as_secs().saturating_mul(1_000).saturating_add(rest)
}

/// A reply, with the time at which its attempt was sent.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) value: Value,
    /// The time just before the bytes were written. Leases count from it.
    pub(crate) sent: Tick,
    /// Whether an earlier attempt without a reply may have been executed as well.
    pub(crate) repeated: bool,
    /// Such an attempt may still arrive, after this reply.
    pub(crate) is_in_doubt: bool,
    /// The send time of the first attempt that may have been executed.
    pub(crate) first_sent: Tick,
}

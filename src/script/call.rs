//! A script with its keys and arguments, as a command that may be sent any number of times.

use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, ToRedisArgs};

use super::catalog::Script;

/// A script with its keys and arguments, ready to be sent any number of times.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(super) script: &'static Script,
    /// The key that decides which server of a cluster it goes to.
    pub(super) route: Arc<str>,
    pub(super) by_sha: Cmd,
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
            by_sha,
        }
    }

    /// A script for many: the arguments it takes for all, and the keys and arguments of each.
    pub(crate) fn of_parts(
        script: &'static Script,
        for_all: &[&str],
        parts: impl Iterator<Item = Part>,
    ) -> Self {
        let parts: Vec<Part> = parts.collect();
        let keys: Vec<&str> = parts
            .iter()
            .flat_map(|part| &part.keys)
            .map(|key| &**key)
            .collect();
        let route = keys.first().copied().unwrap_or_default().into();
        let mut call = Self::new(script, &route, &keys);
        call.by_sha.arg(for_all);
        for part in &parts {
            call.by_sha.arg(&part.args);
        }
        call
    }

    pub(crate) fn arg(mut self, arg: impl ToRedisArgs) -> Self {
        self.by_sha.arg(arg);
        self
    }

    pub(crate) fn route(&self) -> &str {
        &self.route
    }

    pub(super) fn by_text(&self) -> Cmd {
        let mut cmd = Cmd::new();
        cmd.arg("EVAL").arg(self.script.text());
        for arg in self.by_sha.args_iter().skip(2) {
            if let redis::Arg::Simple(arg) = arg {
                cmd.arg(arg);
            }
        }
        cmd
    }
}

/// The keys and arguments of one of many.
#[derive(Debug, Default)]
pub(crate) struct Part {
    pub(crate) keys: Vec<String>,
    pub(crate) args: Vec<String>,
}

impl Part {
    pub(crate) fn key(mut self, key: impl Into<String>) -> Self {
        self.keys.push(key.into());
        self
    }

    pub(crate) fn arg(mut self, arg: impl ToString) -> Self {
        self.args.push(arg.to_string());
        self
    }
}

/// A duration as scripts take it, rounded up.
pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_nanos().div_ceil(1_000_000)).unwrap_or(u64::MAX)
}

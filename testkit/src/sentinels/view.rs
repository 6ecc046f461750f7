//! What a sentinel says about the primary it watches.
//!
//! Invariant: a view is one sentinel's opinion; of two, the one of the later failover is the newer.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::NAME;
use crate::server::Server;

/// A process that does not answer for so long is frozen or dead.
const LOOK_BOUND: Duration = Duration::from_secs(1);

type Fields = HashMap<String, String>;

type Answers = ((String, u16), Fields, Vec<Fields>);

/// One sentinel's opinion.
#[derive(Debug)]
pub(super) struct View {
    /// The port of the server it sends clients to.
    pub(super) port: u16,
    /// The number of the failover it heard of last.
    pub(super) epoch: u64,
    /// What it thinks of that server: `master`, and what is wrong with it.
    pub(super) flags: String,
    /// How many replicas it takes to be fit to become primary.
    pub(super) replicas: usize,
    pub(super) other_sentinels: usize,
}

impl View {
    async fn of(sentinel: &Server) -> Option<Self> {
        let questions: &[&[&str]] = &[
            &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME],
            &["SENTINEL", "MASTER", NAME],
            // Redis 6.2 knows the newer word too.
            &["SENTINEL", "REPLICAS", NAME],
        ];
        let answers = sentinel.try_ask::<Answers>(questions);
        let ((_, port), fields, replicas) = timeout(LOOK_BOUND, answers).await.ok()?.ok()?;
        let is = |replica: &Fields, name: &str, wanted: &str| {
            replica.get(name).is_some_and(|value| value == wanted)
        };
        let fit = replicas.iter().filter(|replica| {
            is(replica, "flags", "slave") && is(replica, "master-link-status", "ok")
        });
        Some(Self {
            port,
            epoch: fields.get("config-epoch")?.parse().ok()?,
            flags: fields.get("flags")?.clone(),
            replicas: fit.count(),
            other_sentinels: fields.get("num-other-sentinels")?.parse().ok()?,
        })
    }

    /// Asks all sentinels at once; `None` in the place of each that does not answer.
    pub(super) async fn of_all(sentinels: &[Server]) -> Vec<Option<Self>> {
        join_all(sentinels.iter().map(Self::of)).await
    }
}

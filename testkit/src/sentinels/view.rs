//! Reads a sentinel's view of its primary.
//!
//! Invariant: a view is one sentinel's opinion. Of two views, the one with the later failover is
//! newer.

use std::collections::HashMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::timeout;

use super::NAME;
use crate::server::Server;

/// A process that does not answer within this time is frozen or dead.
const LOOK_BOUND: Duration = Duration::from_secs(1);

type Fields = HashMap<String, String>;

type Answers = ((String, u16), Fields, Vec<Fields>);

/// One sentinel's view.
#[derive(Debug)]
pub(super) struct View {
    /// The port of the server that it sends clients to.
    pub(super) port: u16,
    /// The number of the last failover that it knows of.
    pub(super) epoch: u64,
    /// The flags of that server: `master`, and any problems.
    pub(super) flags: String,
    /// The number of replicas that it considers suitable for promotion.
    pub(super) replicas: usize,
    pub(super) other_sentinels: usize,
}

impl View {
    async fn of(sentinel: &Server) -> Option<Self> {
        let questions: &[&[&str]] = &[
            &["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME],
            &["SENTINEL", "MASTER", NAME],
            // Redis 6.2 also knows the newer name.
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

    /// Asks all sentinels at once. A sentinel that does not answer gives `None`.
    pub(super) async fn of_all(sentinels: &[Server]) -> Vec<Option<Self>> {
        join_all(sentinels.iter().map(Self::of)).await
    }
}

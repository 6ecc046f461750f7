//! What a server says about its part in replication.

use std::time::Duration;

use redis::InfoDict;
use tokio::time::timeout;

use crate::server::Server;

/// A server that does not answer for so long is frozen or dead.
const LOOK_BOUND: Duration = Duration::from_secs(1);

/// One server's answer.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Primary {
        /// How many replicas are connected and have all data.
        online: usize,
    },
    Replica {
        /// The port of its primary, or of what stands in front of it.
        of: u16,
        linked: bool,
    },
}

impl Role {
    /// Asks a server; `None` if it does not answer within a second.
    pub(crate) async fn of(server: &Server) -> Option<Self> {
        let answer = server.try_ask::<(InfoDict,)>(&[&["INFO", "replication"]]);
        let (info,) = timeout(LOOK_BOUND, answer).await.ok()?.ok()?;
        let link: Option<String> = info.get("master_link_status");
        Some(match info.get("master_port") {
            Some(of) => Self::Replica {
                of,
                linked: link.as_deref() == Some("up"),
            },
            None => Self::Primary {
                online: online(&info),
            },
        })
    }
}

/// Counts the lines `slave0:ip=..,port=..,state=online,..`.
fn online(info: &InfoDict) -> usize {
    let replicas: usize = info.get("connected_slaves").unwrap_or(0);
    (0..replicas)
        .filter_map(|index| info.get::<String>(&format!("slave{index}")))
        .filter(|line| line.contains("state=online"))
        .count()
}

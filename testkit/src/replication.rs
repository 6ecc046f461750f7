//! Configures and queries the replication of servers.

use std::time::Duration;

use redis::InfoDict;
use tokio::time::timeout;

use crate::server::Server;

/// A server that does not answer within this time is frozen or dead.
const LOOK_BOUND: Duration = Duration::from_secs(1);

/// Arguments that send a replica its data at once, and a ping every second.
pub(crate) const AT_ONCE: [&str; 6] = [
    "--repl-diskless-sync",
    "yes",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
];

/// The role that a server reports.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Primary {
        /// The number of connected replicas with all data.
        online: usize,
    },
    Replica {
        /// The port of its primary, or of the proxy in front of it.
        of: u16,
        linked: bool,
    },
}

impl Role {
    /// Asks a server. Returns `None` if it does not answer within a second.
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

/// Whether all others follow the first server, according to both sides.
pub(crate) async fn following(servers: &[Server]) -> Result<(), String> {
    let (primary, replicas) = servers.split_first().ok_or("there is no server")?;
    let upstreams = vec![primary.peer_addr().port(); replicas.len()];
    following_through(primary, replicas, &upstreams).await
}

/// Whether all replicas follow the primary according to both sides, each through its port: the
/// primary's, or the proxy's.
pub(crate) async fn following_through(
    primary: &Server,
    replicas: &[Server],
    upstreams: &[u16],
) -> Result<(), String> {
    for (replica, of) in replicas.iter().zip(upstreams) {
        let role = Role::of(replica).await;
        let wanted = Role::Replica {
            of: *of,
            linked: true,
        };
        if role.as_ref() != Some(&wanted) {
            return Err(format!("{} is {role:?}", replica.addr()));
        }
    }
    match Role::of(primary).await {
        Some(Role::Primary { online }) if online == replicas.len() => Ok(()),
        role => Err(format!("{} is {role:?}", primary.addr())),
    }
}

/// A server's replication offset in bytes.
pub(crate) async fn offset(server: &Server) -> Result<u64, String> {
    let answer = server.try_ask::<(InfoDict,)>(&[&["INFO", "replication"]]);
    let info = match timeout(LOOK_BOUND, answer).await {
        Ok(Ok((info,))) => info,
        Ok(Err(error)) => return Err(format!("{} answers {error}", server.addr())),
        Err(_) => return Err(format!("{} does not answer", server.addr())),
    };
    // The data that a replica has executed. A primary does not have this field, and reports what it
    // wrote in the other field.
    info.get("slave_repl_offset")
        .or_else(|| info.get("master_repl_offset"))
        .ok_or_else(|| format!("{} gives no offset", server.addr()))
}

//! A cluster: each command goes to the node that serves the slot of its key.
//!
//! We route commands ourselves, with one server per node, because order and outcome matter more here than convenience:
//! a command is sent again only if a node replied that it did not execute it.
//!
//! ```text
//! map.rs          pure: slots, views of nodes, redirections
//! route.rs        the node for each command; redirections followed
//! refresh.rs      the task that keeps the map up to date, and the questions to nodes
//! ```

mod map;
mod refresh;
mod route;

use std::sync::Arc;

use redis::ConnectionInfo;

use self::map::Told;
pub(super) use self::map::slot_of;
pub(super) use self::route::Router;
use super::address::Address;
use super::error_reply::connect_error;
use super::setup::Setup;
use super::single::Nodes;
use super::transport::Fault;
use crate::api::error::{Error, Kind};

/// Connects to a cluster, with the map from its seeds. The future keeps the map up to date, and never ends.
pub(super) async fn connect(
    seeds: Vec<Address>,
    model: ConnectionInfo,
    setup: Setup,
) -> Result<(Arc<Router>, impl Future<Output = ()>), Error> {
    let nodes = Nodes::new(model, setup);
    let Told { address, view, .. } = refresh::discover(&nodes, &seeds, None, &seeds)
        .await
        .map_err(no_seed)?;
    let channels = refresh::channels(&nodes, &address).await;
    let channels = channels.map_err(|fault| connect_error(fault, &address.to_string()))?;
    let router = Arc::new(Router::new(nodes, seeds, channels));
    let mark = router.refresh_wanted.mark();
    router.adopt(&view, &view);
    let refresh = refresh::run(Arc::clone(&router), view, mark);
    Ok((router, refresh))
}

/// Makes the error of a connect that got no map from any seed. An error reply of one seed, or of this client itself,
/// says more than the silence of another seed.
fn no_seed(faults: Vec<(Address, Fault)>) -> Error {
    if faults.is_empty() {
        let why = "the nodes in the URL belong to different clusters; name those of one cluster";
        return Error::invalid("connect", why);
    }
    let mut silent = Vec::new();
    for (address, fault) in faults {
        match fault {
            Fault::Unsent(why) | Fault::Unknown(why) if why.kind == Kind::Io => {
                silent.push(why.to_string());
            }
            fault => return connect_error(fault, &address.to_string()),
        }
    }
    let why = format!("no node of the cluster answers ({})", silent.join("; "));
    connect_error(Fault::Unsent(why.into()), "")
}

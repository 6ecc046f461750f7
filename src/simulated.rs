//! A client on servers that the crate `lockset-sim` simulates. That crate provides its network and its clock.
//!
//! For that crate alone. It is not part of the documented API, and it changes with the engine. Invariant: only the stream
//! of bytes is replaced, so the real engine and the real connections run here.

use std::sync::Arc;

use crate::api::builder::ClientBuilder;
use crate::api::error::Result;
use crate::client::Client;
use crate::conn::{self, EventHandler as _};
pub use crate::conn::{ReadWrite, SimulatedNetwork as Network, Stream};
use crate::engine::clock::Clock;
use crate::script::catalog;

/// A client with this id on tokio's clock, which finds the servers of its URL on another network. Certificates change
/// nothing.
///
/// # Errors
/// As for [`ClientBuilder::build`].
pub async fn client_on(
    #[cfg_attr(not(feature = "tls"), expect(unused_mut))] mut builder: ClientBuilder,
    id: &str,
    network: Arc<dyn Network>,
) -> Result<Client> {
    #[cfg(feature = "tls")]
    {
        builder.tls = None;
    }
    let network = conn::Network::Simulated(network);
    builder.build_on(network, Clock::of_runtime(), id).await
}

/// What has this client check all that it holds. Does not keep the client alive.
pub fn check_of(client: &Client) -> impl Fn() + Send + Sync + use<> {
    let locals = Arc::clone(&client.core().locals);
    move || locals.moved()
}

/// Lists the scripts: the name, the SHA and the text of each.
pub fn scripts() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    catalog::ALL
        .iter()
        .map(|(name, script)| (*name, script.sha(), script.text()))
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use std::io;

    use futures_util::future::BoxFuture;

    use super::*;
    use crate::Tls;

    #[derive(Debug)]
    struct Nowhere;

    impl Network for Nowhere {
        fn connect<'a>(&'a self, _host: &'a str, _port: u16) -> BoxFuture<'a, io::Result<Stream>> {
            Box::pin(async { Err(io::ErrorKind::HostUnreachable.into()) })
        }

        fn task(&self, task: BoxFuture<'static, ()>) -> BoxFuture<'static, ()> {
            task
        }
    }

    #[tokio::test]
    async fn certificates_change_nothing() {
        let builder = Client::builder("redis://simulated").lazy();
        let client = client_on(builder.tls(Tls::new()), "id", Arc::new(Nowhere)).await;
        client.expect("as without them");
    }
}

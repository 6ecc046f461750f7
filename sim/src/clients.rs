//! The clients of a network: how one is made, and which of them a test was given.

use std::sync::Arc;

use lockset::simulated::Network;
use lockset::{Client, ClientBuilder, Result};
use parking_lot::Mutex;

use crate::net::{Net, Sockets, State};
use crate::process::Process;

/// A client of a process, on the servers of this URL.
pub(crate) struct Made {
    /// In the network.
    pub(crate) number: usize,
    pub(crate) client: Result<Client>,
}

impl Made {
    pub(crate) async fn new(
        net: &Arc<Net>,
        process: &Arc<Process>,
        url: &str,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Self {
        let sockets = Sockets::new(net, Arc::clone(process));
        let number = sockets.client;
        let id = net.with(State::new_uuid);
        let builder = settings(Client::builder(url));
        let network: Arc<dyn Network> = Arc::new(sockets);
        let client = lockset::simulated::client_on(builder, &id, network).await;
        Self { number, client }
    }
}

#[derive(Clone)]
struct Known {
    id: String,
    number: usize,
    process: Arc<Process>,
    /// Has it check what it holds.
    check: Arc<dyn Fn() + Send + Sync>,
}

/// All clients of one server, or of servers that belong together.
#[derive(Default)]
pub(crate) struct Clients(Mutex<Vec<Known>>);

impl Clients {
    /// Makes a client in a process of its own.
    pub(crate) async fn add(
        &self,
        net: &Arc<Net>,
        url: &str,
        settings: impl FnOnce(ClientBuilder) -> ClientBuilder,
    ) -> Result<Client> {
        let process = Arc::<Process>::default();
        let Made { number, client } = Made::new(net, &process, url, settings).await;
        let client = client?;
        self.0.lock().push(Known {
            id: client.id().to_owned(),
            number,
            process,
            check: Arc::new(lockset::simulated::check_of(&client)),
        });
        Ok(client)
    }

    /// Has all clients check what they hold.
    pub(crate) fn check(&self) {
        let known = self.0.lock().clone();
        known.iter().for_each(|known| (known.check)());
    }

    /// Its number in the network, and its process.
    ///
    /// # Panics
    /// If it is none of them.
    pub(crate) fn find(&self, client: &Client) -> (usize, Arc<Process>) {
        let known = self.0.lock();
        let found = known.iter().find(|known| known.id == client.id());
        let found = found.expect("a client of this server");
        (found.number, Arc::clone(&found.process))
    }
}

//! The clients that a test was given: which of the network each is, and its process.

use std::sync::Arc;

use lockset::Client;
use parking_lot::Mutex;

use crate::process::Process;

#[derive(Clone)]
struct Known {
    id: String,
    number: usize,
    process: Arc<Process>,
}

/// All clients of one server, or of servers that belong together.
#[derive(Default)]
pub(crate) struct Clients(Mutex<Vec<Known>>);

impl Clients {
    pub(crate) fn add(&self, id: String, number: usize, process: Arc<Process>) {
        self.0.lock().push(Known {
            id,
            number,
            process,
        });
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

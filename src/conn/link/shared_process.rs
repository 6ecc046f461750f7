//! The process that answers at an address, as all links to that address know it.
//!
//! Invariant: no link uses a connection to any process but the one that was met last. An address may lead new
//! connections to another server while old connections stay open. A client that took locks on one and renewed them
//! on the other would keep locks that other clients can acquire.

use std::fmt::Debug;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use redis::RedisError;

use crate::conn::process::Process;
use crate::engine::clock::Tick;

/// Counts the processes met at an address. A connection keeps the number that its process had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// A link to the address.
pub(super) trait Sibling: Debug + Send + Sync {
    /// Stops using a connection to an earlier process.
    fn leave_earlier(&self);
}

#[derive(Debug, Default)]
pub(crate) struct SharedProcess {
    /// The process met last; `None` if it did not say which it is.
    known: Mutex<Option<Process>>,
    generation: AtomicU64,
    links: Mutex<Vec<Weak<dyn Sibling>>>,
    node: Mutex<Node>,
}

/// The node of a cluster at the address.
#[derive(Debug, Default)]
struct Node {
    /// The ids that the map of the cluster has for the address. Empty if any server is accepted.
    expected: Vec<String>,
    /// The id of the node that was met last.
    met: Option<String>,
}

impl SharedProcess {
    /// Adds a link, which leaves its connection when another link meets another process.
    pub(super) fn add<S: Sibling + 'static>(&self, link: &Arc<S>) {
        let link: Weak<S> = Arc::downgrade(link);
        self.links.lock().push(link);
    }

    pub(super) fn known(&self) -> Option<Process> {
        self.known.lock().clone()
    }

    pub(super) fn is_earlier(&self, generation: Generation) -> bool {
        self.generation.load(Ordering::Acquire) != generation.0
    }

    /// Notes the process behind a new connection. Returns its generation, and whether it replaces another process. In
    /// that case no other link uses a connection to the earlier process when this returns.
    pub(super) fn met(&self, process: Option<Process>, now: Tick) -> (Generation, bool) {
        let (generation, is_another) = {
            // A question about replies on an earlier connection is answered for a later process from now on, which
            // errs on the safe side.
            let mut known = self.known.lock();
            let run =
                |process: &Option<Process>| process.as_ref().map(|one| Arc::clone(&one.run_id));
            let is_another = known.is_some() && run(&known) != run(&process);
            *known = process.map(|process| process.after(known.as_ref(), now));
            let more = u64::from(is_another);
            let generation = self.generation.fetch_add(more, Ordering::AcqRel) + more;
            (Generation(generation), is_another)
        };
        if is_another {
            self.leave_earlier();
        }
        (generation, is_another)
    }

    fn leave_earlier(&self) {
        let links = self.links.lock().clone();
        for link in links.iter().filter_map(Weak::upgrade) {
            link.leave_earlier();
        }
    }

    /// Sets the ids of nodes that are accepted at the address. Connections to any other node are left.
    pub(crate) fn expect_node(&self, ids: Vec<String>) {
        let mut node = self.node.lock();
        node.expected = ids;
        let met = node.met.as_ref();
        let is_stranger = met.is_some_and(|id| node.check(Some(id)).is_err());
        if is_stranger {
            node.met = None;
        }
        drop(node);
        if is_stranger {
            self.generation.fetch_add(1, Ordering::AcqRel);
            self.leave_earlier();
        }
    }

    /// Whether a new connection has to ask for the id of its node.
    pub(super) fn expects_node(&self) -> bool {
        !self.node.lock().expected.is_empty()
    }

    /// Notes the id of the node behind a new connection; `None` if its server is in no cluster.
    ///
    /// # Errors
    /// If the map of the cluster has another node at this address.
    pub(super) fn met_node(&self, id: Option<&str>) -> Result<(), RedisError> {
        let mut node = self.node.lock();
        node.check(id)?;
        node.met = id.map(str::to_owned);
        Ok(())
    }
}

impl Node {
    fn check(&self, id: Option<&str>) -> Result<(), RedisError> {
        let mut expected = self.expected.iter();
        if self.expected.is_empty() || expected.any(|expected| Some(&**expected) == id) {
            return Ok(());
        }
        let expected = self.expected.join(" or ");
        let found = id.map_or("a server that is in no cluster".to_owned(), |id| {
            format!("node {id}")
        });
        let why = format!("the cluster has node {expected} at this address, but {found} answered");
        Err(io::Error::other(why).into())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;

    use super::*;

    #[derive(Debug, Default)]
    struct Link(AtomicUsize);

    impl Sibling for Link {
        fn leave_earlier(&self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn run(id: &str) -> Option<Process> {
        Some(Process {
            run_id: id.into(),
            up_since: Tick::ZERO,
        })
    }

    #[test]
    fn a_link_that_meets_another_process_has_its_siblings_leave_theirs() {
        let process = SharedProcess::default();
        let sibling = Arc::<Link>::default();
        process.add(&sibling);
        let left = || sibling.0.load(Ordering::Relaxed);
        // A user without the right to ask.
        let (unknown, is_another) = process.met(None, Tick::ZERO);
        assert!(!is_another && !process.is_earlier(unknown));
        let (first, is_another) = process.met(run("a"), Tick::ZERO);
        assert!(!is_another && !process.is_earlier(unknown));
        let (again, is_another) = process.met(run("a"), Tick::ZERO);
        assert!(!is_another && again == first && left() == 0);
        let (second, is_another) = process.met(run("b"), Tick::ZERO);
        assert!(is_another && left() == 1);
        assert!(process.is_earlier(first) && !process.is_earlier(second));
        // The user may not ask any longer.
        let (third, is_another) = process.met(None, Tick::ZERO);
        assert!(is_another && left() == 2);
        assert!(process.is_earlier(second) && !process.is_earlier(third));
        drop(sibling);
        assert!(process.met(run("a"), Tick::ZERO).0 == third);
    }

    #[test]
    fn only_the_node_that_the_map_names_is_accepted() {
        let process = SharedProcess::default();
        let sibling = Arc::<Link>::default();
        process.add(&sibling);
        let left = || sibling.0.load(Ordering::Relaxed);
        assert!(!process.expects_node());
        process.met_node(Some("x")).unwrap();
        let (generation, _) = process.met(run("a"), Tick::ZERO);
        process.expect_node(vec!["a".to_owned(), "b".to_owned()]);
        assert!(process.is_earlier(generation) && left() == 1);
        assert!(process.expects_node());
        process.met_node(Some("b")).unwrap();
        for other in [Some("x"), None] {
            let refused = process.met_node(other).unwrap_err().to_string();
            assert!(refused.contains("node a or b"), "{refused}");
        }
        process.expect_node(vec!["b".to_owned()]);
        assert_eq!(left(), 1);
        process.expect_node(Vec::new());
        assert!(!process.expects_node() && left() == 1);
    }
}

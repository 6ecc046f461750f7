//! The servers of a Redlock and their rules: which can be one, and which has a vote just now.
//!
//! Invariant: servers are as many as were named, whether or not they were ever seen; one that was not
//! seen has no vote.
//!
//! Why a server that was restarted does not vote for a lease: it may have had a vote for a holder
//! that is alive, and may have lost it. That holder asked it last before it went down, so by its own
//! clock its hold there is over a lease after the server came up again. How long a server is up is
//! asked on every connection before that is used, and looked at after the answer came. So it is said of
//! the process that gave the answer, or of one that was started later, and that errs on the safe side.

use std::time::Duration;

use futures_util::future::join_all;

use super::NEW;
use super::votes::{Said, Tally};
use crate::client::Client;
use crate::conn::url::{self, Target};
use crate::conn::{Lane, Process, Transport};
use crate::error::{Error, Result};
use crate::options::check_lease;

#[derive(Debug)]
pub(super) struct Electorate {
    pub(super) clients: Vec<Client>,
    /// The client in which tasks of this process wait for each other, whatever the order of the
    /// clients.
    pub(super) meeting: usize,
    /// `None` if the servers forget nothing.
    pub(super) longest_lease: Option<Duration>,
}

impl Electorate {
    /// Of `clients`, if they can be one: as far as addresses tell, and servers that were seen.
    pub(super) fn of(
        clients: Vec<Client>,
        longest_lease: Duration,
        is_persistent: bool,
    ) -> Result<Self> {
        let Some(meeting) = (0..clients.len()).min_by_key(|at| transport(&clients[*at]).address())
        else {
            return Err(invalid("a Redlock needs at least one client".to_owned()));
        };
        let mut transports = clients.iter().map(transport);
        if let Some(transport) = transports.find(|transport| !transport.stands_alone()) {
            return Err(no_single_server(transport.address()));
        }
        let leases = clients.iter().map(|client| client.core().timing.lease);
        let longest = leases.max().unwrap_or_default().max(longest_lease);
        check_lease(longest).map_err(|error| error.during(NEW))?;
        let electorate = Self {
            clients,
            meeting,
            longest_lease: (!is_persistent).then_some(longest),
        };
        electorate.are_distinct()?;
        Ok(electorate)
    }

    /// Of these servers, of which a majority answers.
    pub(super) async fn connect(urls: Vec<String>) -> Result<Self> {
        let mut clients = Vec::with_capacity(urls.len());
        for url in &urls {
            if !matches!(url::parse(url)?, Target::Single(_)) {
                return Err(no_single_server("a cluster or a primary with sentinels"));
            }
            clients.push(Client::builder(url).lazy().build().await?);
        }
        let electorate = Self::of(clients, Duration::ZERO, false)?;
        let clients = &electorate.clients;
        let answers = join_all(clients.iter().map(Client::is_served)).await;
        let mut tally = Tally::new(clients.len(), electorate.need());
        for (at, answer) in answers.into_iter().enumerate() {
            match answer {
                Ok(()) => tally.note(at, Said::Here),
                // It will not become better, and it is the program that has to be put right.
                Err(error) if error.is_invalid() => {
                    return Err(error.at(transport(&clients[at]).address()));
                }
                Err(error) => tally.note(at, Said::Failed(error)),
            }
        }
        electorate.are_distinct()?;
        match tally.is_unable() {
            true => Err(tally.error("connect", electorate.addresses())),
            false => Ok(electorate),
        }
    }

    pub(super) fn need(&self) -> usize {
        self.clients.len() / 2 + 1
    }

    pub(super) fn addresses(&self) -> impl Iterator<Item = &str> {
        self.clients
            .iter()
            .map(|client| transport(client).address())
    }

    /// Clocks differ in rate by up to a hundredth.
    fn floor(&self) -> Option<Duration> {
        self.longest_lease.map(|longest| longest + longest / 100)
    }

    /// Why what a server has just said is not to be counted.
    pub(super) fn out(&self, at: usize) -> Option<Said> {
        let process = self.process(at);
        let twin = process.as_ref().and_then(|process| {
            (0..at).find(|other| self.process(*other).is_some_and(|of| of.is_run(process)))
        });
        if let Some(twin) = twin {
            let address = transport(&self.clients[twin]).address();
            return Some(Said::Twin(address.to_owned()));
        }
        let floor = self.floor()?;
        match process {
            Some(process) => self.young(&process, floor),
            None => Some(Said::Unproven),
        }
    }

    /// Why it is no use to ask a server, as far as is known.
    pub(super) fn out_for_now(&self, at: usize) -> Option<Said> {
        self.young(&self.process(at)?, self.floor()?)
    }

    fn young(&self, process: &Process, floor: Duration) -> Option<Said> {
        let up = process.up_since.until(self.clients[0].core().clock.now());
        let left = floor.saturating_sub(up);
        (!left.is_zero()).then_some(Said::Young { up, left })
    }

    fn process(&self, at: usize) -> Option<Process> {
        transport(&self.clients[at]).process(Lane::Command, "")
    }

    fn are_distinct(&self) -> Result<()> {
        for (at, one) in self.clients.iter().map(transport).enumerate() {
            let other = self.clients[..at].iter().map(transport);
            let mut other = other.enumerate().filter(|(other, transport)| {
                let run = self.process(at);
                let is_run = run.is_some_and(|run| {
                    let other = self.process(*other);
                    other.is_some_and(|other| other.is_run(&run))
                });
                is_run || server(transport.address()) == server(one.address())
            });
            if let Some((_, other)) = other.next() {
                return Err(invalid(format!(
                    "{} and {} are one server, which would have two votes; name each server once",
                    other.address(),
                    one.address()
                )));
            }
        }
        Ok(())
    }
}

fn transport(client: &Client) -> &dyn Transport {
    &*client.core().scripts.transport
}

fn invalid(message: String) -> Error {
    Error::invalid(NEW, message)
}

fn no_single_server(what: &str) -> Error {
    invalid(format!(
        "{what} is no single server; a Redlock is made of independent ones, and a cluster or \
         a primary with sentinels is used as one by an ordinary client"
    ))
}

/// An address without the number of the database: all of them are one server.
fn server(address: &str) -> &str {
    address
        .rsplit_once('/')
        .map_or(address, |(server, _)| server)
}

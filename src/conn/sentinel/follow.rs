//! How the primary is found and followed.
//!
//! Invariant: a server becomes the primary here only if sentinels name it and it confirms its role. Without
//! confirmation nothing changes: without sentinels the last primary stays. But a primary that most sentinels have
//! replaced is dropped, even if its successor cannot be reached.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use redis::ConnectionInfo;

use super::reply::{View, believed, deposing};
use super::sentinels::Sentinels;
use super::{CurrentPrimary, Diagnosis};
use crate::api::error::Error;
use crate::conn::address::Address;
use crate::conn::setup::Setup;
use crate::conn::single::Nodes;
use crate::conn::transport::Fault;
use crate::engine::clock::{Clock, Tick};
use crate::engine::hint::Mark;

/// The interval of polls in normal operation. Announcements may be missed.
const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// The pauses between polls while the primary is in doubt: doubled from the first to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// The longest search of a client that connects during a failover.
const FIND_FOR: Duration = Duration::from_secs(3);

/// Finds the primary that these sentinels know under this name: at once, or in the returned future, which follows the
/// primary and never ends. The models are the connection settings for a sentinel and for a server.
pub(crate) async fn connect(
    sentinels: Vec<Address>,
    name: String,
    [sentinel_model, model]: [ConnectionInfo; 2],
    setup: Setup,
) -> Result<(Arc<CurrentPrimary>, impl Future<Output = ()>), Error> {
    let current = Arc::new(CurrentPrimary::unknown(Arc::clone(&setup.events)));
    let sentinels = Sentinels::new(sentinels, &name, sentinel_model, &setup);
    let mut follower = Follower {
        name,
        seen: sentinels.announced().mark(),
        sentinels,
        nodes: Nodes::new(model, setup),
        current: Arc::clone(&current),
        last: None,
        is_doubted: false,
    };
    if !follower.nodes.setup.is_lazy {
        follower.find().await?;
    }
    Ok((current, follower.follow()))
}

/// Finds the primary, and follows it in a task.
#[derive(Debug)]
struct Follower {
    name: String,
    sentinels: Sentinels,
    nodes: Nodes,
    current: Arc<CurrentPrimary>,
    /// The last view that was acted on, or that deposed the primary. While there is a primary, this view names it.
    last: Option<View>,
    /// Whether the current primary has to confirm its role.
    is_doubted: bool,
    /// The announcements at the time of the last poll.
    seen: Mark,
}

impl Follower {
    /// Finds the primary for the first time.
    async fn find(&mut self) -> Result<(), Error> {
        let until = self.clock().now().after(FIND_FOR);
        let mut pause = PAUSE_FIRST;
        loop {
            let Err(diagnosis) = self.poll(true).await else {
                return Ok(());
            };
            if diagnosis.is_final || self.clock().now().after(pause) >= until {
                let Diagnosis { reason, .. } = diagnosis;
                return Err(Error::new(reason.kind, "connect", reason.to_string()));
            }
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    fn clock(&self) -> Clock {
        self.nodes.setup.clock
    }

    /// Returns the longest wait for a reply of one server.
    fn limit(&self) -> Duration {
        self.nodes.setup.reply_timeout
    }

    async fn follow(mut self) {
        let announced = Arc::clone(self.sentinels.announced());
        let current = Arc::clone(&self.current);
        let mut doubted = current.doubted.mark();
        // Polls first, unless `find` has found the primary.
        let mut is_settled = self.current.is_known() || self.poll(true).await.is_ok();
        let mut pause = if is_settled {
            POLL_INTERVAL
        } else {
            PAUSE_FIRST
        };
        let mut last_poll = Tick::ZERO;
        loop {
            let is_woken = tokio::select! {
                biased;
                () = announced.changed_since(self.seen) => true,
                // Not while the primary is in doubt, because then every failure signals this hint.
                () = current.doubted.changed_since(doubted), if is_settled => true,
                () = tokio::time::sleep(pause) => false,
            };
            self.clock().sleep_until(last_poll.after(PAUSE_FIRST)).await;
            if is_woken {
                // The first poll may come too early.
                pause = PAUSE_FIRST;
            }
            last_poll = self.clock().now();
            let mark = current.doubted.mark();
            self.is_doubted |= mark != doubted;
            doubted = mark;
            let polled = self.poll(is_woken || !is_settled).await;
            is_settled = polled.is_ok();
            pause = (pause * 2).min(if is_settled { POLL_INTERVAL } else { PAUSE_MAX });
        }
    }

    /// Polls the sentinels and acts on their replies. Fails if there is no primary now, or it does not reply.
    async fn poll(&mut self, is_urgent: bool) -> Result<(), Diagnosis> {
        self.seen = self.sentinels.announced().mark();
        let round = self.sentinels.poll(is_urgent, self.last.as_ref()).await;
        let views = round.views.as_deref().unwrap_or_default();
        let named = believed(views, round.asked, self.last.as_ref());
        self.leave_others(named.as_ref());
        let polled = match named {
            Some(view) if self.is_current(&view.primary) => self.stay(view).await,
            Some(view) => {
                self.depose(views, round.asked);
                self.switch_to(view).await
            }
            // The sentinels are down or outdated, which does not disqualify the primary.
            None if self.current.is_known() => self.confirm().await,
            None => Err(Diagnosis::no_primary(&self.name, &round)),
        };
        if let Err(diagnosis) = &polled
            && !self.current.is_known()
        {
            self.current.set(Err(diagnosis.reason.clone()));
        }
        polled
    }

    fn is_current(&self, address: &Address) -> bool {
        let last = self.last.as_ref();
        self.current.is_known() && last.is_some_and(|last| last.primary == *address)
    }

    /// Keeps the current primary, which is named again.
    async fn stay(&mut self, view: View) -> Result<(), Diagnosis> {
        let last = self.last.as_ref();
        if last.is_some_and(|last| last.epoch < view.epoch) {
            // There was a failover to another server and back in between, so some grants may be lost.
            self.current.changed();
        }
        self.last = Some(view);
        self.confirm().await
    }

    /// Drops the current primary once most sentinels name another one, before that server can be reached. The old one
    /// may consider itself the primary until it hears of the failover.
    fn depose(&mut self, views: &[View], sentinels: usize) {
        let Some(last) = &self.last else { return };
        let Some(view) = deposing(views, sentinels, last) else {
            return;
        };
        if self.current.is_known() {
            let why = format!(
                "a failover from {} to {} is under way",
                last.primary, view.primary
            );
            self.current.set(Err(why.into()));
        }
        // Sentinels that have not heard of the failover still name the old primary, and are not believed.
        self.last = Some(view);
    }

    /// Closes the connections to all but the primary and the server that is named, which may still be opening.
    fn leave_others(&self, named: Option<&View>) {
        for (address, server) in self.nodes.known() {
            let is_named = named.is_some_and(|view| view.primary == address);
            if !is_named && !self.is_current(&address) {
                server.retire();
            }
        }
    }

    /// Asks the current primary for its role, if that is in doubt.
    async fn confirm(&mut self) -> Result<(), Diagnosis> {
        let Some(last) = self.last.as_ref().filter(|_| self.is_doubted) else {
            return Ok(());
        };
        let address = &last.primary;
        let server = self.nodes.at(address);
        let asked = self.unless_announced(server.is_primary(self.limit())).await;
        match asked.unwrap_or_else(|| Err(under_way())) {
            Ok(true) => {
                self.is_doubted = false;
                Ok(())
            }
            Ok(false) => {
                let diagnosis = Diagnosis::demoted(&self.name, address);
                self.current.set(Err(diagnosis.reason.clone()));
                Err(diagnosis)
            }
            Err(fault) => Err(Diagnosis::unreachable(&self.name, address, fault)),
        }
    }

    /// Switches to another primary, if that server confirms its role.
    async fn switch_to(&mut self, view: View) -> Result<(), Diagnosis> {
        let server = self.nodes.at(&view.primary);
        server.reinstate();
        let limit = self.limit();
        let opening = async {
            server.open().await?;
            server.is_primary(limit).await
        };
        let mut opening = pin!(opening);
        let opened = match self.unless_announced(&mut opening).await {
            Some(opened) => Some(opened),
            // Sentinels also announce what they hear from others. A server that does not hang can reply in this time.
            None => self.clock().within(PAUSE_FIRST, opening).await,
        };
        let Some(opened) = opened else {
            // The server goes on opening, because the announcement may be about the same change.
            return Err(Diagnosis::unreachable(
                &self.name,
                &view.primary,
                under_way(),
            ));
        };
        let diagnosis = match opened {
            Ok(true) => {
                self.current.switch_to(&server);
                self.last = Some(view);
                self.is_doubted = false;
                return Ok(());
            }
            Ok(false) => Diagnosis::demoted(&self.name, &view.primary),
            Err(fault) => Diagnosis::unreachable(&self.name, &view.primary, fault),
        };
        server.retire();
        Err(diagnosis)
    }

    /// Returns the reply of a server; `None` if a change is announced first. The server may hang while another one
    /// takes its place.
    async fn unless_announced<T>(&self, reply: impl Future<Output = T>) -> Option<T> {
        tokio::select! {
            biased;
            reply = reply => Some(reply),
            () = self.sentinels.announced().changed_since(self.seen) => None,
        }
    }
}

fn under_way() -> Fault {
    Fault::Unknown("a failover is under way".into())
}

//! Finding the primary, and the task that goes on doing so.
//!
//! Invariant: a server becomes the primary here only when sentinels name it and it says itself that it
//! is one. What nobody confirms changes nothing: without sentinels the last primary stays.

use std::sync::Arc;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::council::Council;
use super::present::Present;
use super::trouble::Trouble;
use super::view::{View, believed};
use crate::clock::{Clock, Tick};
use crate::conn::Fault;
use crate::conn::nodes::{Address, Nodes};
use crate::conn::single::Role;
use crate::error::Error;
use crate::hint::Mark;

/// The sentinels are asked this often when all is well: an announcement may be missed.
const LOOK_EVERY: Duration = Duration::from_secs(2);

/// And this often while the primary is in doubt: doubled from the first to the second.
const PAUSE_FIRST: Duration = Duration::from_millis(100);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// A client that connects during a failover goes on looking for so long.
const FIND_FOR: Duration = Duration::from_secs(3);

#[derive(Debug)]
pub(super) struct Follower {
    name: String,
    council: Council,
    nodes: Nodes,
    present: Arc<Present>,
    clock: Clock,
    /// The longest wait for an answer of one server.
    limit: Duration,
    /// The view that was acted on last.
    last: Option<View>,
    /// Whether its primary is the present one; if not, there is none.
    is_present: bool,
    /// Whether that has to say again that it is a primary.
    is_doubted: bool,
    /// What the sentinels had announced when they were asked last.
    told: Mark,
}

impl Follower {
    pub(super) fn new(
        name: String,
        council: Council,
        nodes: Nodes,
        present: Arc<Present>,
        clock: Clock,
        limit: Duration,
    ) -> Self {
        Self {
            name,
            told: council.announced().mark(),
            council,
            nodes,
            present,
            clock,
            limit,
            last: None,
            is_present: false,
            is_doubted: false,
        }
    }

    /// Finds the primary for the first time.
    pub(super) async fn find(&mut self) -> Result<(), Error> {
        let until = self.clock.now().after(FIND_FOR);
        let mut pause = PAUSE_FIRST;
        loop {
            let Err(trouble) = self.look(true).await else {
                return Ok(());
            };
            if trouble.is_final || self.clock.now().after(pause) >= until {
                return Err(Error::new(trouble.kind, "connect", trouble.why));
            }
            tokio::time::sleep(pause).await;
            pause = PAUSE_MAX.min(pause * 2);
        }
    }

    pub(super) fn start(self) -> Following {
        Following(tokio::spawn(self.follow()).abort_handle())
    }

    async fn follow(mut self) {
        let announced = Arc::clone(self.council.announced());
        let present = Arc::clone(&self.present);
        let mut doubted = present.doubted.mark();
        // Unless it was found before.
        let mut is_settled = self.is_present || self.look(true).await.is_ok();
        let mut pause = if is_settled { LOOK_EVERY } else { PAUSE_FIRST };
        let mut last_look = Tick::ZERO;
        loop {
            let is_woken = tokio::select! {
                () = announced.past(self.told) => true,
                // While it is in doubt, everything that fails says so.
                () = present.doubted.past(doubted), if is_settled => true,
                () = tokio::time::sleep(pause) => false,
            };
            self.clock.sleep_until(last_look.after(PAUSE_FIRST)).await;
            if is_woken {
                // The first look may be too early.
                pause = PAUSE_FIRST;
            }
            last_look = self.clock.now();
            let mark = present.doubted.mark();
            self.is_doubted |= mark != doubted;
            doubted = mark;
            let looked = self.look(is_woken || !is_settled).await;
            is_settled = looked.is_ok();
            pause = (pause * 2).min(if is_settled { LOOK_EVERY } else { PAUSE_MAX });
        }
    }

    /// Asks the sentinels and acts on it. An error if there is no primary now, or none that answers.
    async fn look(&mut self, hurried: bool) -> Result<(), Trouble> {
        self.told = self.council.announced().mark();
        let round = self.council.ask(hurried, self.last.as_ref()).await;
        let looked = match believed(&round.views(), round.asked, self.last.as_ref()) {
            Some(view) if self.is_present(&view.primary) => {
                self.last = Some(view);
                self.confirm().await
            }
            Some(view) => self.follow_to(view).await,
            // The sentinels are away, or behind: that does not make it a worse primary.
            None if self.is_present => self.confirm().await,
            None => Err(Trouble::nobody(&self.name, &round)),
        };
        if let Err(trouble) = &looked
            && !self.is_present
        {
            self.present.dismiss(trouble.why.clone());
        }
        looked
    }

    fn is_present(&self, address: &Address) -> bool {
        let last = self.last.as_ref();
        self.is_present && last.is_some_and(|last| last.primary == *address)
    }

    /// Has the present primary say that it is one, if that is in doubt.
    async fn confirm(&mut self) -> Result<(), Trouble> {
        let Some(last) = self.last.as_ref().filter(|_| self.is_doubted) else {
            return Ok(());
        };
        let address = &last.primary;
        let server = self.nodes.at(address);
        let said = tokio::select! {
            said = server.role(self.limit) => said,
            // It may be frozen, and another one take its place.
            () = self.council.announced().past(self.told) => {
                Err(Fault::Unknown("a failover is under way".into()))
            }
        };
        match said {
            Ok(Role::Primary) => {
                self.is_doubted = false;
                Ok(())
            }
            Ok(Role::Replica) => {
                self.is_present = false;
                Err(Trouble::demoted(&self.name, address))
            }
            Err(fault) => Err(Trouble::of(&self.name, address, fault)),
        }
    }

    /// Moves over to another primary, if that says of itself that it is one.
    async fn follow_to(&mut self, view: View) -> Result<(), Trouble> {
        let server = self.nodes.at(&view.primary);
        server.reinstate();
        let opened = match server.open().await {
            Ok(()) => server.role(self.limit).await,
            Err(fault) => Err(fault),
        };
        let trouble = match opened {
            Ok(Role::Primary) => {
                self.present.exchange(&server);
                self.last = Some(view);
                (self.is_present, self.is_doubted) = (true, false);
                return Ok(());
            }
            Ok(Role::Replica) => Trouble::demoted(&self.name, &view.primary),
            Err(fault) => Trouble::of(&self.name, &view.primary, fault),
        };
        server.retire();
        Err(trouble)
    }
}

/// The task; it ends when this is dropped.
#[derive(Debug)]
pub(super) struct Following(AbortHandle);

impl Drop for Following {
    fn drop(&mut self) {
        self.0.abort();
    }
}

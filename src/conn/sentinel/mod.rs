//! A primary with replicas, followed through failovers by asking sentinels.
//!
//! Invariant: a command goes to the server that was the primary when it was sent, and its answer counts
//! only while that is so.
//!
//! Why nothing that is late can do harm. At an exchange of A for B, B said itself that it is a primary:
//! it copies A no more, so whatever A still executes stays with A and dies with it when A becomes a
//! replica and takes over B's data. An undoing that goes to B although its attempt went to A finds
//! nothing to undo, unless A had copied the attempt to B before. If A becomes the primary again, it is
//! the same [`SingleServer`]: its new connections make an end of its old ones first, so what was sent
//! before the exchange is executed or dead before anything new is. What A had executed and B never
//! saw, it may have kept, if A came back without having copied B: an attempt nobody waits for is then
//! there until its lease ends, as with every server that comes back with old data; it keeps others
//! out and lets nobody in, since a holder id is used for one hold only. So the past of the present
//! primary's own connections is all the past there is.
//!
//! What remains is the time between a promotion and the moment we hear of it: the old primary grants and
//! renews as before, and what it says then is lost. All holds are looked at again at the exchange.

mod council;
mod follow;
mod present;
mod trouble;
mod view;

use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use redis::{Cmd, ConnectionInfo, Value};

use self::council::Council;
use self::follow::{Follower, Following};
use self::present::Present;
use super::error_reply::code;
use super::nodes::{Address, Nodes};
use super::{Channels, Fault, Lane, Opening, Setup, Transport};
use crate::error::Error;

#[derive(Debug)]
pub(super) struct FollowedPrimary {
    address: String,
    present: Arc<Present>,
    /// Ends the task with this.
    _following: Following,
}

impl FollowedPrimary {
    /// Finds the primary that these sentinels know under this name, at once or in the background, and
    /// follows it. The models are of how to connect to a sentinel, and to a server.
    pub(super) async fn connect(
        sentinels: Vec<Address>,
        name: String,
        [sentinel_model, model]: [ConnectionInfo; 2],
        setup: Setup,
        opening: Opening,
    ) -> Result<Self, Error> {
        let mut shown: Vec<String> = sentinels.iter().map(Address::to_string).collect();
        shown.sort_unstable();
        shown.dedup();
        let db = model.redis_settings().db();
        let address = format!("sentinel:{name}@{}/{db}", shown.join(","));
        let present = Arc::new(Present::unknown(Arc::clone(&setup.events)));
        let council = Council::new(sentinels, &name, sentinel_model, &setup);
        let clock = setup.clock;
        let limit = setup.reply_timeout;
        let nodes = Nodes::new(model, setup);
        let mut follower = Follower::new(name, council, nodes, Arc::clone(&present), clock, limit);
        if opening == Opening::Eager {
            follower.find().await?;
        }
        Ok(Self {
            address,
            present,
            _following: follower.start(),
        })
    }
}

fn exchanged() -> Fault {
    Fault::Unknown("another server became the primary meanwhile".into())
}

impl Transport for FollowedPrimary {
    fn send<'a>(
        &'a self,
        lane: Lane,
        _route: &'a str,
        command: &'a Cmd,
        limit: Duration,
    ) -> BoxFuture<'a, Result<Value, Fault>> {
        async move {
            let (primary, mark) = self.present.primary()?;
            let answer = tokio::select! {
                biased;
                () = self.present.exchanged.past(mark) => return Err(exchanged()),
                answer = primary.link(lane).send(command, limit) => answer,
            };
            if let Err(fault) = &answer
                && puts_in_doubt(fault)
            {
                self.present.doubted.give();
            }
            answer
        }
        .boxed()
    }

    fn send_together<'a>(
        &'a self,
        lane: Lane,
        _route: &'a str,
        commands: &'a [Cmd],
        limit: Duration,
    ) -> BoxFuture<'a, Result<Vec<Value>, Fault>> {
        async move {
            let (primary, mark) = self.present.primary()?;
            let answers = tokio::select! {
                biased;
                () = self.present.exchanged.past(mark) => return Err(exchanged()),
                answers = primary.link(lane).send_together(commands, limit) => answers,
            };
            if let Err(fault) = &answers
                && puts_in_doubt(fault)
            {
                self.present.doubted.give();
            }
            answers
        }
        .boxed()
    }

    fn earlier_commands_settled(&self, lane: Lane, _route: &str) -> bool {
        let primary = self.present.primary();
        primary.is_ok_and(|(primary, _)| primary.link(lane).earlier_commands_settled())
    }

    fn slot(&self, _route: &str) -> u16 {
        0
    }

    fn server(&self, _route: &str) -> u64 {
        0
    }

    fn address(&self) -> &str {
        &self.address
    }

    fn endpoint(&self, _route: &str) -> String {
        match self.present.primary() {
            Ok((primary, _)) => primary.endpoint(""),
            Err(_) => self.address.clone(),
        }
    }

    fn channels(&self) -> Channels {
        Channels::Plain
    }
}

/// Whether the server that a command was meant for may be away, or no primary any more.
fn puts_in_doubt(fault: &Fault) -> bool {
    match fault {
        Fault::Unsent(_) | Fault::Unknown(_) => true,
        Fault::Answered(error) | Fault::Declined(error) => {
            matches!(code(error), Some("READONLY" | "MASTERDOWN" | "LOADING"))
        }
    }
}

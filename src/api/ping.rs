//! Whether the servers of a client answer, for health checks.
//!
//! Invariant: it uses the connection of callers, so it fails if and only if a call for a lock would get no answer now.

use std::time::Duration;

use futures_util::future::try_join_all;

use crate::api::error::Result;
use crate::client::Client;
use crate::conn::{Fault, Lane};
use crate::engine::clock::Tick;
use crate::engine::hold::core::Core;
use crate::script::Failure;

const OPERATION: &str = "ping";

/// The pause between two attempts at a server that does not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

impl Client {
    /// Asks the server for a sign of life, for health checks; in a cluster every primary at once. Returns the time that
    /// the slowest answer took.
    ///
    /// Takes one round trip on the connection that calls for locks use, and connects if necessary. The question is a
    /// script that returns at once, so it needs no right that a lock does not need, and fails if scripts hang. A
    /// connection that breaks is replaced and the question repeated, for as long as
    /// [`try_lock`](crate::ReentrantLock::try_lock) waits for an answer: 2 s with the default lease, or
    /// [`give_up_after`](crate::ClientBuilder::give_up_after).
    ///
    /// A server that answers may still refuse a lock, for example because it is out of memory. And a service whose
    /// server is away may still do other work: report it as degraded, and do not restart it, because a restart cannot
    /// bring the server back.
    ///
    /// # Cancel safety
    /// Cancel safe: it changes nothing.
    ///
    /// # Errors
    /// * [`is_io`](crate::Error::is_io): a server did not answer in time.
    /// * [`is_refused`](crate::Error::is_refused): a server answered that it cannot serve now, such as while it loads its
    ///   data.
    /// * [`is_denied`](crate::Error::is_denied): the password is wrong, or the user may not run scripts.
    /// * [`is_closed`](crate::Error::is_closed): the client was shut down, or its runtime has ended.
    ///
    /// ```no_run
    /// # async fn doc(client: lockset::Client) {
    /// match client.ping().await {
    ///     Ok(took) => println!("ok, {took:?}"),
    ///     Err(error) => println!("degraded: {error}"),
    /// }
    /// # }
    /// ```
    pub async fn ping(&self) -> Result<Duration> {
        let core = self.core();
        core.ensure_open(OPERATION)?;
        let began = core.clock.now();
        let end = began.after(core.timing.give_up_at_once);
        let routes = core.scripts.transport.routes();
        let answers = routes.iter().map(|route| answer(core, route, end));
        try_join_all(answers).await?;
        Ok(began.until(core.clock.now()))
    }
}

/// Waits until the server of this route has answered.
async fn answer(core: &Core, route: &str, end: Tick) -> Result<()> {
    let transport = &core.scripts.transport;
    let mut probe = redis::cmd("EVAL");
    probe.arg("return 1").arg(0);
    loop {
        let limit = core.clock.now().until(end).min(core.timing.reply);
        let sent = transport.send(Lane::Command, route, &probe, limit).await;
        let Err(fault) = sent else { return Ok(()) };
        let is_silent = matches!(fault, Fault::Unsent(_) | Fault::Unknown(_));
        let again = core.clock.now().after(RETRY_PAUSE);
        if !is_silent || again >= end {
            let failure = Failure::from(fault).at_endpoint(transport.endpoint(route));
            return Err(failure.into_error(OPERATION));
        }
        core.clock.sleep_until(again).await;
    }
}

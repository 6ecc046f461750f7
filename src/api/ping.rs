//! Whether the servers of a client answer, for health checks.
//!
//! Invariant: it uses the connection of callers, so it fails if and only if a call for a lock would get no answer now.

use std::time::Duration;

use futures_util::future::try_join_all;

use crate::api::error::Result;
use crate::client::Client;
use crate::conn::command;

const OPERATION: &str = "ping";

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
    ///   data; or there is no login from a [provider](crate::ClientBuilder::credentials).
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
        let probe = command(&["EVAL", "return 1", "0"]);
        let limit = || core.clock.now().until(end).min(core.timing.reply);
        let scripts = &core.scripts;
        let ask = |route| scripts.ask(route, &probe, limit, end);
        let answers = routes.iter().map(String::as_str).map(ask);
        let answers = try_join_all(answers).await;
        answers.map_err(|failure| failure.into_error(OPERATION))?;
        Ok(began.until(core.clock.now()))
    }
}

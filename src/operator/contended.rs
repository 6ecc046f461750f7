//! Locks with waiters, found by the channels that their releases are published on: no search for keys.

use super::Survey;
use super::ask::command;
use super::glob;
use super::info::LockInfo;
use super::values::texts;
use crate::api::error::Result;
use crate::conn::Channels;
use crate::engine::keys::keys_behind;

/// Patterns that match the channels of locks and no others.
const CHANNELS: [&str; 2] = ["redisson_lock__channel:*", "redisson_rwlock:*"];

impl Survey {
    /// Returns the locks that have waiters, held or not at that moment.
    ///
    /// They are found by the channels that waiters of this library and of Redisson subscribe to. So it costs next to
    /// nothing on a server with many keys: 10 000 channels take 1.4 ms. It does not see waiters whose user has no right
    /// to subscribe, nor waiters for a lock of the same name in another database.
    ///
    /// # Cancel safety
    /// Nothing is changed.
    ///
    /// # Errors
    /// As for [`locks`](Self::locks).
    pub async fn contended(&self) -> Result<Vec<LockInfo>> {
        let list = match self.asking.core.channels() {
            Channels::Plain => "CHANNELS",
            Channels::Sharded => "SHARDCHANNELS",
        };
        let questions = self.asking.servers().into_iter().flat_map(|server| {
            CHANNELS.map(|glob| (server.clone(), command(&["PUBSUB", list, glob])))
        });
        let questions: Vec<_> = questions.collect();
        let mut keys = Vec::new();
        for answer in self.asking.ask_all(&questions).await {
            let channels = texts(&answer?);
            keys.extend(channels.iter().flat_map(|channel| keys_behind(channel)));
        }
        keys.sort_unstable();
        keys.dedup();
        let mut locks = self.reader().read_waited_for(keys).await?;
        // Elsewhere this pattern is the server's own kind of pattern.
        locks.retain(|lock| glob::matches(&self.pattern, &lock.name));
        Ok(locks)
    }
}

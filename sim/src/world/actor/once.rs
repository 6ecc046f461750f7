//! Keys that are claimed for a window, and released before its end.

use std::time::Duration;

use lockset::Result;
use tokio::time::Instant;

use super::{Actor, patient};
use crate::world::names::names;
use crate::world::plan::{End, Op};

/// Unless the call says otherwise.
const WINDOW: Duration = Duration::from_millis(400);

impl Actor {
    /// Claims a key, works, and gives it back, unless it is to stand.
    pub(super) async fn claim(&self, op: &Op) -> Result<()> {
        let name = names(op.kind, op.lock).remove(0);
        let window = op.fixed.unwrap_or(WINDOW);
        let once = patient!(self.client.once(&name).per(window), op);
        let asked = Instant::now();
        let Some(claim) = self.ended(once.claim()).await? else {
            return Ok(());
        };
        let number = self
            .checks
            .lock()
            .claimed(&name, self.process, asked, window);
        tokio::time::sleep(op.hold).await;
        if op.end == End::Drop {
            return Ok(());
        }
        self.checks.lock().left.undoes(&name, number);
        self.ended(claim.undo()).await
    }
}

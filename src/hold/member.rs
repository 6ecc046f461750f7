//! Who has several holds that concern each other, and is told if one of them is lost.

use std::fmt::Debug;
use std::sync::Arc;

use crate::lost::LostReason;

/// Holds that concern each other.
pub(crate) trait Group: Debug + Send + Sync {
    /// One of them is lost. Called without any lock.
    fn member_lost(self: Arc<Self>, reason: LostReason);
}

//! Holds that concern each other: if one is lost, their group is notified.

use std::fmt::Debug;
use std::sync::Arc;

use crate::api::lost::LostReason;

/// A group of holds that concern each other.
pub(crate) trait LossListener: Debug + Send + Sync {
    /// A member is lost. Called without any mutex held.
    fn member_lost(self: Arc<Self>, reason: LostReason);
}

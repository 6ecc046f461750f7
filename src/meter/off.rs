//! Without the feature: nothing.

use std::time::Duration;

use crate::clock::{Clock, Tick};
use crate::error::Result;
use crate::group::Group;
use crate::lost::LostReason;
use crate::totals::GrantedBy;

#[derive(Debug, Default)]
pub(crate) struct Meter;

impl Meter {
    pub(crate) fn granted(&self, _kind: usize, _by: GrantedBy, _group: Group) {}
    pub(crate) fn refused(&self, _group: Group) {}
    pub(crate) fn call(&self, _kind: &str, _group: Group, _clock: Clock) -> CallTimer {
        CallTimer
    }
    pub(crate) fn waits(&self, _group: Group) -> WaitCount {
        WaitCount
    }
    pub(crate) fn lost(&self, _reason: LostReason, _group: Group) {}
    pub(crate) fn renewed(&self, _left: Duration, _is_late: bool) {}
    pub(crate) fn renewal_failed(&self) {}
    pub(crate) fn reconnected(&self, _lane: &str) {}
    pub(crate) fn background_failed(&self) {}
    pub(crate) fn script_failed(&self) {}
    pub(crate) fn event_dropped(&self) {}
    pub(crate) fn answered(&self, _lane: usize, _sent: Tick, _clock: Clock) {}
}

pub(crate) struct CallTimer;

impl CallTimer {
    pub(crate) fn ends<T>(self, _ended: &Result<Option<T>>) -> HoldTimer {
        HoldTimer
    }
}

#[derive(Debug)]
pub(crate) struct HoldTimer;

impl HoldTimer {
    pub(crate) fn none() -> Self {
        Self
    }
}

#[derive(Debug)]
pub(crate) struct WaitCount;

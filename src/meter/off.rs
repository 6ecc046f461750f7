//! Without the feature: nothing.

use std::convert::Infallible;
use std::time::Duration;

use crate::clock::{Clock, Now, Tick};
use crate::error::Result;
use crate::group::Group;
use crate::lost::LostReason;
use crate::totals::GrantedBy;

#[derive(Debug, Default)]
pub(crate) struct Meter;

impl Meter {
    pub(crate) fn is_on(&self, _now: Tick) -> bool {
        false
    }
    pub(crate) fn publish(&self) {}
    pub(crate) async fn keep_publishing(&self, _clock: Clock) -> Infallible {
        std::future::pending().await
    }
    pub(crate) fn granted(&self, _kind: usize, _by: GrantedBy, _group: Group) {}
    pub(crate) fn refused(&self, _group: Group) {}
    pub(crate) fn call(&self, _: &'static str, _: Group, _began: Tick, _: Clock) -> CallTimer {
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
    pub(crate) fn answered(&self, _lane: usize, _took: Duration) {}
}

pub(crate) struct CallTimer;

impl CallTimer {
    pub(crate) fn ends<T>(
        self,
        _ended: &Result<Option<T>>,
        _granted: impl FnOnce(&T) -> Option<Tick>,
    ) -> HoldTimer {
        HoldTimer
    }
}

#[derive(Debug)]
pub(crate) struct HoldTimer;

impl HoldTimer {
    pub(crate) fn none() -> Self {
        Self
    }

    pub(crate) fn ends(&mut self, _now: impl Now) {}
}

#[derive(Debug)]
pub(crate) struct WaitCount;

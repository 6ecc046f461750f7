//! The meter without the feature: it does nothing.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::time::Duration;

use crate::api::error::Result;
use crate::api::lost::LostReason;
use crate::engine::clock::{Clock, Tick};
use crate::observe::group::Group;
use crate::observe::totals::{CountedKind, GrantedBy};

#[derive(Debug, Default)]
pub(crate) struct Meter;

impl Meter {
    pub(crate) fn publish(&self) {}
    pub(crate) async fn keep_publishing(&self, _clock: Clock) -> Infallible {
        std::future::pending().await
    }
    pub(crate) fn granted(&self, _kind: CountedKind, _by: GrantedBy, _group: Group) {}
    pub(crate) fn refused(&self, _group: Group) {}
    pub(crate) fn call(
        &self,
        _: impl FnOnce() -> CountedKind,
        _: Group,
        _began: Tick,
        _: Clock,
    ) -> CallTimer {
        CallTimer
    }
    pub(crate) fn waits(&self, _group: Group) -> WaitCount<'_> {
        WaitCount(PhantomData)
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
    ) -> Option<(HoldTimer, Tick)> {
        None
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HoldTimer;

impl HoldTimer {
    pub(crate) fn none() -> Self {
        Self
    }

    pub(crate) fn ends<'a>(self, _: impl FnOnce() -> &'a Meter, _since: Tick, _now: Tick) {}
}

#[derive(Debug)]
pub(crate) struct GuardTimer;

impl GuardTimer {
    pub(crate) fn none() -> Self {
        Self
    }

    pub(crate) fn of(_: Option<(HoldTimer, Tick)>, _meter: &Meter, _clock: Clock) -> Self {
        Self
    }
}

#[derive(Debug)]
pub(crate) struct WaitCount<'a>(PhantomData<&'a Meter>);

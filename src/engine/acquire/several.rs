//! Calls for more than one lock, or with a single attempt.
//!
//! Several locks are taken all together, or none. Locks that one script can name are taken by one script, and the call
//! holds none of them while it waits. Other locks are taken one after another, in an order that all callers share. While
//! the call waits for one of them, it holds the locks before it, for a bounded time.
//!
//! A single attempt is for a caller that asks several servers at once and can use their answers only for a short time.
//! Invariant: if its future is dropped, the attempt is undone like any other.

use std::borrow::Cow;
use std::slice::from_ref;
use std::time::Duration;

use futures_util::stream::{FuturesUnordered, StreamExt};

use super::attempt::Attempt;
use super::local::{entrance, is_owned, owned_hold};
use super::request::{Attempted, ExpiredGrants, LockRequest, Requests, bound};
use super::wait::{all, once, one};
use crate::api::error::{Error, Result};
use crate::api::options::{LeasePolicy, lease_for};
use crate::engine::Few;
use crate::engine::clock::Tick;
use crate::engine::hold::bound::Bound;
use crate::engine::hold::{Share, ShareLease};
use crate::script::CallBudget;

/// Prepares the requests of one call. If members are taken one after another, the time of `max_hold` begins when all
/// are held. Until then no member is renewed, so the lease of each is twice as long as `max_hold`, if that is less than
/// its usual lease.
pub(crate) fn prepare_several(requests: &mut [LockRequest]) {
    // One script can name all of these locks.
    if requests.windows(2).all(|pair| pair[0].is_beside(&pair[1])) {
        return;
    }
    for request in requests {
        request.is_in_order = true;
        if let LeasePolicy::RenewedFor { max, .. } = request.policy {
            let lease = request.options.lease(request.core.timing.lease);
            request.policy = LeasePolicy::RenewedFor {
                lease: lease.min(lease_for(max.saturating_mul(2))),
                max: Duration::MAX,
            };
        }
    }
}

/// Takes all of these locks, in the order of the requests, for a call that began at `began` and waits until `until`.
/// Returns `None` if they did not become free in time.
///
/// Members that the owner already holds are entered only when the others are granted. Entered earlier, they would stay
/// locked for the whole wait, even if the owner released them.
pub(crate) async fn several(
    requests: &[LockRequest],
    until: Tick,
    began: Tick,
) -> Result<Option<Vec<Share>>> {
    let is_in_order = requests[0].is_in_order;
    let bound = bound(requests, until, began);
    let mut expired = ExpiredGrants::default();
    loop {
        let are_owned = requests.iter().map(is_owned);
        let are_owned: Vec<bool> = are_owned.collect::<Result<_>>()?;
        let granted = match is_in_order {
            true => in_order(requests, &are_owned, until).await?,
            false => together(requests, &are_owned, &bound).await?,
        };
        let Some(granted) = granted else {
            if requests[0].core.clock.now() >= until {
                return Ok(None);
            }
            continue;
        };
        let Some(mut shares) = join_owned(requests, &are_owned, granted, &bound).await? else {
            continue;
        };
        if is_in_order {
            begin_max_hold(requests, &mut shares);
        }
        if !expired.must_retry(requests.iter().zip(&shares))? {
            return Ok(Some(shares));
        }
    }
}

/// The locks that the owner does not hold yet.
fn not_owned<'a>(
    requests: &'a [LockRequest],
    are_owned: &[bool],
) -> impl Iterator<Item = &'a LockRequest> {
    let others = requests.iter().zip(are_owned);
    others.filter_map(|(request, is_owned)| (!is_owned).then_some(request))
}

/// Takes the locks that the owner does not hold, with one script. `None` if they did not become free in time, or if the
/// owner holds one of them by now.
async fn together(
    requests: &[LockRequest],
    are_owned: &[bool],
    bound: &Bound,
) -> Result<Option<Few<Share>>> {
    let others = match are_owned.contains(&true) {
        true => Cow::Owned(not_owned(requests, are_owned).cloned().collect()),
        false => Cow::Borrowed(requests),
    };
    if others.is_empty() {
        return Ok(Some(Few::new()));
    }
    let others = Requests {
        all: &others,
        bound,
    };
    match all(others).await? {
        Attempted::Granted(granted) => Ok(Some(granted)),
        Attempted::Refused { .. } | Attempted::Owned => Ok(None),
    }
}

/// Takes the locks that the owner does not hold, one after another. `None` if a lock that was taken is lost, or if the
/// wait for another takes too long: two callers that disagree about the order may be waiting for each other.
async fn in_order(
    requests: &[LockRequest],
    are_owned: &[bool],
    until: Tick,
) -> Result<Option<Few<Share>>> {
    // The last one first, which is the order of their release if the call ends here.
    let mut held = Few::<Share>::with_capacity(requests.len());
    let mut held_until = None;
    for request in not_owned(requests, are_owned) {
        let now = request.core.clock.now();
        let until = until.min(held_until.unwrap_or(Tick::NEVER));
        let bound = bound(from_ref(request), until, now);
        let share = {
            let lost = held.iter().map(|share| Box::pin(share.lost()));
            let mut lost: FuturesUnordered<_> = lost.collect();
            tokio::select! {
                biased;
                share = one(request, &bound) => share?.ok(),
                Some(_) = lost.next() => None,
            }
        };
        let Some(share) = share else {
            return Ok(None);
        };
        held.insert(0, share);
        held_until.get_or_insert_with(|| end_of_wait(requests));
    }
    held.reverse();
    Ok(Some(held))
}

/// Enters the locks that the owner holds, and returns all shares in the order of the requests, which is the same for
/// all callers. `None` if the owner no longer holds one of the locks.
async fn join_owned(
    requests: &[LockRequest],
    are_owned: &[bool],
    granted: Few<Share>,
    bound: &Bound,
) -> Result<Option<Vec<Share>>> {
    // All are prepared before the first is entered. A call that is left unpolled in between has entered none.
    let mut entrances = Vec::with_capacity(requests.len());
    for (request, is_owned) in requests.iter().zip(are_owned) {
        if !is_owned {
            entrances.push(None);
            continue;
        }
        request.ensure_open()?;
        let Some(hold) = owned_hold(request) else {
            return Ok(None);
        };
        match entrance(request, &hold, bound).await? {
            None => return Ok(None),
            entrance => entrances.push(entrance),
        }
    }
    let mut granted = granted.into_iter();
    let shares = entrances.into_iter().map(|entrance| match entrance {
        Some(entrance) => Share::entered(entrance),
        None => Ok(granted.next()),
    });
    shares.collect()
}

/// Limits the shares to the `max_hold` of their requests, counted from now.
fn begin_max_hold(requests: &[LockRequest], held: &mut [Share]) {
    let now = requests[0].core.clock.now();
    for (request, share) in requests.iter().zip(held) {
        let policy = request.options.policy(request.core.timing.lease);
        if let Ok(policy @ LeasePolicy::RenewedFor { .. }) = policy {
            share.set_lease(ShareLease::of(policy, now, now));
        }
    }
}

/// Until when to wait for the other members once the first is held. Less than a lease, because no member is renewed
/// before all are held. Partly random, so that two callers that wait for each other do not start over at the same time.
fn end_of_wait(requests: &[LockRequest]) -> Tick {
    let leases = requests.iter().map(|request| request.policy.lease());
    let span = leases.min().unwrap_or_default();
    let now = requests[0].core.clock.now();
    now.after(span.mul_f64(0.25 + 0.5 * fastrand::f64()))
}

/// Asks once, for at most `limit`. Returns a share, or the rest of the holder's lease. `None` if there is no answer in
/// that time. The future owns everything it needs, so that another task can drive it.
///
/// If the connection breaks during the attempt, it is replaced and the server is asked once more. If no connection can
/// be made, the call fails at once.
pub(crate) async fn attempt_once(
    request: LockRequest,
    limit: Duration,
) -> Result<Option<Result<Share, Option<Duration>>>> {
    request.ensure_open()?;
    let clock = request.core.clock;
    // The time for the replicas is added to the limit.
    let replication = request.options.replication;
    let limit = limit + replication.map_or(Duration::ZERO, |wanted| wanted.within);
    let now = clock.now();
    let end = now.after(limit);
    // A server that is slower than the limit is not dead, so its connection stays.
    let budget = CallBudget::once(request.core.timing.reply);
    let all = [request];
    let bound = bound(&all, Tick::ZERO, now);
    let requests = Requests {
        all: &all,
        bound: &bound,
    };
    let asking = async {
        let mut attempt = Attempt::new(requests);
        drop(requests.all[0].local.take_sticky());
        let mut outcome = once(&mut attempt, end, budget).await;
        // A server that refuses, or whose replicas did not confirm, has answered.
        let is_broken = outcome.as_ref().is_err_and(Error::is_io);
        if is_broken && attempt.is_unanswered {
            outcome = once(&mut attempt, end, budget).await;
        }
        outcome
    };
    let outcome = clock.within(limit, asking).await.transpose()?;
    Ok(outcome.map(Attempted::share_or_remaining))
}

//! The guards of a quorum hold, its shares at the servers, and whether it is held.
//!
//! Invariant: a server has shares of at most one hold, at most one for each guard. With several guards, each share has a
//! lease that is enough for all of them. Nothing here waits or asks a server. The caller drops the shares that are taken
//! out, which releases them.

use std::sync::Arc;

use crate::api::fencing::FencingToken;
use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::engine::hold::{Hold, Share, ShareLease};

#[derive(Debug)]
pub(super) struct QuorumState {
    pub(super) loss: Option<LostReason>,
    pub(super) token: Option<FencingToken>,
    /// How often a server has joined.
    pub(super) joins: u64,
    /// Without one it is released, unless it was lost before.
    guards: Vec<Guard>,
    /// The time that released guards asked for: the servers keep the hold until then.
    kept_until: Tick,
    /// By server: shares of one hold.
    shares: Vec<Vec<Share>>,
}

/// A live guard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Guard {
    /// The lease of its share.
    pub(super) lease: ShareLease,
    /// If it is released before this time, the hold is left at its servers until then.
    pub(super) kept_until: Tick,
}

impl Guard {
    /// A guard with these shares. A majority of them lasts at least as long as its lease.
    pub(super) fn of(shares: &[(usize, Share)], quorum: usize, kept_until: Tick) -> Self {
        let mut leases: Vec<ShareLease> = shares.iter().map(|(_, share)| share.lease()).collect();
        leases.sort_unstable_by_key(|lease| std::cmp::Reverse(lease.end()));
        let lease = leases.get(quorum - 1).copied();
        Self {
            lease: lease.unwrap_or(ShareLease::Until(Tick::ZERO)),
            kept_until,
        }
    }
}

impl QuorumState {
    /// Held by one guard, with the shares that the servers have granted: at most one each.
    pub(super) fn granted(
        guard: Guard,
        token: Option<FencingToken>,
        shares: Vec<Vec<Share>>,
    ) -> Self {
        Self {
            loss: None,
            token,
            joins: 0,
            guards: vec![guard],
            kept_until: Tick::ZERO,
            shares,
        }
    }

    pub(super) fn is_held(&self) -> bool {
        self.loss.is_none() && !self.guards.is_empty()
    }

    pub(super) fn is_released(&self) -> bool {
        self.loss.is_none() && self.guards.is_empty()
    }

    pub(super) fn hold_count(&self) -> usize {
        self.guards.len()
    }

    /// The holds that count, by server.
    pub(super) fn members(&self) -> Vec<(usize, Arc<Hold>)> {
        let servers = self.shares.iter().enumerate();
        servers
            .filter_map(|(server, shares)| Some((server, Arc::clone(shares.first()?.hold()))))
            .collect()
    }

    /// Whether it is held, but without this server.
    pub(super) fn is_missing(&self, server: usize) -> bool {
        self.is_held() && self.shares[server].is_empty()
    }

    /// Whether this hold is the member at the server.
    fn is_member(&self, server: usize, hold: &Arc<Hold>) -> bool {
        let first = self.shares[server].first();
        first.is_some_and(|share| Arc::ptr_eq(share.hold(), hold))
    }

    /// Adds the share of a server that has no part yet, for as long as the guards need it.
    pub(super) fn join(&mut self, server: usize, mut share: Share) {
        if let Some(lease) = self.lease()
            && (lease.is_renewed() || share.lease().is_renewed())
        {
            share.set_lease(lease);
        }
        self.shares[server].push(share);
        self.joins += 1;
    }

    /// Takes out all shares at a server, if they are shares of this hold.
    pub(super) fn take_shares(&mut self, server: usize, hold: &Arc<Hold>) -> Vec<Share> {
        if !self.is_member(server, hold) {
            return Vec::new();
        }
        std::mem::take(&mut self.shares[server])
    }

    /// Adds a guard with one more share of some of the members. Returns the shares of other holds.
    pub(super) fn add_guard(&mut self, guard: Guard, shares: Vec<(usize, Share)>) -> Vec<Share> {
        self.guards.push(guard);
        let mut unfit = Vec::new();
        for (server, share) in shares {
            if self.is_member(server, share.hold()) {
                self.shares[server].push(share);
            } else {
                unfit.push(share);
            }
        }
        self.set_leases();
        unfit
    }

    /// Removes a guard. Returns the shares that the others do not need.
    pub(super) fn remove_guard(&mut self, guard: Guard) -> Vec<Share> {
        if let Some(at) = self.guards.iter().position(|other| *other == guard) {
            self.guards.swap_remove(at);
        }
        let left = self.guards.len();
        let servers = self.shares.iter_mut();
        let surplus = servers.filter(|shares| shares.len() > left);
        let mut unneeded: Vec<Share> = surplus.filter_map(Vec::pop).collect();
        self.set_leases();
        self.kept_until = self.kept_until.max(guard.kept_until);
        if self.loss.is_none() {
            for share in &mut unneeded {
                share.keep_until(self.kept_until);
            }
        }
        unneeded
    }

    /// The lease that is enough for all guards. `None` without a guard.
    pub(super) fn lease(&self) -> Option<ShareLease> {
        let leases = self.guards.iter().map(|guard| guard.lease);
        leases.reduce(|one, other| {
            let end = one.end().max(other.end());
            match one.renewed().max(other.renewed()) {
                None => ShareLease::Until(end),
                Some(lease) if end == Tick::NEVER => ShareLease::Renewed(lease),
                Some(lease) => ShareLease::RenewedUntil { lease, end },
            }
        })
    }

    /// Gives all shares the lease that the guards need.
    fn set_leases(&mut self) {
        let Some(lease) = self.lease() else {
            return;
        };
        let shares = self.shares.iter_mut().flatten();
        for share in shares.filter(|share| share.lease() != lease) {
            share.set_lease(lease);
        }
    }
}

//! Which guard of a quorum hold has which share at which server, and whether the hold is held.
//!
//! Invariant: a server has shares of at most one hold, and each guard has at most one of them. Nothing here waits or
//! asks a server. The caller drops the shares that are taken out, which releases them.

use std::sync::Arc;

use crate::api::fencing::FencingToken;
use crate::api::loss::LostReason;
use crate::engine::clock::Tick;
use crate::engine::hold::{Hold, Share, ShareLease};

#[derive(Debug)]
pub(super) struct QuorumState {
    pub(super) phase: Phase,
    pub(super) token: Option<FencingToken>,
    /// The time that released guards asked for: the servers keep the hold until then.
    pub(super) kept_until: Tick,
    /// How often a server has joined.
    pub(super) joins: u64,
    guards: Vec<Guard>,
    /// The number of the next guard.
    next_guard: u64,
    /// By server: shares of one hold, each with the number of its guard.
    shares: Vec<Vec<(u64, Share)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Held,
    /// No guard is left.
    Released,
    Lost(LostReason),
}

/// A live guard.
#[derive(Clone, Copy, Debug)]
pub(super) struct Guard {
    pub(super) number: u64,
    /// The lease of its share.
    pub(super) lease: ShareLease,
    /// If it is released before this time, the hold is left at its servers until then.
    kept_until: Tick,
}

impl QuorumState {
    /// Held, without a guard or a server so far.
    pub(super) fn new(servers: usize, token: Option<FencingToken>) -> Self {
        let mut shares = Vec::new();
        shares.resize_with(servers, Vec::new);
        Self {
            phase: Phase::Held,
            token,
            kept_until: Tick::ZERO,
            joins: 0,
            guards: Vec::new(),
            next_guard: 0,
            shares,
        }
    }

    pub(super) fn guards(&self) -> &[Guard] {
        &self.guards
    }

    /// The holds that count, by server.
    pub(super) fn members(&self) -> Vec<(usize, Arc<Hold>)> {
        let servers = self.shares.iter().enumerate();
        servers
            .filter_map(|(server, shares)| Some((server, Arc::clone(shares.first()?.1.hold()))))
            .collect()
    }

    pub(super) fn is_missing(&self, server: usize) -> bool {
        self.shares[server].is_empty()
    }

    /// Whether this hold is the member at the server.
    pub(super) fn is_member(&self, server: usize, hold: &Arc<Hold>) -> bool {
        let first = self.shares[server].first();
        first.is_some_and(|(_, share)| Arc::ptr_eq(share.hold(), hold))
    }

    pub(super) fn add_share(&mut self, server: usize, guard: u64, share: Share) {
        self.shares[server].push((guard, share));
    }

    /// Takes out all shares at a server, if they are shares of this hold.
    pub(super) fn take_shares(&mut self, server: usize, hold: &Arc<Hold>) -> Vec<Share> {
        if !self.is_member(server, hold) {
            return Vec::new();
        }
        let shares = self.shares[server].drain(..);
        shares.map(|(_, share)| share).collect()
    }

    pub(super) fn add_guard(&mut self, lease: ShareLease, kept_until: Tick) -> Guard {
        let guard = Guard {
            number: self.next_guard,
            lease,
            kept_until,
        };
        self.next_guard += 1;
        self.guards.push(guard);
        guard
    }

    /// Removes a guard. Returns its shares, except where a guard without a share at the server takes it over.
    pub(super) fn remove_guard(&mut self, number: u64) -> Vec<Share> {
        let is_removed = |guard: &&Guard| guard.number == number;
        if let Some(guard) = self.guards.iter().find(is_removed) {
            self.kept_until = self.kept_until.max(guard.kept_until);
        }
        self.guards.retain(|guard| guard.number != number);
        let mut removed = Vec::new();
        for shares in &mut self.shares {
            let Some(at) = shares.iter().position(|(guard, _)| *guard == number) else {
                continue;
            };
            let has_none = |guard: &&Guard| shares.iter().all(|(has, _)| *has != guard.number);
            match self.guards.iter().find(has_none).copied() {
                Some(heir) => {
                    shares[at].0 = heir.number;
                    shares[at].1.set_lease(heir.lease);
                }
                None => removed.push(shares.swap_remove(at).1),
            }
        }
        removed
    }
}

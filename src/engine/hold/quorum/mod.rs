//! One hold on one lock on several independent servers, of which a majority counts: a hold at each server,
//! and what a guard has of them all.

mod hold;
mod share;
mod state;

pub(crate) use hold::{QuorumConfig, QuorumHold, Rejoin};
pub(crate) use share::QuorumShare;

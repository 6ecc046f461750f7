//! A hold on one lock on several independent servers. A majority of them counts: one hold at each server, and the
//! shares of all of them that a guard has.

mod hold;
mod share;
mod state;

pub(crate) use hold::{QuorumConfig, QuorumHold, Rejoin};
pub(crate) use share::QuorumShare;

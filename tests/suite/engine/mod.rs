//! Acquiring, waiting, handing off and releasing, under concurrency and cancellation.

pub(crate) mod cancellation;
mod conformance;
mod cost;
mod fairness;
mod first_grant;
mod hammer;
mod handoff;
pub(crate) mod impatient;
mod interleavings;
mod left_alone;
mod many_holds;
mod mix;
mod owners;
mod share_leases;
mod sticky;
mod undoing;
mod unpolled;

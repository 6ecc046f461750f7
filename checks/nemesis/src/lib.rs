//! Real servers, real processes, real faults, and a checker that reads their histories.
//!
//! A campaign starts servers and worker processes, does harm to both, and then reads what every process wrote down.
//! Invariant: [`checker`] and [`history`] know nothing of lockset. Their findings depend on times alone.

pub mod campaign;
pub mod checker;
pub mod faults;
pub mod history;
mod kept;
pub mod table;
pub mod topology;
pub mod worker;
pub mod workers;

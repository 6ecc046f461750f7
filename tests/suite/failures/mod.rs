//! Servers, connections and processes that fail.

mod comeback;
mod distance;
pub(crate) mod faults;
mod logins;
mod outage;
pub(crate) mod process;
mod reaching;

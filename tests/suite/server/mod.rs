//! Keys and messages on the server: wire format, counters of fencing tokens, rights, limits.

mod foreign;
mod limits;
mod names;
mod native;
mod retention;
pub(crate) mod rights;
mod tokens;
mod wire;

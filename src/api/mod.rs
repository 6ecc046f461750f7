//! The public face that all primitives share: verbs and options of handles, methods of guards, traits, errors.
//!
//! Invariant: nothing here knows a single primitive, except the implementations of the traits, which list them.

#[cfg(feature = "macros")]
pub(crate) mod attribute;
pub(crate) mod builder;
#[cfg(feature = "serde")]
pub(crate) mod config;
mod environment;
pub(crate) mod error;
pub(crate) mod fencing;
pub(crate) mod guard;
pub(crate) mod handle;
pub(crate) mod holder;
pub(crate) mod loss;
pub(crate) mod options;
pub(crate) mod traits;
pub(crate) mod verbs;

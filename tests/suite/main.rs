//! The tests against real servers, grouped by concern.
//!
//! A promise of every primitive is tested once, over [`primitive::Primitive`], and
//! `for_every_primitive!` makes it a test of each.

mod primitive;
mod support;
mod world;

mod api;
mod engine;
mod failures;
mod kinds;
mod observe;
mod server;
mod topology;

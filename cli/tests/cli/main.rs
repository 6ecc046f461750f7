//! `lockset` end to end: the real program, real servers, real processes, a real terminal.

mod away;
mod fields;
mod group;
mod holder;
mod killed;
mod loss;
mod once;
mod operator;
mod pages;
mod permits;
mod place;
mod signals;
mod statuses;
mod support;
mod terminal;
mod tls;
mod topology;
mod usage;

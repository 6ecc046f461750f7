//! Checks that the tree is as its documentation says.

mod api;
mod build;
mod dependencies;
mod imports;
mod kinds;
mod mutants;
mod numbers;
mod observability;
mod packages;
mod pages;
mod programs;
mod prose;
mod sizes;
mod source;

//! The order of the house: what a reader is told about the tree is true.

mod api;
mod build;
mod dependencies;
mod imports;
mod mutants;
mod observability;
mod pages;
mod prose;
mod sizes;
mod source;

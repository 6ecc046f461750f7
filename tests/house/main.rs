//! The order of the house: what a reader is told about the tree is true.

mod imports;
mod pages;
mod source;

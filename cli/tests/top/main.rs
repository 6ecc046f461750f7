//! `top` on a pseudo-terminal and in a pipe.

mod dying;
mod ends;
mod keys;
mod pipe;
mod terminal;

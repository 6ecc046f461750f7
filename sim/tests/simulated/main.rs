//! The engine on simulated servers, in virtual time. One program, because each that links the engine costs half a
//! minute to build, and because each test works on one processor alone.

mod crowd;
mod deployed;
mod double;
mod faults;
mod kept;
mod mutants;
mod pairs;
mod readers;
mod redlock;
mod redlock_turns;
mod refinement;
mod turns;
mod unpolled;
mod world;

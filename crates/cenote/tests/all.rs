//! The tests of this crate's interface in one program, because each program is linked for itself; a file that is none of these needs a process to itself.

mod at_rest;
mod at_rest_faults;
mod bad_input;
mod common;
mod derive;
mod doubt;
mod frontier;
mod holders;
mod joining_log;
mod limits;
mod log_full;
mod names;
mod pools_together;
mod progress;
mod reclaim;
mod relocate;
mod sealed_copies;
mod shadowed;
mod sharing;
mod ship;
mod ship_planted;
mod soundness;
mod store;
mod support;
mod threads;
mod writers;

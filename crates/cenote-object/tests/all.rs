//! The tests of this crate's interface in one program, because each program is linked for itself; a
//! file that is none of these needs a process to itself.

mod at_rest;
mod at_rest_crashes;
mod at_rest_damage;
mod backup;
mod bound;
mod bound_snapshots;
mod calls;
mod catalog_ties;
mod common;
mod copies;
mod crash;
mod damage;
mod hosted;
mod linked;
mod lost_copies;
mod mechanisms;
mod mixtures;
mod moved;
mod object_mixtures;
mod older_journal;
mod planted;
mod rules;
mod running;
mod settled;
mod snapshot;
mod stamped;
mod stamps;
mod surface;
mod swaps;
mod system_calls;
mod threads;
mod ties;
mod untouched;

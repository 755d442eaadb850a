//! The tests of this crate's interface in one program, because each program is linked for itself; a
//! file that is none of these needs a process to itself.

mod bad_input;
mod common;
mod damage;
mod flips;
mod guarded;
mod guarded_roots;
mod guarded_shadowed;
mod large;
mod locks;
mod logged;
mod logged_heap;
mod members;
mod model;
mod nodes;
mod parallel;
mod persistence;
mod places;
mod protected;
mod protected_shadowed;
mod reclaim;
mod roles;
mod slabs;
mod store;
mod stray;
mod told;
mod tracing;
mod trim;
mod wear;

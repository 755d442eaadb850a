//! Crash enumeration: every moment of every short history, every image that a crash at that moment
//! may leave, and an oracle.
//!
//! [`history`] makes the histories, [`rig`] runs one on the simulated medium, [`units`] makes the
//! images of a moment, [`canon`] says which images are the same to recovery, [`verify`] is the
//! oracle, and [`explore`] is the walk over all of it. The tests of this crate say what was
//! visited, what of it exhaustively, and what was sampled.

pub mod canon;
pub mod data;
pub mod explore;
pub mod heap_steps;
pub mod history;
pub mod hosted_clients;
pub mod logged;
pub mod plan;
pub mod rig;
pub mod tier;
pub mod units;
pub mod updates;
pub mod verify;
mod visits;
mod walk;

/// Of every test of this crate, and of nothing that runs otherwise.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

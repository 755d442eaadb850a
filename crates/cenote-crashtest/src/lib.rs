//! Crash enumeration: visits every moment of every short history and every image that a crash at
//! that moment may leave, and asks an oracle.
//!
//! [`history`] makes the histories. [`rig`] runs one on the simulated medium. [`units`] makes the
//! images of a moment, and [`canon`] says which of them recovery cannot tell apart. [`verify`] is
//! the oracle, and [`explore`] walks over all of it. The tests of this crate say which part was
//! visited exhaustively, and which was sampled.

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
pub mod wear_transactions;

/// Of every test of this crate, and of nothing that runs otherwise.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

//! Crash enumeration: every moment of every short history, every image that a crash at that moment may leave, and an oracle.
//!
//! [`history`] makes the histories, [`rig`] runs one on the simulated medium, [`units`] and [`explore`] make the images, [`verify`] is the
//! oracle. The tests of this crate say what was visited, what of it exhaustively, and what was sampled.

pub mod data;
pub mod explore;
pub mod history;
pub mod rig;
pub mod units;
pub mod updates;
pub mod verify;

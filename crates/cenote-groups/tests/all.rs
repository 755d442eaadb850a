//! The tests of this crate's interface in one program.

mod common;
mod counting;
mod drained;
mod ordered;

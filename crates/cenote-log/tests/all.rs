//! The tests of this crate's interface in one program, because each program is linked for itself; a
//! file that is none of these needs a process to itself.

mod common;
mod damage;
mod forged;
mod model;
mod power;
mod process;

//! The tests of this crate's interface in one program, because each program is linked for itself; a
//! file that is none of these needs a process to itself.

mod common;
mod copies;
mod costs;
mod filters;
mod full_log;
mod half_done;
mod headers;
mod keys;
mod large;
mod lost;
mod models;
mod owners;
mod places;
mod readme;
mod relaxed;
mod sets;
mod sound;
mod texts;
mod touches;
mod values;
mod within;

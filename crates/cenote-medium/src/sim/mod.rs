//! The simulated medium: production code runs on it unchanged, and it can make every crash of the
//! run that the fault model allows.
//!
//! Puddles are mapped as real memory at their real addresses; control files live in memory. The
//! medium records a *history*: stores (found by comparing memory at every event), flushes, fences,
//! streams and file operations. The history says for every moment what is certainly durable and
//! what a crash decides ([`CrashState`]). One such decision is an [`Image`], and
//! [`SimMedium::from_image`] is the medium that the next opener finds. It records its own history,
//! so crashes inside recovery are made the same way.
//!
//! Invariants:
//!
//! * The same options and calls in the same thread give the same history and the same images. Boot
//!   ids, clock and identifiers are drawn from the seed.
//! * While an event is recorded no other thread stores into the mappings. Histories of several
//!   threads are not wrong, but a store that races with an event may be seen late.
//! * No possible state is left out, with one exception: a value that a word had only between two
//!   events is not seen. [`SimMedium::crash_point`] adds an event where that matters.

mod content;
mod course;
mod crash;
mod explore;
mod fault;
mod files;
mod live;
mod medium;
mod model;
mod options;
mod random;
mod window;

pub use crash::{CrashKind, CrashPlace, CrashState, Image};
pub use explore::{Explorer, Limits, Visited};
pub use fault::{Fault, FaultEffect, FaultPoint, Rest};
pub use medium::{SimMedium, Snapshot, Walk};
pub use options::SimOptions;
pub use window::release_idle_windows;

#[cfg(test)]
mod tests;

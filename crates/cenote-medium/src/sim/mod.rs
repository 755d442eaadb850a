//! The simulated medium: production code runs on it unchanged, and every crash that the fault model
//! allows can be made of what it did.
//!
//! Puddles are mapped as real memory at their real addresses; control files live in memory. The
//! medium records a *history*: stores (found by comparing memory at every event), flushes, fences,
//! streams and file operations. The history says for every moment what is certainly durable and
//! what a crash decides ([`CrashState`]); one such decision is an [`Image`], and
//! [`SimMedium::from_image`] is what the next opener finds. That one records its own history, so
//! crashes inside recovery are made the same way.
//!
//! Invariants:
//!
//! * Same options, same calls, same thread: same history, same images. Boot ids, clock and
//!   identifiers are drawn from the seed.
//! * While an event is recorded no other thread stores into the mappings. Histories of several
//!   threads are not wrong, but a store that races with an event may be seen late.
//! * What is possible is never left out, with one exception: a value that a word had only between
//!   two events is not seen. [`SimMedium::crash_point`] adds an event where that matters.

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

//! Puddles: their files, what marks these, and their memory in the window.

pub(crate) mod known;
pub(crate) mod locked;
pub(crate) mod lost;
pub(crate) mod notice;
pub(crate) mod opaque_part;
pub(crate) mod own_memory;
pub(crate) mod pending_job;
pub(crate) mod place;
pub(crate) mod prepared;
pub(crate) mod puddle;
pub(crate) mod stamps;
pub(crate) mod verify;
pub(crate) mod window;

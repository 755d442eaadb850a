//! One command a file.

pub(crate) mod backup;
pub(crate) mod check;
pub(crate) mod create;
pub(crate) mod doctor;
pub(crate) mod dump;
pub(crate) mod each;
pub(crate) mod findings;
pub(crate) mod format;
pub(crate) mod heap;
pub(crate) mod info;
pub(crate) mod keys;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod manual;
pub(crate) mod object;
pub(crate) mod permissions;
pub(crate) mod reclaim;
pub(crate) mod relocate;
pub(crate) mod rm;
pub(crate) mod set_aside;
pub(crate) mod ship;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod top;
pub(crate) mod trim;
pub(crate) mod verify;

//! Where a store lies, and how a store into memory becomes durable there.
//!
//! A *medium* is a directory of control files and puddle files. Control files are read and written
//! by position; puddle files are mapped into the store's window. [`Medium`] is the interface.
//!
//! | medium | is |
//! | --- | --- |
//! | [`RealMedium`] | a directory of this machine, on any file system |
//! | `sim` | simulated: runs production code unchanged, says what any crash would leave |
//! | [`GrantedMedium`] | no directory: it maps files that another process opened and handed over |
//!
//! [`Persistence`] is the hot path: a two-byte value that says how stores into one medium are made
//! durable at one [`Durability`] level. At `process` it executes no flush and no fence;
//! [`counters`] proves it.
//!
//! Invariants:
//!
//! * Every error is a typed [`MediumError`] that names the operation, the file and what to do.
//!   Nothing here panics on what the caller, the medium or the system does.
//! * A file gets its space when it is created ([`Medium::create`]). So a full disk is an error of
//!   that call and never a `SIGBUS` of a store.
//! * A file is mapped only if it is long enough, and only inside a window that the medium reserved.
//! * A file is changed only by its owner ([`OwnedMedium`]); all other code needs `unsafe` for that.
//! * A read-only medium is never written to, not even to learn its kind.

pub mod counters;
mod error;
mod handle;
mod hook;
mod medium;
mod owned;
mod persistence;
pub mod planted;
mod real;
mod ships;
pub mod sim;

pub use error::{FileName, MediumError, NAME_LEN_MAX, Operation};
pub use handle::FileHandle;
pub use hook::{SIM_SLOTS, SimHook, SimSlot};
pub use medium::{
    FileId, FileStat, FileWord, LockGuard, LockHolder, LockKind, MapMode, Medium, MediumInfo,
    MediumKind,
};
pub use owned::OwnedMedium;
pub use persistence::{Durability, Persistence, UnknownDurability};
pub use real::{GrantedMedium, MediumOptions, RealMedium};

//! Persistent memory objects: raw memory with `attach`, `psync`, `detach` (PMO-1 to PMO-6; the
//! paper's section IV).
//!
//! An object is one contiguous puddle without a heap, at an address of the store's window that
//! nothing else has. A writer that attaches it gets a *shadow*: a private view of the object's
//! file, the *primary*. Stores go into the shadow only. [`Attached::psync`] makes all stores since
//! the last psync durable together; after a crash the primary has the state of the last psync.
//! **Stores that were not psynced are gone when the object is detached or dropped, and after a
//! crash.**
//!
//! | concern | file or crate |
//! | --- | --- |
//! | `Objects`: `pcreate`, `attach`, `pdestroy` | `objects.rs` |
//! | what their handles share; recovery | `shared.rs`, `recovered.rs` |
//! | `Attached`: `psync`, `psync_all`, `detach` | `attached.rs` |
//! | its memory | `mapping.rs` |
//! | which pages were written: four mechanisms, chosen at run time | `dirty.rs` |
//! | protecting pages again, later | `write_protector.rs` |
//! | the steps of a psync | `psync.rs`, `cenote-shadow` |
//! | protected objects: sealed pages, keys | `at_rest.rs` |
//! | their memory, filled at first touch | `cenote_atrest::view` |
//! | `Objects`: `snapshot`, `restore` | `snapshots.rs`, `snapshot.rs`, `restored.rs` |
//! | through a daemon: the daemon, and a client | `hosted.rs`, `connected.rs` |
//! | the journal: compare, append, group commit, halves, growth, recovery | `cenote-journal` |
//!
//! # The states, and what commits
//!
//! The paper's states (Figure 5), over a file system. The paper's kernel has a durable shadow in
//! memory; here a record in a *journal* takes its place, which all objects of a store share.
//!
//! | state | the medium has | the truth |
//! | --- | --- | --- |
//! | D | "detached" in the object's header, or nothing newer | primary |
//! | R | nothing: readers write to no file | primary |
//! | W | the writer and its boot in the object's header | primary |
//! | P | a part of a record at the end of the journal | primary |
//! | C | a whole record in the journal; the primary may be changed anywhere | record over primary |
//!
//! | state | recovery |
//! | --- | --- |
//! | D, R | nothing |
//! | W | the shadow died with its process; the header is written anew |
//! | P | the record is not applied, and its space is used again |
//! | C | the record is applied again, all of it |
//!
//! One psync, step by step:
//!
//! 1. W. The pages that were written are found, copied, and compared with the primary by lines of
//!    64 bytes.
//! 2. W to P. A record is appended to the journal: its header with a list of runs of lines, their
//!    contents, and a commit record at its end.
//! 3. P to C. The journal is synced: **this sync commits**. One sync serves every psync whose
//!    record was written before it began. Then psync returns.
//! 4. C to W. Another thread writes the runs to the primary, without a sync. Until then, a psync
//!    that compares with the primary lays the record over it. Work that needs the file itself (a
//!    detach, a snapshot) waits for this step.
//! 5. Later the primary is synced. Only then the record's space may be used again.
//!
//! Why that is enough:
//!
//! * *Before 3 has completed* the primary is as the previous psync left it (itself perhaps in state
//!   C). Parts of the record may be on the medium in any order, torn anywhere. It counts only if
//!   header, tables, data and commit record are all there, by their checksums; then the psync that
//!   was in flight happened, which is allowed.
//! * *After 3* the record is whole on the medium until its space is reused. Recovery writes all of
//!   it over the primary. It holds absolute contents, so it does not matter which part of 4 had
//!   happened, nor how often recovery is interrupted.
//! * *While 3 runs* either may be the case, and nothing is acknowledged yet.
//! * *Order.* One thread at a time applies records of one object, in the order of its psyncs.
//!   Recovery replays records in the order of their numbers, from one whose contents are certainly
//!   in the primaries. So two records of one object are never applied the other way round. A psync
//!   compares with the contents that the one before it committed, applied or not: `apply.rs` of
//!   `cenote-journal` has the argument.
//! * *Reuse.* The journal has two halves. A half is written anew only after every record in it was
//!   applied, every primary that they changed was synced (5), the journal's header says so, and
//!   every record in the other half is durable. So the records since the last reuse are always
//!   there without a gap. Each record says up to which number records were durable when it was
//!   written. So recovery tells a record that was never acknowledged (nothing after it relies on
//!   it) from a damaged one that was. It reports damage and never guesses.
//! * *Sessions.* A record that recovery dropped may lie whole behind a torn one. Records carry the
//!   number of their session and the checksum of the record before them. So it never follows a
//!   record of a later session.
//! * *A write that fails* before 3 (a full disk, an I/O error): the head of the record is
//!   overwritten with zeros and the psync fails. The object is as before, the shadow keeps its
//!   stores, and the next psync has them all. If the zeros cannot be written, the store is
//!   poisoned. *A sync that fails* (3 or 5), or a primary that cannot be written (4), poisons the
//!   store: nothing more is acknowledged, and the next open recovers.
//!
//! **Recovery** (`Objects::open`):
//!
//! 1. The journal is read, believing nothing.
//! 2. Every committed record that may be missing in a primary is written there, and the primaries
//!    are synced.
//! 3. The journal's header says, under a new epoch, that all of it is there: **the sync of that
//!    header commits the recovery**.
//!
//! A crash before that sync starts again at 1 and ends the same. A store that is open read-only
//! lays the records over private pages and writes no file.
//!
//! **Growth.** A psync that is larger than a half waits until the journal holds nothing that a
//! primary needs. A larger file is made, synced and **renamed over the journal, which commits**.
//! Without space for it the psync fails and nothing has changed.
//!
//! On tmpfs, states and files are the same, and no sync is executed. On DAX, the file system's
//! calls write the journal and the primaries, and their sync flushes and fences what they wrote.
//!
//! # Who may attach
//!
//! One writer or many readers.
//!
//! | where | rule |
//! | --- | --- |
//! | an embedded store | its lock: one process writes, or many read; a dead process loses it |
//! | inside a process | for each object |
//! | through a daemon | for each object, between processes; `hosted.rs` has the holders |
//!
//! There an attach of an object that a dead process had waits until its end is settled.
//! A refusal is [`ObjectError::Busy`] (`EAGAIN`), with the holder's process; a missing permission
//! is `EACCES`, a full disk or window `ENOSPC`. The object's header keeps boot id and process of
//! its writer, and [`Attached::found`] tells the next writer how that one ended.
//!
//! # Writers during psync
//!
//! `psync` takes `&mut`: safe code stores nothing meanwhile. Code that stores through raw pointers
//! must not store into the object while one of its psyncs runs.

mod at_rest;
mod attached;
mod connected;
mod copied;
mod dirty;
mod door;
mod error;
mod error_kinds;
mod header;
mod hosted;
mod look;
mod mapping;
mod marked;
mod objects;
mod options;
mod psync;
mod recovered;
mod restored;
mod shared;
mod snapshot;
mod snapshots;
mod write_protector;

pub use attached::Attached;
pub use dirty::Mechanism;
pub use error::ObjectError;
pub use header::FoundState;
pub use hosted::{Host, HostedClient};
pub use objects::Objects;
pub use options::{ObjectOptions, ObjectsOptions, Permission, Trim};
pub use psync::{Psync, psync_all};
pub use shared::{Info, Recovery};
pub use snapshot::{Blocks, Restored, Snapshot, SnapshotOf};

pub use cenote_atrest::view::Verified;
pub use cenote_atrest::{
    Anchor, Argon2Params, AtRestError, KeyError, Keyring, MasterKey, Mode, PageFault,
};
pub use cenote_layout::object::ObjectState;
pub use cenote_store::{Handle as Store, ObjectInfo, Rekeyed};
pub use cenote_sys::secret::Locking;

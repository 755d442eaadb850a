//! A store: a directory of puddles that one process writes, or many read.
//!
//! ```text
//! superblock            what the store is; whether it was closed, and under which boot it was opened   superblock.rs
//! catalog.0, catalog.1  pools, puddles, types, clients, leases                                         catalog/
//! lock                  one writer or many readers                               exclusion.rs, fence.rs, origin.rs, alive.rs
//! puddles/<uuid>        memory, mapped into the window at the address that the catalog says            puddle.rs, verify.rs, stamps.rs, spare.rs
//!                       (of a protected pool: sealed pages, and the memory has no file)                sealed.rs
//! primary/<uuid>        what the last psync of a pool in shadowed mode left of a puddle                shadow.rs
//! journal.pools         psyncs of pools that are not in all primaries yet                              psync.rs
//! ```
//!
//! A daemon has a store open and serves others (guests.rs); what those have is the same [`Store`],
//! without files of their own (connection.rs).
//!
//! What holds at any time, whoever crashes when:
//!
//! * every puddle that the catalog names has a whole file: files come before their records and go
//!   after them;
//! * a client writes only to pools that a lease record names, and its logs are in a log space that
//!   a client record names, both durable before the first store: replay needs nothing else (PUD-2,
//!   PUD-3);
//! * the superblock says "clean" only if no log holds anything and every puddle file is synced;
//! * a read-only open writes to no file, not even to replay a log: replay goes into private pages;
//! * nothing is mapped before recovery is done.
//!
//! Every update in several steps names in its doc comment the one store or sync that commits it.

mod about;
mod alive;
mod apart;
mod backup;
mod catalog;
mod close;
mod connection;
mod damaged;
mod differing;
mod due_job;
mod error;
mod exclusion;
mod features;
mod fence;
mod format;
mod given_up;
mod guest_objects;
mod guests;
mod handle;
mod journals;
mod kept;
mod known;
mod lazy;
mod lease;
mod leftover;
mod listing;
mod logs;
mod looked_at;
mod lost;
mod lost_page;
mod making;
mod mismatch;
mod notice;
mod object;
mod open;
mod options;
mod origin;
mod place;
mod poison;
mod pool;
mod pools;
mod psync;
mod puddle;
mod reading;
mod recovery;
mod region;
pub mod relocate;
mod report;
mod rewriter;
mod rooted;
mod sealed;
mod sealing;
mod set_aside;
mod shadow;
mod spare;
mod stamps;
mod store;
mod superblock;
mod verify;
mod watch;
mod window;

pub use alive::{CLIENTS, byte_of};
pub use backup::{BackedUp, Backup, BackupReport, PoolAtWork};
pub use connection::{Grant, Granted, Home, Keeper, Listed, MemberList, PermissionChange};
pub use error::{BY_DAEMON, FormatError, OpenError, StoreError};
pub use format::{check_directory, check_options, format};
pub use guest_objects::{ListedObject, NewObject};
pub use guests::{Credentials, GuestEnd, PoolGrant};
pub use handle::Handle;
pub use known::{forget_window, known_windows, known_windows_file};
pub use logs::LogLease;
pub use lost_page::{LostLog, LostPage};
pub use mismatch::{Layouts, TypeMismatch};
pub use object::ObjectInfo;
pub use options::{
    Access, CopyPolicy, DamagePolicy, FormatOptions, Hosting, JournalPolicy, OpenOptions,
    PoolOptions, PowerLossPolicy, WINDOW_LEN_DEFAULT, WindowPolicy,
};
pub use pool::PoolHandle;
pub use pools::PoolInfo;
pub use psync::{Begun, Psync, Psyncing};
pub use puddle::Puddle;
pub use report::{Damage, DamageEffect, LogReport, OpenReport, PoolStart, RestoredPool, StoreInfo};
pub use sealed::{Rekeyed, VerifiedPuddle};
pub use set_aside::{LogDecision, SetAside};
pub use store::Store;

pub use cenote_atrest::{
    Anchor, Argon2Params, AtRestError, KeyError, Keyring, Locking, MasterKey, Mode, PageFault,
};
pub use cenote_layout::catalog::{AtRest, HeapKind, ObjectRecord, PoolMode};
pub use cenote_log::CrashKind;

//! A store: a directory of puddles that one process writes, or many read.
//!
//! | file | what it has | modules |
//! | --- | --- | --- |
//! | superblock | what the store is; closed or open, and under which boot | superblock |
//! | catalog.0, catalog.1 | pools, puddles, types, clients, leases | catalog |
//! | lock | one writer or many readers | exclusion, fence, origin |
//! | puddles/UUID | memory, mapped into the window where the catalog says | puddle, stamps, spare |
//! | the same, protected | sealed pages; the memory has no file | sealed_files, sealed |
//! | primary/UUID | what the last psync of a pool in shadowed mode left | primaries, shadow |
//! | journal.pools | psyncs that are not in all primaries yet | shadow, psync |
//!
//! A daemon has a store open and serves clients (hosting). Each of them has the same
//! [`Store`], without files of its own (connection.rs).
//!
//! The kernel names no module above it (kernel/mod.rs). Each of these finds its own part of an open
//! store by a slot (kernel/store/extensions.rs), and parts.rs lists all slots.
//!
//! What holds at any time, and after any crash:
//!
//! * every puddle that the catalog names has a whole file: a file is made before its record and
//!   removed after it;
//! * a client writes only to pools that a lease record names, and its logs are in a log space that
//!   a client record names. Both are durable before the first store, and replay needs nothing else
//!   (PUD-2, PUD-3);
//! * the superblock says "clean" only if no log holds anything and every puddle file is synced;
//! * a read-only open writes to no file: it replays logs into private pages;
//! * nothing is mapped before recovery is done.
//!
//! Every update in several steps names in its doc comment the one store or sync that commits it.

// Superblock, catalog, window, puddles, pools, leases and logs.
mod kernel;

// What callers, clients and daemons hand each other.
mod backed_up;
mod credentials;
mod daemon_api;
mod log_decision;
mod manifest;
mod object_info;

// Pools that are protected at rest.
mod rekey;
mod sealed;
mod sealed_files;
mod sealed_parts;
mod unsealed;
mod unsealed_blocks;

// Puddles that have moved.
mod pending_rewrite;

// Pools in shadowed mode: psyncs, primaries, and their journal.
mod differing;
mod gate;
mod given_up;
mod kept;
mod kept_files;
mod primaries;
mod psync;
mod psync_part;
mod restored;
mod shadow;

// A client of a daemon.
mod connect;
mod connection;
mod pool_members;

// A daemon, and its clients.
mod alive;
mod apart;
mod hosting;

// Operations on pools and objects of every mode.
mod damaged;
mod looked_at;
mod object;
mod pool_growth;
mod pools;
mod reading;
mod rooted;
mod write_protection;

// Copies and moves.
mod backup;
pub mod relocate;

// A store is opened, recovered and closed: what knows all parts of it.
mod close;
mod handle;
mod lazy;
mod leftover;
mod open;
mod parts;
mod recovery;
mod undecided_logs;

pub use alive::{CLIENTS, byte_of};
pub use backed_up::{BackedUp, BackupReport};
pub use backup::{Backup, PoolAtWork};
pub use credentials::{Credentials, PermissionChange};
pub use daemon_api::{DaemonApi, Grant, Granted, Home, MemberList, PoolListing};
pub use gate::Psync;
pub use handle::Handle;
pub use hosting::{ClientEnd, ClientSource, PoolGrant};
pub use kernel::directory::format::{check_directory, check_options, format};
pub use kernel::interface::error::{BY_DAEMON, FormatError, OpenError, StoreError};
pub use kernel::interface::lost_page::{LostLog, LostPage};
pub use kernel::interface::mismatch::{Layouts, TypeMismatch};
pub use kernel::interface::options::{
    Access, CopyPolicy, DamagePolicy, FormatOptions, Hosting, JournalPolicy, OpenOptions,
    PoolOptions, PowerLossPolicy, WINDOW_LEN_DEFAULT, WindowPolicy,
};
pub use kernel::interface::report::{
    Damage, DamageEffect, LogReport, OpenReport, PoolStart, RestoredPool, StoreInfo,
};
pub use kernel::pools::pool::PoolHandle;
pub use kernel::puddles::known::{forget_window, known_windows, known_windows_file};
pub use kernel::puddles::lost::MetadataPages;
pub use kernel::puddles::puddle::Puddle;
pub use kernel::store::Store;
pub use kernel::store::log_list::LogLease;
pub use log_decision::{LogDecision, UndecidedLogs};
pub use object_info::{ListedObject, NewObject, ObjectInfo};
pub use pools::PoolInfo;
pub use psync::{BeforeWaiting, Begun, Psyncing};
pub use rekey::Rekeyed;
pub use sealed::VerifiedPuddle;

pub use cenote_atrest::{
    Anchor, Argon2Params, AtRestError, KeyError, Keyring, Locking, MasterKey, Mode, PageFault,
};
pub use cenote_layout::catalog::{AtRest, DataProtection, HeapKind, ObjectRecord, PoolMode};
pub use cenote_log::CrashKind;

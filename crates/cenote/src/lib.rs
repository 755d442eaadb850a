//! Cenote: linked data structures that outlive the process.
//!
//! A program builds lists, trees and graphs in a [`Pool`], with plain 64-bit pointers ([`Ptr`]),
//! and changes them in transactions ([`Pool::write`]). When the program dies, the next one finds
//! the data as the last committed transaction left it. It loads and parses nothing.
//!
//! ```
//! use cenote::{Persist, Ptr, Reader, Store};
//!
//! #[derive(Persist)]
//! struct Node { value: u64, next: Option<Ptr<Node>> }
//!
//! fn main() -> cenote::Result<()> {
//!     # let directory = tempfile::tempdir().unwrap();
//!     # let directory = directory.path();
//!     let pool = Store::open(directory)?.pool("numbers")?;
//!     pool.write(|tx| -> cenote::Result<()> {
//!         let next = tx.root::<Node>()?;
//!         let node = tx.alloc(Node { value: 42, next })?;
//!         tx.set_root(node)
//!     })?;
//!     let view = pool.read()?;
//!     let first = view.root::<Node>()?.expect("just pushed");
//!     println!("{}", view.get(first)?.value);
//!     Ok(())
//! }
//! ```
//!
//! The medium of a store decides what a commit survives: [`Store::durability`] is `process` (any
//! crash of programs) or `power` (a loss of power too). A pool in shadowed mode
//! ([`PoolMode::Shadowed`]) survives a loss of power on any disk, as its last [`Pool::psync`] left
//! it.
//!
//! # What safe code can rely on
//!
//! No safe program can cause undefined behaviour with this crate, even if it keeps pointers too
//! long: following such a pointer is an error ([`Error::Dangling`]) or leads to another live value
//! of its type. Programs can look at pools that are not whole as blocks, but cannot read their
//! values ([`Error::NotWhole`]).
//!
//! Dangling pointers may stay in the data. After a loss of power a block counts as allocated only
//! if its allocation was committed, even if a pointer leads to it. [`Pool::traced`] reports whether
//! this session has traced the pool, and how many such blocks it found.
//!
//! # Who may change a store's files
//!
//! Programs map the files themselves, so the promise above has limits:
//!
//! * *While a store is open, only this crate may change its files.* Openers lock the store against
//!   each other. A program that writes, shortens or replaces the files by other means (`std::fs`, a
//!   script, a restored backup, a hard link to a file of the store) changes memory under live
//!   references: a `bool` gets an invalid value, a `NonZero` gets 0, a load past the end of a file
//!   raises `SIGBUS`. No library can prevent that. So give the directory to one user, or to a
//!   daemon (`cenoted`), which gives programs pools and no files. Functions of this crate that can
//!   change the files in this way are `unsafe`: those of [`Medium`],
//!   [`RelocationOptions::rewriter`], [`Store::as_raw`] and [`Store::declare_whole`].
//! * *Opening checks the store, but not all values.* It checks control data, headers, logs and
//!   layouts. The bytes of values have no checksum, unless the pool is protected at rest
//!   ([`AtRest`]). [`Pool::check`] and [`Store::import`] look for bytes that are invalid for their
//!   type: a `bool`, a `char`, a `NonZero`, a [`Ptr`], a discriminant. Opening does so if it finds
//!   damage, or if [`OpenOptions::verify_values`] asks for it.
//! * *A store of another author needs trust*, unless you open it with
//!   [`OpenOptions::verify_values`]: collections and texts may claim a wrong length, for example.
//!   *An archive needs no trust:* [`Store::import`] compares each collection with its header, and
//!   refuses types without a description. It does not check pools that are protected at rest: only
//!   a holder of their key can have changed them.
//! * *Damage can be accepted.* If a log is damaged, programs cannot read values of its pools until
//!   the caller decides. [`Store::discard_logs`] deletes the log, and the pools may then hold half
//!   a transaction. The store records that: no session reads values of these pools before
//!   [`Store::declare_whole`].
//! * *`exit` does not wait for threads.* It runs the destructors of its thread's variables while
//!   other threads go on. The next opener rolls back a transaction that `exit` interrupted. `exit`
//!   does not wait for views: if such a destructor drops the last handle of a pool, the pool is
//!   unmapped, even if another thread reads it, just as a `Box` would be freed.
//!
//! # Copies of a store
//!
//! Copy closed stores with `cp -a` or `cenote backup`, and open stores with [`Store::backup`],
//! which works while transactions go on. A backup appears under its name when it is complete. A
//! copy that `cp -a` makes of an open store has files of different moments. Opening refuses such a
//! copy, unless the caller chooses [`CopyPolicy::CheckAndOpen`].
//!
//! The layers below are crates that know nothing of the layers above them: `cenote-sys`,
//! `cenote-layout`, `cenote-medium`, `cenote-log`, `cenote-store`, `cenote-heap`, `cenote-tx`.
//! [`raw`] gives access to them.

extern crate self as cenote;

mod announced;
mod answers;
mod archiving;
mod attend;
mod background;
mod backup;
mod check;
mod checking;
mod connect;
mod copied;
mod copy_pool;
mod copy_refused;
mod copying;
mod daemon_api;
mod derived;
mod error;
mod error_kinds;
mod extensions;
pub mod filter;
mod frames;
mod frees;
mod frees_hint;
mod had;
mod half_done;
pub mod heap_ptr;
pub mod holder;
mod known;
mod line;
mod local;
#[doc(hidden)]
pub mod lost;
mod names;
mod one_type;
mod open_pool;
mod open_pools;
mod operator;
pub mod owned;
mod owned_bytes;
mod owned_edges;
mod owning_field;
mod patience;
pub mod persist;
mod pool;
mod process_lock;
mod protected_pool;
mod psync;
pub mod ptr;
pub mod raw;
mod reached;
mod reader;
mod readers;
mod reclaim;
mod recovery;
mod registry;
mod relocate;
mod running;
mod session;
mod silence;
mod store;
mod thread_log;
mod timed;
mod tracing;
mod trim;
mod tx;
mod tx_roots;
mod tx_steps;
#[doc(hidden)]
pub mod unlogged;
mod unwaiting;
mod view;
mod viewed;
mod wait_limit;
mod waits;
mod watch;

pub use announced::Stores;
pub use archiving::{
    ArchivingError, ArchivingProgress, Codec, Exclusive, ExportOptions, Exported, ImportOptions,
    ImportedArchive, Inspected, LeftEntry, OnArchiving, Stale,
};
pub use cenote_derive::Persist;
pub use cenote_heap::locks;
pub use cenote_heap::wear::{WearDamage, WearStats};
pub use cenote_heap::{
    AllocError, Damage as HeapDamage, FreeError, HeapReport, HeapStats, OpenError as HeapOpenError,
    RecoverError, RecoveryReport, RootError, SuperblockInfo, TraceOptions, TraceProgress,
    TrimProgress, TrimReport, Use, ValueReport,
};
pub use cenote_layout::error_kind::ErrorKind;
pub use cenote_layout::id::{PoolId, TypeId, Uuid};
pub use cenote_medium::{Durability, Medium, MediumError, MediumOptions, RealMedium};
pub use cenote_proto::{ClientItem, ClientState, HeldPool, Stat as DaemonStat};
pub use cenote_store::relocate::{
    Backend, ImportedPool, RelocationOptions, RelocationProgress, Rewritten,
};
pub use cenote_store::{
    Access, Anchor, Argon2Params, AtRest, AtRestError, BackedUp, BackupReport, CopyPolicy,
    CrashKind, Damage, DamagePolicy, DataProtection, FormatError, FormatOptions, HeapKind,
    JournalPolicy, KeyError, Keyring, Locking, MasterKey, OpenError, OpenOptions, OpenReport,
    PermissionChange, PoolInfo, PoolListing as ListedPool, PoolMode, PoolOptions, PoolStart,
    PowerLossPolicy, Psync, RestoredPool, StoreError, StoreInfo, UndecidedLogs, VerifiedPuddle,
    WindowPolicy,
};
pub use cenote_tx::TxError;
pub use copy_pool::{CopiedPool, CopyOptions, CopyPhase, CopyProgress, OnCopyProgress};
pub use copy_refused::CopyRefused;
pub use error::{Error, ReclaimRefused, Result};
pub use heap_ptr::HeapPtr;
pub use holder::{RegionPtr, RelPtr};
pub use open_pool::Pool;
pub use owned::{Owned, Taken};
pub use owned_bytes::{OwnedBytes, OwnedStr};
pub use owning_field::OwningField;
pub use persist::{Persist, TypeSetError};
pub use pool::Blocks;
pub use psync::{AutoFigures, AutoPsync, PsyncPolicy};
pub use ptr::Ptr;
pub use reader::{NamedRoot, Reader};
pub use reclaim::{
    OnReclaimProgress, ReclaimOptions, ReclaimPolicy, ReclaimProgress, ReclaimReport, ReclaimedType,
};
pub use recovery::{OnRecovery, RecoveryOptions, RecoveryProgress};
pub use session::Store;
pub use silence::ConnectOptions;
pub use trim::{AutoTrim, TrimFigures};
pub use tx::Tx;
pub use view::View;
pub use watch::{Watcher as DaemonWatcher, daemon_stat};

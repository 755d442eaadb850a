//! Cenote: pointer-rich data that outlives the process.
//!
//! A program builds lists, trees and graphs in a [`Pool`], with plain 64-bit pointers ([`Ptr`]),
//! and changes them in transactions ([`Pool::write`]). When the program, the machine or the power
//! fails, the data is there again, as the last committed transaction left it, for that program or
//! any other. Nothing is serialised and nothing is loaded.
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
//! What a commit survives depends on where the store lies: [`Store::durability`] says `process`
//! (any crash of processes) or `power`. A pool in shadowed mode ([`PoolMode::Shadowed`]) survives
//! loss of power on any disk, as its last [`Pool::psync`] left it.
//!
//! # What safe code can rely on
//!
//! No safe program gets undefined behaviour out of this crate, whatever it does with pointers that
//! it has kept too long: following one is an error ([`Error::Dangling`]) or leads to another live
//! value of its type. Pools that are not whole are shown as blocks, not as values
//! ([`Error::NotWhole`]).
//!
//! A pointer that dangles may stay in the data, also through a loss of power: a block counts as
//! allocated then only if its allocation was committed, whatever leads there. [`Pool::traced`]
//! tells whether a session has traced, and how many blocks of that kind it met.
//!
//! # Who may change a store's files
//!
//! What is mapped is the file itself, so the promise above ends at the directory:
//!
//! * *While a store is open, this crate alone changes its files.* Openers lock the store against
//!   each other. A program that writes, shortens or replaces the files by other means (`std::fs`, a
//!   script, a backup that is put back) changes memory under live references: a `bool` that is
//!   neither, a `NonZero` that is 0, `SIGBUS` where a file ends. No library can prevent that. A
//!   hard link to a file of the store is a way to change it, too. Keep the directory to one user,
//!   or to a daemon (`cenoted`), which gives programs pools and no files. Cenote's own way to the
//!   files, [`Medium`], asks for `unsafe`, and so does what rewrites them when a pool moves
//!   ([`RelocationOptions::rewriter`]), the store underneath ([`Store::as_raw`]), and declaring a
//!   pool whole whose logs were discarded ([`Store::declare_whole`]).
//! * *A store is believed as far as it is checked.* Opening checks control data, headers, logs and
//!   layouts. The bytes of values have no checksum, unless the pool is protected at rest
//!   ([`AtRest`]). [`Pool::check`] looks for bytes that are no value of their type: a `bool`, a
//!   `char`, a `NonZero`, a [`Ptr`], a discriminant. [`Store::import`] looks for them too, and an
//!   open that finds damage, or is asked to ([`OpenOptions::verify_values`]).
//! * *A store that comes from elsewhere* is believed as one's own in all else, unless it is opened
//!   with [`OpenOptions::verify_values`]: what the collections and texts in it say of themselves.
//!   Open what its author may be trusted with. *An archive* need not be trusted: [`Store::import`]
//!   compares each collection with what its header says, and refuses types that nothing describes.
//!   Pools that are protected at rest are not looked at: only a holder of their key changes them.
//! * *Damage can be accepted.* Where a log is damaged, its pools show no values until the caller
//!   decides. [`Store::discard_logs`] gives up what the log would have undone. Then half a
//!   transaction may be there, and the store remembers that: no session shows values of the pool
//!   before [`Store::declare_whole`].
//! * *Threads that `exit` overtakes.* `exit` runs the destructors of its thread's variables while
//!   other threads go on. A transaction that it left is rolled back by the next opener. A view that
//!   it left is not waited for: a pool whose last handle such a destructor drops is unmapped, as a
//!   `Box` there is freed, whatever another thread reads.
//!
//! # Copies of a store
//!
//! `cp -a` is for stores that are closed. A store that is open is copied by [`Store::backup`], or
//! by `cenote backup` where no program has it open: consistent, while transactions go on, and
//! complete under its name or not there. What `cp -a` made of an open store has files of different
//! moments. It is refused, unless the caller names [`CopyPolicy::CheckAndOpen`].
//!
//! The layers below, each a crate that knows nothing of those above it: `cenote-sys`,
//! `cenote-layout`, `cenote-medium`, `cenote-log`, `cenote-store`, `cenote-heap`, `cenote-tx`.
//! [`raw`] is the door to them.

extern crate self as cenote;

mod answers;
mod archiving;
mod attend;
mod background;
mod backup;
mod check;
mod checking;
mod connect;
mod copied;
mod daemon_api;
mod derived;
mod error;
mod extensions;
pub mod filter;
mod frames;
mod had;
mod half_done;
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
mod patience;
pub mod persist;
mod pool;
mod process_lock;
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
mod tracing;
mod trim;
mod tx;
mod tx_roots;
mod tx_steps;
mod unwaiting;
mod view;
mod viewed;
mod waits;
mod watch;

pub use archiving::{
    ArchivingError, ArchivingProgress, Codec, Exclusive, ExportOptions, Exported, ImportOptions,
    ImportedArchive, Inspected, LeftEntry, OnArchiving, Stale,
};
pub use cenote_derive::Persist;
pub use cenote_heap::locks;
pub use cenote_heap::{
    Damage as HeapDamage, HeapReport, HeapStats, Progress, RecoveryReport, SuperblockInfo,
    TraceOptions, TrimProgress, TrimReport, Use, ValueReport,
};
pub use cenote_layout::id::{PoolId, TypeId, Uuid};
pub use cenote_medium::{Durability, Medium, MediumOptions, RealMedium};
pub use cenote_proto::{ClientItem, ClientState, HeldPool, Stat as DaemonStat};
pub use cenote_store::relocate::{
    Backend, ImportedPool, RelocationOptions, RelocationProgress, Rewritten,
};
pub use cenote_store::{
    Access, Anchor, Argon2Params, AtRest, AtRestError, BackedUp, BackupReport, CopyPolicy,
    CrashKind, Damage, DamagePolicy, FormatOptions, HeapKind, JournalPolicy, KeyError, Keyring,
    Listed as ListedPool, Locking, MasterKey, OpenOptions, OpenReport, PermissionChange, PoolInfo,
    PoolMode, PoolOptions, PoolStart, PowerLossPolicy, Psync, RestoredPool, StoreInfo,
    UndecidedLogs, VerifiedPuddle, WindowPolicy,
};
pub use error::{Error, ReclaimRefused, Result};
pub use holder::{RegionPtr, RelPtr};
pub use open_pool::Pool;
pub use persist::Persist;
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

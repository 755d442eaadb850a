//! Commands that copy and move pools and stores.

use super::pools::parse_heap;
use super::{ChangedStore, StoreDir};
use cenote::HeapKind;
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Copy a pool within its store
///
/// Pointers in the copy lead into the copy. The first program that touches a pointer rewrites it. A
/// daemon rewrites all of them when a client next opens the copy.
///
/// A protected pool stays sealed while it is copied. Two cases need its key: --eager, and a pool
/// that has moved and whose pointers are not rewritten yet. The copy has the original's key until
/// `rekey` changes it. A program that first touches data of the copy seals it under new data keys.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct ClonePool {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool
    pub(crate) pool: String,
    /// Name of the copy
    pub(crate) name: String,
    /// Rewrite all pointers now
    #[arg(long)]
    pub(crate) eager: bool,
    /// Share the files' blocks instead of copying them, if the file system can. A daemon refuses
    /// this option. Until all pointers of the copy are rewritten, a program that writes the
    /// original ends with SIGBUS if the disk is full
    #[arg(long)]
    pub(crate) reflink: bool,
}

/// Copy a pool block by block, into one with another heap
///
/// The copy holds what the roots of POOL lead to. Its pointers lead into the copy, and into other
/// pools where they did before. Apart from its heap it is made like POOL: mode, sizes, protection
/// and permissions. POOL is only read.
///
/// A copy that was stopped, by Ctrl-C, a crash or a full disk, goes on by the same command. Until
/// then no program can open it; `cenote rm` removes it. If POOL has changed meanwhile, the command
/// refuses to go on. NAME may also be an empty pool that `cenote create` made: with another mode,
/// size or protection, say.
///
/// The copy needs room for a table while it is made, up to 32 bytes for each block.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct CopyPool {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool
    pub(crate) pool: String,
    /// Name of the copy
    pub(crate) name: String,
    /// The copy's allocator: traced, logged or wear (see `cenote create`). Default: that of POOL
    #[arg(long, value_name = "KIND", value_parser = parse_heap)]
    pub(crate) heap: Option<HeapKind>,
    /// Wear heap only: milliseconds before freed space may be used again. 0: at once. Default: 100,
    /// or as in POOL
    #[arg(long, value_name = "MS")]
    pub(crate) wear_wait: Option<u32>,
}

/// Give a pool new addresses, chosen at random
///
/// The first program that touches a pointer into the pool rewrites it, in all pools of the store. A
/// daemon rewrites the pointers of a pool when a client next opens that pool. Addresses in objects
/// or outside the store become invalid. Protected pools need no key until a program opens them. No
/// program may have a pool of the store open.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Randomize {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool
    pub(crate) pool: String,
    /// Rewrite all pointers now
    #[arg(long)]
    pub(crate) eager: bool,
}

/// Rewrite at once the pointers of pools that were imported, cloned or moved
///
/// Without this command the first program that touches a pointer rewrites it. A daemon grants a
/// pool only after it has rewritten all pointers of that pool.
#[derive(Debug, Args)]
pub(crate) struct Relocate {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
}

/// Copy an object, as its last psync left it, into a new file
///
/// If the file system can share blocks (xfs, btrfs) and the file is on the same one, the command
/// copies no data and takes hardly any space. It prints whether it copied or shared. A protected
/// object stays protected, and the command needs no key. The snapshot has checksums, so `restore`
/// recognises a damaged one.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The object
    pub(crate) object: String,
    /// The new file; it must not exist
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Copy even if the file system can share blocks. The object then keeps its blocks for itself,
    /// and a psync needs no further space
    #[arg(long)]
    pub(crate) copy: bool,
}

/// Make an object from a snapshot
///
/// The object gets its old address if that is free. If not, the command prints the new one:
/// pointers into the object are then invalid. A protected object keeps its identity and its key, so
/// remove the original first, or restore the snapshot into another store.
#[derive(Debug, Args)]
pub(crate) struct Restore {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The snapshot
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Another name for the object
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// Copy a whole store, consistently
///
/// The copy is a closed store. It has pools in direct mode as they are between two transactions,
/// pools in shadowed mode and objects as their last psync left them. Protected ones stay sealed.
/// The copy appears under its name when it is complete and on the disk. A backup that is killed
/// leaves a directory with another name, which is no store. The next backup to the same target
/// removes that directory.
///
/// If a program has the store open, that program can copy it while it works (`Store::backup`). If a
/// daemon keeps the store, give the daemon's socket as DIR. Only the superuser and the daemon's own
/// user may do that, and the daemon must be able to write the target directory. Its clients pause
/// for a moment. The backup fails, and names the process, if a client is stopped or stays in one
/// transaction for 2 seconds. Use `cp -a` for closed stores only: Cenote refuses its copy of an
/// open store.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The directory of the copy; it must be missing or empty
    #[arg(value_name = "TO", value_hint = ValueHint::DirPath)]
    pub(crate) target: PathBuf,
}

/// Write pools into an archive, with their types
///
/// An archive is one file, or a stream. It holds the pools as they are in memory, with checksums.
/// `import` makes pools from it, in another store or beside the originals. No program may have the
/// pools open; through a daemon, programs may have them open for reading. The command reports
/// pointers to other pools; with --with-targets it exports those pools too. For objects use
/// `snapshot`.
///
/// A protected pool stays sealed in the archive and needs no key. Without the key the command
/// cannot see where pointers of the pool lead, and exports all types of the store.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pools
    #[arg(required = true, value_name = "POOL")]
    pub(crate) pools: Vec<String>,
    /// The archive; it must not exist; - for standard output
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Compress with Zstandard
    #[arg(long)]
    pub(crate) zstd: bool,
    /// Export also the pools that pointers lead to, directly or through other pools
    #[arg(long)]
    pub(crate) with_targets: bool,
}

/// Make pools from an archive
///
/// The command reads and checks the whole archive first. It refuses a damaged archive, a value that
/// is invalid for its type, and a broken collection; the store is then unchanged. Pools keep their
/// addresses if those are free. In other pools the first program that touches a pointer rewrites
/// it; a daemon rewrites all pointers of a pool when a client next opens it.
///
/// A protected pool stays sealed, under the key that it had in its store. Only --eager needs that
/// key; `rekey` changes it. The first program that touches a page seals it under a new data key. An
/// import does not check the values of a protected pool: trust its author as you would trust the
/// author of a store.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The archive; - for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// A new name for a pool; give one for each pool of the archive, in the archive's order
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Rewrite all pointers now
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) eager: bool,
    /// Only check the archive and print what is in it
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Turn the copy of an open store into a normal store
///
/// Commands and programs refuse a copy of a store that was not closed (`cp -a` of a store in use,
/// say), because its files may be of different moments. This command opens and checks every pool
/// and every object. If all are whole, the store opens normally afterwards. If not, the command
/// names those that may be torn or are damaged: declare the files to be of one moment
/// (--of-one-moment), or remove these pools and objects (--remove-torn).
///
/// The copy of a store that a crash had left counts as such a copy too, even if no process had the
/// store open meanwhile: the files do not show that.
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Declare that no process had the store open while it was copied. Recovery then replays the
    /// logs, and every pool counts as whole. If a process had the store open after all, programs
    /// may read values that never existed
    #[arg(long)]
    pub(crate) of_one_moment: bool,
    /// Remove the pools and objects that may be torn or are damaged, and keep the others. Protected
    /// ones whose key was not given stay
    #[arg(long, conflicts_with = "of_one_moment")]
    pub(crate) remove_torn: bool,
    /// Remove without asking
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

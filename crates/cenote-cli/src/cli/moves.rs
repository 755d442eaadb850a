//! Commands that copy and move pools and stores.

use super::{ChangedStore, StoreDir};
use clap::{Args, ValueHint};
use std::path::PathBuf;

/// Make a copy of a pool beside it
///
/// Pointers in the copy lead into the copy. The first program that touches them rewrites them; a
/// daemon rewrites them when the pool is next opened.
///
/// A protected pool is copied as it is sealed, for which no key is needed (only if it has moved and
/// is still to be rewritten, or with --eager). The copy has the original's key, until `rekey` gives
/// it another, and is sealed under new data keys when it is first touched.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct ClonePool {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool
    pub(crate) pool: String,
    /// What the copy is to be called
    pub(crate) name: String,
    /// Rewrite all pointers now
    #[arg(long)]
    pub(crate) eager: bool,
    /// Share blocks of files, where the file system can, instead of copying them; a daemon refuses
    /// that. Until the copy is rewritten, a program that writes the original ends with SIGBUS if
    /// the disk is full
    #[arg(long)]
    pub(crate) reflink: bool,
}

/// Give a pool new addresses, chosen at random
///
/// Pointers into it, from all pools of the store, are rewritten when they are first touched; by a
/// daemon, when their pool is next opened. Addresses that are kept in objects or outside the store
/// lead nowhere afterwards. Protected pools need no key for that before they are opened. No program
/// may have any pool of the store open.
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

/// Rewrite the pointers of pools that were imported, cloned or moved, now
///
/// Without it they are rewritten when they are first touched. A daemon grants a pool only when
/// nothing of it is left to be rewritten.
#[derive(Debug, Args)]
pub(crate) struct Relocate {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
}

/// Copy an object, as its last psync left it, into a new file
///
/// Where the file system can share blocks (xfs, btrfs) and the file is in the same one, no data is
/// copied and hardly any space taken; the command says which it was. A protected object stays
/// protected, and no key is needed. Its headers and contents are summed up, so that restore finds a
/// whole snapshot from a damaged one.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Snapshot {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The object
    pub(crate) object: String,
    /// The file, which must not be there
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Copy, also where blocks can be shared: the object keeps the space that it has taken, so
    /// that no psync finds the disk full
    #[arg(long)]
    pub(crate) copy: bool,
}

/// Make an object again from a snapshot
///
/// At its old address if that is free; the command says if it is not, because pointers into the
/// object do not hold then. A protected object keeps its identity and the key that it had: the one
/// that the snapshot is of must be removed first, or the snapshot restored into another store.
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
/// The copy is a closed store: pools in direct mode as they are between two transactions, pools in
/// shadowed mode and objects as their last psync left them, protected ones sealed as they lie
/// there. It is complete and on the disk, or not there: a backup that is killed leaves a directory
/// of another name, which is no store, and which the next backup to the same target removes.
///
/// A store that a program has open is copied by that program, while it goes on (`Store::backup`).
/// One that a daemon keeps is copied by the daemon, whose socket is named in the place of the
/// store: for the superuser and the daemon's own user, into a directory that the daemon may write.
/// Its clients go on, but for a moment. A client that has no moment between transactions within 2
/// seconds, or is stopped, ends the backup, which names its process. `cp -a` is for stores that are
/// closed: its copy of an open store is refused.
#[derive(Debug, Args)]
pub(crate) struct Backup {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The directory of the copy, which must not be there, or be empty
    #[arg(value_name = "TO", value_hint = ValueHint::DirPath)]
    pub(crate) target: PathBuf,
}

/// Write pools into an archive, with their types
///
/// An archive is one file, or a stream: it holds the pools as they lie in memory, checksummed.
/// `import` makes pools of it, in another store or beside the originals. No program may have the
/// pools open; through a daemon, some may read them. Pointers to other pools are told; with
/// --with-targets those pools are taken along. Objects go by `snapshot`.
///
/// A protected pool stays sealed in the archive, and no key is needed; without it
/// nothing says where its pointers lead, and all types of the store are taken along.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Export {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pools
    #[arg(required = true, value_name = "POOL")]
    pub(crate) pools: Vec<String>,
    /// The archive, which must not be there; - for standard output
    #[arg(required = true, value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Compress with Zstandard
    #[arg(long)]
    pub(crate) zstd: bool,
    /// Take along the pools that pointers lead to, and those that theirs lead to
    #[arg(long)]
    pub(crate) with_targets: bool,
}

/// Make pools of an archive
///
/// All of the archive is read and checked before any of it counts: a damaged one changes nothing,
/// and neither does one with values that are none of their type, or with a broken collection. The
/// pools keep their addresses where those are free; pointers of others are rewritten when they are
/// first touched; by a daemon, when their pool is next opened.
///
/// A protected pool comes sealed, with the key that it had where it comes from; none is needed for
/// importing it, but for --eager. It is sealed under new data keys when it is first touched;
/// `rekey` gives it another key. An import does not look at its values: trust its author as you
/// would trust the author of a store.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Import {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The archive; - for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: PathBuf,
    /// Another name for a pool; once for each of the archive's pools, in its order
    #[arg(long = "as", value_name = "NAME")]
    pub(crate) names: Vec<String>,
    /// Rewrite all pointers now
    #[arg(long, conflicts_with = "dry_run")]
    pub(crate) eager: bool,
    /// Only check the archive and say what is in it
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Make a copy of a store that was not closed a store of its own
///
/// Such a copy (`cp -a` of a store in use, say) is refused without --accept-copy. This opens every
/// pool and every object, which checks it. If all are found whole, the store opens as any other
/// from then on. Otherwise those that are not are named: answer for them with --of-one-moment, or
/// have them removed with --remove-torn.
///
/// A copy of a store that a crash had left, made while no process had it open, is such a copy too:
/// nothing in it shows that its files are of one moment.
#[derive(Debug, Args)]
pub(crate) struct Adopt {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Answer for it that no process had the store open while it was copied: what was in use when
    /// the store was left is recovered by its logs and counts as whole. If a process had it open,
    /// programs may read values that never were
    #[arg(long)]
    pub(crate) of_one_moment: bool,
    /// Remove the pools and objects that may be torn or are damaged, and keep the others. What is
    /// not opened for want of its key stays
    #[arg(long, conflicts_with = "of_one_moment")]
    pub(crate) remove_torn: bool,
    /// Do not ask before that
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

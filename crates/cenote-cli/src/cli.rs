//! The command line: every command, argument and option, with the help that users read.

use crate::failure::EXIT_HELP;
use crate::units::{parse_bytes, parse_seconds};
use cenote::PoolMode;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Persistent memory for programs: stores, pools, and what is in them.
///
/// A store is a directory. It holds pools: named heaps of values that programs change in
/// transactions, and find again after any crash.
#[derive(Debug, Parser)]
#[command(name = "cenote", version, max_term_width = 100, after_help = EXIT_HELP, subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Cli {
    /// Print JSON: one object, or one object a line
    #[arg(long, global = true, help_heading = "Common options")]
    pub(crate) json: bool,

    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    #[command(after_help = EXIT_HELP)]
    Format(Format),
    #[command(after_help = EXIT_HELP)]
    Create(Create),
    #[command(after_help = EXIT_HELP)]
    Ls(Ls),
    #[command(after_help = EXIT_HELP)]
    Chmod(Chmod),
    #[command(after_help = EXIT_HELP)]
    Chown(Chown),
    #[command(after_help = EXIT_HELP)]
    Logs(Logs),
    #[command(after_help = EXIT_HELP)]
    Info(Info),
    #[command(after_help = EXIT_HELP)]
    Check(Check),
    #[command(after_help = EXIT_HELP)]
    Dump(Dump),
    #[command(after_help = EXIT_HELP)]
    Reclaim(Reclaim),
    #[command(after_help = EXIT_HELP)]
    Rm(Rm),
    #[command(after_help = EXIT_HELP)]
    Stats(Stats),
    #[command(after_help = EXIT_HELP)]
    Top(Top),
    #[command(after_help = EXIT_HELP)]
    Trim(Trim),
    #[command(after_help = EXIT_HELP)]
    Clone(ClonePool),
    #[command(after_help = EXIT_HELP)]
    Randomize(Randomize),
    #[command(after_help = EXIT_HELP)]
    Relocate(Relocate),
    #[command(after_help = EXIT_HELP)]
    Object(Object),
    #[command(after_help = EXIT_HELP)]
    Verify(Verify),
    #[command(after_help = EXIT_HELP)]
    Rekey(Rekey),
    #[command(after_help = EXIT_HELP)]
    Snapshot(Snapshot),
    #[command(after_help = EXIT_HELP)]
    Restore(Restore),
    #[command(after_help = EXIT_HELP)]
    Backup(Backup),
    #[command(after_help = EXIT_HELP)]
    Adopt(Adopt),
    #[command(after_help = EXIT_HELP)]
    Export(Export),
    #[command(after_help = EXIT_HELP)]
    Import(Import),
    #[command(after_help = EXIT_HELP)]
    Doctor(Doctor),
    #[command(after_help = EXIT_HELP)]
    Tour(Tour),
    #[command(after_help = EXIT_HELP)]
    Completions(Completions),
    #[command(after_help = EXIT_HELP)]
    Man(Man),
}

impl Command {
    /// The store that a message about a file belongs to.
    pub(crate) fn store(&self) -> Option<&Path> {
        let dir = match self {
            Self::Format(Format { dir, .. }) => dir,
            Self::Create(Create { store, .. })
            | Self::Chmod(Chmod { store, .. })
            | Self::Chown(Chown { store, .. })
            | Self::Reclaim(Reclaim { store, .. })
            | Self::Rm(Rm { store, .. })
            | Self::Trim(Trim { store, .. })
            | Self::Clone(ClonePool { store, .. })
            | Self::Randomize(Randomize { store, .. })
            | Self::Relocate(Relocate { store, .. })
            | Self::Rekey(Rekey { store, .. })
            | Self::Restore(Restore { store, .. })
            | Self::Backup(Backup { store, .. })
            | Self::Adopt(Adopt { store, .. })
            | Self::Export(Export { store, .. })
            | Self::Import(Import { store, .. }) => &store.at.dir,
            Self::Ls(Ls { store })
            | Self::Info(Info { store, .. })
            | Self::Check(Check { store, .. })
            | Self::Dump(Dump { store, .. })
            | Self::Stats(Stats { store, .. })
            | Self::Verify(Verify { store, .. })
            | Self::Snapshot(Snapshot { store, .. }) => &store.dir,
            Self::Logs(Logs { command }) => match command {
                LogsCommand::List(list) => &list.store.dir,
                LogsCommand::Apply(decide) | LogsCommand::Discard(decide) => &decide.store.at.dir,
                LogsCommand::DeclareWhole(declare) => &declare.store.at.dir,
            },
            Self::Object(Object { command }) => match command {
                ObjectCommand::Create(made) => &made.store.at.dir,
                ObjectCommand::Ls(list) => &list.store.dir,
                ObjectCommand::Info(info) => &info.store.dir,
                ObjectCommand::Rm(removed) => &removed.store.at.dir,
                ObjectCommand::Import(import) => &import.store.at.dir,
                ObjectCommand::Export(export) => &export.store.dir,
            },
            Self::Top(_)
            | Self::Doctor(_)
            | Self::Tour(_)
            | Self::Completions(_)
            | Self::Man(_) => return None,
        };
        Some(dir)
    }
}

/// Make a store in a directory that is missing or empty
///
/// Nothing that is there is ever overwritten. The window is the part of the address space that the
/// store's data will have in every program that opens it; it costs no memory.
#[derive(Debug, Args)]
pub(crate) struct Format {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Bytes of the window: all that the store can hold. 768 windows of 64G, or 48 of 1T, fit into
    /// one process
    #[arg(long, value_name = "SIZE", default_value = "64G", value_parser = parse_bytes)]
    pub(crate) window_size: u64,
    /// First address of the window; chosen if not given
    #[arg(long, value_name = "ADDRESS", value_parser = crate::units::parse_address)]
    pub(crate) window_base: Option<u64>,
    #[command(flatten)]
    pub(crate) care: Care,
}

/// Create a pool
///
/// Sizes are bytes, or have a suffix: 64K, 2M, 1G, 1T.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Create {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool's name
    pub(crate) pool: String,
    /// Bytes to begin with
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_bytes)]
    pub(crate) size: u64,
    /// Bytes that it may grow to; without it, as far as there is space
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) size_max: Option<u64>,
    /// Where stores go: straight into the pool's files (direct), or into a shadow of them that a
    /// psync makes safe from loss of power on any disk (shadowed). Without it: shadowed where
    /// a commit does not survive loss of power, but files do
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<PoolMode>,
    /// How it is protected at rest: none, integrity, encryption, both, or authenticated. Such a
    /// pool is in shadowed mode, and every crash takes it back to its last psync. Without it:
    /// authenticated if there is a key, else none
    #[arg(long, value_name = "MODE", value_parser = crate::keys::parse_at_rest)]
    pub(crate) at_rest: Option<cenote_object::Mode>,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Say who may read and write a pool through a daemon
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Chmod {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool's name
    pub(crate) pool: String,
    /// Permission bits, as of a file, in octal: 640
    #[arg(value_parser = parse_permissions)]
    pub(crate) mode: u32,
}

/// Give a pool another owner or group
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
pub(crate) struct Chown {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool's name
    pub(crate) pool: String,
    /// The owner, a group after a colon, or both, as names or numbers: alice, alice:staff, :100
    pub(crate) owner: String,
}

/// Logs that recovery has set aside, and what becomes of them
///
/// A log that failed its checks is kept and not applied. The pools that its program could write
/// show no values until `cenote logs apply` or `cenote logs discard` decides about it.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(subcommand)]
    pub(crate) command: LogsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogsCommand {
    /// List the programs whose logs are set aside, their pools, and what is wrong
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    List(LogsList),
    /// Replay the logs of one program, if they pass their checks now: after what was damaged has
    /// been brought back
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    Apply(LogsDecide),
    /// Forget the logs of one program: its pools hold what its transactions had done, half of one
    /// perhaps
    ///
    /// The store remembers that, and programs are refused these pools: restore them, remove them,
    /// or declare them whole (`cenote logs declare-whole`).
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    Discard(LogsDecide),
    /// Declare a pool whole whose logs were discarded: programs can use it again
    ///
    /// Programs may misbehave that read half of a transaction, and `cenote check` does not tell: a
    /// list that is half cut has valid values. Use it if no transaction was running, or if the pool
    /// was repaired.
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    DeclareWhole(LogsDeclare),
}

#[derive(Debug, Args)]
pub(crate) struct LogsDeclare {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool
    pub(crate) pool: String,
}

#[derive(Debug, Args)]
pub(crate) struct LogsList {
    #[command(flatten)]
    pub(crate) store: StoreDir,
}

#[derive(Debug, Args)]
pub(crate) struct LogsDecide {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The client, as `cenote logs list` shows it
    #[arg(value_parser = parse_client)]
    pub(crate) client: cenote::Uuid,
}

fn parse_client(text: &str) -> Result<cenote::Uuid, String> {
    cenote::Uuid::parse(text).ok_or_else(|| "use an identity as `cenote logs list` shows it".into())
}

fn parse_permissions(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err("use three octal digits, as 640".into()),
    }
}

fn parse_mode(text: &str) -> Result<PoolMode, String> {
    match text {
        "direct" => Ok(PoolMode::Direct),
        "shadowed" => Ok(PoolMode::Shadowed),
        _ => Err("use direct or shadowed".into()),
    }
}

/// List the pools of a store
///
/// STATE is how a pool was left: fresh (no program has written it), clean (its last writer closed
/// the store), dirty (its last writer ended without that; the next to write recovers it). A pool
/// whose files are damaged is listed, said to be damaged, and makes the exit status 1.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it; a daemon's pools may
/// be in use, and neither their state nor their roots are shown.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) store: StoreDir,
}

/// Show what a store is
///
/// Changes nothing: a store that needs recovery is recovered in memory only.
#[derive(Debug, Args)]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Draw how full the heap of this pool is instead: by use, by type and size, and place by
    /// place
    #[arg(long, value_name = "POOL")]
    pub(crate) heap: Option<String>,
}

/// Look for damage, leaks and wrong pointers
///
/// Looks at the superblock, the catalog, every puddle, every log and every heap, and follows every
/// pointer from the roots. Changes nothing.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Only these pools
    #[arg(long = "pool", value_name = "NAME")]
    pub(crate) pools: Vec<String>,
    /// List up to 1,000 findings of each kind and pool, not the first ten of each kind
    #[arg(long)]
    pub(crate) all: bool,
    /// Most threads that follow pointers; as many as there are cores, if not given
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<NonZero<usize>>,
}

fn parse_threads(text: &str) -> Result<NonZero<usize>, String> {
    text.parse().map_err(|_| "use a number from 1 on".into())
}

/// Show what is on the medium: superblock, catalog, puddles, logs, types, blocks
///
/// With --json, one object a line, each with a "kind".
#[derive(Debug, Args)]
pub(crate) struct Dump {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Show this pool: its roots, and its blocks by type
    #[arg(long, value_name = "NAME")]
    pub(crate) pool: Option<String>,
    /// Show every block of the pool
    #[arg(long, requires = "pool")]
    pub(crate) blocks: bool,
}

/// Give back what was allocated and never attached
///
/// A program that dies between an allocation and the store that was to attach it leaves a block
/// that nothing leads to. Follows every pointer from the roots of all pools, and frees the blocks
/// of these pools that it does not come to. `check` names them too.
#[derive(Debug, Args)]
pub(crate) struct Reclaim {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
    /// Only say what would be given back
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Remove pools and all that is in them, for good
///
/// On a terminal it asks first; elsewhere it wants --yes.
///
/// DIR is the store's directory, or the socket of the daemon that keeps it.
#[derive(Debug, Args)]
#[command(
    override_usage = "cenote rm [OPTIONS] <DIR> <POOLS>...\n       cenote rm [OPTIONS] <DIR> \
                      --store"
)]
pub(crate) struct Rm {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pools
    #[arg(required_unless_present = "whole", conflicts_with = "whole")]
    pub(crate) pools: Vec<String>,
    /// Remove the store itself, with all pools
    #[arg(long = "store")]
    pub(crate) whole: bool,
    #[command(flatten)]
    pub(crate) care: Care,
}

/// Count blocks and bytes, by pool and type
#[derive(Debug, Args)]
pub(crate) struct Stats {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Only these pools
    pub(crate) pools: Vec<String>,
}

/// Watch a daemon and its clients
///
/// On a terminal the picture changes until q or Ctrl-C; elsewhere one follows the other. Rates are
/// those of the time between two pictures.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The daemon's socket
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
    /// One picture, after one interval
    #[arg(long)]
    pub(crate) once: bool,
    /// Time from one picture to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_seconds(text)? {
        interval if interval >= Duration::from_millis(50) => Ok(interval),
        _ => Err("use 0.05 seconds or more".into()),
    }
}

/// Give free space of pools back to the file system
///
/// What is in the pools, their addresses and the sizes of their files stay; only the space that
/// free superblocks (64 KiB each) take on the disk becomes free for others. It is taken again as it
/// is needed.
#[derive(Debug, Args)]
pub(crate) struct Trim {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Make a copy of a pool beside it
///
/// Pointers in the copy lead into the copy. They are rewritten when they are first touched, by
/// whatever program; by a daemon, when the pool is next opened.
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

/// Make, show, fill and remove objects: raw memory that a psync makes durable as a whole
///
/// An object is one piece of memory at an address of its own. A program attaches it, stores into
/// it, and calls psync: after any crash the object is as the last psync left it.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true)]
pub(crate) struct Object {
    #[command(subcommand)]
    pub(crate) command: ObjectCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum ObjectCommand {
    /// Create an object of zeros
    #[command(after_help = EXIT_HELP)]
    Create(ObjectCreate),
    /// List the objects of a store
    #[command(after_help = EXIT_HELP)]
    Ls(Ls),
    /// Show what is known about an object, and the state it is in
    #[command(after_help = EXIT_HELP)]
    Info(ObjectInfo),
    /// Remove objects and their data, for good
    #[command(after_help = EXIT_HELP)]
    Rm(ObjectRm),
    /// Copy a file, or standard input, into an object
    ///
    /// The object holds all of it afterwards, or, if that is interrupted, a beginning that ends
    /// with a whole psync.
    #[command(after_help = EXIT_HELP)]
    Import(ObjectImport),
    /// Copy an object into a file, or to standard output
    #[command(after_help = EXIT_HELP)]
    Export(ObjectExport),
}

#[derive(Debug, Args)]
pub(crate) struct ObjectCreate {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The object's name
    pub(crate) object: String,
    /// Bytes of it
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) size: u64,
    /// Who may attach it, as the mode of a file: 600, 640, 400
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = crate::units::parse_mode)]
    pub(crate) mode: u32,
    /// What protects it while no program has it attached: none, integrity, encryption, both, or
    /// authenticated. For good. Without it: authenticated if a key is given, else none
    #[arg(long, value_name = "MODE", value_parser = crate::keys::parse_at_rest)]
    pub(crate) at_rest: Option<cenote_object::Mode>,
}

/// The key of what is protected at rest.
#[derive(Debug, Default, Args)]
pub(crate) struct KeyOf {
    /// The key of protected pools or objects: a file of 32 bytes, or of 64 hexadecimal digits
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "passphrase_file")]
    pub(crate) key_file: Option<PathBuf>,
    /// The passphrase of protected pools or objects: the first line of a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) passphrase_file: Option<PathBuf>,
}

impl KeyOf {
    /// Whether there is one.
    pub(crate) const fn is_given(&self) -> bool {
        self.key_file.is_some() || self.passphrase_file.is_some()
    }
}

/// Check every page of protected pools and objects, and list those that are damaged
///
/// Every page is compared with the hash tree of its puddle or object, as the last psync left it.
/// Nothing is changed, and no contents are shown. What is not damaged can be read all the same: of
/// an object by `cenote object export --skip-damaged`.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The pools and objects; without it, all that are protected
    pub(crate) names: Vec<String>,
}

/// Copy an object, as its last psync left it, into a new file
///
/// Where the file system can share blocks (xfs, btrfs) and the file is in the same one, no data is
/// copied and hardly any space taken; the command says which it was. A protected object stays
/// protected, and no key is needed. Its headers and contents are summed up, so that restore knows a
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

/// Put a protected pool or object under another key
///
/// Takes the same time for every size: its data key is wrapped anew, and its data is not written
/// again. The old key still opens copies of the store that were made before.
#[derive(Debug, Args)]
pub(crate) struct Rekey {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool or the object
    pub(crate) name: String,
    /// The new key: a file of 32 bytes, or of 64 hexadecimal digits
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, conflicts_with = "new_passphrase_file")]
    pub(crate) new_key_file: Option<PathBuf>,
    /// The new passphrase: the first line of a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) new_passphrase_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct ObjectInfo {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The object
    pub(crate) object: String,
}

#[derive(Debug, Args)]
pub(crate) struct ObjectRm {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The objects
    #[arg(required = true)]
    pub(crate) objects: Vec<String>,
    #[command(flatten)]
    pub(crate) care: Care,
}

#[derive(Debug, Args)]
pub(crate) struct ObjectImport {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The object
    pub(crate) object: String,
    /// The file; standard input if not given
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) input: Option<PathBuf>,
    /// Where in the object it begins
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) at: u64,
    /// Bytes that one psync makes durable together
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_bytes)]
    pub(crate) every: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ObjectExport {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The object
    pub(crate) object: String,
    /// The file, which must not be there; standard output if not given
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Where in the object to begin
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) at: u64,
    /// How many bytes; without it, up to the end
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) len: Option<u64>,
    /// Go on where pages of a protected object are damaged: zeros take their place, and they are
    /// listed
    #[arg(long)]
    pub(crate) skip_damaged: bool,
}

/// Say what this machine gives, and what is used instead of what is missing
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A directory that is to hold a store
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// Build an index of words while being killed again and again, and compare
///
/// A process indexes the words of the files (by default, of this project's own documents) in a
/// pool: an ordered tree of words with lists of their positions, linked by plain pointers, a few
/// words in each transaction. It is killed with SIGKILL at random moments. After each kill,
/// `cenote-recover`, a program without any of the index's code, recovers the store, and the next
/// process goes on where the last commit was. At the end the index is compared, entry by entry,
/// with one that the standard library's collections hold.
#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// Text to index
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Where the store is made, or gone on with; a temporary directory if not given
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) store: Option<PathBuf>,
    /// How often to kill
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_kills)]
    pub(crate) kills: u32,
    /// Seed of the random moments; a random one if not given
    #[arg(long, value_name = "N", value_parser = parse_seed)]
    pub(crate) seed: Option<u64>,
    /// Words in each transaction
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = parse_batch)]
    pub(crate) batch: u32,
    /// Keep the temporary directory
    #[arg(long)]
    pub(crate) keep: bool,
}

fn parse_kills(text: &str) -> Result<u32, String> {
    let number = text.parse().ok().filter(|number| *number <= 100_000);
    number.ok_or_else(|| "use a number from 0 to 100000".into())
}

fn parse_batch(text: &str) -> Result<u32, String> {
    parse_kills(text)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| "use a number from 1 to 100000".into())
}

fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| "use a whole number".into())
}

/// Print a completion script for a shell
///
/// For bash: cenote completions bash > ~/.local/share/bash-completion/completions/cenote
#[derive(Debug, Args)]
pub(crate) struct Completions {
    /// The shell
    pub(crate) shell: clap_complete::Shell,
}

/// Write the manual pages into a directory
#[derive(Debug, Args)]
pub(crate) struct Man {
    /// The directory; made if it is missing
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

/// First argument of what `cenote tour` runs and kills. No command for users, so it is in no help,
/// completion or manual page.
pub(crate) const TOUR_BUILD: &str = "__tour-build";

/// Its other arguments.
#[derive(Debug, Parser)]
pub(crate) struct TourBuild {
    #[arg(long)]
    pub(crate) store: PathBuf,
    #[arg(long)]
    pub(crate) batch: u32,
    /// Number of the process without which there is no use in going on.
    #[arg(long)]
    pub(crate) parent: u32,
}

/// Make a copy of a store that was not closed a store of its own
///
/// Such a copy (`cp -a` of a store in use, say) is refused without --accept-copy. This opens every
/// pool and every object, which checks it. If all are found whole, the store opens as any other
/// from then on. Otherwise those that are not are named: remove them, and say it again, or answer
/// for them with --of-one-moment.
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
}

/// A store, and how to come by it.
#[derive(Debug, Args)]
pub(crate) struct StoreDir {
    /// The store's directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Wait so long for a store that another process uses
    #[arg(long, value_name = "SECONDS", default_value = "0", hide_default_value = true, value_parser = parse_seconds)]
    pub(crate) wait: Duration,
    /// Open a copy that was made while the store was open, and check every pool; `cenote adopt`
    /// makes it a store of its own
    #[arg(long)]
    pub(crate) accept_copy: bool,
    #[command(flatten)]
    pub(crate) key: KeyOf,
}

/// A store that is changed.
#[derive(Debug, Args)]
pub(crate) struct ChangedStore {
    #[command(flatten)]
    pub(crate) at: StoreDir,
    /// Make a new journal of psyncs of pools if the old one cannot be used; all pools in shadowed
    /// mode may be torn then
    #[arg(long)]
    pub(crate) give_up_journal: bool,
}

impl std::ops::Deref for ChangedStore {
    type Target = StoreDir;

    fn deref(&self) -> &StoreDir {
        &self.at
    }
}

/// Options of commands that make or remove.
#[derive(Clone, Copy, Debug, Args)]
pub(crate) struct Care {
    /// Only say what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_help_with_exit_statuses() {
        for command in Cli::command().get_subcommands_mut().filter(|c| !c.is_hide_set()) {
            let help = command.render_long_help().to_string();
            assert!(help.contains("Exit status:"), "{help}");
            assert!(command.get_about().is_some(), "{}", command.get_name());
        }
    }
}

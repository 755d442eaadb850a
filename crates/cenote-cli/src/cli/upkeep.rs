//! Commands that look for damage and leaks, and give space back.

use super::{ChangedStore, StoreDir};
use crate::failure::EXIT_HELP;
use clap::{Args, Subcommand, ValueHint};
use std::num::NonZero;
use std::path::PathBuf;

/// Look for damage, leaks and wrong pointers
///
/// Checks the superblock, the catalog, every puddle, every log and every heap, and follows every
/// pointer from the roots. Changes no file.
#[derive(Debug, Args)]
pub(crate) struct Check {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Only these pools
    #[arg(long = "pool", value_name = "NAME")]
    pub(crate) pools: Vec<String>,
    /// List up to 1,000 findings of each kind in each pool, instead of ten of each kind
    #[arg(long)]
    pub(crate) all: bool,
    /// Number of threads; default: one for each core
    #[arg(long, value_name = "N", value_parser = parse_threads)]
    pub(crate) threads: Option<NonZero<usize>>,
}

fn parse_threads(text: &str) -> Result<NonZero<usize>, String> {
    text.parse().map_err(|_| "use a number of 1 or more".into())
}

/// Show the store's files: superblock, catalog, puddles, logs, types, blocks
///
/// With --json the command prints one object per line, each with a "kind".
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

/// Free leaked blocks: those that no root leads to
///
/// A program that ends between an allocation and the store of the pointer leaks the block. This
/// command follows every pointer from the roots of all pools, and frees the blocks of the named
/// pools that it does not reach. `check` lists them without a change.
#[derive(Debug, Args)]
pub(crate) struct Reclaim {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
    /// Only print what would be freed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Give free space of pools back to the file system
///
/// The contents of the pools, their addresses and the sizes of their files stay. The disk blocks of
/// free superblocks (64 KiB each) become free for other files. A pool takes disk blocks again when
/// it needs them.
#[derive(Debug, Args)]
pub(crate) struct Trim {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
    /// Only print what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Free the blocks of pools that are owned no more and wait to be freed
///
/// A program that removes a large tree leaves most of its blocks to later transactions. This
/// command frees them now, without the program. It needs no free space in the pool.
#[derive(Debug, Args)]
pub(crate) struct FinishFrees {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Only these pools
    pub(crate) pools: Vec<String>,
    /// Only print what would be freed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Check every page of protected pools and objects, and list those that are damaged
///
/// The command compares every page with the hash tree of its puddle or object, as the last psync
/// left it. It changes no file and shows no contents. `cenote object export --skip-damaged` copies
/// out the undamaged pages of an object.
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The pools and objects; all protected ones if not given
    pub(crate) names: Vec<String>,
}

/// Change the key of a protected pool or object
///
/// The command encrypts the data key under the new key. It does not write the data again, so it
/// takes the same time for every size. The old key still opens copies of the store that were made
/// before.
#[derive(Debug, Args)]
pub(crate) struct Rekey {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// The pool or the object
    pub(crate) name: String,
    /// The new key: a file of 32 bytes, or of 64 hexadecimal digits
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with = "new_passphrase_file"
    )]
    pub(crate) new_key_file: Option<PathBuf>,
    /// The new passphrase: the first line of a file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) new_passphrase_file: Option<PathBuf>,
}

/// List, apply or discard logs that recovery has set aside
///
/// Recovery does not apply a log that fails its checks: it keeps the log. Programs cannot read the
/// pools that the log's program could write until an operator decides: `cenote logs apply` or
/// `cenote logs discard`.
#[derive(Debug, Args)]
pub(crate) struct Logs {
    #[command(subcommand)]
    pub(crate) command: LogsCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum LogsCommand {
    /// List the programs whose logs are set aside, their pools, and the failed checks
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    List(LogsList),
    /// Replay the logs of one program, if they pass their checks now
    ///
    /// Restore the damaged files first.
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    Apply(LogsDecide),
    /// Delete the logs of one program: its pools may then hold half a transaction
    ///
    /// The store marks these pools as torn, and programs cannot open them. Restore them, remove
    /// them, or declare them whole (`cenote logs declare-whole`).
    ///
    /// DIR is the store's directory, or the socket of the daemon that keeps it.
    #[command(after_help = EXIT_HELP)]
    Discard(LogsDecide),
    /// Declare a pool whole after its logs were discarded: programs can use it again
    ///
    /// Use this if no transaction was running, or after a repair of the pool. Programs that read
    /// half a transaction may misbehave. `cenote check` does not find it: half a transaction may
    /// consist of valid values.
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
    cenote::Uuid::parse(text)
        .ok_or_else(|| "use a client's identity from `cenote logs list`".into())
}

/// Show what this machine offers, and what Cenote uses in place of missing features
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// The directory of a store, or one where you plan a store
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

//! Commands that look for damage and leaks, and give space back.

use super::{ChangedStore, StoreDir};
use crate::failure::EXIT_HELP;
use clap::{Args, Subcommand, ValueHint};
use std::num::NonZero;
use std::path::PathBuf;

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

/// Say what this machine gives, and what is used instead of what is missing
#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// A directory that is to hold a store
    #[arg(default_value = ".", value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
}

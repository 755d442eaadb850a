//! Commands that make, list, describe and remove stores and pools.

use super::{Care, ChangedStore, StoreDir};
use crate::units::{parse_bytes, parse_seconds};
use cenote::{DataProtection, HeapKind, PoolMode};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// Make a store in a directory that is missing or empty
///
/// The command never overwrites a file. A store's data has the same addresses in every program: its
/// window is that part of the address space. A large window costs no memory.
#[derive(Debug, Args)]
pub(crate) struct Format {
    /// The directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Size of the window: the most that the store can ever hold. One process has room for 768
    /// windows of 64G, or 48 of 1T
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
    /// Size of the pool at first
    #[arg(long, value_name = "SIZE", default_value = "2M", value_parser = parse_bytes)]
    pub(crate) size: u64,
    /// Most bytes that the pool may grow to. Default: no limit but the window
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) size_max: Option<u64>,
    /// Where programs store: into the pool's files (direct), or into shadows of them, which a psync
    /// brings to the files, safe from a loss of power on any disk (shadowed). Default: shadowed on
    /// disks; direct on persistent memory and on tmpfs
    #[arg(long, value_name = "MODE", value_parser = parse_mode)]
    pub(crate) mode: Option<PoolMode>,
    /// The pool's allocator. traced: fastest; after a loss of power, recovery follows all pointers.
    /// logged: writes a log of each allocation and free; recovery takes the same time for every
    /// pool. wear: writes each place rarely, and survives damage of its headers
    #[arg(long, value_name = "KIND", default_value = "traced", value_parser = parse_heap)]
    pub(crate) heap: HeapKind,
    /// Wear heap only: milliseconds before freed space may be used again. 0: at once. Default: 100
    #[arg(long, value_name = "MS")]
    pub(crate) wear_wait: Option<u32>,
    /// How the pool is protected at rest: none, integrity, encryption, both, or authenticated. A
    /// protected pool is in shadowed mode, and every crash takes it back to its last psync.
    /// Default: authenticated if a key is given, else none
    #[arg(long, value_name = "MODE", value_parser = crate::at_rest_modes::parse_at_rest)]
    pub(crate) at_rest: Option<cenote_object::Mode>,
    /// What is write-protected while a program has the pool open: none, or data, where only
    /// transactions store; a stray write ends the program. Pages close 40 ms after a transaction,
    /// with data:MS after so many ms, with data:sync at once. Only with --heap logged
    #[arg(long, value_name = "WHAT", default_value = "none", value_parser = parse_protect)]
    pub(crate) protect: DataProtection,
    /// Only print what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

/// Change who may read and write a pool through a daemon
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

fn parse_permissions(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err("use three octal digits, such as 640".into()),
    }
}

fn parse_protect(text: &str) -> Result<DataProtection, String> {
    let how = match text {
        "none" => Some(DataProtection::None),
        "data" => Some(DataProtection::DEFERRED),
        "data:sync" => Some(DataProtection::Synchronous),
        _ => text
            .strip_prefix("data:")
            .and_then(|wait| wait.parse().ok())
            .map(|wait_ms| DataProtection::Deferred { wait_ms }),
    };
    let valid = how.filter(|how| how.is_valid());
    valid.ok_or_else(|| "use none, data, data:MS with at most 60000, or data:sync".into())
}

pub(super) fn parse_heap(text: &str) -> Result<HeapKind, String> {
    match text {
        "traced" => Ok(HeapKind::Traced),
        "logged" => Ok(HeapKind::Logged),
        "wear" => Ok(HeapKind::WEAR),
        _ => Err("use traced, logged or wear".into()),
    }
}

/// The heap that was asked for, whose freed blocks wait so long.
///
/// # Errors
/// They do in a wear heap alone.
pub(crate) fn heap_with(heap: HeapKind, wear_wait: Option<u32>) -> Result<HeapKind, String> {
    match (heap, wear_wait) {
        (HeapKind::Wear { .. }, Some(wait_ms)) => Ok(HeapKind::Wear { wait_ms }),
        (heap, None) => Ok(heap),
        (heap, Some(_)) => Err(format!(
            "--wear-wait is for wear heaps, and the pool is to have a {} heap: leave it out, or \
             say --heap wear",
            heap.name()
        )),
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
/// STATE is one of: fresh (no program has written the pool), clean (its last writer closed the
/// store), dirty (its last writer ended without closing; the next writer recovers the pool), and
/// damaged (files are missing or damaged; the exit status is then 1).
///
/// DIR is the store's directory, or the socket of the daemon that keeps it. A daemon does not show
/// states and roots, because its pools may be in use.
#[derive(Debug, Args)]
pub(crate) struct Ls {
    #[command(flatten)]
    pub(crate) store: StoreDir,
}

/// Show a store's identity, size, durability and state
///
/// Changes no file: if the store needs recovery, that happens in memory only.
#[derive(Debug, Args)]
pub(crate) struct Info {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Show how full this pool's heap is, as a map and by type and size
    #[arg(long, value_name = "POOL")]
    pub(crate) heap: Option<String>,
    /// Show the wear heap of this pool: used, waiting and damaged space
    #[arg(long, value_name = "POOL", conflicts_with = "heap")]
    pub(crate) wear: Option<String>,
}

/// Remove pools and all their contents, for good
///
/// On a terminal the command asks first. Elsewhere it needs --yes.
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
/// On a terminal the picture is updated in place; q or Ctrl-C ends it. Elsewhere the command prints
/// one picture after the other. Rates are averages since the last picture.
#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The daemon's socket
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) socket: PathBuf,
    /// Print one picture, after one interval
    #[arg(long)]
    pub(crate) once: bool,
    /// Seconds from one picture to the next
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = parse_interval)]
    pub(crate) interval: Duration,
}

fn parse_interval(text: &str) -> Result<Duration, String> {
    match parse_seconds(text)? {
        interval if interval >= Duration::from_millis(50) => Ok(interval),
        _ => Err("use 0.05 seconds or more".into()),
    }
}

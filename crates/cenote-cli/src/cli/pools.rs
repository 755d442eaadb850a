//! Commands that make, list, describe and remove stores and pools.

use super::{Care, ChangedStore, StoreDir};
use crate::units::{parse_bytes, parse_seconds};
use cenote::{HeapKind, PoolMode};
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

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
    /// Its allocator: traced (fastest; after a loss of power it is recovered from what its roots
    /// lead to), or logged (every allocation and free is logged; recovery takes the same time
    /// whatever the pool holds)
    #[arg(long, value_name = "KIND", default_value = "traced", value_parser = parse_heap)]
    pub(crate) heap: HeapKind,
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

fn parse_permissions(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(bits) if bits <= 0o777 => Ok(bits),
        _ => Err("use three octal digits, as 640".into()),
    }
}

fn parse_heap(text: &str) -> Result<HeapKind, String> {
    match text {
        "traced" => Ok(HeapKind::Traced),
        "logged" => Ok(HeapKind::Logged),
        _ => Err("use traced or logged".into()),
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

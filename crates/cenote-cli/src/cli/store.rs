//! Arguments that name a store: its directory, its key, and how careful to be.

use crate::units::parse_seconds;
use clap::{Args, ValueHint};
use std::path::PathBuf;
use std::time::Duration;

/// The key of what is protected at rest.
#[derive(Debug, Default, Args)]
pub(crate) struct KeyOf {
    /// The key of protected pools or objects: a file of 32 bytes, or of 64 hexadecimal digits
    #[arg(
        long,
        value_name = "FILE",
        value_hint = ValueHint::FilePath,
        conflicts_with = "passphrase_file"
    )]
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

/// A store, and how to open it.
#[derive(Debug, Args)]
pub(crate) struct StoreDir {
    /// The store's directory
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) dir: PathBuf,
    /// Wait up to this many seconds if another process uses the store (default 0), or if a daemon
    /// does not answer (default 30)
    #[arg(
        long,
        value_name = "SECONDS",
        default_value = "0",
        hide_default_value = true,
        value_parser = parse_seconds
    )]
    pub(crate) wait: Duration,
    /// Open a copy that was made while the store was open, and check every pool. To use the copy as
    /// a store, run `cenote adopt`
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
    /// If the journal of psyncs cannot be used, replace it with an empty one. All pools in shadowed
    /// mode (the pools' journal) or all objects (the objects' journal) may be torn then
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
    /// Only print what would be done
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
    /// Do not ask
    #[arg(short = 'y', long)]
    pub(crate) yes: bool,
}

//! `cenote object`: commands of persistent memory objects.

use super::{Care, ChangedStore, Ls, StoreDir};
use crate::failure::EXIT_HELP;
use crate::units::parse_bytes;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

/// Make, show, fill and remove objects: raw memory that a psync makes durable as a whole
///
/// An object is one range of memory with a fixed address. A program attaches it, stores into it,
/// and calls psync. After any crash the object is as the last psync left it.
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
    ///
    /// STATE is D (detached) if no psync was interrupted and no program left the object attached.
    /// `cenote object info` says in words what another state means.
    #[command(after_help = EXIT_HELP)]
    Ls(Ls),
    /// Show an object's size, address, protection and state
    #[command(after_help = EXIT_HELP)]
    Info(ObjectInfo),
    /// Remove objects and their data, for good
    #[command(after_help = EXIT_HELP)]
    Rm(ObjectRm),
    /// Copy a file, or standard input, into an object
    ///
    /// The command psyncs after every 32 MiB (--every). If it is interrupted, the object holds what
    /// the last psync made durable.
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
    /// The object's size in bytes
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    pub(crate) size: u64,
    /// Who may attach it, as the mode of a file: 600, 640, 400
    #[arg(
        long,
        value_name = "MODE",
        default_value = "600",
        value_parser = crate::units::parse_mode
    )]
    pub(crate) mode: u32,
    /// How the object is protected at rest: none, integrity, encryption, both, or authenticated.
    /// This cannot be changed later. Default: authenticated if a key is given, else none
    #[arg(long, value_name = "MODE", value_parser = crate::at_rest_modes::parse_at_rest)]
    pub(crate) at_rest: Option<cenote_object::Mode>,
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
    /// Offset in the object to begin at
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) at: u64,
    /// Bytes between two psyncs
    #[arg(long, value_name = "SIZE", default_value = "32M", value_parser = parse_bytes)]
    pub(crate) every: u64,
}

#[derive(Debug, Args)]
pub(crate) struct ObjectExport {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// The object
    pub(crate) object: String,
    /// The new file; it must not exist; standard output if not given
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub(crate) output: Option<PathBuf>,
    /// Offset in the object to begin at
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = parse_bytes)]
    pub(crate) at: u64,
    /// How many bytes; to the end if not given
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes)]
    pub(crate) len: Option<u64>,
    /// Write zeros in place of damaged pages of a protected object, and list these pages
    #[arg(long)]
    pub(crate) skip_damaged: bool,
}

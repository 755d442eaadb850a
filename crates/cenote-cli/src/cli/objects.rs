//! `cenote object`: commands of persistent memory objects.

use super::{Care, ChangedStore, Ls, StoreDir};
use crate::failure::EXIT_HELP;
use crate::units::parse_bytes;
use clap::{Args, Subcommand, ValueHint};
use std::path::PathBuf;

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
    #[arg(
        long,
        value_name = "MODE",
        default_value = "600",
        value_parser = crate::units::parse_mode
    )]
    pub(crate) mode: u32,
    /// What protects it while no program has it attached: none, integrity, encryption, both, or
    /// authenticated. For good. Without it: authenticated if a key is given, else none
    #[arg(long, value_name = "MODE", value_parser = crate::keys::parse_at_rest)]
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

//! Commands about the types that a store knows.

use super::{ChangedStore, StoreDir};
use crate::failure::EXIT_HELP;
use clap::{Args, Subcommand};

/// List, show or remove the types that a store knows
///
/// A store keeps the name, the fields and the pointers of each type. A program whose type has the
/// same name and another layout is refused while a pool has values of the type.
#[derive(Debug, Args)]
pub(crate) struct Types {
    #[command(subcommand)]
    pub(crate) command: TypesCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum TypesCommand {
    /// List all types, and the pools that have values of them
    #[command(after_help = EXIT_HELP)]
    Ls(TypesLs),
    /// Show the fields and pointers of types
    #[command(after_help = EXIT_HELP)]
    Show(TypesShow),
    /// Remove types that no pool uses
    ///
    /// A pool uses the types of its blocks, and the types that these name. A pool in shadowed mode
    /// or with damage counts as a user of every type.
    #[command(after_help = EXIT_HELP)]
    Rm(TypesRm),
}

#[derive(Debug, Args)]
pub(crate) struct TypesLs {
    #[command(flatten)]
    pub(crate) store: StoreDir,
}

#[derive(Debug, Args)]
pub(crate) struct TypesShow {
    #[command(flatten)]
    pub(crate) store: StoreDir,
    /// Names or ids of types, as `cenote types ls` shows them; all types if not given
    pub(crate) types: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct TypesRm {
    #[command(flatten)]
    pub(crate) store: ChangedStore,
    /// Names or ids of types, as `cenote types ls` shows them
    #[arg(required_unless_present = "unused")]
    pub(crate) types: Vec<String>,
    /// All types that no pool uses
    #[arg(long, conflicts_with = "types")]
    pub(crate) unused: bool,
    /// Only print what would be removed
    #[arg(short = 'n', long)]
    pub(crate) dry_run: bool,
}

//! The command line: every command, argument and option, with the help that users read.

mod moves;
mod objects;
mod pools;
mod show;
mod store;
mod tour;
mod upkeep;

pub(crate) use moves::{
    Adopt, Backup, ClonePool, CopyPool, Export, Import, Randomize, Relocate, Restore, Snapshot,
};
pub(crate) use objects::{
    Object, ObjectCommand, ObjectCreate, ObjectExport, ObjectImport, ObjectInfo, ObjectRm,
};
pub(crate) use pools::heap_with;
pub(crate) use pools::{Chmod, Chown, Create, Format, Info, Ls, Rm, Stats, Top};
pub(crate) use show::{SHOW_HELP, Show};
pub(crate) use store::{Care, ChangedStore, KeyOf, StoreDir};
pub(crate) use tour::{TOUR_BUILD, Tour, TourBuild};
pub(crate) use upkeep::{
    Check, Doctor, Dump, FinishFrees, Logs, LogsCommand, LogsDecide, LogsDeclare, LogsList,
    Reclaim, Rekey, Trim, Verify,
};

use crate::failure::EXIT_HELP;
use clap::{Args, Parser, Subcommand, ValueHint};
use std::path::{Path, PathBuf};

/// Persistent memory for programs: stores, pools, and what is in them.
///
/// A store is a directory. It holds pools. A pool is a named heap of values: programs change them
/// in transactions, and find them again after a crash.
#[derive(Debug, Parser)]
#[command(
    name = "cenote",
    version,
    max_term_width = 100,
    after_help = EXIT_HELP,
    subcommand_required = true,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    /// Print JSON: one object, or one object per line
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
    #[command(after_help = SHOW_HELP)]
    Show(Show),
    #[command(after_help = EXIT_HELP)]
    Reclaim(Reclaim),
    #[command(after_help = EXIT_HELP)]
    Rm(Rm),
    #[command(after_help = EXIT_HELP)]
    Stats(Stats),
    #[command(after_help = EXIT_HELP)]
    Top(Top),
    #[command(after_help = EXIT_HELP)]
    FinishFrees(FinishFrees),
    #[command(after_help = EXIT_HELP)]
    Trim(Trim),
    #[command(after_help = EXIT_HELP)]
    Clone(ClonePool),
    #[command(after_help = EXIT_HELP)]
    Copy(CopyPool),
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
            | Self::FinishFrees(FinishFrees { store, .. })
            | Self::Trim(Trim { store, .. })
            | Self::Clone(ClonePool { store, .. })
            | Self::Copy(CopyPool { store, .. })
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
            | Self::Show(Show { store, .. })
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

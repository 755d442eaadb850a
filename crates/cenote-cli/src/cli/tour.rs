//! `cenote tour`, and the child that it kills.

use clap::{Args, Parser, ValueHint};
use std::path::PathBuf;

/// Build an index of words, get killed again and again, and compare the result
///
/// A process indexes the words of the files (by default, of Cenote's documents) in a pool. The
/// index is an ordered tree of words with lists of their positions, linked by plain pointers. Each
/// transaction adds a few words. The command kills the process with SIGKILL at random moments.
/// After each kill, `cenote-recover`, a program without the index's code, recovers the store. The
/// next process goes on after the last commit. At the end the command compares the index, entry by
/// entry, with one that it has built in collections of the standard library.
#[derive(Debug, Args)]
pub(crate) struct Tour {
    /// Text to index
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) files: Vec<PathBuf>,
    /// Directory of the store; a temporary one if not given. A store that is missing is made. One
    /// of an earlier tour is continued. Any other store gets a pool named tour
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) store: Option<PathBuf>,
    /// How many times to kill the process
    #[arg(long, value_name = "N", default_value_t = 50, value_parser = parse_kills)]
    pub(crate) kills: u32,
    /// Seed of the random moments; random if not given
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
    /// Words after which it waits to be killed.
    #[arg(long)]
    pub(crate) hold: Option<u64>,
    /// Number of the process without which there is no use in going on.
    #[arg(long)]
    pub(crate) parent: u32,
}

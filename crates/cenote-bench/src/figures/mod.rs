//! The figures, by name.

pub mod allocators;
pub mod checked;
pub mod daemon;
pub mod fat;
pub mod figure1;
pub mod list_tail;
pub mod open_after_kill;
pub mod pmo_files;
pub mod pmo_kernels;
pub mod pool_psync;
pub mod psync;
pub mod puddles_table3;
pub mod ralloc_figure6;
pub mod relocation;
pub mod sensors;
pub mod steady;

use crate::case::{Case, Failure};
use crate::command::Filter;
use crate::place::Settings;
use crate::runner::Row;
use std::io::Write;

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on the command line and in the rows.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// How it is found.
    pub body: Body,
}

/// Rows of a figure that finds them itself.
pub type Rows = Result<Vec<Row>, Failure>;

/// How the rows of a figure are found.
#[derive(Clone, Copy, Debug)]
pub enum Body {
    /// Sets up Cenote's cases, which are then measured in turns.
    Cases(fn(&Settings) -> Result<Vec<Case>, Failure>),
    /// Finds the rows in its own way, and tells a person meanwhile what happens. Gets the number of runs that are wanted.
    Report(fn(&Settings, &Filter, usize, &mut dyn Write) -> Rows),
}

/// All of them.
pub const FIGURES: [Figure; 15] = [
    puddles_table3::FIGURE,
    figure1::FIGURE,
    list_tail::FIGURE,
    checked::FIGURE,
    allocators::FIGURE,
    steady::FIGURE,
    open_after_kill::FIGURE,
    ralloc_figure6::FIGURE,
    psync::FIGURE,
    pool_psync::FIGURE,
    pmo_kernels::FIGURE,
    pmo_files::FIGURE,
    relocation::FIGURE,
    sensors::FIGURE,
    daemon::FIGURE,
];

/// The figure of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

//! The figures, by name.

pub mod checked;
pub mod fat;
pub mod figure1;
pub mod list_tail;
pub mod puddles_table3;

use crate::case::{Case, Failure};
use crate::place::Settings;

/// A figure or table of a paper.
#[derive(Clone, Copy, Debug)]
pub struct Figure {
    /// Its name on the command line and in the rows.
    pub name: &'static str,
    /// What it shows.
    pub title: &'static str,
    /// Sets up Cenote's cases.
    pub cases: fn(&Settings) -> Result<Vec<Case>, Failure>,
}

/// All of them.
pub const FIGURES: [Figure; 4] =
    [puddles_table3::FIGURE, figure1::FIGURE, list_tail::FIGURE, checked::FIGURE];

/// The figure of this name.
#[must_use]
pub fn find(name: &str) -> Option<&'static Figure> {
    FIGURES.iter().find(|figure| figure.name == name)
}

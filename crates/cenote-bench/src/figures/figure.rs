//! What a figure is: its name, and how its rows are found.

use crate::case::{Case, Failure};
use crate::filter::Filter;
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
    /// Finds the rows in its own way, and tells a person meanwhile what happens. Gets the number of
    /// runs that are wanted.
    Report(fn(&Settings, &Filter, usize, &mut dyn Write) -> Rows),
}

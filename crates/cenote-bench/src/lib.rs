//! Figures and tables of the papers, measured on Cenote.
//!
//! Each figure is a module under [`figures`]; its documentation says what the timed loop of each
//! row does. Most figures are a list of [`Case`]s. [`runner`] measures the cases of one row in
//! turns (A B A B ...), so that a disturbance of the machine meets all of them alike. [`report`]
//! writes a table for people and one JSON object a line. [`peers`] adds the cases of other systems
//! to the same rows, in the same process; each but the C library's malloc is a feature.
//!
//! Compare times of one run only: not those of two machines or of two days.

pub mod allocator;
pub mod case;
pub mod command;
pub mod figures;
pub mod filter;
pub mod logged;
pub mod peers;
pub mod place;
pub mod random;
pub mod report;
pub mod runner;
pub mod stores;
pub mod team;
pub mod traced;
pub mod wear;

pub use allocator::Allocator;
pub use case::{Case, Failure, Sample, Stopwatch};
pub use figures::{FIGURES, Figure};
pub use place::BenchPlace;

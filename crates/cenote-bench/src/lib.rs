//! Figures and tables of the papers, measured on Cenote.
//!
//! One module under [`figures`] for each figure; its documentation says what exactly is inside the
//! timed loop of every row. A figure is mostly a list of [`Case`]s; [`runner`] measures those of
//! one row in turns (A B A B ...), so that whatever disturbs the machine disturbs all of them
//! alike; [`report`] writes a table for people and one JSON object a line. `cenote-bench-peers`
//! adds the cases of other systems to the same rows, in the same process.
//!
//! Times of two rows of one run may be compared; times of two machines, or of two days, may not.

pub mod allocator;
pub mod case;
pub mod command;
pub mod figures;
pub mod filter;
pub mod logged;
pub mod place;
pub mod random;
pub mod report;
pub mod runner;
pub mod team;
pub mod traced;

pub use allocator::Allocator;
pub use case::{Case, Failure, Sample, Stopwatch};
pub use figures::{FIGURES, Figure};
pub use place::BenchPlace;

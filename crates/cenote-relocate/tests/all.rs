//! The tests of this crate in one program.

mod graph;
mod graph_archives;
mod graphs;
mod import;
mod logged;

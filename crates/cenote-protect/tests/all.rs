//! The tests of page rights, over real mappings.

mod explained;
mod mapped;
mod tracked;
mod two_owners;

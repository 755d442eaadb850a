//! The tests of page rights, over real mappings.

mod explained;
mod guards;
mod mapped;
mod tracked;
mod two_owners;

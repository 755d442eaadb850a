//! The tests of page rights, over real mappings.

mod deferred;
mod explained;
mod guards;
mod mapped;
mod tracked;
mod two_owners;

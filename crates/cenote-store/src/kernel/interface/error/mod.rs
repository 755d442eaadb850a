//! Errors of the store: what went wrong, and what to do then. Invariant: an operation that is
//! refused changes nothing. Damage and misuse are different errors.

mod format;
mod kinds;
mod open;
mod store;
mod text;

pub use format::FormatError;
pub use open::OpenError;
pub use store::{BY_DAEMON, StoreError};

/// What to do where no pool can be had. One file of a copy beside the others would mix moments.
const RESTORE_ALL: &str = "restore the whole store from one copy (`cenote backup` makes one)";

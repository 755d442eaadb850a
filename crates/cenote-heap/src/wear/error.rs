//! What can be wrong with a wear heap.

pub use crate::wear_error::{WearDamage, WearError};

//! The extensions of an open store, all of them.

use crate::due::frontier::Frontier;
use crate::holds::Holds;
use crate::hosted::Guests;
use crate::kept_files::Kept;
use crate::kernel::extensions::Extensions;
use crate::shadow::Shadows;
use std::sync::Arc;

/// Those of a store. They are stopped in this order.
pub(crate) fn of_store(frontier: Arc<Frontier>) -> Extensions {
    Extensions::new(vec![Box::new(frontier), Box::new(Shadows::default())])
}

/// Those that change under the control lock.
pub(crate) fn under_lock() -> Extensions {
    let (guests, holds, kept) = (Guests::default(), Holds::default(), Kept::default());
    Extensions::new(vec![Box::new(guests), Box::new(holds), Box::new(kept)])
}

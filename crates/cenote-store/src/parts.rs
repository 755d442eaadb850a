//! The extensions of an open store, all of them.

use crate::hosting::pool_pins::PoolPins;
use crate::hosting::sessions::HostedClients;
use crate::kept_files::Kept;
use crate::kernel::store::extensions::Extensions;
use crate::pending_rewrite::lazy_rewrite::LazyRewrite;
use crate::shadow::Shadows;
use std::sync::Arc;

/// Those of a store. They are stopped in this order.
pub(crate) fn of_store(frontier: Arc<LazyRewrite>) -> Extensions {
    Extensions::new(vec![Box::new(frontier), Box::new(Shadows::default())])
}

/// Those that change under the control lock.
pub(crate) fn under_lock() -> Extensions {
    let (hosted_clients, holds, kept) =
        (HostedClients::default(), PoolPins::default(), Kept::default());
    Extensions::new(vec![Box::new(hosted_clients), Box::new(holds), Box::new(kept)])
}

//! The promise under a heap over a pool: [`PoolBacking`]. What a heap asks of it is in `pool`.

use cenote_protect::DeferredService;
use cenote_store::PoolHandle;
use core::ops::Deref;
use std::sync::Arc;

/// A pool as the backing of its heap.
///
/// A [`PoolHandle`] alone is none: handles are cloned, and a second heap, or another layer, would
/// change and free blocks under references that the first one's caller gave out.
#[derive(Clone, Debug)]
pub struct PoolBacking {
    handle: PoolHandle,
    /// Where data are to be protected.
    protects: Option<Arc<DeferredService>>,
}

impl PoolBacking {
    /// The backing of the pool's heap.
    ///
    /// # Safety
    /// In this process only the heap over the returned backing, and what its caller does with it,
    /// uses the puddles of the pool. Other programs believe the state that the caller leaves in the
    /// pool: a block holds a value of its type when a root or a pointer leads to it, and no block
    /// is freed that a reference leads to.
    #[must_use]
    pub unsafe fn of(pool: PoolHandle) -> Self {
        Self { handle: pool, protects: None }
    }

    /// The same, whose data are protected with this service: only transactions store there.
    #[must_use]
    pub fn protecting(self, service: Arc<DeferredService>) -> Self {
        Self { protects: Some(service), ..self }
    }

    /// The service that protects data.
    pub(crate) fn protects(&self) -> Option<&Arc<DeferredService>> {
        self.protects.as_ref()
    }
}

impl Deref for PoolBacking {
    type Target = PoolHandle;

    #[inline]
    fn deref(&self) -> &PoolHandle {
        &self.handle
    }
}

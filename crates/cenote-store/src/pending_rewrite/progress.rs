//! Reports the pending puddles of a pool, and what rewriting has done.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::rewriter::{Backend, RelocationProgress, Rewritten};
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::store::{Control, Inner, Store};
use core::ops::ControlFlow;

impl PoolHandle {
    /// Puddles of the pool that are still to be rewritten, each when it is first touched.
    #[must_use]
    pub fn pending_rewrites(&self) -> u64 {
        self.puddles().iter().filter(|puddle| puddle.is_pending()).count() as u64
    }

    /// Rewrites all puddles of the pool that are pending, now, and says so in the catalog.
    /// `progress` is told before each, and at the end, and says whether to go on: what is left when
    /// it says no is pending as before ([`PoolHandle::pending_rewrites`]). Where the store is open
    /// read-only, the rewritten puddles are memory of this process.
    ///
    /// # Errors
    /// The first puddle that cannot be rewritten, and why: no space for a second file of it,
    /// damage. It and those behind it are still pending, and as good as they were.
    pub fn finish_relocation(
        &self,
        progress: &mut dyn FnMut(RelocationProgress) -> ControlFlow<()>,
    ) -> Result<Rewritten, StoreError> {
        let inner = self.store().inner();
        inner.check_usable()?;
        let pending: Vec<&Puddle> =
            self.puddles().into_iter().filter(|puddle| puddle.is_pending()).collect();
        let mut sum = Rewritten::default();
        let mut told = RelocationProgress {
            puddles: 0,
            puddles_total: pending.len() as u64,
            bytes: 0,
            bytes_total: pending.iter().map(|puddle| puddle.size()).sum(),
        };
        for puddle in pending {
            if progress(told).is_break() {
                break;
            }
            if let Some(rewritten) = inner.frontier().finish(puddle)? {
                sum.add(&rewritten);
            }
            told.puddles += 1;
            told.bytes += puddle.size();
        }
        if told.puddles > 0 && told.puddles == told.puddles_total {
            let _ = progress(told);
        }
        if inner.writable {
            inner.check_poisoned()?;
            inner.record_done(&mut inner.control())?;
        }
        Ok(sum)
    }
}

impl Store {
    /// What rewriting of pointers has done in this session, in all pools.
    #[must_use]
    pub fn rewritten(&self) -> Rewritten {
        self.inner().frontier().sum()
    }

    /// When puddles that have moved are rewritten in this session: what the options ask for, or
    /// what there is instead.
    #[must_use]
    pub fn relocation_backend(&self) -> Backend {
        self.inner().frontier().backend()
    }
}

impl Inner {
    /// Says in the catalog what is done, if anything is.
    pub(crate) fn record_done(&self, control: &mut Control) -> Result<(), StoreError> {
        self.commit(control, &[])
    }
}

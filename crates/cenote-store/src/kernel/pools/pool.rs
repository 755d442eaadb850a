//! An open pool (PUD-10; Puddles paper, 3.1 and 4.4).
//!
//! A pool's puddles are in index order, and none is taken away while a handle lives: an address of
//! a puddle stays good as long as the handle that gave it.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::{Damage, PoolStart};
use crate::kernel::puddles::puddle::Puddle;
use crate::kernel::store::Store;
use crate::kernel::store::pool_core::{PoolCore, Sharing};
use cenote_layout::catalog::{PoolMode, PoolRecord, Record};
use cenote_layout::id::PoolId;
use cenote_medium::{Durability, FileName, MediumError, MediumKind, Operation};
use core::ops::Range;
use std::sync::Arc;

/// An open pool. Cloning is cheap; while a handle lives, the store is open.
#[derive(Clone, Debug)]
pub struct PoolHandle {
    core: Arc<PoolCore>,
    store: Store,
    writable: bool,
    /// Whether the pool was shared when the handle was made.
    shared: bool,
}

impl PoolHandle {
    pub(crate) fn new(core: Arc<PoolCore>, store: Store, writable: bool) -> Self {
        let shared = core.is_shared();
        Self { core, store, writable, shared }
    }

    /// What a daemon says of the pool, if it was shared when the handle was made.
    pub(crate) fn sharing(&self) -> Option<&Sharing> {
        self.core.sharing().filter(|_| self.shared)
    }

    pub(crate) fn core(&self) -> &PoolCore {
        &self.core
    }

    /// For the list of what is open.
    pub(crate) fn share_core(&self) -> Arc<PoolCore> {
        Arc::clone(&self.core)
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.core.record().id
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.core.record().name
    }

    /// The store that it belongs to.
    #[must_use]
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// What the catalog says about it.
    #[must_use]
    pub fn record(&self) -> &PoolRecord {
        self.core.record()
    }

    /// The daemon's name for this process, if it may grant the pool to other processes for writing
    /// too. They then share the pool's memory, and [`PoolHandle::has_ended`] knows them.
    #[must_use]
    pub fn member(&self) -> Option<u64> {
        self.sharing().map(|sharing| sharing.me)
    }

    /// Whether this handle may write. False too where a policy opened the pool read-only.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.writable
    }

    /// What is damaged in it: those puddles cannot be touched.
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        self.core.damage()
    }

    /// How this session found it; the same for as long as the session lasts.
    #[must_use]
    pub fn start(&self) -> PoolStart {
        self.core.start()
    }

    /// Why the pool's values may not be what its transactions made them, all of it: puddles that
    /// cannot be used, logs that name the pool and are set aside, and records of the catalog
    /// that are lost, which may have been about this pool. Bytes and blocks can be looked at all
    /// the same. (Pools that a loss of power may have torn are in
    /// [`crate::OpenReport::not_covered`].)
    #[must_use]
    pub fn doubts(&self) -> Vec<Damage> {
        let control = self.store.inner().control();
        let elsewhere = control.damage.iter().filter(|damage| match damage {
            Damage::Log { pools, .. } | Damage::LogSpace { pools, .. } => {
                pools.contains(&self.id())
            }
            Damage::Catalog { .. } => damage.is_lost(),
            _ => false,
        });
        self.core.damage().iter().chain(elsewhere).cloned().collect()
    }

    /// Whether the pool may hold half a transaction, because logs about it were discarded
    /// ([`Store::decide_logs`]). Stays so, over any number of opens, until
    /// [`Store::declare_whole`].
    #[must_use]
    pub fn is_torn(&self) -> bool {
        self.store.inner().control().catalog.state.torn.contains(&self.id())
    }

    /// Whether the heap must compute again which blocks are allocated, because power failed while
    /// the pool was held writable. Stays so, over any number of opens, until
    /// [`PoolHandle::trace_done`].
    #[must_use]
    pub fn trace_due(&self) -> bool {
        self.store.inner().control().catalog.state.trace_due.contains(&self.id())
    }

    /// Records that the heap has done so; its marks are on the medium or will be lost together with
    /// this session, whose loss of power makes tracing due again. One catalog batch, if tracing was
    /// due.
    ///
    /// # Errors
    /// A read-only handle; an error of the medium: then tracing stays due.
    ///
    /// # Safety
    /// The pool's heap has been traced in this session. Otherwise blocks that a crash has left half
    /// written count as values.
    pub unsafe fn trace_done(&self) -> Result<(), StoreError> {
        if !self.trace_due() {
            return Ok(());
        }
        if !self.writable {
            return Err(StoreError::PoolReadOnly { name: self.name().into(), what: "recover it" });
        }
        let inner = self.store.inner();
        if let Some(remote) = &inner.remote {
            remote.trace_done(self.id())?;
        }
        let mut control = inner.begin_write("recover a pool")?;
        inner.commit(&mut control, &[Record::Traced(self.id())])
    }

    /// Its puddles as they are now, in index order. Others may take more.
    #[must_use]
    pub fn puddles(&self) -> Vec<&Puddle> {
        let puddles = self.core.puddles();
        // SAFETY: puddles live until the store is dropped, which this handle keeps open.
        puddles.iter().map(|p| unsafe { p.as_ref() }).collect()
    }

    /// The root puddle, unless it is damaged.
    #[must_use]
    pub fn root_puddle(&self) -> Option<&Puddle> {
        let puddles = self.core.puddles();
        // SAFETY: as in `puddles`.
        puddles.first().map(|p| unsafe { p.as_ref() }).filter(|p| p.index() == 0)
    }

    /// Gives the space of `len` bytes at `addr`, whole pages in the body of one of the pool's
    /// puddles, back to the file system. They read as zeros then,
    /// and [`PoolHandle::ensure_space`] comes before the next store into them. `false`: the file
    /// system cannot do that, and nothing has changed.
    ///
    /// # Safety
    /// What is in the range belongs to the caller, and no code needs it any more.
    ///
    /// # Errors
    /// The pool is read-only, the store poisoned, the range is not the pool's, or the medium
    /// reports an error.
    pub unsafe fn release_space(&self, addr: u64, len: u64) -> Result<bool, StoreError> {
        let (inner, puddle) = (self.store.inner(), self.body_of(addr, len, "give back its space")?);
        if puddle.memory().is_some() {
            // A hole would be a sealed page that was never written, and the tree says that it was.
            return Ok(false);
        }
        // SAFETY: the caller's.
        let released =
            unsafe { inner.medium.release(puddle.file_name(), addr - puddle.addr(), len) };
        released.map_err(|error| inner.failed(error))
    }

    /// Takes space again for what [`PoolHandle::release_space`] gave back of a range; without a
    /// change to its bytes. On return the space is there for good: at durability level `power`
    /// also after a loss of power, at the price of one sync of the file.
    ///
    /// # Errors
    /// As for [`PoolHandle::release_space`]; there is no space left.
    pub fn ensure_space(&self, addr: u64, len: u64) -> Result<(), StoreError> {
        let (inner, puddle) = (self.store.inner(), self.body_of(addr, len, "take space for it")?);
        if puddle.memory().is_some() {
            return Ok(());
        }
        if let Some(remote) = &inner.remote {
            return remote.ensure_space(self.id(), addr, len);
        }
        let ensured = inner.medium.ensure(puddle.file_name(), addr - puddle.addr(), len);
        ensured.map_err(|error| inner.failed(error))?;
        if self.store.durability() == Durability::Power {
            inner.medium.sync(puddle.file_name()).map_err(|error| inner.failed(error))?;
        }
        Ok(())
    }

    /// Whether the memory of puddles is mapped shared and writable, so that a second mapping of it
    /// shows the same bytes, and the program wants guards
    /// ([`OpenOptions::guards`](crate::OpenOptions::guards)). Of a pool in shadowed mode stores
    /// through one are to be noted ([`Puddle::store_notes`]).
    #[must_use]
    pub fn can_map_twice(&self) -> bool {
        let is_shared = self.is_real() || self.record().mode == PoolMode::Shadowed;
        self.writable && self.store.inner().options.guards && is_shared
    }

    /// Whether pages that its caller does not use can lose all access: no other code reads them
    /// where they are mapped. The simulated medium compares all that it has mapped.
    #[must_use]
    pub fn can_close_off(&self) -> bool {
        self.is_real() || self.root_puddle().is_some_and(|root| root.memory().is_some())
    }

    pub(crate) fn is_real(&self) -> bool {
        self.store.inner().info.kind != MediumKind::Simulated
    }

    /// The store's window, if metadata of a traced heap are to be guarded by second mappings
    /// ([`OpenOptions::guards`](crate::OpenOptions::guards)). Not where pages are filled at the
    /// first touch, nor in a simulated pool in direct mode.
    #[must_use]
    pub fn guarded_window(&self) -> Option<Range<usize>> {
        let inner = self.store.inner();
        let (base, len) = (inner.window.base() as usize, inner.window.len() as usize);
        let is_sealed = self.root_puddle().is_none_or(|root| root.memory().is_some());
        (self.can_map_twice() && !is_sealed).then(|| base..base + len)
    }

    /// The puddle of the pool in whose body the range lies.
    fn body_of(&self, addr: u64, len: u64, what: &'static str) -> Result<&Puddle, StoreError> {
        if !self.writable {
            return Err(StoreError::PoolReadOnly { name: self.name().into(), what });
        }
        self.store.check_usable()?;
        self.holder_of(addr, len)
    }

    /// The same for a handle that may be read-only.
    pub(crate) fn holder_of(&self, addr: u64, len: u64) -> Result<&Puddle, StoreError> {
        let holds = |puddle: &&Puddle| {
            let within = addr.checked_sub(puddle.body_addr());
            puddle.pool() == self.id()
                && within
                    .and_then(|at| at.checked_add(len))
                    .is_some_and(|end| end <= puddle.body_len())
        };
        self.store.puddle_of(addr).filter(holds).ok_or_else(|| {
            let reason = "the range is not in the body of a puddle of this pool";
            let name = FileName::new(self.name());
            MediumError::BadRange { op: Operation::Examine, name, addr, len, reason }.into()
        })
    }
}

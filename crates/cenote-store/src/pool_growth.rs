//! Grows a pool: it takes a puddle, in either mode (PUD-10; Puddles paper, 3.1 and 4.4).
//!
//! **Take a puddle** (an update in several steps). (1) its file is made and synced: an orphan, or a
//! spare puddle is prepared ([`crate::kernel::pools::spare`]); (2) one batch names it: **the
//! catalog's batch commits**; after it the puddle becomes findable and is mapped.

use crate::kernel::interface::error::StoreError;
use crate::kernel::pools::heap_puddle::NewPuddle;
use crate::kernel::pools::pool::PoolHandle;
use crate::kernel::pools::pool_rules::check_size;
use crate::kernel::puddles::puddle::Puddle;
use cenote_layout::catalog::PoolMode;
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::puddle::Role;
use cenote_medium::MapMode;
use cenote_medium::planted::{Bug, planted};
use core::ptr::NonNull;

impl PoolHandle {
    /// Grows the pool by a puddle of `size` bytes, zero but for its header, mapped for writing.
    ///
    /// # Errors
    /// A size that no puddle can have, a full pool, window or disk, a read-only handle. The pool is
    /// as before.
    pub fn take_puddle(&self, size: u64) -> Result<&Puddle, StoreError> {
        self.take_puddle_for(Role::Heap, size)
    }

    /// As [`PoolHandle::take_puddle`], a puddle for blocks ([`Role::Heap`]) or for metadata alone
    /// ([`Role::Metadata`]).
    ///
    /// # Errors
    /// As [`PoolHandle::take_puddle`]; another role.
    pub fn take_puddle_for(&self, role: Role, size: u64) -> Result<&Puddle, StoreError> {
        if !role.is_of_pool() {
            let detail = format!("a pool has no puddle of role {role}");
            return Err(StoreError::Refused { kind: ErrorKind::Misuse, detail });
        }
        if !self.is_writable() {
            return Err(StoreError::PoolReadOnly { name: self.name().into(), what: "let it grow" });
        }
        let inner = self.store().inner();
        // Others may have taken some: the next number is theirs else.
        self.learn_puddles()?;
        let mut control = inner.begin_write("let a pool grow")?;
        let state = &control.catalog.state;
        let existing = state.puddles_of(self.id());
        let used: u64 = existing.iter().map(|p| p.size).sum();
        let index = existing.last().map_or(0, |p| p.index + 1);
        check_size(size, index == 0)?;
        if used.checked_add(size).is_none_or(|total| total > self.record().size_max) {
            return Err(StoreError::PoolFull {
                name: self.name().into(),
                wanted: size,
                used,
                size_max: self.record().size_max,
            });
        }
        let wanted = NewPuddle { pool: self.id(), index, size, role };
        if let Some(sealed) = self.core().sealed() {
            let puddle = inner.take_sealed(&mut control, wanted, self.name(), sealed)?;
            if !planted(Bug::GrownNotPsynced) {
                inner.shadow_of(&mut control, self.id())?.add(puddle, false);
            }
            // SAFETY: as below.
            return Ok(unsafe { self.find_from_now_on(puddle) });
        }
        let shadowed = self.record().mode == PoolMode::Shadowed;
        let record = match inner.connection() {
            Some(connection) => self.store().take_granted(connection, &mut control, wanted)?,
            None => inner.add_heap_puddle(&mut control, wanted, shadowed, &[])?.0,
        };
        let mode = if shadowed { MapMode::Tracked } else { MapMode::ReadWrite };
        let puddle = inner.own(&mut control, record, mode);
        if shadowed {
            // Before it can be stored into, so that no psync goes without it.
            inner.shadow_of(&mut control, self.id())?.add(puddle, false);
        }
        // SAFETY: it lives until the store is dropped, and its range was checked to lie in the
        // window.
        let puddle = unsafe { self.find_from_now_on(puddle) };
        puddle.map(&inner.medium).map_err(|error| inner.failed(error))?;
        Ok(puddle)
    }

    /// # Safety
    /// The puddle lives until the store is dropped, and lies in the window.
    unsafe fn find_from_now_on(&self, puddle: NonNull<Puddle>) -> &Puddle {
        // SAFETY: the caller's.
        unsafe {
            self.store().inner().window.insert(puddle.as_ref());
            self.core().add_puddle(puddle);
            puddle.as_ref()
        }
    }
}

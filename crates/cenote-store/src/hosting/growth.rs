//! Hands clients the puddles of their pools, and lets the pools grow.

use crate::kernel::interface::error::StoreError;
use crate::kernel::interface::report::concerns;
use crate::kernel::pools::heap_puddle::NewPuddle;
use crate::kernel::pools::pool_rules::check_size;
use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::{Control, Store};
use cenote_layout::catalog::{PoolMode, PoolRecord, PuddleRecord, Record};
use cenote_layout::error_kind::ErrorKind;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::{Role, header_space};
use cenote_medium::{MediumError, Operation};
use std::fs::File;

impl Store {
    /// Puddles of a pool that a client has, in index order, from `first` on, at most `most`; and
    /// whether it may write them.
    ///
    /// # Errors
    /// The client does not have the pool.
    pub fn client_puddles(
        &self,
        client: Uuid,
        pool: PoolId,
        first: u32,
        most: usize,
    ) -> Result<(Vec<PuddleRecord>, bool), StoreError> {
        let control = self.inner().control();
        let writable = control.lease_of(client, pool)?;
        let mut puddles = control.catalog.state.puddles_of(pool);
        puddles.retain(|puddle| puddle.index >= first && puddle.role.is_of_pool());
        puddles.truncate(most);
        Ok((puddles, writable))
    }

    /// A descriptor of a puddle's file, to be given away.
    ///
    /// # Errors
    /// The medium has no descriptors, or reports an error.
    ///
    /// # Safety
    /// The descriptor goes to a process that holds the lease for the puddle's pool, of this kind.
    /// What is written through it changes memory wherever the puddle is mapped.
    pub unsafe fn grant_file(
        &self,
        puddle: &PuddleRecord,
        writable: bool,
    ) -> Result<File, StoreError> {
        if writable {
            self.inner().mark_granted(puddle)?;
        }
        self.grant_named(text(&file_name(puddle.uuid)), writable)
    }

    pub(crate) fn grant_named(&self, name: &str, writable: bool) -> Result<File, StoreError> {
        let none = || {
            MediumError::from_io(Operation::Examine, name, std::io::ErrorKind::Unsupported.into())
        };
        Ok(self.inner().medium.grant(name, writable)?.ok_or_else(none)?)
    }

    /// Lets a pool that a client writes grow by a puddle of `size` bytes; with a descriptor to be
    /// given away, if the puddle was made ahead.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::take_puddle`]; the client does not have the pool for writing.
    pub fn client_take(
        &self,
        client: Uuid,
        pool: PoolId,
        size: u64,
        role: Role,
    ) -> Result<(PuddleRecord, Option<File>), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("let a pool grow")?;
        let record = control.writes(client, pool, "let it grow")?;
        let existing = control.catalog.state.puddles_of(pool);
        let used: u64 = existing.iter().map(|p| p.size).sum();
        let index = existing.last().map_or(0, |p| p.index + 1);
        check_size(size, index == 0)?;
        if used.checked_add(size).is_none_or(|total| total > record.size_max) {
            return Err(StoreError::PoolFull {
                name: record.name,
                wanted: size,
                used,
                size_max: record.size_max,
            });
        }
        let shadowed = record.mode == PoolMode::Shadowed;
        // A file that was made ahead, to be given away, is marked.
        let wanted = NewPuddle { pool, index, size, role };
        inner.add_heap_puddle(&mut control, wanted, shadowed, &[])
    }

    /// Has the next puddle of a pool that a client writes made ahead, as
    /// [`crate::PoolHandle::expect_puddle`]: for after the client has its answer.
    pub fn client_expect(&self, client: Uuid, pool: PoolId, size: u64) {
        let inner = self.inner();
        if let Ok(mut control) = inner.begin_write("let a pool grow")
            && control.writes(client, pool, "let it grow").is_ok()
        {
            inner.make_ahead(&mut control, pool, size);
        }
    }

    /// Takes space for a part of a puddle of a pool that a client writes.
    ///
    /// # Errors
    /// As [`crate::PoolHandle::ensure_space`]; the client does not have the pool for writing.
    pub fn client_ensure(
        &self,
        client: Uuid,
        pool: PoolId,
        addr: u64,
        len: u64,
    ) -> Result<(), StoreError> {
        let inner = self.inner();
        let control = inner.begin_write("take space")?;
        control.writes(client, pool, "take space for it")?;
        let holds = |p: &&PuddleRecord| {
            let body = p.addr + header_space(p.size);
            p.pool == pool
                && addr >= body
                && addr.checked_add(len).is_some_and(|end| end <= p.addr + p.size)
        };
        let Some(puddle) = control.catalog.state.puddles.values().find(holds) else {
            return Err(StoreError::Refused {
                kind: ErrorKind::Misuse,
                detail: format!("{len} bytes at {addr:#x} are in no puddle of the pool"),
            });
        };
        let name = file_name(puddle.uuid);
        inner
            .medium
            .ensure(text(&name), addr - puddle.addr, len)
            .map_err(|error| inner.failed(error))
    }

    /// Records that a client has traced a pool that it writes.
    ///
    /// # Errors
    /// The client does not have the pool for writing; an error of the medium.
    pub fn client_traced(&self, client: Uuid, pool: PoolId) -> Result<(), StoreError> {
        let inner = self.inner();
        let mut control = inner.begin_write("recover a pool")?;
        control.writes(client, pool, "recover it")?;
        inner.commit(&mut control, &[Record::Traced(pool)])
    }
}

impl Control {
    /// The record of a pool that a client writes.
    pub(super) fn writes(
        &self,
        client: Uuid,
        pool: PoolId,
        what: &'static str,
    ) -> Result<PoolRecord, StoreError> {
        let writable = self.lease_of(client, pool)?;
        let Some(record) = self.catalog.state.pools.get(&pool) else {
            return Err(StoreError::PoolUnknown { name: pool.to_string() });
        };
        // Of one that shared it with this client, and has ended.
        let damage = concerns(&self.damage, pool);
        if !damage.is_empty() {
            return Err(StoreError::PoolLogDamaged { name: record.name.clone(), damage });
        }
        if writable {
            return Ok(record.clone());
        }
        Err(StoreError::PoolReadOnly { name: record.name.clone(), what })
    }
}

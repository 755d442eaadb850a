//! Gives a pool a puddle: a spare one, else a new one.

use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::PoolId;
use cenote_layout::puddle::Role;
use cenote_layout::superblock::INCOMPAT_METADATA_PUDDLES;
use std::fs::File;

/// A puddle that a pool is to get.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewPuddle {
    pub(crate) pool: PoolId,
    /// Its number in the pool.
    pub(crate) index: u32,
    pub(crate) size: u64,
    /// One of those that pools have.
    pub(crate) role: Role,
}

impl NewPuddle {
    /// The first puddle of a pool.
    pub(crate) const fn root(pool: PoolId, size: u64) -> Self {
        Self { pool, index: 0, size, role: Role::Heap }
    }
}

impl Inner {
    /// Gives a pool a puddle: a spare one, else a new one, with a primary if the pool is
    /// `shadowed`, and names it in one batch after the records `with`. With a descriptor to be
    /// handed out, if there is one already.
    pub(crate) fn add_heap_puddle(
        &self,
        control: &mut Control,
        wanted: NewPuddle,
        shadowed: bool,
        with: &[Record],
    ) -> Result<(PuddleRecord, Option<File>), StoreError> {
        let NewPuddle { pool, index, size, role } = wanted;
        self.announce_role(control, role)?;
        if let Some(spare) = self.ready_spare(control, wanted)? {
            let record = PuddleRecord { pool, role, index, ..spare.record };
            let header = if spare.fits { Ok(()) } else { self.write_header(&record) };
            if header.map_err(|error| self.failed(error)).is_ok() {
                if shadowed
                    && !spare.fits
                    && let Err(error) = self.make_primary(&record)
                {
                    self.drop_spare(control, &spare.record, spare.named);
                    return Err(error);
                }
                if spare.named {
                    let records: Vec<Record> =
                        with.iter().cloned().chain([Record::Puddle(record)]).collect();
                    self.commit(control, &records)?;
                } else {
                    self.commit_new_puddle(control, &record, with)?;
                }
                return Ok((record, spare.file));
            }
            self.check_poisoned()?;
            self.drop_spare(control, &spare.record, spare.named);
        }
        let record = self.new_puddle(control, pool, role, index, size)?;
        if shadowed {
            self.new_primary(control, &record)?;
        }
        self.commit_new_puddle(control, &record, with)?;
        Ok((record, None))
    }

    /// Before the first puddle of metadata, so that no older release meets one.
    pub(crate) fn announce_role(
        &self,
        control: &mut Control,
        role: Role,
    ) -> Result<(), StoreError> {
        match role {
            Role::Metadata => self.announce(control, INCOMPAT_METADATA_PUDDLES),
            _ => Ok(()),
        }
    }
}

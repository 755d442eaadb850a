//! Gives a pool a puddle: a spare one, else a new one.

use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::{PuddleRecord, Record};
use cenote_layout::id::PoolId;
use cenote_layout::puddle::Role;
use std::fs::File;

impl Inner {
    /// Gives pool `pool` its puddle `index`: a spare one, else a new one, with a primary if the
    /// pool is `shadowed`, and names it in one batch after the records `with`. With a
    /// descriptor to be handed out, if there is one already.
    pub(crate) fn add_heap_puddle(
        &self,
        control: &mut Control,
        (pool, index, size): (PoolId, u32, u64),
        shadowed: bool,
        with: &[Record],
    ) -> Result<(PuddleRecord, Option<File>), StoreError> {
        if let Some(spare) = self.ready_spare(control, (pool, index, size))? {
            let record = PuddleRecord { pool, role: Role::Heap, index, ..spare.record };
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
        let record = self.new_puddle(control, pool, Role::Heap, index, size)?;
        if shadowed {
            self.new_primary(control, &record)?;
        }
        self.commit_new_puddle(control, &record, with)?;
        Ok((record, None))
    }
}

//! Makes one change of the catalog, after the features of the superblock that it needs.

use crate::kernel::catalog;
use crate::kernel::interface::error::StoreError;
use crate::kernel::store::{Control, Inner};
use cenote_layout::catalog::Record;
use cenote_layout::superblock::{INCOMPAT_HOSTED, INCOMPAT_OWNED, INCOMPAT_TORN};

impl Inner {
    /// Before the first record about clients, about pools that may be torn, or of a type that owns
    /// blocks: programs that would
    /// not understand it refuse the store from now on. **The superblock's sync commits that**; the
    /// record follows it.
    pub(crate) fn say_features(
        &self,
        control: &mut Control,
        records: &[Record],
    ) -> Result<(), StoreError> {
        let bit = |record: &Record| match record {
            Record::PoolTorn(_) | Record::PoolWhole(_) => INCOMPAT_TORN,
            Record::Type(record) if record.owns() => INCOMPAT_OWNED,
            hosted if hosted.is_hosted() => INCOMPAT_HOSTED,
            _ => 0,
        };
        let bits = records.iter().map(bit).fold(0, core::ops::BitOr::bitor);
        if self.is_client() { Ok(()) } else { self.announce(control, bits) }
    }

    /// The superblock says by these bits which records the catalog may have. On the medium before
    /// the first of them is.
    pub(crate) fn announce(&self, control: &mut Control, incompat: u64) -> Result<(), StoreError> {
        if control.superblock.prefix.incompat & incompat == incompat {
            return Ok(());
        }
        let mut next = control.superblock;
        next.prefix.incompat |= incompat;
        self.store_superblock(&mut next)?;
        control.superblock = next;
        Ok(())
    }
}

impl Inner {
    /// Makes one change of the catalog, with what extensions have to say since the last one.
    pub(crate) fn commit(
        &self,
        control: &mut Control,
        records: &[Record],
    ) -> Result<(), StoreError> {
        let split = |error: catalog::AppendError| {
            let (error, unknown) = error.split();
            if unknown {
                self.poison(&error.to_string());
            }
            error
        };
        let mut added = Vec::new();
        self.parts.add_records(&mut added);
        if added.is_empty() && records.is_empty() {
            return Ok(());
        }
        let records: Vec<Record> = added.iter().chain(records).cloned().collect();
        self.say_features(control, &records).inspect_err(|_| self.parts.batch_failed(&added))?;
        self.stamps.note(&records);
        let appended = control.catalog.append(&records).map_err(split);
        appended.inspect_err(|_| self.parts.batch_failed(&added))?;
        self.stamps.note_made(&records);
        // The change is made, also if this fails.
        if let Err(error) = control.catalog.compact_if_it_pays() {
            let _ = split(error);
        }
        Ok(())
    }
}

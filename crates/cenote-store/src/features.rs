//! The superblock's features that a store gets when it first needs them.

use crate::error::StoreError;
use crate::store::{Control, Inner};
use cenote_layout::catalog::Record;
use cenote_layout::superblock::{INCOMPAT_HOSTED, INCOMPAT_TORN};

impl Inner {
    /// Before the first record about guests, or about pools that may be torn: programs that would
    /// not understand it refuse the store from now on. **The superblock's sync commits that**; the
    /// record follows it.
    pub(crate) fn say_features(
        &self,
        control: &mut Control,
        records: &[Record],
    ) -> Result<(), StoreError> {
        let bit = |record: &Record| match record {
            Record::PoolTorn(_) | Record::PoolWhole(_) => INCOMPAT_TORN,
            hosted if hosted.is_hosted() => INCOMPAT_HOSTED,
            _ => 0,
        };
        let bits = records.iter().map(bit).fold(0, core::ops::BitOr::bitor);
        if self.connection.is_some() { Ok(()) } else { self.announce(control, bits) }
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

//! Removal of many values: a part of them, or all.

use super::{Vec, VecHeader, places};
use crate::shared::{
    DESTROYED, OrLost, free_destroyed, log, log_and_free, open, range, touch_places,
};
use cenote::persist::Persist;
use cenote::{Result, Tx};
use core::ptr::copy;

impl<T: Persist> Vec<T> {
    /// Removes all but the first `len` values; keeps the array. 2 entries: what is removed, and the
    /// length.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn truncate(self, tx: &mut Tx<'_>, len: usize) -> Result<()> {
        let header = *open(tx, self.header)?;
        let removed = (header.len as usize).saturating_sub(len);
        if removed == 0 {
            return Ok(());
        }
        // SAFETY: places with values, logged before they are written.
        unsafe {
            let place = header.places().add(len);
            touch_places(place, removed).or_lost(tx)?;
            self.released(tx, &header, (len, removed), |tx| {
                log(tx, &[places(place, removed), range(place!(self.header, len))])?;
                place.write_bytes(0, removed);
                (*self.header.as_ptr()).len = len as u64;
                Ok(())
            })
        }
    }

    /// Keeps the values for which `keep` says so. Logs the vector whole if any is removed: 2
    /// entries.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&T) -> bool) -> Result<()> {
        // The caller's code runs before anything is changed.
        let kept: std::vec::Vec<bool> = self.iter(tx)?.map(&mut keep).collect();
        let Some(first) = kept.iter().position(|kept| !kept) else { return Ok(()) };
        let header = *open(tx, self.header)?;
        // SAFETY: places with values, logged before they are written; `to` never overtakes `from`.
        unsafe {
            let array = header.places();
            self.released(tx, &header, (first, 1), |tx| {
                if let Some(block) = header.array.filter(|_| T::OWNS) {
                    for at in (first + 1..kept.len()).filter(|&at| !kept[at]) {
                        tx.free_within(self.header, block.addr(), places(array.add(at), 1))?;
                    }
                }
                let moved = places(array.add(first), kept.len() - first);
                log(tx, &[moved, range(place!(self.header, len))])?;
                let mut to = first;
                for from in (first..kept.len()).filter(|&from| kept[from]) {
                    copy(array.add(from), array.add(to), 1);
                    to += 1;
                }
                array.add(to).write_bytes(0, kept.len() - to);
                (*self.header.as_ptr()).len = to as u64;
                Ok(())
            })
        }
    }

    /// Removes all values and gives the array back. 1 entry, 1 free. Of values that own, 1 entry
    /// for each block that they own; if the log has no room for them, the transaction can only
    /// abort.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, 0)
    }

    /// Frees the vector with its array. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`Vec::push`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, DESTROYED)
    }

    fn empty_to(self, tx: &mut Tx<'_>, len: u64) -> Result<()> {
        let header = *open(tx, self.header)?;
        // SAFETY: the header is live; only it leads to the array, and after the write nothing does.
        unsafe {
            touch_places(header.places(), if T::OWNS { header.len as usize } else { 0 })
                .or_lost(tx)?;
            self.released(tx, &header, (0, header.len as usize), |tx| {
                let ranges = [range(self.header.as_ptr())];
                match header.array {
                    Some(array) => log_and_free(tx, self.header, array, &ranges)?,
                    None => log(tx, &ranges)?,
                }
                tx.all_or_abort(|tx| {
                    self.header.as_ptr().write(VecHeader { array: None, len, capacity: 0 });
                    free_destroyed(tx, self.header, len)
                })
            })
        }
    }
}

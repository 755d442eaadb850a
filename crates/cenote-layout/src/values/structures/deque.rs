//! Deques: an array whose values begin at `head`, and go on at its beginning.

use super::{Blocks, Checked, DESTROYED, Structures, all_zero, broken, places, target, words};
use crate::types::TypeRecord;

impl Structures<'_> {
    pub(super) fn deque(
        &mut self,
        header: u64,
        record: &TypeRecord,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        let at = places(header, record, ["array", "len", "head", "capacity"])?;
        let [array, len, head, capacity] = words(at, blocks)?;
        let id = target(record, at[0] - header, header)?;
        let Some(of) = self.values.record_of(id) else {
            return broken(header, "array", "its type has no record", id.0);
        };
        if len == DESTROYED {
            return Ok(());
        }
        if !of.repeats || of.size == 0 {
            // Values of no bytes: nothing is read, and sums of lengths do not overflow.
            if len > u64::MAX >> 1 {
                return broken(at[1], "len", "too many values", len);
            }
            if array | head | capacity != 0 {
                return broken(at[3], "capacity", "an array for values of no bytes", capacity);
            }
            return Ok(());
        }
        let room = if array == 0 { 0 } else { self.enter(at[0], array, id, blocks)? };
        if capacity.checked_mul(of.size).is_none_or(|bytes| bytes > room) {
            return broken(at[3], "capacity", "more places than its array has", capacity);
        }
        if len > capacity {
            return broken(at[1], "len", "more values than there are places", len);
        }
        if head >= capacity.max(1) {
            return broken(at[2], "head", "no place of its array", head);
        }
        if self.zero_is_value(id) {
            return Ok(());
        }
        for index in 0..len {
            let slot = (head + index) % capacity;
            if all_zero(array + slot * of.size, of.size, blocks)? {
                let why = "a place in use holds zeros, which are no value";
                return broken(array + slot * of.size, "array", why, slot);
            }
        }
        Ok(())
    }
}

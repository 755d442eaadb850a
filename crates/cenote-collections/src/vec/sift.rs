//! A vector as a binary heap: no value is greater than the one at half its index.
//!
//! The way of a value up or down is found first, with the caller's `Ord`; then all places on it are
//! logged with one fence, and then the values move. If `Ord` contradicts itself, values come in
//! another order, and nothing else happens.

use super::Vec;
use crate::shared::{OrLost, Range, log, open, range, touch_places};
use cenote::persist::Persist;
use cenote::{Result, Tx};
use core::ptr::copy;

impl<T: Persist + Ord> Vec<T> {
    /// Adds a value.
    pub(crate) fn heap_push(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        let header = *open(tx, self.header)?;
        let len = header.len as usize;
        // Places whose values go down, from the end upwards.
        let mut way: std::vec::Vec<usize> = std::vec::Vec::new();
        let mut at = len;
        // SAFETY: places with values of the live header's array, and the one behind them, for which
        // there is room; logged before they are written.
        unsafe {
            while at > 0 {
                let above = (at - 1) / 2;
                let place = header.places().add(above);
                touch_places(place, 1).or_lost(tx)?;
                if *place >= value {
                    break;
                }
                way.push(above);
                at = above;
            }
            let array = self.room_for(tx, header, 1)?.places();
            touch_places(array.add(len), 1).or_lost(tx)?;
            let mut ranges: std::vec::Vec<Range> =
                way.iter().map(|at| range(array.add(*at))).collect();
            ranges.extend([range(array.add(len)), range(place!(self.header, len))]);
            log(tx, &ranges)?;
            let mut hole = len;
            for above in way {
                copy(array.add(above), array.add(hole), 1);
                hole = above;
            }
            array.add(hole).write(value);
            (*self.header.as_ptr()).len += 1;
        }
        Ok(())
    }

    /// Removes the greatest value.
    pub(crate) fn heap_pop(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let header = *open(tx, self.header)?;
        let Some(end) = (header.len as usize).checked_sub(1) else { return Ok(None) };
        let array = header.places();
        // Places whose values go up, from the beginning downwards.
        let mut way: std::vec::Vec<usize> = std::vec::Vec::new();
        let mut hole = 0;
        // SAFETY: places with values of the live header's array, logged before they are written.
        unsafe {
            touch_places(array, 1).and_then(|()| touch_places(array.add(end), 1)).or_lost(tx)?;
            loop {
                let left = 2 * hole + 1;
                if left >= end {
                    break;
                }
                touch_places(array.add(left), 1 + usize::from(left + 1 < end)).or_lost(tx)?;
                let greater = left + 1 < end && *array.add(left + 1) > *array.add(left);
                let child = left + usize::from(greater);
                if *array.add(child) <= *array.add(end) {
                    break;
                }
                way.push(child);
                hole = child;
            }
            self.released(tx, &header, (0, 1), |tx| {
                let mut ranges: std::vec::Vec<Range> =
                    way.iter().map(|at| range(array.add(*at))).collect();
                ranges.extend([range(array), range(array.add(end))]);
                ranges.push(range(place!(self.header, len)));
                log(tx, &ranges)?;
                let greatest = array.read();
                let mut hole = 0;
                for child in way {
                    copy(array.add(child), array.add(hole), 1);
                    hole = child;
                }
                copy(array.add(end), array.add(hole), 1);
                array.add(end).write_bytes(0, 1);
                (*self.header.as_ptr()).len -= 1;
                Ok(Some(greatest))
            })
        }
    }
}

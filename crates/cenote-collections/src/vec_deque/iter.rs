//! Iteration over a queue, from both ends.

use super::VecDeque;
use crate::shared::{OrLost, open, touch_places};
use cenote::persist::Persist;
use cenote::{Reader, Result};
use core::fmt;
use core::iter::FusedIterator;
use core::slice;

/// The values of a [`VecDeque`], from both ends.
#[derive(Clone)]
pub struct DequeIter<'r, T> {
    first: slice::Iter<'r, T>,
    second: slice::Iter<'r, T>,
}

impl<T: Persist> VecDeque<T> {
    /// All values in two slices: those of the second one come behind the first ones.
    ///
    /// # Errors
    /// As [`VecDeque::len`]; [`cenote::Error::Store`] if a page of them cannot be read.
    pub fn as_slices(self, reader: &impl Reader) -> Result<(&[T], &[T])> {
        let header = open(reader, self.header)?;
        let (first, second) = header.halves();
        // SAFETY: places of a live header's array with values; nothing changes while the reader is
        // borrowed. Without a value nothing is touched.
        unsafe {
            let start = header.place(0);
            touch_places(start, first).or_lost(reader)?;
            touch_places(header.places(), second).or_lost(reader)?;
            Ok((
                slice::from_raw_parts(start, first),
                slice::from_raw_parts(header.places(), second),
            ))
        }
    }

    /// All values, from both ends.
    ///
    /// # Errors
    /// As [`VecDeque::as_slices`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<DequeIter<'r, T>> {
        let (first, second) = self.as_slices(reader)?;
        Ok(DequeIter { first: first.iter(), second: second.iter() })
    }
}

impl<'r, T> Iterator for DequeIter<'r, T> {
    type Item = &'r T;

    fn next(&mut self) -> Option<&'r T> {
        self.first.next().or_else(|| self.second.next())
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let len = self.first.len().saturating_add(self.second.len());
        (len, Some(len))
    }
}

impl<T> DoubleEndedIterator for DequeIter<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.second.next_back().or_else(|| self.first.next_back())
    }
}

impl<T> ExactSizeIterator for DequeIter<'_, T> {}
impl<T> FusedIterator for DequeIter<'_, T> {}

impl<T: fmt::Debug> fmt::Debug for DequeIter<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DequeIter").field(&self.first).field(&self.second).finish()
    }
}

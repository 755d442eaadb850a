//! Iterators over a list, from both ends.

use super::ListNode;
use crate::shared::Read;
use cenote::Ptr;
use cenote::lost::Faults;
use core::iter::FusedIterator;
use core::marker::PhantomData;

/// Iterates over a [`List`](super::List).
pub struct Iter<'r, T> {
    pub(super) first: Option<Ptr<ListNode<T>>>,
    pub(super) last: Option<Ptr<ListNode<T>>>,
    pub(super) remaining: usize,
    pub(super) faults: &'r Faults,
    pub(super) elements: PhantomData<&'r T>,
}

impl<'r, T> Iter<'r, T> {
    /// A node; `None`, and the end, if it cannot be read.
    #[inline(always)]
    fn node(&mut self, node: Option<Ptr<ListNode<T>>>) -> Option<&'r ListNode<T>> {
        // SAFETY: a live node: nothing changes while the reader is borrowed.
        let node: Read<&'r ListNode<T>> = unsafe { node?.follow() };
        if node.is_err() {
            self.remaining = 1;
        }
        self.remaining -= 1;
        self.faults.noted(node)
    }
}

impl<'r, T> Iterator for Iter<'r, T> {
    type Item = &'r T;

    #[inline]
    fn next(&mut self) -> Option<&'r T> {
        if self.remaining == 0 {
            return None;
        }
        let node = self.node(self.first)?;
        self.first = node.next;
        Some(&node.value)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<T> DoubleEndedIterator for Iter<'_, T> {
    #[inline]
    fn next_back(&mut self) -> Option<Self::Item> {
        if self.remaining == 0 {
            return None;
        }
        let node = self.node(self.last)?;
        self.last = node.previous;
        Some(&node.value)
    }
}

impl<T> ExactSizeIterator for Iter<'_, T> {}
impl<T> FusedIterator for Iter<'_, T> {}

impl<T> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

impl<T: core::fmt::Debug> core::fmt::Debug for Iter<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.clone()).finish()
    }
}

/// Iterates over a [`List`](super::List), whose elements may be changed. Nodes are read through raw
/// pointers, field by field, since values of them are borrowed.
pub struct IterMut<'t, T> {
    pub(super) first: Option<Ptr<ListNode<T>>>,
    pub(super) last: Option<Ptr<ListNode<T>>>,
    pub(super) remaining: usize,
    pub(super) elements: PhantomData<&'t mut T>,
}

impl<'t, T> Iterator for IterMut<'t, T> {
    type Item = &'t mut T;

    fn next(&mut self) -> Option<&'t mut T> {
        self.remaining = self.remaining.checked_sub(1)?;
        let node = self.first?;
        // SAFETY: a live node, logged; each is visited once, from one end or the other, and the
        // transaction is borrowed exclusively.
        unsafe {
            self.first = (*node.as_ptr()).next;
            Some(&mut *place!(node, value))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<T> DoubleEndedIterator for IterMut<'_, T> {
    fn next_back(&mut self) -> Option<Self::Item> {
        self.remaining = self.remaining.checked_sub(1)?;
        let node = self.last?;
        // SAFETY: as in `next`.
        unsafe {
            self.last = (*node.as_ptr()).previous;
            Some(&mut *place!(node, value))
        }
    }
}

impl<T> ExactSizeIterator for IterMut<'_, T> {}
impl<T> FusedIterator for IterMut<'_, T> {}

impl<T> core::fmt::Debug for IterMut<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IterMut").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

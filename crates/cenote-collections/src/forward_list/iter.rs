//! Iterators over a singly linked list.

use super::ForwardNode;
use crate::shared::Read;
use cenote::Ptr;
use cenote::lost::Faults;
use core::iter::FusedIterator;
use core::marker::PhantomData;

/// Iterates over a [`ForwardList`](super::ForwardList).
pub struct Iter<'r, T> {
    pub(super) next: Option<Ptr<ForwardNode<T>>>,
    pub(super) remaining: usize,
    pub(super) faults: &'r Faults,
    pub(super) elements: PhantomData<&'r T>,
}

impl<'r, T> Iterator for Iter<'r, T> {
    type Item = &'r T;

    #[inline]
    fn next(&mut self) -> Option<&'r T> {
        // SAFETY: a live node: nothing changes while the reader is borrowed.
        let node: Read<&'r ForwardNode<T>> = unsafe { self.next?.follow() };
        let Some(node) = self.faults.noted(node) else {
            (self.next, self.remaining) = (None, 0);
            return None;
        };
        self.next = node.next;
        self.remaining -= 1;
        Some(&node.value)
    }

    #[inline]
    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
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

/// Iterates over a [`ForwardList`](super::ForwardList), whose elements may be changed. Nodes are
/// read through raw pointers, field by field, since values of them are borrowed.
pub struct IterMut<'t, T> {
    pub(super) next: Option<Ptr<ForwardNode<T>>>,
    pub(super) remaining: usize,
    pub(super) elements: PhantomData<&'t mut T>,
}

impl<'t, T> Iterator for IterMut<'t, T> {
    type Item = &'t mut T;

    fn next(&mut self) -> Option<&'t mut T> {
        let node = self.next?;
        self.remaining -= 1;
        // SAFETY: a live node, logged; each is visited once, and the transaction is borrowed
        // exclusively.
        unsafe {
            self.next = (*node.as_ptr()).next;
            Some(&mut *place!(node, value))
        }
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.remaining, Some(self.remaining))
    }
}

impl<T> ExactSizeIterator for IterMut<'_, T> {}
impl<T> FusedIterator for IterMut<'_, T> {}

impl<T> core::fmt::Debug for IterMut<'_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("IterMut").field("remaining", &self.remaining).finish_non_exhaustive()
    }
}

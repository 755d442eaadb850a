//! A cursor over a singly linked list.

use super::{ForwardList, ForwardNode, value_mut};
use crate::shared::{OrLost, Read};
use cenote::persist::Persist;
use cenote::ptr::FieldOffset;
use cenote::{OwningField, Ptr, Reader, Result, Tx};

/// A place in a [`ForwardList`]: before the first element, or on one. It borrows the transaction,
/// so nothing else changes the list meanwhile.
pub struct CursorMut<'t, 'p, T> {
    pub(super) tx: &'t mut Tx<'p>,
    pub(super) list: ForwardList<T>,
    pub(super) current: Option<Ptr<ForwardNode<T>>>,
}

impl<T: Persist> CursorMut<'_, '_, T> {
    fn next_node(&self) -> Read<Option<Ptr<ForwardNode<T>>>> {
        // SAFETY: header and node were live when the cursor came to them, and only the cursor has
        // had the transaction since.
        unsafe {
            match self.current {
                Some(node) => Ok(node.follow()?.next),
                None => Ok(self.list.header.as_ref().first),
            }
        }
    }

    /// The node after the current one.
    fn following(&self) -> Read<Option<&ForwardNode<T>>> {
        // SAFETY: a node of the list; it is not changed as long as the cursor is borrowed.
        self.next_node()?.map(|node| unsafe { node.follow() }).transpose()
    }

    /// [`CursorMut::peek_next`], or why it cannot be read.
    pub(super) fn next_seen(&self) -> Result<Option<&T>> {
        Ok(self.following().or_lost(self.tx)?.map(|node| &node.value))
    }

    /// To the next element, if there is one; whether there is.
    pub(super) fn advance(&mut self) -> Result<bool> {
        let next = self.next_node().or_lost(self.tx)?;
        self.current = next.or(self.current);
        Ok(next.is_some())
    }

    /// The current element; `None` before the first. `None` too if it cannot be read; then the
    /// transaction aborts.
    #[must_use]
    pub fn current(&self) -> Option<&T> {
        // SAFETY: a node of the list; it is not changed as long as the cursor is borrowed.
        let node = self.current.map(|node| unsafe { node.follow() });
        Some(&self.tx.faults().noted(node?)?.value)
    }

    /// Makes a block with a value, in the pool of the list, and has a field of the current element
    /// own it, as [`Tx::put_owned`] does; `None`: there is no current element.
    ///
    /// # Errors
    /// As [`Tx::put_owned`].
    pub fn put_owned<F: OwningField>(
        &mut self,
        field: FieldOffset<T, F>,
        value: F::Value<'_>,
    ) -> Result<Option<F::Put>> {
        let Some(node) = self.current else { return Ok(None) };
        // SAFETY: a node of the list, in a pool that the transaction holds.
        unsafe {
            node.touch().or_lost(self.tx)?;
            let edge: *mut F = place!(node, value).byte_add(field.offset()).cast();
            self.tx.put_owned_near(self.list.header, edge, value).map(Some)
        }
    }

    /// Frees what a field of the current element owns, as [`Tx::free_owned`] does; whether there
    /// was something.
    ///
    /// # Errors
    /// As [`Tx::free_owned`].
    pub fn free_owned<F: OwningField>(&mut self, field: FieldOffset<T, F>) -> Result<bool> {
        let Some(node) = self.current else { return Ok(false) };
        // SAFETY: a node of the list, in a pool that the transaction holds.
        unsafe {
            node.touch().or_lost(self.tx)?;
            let edge: *mut F = place!(node, value).byte_add(field.offset()).cast();
            self.tx.free_owned_near(self.list.header, edge)
        }
    }

    /// The current element, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// [`cenote::Error::Tx`] if the log is full.
    pub fn current_mut(&mut self) -> Result<Option<&mut T>> {
        let tx = &mut *self.tx;
        // SAFETY: a node of the list, in a pool that the transaction holds.
        self.current.map(|node| unsafe { value_mut(tx, node) }).transpose()
    }

    /// The element after the current one. `None` too if it cannot be read; then the transaction
    /// aborts.
    #[must_use]
    pub fn peek_next(&self) -> Option<&T> {
        self.tx.faults().noted(self.following())?.map(|node| &node.value)
    }

    /// To the next element. Stays, and returns `false`, if there is none, or the current one cannot
    /// be read; then the transaction aborts.
    pub fn move_next(&mut self) -> bool {
        let next = self.tx.faults().noted(self.next_node()).flatten();
        self.current = next.or(self.current);
        next.is_some()
    }

    /// Inserts after the current element. 1 allocation, 2 entries.
    ///
    /// # Errors
    /// As [`ForwardList::push_back`].
    pub fn insert_after(&mut self, value: T) -> Result<()> {
        let next = self.next_node().or_lost(self.tx)?;
        // SAFETY: neighbours in a live list.
        unsafe { self.list.insert_between(self.tx, self.current, next, value)? };
        Ok(())
    }

    /// Removes the element after the current one. 1 free, 2 entries.
    ///
    /// # Errors
    /// [`cenote::Error::Tx`] if the log is full.
    pub fn remove_next(&mut self) -> Result<Option<T>> {
        let Some(next) = self.next_node().or_lost(self.tx)? else { return Ok(None) };
        // SAFETY: neighbours in a live list.
        unsafe { self.list.remove_after(self.tx, self.current, next).map(Some) }
    }
}

impl<T> core::fmt::Debug for CursorMut<'_, '_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CursorMut({:?})", self.list)
    }
}

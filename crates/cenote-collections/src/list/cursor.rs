//! [`CursorMut`]: a place in a list. It borrows the transaction, so nothing else can change the
//! list meanwhile, and the node under the cursor stays in it.

use super::{List, ListHeader, ListNode, value_mut};
use crate::shared::{OrLost, open};
use cenote::persist::Persist;
use cenote::ptr::FieldOffset;
use cenote::{OwningField, Ptr, Reader, Result, Tx};

/// A place in a [`List`]: on an element, or on the "ghost" between the last and the first one. See
/// the cursors of [`std::collections::LinkedList`].
pub struct CursorMut<'t, 'p, T> {
    tx: &'t mut Tx<'p>,
    list: List<T>,
    /// Of the current element; the length if it is the ghost.
    index: u64,
    current: Option<Ptr<ListNode<T>>>,
}

impl<T: Persist> List<T> {
    /// A cursor on the first element; on the ghost if the list is empty.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn cursor_front_mut<'t, 'p>(self, tx: &'t mut Tx<'p>) -> Result<CursorMut<'t, 'p, T>> {
        let current = open(tx, self.header)?.first;
        Ok(CursorMut { tx, list: self, index: 0, current })
    }

    /// A cursor on the last element; on the ghost if the list is empty.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn cursor_back_mut<'t, 'p>(self, tx: &'t mut Tx<'p>) -> Result<CursorMut<'t, 'p, T>> {
        let ListHeader { len, last, .. } = *open(tx, self.header)?;
        Ok(CursorMut { tx, list: self, index: len.saturating_sub(1), current: last })
    }
}

impl<T: Persist> CursorMut<'_, '_, T> {
    fn header(&self) -> ListHeader<T> {
        // SAFETY: live when the cursor was made, and only the cursor has had the transaction since.
        unsafe { *self.list.header.as_ref() }
    }

    /// Index of the current element; `None` on the ghost.
    #[must_use]
    pub fn index(&self) -> Option<usize> {
        self.current.map(|_| self.index as usize)
    }

    /// The current node, which can be read.
    fn node(&self) -> Result<Option<&ListNode<T>>> {
        // SAFETY: a node of the list; it is not changed as long as the cursor is borrowed.
        self.current.map(|node| unsafe { node.follow() }.or_lost(self.tx)).transpose()
    }

    /// [`CursorMut::current`], or why it cannot be read.
    pub(super) fn seen(&self) -> Result<Option<&T>> {
        Ok(self.node()?.map(|node| &node.value))
    }

    /// The current element; `None` on the ghost. `None` too if it cannot be read; then the
    /// transaction aborts.
    #[must_use]
    pub fn current(&self) -> Option<&T> {
        // SAFETY: as in `node`.
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

    /// To the next element; from the last one to the ghost, and from there to the first. To the
    /// ghost, too, if the current one cannot be read; then the transaction aborts.
    pub fn move_next(&mut self) {
        match self.current {
            Some(node) => {
                // SAFETY: a node of the list.
                self.current =
                    self.tx.faults().noted(unsafe { node.follow() }).and_then(|node| node.next);
                self.index += 1;
            }
            None => {
                self.current = self.header().first;
                self.index = 0;
            }
        }
    }

    /// To the previous element; from the first one to the ghost, and from there to the last. To the
    /// ghost, too, if the current one cannot be read; then the transaction aborts.
    pub fn move_prev(&mut self) {
        let header = self.header();
        match self.current {
            Some(node) => {
                // SAFETY: a node of the list.
                let node = self.tx.faults().noted(unsafe { node.follow() });
                self.current = node.and_then(|node| node.previous);
                self.index = self.index.checked_sub(1).unwrap_or(header.len);
            }
            None => {
                self.current = header.last;
                self.index = header.len.saturating_sub(1);
            }
        }
    }

    /// Inserts before the current element; at the end, if that is the ghost. 1 allocation, 3
    /// entries (2 at the ends).
    ///
    /// # Errors
    /// As [`List::push_back`].
    pub fn insert_before(&mut self, value: T) -> Result<()> {
        let before = match self.node()? {
            Some(node) => node.previous,
            None => self.header().last,
        };
        // SAFETY: neighbours in the list, which is live.
        unsafe { self.list.insert_between(self.tx, before, self.current, value)? };
        self.index += 1;
        Ok(())
    }

    /// Inserts after the current element; at the beginning, if that is the ghost. 1 allocation, 3
    /// entries (2 at the ends).
    ///
    /// # Errors
    /// As [`List::push_back`].
    pub fn insert_after(&mut self, value: T) -> Result<()> {
        let after = match self.node()? {
            Some(node) => node.next,
            None => self.header().first,
        };
        // SAFETY: neighbours in the list, which is live.
        unsafe { self.list.insert_between(self.tx, self.current, after, value)? };
        if self.current.is_none() {
            self.index += 1;
        }
        Ok(())
    }

    /// Removes the current element and moves to the next one. 1 free, 3 entries (2 at the ends).
    ///
    /// # Errors
    /// [`cenote::Error::Tx`] if the log is full.
    pub fn remove_current(&mut self) -> Result<Option<T>> {
        let Some(node) = self.current else { return Ok(None) };
        let next = self.node()?.and_then(|node| node.next);
        // SAFETY: a node of the list, which is live.
        let value = unsafe { self.list.remove_node(self.tx, node)? };
        self.current = next;
        Ok(Some(value))
    }
}

impl<T> core::fmt::Debug for CursorMut<'_, '_, T> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "CursorMut({:?}, {})", self.list, self.index)
    }
}

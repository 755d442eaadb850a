//! [`List`], a doubly linked list.
//!
//! ```text
//! header:  first | len | last            node:  next | previous | value
//! ```
//!
//! Invariant: either `first` and `last` are both `None` and `len` is 0, or `next` from `first`
//! visits `len` live nodes and ends at `last`, and `previous` leads the same way back. `len` lies
//! between both ends, so a change of either end is one range of 16 bytes.

use crate::shared::{
    DESTROYED, Header, OrLost, build, free_destroyed, log, log_and_free, log_many, log_with, open,
    range, refuse_to_leave, release, span, touch_any,
};
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::marker::PhantomData;

mod cursor;
mod iter;

pub use cursor::CursorMut;
pub use iter::{Iter, IterMut};

#[repr(C)]
pub(crate) struct ListHeader<T> {
    first: Option<Ptr<ListNode<T>>>,
    len: u64,
    last: Option<Ptr<ListNode<T>>>,
}

#[repr(C)]
pub(crate) struct ListNode<T> {
    next: Option<Ptr<ListNode<T>>>,
    previous: Option<Ptr<ListNode<T>>>,
    value: T,
}

impl<T> Clone for ListHeader<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ListHeader<T> {}

impl<T: Persist> Header for ListHeader<T> {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }
}

persist_block!(
    "cenote/ListHeader",
    ListHeader<T> { first: Option<Ptr<ListNode<T>>>, len: u64, last: Option<Ptr<ListNode<T>>> }
);
persist_block!(
    "cenote/ListNode",
    ListNode<T> { next: Option<Ptr<ListNode<T>>>, previous: Option<Ptr<ListNode<T>>>, value: T },
    owns: T::OWNS
);

/// A doubly linked list; see [`std::collections::LinkedList`] for what the methods mean and the
/// [crate] for handles.
#[repr(transparent)]
pub struct List<T> {
    header: Ptr<ListHeader<T>>,
}

persist_handle!("cenote/List", List<T>, ListHeader<T>);

/// The header of an empty list.
const fn empty<T>() -> ListHeader<T> {
    ListHeader { first: None, len: 0, last: None }
}

impl<T: Persist> List<T> {
    /// An empty list in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        Ok(Self { header: tx.alloc(empty())? })
    }

    /// An empty list in the pool that `neighbour` lies in.
    ///
    /// # Errors
    /// As [`Tx::alloc_beside`].
    pub fn new_beside<N: Persist>(tx: &mut Tx<'_>, neighbour: Ptr<N>) -> Result<Self> {
        Ok(Self { header: tx.alloc_beside(neighbour, empty())? })
    }

    /// Number of elements.
    ///
    /// # Errors
    /// [`cenote::Error::Dangling`] if the handle is stale; so it is with every method.
    #[inline]
    pub fn len(self, reader: &impl Reader) -> Result<usize> {
        Ok(open(reader, self.header)?.len as usize)
    }

    /// Whether there is no element.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    /// The first element.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn front(self, reader: &impl Reader) -> Result<Option<&T>> {
        // SAFETY: links of a live header lead to live nodes; the reader is borrowed as long as the
        // reference.
        open(reader, self.header)?.first.map(|node| unsafe { value(reader, node) }).transpose()
    }

    /// The last element.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn back(self, reader: &impl Reader) -> Result<Option<&T>> {
        // SAFETY: as in `front`.
        open(reader, self.header)?.last.map(|node| unsafe { value(reader, node) }).transpose()
    }

    /// The first element, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`List::len`], and [`cenote::Error::Tx`] if the log is full.
    pub fn front_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<Option<&'t mut T>> {
        let first = open(tx, self.header)?.first;
        // SAFETY: a node of a live header.
        first.map(|node| unsafe { value_mut(tx, node) }).transpose()
    }

    /// The last element, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`List::front_mut`].
    pub fn back_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<Option<&'t mut T>> {
        let last = open(tx, self.header)?.last;
        // SAFETY: a node of a live header.
        last.map(|node| unsafe { value_mut(tx, node) }).transpose()
    }

    /// Adds an element at the end. 1 allocation, 2 entries.
    ///
    /// # Errors
    /// As [`List::len`], and [`cenote::Error::Tx`] if the pool or the log is full.
    #[inline]
    pub fn push_back(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        let ListHeader { last, .. } = *open(tx, self.header)?;
        // SAFETY: an element or the end of a list whose header is live.
        unsafe { self.insert_between(tx, last, None, value) }
    }

    /// Adds an element at the beginning. 1 allocation, 2 entries.
    ///
    /// # Errors
    /// As [`List::push_back`].
    #[inline]
    pub fn push_front(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        let ListHeader { first, .. } = *open(tx, self.header)?;
        // SAFETY: an element or the end of a list whose header is live.
        unsafe { self.insert_between(tx, None, first, value) }
    }

    /// Removes the first element. 1 free, 2 entries.
    ///
    /// # Errors
    /// As [`List::front_mut`].
    #[inline]
    pub fn pop_front(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let first = open(tx, self.header)?.first;
        // SAFETY: a node of a live header.
        first.map(|node| unsafe { self.remove_node(tx, node) }).transpose()
    }

    /// Removes the last element. 1 free, 2 entries.
    ///
    /// # Errors
    /// As [`List::front_mut`].
    #[inline]
    pub fn pop_back(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let last = open(tx, self.header)?.last;
        // SAFETY: a node of a live header.
        last.map(|node| unsafe { self.remove_node(tx, node) }).transpose()
    }

    /// All elements, from both ends.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<Iter<'r, T>> {
        let ListHeader { first, len, last } = *open(reader, self.header)?;
        let faults = reader.faults();
        Ok(Iter { first, last, remaining: len as usize, faults, elements: PhantomData })
    }

    /// All elements, from both ends, to be changed. Logs all of them: 1 entry each, and a fence for
    /// each 256.
    ///
    /// # Errors
    /// As [`List::front_mut`].
    pub fn iter_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<IterMut<'t, T>> {
        refuse_owners!(T);
        let ListHeader { first, len, last } = *open(tx, self.header)?;
        let mut next = first;
        let ranges = core::iter::from_fn(|| {
            let node = next?;
            // SAFETY: links of a live header lead to live nodes.
            unsafe {
                let read = node.touch();
                next = if read.is_ok() { (*node.as_ptr()).next } else { None };
                Some(read.map(|()| range(place!(node, value))))
            }
        });
        // SAFETY: places of live nodes, in a pool that the transaction holds.
        unsafe { log_many(tx, ranges)? };
        Ok(IterMut { first, last, remaining: len as usize, elements: PhantomData })
    }

    /// Whether an element equals `value`.
    ///
    /// # Errors
    /// As [`List::len`].
    pub fn contains(self, reader: &impl Reader, value: &T) -> Result<bool>
    where
        T: PartialEq,
    {
        let mut next = open(reader, self.header)?.first;
        while let Some(node) = next {
            // SAFETY: links of a live header lead to live nodes.
            let node = unsafe { node.follow() }.or_lost(reader)?;
            if node.value == *value {
                return Ok(true);
            }
            next = node.next;
        }
        Ok(false)
    }

    /// Adds what the iterator yields at the end, one after the other.
    ///
    /// # Errors
    /// As [`List::push_back`]; elements before the one that failed are in the list.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.push_back(tx, value))
    }

    /// A list of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`List::push_back`]; then there is no list.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Moves all elements of `other` to the end of this list. In constant time if both lie in one
    /// pool: 4 entries. Nothing happens if both are the same list.
    ///
    /// # Errors
    /// As [`List::push_back`]. If the lists are in two pools and one is full, some elements have
    /// moved, and the transaction can only abort. [`cenote::Error::OtherPool`] if they are in two
    /// pools and elements own blocks.
    pub fn append(self, tx: &mut Tx<'_>, other: Self) -> Result<()> {
        let ours = *open(tx, self.header)?;
        let theirs = *open(tx, other.header)?;
        let Some(first) = theirs.first else { return Ok(()) };
        if self == other {
            return Ok(());
        }
        if !tx.in_one_pool(self.header, other.header)? {
            refuse_to_leave::<T>(self.header.addr(), other.header.addr())?;
            while let Some(value) = other.pop_front(tx)? {
                tx.all_or_abort(|tx| self.push_back(tx, value))?;
            }
            return Ok(());
        }
        // SAFETY: headers and nodes are live and of one pool, which is held. After the writes every
        // node belongs to this list.
        unsafe {
            first.touch().and_then(|()| touch_any(ours.last)).or_lost(tx)?;
            log(
                tx,
                &[
                    range(self.header.as_ptr()),
                    range(other.header.as_ptr()),
                    range(place!(first, previous)),
                    ours.last.map_or((core::ptr::null(), 0), |last| range(place!(last, next))),
                ],
            )?;
            (*first.as_ptr()).previous = ours.last;
            if let Some(last) = ours.last {
                (*last.as_ptr()).next = Some(first);
            }
            self.header.as_ptr().write(ListHeader {
                first: ours.first.or(theirs.first),
                len: ours.len + theirs.len,
                last: theirs.last,
            });
            other.header.as_ptr().write(empty());
        }
        Ok(())
    }

    /// Splits the list before element `at`: what follows becomes a list of its own, which is
    /// returned. Looks at up to half of the elements; 3 entries.
    ///
    /// # Errors
    /// As [`List::push_back`]; [`cenote::Error::OutOfBounds`] if `at` is greater than the length.
    pub fn split_off(self, tx: &mut Tx<'_>, at: usize) -> Result<Self> {
        let ListHeader { first, len, last } = *open(tx, self.header)?;
        if at as u64 > len {
            return Err(cenote::Error::OutOfBounds { index: at as u64, len });
        }
        // SAFETY: links of a live header lead to live nodes.
        let (before, after) = unsafe { self.neighbours(tx, at)? };
        // SAFETY: as above.
        unsafe { touch_any(before).and_then(|()| touch_any(after)) }.or_lost(tx)?;
        let rest = ListHeader { first: after, len: len - at as u64, last: after.and(last) };
        let Some(after) = after else { return Self::new_beside(tx, self.header) };
        // Gone until nothing can fail any more: a stale handle may name this block.
        let unborn = ListHeader { len: DESTROYED, ..empty() };
        let other = Self { header: tx.alloc_beside(self.header, unborn)? };
        // SAFETY: live nodes of this list; after the writes those from `after` on belong to the
        // other one, whose header is fresh in this transaction.
        unsafe {
            let cut = before.map_or((core::ptr::null(), 0), |before| range(place!(before, next)));
            log_with(
                tx,
                other.header,
                &[range(self.header.as_ptr()), range(place!(after, previous)), cut],
            )?;
            if let Some(before) = before {
                (*before.as_ptr()).next = None;
            }
            (*after.as_ptr()).previous = None;
            self.header.as_ptr().write(ListHeader {
                first: before.and(first),
                len: at as u64,
                last: before,
            });
            other.header.as_ptr().write(rest);
        }
        Ok(other)
    }

    /// Keeps the elements for which `keep` says so. 3 entries, and a fence at `power`, for each one
    /// removed.
    ///
    /// # Errors
    /// As [`List::front_mut`]; elements up to the one that failed have been looked at.
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&T) -> bool) -> Result<()> {
        let mut cursor = self.cursor_front_mut(tx)?;
        while let Some(value) = cursor.seen()? {
            if keep(value) {
                cursor.move_next();
            } else {
                cursor.remove_current()?;
            }
        }
        Ok(())
    }

    /// Removes all elements. 1 entry, and 1 free for each element.
    ///
    /// # Errors
    /// As [`List::front_mut`]. If the log has no room for all nodes, the transaction can only
    /// abort.
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, 0)
    }

    /// Frees the list with all its nodes. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`List::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, DESTROYED)
    }

    /// Unlinks all nodes, with `len` in the header, and then frees them, and the header of a list
    /// that is destroyed.
    fn empty_to(self, tx: &mut Tx<'_>, len: u64) -> Result<()> {
        let ListHeader { first, .. } = *open(tx, self.header)?;
        // SAFETY: the header is live; nodes are reachable only through it, so nothing leads to them
        // after the write. Freed blocks stay as they are until commit.
        unsafe {
            log(tx, &[range(self.header.as_ptr())])?;
            tx.all_or_abort(|tx| {
                self.header.as_ptr().write(ListHeader { len, ..empty() });
                let mut next = first;
                while let Some(node) = next {
                    next = node.follow().or_lost(tx)?.next;
                    if T::OWNS {
                        tx.free_within(self.header, node.addr(), range(node.as_ptr()))?;
                    }
                    tx.free_near(self.header, node)?;
                }
                free_destroyed(tx, self.header, len)
            })
        }
    }

    /// The nodes before and at index `at`, which is at most the length, from the nearer end.
    ///
    /// # Safety
    /// The reader holds the pool.
    unsafe fn neighbours(self, reader: &impl Reader, at: usize) -> Result<Neighbours<T>> {
        let ListHeader { first, len, last } = *open(reader, self.header)?;
        let at = at as u64;
        // SAFETY: links of a live header lead to live nodes.
        unsafe {
            if at <= len / 2 {
                let (mut before, mut after) = (None, first);
                for _ in 0..at {
                    let Some(node) = after else { break };
                    (before, after) = (after, node.follow().or_lost(reader)?.next);
                }
                Ok((before, after))
            } else {
                let (mut before, mut after) = (last, None);
                for _ in at..len {
                    let Some(node) = before else { break };
                    (before, after) = (node.follow().or_lost(reader)?.previous, before);
                }
                Ok((before, after))
            }
        }
    }

    /// Inserts between two neighbours, `None` being the ends.
    ///
    /// # Safety
    /// The header is live and the transaction holds its pool; `before` and `after` are neighbouring
    /// nodes of the list, or its end.
    #[inline]
    unsafe fn insert_between(
        self,
        tx: &mut Tx<'_>,
        before: Option<Ptr<ListNode<T>>>,
        after: Option<Ptr<ListNode<T>>>,
        value: T,
    ) -> Result<()> {
        let header = self.header;
        // SAFETY: neighbours are live by contract.
        unsafe { touch_any(before).and_then(|()| touch_any(after)) }.or_lost(tx)?;
        // SAFETY: the header is live by contract.
        let node =
            unsafe { tx.alloc_near(header, ListNode { next: after, previous: before, value })? };
        // SAFETY: live blocks of a held pool by contract. The node is written, and everything else
        // logged, before the first link leads to it.
        unsafe {
            match (before, after) {
                (Some(before), None) => {
                    log_with(
                        tx,
                        node,
                        &[
                            range(place!(before, next)),
                            span(place!(header, len), place!(header, last)),
                        ],
                    )?;
                    (*before.as_ptr()).next = Some(node);
                    (*header.as_ptr()).last = Some(node);
                }
                (None, Some(after)) => {
                    log_with(
                        tx,
                        node,
                        &[
                            range(place!(after, previous)),
                            span(place!(header, first), place!(header, len)),
                        ],
                    )?;
                    (*after.as_ptr()).previous = Some(node);
                    (*header.as_ptr()).first = Some(node);
                }
                (None, None) => {
                    log_with(tx, node, &[range(header.as_ptr())])?;
                    (*header.as_ptr()).first = Some(node);
                    (*header.as_ptr()).last = Some(node);
                }
                (Some(before), Some(after)) => {
                    let ranges = [
                        range(place!(before, next)),
                        range(place!(after, previous)),
                        range(place!(header, len)),
                    ];
                    log_with(tx, node, &ranges)?;
                    (*before.as_ptr()).next = Some(node);
                    (*after.as_ptr()).previous = Some(node);
                }
            }
            (*header.as_ptr()).len += 1;
        }
        Ok(())
    }

    /// Takes a node out and frees it.
    ///
    /// # Safety
    /// The header is live and the transaction holds its pool; `node` is a node of the list.
    #[inline]
    unsafe fn remove_node(self, tx: &mut Tx<'_>, node: Ptr<ListNode<T>>) -> Result<T> {
        // SAFETY: passed on.
        unsafe {
            node.touch().or_lost(tx)?;
            let value = range(place!(node, value));
            release::<T, _, _, _>(tx, self.header, (node, value), |tx| self.unlink(tx, node))
        }
    }

    /// Takes out and frees a node whose value owns nothing.
    ///
    /// # Safety
    /// As [`List::remove_node`]; the node was touched.
    #[inline]
    unsafe fn unlink(self, tx: &mut Tx<'_>, node: Ptr<ListNode<T>>) -> Result<T> {
        let header = self.header;
        // SAFETY: live blocks of a held pool by contract; freed blocks stay as they are until
        // commit, and no link leads to the node after the writes.
        unsafe {
            let (before, after) = ((*node.as_ptr()).previous, (*node.as_ptr()).next);
            touch_any(before).and_then(|()| touch_any(after)).or_lost(tx)?;
            let next = before.map_or(place!(header, first), |before| place!(before, next));
            let previous = after.map_or(place!(header, last), |after| place!(after, previous));
            match (before, after) {
                (Some(_), Some(_)) => {
                    let ranges = [range(next), range(previous), range(place!(header, len))];
                    log_and_free(tx, header, node, &ranges)?;
                }
                (Some(_), None) => {
                    log_and_free(
                        tx,
                        header,
                        node,
                        &[range(next), span(place!(header, len), previous)],
                    )?;
                }
                (None, Some(_)) => {
                    log_and_free(
                        tx,
                        header,
                        node,
                        &[range(previous), span(next, place!(header, len))],
                    )?;
                }
                (None, None) => log_and_free(tx, header, node, &[range(header.as_ptr())])?,
            }
            *next = after;
            *previous = before;
            (*header.as_ptr()).len -= 1;
            Ok((&raw const (*node.as_ptr()).value).read())
        }
    }
}

/// The nodes on both sides of a place in a list.
type Neighbours<T> = (Option<Ptr<ListNode<T>>>, Option<Ptr<ListNode<T>>>);

/// The value of a node.
///
/// # Safety
/// A live node of a pool that the reader holds.
#[inline]
unsafe fn value<T: Persist>(reader: &impl Reader, node: Ptr<ListNode<T>>) -> Result<&T> {
    // SAFETY: live by contract; the reader is borrowed as long as the reference.
    unsafe { Ok(&node.follow().or_lost(reader)?.value) }
}

/// The value of a node, logged.
///
/// # Safety
/// A live node of a pool that the transaction holds.
unsafe fn value_mut<'t, T: Persist>(
    tx: &'t mut Tx<'_>,
    node: Ptr<ListNode<T>>,
) -> Result<&'t mut T> {
    refuse_owners!(T);
    // SAFETY: live by contract; the reference borrows the transaction exclusively, so there is no
    // other one.
    unsafe {
        node.touch().or_lost(tx)?;
        let value = place!(node, value);
        log(tx, &[range(value)])?;
        Ok(&mut *value)
    }
}

//! [`ForwardList`], a singly linked list with a pointer to its end: a stack and a queue at 8 bytes
//! an element.
//!
//! ```text
//! header:  first | len | last            node:  next | value
//! ```
//!
//! Invariant: either `first` and `last` are both `None` and `len` is 0, or `next` from `first`
//! visits `len` live nodes and ends at `last`.

mod cursor;
mod iter;

pub use cursor::CursorMut;
pub use iter::{Iter, IterMut};

use crate::shared::{
    DESTROYED, Header, OrLost, build, free_destroyed, log, log_and_free, log_many, log_with, open,
    range, refuse_to_leave, release, span, touch_any,
};
use cenote::persist::Persist;
use cenote::{Ptr, Reader, Result, Tx};
use core::marker::PhantomData;

#[repr(C)]
pub(crate) struct ForwardListHeader<T> {
    first: Option<Ptr<ForwardNode<T>>>,
    len: u64,
    last: Option<Ptr<ForwardNode<T>>>,
}

#[repr(C)]
pub(crate) struct ForwardNode<T> {
    next: Option<Ptr<ForwardNode<T>>>,
    value: T,
}

impl<T> Clone for ForwardListHeader<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ForwardListHeader<T> {}

impl<T: Persist> Header for ForwardListHeader<T> {
    #[inline]
    fn len(&self) -> u64 {
        self.len
    }
}

persist_block!(
    "cenote/ForwardListHeader",
    ForwardListHeader<T> {
        first: Option<Ptr<ForwardNode<T>>>,
        len: u64,
        last: Option<Ptr<ForwardNode<T>>>,
    }
);
persist_block!(
    "cenote/ForwardListNode",
    ForwardNode<T> { next: Option<Ptr<ForwardNode<T>>>, value: T },
    owns: T::OWNS
);

/// A singly linked list; see the [crate] for handles. The methods are named as those of
/// [`std::collections::LinkedList`]; what would take a walk from the start (`pop_back`, say) is
/// left out.
#[repr(transparent)]
pub struct ForwardList<T> {
    header: Ptr<ForwardListHeader<T>>,
}

persist_handle!("cenote/ForwardList", ForwardList<T>, ForwardListHeader<T>);

const fn empty<T>() -> ForwardListHeader<T> {
    ForwardListHeader { first: None, len: 0, last: None }
}

impl<T: Persist> ForwardList<T> {
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
    /// As [`ForwardList::len`].
    pub fn is_empty(self, reader: &impl Reader) -> Result<bool> {
        Ok(self.len(reader)? == 0)
    }

    /// The first element.
    ///
    /// # Errors
    /// As [`ForwardList::len`].
    pub fn front(self, reader: &impl Reader) -> Result<Option<&T>> {
        // SAFETY: links of a live header lead to live nodes; the reader is borrowed as long as the
        // reference.
        open(reader, self.header)?.first.map(|node| unsafe { value(reader, node) }).transpose()
    }

    /// The last element.
    ///
    /// # Errors
    /// As [`ForwardList::len`].
    pub fn back(self, reader: &impl Reader) -> Result<Option<&T>> {
        // SAFETY: as in `front`.
        open(reader, self.header)?.last.map(|node| unsafe { value(reader, node) }).transpose()
    }

    /// The first element, to be changed: logged whole. 1 entry.
    ///
    /// # Errors
    /// As [`ForwardList::len`], and [`cenote::Error::Tx`] if the log is full.
    pub fn front_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<Option<&'t mut T>> {
        let first = open(tx, self.header)?.first;
        // SAFETY: a node of a live header.
        first.map(|node| unsafe { value_mut(tx, node) }).transpose()
    }

    /// Adds an element at the beginning. 1 allocation, 1 entry.
    ///
    /// # Errors
    /// As [`ForwardList::len`], and [`cenote::Error::Tx`] if the pool or the log is full.
    #[inline]
    pub fn push_front(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        // SAFETY: the beginning of a list whose header is checked.
        unsafe {
            let first = open(tx, self.header)?.first;
            self.insert_between(tx, None, first, value)?;
        }
        Ok(())
    }

    /// Adds an element at the end. 1 allocation, 2 entries.
    ///
    /// # Errors
    /// As [`ForwardList::push_front`].
    #[inline]
    pub fn push_back(self, tx: &mut Tx<'_>, value: T) -> Result<()> {
        // SAFETY: the end of a list whose header is checked.
        unsafe {
            let last = open(tx, self.header)?.last;
            self.insert_between(tx, last, None, value)?;
        }
        Ok(())
    }

    /// Removes the first element. 1 free, 1 entry.
    ///
    /// # Errors
    /// As [`ForwardList::front_mut`].
    #[inline]
    pub fn pop_front(self, tx: &mut Tx<'_>) -> Result<Option<T>> {
        let first = open(tx, self.header)?.first;
        // SAFETY: the first node of a live header, which none precedes.
        first.map(|node| unsafe { self.remove_after(tx, None, node) }).transpose()
    }

    /// All elements, from the first.
    ///
    /// # Errors
    /// As [`ForwardList::len`].
    pub fn iter<'r>(self, reader: &'r impl Reader) -> Result<Iter<'r, T>> {
        let ForwardListHeader { first, len, .. } = *open(reader, self.header)?;
        let faults = reader.faults();
        Ok(Iter { next: first, remaining: len as usize, faults, elements: PhantomData })
    }

    /// All elements, from the first, to be changed. Logs all of them: 1 entry each, and a fence for
    /// each 256.
    ///
    /// # Errors
    /// As [`ForwardList::front_mut`].
    pub fn iter_mut<'t>(self, tx: &'t mut Tx<'_>) -> Result<IterMut<'t, T>> {
        refuse_owners!(T);
        let ForwardListHeader { first, len, .. } = *open(tx, self.header)?;
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
        Ok(IterMut { next: first, remaining: len as usize, elements: PhantomData })
    }

    /// Whether an element equals `value`.
    ///
    /// # Errors
    /// As [`ForwardList::len`].
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
    /// As [`ForwardList::push_back`]; elements before the one that failed are in the list.
    pub fn extend(self, tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<()> {
        values.into_iter().try_for_each(|value| self.push_back(tx, value))
    }

    /// A list of what the iterator yields, in the transaction's first pool.
    ///
    /// # Errors
    /// As [`ForwardList::push_back`]; then there is no list.
    pub fn from_iter(tx: &mut Tx<'_>, values: impl IntoIterator<Item = T>) -> Result<Self> {
        let this = Self::new(tx)?;
        build(tx, |tx| this.extend(tx, values), |tx| this.destroy(tx))?;
        Ok(this)
    }

    /// Moves all elements of `other` to the end of this list. In constant time if both lie in one
    /// pool: 3 entries. Nothing happens if both are the same list.
    ///
    /// # Errors
    /// As [`ForwardList::push_back`]. If the lists are in two pools and one is full, some elements
    /// have moved, and the transaction can only abort. [`cenote::Error::OtherPool`] if they are in
    /// two pools and elements own blocks.
    pub fn append(self, tx: &mut Tx<'_>, other: Self) -> Result<()> {
        let ours = *open(tx, self.header)?;
        let theirs = *open(tx, other.header)?;
        if self == other || theirs.first.is_none() {
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
            touch_any(ours.last).or_lost(tx)?;
            let link = ours.last.map_or(place!(self.header, first), |last| place!(last, next));
            log(tx, &[range(self.header.as_ptr()), range(other.header.as_ptr()), range(link)])?;
            *link = theirs.first;
            self.header.as_ptr().write(ForwardListHeader {
                first: ours.first.or(theirs.first),
                len: ours.len + theirs.len,
                last: theirs.last,
            });
            other.header.as_ptr().write(empty());
        }
        Ok(())
    }

    /// A cursor before the first element.
    ///
    /// # Errors
    /// As [`ForwardList::len`].
    pub fn cursor_mut<'t, 'p>(self, tx: &'t mut Tx<'p>) -> Result<CursorMut<'t, 'p, T>> {
        open(tx, self.header)?;
        Ok(CursorMut { tx, list: self, current: None })
    }

    /// Keeps the elements for which `keep` says so. 2 entries, and a fence at `power`, for each one
    /// removed.
    ///
    /// # Errors
    /// As [`ForwardList::front_mut`]; elements up to the one that failed have been looked at.
    pub fn retain(self, tx: &mut Tx<'_>, mut keep: impl FnMut(&T) -> bool) -> Result<()> {
        let mut cursor = self.cursor_mut(tx)?;
        while let Some(value) = cursor.next_seen()? {
            if keep(value) {
                cursor.advance()?;
            } else {
                cursor.remove_next()?;
            }
        }
        Ok(())
    }

    /// Removes all elements. 1 entry, and 1 free for each element.
    ///
    /// # Errors
    /// As [`ForwardList::front_mut`]. If the log has no room for all nodes, the transaction can
    /// only abort.
    pub fn clear(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, 0)
    }

    /// Frees the list with all its nodes. Every handle to it is stale from now on.
    ///
    /// # Errors
    /// As [`ForwardList::clear`].
    pub fn destroy(self, tx: &mut Tx<'_>) -> Result<()> {
        self.empty_to(tx, DESTROYED)
    }

    /// Unlinks all nodes, with `len` in the header, and frees them, and a destroyed list's header.
    fn empty_to(self, tx: &mut Tx<'_>, len: u64) -> Result<()> {
        let ForwardListHeader { first, .. } = *open(tx, self.header)?;
        // SAFETY: the header is live; nodes are reachable only through it, so nothing leads to them
        // after the write. Freed blocks stay as they are until commit.
        unsafe {
            log(tx, &[range(self.header.as_ptr())])?;
            tx.all_or_abort(|tx| {
                self.header.as_ptr().write(ForwardListHeader { len, ..empty() });
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

    /// Inserts between two neighbours, `None` being the ends.
    ///
    /// # Safety
    /// The header is live and the transaction holds its pool; `before` and `after` are neighbouring
    /// nodes of the list, or its end.
    #[inline]
    unsafe fn insert_between(
        self,
        tx: &mut Tx<'_>,
        before: Option<Ptr<ForwardNode<T>>>,
        after: Option<Ptr<ForwardNode<T>>>,
        value: T,
    ) -> Result<Ptr<ForwardNode<T>>> {
        let header = self.header;
        // SAFETY: neighbours are live by contract.
        unsafe { touch_any(before) }.or_lost(tx)?;
        // SAFETY: the header is live by contract.
        let node = unsafe { tx.alloc_near(header, ForwardNode { next: after, value })? };
        // SAFETY: live blocks of a held pool by contract. The node is written, and everything else
        // logged, before the first link leads to it.
        unsafe {
            let link = before.map_or(place!(header, first), |before| place!(before, next));
            match (before, after) {
                (Some(_), None) => {
                    log_with(
                        tx,
                        node,
                        &[range(link), span(place!(header, len), place!(header, last))],
                    )?;
                }
                (None, Some(_)) => log_with(tx, node, &[span(link, place!(header, len))])?,
                (None, None) => log_with(tx, node, &[range(header.as_ptr())])?,
                (Some(_), Some(_)) => {
                    log_with(tx, node, &[range(link), range(place!(header, len))])?
                }
            }
            *link = Some(node);
            if after.is_none() {
                (*header.as_ptr()).last = Some(node);
            }
            (*header.as_ptr()).len += 1;
        }
        Ok(node)
    }

    /// Takes out and frees `node`, which follows `before` (`None`: the header).
    ///
    /// # Safety
    /// The header is live and the transaction holds its pool; the nodes are neighbours in the list.
    #[inline]
    unsafe fn remove_after(
        self,
        tx: &mut Tx<'_>,
        before: Option<Ptr<ForwardNode<T>>>,
        node: Ptr<ForwardNode<T>>,
    ) -> Result<T> {
        // SAFETY: passed on.
        unsafe {
            node.touch().or_lost(tx)?;
            let value = range(place!(node, value));
            release::<T, _, _, _>(tx, self.header, (node, value), |tx| {
                self.unlink_after(tx, before, node)
            })
        }
    }

    /// Takes out and frees a node whose value owns nothing.
    ///
    /// # Safety
    /// As [`ForwardList::remove_after`]; the node was touched.
    #[inline]
    unsafe fn unlink_after(
        self,
        tx: &mut Tx<'_>,
        before: Option<Ptr<ForwardNode<T>>>,
        node: Ptr<ForwardNode<T>>,
    ) -> Result<T> {
        let header = self.header;
        // SAFETY: live blocks of a held pool by contract; freed blocks stay as they are until
        // commit, and no link leads to the node after the writes.
        unsafe {
            touch_any(before).or_lost(tx)?;
            let after = (*node.as_ptr()).next;
            let link = before.map_or(place!(header, first), |before| place!(before, next));
            match (before, after) {
                (None, Some(_)) => {
                    log_and_free(tx, header, node, &[span(link, place!(header, len))])?
                }
                (None, None) => log_and_free(tx, header, node, &[range(header.as_ptr())])?,
                (Some(_), Some(_)) => {
                    log_and_free(tx, header, node, &[range(link), range(place!(header, len))])?;
                }
                (Some(_), None) => {
                    let ranges = [range(link), span(place!(header, len), place!(header, last))];
                    log_and_free(tx, header, node, &ranges)?;
                }
            }
            *link = after;
            if after.is_none() {
                (*header.as_ptr()).last = before;
            }
            (*header.as_ptr()).len -= 1;
            Ok((&raw const (*node.as_ptr()).value).read())
        }
    }
}

/// The value of a node.
///
/// # Safety
/// A live node of a pool that the reader holds.
#[inline]
unsafe fn value<T: Persist>(reader: &impl Reader, node: Ptr<ForwardNode<T>>) -> Result<&T> {
    // SAFETY: live by contract; the reader is borrowed as long as the reference.
    unsafe { Ok(&node.follow().or_lost(reader)?.value) }
}

/// The value of a node, logged.
///
/// # Safety
/// A live node of a pool that the transaction holds.
unsafe fn value_mut<'t, T: Persist>(
    tx: &'t mut Tx<'_>,
    node: Ptr<ForwardNode<T>>,
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

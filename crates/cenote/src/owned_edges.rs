//! What a transaction does with owning edges: [`Owned`].
//!
//! Each call logs the edge first, then does what can fail, and puts the edge back if that fails: an
//! error leaves it as it was. A value that owns by several edges is freed in one go that can only
//! abort as a whole ([`half_done`](crate::half_done)).

use crate::error::{Error, Result};
use crate::frees::{Edges, load};
use crate::open_pool::{Pool, PoolInner};
use crate::owned::{Owned, Taken};
use crate::owning_field::{OwningEdge, OwningField};
use crate::persist::Persist;
use crate::ptr::{FieldOffset, Ptr};
use crate::tx::Tx;
use cenote_medium::planted::{Bug, OwnedBug, planted};
use cenote_tx::TxError;

impl<'p> Tx<'p> {
    /// Makes a block with a value, in the pool of `owner`, and has a field of `owner` own it. What
    /// the field owned before is freed, as by [`Tx::free_owned`]. The field is an [`Owned`], and
    /// the value one of its type, whose pointer is returned; or an [`OwnedStr`](crate::OwnedStr)
    /// and a text; or [`OwnedBytes`](crate::OwnedBytes) and bytes.
    ///
    /// # Errors
    /// [`Error::Dangling`] if `owner` is not alive; [`Error::Tx`] or [`Error::NoRoom`] if the pool
    /// or the log is full; [`Error::Store`] if the type has another layout in the store. The field
    /// is as it was then.
    pub fn put_owned<T: Persist, F: OwningField>(
        &mut self,
        owner: Ptr<T>,
        field: FieldOffset<T, F>,
        value: F::Value<'_>,
    ) -> Result<F::Put> {
        let edge = self.edge(owner, field.offset())?;
        F::put_into(self, &edge, value)
    }

    /// As [`Tx::put_owned`], into an edge of a value of a collection.
    ///
    /// # Errors
    /// As [`Tx::put_owned`].
    ///
    /// # Safety
    /// [`Reader::get`](crate::Reader::get) gives `neighbour` in this transaction. `at` is an edge
    /// in a live block of its pool, which was touched.
    #[doc(hidden)]
    pub unsafe fn put_owned_near<N: Persist, F: OwningField>(
        &mut self,
        neighbour: Ptr<N>,
        at: *mut F,
        value: F::Value<'_>,
    ) -> Result<F::Put> {
        // SAFETY: passed on.
        let edge = unsafe { self.edge_near(neighbour, at.cast())? };
        F::put_into(self, &edge, value)
    }

    /// Makes a block, and has an edge own it.
    pub(crate) fn put_into<U: Persist>(
        &mut self,
        edge: &OwningEdge<'p>,
        make: impl FnOnce(&mut Self) -> Result<Ptr<U>>,
    ) -> Result<Ptr<U>> {
        // Freeing takes no space: the list is there before anything owned is.
        self.make_frees(edge.pool)?;
        self.log_words(&[edge.at])?;
        let mark = self.allocated();
        let fresh = make(self)?;
        if let Err(error) = self.replace(edge, fresh.addr()) {
            debug_assert_eq!(self.allocated(), mark + 1);
            return Err(self.give_back_owned(fresh, error));
        }
        self.note_linked();
        Ok(fresh)
    }

    /// Frees the value that a field owns, and all that this owns in turn; whether there was one.
    /// Nothing but pointers that are kept leads there after the commit. Large trees are freed
    /// later: see [the module](crate::owned).
    ///
    /// # Errors
    /// [`Error::Dangling`] if `owner` is not alive; [`Error::Tx`] if this transaction has freed it,
    /// or the log is full. The field is as it was then.
    pub fn free_owned<T: Persist, F: OwningField>(
        &mut self,
        owner: Ptr<T>,
        field: FieldOffset<T, F>,
    ) -> Result<bool> {
        let edge = self.edge(owner, field.offset())?;
        self.empty(&edge)
    }

    /// As [`Tx::free_owned`], of an edge of a value of a collection.
    ///
    /// # Errors
    /// As [`Tx::free_owned`].
    ///
    /// # Safety
    /// As [`Tx::put_owned_near`].
    #[doc(hidden)]
    pub unsafe fn free_owned_near<N: Persist, F: OwningField>(
        &mut self,
        neighbour: Ptr<N>,
        at: *mut F,
    ) -> Result<bool> {
        // SAFETY: passed on.
        let edge = unsafe { self.edge_near(neighbour, at.cast())? };
        self.empty(&edge)
    }

    /// Frees what an edge owns; whether there was something.
    pub(crate) fn empty(&mut self, edge: &OwningEdge<'p>) -> Result<bool> {
        if edge.word == 0 {
            return Ok(false);
        }
        self.log_words(&[edge.at])?;
        self.replace(edge, 0)?;
        Ok(true)
    }

    /// Frees what whole values in a block of a collection own, and empties their edges: before the
    /// collection removes the values, or overwrites them. What it moves out of the block afterwards
    /// owns nothing.
    ///
    /// The steps of it: each edge is logged and emptied, and its block disowned. So no block is
    /// owned and waits. If one fails, some edges may be empty: the caller takes care that the
    /// transaction can only abort then ([`Tx::all_or_abort`]).
    ///
    /// # Errors
    /// As [`Tx::free_owned`].
    ///
    /// # Safety
    /// [`Reader::get`](crate::Reader::get) gives `neighbour` in this transaction. `block` is a live
    /// block of its pool; the range lies in it, and was touched.
    #[doc(hidden)]
    pub unsafe fn free_within<N: Persist>(
        &mut self,
        neighbour: Ptr<N>,
        block: u64,
        (first, len): (*const u8, usize),
    ) -> Result<()> {
        let pool = self.pool_of_live(neighbour)?;
        if planted(Bug::Owned(OwnedBug::EntryKept)) {
            return Ok(());
        }
        let Some(edges) = Edges::of(pool, block)? else { return Ok(()) };
        let range = first.addr() as u64..(first.addr() + len) as u64;
        let (mut number, in_order) = edges.number_at(range.start);
        while let Some(edge) = edges.find(number, |word| word != 0)? {
            if in_order && edge.at >= range.end {
                break;
            }
            number = edge.number + 1;
            if !range.contains(&edge.at) {
                continue;
            }
            if !planted(Bug::Owned(OwnedBug::EntryNotLogged)) {
                self.log_words(&[edge.at])?;
            }
            // SAFETY: logged; the place of an edge of a live value.
            unsafe { self.store_word(edge.at, 0) };
            self.disown(pool, edge.word)?;
        }
        Ok(())
    }

    /// Takes what a field owns out of it, to be put into another field: [`Taken`]. It may be
    /// nothing.
    ///
    /// # Errors
    /// [`Error::Dangling`] if `owner`, or what it owns, is not alive; [`Error::Tx`] if the log is
    /// full. The field is as it was then. An owner that waits to be freed is alive until then; what
    /// its first edge owns may be the rest of the list.
    pub fn take_owned<'t, T: Persist, U: Persist>(
        &'t mut self,
        owner: Ptr<T>,
        field: FieldOffset<T, Owned<U>>,
    ) -> Result<Taken<'t, 'p, U>> {
        let edge = self.edge(owner, field.offset())?;
        if edge.word != 0 {
            if !edge.pool.is_live::<U>(edge.word) {
                return Err(self.dangling::<U>(edge.word));
            }
            self.log_words(&[edge.at])?;
            if !planted(Bug::Owned(OwnedBug::TakenStays)) {
                // SAFETY: logged; the place of an edge of a live value.
                unsafe { self.store_word(edge.at, 0) };
            }
        }
        Ok(Taken::new(self, edge.pool, edge.word))
    }

    /// Puts what was taken out of a field into another one.
    pub(crate) fn put_taken<T: Persist, U: Persist>(
        &mut self,
        owner: Ptr<T>,
        field: FieldOffset<T, Owned<U>>,
        (pool, addr): (&PoolInner, u64),
    ) -> Result<()> {
        let edge = self.edge(owner, field.offset())?;
        if !core::ptr::eq(edge.pool, pool) {
            return Err(Error::OtherPool { at: edge.at, to: addr });
        }
        if addr == 0 && edge.word == 0 {
            return Ok(());
        }
        self.log_words(&[edge.at])?;
        self.replace(&edge, addr)?;
        self.note_linked();
        Ok(())
    }

    /// Stores to an edge that is logged, and disowns what it owned. An error leaves it as it was.
    ///
    /// The store comes first. A program may have put a value under itself, and the edge may be one
    /// of that circle: then it leads to its own block. Without it there is no circle, and what is
    /// disowned is a tree, as everything that waits. Nothing is stored afterwards: the edge may be
    /// one of the list by then.
    fn replace(&mut self, edge: &OwningEdge<'p>, word: u64) -> Result<()> {
        // SAFETY: logged; the place of an edge of a live value.
        unsafe { self.store_word(edge.at, word) };
        if edge.word == 0 || word != 0 && planted(Bug::Owned(OwnedBug::ReplacedKept)) {
            return Ok(());
        }
        let done = self.disown(edge.pool, edge.word);
        if done.is_err() {
            // SAFETY: as above; nothing else has changed.
            unsafe { self.store_word(edge.at, edge.word) };
        }
        done
    }

    /// Frees a value that no edge owns, with all that it owns.
    ///
    /// The steps of it: each edge is logged, its block disowned, and the edge emptied; then the
    /// block is freed. So no block is owned and waits.
    pub(crate) fn free_owner(&mut self, pool: &'p PoolInner, addr: u64) -> Result<()> {
        self.all_or_abort(|tx| {
            if let Some(edges) = Edges::of(pool, addr)?
                && !planted(Bug::Owned(OwnedBug::ChildrenKept))
            {
                let mut from = 0;
                while let Some(edge) = edges.find(from, |word| word != 0)? {
                    tx.log_words(&[edge.at])?;
                    tx.disown(pool, edge.word)?;
                    // SAFETY: logged; the place of an edge of a live value.
                    unsafe { tx.store_word(edge.at, 0) };
                    from = edge.number + 1;
                }
            }
            // SAFETY: a live block of a pool of this transaction, checked by the caller.
            unsafe { tx.free_in(pool, addr) }
        })
    }

    /// # Safety
    /// As [`Tx::put_owned_near`].
    unsafe fn edge_near<N: Persist>(
        &self,
        neighbour: Ptr<N>,
        at: *mut u64,
    ) -> Result<OwningEdge<'p>> {
        let pool = self.pool_of_live(neighbour)?;
        // SAFETY: by contract a word; no thread changes it while the pool is held.
        let word = unsafe { at.read() };
        Ok(OwningEdge { pool, at: at.addr() as u64, word })
    }

    /// The edge at this offset of a value.
    fn edge<T: Persist>(&mut self, owner: Ptr<T>, offset: usize) -> Result<OwningEdge<'p>> {
        let pool =
            self.owner_of::<T>(owner.addr()).ok_or_else(|| self.dangling::<T>(owner.addr()))?;
        if self.raw_mut().has_freed(owner.addr()) {
            // What is put there would have no owner after the commit.
            return Err(TxError::AlreadyFreed { addr: owner.addr() }.into());
        }
        let at = owner.addr() + offset as u64;
        let word = load(pool, at)?;
        Ok(OwningEdge { pool, at, word })
    }
}

impl Pool {
    /// Frees all that waits to be freed because its owner is gone, in short transactions; how many
    /// blocks. See [the module](crate::owned).
    ///
    /// # Errors
    /// As [`Pool::write`]. What was freed before stays so.
    pub fn finish_frees(&self) -> Result<u64> {
        let mut freed = 0;
        loop {
            let done = self.write(|tx| tx.free_some())?;
            freed += done.freed;
            if done.is_empty {
                return Ok(freed);
            }
        }
    }
}

//! [`Owned`], the pointer that owns its block: what frees its value frees the block, too.
//!
//! A [`Ptr`] only refers. An `Owned` is the one owner of a block of an *owned type*, a type with
//! `#[persist(owned)]`. A transaction makes such a block in its place ([`Tx::put_owned`]), takes it
//! out to put it elsewhere ([`Tx::take_owned`]), and frees it with all that it owns
//! ([`Tx::free_owned`]). To free a value that owns, [`Tx::free`] does the same.
//!
//! However large a tree is, these calls take a few steps: nothing leads to the tree after the
//! commit, and its blocks wait to be freed. Transactions that allocate or free do part of that,
//! in proportion; [`Pool::finish_frees`](crate::Pool::finish_frees) does all. It takes no space, so
//! a full pool can be emptied, and none of the program's code: any program goes on where another
//! one ended. A pointer that is kept shows a waiting value until its block is freed.
//!
//! While 510 trees wait, a further one goes behind them: its chain of first edges is walked to the
//! end, which takes 0.35 us a block.
//!
//! ```
//! use cenote::{Owned, Persist, Ptr, Reader, Store, field};
//!
//! #[derive(Persist)]
//! struct List { first: Owned<Node> }
//!
//! #[derive(Persist)]
//! #[persist(owned)]
//! struct Node { value: u64, next: Owned<Node> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let pool = Store::open(directory.path())?.pool("p")?;
//! let list = pool.write(|tx| -> cenote::Result<Ptr<List>> {
//!     let list = tx.alloc(List { first: Owned::EMPTY })?;
//!     for value in 0..3 {
//!         // A node before the others: they are taken out, and put behind it.
//!         let mut rest = tx.take_owned(list, field!(List, first))?;
//!         let node = Node { value, next: Owned::EMPTY };
//!         let node = rest.tx().put_owned(list, field!(List, first), node)?;
//!         rest.put(node, field!(Node, next))?;
//!     }
//!     tx.set_root(list)?;
//!     Ok(list)
//! })?;
//! let view = pool.read()?;
//! let first = view.get(list)?.first.get().expect("three nodes");
//! assert_eq!(view.get(first)?.value, 2);
//! # drop(view);
//! // All nodes go with the edge that owns the first.
//! pool.write(|tx| tx.free_owned(list, field!(List, first)).map(drop))?;
//! pool.finish_frees()?;
//! # assert_eq!(pool.stats()?.blocks, 4, "the list, and the pool's own");
//! # Ok(())
//! # }
//! ```
//!
//! [`OwnedStr`](crate::OwnedStr) and [`OwnedBytes`](crate::OwnedBytes) are owners of texts and
//! bytes.
//!
//! # Why no block has two owners
//!
//! * *An `Owned` in process memory is empty.* It is neither `Copy` nor `Clone`; no call returns
//!   one, nor a `&mut` to a value that has one. Only the calls above change one, in its place.
//! * *A type that owns is not overwritten.* [`Tx::set`] and [`Tx::get_mut`] do not compile for it.
//!   Collections free what a value owns before they overwrite it or move it out, and a store
//!   refuses keys that own.
//! * *Only its owner frees a block.* [`Tx::alloc`] and [`Tx::free`] do not compile for owned types.
//!   They have ids of their own, so a program that calls the type the same and does not say
//!   `owned` has another type.
//! * *What is taken out borrows the transaction* ([`Taken`]), so that none is kept past an abort.
//!
//! ```compile_fail
//! fn is_copied<T: Clone>() {}
//! is_copied::<cenote::Owned<u64>>();
//! ```
//!
//! ```compile_fail
//! # use cenote::{Owned, Persist, Reader, Store, field};
//! # #[derive(Persist)]
//! # #[persist(owned)]
//! # struct Node { next: Owned<Node> }
//! # #[derive(Persist)]
//! # struct List { first: Owned<Node> }
//! # fn main() -> cenote::Result<()> {
//! # let pool = Store::open("/nowhere")?.pool("p")?;
//! # pool.write(|tx| -> cenote::Result<()> {
//! let list = tx.alloc(List { first: Owned::EMPTY })?;
//! let node = tx.put_owned(list, field!(List, first), Node { next: Owned::EMPTY })?;
//! tx.free(node)?; // Beside its owner.
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ```compile_fail
//! # use cenote::{Owned, Persist, Reader, Store, field};
//! # #[derive(Persist)]
//! # #[persist(owned)]
//! # struct Node { next: Owned<Node> }
//! # #[derive(Persist)]
//! # struct List { first: Owned<Node> }
//! # fn main() -> cenote::Result<()> {
//! # let pool = Store::open("/nowhere")?.pool("p")?;
//! # pool.write(|tx| -> cenote::Result<()> {
//! let list = tx.alloc(List { first: Owned::EMPTY })?;
//! tx.set(list, field!(List, first), Owned::EMPTY)?; // What it owned would have no owner.
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! ```compile_fail
//! # use cenote::{Owned, Persist, Reader, Store, field};
//! # #[derive(Persist)]
//! # #[persist(owned)]
//! # struct Node { next: Owned<Node> }
//! # #[derive(Persist)]
//! # struct List { first: Owned<Node> }
//! # fn main() -> cenote::Result<()> {
//! # let pool = Store::open("/nowhere")?.pool("p")?;
//! # pool.write(|tx| -> cenote::Result<()> {
//! let list = tx.alloc(List { first: Owned::EMPTY })?;
//! tx.alloc(Node { next: Owned::EMPTY })?; // Without an owner.
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! The same program compiles with `tx.free(list)` in that line, which frees the nodes, too:
//!
//! ```no_run
//! # use cenote::{Owned, Persist, Reader, Store, field};
//! # #[derive(Persist)]
//! # #[persist(owned)]
//! # struct Node { next: Owned<Node> }
//! # #[derive(Persist)]
//! # struct List { first: Owned<Node> }
//! # fn main() -> cenote::Result<()> {
//! # let pool = Store::open("/nowhere")?.pool("p")?;
//! # pool.write(|tx| -> cenote::Result<()> {
//! let list = tx.alloc(List { first: Owned::EMPTY })?;
//! tx.put_owned(list, field!(List, first), Node { next: Owned::EMPTY })?;
//! tx.free(list)?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! A transaction that forgets a [`Taken`] can only abort. A program can still lose a block, if it
//! puts a [`Taken`] under itself: that is a leak, as any block that no root leads to.

use crate::error::Result;
use crate::open_pool::PoolInner;
use crate::persist::{LayoutBuilder, Persist, applied};
use crate::ptr::{FieldOffset, Ptr};
use crate::tx::Tx;
use cenote_layout::id::TypeId;
use core::fmt;
use core::marker::{PhantomData, PhantomPinned};

/// The owner of a block with a value of type `T`, or empty: 8 bytes. See the [module](self).
#[repr(transparent)]
pub struct Owned<T> {
    word: u64,
    _target: PhantomData<fn() -> T>,
    _pinned: PhantomPinned,
}

const _: () = assert!(size_of::<Owned<u64>>() == 8);

impl<T> Owned<T> {
    /// Owns nothing: the only one that a value can be made with.
    pub const EMPTY: Self = Self { word: 0, _target: PhantomData, _pinned: PhantomPinned };

    /// Whether it owns nothing.
    #[inline]
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.word == 0
    }

    /// The value that it owns, to be read; `None` if it is empty.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<Ptr<T>> {
        // SAFETY: the pointer is followed only through accesses that check it.
        unsafe { Ptr::from_addr(self.word) }
    }
}

impl<T> Default for Owned<T> {
    fn default() -> Self {
        Self::EMPTY
    }
}

impl<T> fmt::Debug for Owned<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(to) => write!(f, "Owned({:#x})", to.addr()),
            None => f.write_str("Owned(empty)"),
        }
    }
}

// SAFETY: a word that the pointer map knows of, as an owning one; any bits are one or are refused
// when followed. Plain data.
unsafe impl<T: Persist> Persist for Owned<T> {
    const TYPE_ID: TypeId = {
        assert!(T::IS_OWNED, "a type whose blocks have owners says so: #[persist(owned)]");
        TypeId::of_name("Owned").apply(T::TYPE_ID.0)
    };
    const BUILT_IN: bool = true;
    const OWNS: bool = true;

    fn type_name() -> String {
        applied("Owned", T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.owning_pointer::<T>(0);
    }
}

/// What was taken out of an [`Owned`], perhaps nothing, until it is put into another one:
/// [`Tx::take_owned`]. It has the transaction meanwhile. Dropped before, it is freed with all that
/// it owns.
#[must_use = "what was taken out is freed unless it is put elsewhere"]
pub struct Taken<'t, 'p, T: Persist> {
    tx: &'t mut Tx<'p>,
    pool: &'p PoolInner,
    /// 0: nothing.
    addr: u64,
    _value: PhantomData<fn() -> T>,
}

impl<'t, 'p, T: Persist> Taken<'t, 'p, T> {
    pub(crate) fn new(tx: &'t mut Tx<'p>, pool: &'p PoolInner, addr: u64) -> Self {
        if addr != 0 {
            // Until it has an owner again, or is freed: one that is forgotten, or that a panic
            // leaves, makes the transaction abort.
            tx.half_done_mut().begin();
        }
        Self { tx, pool, addr, _value: PhantomData }
    }

    /// It has an owner again, or is freed.
    fn end(&mut self) {
        if self.addr != 0 {
            self.tx.half_done_mut().end();
            self.addr = 0;
        }
    }

    /// The value; `None`: nothing was there.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<Ptr<T>> {
        // SAFETY: the pointer is followed only through accesses that check it.
        unsafe { Ptr::from_addr(self.addr) }
    }

    /// The transaction, for other changes.
    #[inline]
    pub fn tx(&mut self) -> &mut Tx<'p> {
        self.tx
    }

    /// Puts it into a field of a value in the same pool. What the field owned is freed. Nothing is
    /// here afterwards.
    ///
    /// # Errors
    /// As [`Tx::free_owned`]; [`Error::OtherPool`](crate::Error::OtherPool) if that value lies in
    /// another pool. It is still here then.
    pub fn put<V: Persist>(&mut self, owner: Ptr<V>, edge: FieldOffset<V, Owned<T>>) -> Result<()> {
        self.tx.put_taken(owner, edge, (self.pool, self.addr))?;
        self.end();
        Ok(())
    }

    /// Frees it now, with all that it owns. Whether there was a value.
    ///
    /// # Errors
    /// As [`Tx::free_owned`]. It is still here then.
    pub fn free(&mut self) -> Result<bool> {
        if self.addr == 0 {
            return Ok(false);
        }
        self.tx.disown(self.pool, self.addr)?;
        self.end();
        Ok(true)
    }
}

impl<T: Persist> Drop for Taken<'_, '_, T> {
    fn drop(&mut self) {
        if self.addr != 0 && !std::thread::panicking() {
            let (pool, addr) = (self.pool, self.addr);
            self.end();
            // If it cannot be freed, the transaction can only abort, and says why.
            let _ = self.tx.all_or_abort(|tx| tx.disown(pool, addr));
        }
    }
}

impl<T: Persist> fmt::Debug for Taken<'_, '_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Taken").field(&self.get()).finish()
    }
}

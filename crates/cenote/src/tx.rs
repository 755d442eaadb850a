//! [`Tx`]: a transaction of safe code.
//!
//! Why this is sound without a borrow checker for persistent memory:
//!
//! * *References are borrowed from the transaction*, shared ones from `&Tx`, exclusive ones from
//!   `&mut Tx`. So while a program can write through one, there is no other.
//! * *A pointer is only an address, and is checked where it is followed*: does a live block of that
//!   type begin there, in a pool that this transaction has locked? A block has one type for as long
//!   as it is allocated, and its place is reused only after a commit has freed it, so what passes
//!   the check is a value of that type. A pointer that was kept too long leads to an error, or to
//!   another live value of the same type, never to anything else.
//! * *That holds after any crash too*: the next opener finds no block allocated that was freed, or
//!   was never committed, although a pointer leads there (`cenote_tx`, "Marks of allocation").

use crate::error::{Error, Result, dangling};
use crate::frames::Covered;
use crate::half_done::HalfDone;
use crate::holder::RelPtr;
use crate::lost::{Faults, Lost};
use crate::names;
use crate::open_pool::{Pool, PoolInner, TypeOf};
use crate::persist::{ArrayOf, Persist};
use crate::ptr::{FieldOffset, Ptr};
use crate::reader::{NamedRoot, Reader, sealed};
use crate::session::refuse_unusable;
use cenote_heap::AllocError;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use cenote_medium::planted::{Bug, planted};
use cenote_tx::{Transaction, TxError};
use core::marker::PhantomData;
use core::ptr::NonNull;

/// A transaction in progress: read and change values of its pools; see [`Pool::write`].
#[derive(Debug)]
pub struct Tx<'p> {
    raw: Transaction<'p>,
    covered: CoveredIn<'p>,
    /// What an iterator could not read: then the transaction aborts.
    faults: Faults,
    half_done: HalfDone,
    /// Blocks that lost their owner in it.
    disowned: u64,
    /// The log is this thread's.
    _not_send: PhantomData<*const ()>,
}

struct CoveredIn<'p>(Covered<'p>);

impl core::fmt::Debug for CoveredIn<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_list().entries(self.0.all().iter().map(|pool| pool.handle.name())).finish()
    }
}

/// Says of a full pool which one it is, and for a value of which type it has no room.
#[cold]
fn no_room(pool: &PoolInner, type_id: TypeId, error: TxError) -> Error {
    match error {
        TxError::Alloc(source @ (AllocError::Full { .. } | AllocError::Waits { .. })) => {
            let (pool, type_name) = (pool.handle.name(), names::type_name(pool, type_id));
            Error::NoRoom { pool: pool.to_string(), type_name, source }
        }
        other => other.into(),
    }
}

impl<'p> Tx<'p> {
    #[inline(always)]
    pub(crate) fn new(raw: Transaction<'p>, covered: Covered<'p>) -> Self {
        let (faults, half_done) = (Faults::default(), HalfDone::default());
        let covered = CoveredIn(covered);
        Self { raw, covered, faults, half_done, disowned: 0, _not_send: PhantomData }
    }

    #[inline]
    pub(crate) fn abort(self) {
        self.raw.abort();
    }

    /// Commits, if all was seen that there was to see, and the store acknowledges it.
    #[inline]
    pub(crate) fn commit(mut self) -> Result<()> {
        let store = &self.covered.0.first().store.store;
        // The store may have been poisoned meanwhile, by the transaction itself when a pool could
        // not grow: nothing is acknowledged then. What is dropped aborts.
        refuse_unusable(store)?;
        if let Some(lost) = self.faults.first()
            && !planted(Bug::LostPageCommitted)
        {
            return Err(self.unreadable(lost));
        }
        self.half_done.refuse()?;
        if self.covered.0.all().iter().any(|pool| pool.frees.is_due()) {
            self.free_in_proportion();
        }
        if let Err(error) = self.raw.commit() {
            // Of a page of the log that is lost the store says which.
            refuse_unusable(store)?;
            return Err(error.into());
        }
        // Marks that it wrote may be of a page that was lost.
        refuse_unusable(store)
    }

    /// The pool of roots that name none.
    pub(crate) fn first_pool(&self) -> &'p PoolInner {
        self.covered.0.first()
    }

    pub(crate) fn raw_mut(&mut self) -> &mut Transaction<'p> {
        &mut self.raw
    }

    /// The transaction's pools.
    pub(crate) fn covered(&self) -> Covered<'p> {
        self.covered.0
    }

    pub(crate) fn disowned_mut(&mut self) -> &mut u64 {
        &mut self.disowned
    }

    pub(crate) fn half_done_mut(&mut self) -> &mut HalfDone {
        &mut self.half_done
    }

    /// The pool of the transaction that has a live block of this type at `addr`.
    #[inline]
    pub(crate) fn owner_of<T: Persist>(&self, addr: u64) -> Option<&'p PoolInner> {
        match self.covered.0 {
            Covered::One(pool) => pool.is_live::<T>(addr).then_some(pool),
            Covered::Many(pools) => owner_among(pools, addr, TypeOf::of::<T>()),
        }
    }

    /// Why none of the transaction's pools has a live block there.
    #[cold]
    pub(crate) fn dangling<T: Persist>(&self, addr: u64) -> Error {
        self.dangling_at(addr, T::type_name)
    }

    #[cold]
    #[inline(never)]
    fn dangling_at(&self, addr: u64, type_name: fn() -> String) -> Error {
        let unknown = self.covered.0.all().iter().find_map(|pool| pool.unknown(addr));
        unknown.unwrap_or_else(|| dangling(addr, type_name))
    }

    pub(crate) fn covered_pool(&self, pool: &Pool) -> Result<&'p PoolInner> {
        self.covered
            .0
            .all()
            .iter()
            .copied()
            .find(|covered| core::ptr::eq(*covered, &*pool.inner))
            .ok_or_else(|| Error::NotInTransaction { pool: pool.inner.handle.name().to_string() })
    }

    /// A mutable reference to the value that a pointer leads to. Logs the whole old value first. To
    /// change one field of a large value, use [`Tx::set`], which logs only the field. A type with a
    /// [`RelPtr`] or an [`Owned`](crate::Owned) in it must not move: for its fields, use
    /// [`Tx::set`] too.
    ///
    /// # Errors
    /// [`Error::Dangling`]; [`Error::Tx`] if the log is full.
    #[inline]
    pub fn get_mut<T: Persist + Unpin>(&mut self, ptr: Ptr<T>) -> Result<&mut T> {
        const { assert!(!T::OWNS, "a value that owns cannot be moved: change its fields") };
        self.owner_of::<T>(ptr.addr()).ok_or_else(|| self.dangling::<T>(ptr.addr()))?;
        // SAFETY: a live block of type `T`, in a mapping.
        unsafe { ptr.touch() }.map_err(|lost| self.unreadable(lost))?;
        // SAFETY: a live block of type `T` in a pool that is locked for writing. The reference
        // borrows the transaction exclusively, so no other reference to any value of its
        // pools exists.
        unsafe {
            self.raw.add(ptr.as_ptr().cast(), size_of::<T>()).map_err(Error::from)?;
            Ok(ptr.as_mut())
        }
    }

    /// Changes one field of a value; only the field is logged.
    ///
    /// ```
    /// # use cenote::{Persist, Reader, Store, field};
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let store = Store::open(dir.path()).unwrap();
    /// # let pool = store.pool("counters").unwrap();
    /// #[derive(Persist)]
    /// struct Counter { hits: u64, name: [u8; 120] }
    ///
    /// # fn main() -> cenote::Result<()> {
    /// # let dir = tempfile::tempdir().unwrap();
    /// # let pool = Store::open(dir.path())?.pool("counters")?;
    /// pool.write(|tx| -> cenote::Result<()> {
    ///     let counter = tx.alloc(Counter { hits: 0, name: [0; 120] })?;
    ///     tx.set(counter, field!(Counter, hits), 7)?;
    ///     assert_eq!(tx.get(counter)?.hits, 7);
    ///     Ok(())
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// As [`Tx::get_mut`].
    #[inline]
    pub fn set<T: Persist, F: Persist>(
        &mut self,
        ptr: Ptr<T>,
        field: FieldOffset<T, F>,
        value: F,
    ) -> Result<()> {
        const { assert!(!F::OWNS, "a value that owns is not overwritten: see `Tx::put_owned`") };
        let pool = self.owner_of::<T>(ptr.addr()).ok_or_else(|| self.dangling::<T>(ptr.addr()))?;
        pool.readable(ptr.addr() + field.offset() as u64, size_of::<F>())?;
        let place = ptr.field(field);
        // SAFETY: as in `get_mut`; the field lies inside the value, and nothing borrowed from the
        // transaction is alive.
        unsafe {
            self.raw.add(place.cast(), size_of::<F>()).map_err(Error::from)?;
            place.write(value);
        }
        Ok(())
    }

    /// Makes a [`RelPtr`] lead to a value of its own pool, or to nothing; only its word is logged.
    ///
    /// # Errors
    /// [`Error::Dangling`] if one of the values is not alive in the pools of this transaction;
    /// [`Error::OtherPool`] if they are not in one pool; [`Error::Tx`] if the log is full.
    #[inline]
    pub fn set_rel<T: Persist, U: Persist>(
        &mut self,
        ptr: Ptr<T>,
        field: FieldOffset<T, RelPtr<U>>,
        to: Option<Ptr<U>>,
    ) -> Result<()> {
        self.set_rel_at(ptr, field.offset(), to)
    }

    /// As [`Tx::set_rel`], for a pointer that no [`FieldOffset`] leads to: one in a variant of an
    /// enum, say. `find` returns a reference to the pointer inside the value.
    ///
    /// # Errors
    /// As [`Tx::set_rel`]; [`Error::OutOfBounds`] if what `find` returns is not inside the value.
    pub fn set_rel_in<T: Persist, U: Persist>(
        &mut self,
        ptr: Ptr<T>,
        find: impl FnOnce(&T) -> Option<&RelPtr<U>>,
        to: Option<Ptr<U>>,
    ) -> Result<()> {
        let len = size_of::<T>() as u64;
        let outside = Error::OutOfBounds { index: len, len };
        let Some(found) = find(self.get(ptr)?) else { return Err(outside) };
        let offset = core::ptr::from_ref(found).addr().wrapping_sub(ptr.addr() as usize);
        if offset.checked_add(size_of::<RelPtr<U>>()).is_none_or(|end| end > size_of::<T>()) {
            return Err(outside);
        }
        self.set_rel_at(ptr, offset, to)
    }

    /// `offset`: where in the value the pointer is.
    fn set_rel_at<T: Persist, U: Persist>(
        &mut self,
        ptr: Ptr<T>,
        offset: usize,
        to: Option<Ptr<U>>,
    ) -> Result<()> {
        let owner = self.owner_of::<T>(ptr.addr()).ok_or_else(|| self.dangling::<T>(ptr.addr()))?;
        let at = ptr.addr() + offset as u64;
        owner.readable(at, size_of::<u64>())?;
        let word = match to {
            None => 0,
            Some(to) => {
                let other =
                    self.owner_of::<U>(to.addr()).ok_or_else(|| self.dangling::<U>(to.addr()))?;
                core::ptr::eq(owner, other)
                    .then(|| cenote_layout::pointer::encode_relative(at, to.addr()))
                    .flatten()
                    .ok_or(Error::OtherPool { at, to: to.addr() })?
            }
        };
        let place = ptr.as_ptr().wrapping_byte_add(offset).cast::<u64>();
        // SAFETY: as in `get_mut`; there is a `RelPtr`, which is a word, at this offset of the live
        // value: a field offset says so, or a reference to it was there. Nothing
        // borrowed from the transaction is alive.
        unsafe {
            self.raw.add(place.cast(), size_of::<u64>()).map_err(Error::from)?;
            place.write(word);
        }
        Ok(())
    }

    /// Puts a value into the transaction's first pool. It becomes part of the pool with the commit;
    /// attach it to something that a root leads to, else it is a leak.
    ///
    /// # Errors
    /// [`Error::Tx`] if the pool or the log is full; [`Error::Store`] if the type has another
    /// layout in the store.
    #[inline]
    pub fn alloc<T: Persist>(&mut self, value: T) -> Result<Ptr<T>> {
        const { assert!(!T::IS_OWNED, "its blocks have an owner: use `Tx::put_owned`") };
        self.alloc_covered(self.covered.0.first(), value)
    }

    /// As [`Tx::alloc`], in a pool of choice.
    ///
    /// # Errors
    /// As [`Tx::alloc`]; [`Error::NotInTransaction`].
    pub fn alloc_in<T: Persist>(&mut self, pool: &Pool, value: T) -> Result<Ptr<T>> {
        const { assert!(!T::IS_OWNED, "its blocks have an owner: use `Tx::put_owned`") };
        self.alloc_covered(self.covered_pool(pool)?, value)
    }

    /// As [`Tx::alloc`], in the pool that `neighbour` lies in: for structures that stay in one
    /// pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`]; [`Error::Dangling`] if `neighbour` is not alive.
    #[inline]
    pub fn alloc_beside<N: Persist, T: Persist>(
        &mut self,
        neighbour: Ptr<N>,
        value: T,
    ) -> Result<Ptr<T>> {
        const { assert!(!T::IS_OWNED, "its blocks have an owner: use `Tx::put_owned`") };
        let pool = self
            .owner_of::<N>(neighbour.addr())
            .ok_or_else(|| self.dangling::<N>(neighbour.addr()))?;
        self.alloc_covered(pool, value)
    }

    /// The pool of a value that is known to be alive in this transaction.
    #[inline]
    pub(crate) fn pool_of_live<N: Persist>(&self, live: Ptr<N>) -> Result<&'p PoolInner> {
        match self.covered.0 {
            Covered::One(pool) => Ok(pool),
            Covered::Many(_) => {
                self.owner_of::<N>(live.addr()).ok_or_else(|| self.dangling::<N>(live.addr()))
            }
        }
    }

    /// As [`Tx::alloc_beside`], for collections, which have just had `neighbour` checked.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    ///
    /// # Safety
    /// [`Reader::get`] gives `neighbour` in this transaction.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn alloc_near<N: Persist, T: Persist>(
        &mut self,
        neighbour: Ptr<N>,
        value: T,
    ) -> Result<Ptr<T>> {
        let pool = self.pool_of_live(neighbour)?;
        self.alloc_covered(pool, value)
    }

    /// As [`Tx::free`], for collections, whose links lead to live nodes in the pool of their
    /// header.
    ///
    /// # Errors
    /// [`Error::Tx`] if the log is full.
    ///
    /// # Safety
    /// [`Reader::get`] gives `neighbour` and `ptr` in this transaction; both lie in one pool.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn free_near<N: Persist, T: Persist>(
        &mut self,
        neighbour: Ptr<N>,
        ptr: Ptr<T>,
    ) -> Result<()> {
        let pool = self.pool_of_live(neighbour)?;
        // SAFETY: handed on to the caller.
        unsafe { self.free_in(pool, ptr.addr()) }
    }

    /// As [`Tx::free_near`], and logs ranges with it, with one fence for both.
    ///
    /// # Errors
    /// [`Error::Tx`] if the log is full; nothing is freed then.
    ///
    /// # Safety
    /// As [`Tx::free_near`]; the ranges lie in live blocks of pools that the transaction holds.
    #[doc(hidden)]
    #[inline]
    pub unsafe fn free_near_logged<N: Persist, T: Persist>(
        &mut self,
        neighbour: Ptr<N>,
        ptr: Ptr<T>,
        ranges: &[(*const u8, usize)],
    ) -> Result<()> {
        let pool = self.pool_of_live(neighbour)?;
        // SAFETY: handed on to the caller.
        unsafe { self.free_logged_in(pool, ptr.addr(), ranges) }
    }

    // The functions below are compiled once, and not in each program for each type: blocks and
    // ranges are bytes to them.

    /// As [`Tx::free`].
    pub(crate) fn free_of(&mut self, addr: u64, of: &TypeOf) -> Result<()> {
        let pools = self.covered.0;
        match owner_among(pools.all(), addr, of) {
            // SAFETY: a live block of the type, in a pool of this transaction.
            Some(pool) => unsafe { self.free_in(pool, addr) },
            None => Err(self.dangling_at(addr, of.name)),
        }
    }

    /// Frees a block when the transaction commits.
    ///
    /// # Safety
    /// The pool is one of the transaction's. At `addr` begins a live block of it, to which nothing
    /// leads but pointers that are checked, or nodes that this operation takes out.
    #[inline(never)]
    pub(crate) unsafe fn free_in(&mut self, pool: &'p PoolInner, addr: u64) -> Result<()> {
        // SAFETY: the heap outlives the transaction, and its pool is locked for writing. A pointer
        // that is still kept leads to an error, or to another value of its type.
        Ok(unsafe { self.raw.free_inline(&pool.heap, addr) }?)
    }

    /// As [`Tx::free_in`], and logs ranges with it.
    ///
    /// # Safety
    /// As [`Tx::free_in`]; the ranges lie in live blocks of pools that the transaction holds.
    #[inline(never)]
    pub(crate) unsafe fn free_logged_in(
        &mut self,
        pool: &'p PoolInner,
        addr: u64,
        ranges: &[(*const u8, usize)],
    ) -> Result<()> {
        // SAFETY: as in `free_in`; the ranges are the caller's.
        Ok(unsafe { self.raw.add_all_and_free(ranges, &pool.heap, addr) }?)
    }

    /// Takes a block of `size` bytes from a pool of the transaction, and makes sure that it can be
    /// written. No value is in it yet.
    #[inline(never)]
    pub(crate) fn alloc_block(
        &mut self,
        pool: &'p PoolInner,
        (size, align): (u64, u64),
        type_id: TypeId,
    ) -> Result<NonNull<u8>> {
        // SAFETY: the heap is of a pool that is locked for writing and outlives the transaction.
        // The block is this transaction's alone, of `size` bytes at least.
        unsafe {
            let place = self.raw.alloc(&pool.heap, size, align, type_id);
            let place = place.map_err(|error| no_room(pool, type_id, error))?;
            self.claim(place.as_ptr().addr(), size as usize)?;
            Ok(place)
        }
    }

    /// That a block that was just allocated can be written. If not, the transaction aborts with any
    /// result of its body: commit would read the block.
    ///
    /// # Safety
    /// As [`crate::lost::claim`].
    #[inline(always)]
    pub(crate) unsafe fn claim(&self, addr: usize, len: usize) -> Result<()> {
        // SAFETY: handed on to the caller.
        unsafe { crate::lost::claim(addr, len) }.map_err(|lost| {
            self.faults.note(lost);
            self.unreadable(lost)
        })
    }

    #[inline]
    pub(crate) fn alloc_covered<T: Persist>(
        &mut self,
        pool: &'p PoolInner,
        value: T,
    ) -> Result<Ptr<T>> {
        pool.know::<T>()?;
        // A value without bytes has a place of its own all the same: pointers tell it from others.
        let layout = ((size_of::<T>() as u64).max(1), align_of::<T>() as u64);
        let place = self.alloc_block(pool, layout, T::TYPE_ID)?.cast::<T>();
        // SAFETY: a fresh block of this size and alignment, of this transaction alone, which can be
        // written.
        unsafe {
            place.write(value);
            Ok(Ptr::from_non_null(place))
        }
    }

    /// Frees a value when the transaction commits. Until then the program can read it. Values that
    /// it owns ([`Owned`](crate::Owned)) are freed, too; others that it points to are not.
    ///
    /// Remaining pointers to the value dangle, and following one is an error. At `power`, a free
    /// before other changes of the transaction saves a fence at commit.
    ///
    /// # Errors
    /// [`Error::Dangling`]; [`Error::Tx`] if this transaction has freed it already, or the log is
    /// full.
    #[inline]
    pub fn free<T: Persist>(&mut self, ptr: Ptr<T>) -> Result<()> {
        const { assert!(!T::IS_OWNED, "its owner frees it: use `Tx::free_owned`") };
        let pool = self.owner_of::<T>(ptr.addr()).ok_or_else(|| self.dangling::<T>(ptr.addr()))?;
        if T::OWNS {
            return self.free_owner(pool, ptr.addr());
        }
        // SAFETY: a live block of the type, in a pool of this transaction.
        unsafe { self.free_in(pool, ptr.addr()) }
    }

    /// The raw transaction, for collections: log several places with one fence, write them with
    /// plain stores.
    ///
    /// # Safety
    /// Written ranges were logged before; values that references lead to stay valid; the
    /// transaction is not moved out or ended.
    #[inline]
    #[must_use]
    pub unsafe fn raw(&mut self) -> &mut Transaction<'p> {
        &mut self.raw
    }

    /// Whether two values lie in one pool.
    ///
    /// # Errors
    /// [`Error::Dangling`] if one of them is not alive.
    pub fn in_one_pool<A: Persist, B: Persist>(&self, a: Ptr<A>, b: Ptr<B>) -> Result<bool> {
        let first = self.owner_of::<A>(a.addr()).ok_or_else(|| self.dangling::<A>(a.addr()))?;
        let second = self.owner_of::<B>(b.addr()).ok_or_else(|| self.dangling::<B>(b.addr()))?;
        Ok(core::ptr::eq(first, second))
    }
}

/// The first of several pools that has a live block of a type at `addr`.
#[inline(never)]
fn owner_among<'p>(pools: &[&'p PoolInner], addr: u64, of: &TypeOf) -> Option<&'p PoolInner> {
    pools.iter().copied().find(|pool| pool.is_live_of(addr, of))
}

impl sealed::Sealed for Tx<'_> {
    fn region_of(&self, addr: u64) -> Option<RegionAddress> {
        self.covered.0.first().store.store.region_of(addr)
    }

    fn region_address(&self, region: &RegionAddress) -> Option<u64> {
        self.covered.0.first().store.store.region_address(region)
    }
}

impl Reader for Tx<'_> {
    #[inline]
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T> {
        self.owner_of::<T>(ptr.addr()).ok_or_else(|| self.dangling::<T>(ptr.addr()))?;
        // SAFETY: a live block of type `T`, in a mapping.
        unsafe { ptr.touch() }.map_err(|lost| self.unreadable(lost))?;
        // SAFETY: a live block of type `T` in a pool that is locked by this transaction, which is
        // borrowed shared as long as the reference lives, so nothing is written.
        Ok(unsafe { ptr.as_ref() })
    }

    #[inline]
    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<ArrayOf<T>>, len: usize) -> Result<&[T]> {
        let pool = self
            .owner_of::<ArrayOf<T>>(ptr.addr())
            .ok_or_else(|| self.dangling::<ArrayOf<T>>(ptr.addr()))?;
        // SAFETY: the transaction is borrowed shared, so nothing is written; written values by
        // contract.
        unsafe { pool.array(ptr, len) }
    }

    #[inline]
    fn faults(&self) -> &Faults {
        &self.faults
    }

    #[cold]
    fn unreadable(&self, lost: Lost) -> Error {
        let first = self.covered.0.first();
        let owner = first.store.store.puddle_of(lost.0).map(cenote_store::Puddle::pool);
        let owns = |pool: &&&PoolInner| Some(pool.handle.id()) == owner;
        let pool = self.covered.0.all().iter().find(owns).map_or(first, |pool| *pool);
        pool.handle.unreadable(lost.0).into()
    }

    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        names::root(self.covered.0.first(), index)
    }

    fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>> {
        names::get(self, self.covered.0.first(), name)
    }

    fn named_roots(&self) -> Result<Vec<NamedRoot>> {
        names::list(self, self.covered.0.first())
    }
}

//! [`Pool`]: a named heap of values with roots; [`View`]: reading it.

use crate::error::{Error, Result};
use crate::local::VIEWS;
use crate::persist::{DescribedType, Persist, TypeSetError, types_of};
use crate::ptr::Ptr;
use crate::reader::{Reader, sealed};
use crate::store::Inner;
use crate::tx::{Covered, Tx};
use cenote_heap::{Heap, HeapReport, HeapStats, RecoveryReport, TracedHeap};
use cenote_layout::id::{PoolId, TypeId};
use cenote_store::{Access, PoolHandle};
use core::marker::PhantomData;
use parking_lot::{RwLock, RwLockReadGuard};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::sync::atomic::{AtomicU64, Ordering};

/// A pool, open in this process. Handles are cheap to clone; the pool is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) inner: Arc<PoolInner>,
}

/// How many types a pool remembers as known to its store, by the low bits of their ids.
const KNOWN_TYPES: usize = 64;

pub(crate) struct PoolInner {
    pub(crate) heap: TracedHeap,
    pub(crate) handle: PoolHandle,
    /// Writers exclude everybody; readers exclude writers.
    pub(crate) lock: RwLock<()>,
    known: [AtomicU64; KNOWN_TYPES],
    /// Last: the store stays open as long as its pools.
    pub(crate) store: Arc<Inner>,
}

impl core::fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pool").field("name", &self.handle.name()).finish_non_exhaustive()
    }
}

thread_local! {
    /// Pools that this thread has views of, once per view. Looked at only where [`VIEWS`] is not zero.
    static VIEWED: RefCell<Vec<*const PoolInner>> = const { RefCell::new(Vec::new()) };
}

impl PoolInner {
    pub(crate) fn open(store: Arc<Inner>, name: &str, access: Access) -> Result<Self> {
        let handle = store.store.open_pool(name, access)?;
        let heap = TracedHeap::open(handle.clone())?;
        let pool = Self { heap, handle, lock: RwLock::new(()), known: [const { AtomicU64::new(0) }; KNOWN_TYPES], store };
        if pool.handle.trace_due() {
            if !pool.handle.is_writable() {
                return Err(Error::TraceDue { pool: name.to_string() });
            }
            pool.trace()?;
        }
        Ok(pool)
    }

    /// Computes which blocks are allocated again, and remembers that this is done.
    fn trace(&self) -> Result<RecoveryReport> {
        let report = self.heap.recover(&StoreTypes(&self.store.store), &[])?;
        self.handle.trace_done()?;
        Ok(report)
    }

    pub(crate) fn is_viewed_here(&self) -> bool {
        VIEWS.with(|views| views.get() != 0)
            && VIEWED.with(|viewed| viewed.borrow().contains(&core::ptr::from_ref(self)))
    }

    /// Whether the process is the one that opened the store.
    #[inline]
    pub(crate) fn refuse_forked(&self) -> Result<()> {
        self.store.refuse_forked()
    }

    /// Makes `T`, and every type that can be reached from it, known to the store, and refuses what has another layout there.
    #[inline]
    pub(crate) fn know<T: Persist>(&self) -> Result<()> {
        self.know_as::<T>(T::TYPE_ID)
    }

    #[inline]
    fn know_as<T: Persist>(&self, id: TypeId) -> Result<()> {
        let place = &self.known[id.0 as usize % KNOWN_TYPES];
        if place.load(Ordering::Relaxed) == id.0 { Ok(()) } else { self.learn::<T>(place, id) }
    }

    #[cold]
    fn learn<T: Persist>(&self, place: &AtomicU64, id: TypeId) -> Result<()> {
        for described in types_of::<T>()? {
            one_rust_type(&described)?;
            if self.store.store.type_record(described.record.id).as_deref() != Some(&described.record) {
                self.store.store.register_type(&described.record)?;
            }
        }
        place.store(id.0, Ordering::Relaxed);
        Ok(())
    }

    /// Whether `addr` is a live block of this type in this pool.
    #[inline]
    pub(crate) fn is_live(&self, addr: u64, type_id: TypeId) -> bool {
        self.heap.is_live(addr, type_id)
    }

    pub(crate) fn root<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        let entry = self.heap.root(index)?;
        if entry.addr == 0 {
            return Ok(None);
        }
        if entry.type_id != T::TYPE_ID {
            return Err(Error::RootType {
                pool: self.handle.name().to_string(),
                index,
                found: entry.type_id,
                expected: T::TYPE_ID,
                expected_name: T::type_name(),
            });
        }
        self.know::<T>()?;
        if !self.is_live(entry.addr, T::TYPE_ID) {
            return Err(dangling::<T>(entry.addr));
        }
        // SAFETY: a live block of type `T`, whose layout the store has just confirmed.
        Ok(unsafe { Ptr::from_addr(entry.addr) })
    }
}

/// Which Rust type each type id of this program stands for. Two types with one id would be taken for each other, so the second is refused.
fn one_rust_type(described: &DescribedType) -> Result<()> {
    type Known = BTreeMap<TypeId, (core::any::TypeId, &'static str)>;
    static KNOWN: Mutex<Known> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let (rust_type, first) =
        *known.entry(described.record.id).or_insert((described.rust_type, described.rust_name));
    if rust_type != described.rust_type {
        let (second, name) = (described.rust_name, described.record.name.clone());
        return Err(TypeSetError::SameName { first, second, name }.into());
    }
    Ok(())
}

pub(crate) fn dangling<T: Persist>(addr: u64) -> Error {
    Error::Dangling { addr, type_name: T::type_name() }
}

/// Pointer maps from the store's registry.
pub(crate) struct StoreTypes<'a>(pub(crate) &'a cenote_store::Store);

impl cenote_heap::Types for StoreTypes<'_> {
    fn record(&self, id: TypeId) -> Option<Arc<cenote_layout::types::TypeRecord>> {
        self.0.type_record(id)
    }
}

impl Pool {
    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.handle.name()
    }

    /// The pool's number in its store.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.inner.handle.id()
    }

    /// Runs a transaction. All of its changes happen, or none: none if `body` returns an error or panics, or the process dies in it. On return of `Ok` they are
    /// durable at the store's level.
    ///
    /// Waits for views and transactions of other threads on this pool.
    ///
    /// # Errors
    /// What `body` returns; [`Error::WouldDeadlock`] if this thread holds a view or a transaction of the pool; [`Error::Store`] if the pool is read-only, the
    /// store poisoned, or the process a fork; [`Error::Tx`] if the log cannot take the commit.
    #[inline]
    pub fn write<R, E: From<Error>>(&self, body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        Tx::run(Covered::One(&self.inner), body)
    }

    /// A view: the pool as it is, unchanged as long as the view lives. Waits for a transaction of another thread on this pool.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction of this thread on this pool: read through the transaction; [`Error::Store`] in a forked process.
    pub fn read(&self) -> Result<View<'_>> {
        self.inner.refuse_forked()?;
        if crate::tx::covers_here(&self.inner) {
            return Err(Error::WouldDeadlock { pool: self.name().to_string(), by: "a transaction" });
        }
        // Where this thread has a view already, a waiting writer must not keep it from a second one: it would wait for itself.
        let recursive = self.inner.is_viewed_here();
        let guard = if recursive { self.inner.lock.read_recursive() } else { self.inner.lock.read() };
        VIEWS.with(|views| views.set(views.get() + 1));
        VIEWED.with(|viewed| viewed.borrow_mut().push(&raw const *self.inner));
        Ok(View { pool: &self.inner, _guard: guard, _not_send: PhantomData })
    }

    /// Whether the pool was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.inner.handle.is_writable()
    }

    /// Counts of the pool's heap.
    ///
    /// # Errors
    /// [`Error::HeapRecover`] if a puddle cannot be mapped.
    pub fn stats(&self) -> Result<HeapStats> {
        Ok(self.inner.heap.stats()?)
    }

    /// Looks for damage, leaks and dangling pointers, and changes nothing. Waits for transactions; views may go on.
    ///
    /// # Errors
    /// [`Error::HeapRecover`] if a puddle cannot be mapped.
    pub fn check(&self) -> Result<HeapReport> {
        let _view = self.read()?;
        Ok(self.inner.heap.check(Some(&StoreTypes(&self.inner.store.store)))?)
    }

    /// Gives back what is allocated but cannot be reached from any root: blocks that a raw allocation never attached.
    /// Waits for views and transactions.
    ///
    /// # Errors
    /// [`Error::HeapRecover`]; [`Error::WouldDeadlock`].
    pub fn collect(&self) -> Result<RecoveryReport> {
        self.inner.refuse_forked()?;
        if crate::tx::covers_here(&self.inner) || self.inner.is_viewed_here() {
            return Err(Error::WouldDeadlock { pool: self.name().to_string(), by: "a view or a transaction" });
        }
        let _guard = self.inner.lock.write();
        self.inner.trace()
    }

    /// The heap, for tools and for the raw interface.
    #[must_use]
    pub fn heap(&self) -> &dyn Heap {
        &self.inner.heap
    }
}

/// A pool as it is, read-only; see [`Pool::read`].
#[derive(Debug)]
pub struct View<'p> {
    pool: &'p PoolInner,
    _guard: RwLockReadGuard<'p, ()>,
    /// Counted in a thread-local.
    _not_send: PhantomData<*const ()>,
}

impl Drop for View<'_> {
    fn drop(&mut self) {
        VIEWS.with(|views| views.set(views.get() - 1));
        let this = core::ptr::from_ref(self.pool);
        VIEWED.with(|viewed| {
            let mut viewed = viewed.borrow_mut();
            if let Some(at) = viewed.iter().rposition(|&pool| pool == this) {
                viewed.swap_remove(at);
            }
        });
    }
}

impl sealed::Sealed for View<'_> {}

impl Reader for View<'_> {
    #[inline]
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T> {
        if !self.pool.is_live(ptr.addr(), T::TYPE_ID) {
            return Err(dangling::<T>(ptr.addr()));
        }
        // SAFETY: a live block of type `T`; nobody writes to the pool while the view's lock is held, which outlives the reference.
        Ok(unsafe { ptr.as_ref() })
    }

    #[inline]
    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<crate::persist::ArrayOf<T>>, len: usize) -> Result<&[T]> {
        // SAFETY: the view's lock keeps writers out for as long as the slice lives; written values by contract.
        unsafe { array(self.pool, ptr, len) }
    }

    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        self.pool.root(index)
    }
}

/// The first `len` values of an array block, checked.
///
/// # Safety
/// Nobody writes to the array while the slice lives, and its first `len` values have been written.
pub(crate) unsafe fn array<'a, T: Persist>(
    pool: &PoolInner,
    ptr: Ptr<crate::persist::ArrayOf<T>>,
    len: usize,
) -> Result<&'a [T]> {
    use crate::persist::ArrayOf;
    let block = match pool.heap.find(ptr.addr()) {
        Ok(block) if block.type_id == ArrayOf::<T>::TYPE_ID => block,
        _ => return Err(dangling::<ArrayOf<T>>(ptr.addr())),
    };
    let room = if size_of::<T>() == 0 { u64::MAX } else { block.size / size_of::<T>() as u64 };
    if len as u64 > room {
        return Err(Error::OutOfBounds { index: len as u64, len: room });
    }
    // SAFETY: a live block with room for `len` values, written by contract; mapped as long as the pool is open.
    Ok(unsafe { core::slice::from_raw_parts(ptr.as_ptr().cast::<T>(), len) })
}

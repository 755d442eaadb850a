//! A pool that is open in this process: the handle [`Pool`], and what all its handles share.

use crate::checking::{drop_later, is_within};
use crate::copied;
use crate::error::dangling;
use crate::error::{Error, Result};
use crate::frees_hint::FreesHint;
use crate::known::{KnownType, known_types};
use crate::lost::touch;
use crate::one_type::one_rust_type;
use crate::persist::{ArrayOf, Persist, Reach, TypeId, described, types_from};
use crate::protected_pool::ProtectedPool;
use crate::ptr::Ptr;
use crate::readers::{Readers, shares};
use crate::registry::StoreTypes;
use crate::session::Inner;
use cenote_heap::{
    Finding, Heap, HeapReport, Inspect as _, PoolBacking, PoolHeap, RecoverError, TraceOptions,
    ValueReport,
};
use cenote_layout::heap::RootEntry;
use cenote_layout::values::{InvalidValue, Rule, Values, is_link};
use cenote_medium::planted::{Bug, planted};
use cenote_store::{Access, AtRest, Damage, DamagePolicy, Keyring, PoolHandle, StoreError};
use cenote_sys::peek;
use core::mem::ManuallyDrop;
use core::ops::{Deref, DerefMut};
use parking_lot::RwLock;
use std::collections::HashSet;
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// A pool, open in this process. Handles are cheap to clone; the pool is closed when the last one
/// is dropped.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) inner: Arc<PoolInner>,
}

impl Drop for Pool {
    /// In a forked child nothing of the pool is dropped: dropping takes locks, which threads of the
    /// parent may have had when it forked, and gives back what is the parent's.
    ///
    /// Nor in code that the store calls with locks that closing takes: then it is the end of that
    /// call that drops.
    fn drop(&mut self) {
        if self.inner.refuse_forked().is_err() {
            core::mem::forget(Arc::clone(&self.inner));
        } else if is_within(&self.inner.store) && !planted(Bug::ClosedWithin) {
            drop_later(Box::new(Self { inner: Arc::clone(&self.inner) }));
        }
    }
}

/// What a pool asks of a type of this program, for code that all types share.
pub(crate) struct TypeOf {
    id: TypeId,
    rust_type: core::any::TypeId,
    pub(crate) name: fn() -> String,
    described: Reach,
}

impl TypeOf {
    #[inline(always)]
    pub(crate) const fn of<T: Persist>() -> &'static Self {
        const {
            &Self {
                id: T::TYPE_ID,
                rust_type: core::any::TypeId::of::<T>(),
                name: T::type_name,
                described: described::<T>,
            }
        }
    }
}

/// Whether the type that was learnt last in a place of [`PoolParts::known`] is this one.
#[inline(always)]
fn is_known(place: &AtomicPtr<KnownType>, rust_type: core::any::TypeId) -> bool {
    // SAFETY: null, or a known type, which is never freed.
    let known = unsafe { place.load(Ordering::Acquire).as_ref() };
    known.is_some_and(|known| known.rust_type == rust_type)
}

/// How many types a pool finds again at once, by the low bits of their ids.
const KNOWN_TYPES: usize = 64;

/// A pool while it is open.
///
/// It is closed when the last handle is dropped, with one exception: a transaction that `exit`
/// left. `exit` runs the destructors of its thread's variables, and one of them may drop the last
/// handle while the thread is within [`Pool::write`], whose stack is never unwound. Then half a
/// transaction is in memory. Closing would show it to the next opener, and call it committed at the
/// end. So all parts stay as they are: the heap is not opened again, and the store is not closed.
/// The next process rolls back.
pub(crate) struct PoolInner(ManuallyDrop<PoolParts>);

pub(crate) struct PoolParts {
    pub(crate) heap: PoolHeap,
    /// After the heap, which has the data protected.
    pub(crate) protected: ProtectedPool,
    pub(crate) handle: PoolHandle,
    /// Writers exclude all threads; readers exclude writers.
    pub(crate) lock: RwLock<()>,
    /// Where other processes write too: see [`crate::process_lock`].
    pub(crate) readers: Readers,
    /// Types of this program that the store agrees with; null or a [`KnownType`] that stays for
    /// good. Types, not ids: two types may have one id.
    known: [AtomicPtr<KnownType>; KNOWN_TYPES],
    /// Zero: the store and this program agree about all types that both know.
    unsettled: Arc<AtomicU64>,
    /// All of them, for those that share a place.
    known_all: RwLock<HashSet<core::any::TypeId>>,
    /// Why values may not be what transactions made them, for which no check answers: then none is
    /// shown.
    doubt: Option<Doubt>,
    /// Whether safe code may change it: it is open for writing, and there is no doubt.
    pub(crate) changeable: bool,
    /// It is protected at rest: its transactions are in logs without files.
    pub(crate) hidden: bool,
    pub(crate) frees: FreesHint,
    /// How many want it psynced before a transaction is acknowledged.
    pub(crate) psync_on_commit: AtomicU32,
    /// What was asked for; a policy may have given less.
    pub(crate) wanted: Access,
    /// After heap and handle: they are gone when the list of open pools hears of it. `None`: the
    /// pool is in no list.
    listed: Option<Box<dyn Listing>>,
    /// Keeps this memory as long as the parts are not dropped. A thread that left a transaction
    /// still knows its pools by their places.
    this: Weak<PoolInner>,
    /// Last: the store stays open as long as its pools.
    pub(crate) store: Arc<Inner>,
}

/// Why the values of a pool cannot be believed. Safe collections follow links without a check,
/// because transactions keep their invariants whole; a transaction that was torn, or a puddle that
/// is gone, breaks them.
#[derive(Debug)]
pub(crate) enum Doubt {
    /// Power failed while it was written at a level that does not cover that.
    PowerLoss,
    /// See [`PoolHandle::is_torn`].
    Torn,
    /// See [`PoolHandle::doubts`].
    Damage(Vec<Damage>),
    /// Something is damaged, and bytes are no value of their type. How many, and the first.
    Values(u64, Vec<InvalidValue>),
}

/// The place of a pool in a list of open pools. Dropped after the pool's heap and its lease.
pub(crate) trait Listing: Send + Sync {
    /// The last handle is gone; nothing of the pool is dropped yet.
    fn closing(&self, pool: &PoolInner);
}

/// Hears of pools that are opened and closed.
pub(crate) trait PoolWatcher: Send + Sync {
    /// A pool was opened, and no caller has it yet. The list of open pools is locked.
    fn opened(&self, pool: &PoolInner) {
        let _ = pool;
    }

    /// A pool was opened, and the list of open pools is free.
    fn listed(&self, store: &Arc<Inner>, pool: &PoolInner) {
        let _ = (store, pool);
    }

    /// The last handle of a pool is gone; nothing of the pool is dropped yet.
    fn closing(&self, pool: &PoolInner) {
        let _ = pool;
    }
}

/// The pools that are open in this process, by name.
pub(crate) type OpenList = Vec<(String, Weak<PoolInner>)>;

impl Deref for PoolInner {
    type Target = PoolParts;

    #[inline(always)]
    fn deref(&self) -> &PoolParts {
        &self.0
    }
}

impl DerefMut for PoolInner {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut PoolParts {
        &mut self.0
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        // In a forked child no thread would let go of the turnstile.
        if self.refuse_forked().is_ok() {
            if let Some(listed) = &self.listed {
                listed.closing(self);
            }
            // No handle is left, so no thread is coming back to unlock it.
            if self.lock.is_locked_exclusive() && !planted(Bug::LeftTransactionClosed) {
                // Openers of the pool do not wait. They find its heap in use.
                self.listed = None;
                return;
            }
        }
        // SAFETY: this is the only place that drops the parts, and nothing uses them afterwards.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}

impl core::fmt::Debug for PoolInner {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("Pool").field("name", &self.handle.name()).finish_non_exhaustive()
    }
}

impl PoolInner {
    pub(crate) fn is_named(&self, name: &str) -> bool {
        *self.handle.name() == *name
    }

    pub(crate) fn open(
        store: Arc<Inner>,
        name: &str,
        access: Access,
        key: Option<&Keyring>,
    ) -> Result<Self> {
        let is_copy = store.store.is_unchecked_copy();
        if is_copy {
            copied::verify_pages(&store, name, key)?;
        }
        let handle = store.store.open_pool_with(name, access, key)?;
        let doubt = doubt_of(&store, &handle);
        if matches!(doubt, Some(Doubt::Torn)) && store.policy.damage == DamagePolicy::Refuse {
            return Err(StoreError::PoolTorn { name: name.into() }.into());
        }
        // SAFETY: the pool's only heap in this process (its root puddle's slot is taken by one),
        // and this crate changes blocks by transactions alone, which know their types.
        let backing = unsafe { PoolBacking::of(handle.clone()) };
        let (protected, backing) = ProtectedPool::begin(backing)?;
        let heap = open_heap(&handle, backing)?;
        let mut pool = Self(ManuallyDrop::new(PoolParts {
            heap,
            protected,
            lock: RwLock::new(()),
            readers: Readers::default(),
            // A shared pool's is never settled.
            unsettled: match handle.member() {
                None => Arc::clone(&store.unsettled),
                Some(_) => Arc::new(AtomicU64::new(1)),
            },
            known: [const { AtomicPtr::new(core::ptr::null_mut()) }; KNOWN_TYPES],
            known_all: RwLock::default(),
            // A pool that is shared is mapped for writing in any case.
            changeable: handle.is_writable() && access.writes() && doubt.is_none(),
            doubt,
            hidden: handle.at_rest() != AtRest::None,
            handle,
            frees: FreesHint::default(),
            psync_on_commit: AtomicU32::new(0),
            wanted: access,
            listed: None,
            this: Weak::new(),
            store,
        }));
        if pool.handle.member().is_some() {
            shares();
            pool.store.group.never_lazy(pool.store.store.persistence());
        }
        // One in doubt is not traced, unless its logs are gone: it is looked at as it is.
        if pool.handle.trace_due() && matches!(pool.doubt, None | Some(Doubt::Torn)) {
            return Err(Error::TraceDue { pool: name.to_string() });
        }
        if is_copy && pool.doubt.is_none() {
            let damage = copied::check(&pool.store, &pool.handle, &pool.heap)?;
            if !damage.is_empty() {
                return pool.in_doubt(damage);
            }
        }
        if pool.is_suspect(is_copy) {
            pool.doubt = pool.invalid_values()?;
            pool.changeable &= pool.doubt.is_none();
        }
        Ok(pool)
    }

    /// Whether the pool's values are looked at before the first is shown: something of the store or
    /// of the heap is damaged, so the medium returns other bytes than were written; the files were
    /// copied while a program changed them; or the caller wants it. Others may be changing a pool
    /// that is shared.
    fn is_suspect(&self, is_copy: bool) -> bool {
        let Inner { store, policy, .. } = &*self.store;
        // A file that no record names is no pool's.
        let of_pools = |damage: &Damage| !matches!(damage, Damage::Orphan { .. });
        let damaged = || store.damage().iter().any(of_pools) || self.heap.is_damaged();
        !policy.torn_allowed
            && self.doubt.is_none()
            && self.handle.member().is_none()
            && (policy.verify_values || is_copy || damaged())
    }

    /// Finds what safe code must not see, before a caller gets the pool: bytes that are no value,
    /// and links that collections follow without a check.
    fn invalid_values(&self) -> Result<Option<Doubt>> {
        let ValueReport { mut invalid, mut findings, .. } =
            self.check_values(TraceOptions::default())?;
        let store = &self.store.store;
        let report =
            match self.heap.check_from(Some(&StoreTypes(store)), &[], TraceOptions::default()) {
                // To get a value there is an error, too.
                Err(RecoverError::Unreadable(_)) => HeapReport::default(),
                report => report?,
            };
        let name = |id| store.type_record(id).map(|record| record.name.clone());
        for trace in [report.trace, report.leak_trace].into_iter().flatten() {
            for Finding { at, to, target, .. } in trace.findings {
                let Some(block) = self.heap.owner(at) else { continue };
                let Some((from, target)) = name(block.type_id).zip(name(target)) else { continue };
                if is_link(&from, &target) {
                    invalid += 1;
                    findings.push(InvalidValue {
                        block: block.addr,
                        type_id: block.type_id,
                        type_name: from,
                        field: String::new(),
                        at,
                        rule: Rule::Reference,
                        found: to.into(),
                    });
                }
            }
        }
        Ok((invalid > 0).then_some(Doubt::Values(invalid, findings)))
    }

    /// One that was found damaged: refused, or without values, as the policy says.
    fn in_doubt(mut self, damage: Vec<Damage>) -> Result<Self> {
        if self.store.policy.damage == DamagePolicy::Refuse {
            let name = self.handle.name().to_string();
            return Err(StoreError::PoolDamaged { name, damage }.into());
        }
        self.changeable = false;
        self.doubt = (!self.store.policy.torn_allowed).then_some(Doubt::Damage(damage));
        Ok(self)
    }

    /// Refuses to show values that no check answers for.
    pub(crate) fn refuse_doubt(&self) -> Result<()> {
        let pool = || self.handle.name().to_string();
        match &self.doubt {
            None => Ok(()),
            Some(Doubt::PowerLoss) => Err(StoreError::PoolNotCovered { name: pool() }.into()),
            Some(Doubt::Torn) => Err(StoreError::PoolTorn { name: pool() }.into()),
            Some(Doubt::Damage(why)) => Err(Error::NotWhole { pool: pool(), why: why.clone() }),
            Some(Doubt::Values(count, first)) => {
                Err(Error::InvalidValues { pool: pool(), count: *count, first: first.clone() })
            }
        }
    }

    /// Looks at all values of the pool, by the store's records. The caller has a view.
    pub(crate) fn check_values(&self, options: TraceOptions<'_>) -> Result<ValueReport> {
        let store = &self.store.store;
        if store.is_connected() {
            // Another process may have registered some since.
            store.learn_types()?;
        }
        Ok(self.heap.check_values(&mut Values::new(store.types()), options)?)
    }

    /// Why a pool that is not [`PoolInner::changeable`] is not.
    #[cold]
    pub(crate) fn why_unchangeable(&self) -> Error {
        if self.handle.is_writable()
            && self.wanted.writes()
            && let Err(doubt) = self.refuse_doubt()
        {
            return doubt;
        }
        StoreError::PoolReadOnly { name: self.handle.name().to_string(), what: "change it" }.into()
    }

    /// Whether the process is the one that opened the store.
    #[inline]
    pub(crate) fn refuse_forked(&self) -> Result<()> {
        self.store.refuse_forked()
    }

    /// Makes `T`, and every type that can be reached from it, known to the store, and refuses what
    /// has another layout there.
    #[inline]
    pub(crate) fn know<T: Persist>(&self) -> Result<()> {
        let place = &self.known[T::TYPE_ID.0 as usize % KNOWN_TYPES];
        if is_known(place, core::any::TypeId::of::<T>()) {
            return Ok(());
        }
        self.learn(TypeOf::of::<T>(), place)
    }

    /// Learns a type and those that can be reached from it.
    #[cold]
    #[inline(never)]
    fn learn(&self, of: &TypeOf, place: &AtomicPtr<KnownType>) -> Result<()> {
        let TypeOf { id, rust_type, described: first, .. } = *of;
        let mut this = None;
        if self.known_all.read().contains(&rust_type) {
            this = known_types().get(&id).copied();
        } else {
            for described in types_from(first)? {
                let known = one_rust_type(&described)?;
                if self.store.store.type_record(described.record.id).as_deref()
                    != Some(&described.record)
                {
                    // SAFETY: the record is the type's own, from its implementation of `Persist`,
                    // which is an unsafe trait.
                    unsafe { self.store.store.register_type(&described.record) }?;
                }
                this = this.or(Some(known)); // the type itself is the first of them
            }
            self.known_all.write().insert(rust_type);
        }
        if let Some(known) = this {
            place.store(core::ptr::from_ref(known).cast_mut(), Ordering::Release);
        }
        Ok(())
    }

    /// Whether `addr` is a live block of type `T` in this pool.
    ///
    /// A `Ptr<T>` was made where a store agreed with this program about `T`. Another store need
    /// not, and its window may be where the first one's was before that was closed: then it is
    /// asked.
    #[inline]
    pub(crate) fn is_live<T: Persist>(&self, addr: u64) -> bool {
        self.heap.is_live(addr, T::TYPE_ID)
            && (self.unsettled.load(Ordering::Relaxed) == 0 || self.agrees(TypeOf::of::<T>()))
    }

    /// As [`PoolInner::is_live`].
    pub(crate) fn is_live_of(&self, addr: u64, of: &TypeOf) -> bool {
        self.heap.is_live(addr, of.id)
            && (self.unsettled.load(Ordering::Relaxed) == 0 || self.agrees(of))
    }

    /// That a value which was found live can be read: its page may be damaged, and no load has to
    /// find that out.
    #[inline(always)]
    pub(crate) fn readable(&self, addr: u64, len: usize) -> Result<()> {
        // SAFETY: the caller has found a live block of as many bytes there; blocks lie in mappings.
        if unsafe { peek::is_readable(addr as usize, len) } {
            Ok(())
        } else {
            Err(self.lost(addr, len))
        }
    }

    /// Why there is no live block at an address of this pool.
    #[cold]
    pub(crate) fn dangling<T: Persist>(&self, addr: u64) -> Error {
        self.dangling_at(addr, T::type_name)
    }

    #[cold]
    #[inline(never)]
    fn dangling_at(&self, addr: u64, type_name: fn() -> String) -> Error {
        self.unknown(addr).unwrap_or_else(|| dangling(addr, type_name))
    }

    /// Why it is not known what is alive at an address of this pool.
    #[cold]
    pub(crate) fn unknown(&self, addr: u64) -> Option<Error> {
        let unattached = || self.heap.traced()?.unattached(addr).map(Error::HeapOpen);
        self.lost_metadata().or_else(unattached)
    }

    /// A page of the heap's metadata is lost: what was live need not be any more.
    #[cold]
    pub(crate) fn lost_metadata(&self) -> Option<Error> {
        match self.store.store.check_usable() {
            Err(error @ StoreError::MetadataLost(page)) if page.pool == self.handle.id() => {
                Some(error.into())
            }
            _ => None,
        }
    }

    /// What the heap says of a root.
    #[inline]
    pub(crate) fn root_entry(&self, index: u16) -> Result<RootEntry> {
        self.heap.root(index).map_err(|error| self.lost_metadata().unwrap_or(error.into()))
    }

    #[cold]
    #[inline(never)]
    fn lost(&self, addr: u64, len: usize) -> Error {
        let from = addr as usize;
        // SAFETY: as `readable` has it: a live block, in a mapping.
        let lost = unsafe { peek::lost(from..from + len) };
        self.handle.unreadable(lost.map_or(addr, |at| at as u64)).into()
    }

    /// Whether the store has a type as this program has it. Blocks of a shared pool may be of one
    /// that another process has registered and this one has not heard of: there the store is asked
    /// about each type, once for each pool.
    #[inline(never)]
    fn agrees(&self, of: &TypeOf) -> bool {
        let place = &self.known[of.id.0 as usize % KNOWN_TYPES];
        planted(Bug::LearntTypeBelieved)
            || (self.handle.member().is_none() && self.store.types_agree())
            || is_known(place, of.rust_type)
            || self.learn(of, place).is_ok()
    }

    /// Puts the pool into a list of open pools.
    pub(crate) fn listed(mut self, listing: Box<dyn Listing>) -> Arc<Self> {
        self.listed = Some(listing);
        Arc::new_cyclic(|this| {
            self.this = Weak::clone(this);
            self
        })
    }

    /// The first `len` values of an array block, checked.
    ///
    /// # Safety
    /// No thread writes to the array while the slice lives, and its first `len` values have been
    /// written.
    pub(crate) unsafe fn array<'a, T: Persist>(
        &self,
        ptr: Ptr<ArrayOf<T>>,
        len: usize,
    ) -> Result<&'a [T]> {
        if !self.has_array(ptr.addr(), (size_of::<T>(), len), TypeOf::of::<ArrayOf<T>>())? {
            return Err(self.dangling::<ArrayOf<T>>(ptr.addr()));
        }
        // SAFETY: a live block with room for `len` values, written by contract; mapped as long as
        // the pool is open.
        Ok(unsafe { core::slice::from_raw_parts(ptr.as_ptr().cast::<T>(), len) })
    }

    /// Whether there is a live block of a type at `addr`. If so, it has room for `len` values of
    /// `size` bytes, which can be read; else that is the error.
    #[inline(never)]
    fn has_array(&self, addr: u64, (size, len): (usize, usize), of: &TypeOf) -> Result<bool> {
        let block = match self.heap.find(addr) {
            Ok(block) if block.type_id == of.id && self.is_live_of(addr, of) => block,
            _ => return Ok(false),
        };
        let room = if size == 0 { u64::MAX } else { block.size / size as u64 };
        if len as u64 > room {
            return Err(Error::OutOfBounds { index: len as u64, len: room });
        }
        // SAFETY: room for as many values in a live block.
        let read = unsafe { touch(addr as usize, len.saturating_mul(size)) };
        read.map_err(|lost| Error::from(self.handle.unreadable(lost.0)))?;
        Ok(true)
    }
}

fn open_heap(handle: &PoolHandle, backing: PoolBacking) -> Result<PoolHeap> {
    match PoolHeap::open(backing) {
        // Why there is none: its file is gone, or not as it should be.
        Err(cenote_heap::OpenError::NoPuddle) if !handle.damage().is_empty() => {
            let (name, damage) = (handle.name().to_string(), handle.damage().to_vec());
            Err(StoreError::PoolDamaged { name, damage }.into())
        }
        heap => Ok(heap?),
    }
}

/// Why no check answers for a pool's values.
pub(crate) fn doubt_of(store: &Inner, handle: &PoolHandle) -> Option<Doubt> {
    if store.policy.torn_allowed {
        return None;
    }
    if store.report.not_covered.iter().any(|(id, _)| *id == handle.id()) {
        return Some(Doubt::PowerLoss);
    }
    let why = handle.doubts();
    if why.is_empty() && handle.is_torn() {
        return Some(Doubt::Torn);
    }
    (!why.is_empty()).then_some(Doubt::Damage(why))
}

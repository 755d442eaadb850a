//! [`Pool`]: a named heap of values with roots; [`View`]: reading it.

use crate::between::Readers;
use crate::check::{Checking, refuse_within};
use crate::copied;
use crate::error::{Error, Result};
use crate::known::{KnownType, StoreTypes, known_types, one_rust_type};
use crate::local;
use crate::names;
use crate::names::NamedRoot;
use crate::persist::{Persist, types_of};
use crate::ptr::Ptr;
use crate::reader::Reader;
use crate::store::Inner;
use crate::tx::{Covered, Tx};
use cenote_heap::{
    BlockInfo, Damage as HeapDamage, Finding, Heap, HeapReport, HeapStats, RecoverError, RecoveryReport,
    SuperblockInfo, TraceOptions, TracedHeap, TrimProgress, TrimReport, ValueReport,
};
use cenote_layout::heap::RootEntry;
use cenote_layout::id::PoolId;
use cenote_layout::values::{InvalidValue, Rule, Values, is_link};
use cenote_medium::planted::{Bug, planted};
use cenote_store::{
    Access, Anchor, AtRest, Damage, DamagePolicy, Keyring, PoolHandle, PoolStart, StoreError, VerifiedPuddle,
};
use cenote_sys::peek;
use core::mem::ManuallyDrop;
use core::ops::{ControlFlow, Deref, DerefMut};
use parking_lot::RwLock;
use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicPtr, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, Weak};
use std::thread::ThreadId;

/// A pool, open in this process. Handles are cheap to clone; the pool is closed when the last one is dropped.
#[derive(Clone, Debug)]
pub struct Pool {
    pub(crate) inner: Arc<PoolInner>,
}

impl Drop for Pool {
    /// In a forked child nothing of the pool is dropped: dropping takes locks, which threads of the
    /// parent may have had when it forked, and gives back what is the parent's.
    fn drop(&mut self) {
        if self.inner.refuse_forked().is_err() {
            core::mem::forget(Arc::clone(&self.inner));
        }
    }
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
pub(crate) struct PoolInner(ManuallyDrop<Parts>);

pub(crate) struct Parts {
    pub(crate) heap: TracedHeap,
    pub(crate) handle: PoolHandle,
    /// Writers exclude everybody; readers exclude writers.
    pub(crate) lock: RwLock<()>,
    /// Where other processes write too: see [`crate::between`].
    pub(crate) readers: Readers,
    /// Types of this program that the store agrees with; null or a [`KnownType`] that stays for good. Types, not ids: two types may have one id.
    known: [AtomicPtr<KnownType>; KNOWN_TYPES],
    /// Zero: the store and this program agree about all types that both know.
    unsettled: Arc<AtomicU64>,
    /// All of them, for those that share a place.
    known_all: RwLock<HashSet<core::any::TypeId>>,
    /// Why values may not be what transactions made them, for which nobody answers: then none is shown.
    doubt: Option<Doubt>,
    /// Whether safe code may change it: it is open for writing, and there is no doubt.
    pub(crate) changeable: bool,
    /// It is protected at rest: its transactions are in logs without files.
    pub(crate) hidden: bool,
    /// How many want it psynced before a transaction is acknowledged.
    pub(crate) psync_on_commit: AtomicU32,
    /// What was asked for; a policy may have given less.
    wanted: Access,
    /// After heap and handle: they are gone when the list hears of it.
    listed: Listed,
    /// Keeps this memory as long as the parts are not dropped. A thread that left a transaction
    /// still knows its pools by their places.
    this: Weak<PoolInner>,
    /// Last: the store stays open as long as its pools.
    pub(crate) store: Arc<Inner>,
}

/// Why the values of a pool cannot be believed. Safe collections follow links without a check, because transactions keep their invariants whole; a
/// transaction that was torn, or a puddle that is gone, breaks them.
#[derive(Debug)]
enum Doubt {
    /// Power failed while it was written at a level that does not cover that.
    PowerLoss,
    /// See [`PoolHandle::is_torn`].
    Torn,
    /// See [`PoolHandle::doubts`].
    Damage(Vec<Damage>),
    /// Something is damaged, and bytes are no value of their type. How many, and the first.
    Values(u64, Vec<InvalidValue>),
}

/// With what right a pool is opened.
#[derive(Clone, Copy)]
pub(crate) enum By<'k> {
    /// Somebody shows its key, or that of the store's options if there is none.
    Key(Option<&'k Keyring>),
    /// This crate looks at all pools: one that is open needs no key again.
    Us,
}

/// The pools of a store that are open, by name.
///
/// A pool whose last handle is being dropped stays listed until its heap and its lease on the pool are gone; who wants to open it again waits for that.
#[derive(Default)]
pub(crate) struct OpenPools {
    list: Mutex<OpenList>,
    /// Names of pools that are read from their files, once for each who does that. Looked at and changed with the list held.
    held: Mutex<Vec<(String, ThreadId)>>,
    gone: Condvar,
}

/// Keeps pools from being opened, by this process, as long as it lives: who wants one of them waits.
pub(crate) struct HeldPools<'a> {
    pools: &'a OpenPools,
    names: Vec<String>,
    /// Of the process that holds them.
    token: u64,
}

impl Drop for HeldPools<'_> {
    fn drop(&mut self) {
        if !cenote_sys::fork_guard::is_current(self.token) {
            return;
        }
        let list = self.pools.locked();
        let mut held = self.pools.held.lock().unwrap_or_else(PoisonError::into_inner);
        for name in &self.names {
            if let Some(at) = held.iter().position(|(other, _)| other == name) {
                held.swap_remove(at);
            }
        }
        drop(held);
        drop(list);
        self.pools.gone.notify_all();
    }
}

/// The pools that are open in this process, by name.
pub(crate) type OpenList = Vec<(String, Weak<PoolInner>)>;

impl OpenPools {
    /// The list, which nobody changes as long as it is held.
    pub(crate) fn locked(&self) -> std::sync::MutexGuard<'_, OpenList> {
        self.list.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does something while no pool that `concerns` is being closed, and none is opened. Those that are open are for the store to refuse.
    pub(crate) fn while_closed<R>(&self, concerns: impl Fn(&str) -> bool, work: impl FnOnce() -> R) -> R {
        let mut list = self.locked();
        while list.iter().any(|(name, pool)| concerns(name) && pool.strong_count() == 0) {
            list = self.gone.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        let done = work();
        drop(list);
        done
    }

    pub(crate) fn find_or_open(
        &self,
        store: &Arc<Inner>,
        name: &str,
        access: Access,
        by: By<'_>,
    ) -> Result<Arc<PoolInner>> {
        store.refuse_forked()?;
        refuse_within(store, name)?;
        let key = if let By::Key(key) = by { key } else { None };
        // Dropped after the lock: if one of these is the last handle, dropping it takes the lock.
        let mut others = Vec::new();
        let mut list = self.locked();
        loop {
            let mut dying = self.is_held(name)?;
            for (_, pool) in list.iter().filter(|(listed, _)| listed == name) {
                match pool.upgrade() {
                    // One that a policy made read-only will not become writable by asking again.
                    Some(pool) if access == Access::ReadOnly || pool.wanted.writes() => {
                        // Who opens it shows the key.
                        if matches!(by, By::Key(_)) && (pool.hidden || key.is_some()) {
                            drop(store.store.open_pool_with(name, Access::ReadOnly, key)?);
                        }
                        return Ok(pool);
                    }
                    Some(pool) => others.push(pool),
                    None => dying = true,
                }
            }
            if !dying {
                break;
            }
            list = self.gone.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        // Before the first pool is in use, so that nobody changes what is traced.
        let traced = trace_due_pools(store, &list);
        let mut pool = match PoolInner::open(store.clone(), name, access, key) {
            Err(Error::TraceDue { .. }) if traced.is_ok() && store.store.is_connected() => {
                // A daemon's client learns of it with the grant.
                trace_due_pools(store, &list)?;
                PoolInner::open(store.clone(), name, access, key)?
            }
            Err(Error::TraceDue { pool }) => return Err(traced.err().unwrap_or(Error::TraceDue { pool })),
            pool => pool?,
        };
        pool.listed.0 = Some((store.clone(), name.to_string()));
        let pool = Arc::new_cyclic(|this| {
            pool.this = Weak::clone(this);
            pool
        });
        store.reclaims.opened(&pool);
        list.push((name.to_string(), Arc::downgrade(&pool)));
        drop(list);
        store.attend(&pool);
        Ok(pool)
    }

    /// See [`HeldPools`]. Waits for those that are being closed; pools that are open stay open.
    pub(crate) fn hold(&self, names: Vec<String>) -> HeldPools<'_> {
        let mut list = self.locked();
        while list.iter().any(|(name, pool)| names.contains(name) && pool.strong_count() == 0) {
            list = self.gone.wait(list).unwrap_or_else(PoisonError::into_inner);
        }
        let by = std::thread::current().id();
        let named = names.iter().map(|name| (name.clone(), by));
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        drop(list);
        HeldPools { pools: self, names, token: cenote_sys::fork_guard::token() }
    }

    /// Keeps those of `names` closed that are not open for writing. `None`: one is being closed, or
    /// is open and not among those that the caller has looked at.
    pub(crate) fn hold_closed(&self, names: &[String], open: &[Arc<PoolInner>]) -> Option<HeldPools<'_>> {
        let list = self.locked();
        let listed = |(name, _): &&(String, Weak<PoolInner>)| names.contains(name);
        let known = |(_, pool): &(String, Weak<PoolInner>)| {
            pool.strong_count() > 0 && open.iter().any(|open| core::ptr::eq(pool.as_ptr(), &**open))
        };
        if !list.iter().filter(listed).all(known) {
            return None;
        }
        let written = |name: &str| open.iter().any(|pool| pool.handle.is_writable() && pool.is_named(name));
        let names: Vec<String> = names.iter().filter(|name| !written(name)).cloned().collect();
        let by = std::thread::current().id();
        let named = names.iter().map(|name| (name.clone(), by));
        self.held.lock().unwrap_or_else(PoisonError::into_inner).extend(named);
        drop(list);
        Some(HeldPools { pools: self, names, token: cenote_sys::fork_guard::token() })
    }

    /// Whether the name is held: by another thread, which is waited for.
    fn is_held(&self, name: &str) -> Result<bool> {
        let held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
        let here = std::thread::current().id();
        if held.iter().any(|(other, by)| other == name && *by == here) {
            return Err(Error::WouldDeadlock { pool: name.into(), by: "an export" });
        }
        Ok(held.iter().any(|(other, _)| other == name))
    }
}

/// Takes a pool out of its store's list when it is dropped; nothing if it was never in it.
struct Listed(Option<(Arc<Inner>, String)>);

impl Drop for Listed {
    fn drop(&mut self) {
        if let Some((store, name)) = self.0.take() {
            let mut list = store.pools.list.lock().unwrap_or_else(PoisonError::into_inner);
            // Of one name there is one, or one for reading whose heap kept a second from being opened.
            list.retain(|(listed, pool)| *listed != name || pool.strong_count() > 0);
            drop(list);
            store.pools.gone.notify_all();
        }
    }
}

impl Deref for PoolInner {
    type Target = Parts;

    #[inline(always)]
    fn deref(&self) -> &Parts {
        &self.0
    }
}

impl DerefMut for PoolInner {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut Parts {
        &mut self.0
    }
}

impl Drop for PoolInner {
    fn drop(&mut self) {
        // In a forked child nobody would let go of the turnstile.
        if self.refuse_forked().is_ok() {
            self.store.reclaims.closing(self);
            // No handle is left, so no thread is coming back to unlock it.
            if self.lock.is_locked_exclusive() && !planted(Bug::LeftTransactionClosed) {
                // Openers of the pool do not wait. They find its heap in use.
                self.listed = Listed(None);
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
    fn is_named(&self, name: &str) -> bool {
        *self.handle.name() == *name
    }

    pub(crate) fn open(store: Arc<Inner>, name: &str, access: Access, key: Option<&Keyring>) -> Result<Self> {
        let is_copy = store.store.is_unchecked_copy();
        if is_copy {
            copied::verify_pages(&store, name, key)?;
        }
        let handle = store.store.open_pool_with(name, access, key)?;
        let doubt = doubt_of(&store, &handle);
        if matches!(doubt, Some(Doubt::Torn)) && store.damage_policy == DamagePolicy::Refuse {
            return Err(StoreError::PoolTorn { name: name.into() }.into());
        }
        let heap = match TracedHeap::open(handle.clone()) {
            // Why there is none: its file is gone, or not as it should be.
            Err(cenote_heap::OpenError::NoPuddle) if !handle.damage().is_empty() => {
                let (name, damage) = (name.to_string(), handle.damage().to_vec());
                return Err(StoreError::PoolDamaged { name, damage }.into());
            }
            heap => heap?,
        };
        let mut pool = Self(ManuallyDrop::new(Parts {
            heap,
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
            psync_on_commit: AtomicU32::new(0),
            wanted: access,
            listed: Listed(None),
            this: Weak::new(),
            store,
        }));
        if pool.handle.member().is_some() {
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
        let Inner { store, verify_values, torn_allowed, .. } = &*self.store;
        let damaged = || !store.damage().is_empty() || !self.heap.damage().is_empty();
        !*torn_allowed
            && self.doubt.is_none()
            && self.handle.member().is_none()
            && (*verify_values || is_copy || damaged())
    }

    /// What safe code must not see, before anybody has the pool: bytes that are no value, and links
    /// that collections follow without a check.
    fn invalid_values(&self) -> Result<Option<Doubt>> {
        let ValueReport { mut invalid, mut findings, .. } = self.check_values(TraceOptions::default())?;
        let store = &self.store.store;
        let report = match self.heap.check_with(&StoreTypes(store), TraceOptions::default()) {
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
        if self.store.damage_policy == DamagePolicy::Refuse {
            let name = self.handle.name().to_string();
            return Err(StoreError::PoolDamaged { name, damage }.into());
        }
        self.changeable = false;
        self.doubt = (!self.store.torn_allowed).then_some(Doubt::Damage(damage));
        Ok(self)
    }

    /// Refuses to show values that nobody answers for.
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

    /// Makes `T`, and every type that can be reached from it, known to the store, and refuses what has another layout there.
    #[inline]
    pub(crate) fn know<T: Persist>(&self) -> Result<()> {
        let place = &self.known[T::TYPE_ID.0 as usize % KNOWN_TYPES];
        // SAFETY: null, or a known type, which is never freed.
        match unsafe { place.load(Ordering::Acquire).as_ref() } {
            Some(known) if known.rust_type == core::any::TypeId::of::<T>() => Ok(()),
            _ => self.learn::<T>(place),
        }
    }

    #[cold]
    fn learn<T: Persist>(&self, place: &AtomicPtr<KnownType>) -> Result<()> {
        let rust_type = core::any::TypeId::of::<T>();
        let mut this = None;
        if self.known_all.read().contains(&rust_type) {
            this = known_types().get(&T::TYPE_ID).copied();
        } else {
            for described in types_of::<T>()? {
                let known = one_rust_type(&described)?;
                if self.store.store.type_record(described.record.id).as_deref() != Some(&described.record) {
                    self.store.store.register_type(&described.record)?;
                }
                this = this.or(Some(known)); // `T` is the first
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
    /// A `Ptr<T>` was made where a store agreed with this program about `T`. Another store need not, and its window may be where the
    /// first one's was before that was closed: then it is asked.
    #[inline]
    pub(crate) fn is_live<T: Persist>(&self, addr: u64) -> bool {
        self.heap.is_live(addr, T::TYPE_ID)
            && (self.unsettled.load(Ordering::Relaxed) == 0 || self.agrees::<T>())
    }

    /// That a value which was found live can be read: its page may be damaged, and no load has to
    /// find that out.
    #[inline(always)]
    pub(crate) fn readable(&self, addr: u64, len: usize) -> Result<()> {
        // SAFETY: the caller has found a live block of as many bytes there; blocks lie in mappings.
        if unsafe { peek::is_readable(addr as usize, len) } { Ok(()) } else { Err(self.lost(addr, len)) }
    }

    #[cold]
    #[inline(never)]
    fn lost(&self, addr: u64, len: usize) -> Error {
        let from = addr as usize;
        // SAFETY: as `readable` has it: a live block, in a mapping.
        let lost = unsafe { peek::lost(from..from + len) };
        self.handle.unreadable(lost.map_or(addr, |at| at as u64)).into()
    }

    /// Whether the store has `T` as this program has it. Blocks of a shared pool may be of a type
    /// that another process has registered and this one has not heard of: there the store is asked
    /// about each type, once for each pool.
    #[inline(never)]
    fn agrees<T: Persist>(&self) -> bool {
        planted(Bug::LearntTypeBelieved)
            || (self.handle.member().is_none() && self.store.types_agree())
            || self.know::<T>().is_ok()
    }

    /// The caller holds a view or a transaction of the pool.
    pub(crate) fn root<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>> {
        let entry = names::numbered(self, index)?;
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
        if !self.is_live::<T>(entry.addr) {
            return Err(dangling::<T>(entry.addr));
        }
        // SAFETY: a live block of type `T`, whose layout the store has just confirmed.
        Ok(unsafe { Ptr::from_addr(entry.addr) })
    }
}

/// Why nobody answers for a pool's values.
fn doubt_of(store: &Inner, handle: &PoolHandle) -> Option<Doubt> {
    if store.torn_allowed {
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

pub(crate) fn dangling<T: Persist>(addr: u64) -> Error {
    Error::Dangling { addr, type_name: T::type_name() }
}

pub(crate) type Heaps<'h> = BTreeMap<PoolId, &'h TracedHeap>;

/// For each pool the addresses in it that something in the other pools leads to which can be reached from any pool's roots. All pools of the store are
/// open, and nobody changes data.
pub(crate) fn reached_from_elsewhere(
    store: &cenote_store::Store,
    heaps: &Heaps<'_>,
) -> Result<BTreeMap<PoolId, BTreeSet<u64>>> {
    let mut reached: BTreeMap<PoolId, BTreeSet<u64>> =
        heaps.keys().map(|id| (*id, BTreeSet::new())).collect();
    // Until nothing new is reached: what leads out of a pool may begin at what leads into it.
    let mut waiting: BTreeSet<PoolId> =
        if heaps.len() > 1 { heaps.keys().copied().collect() } else { BTreeSet::new() };
    while let Some(id) = waiting.pop_first() {
        let roots: Vec<u64> = reached[&id].iter().copied().collect();
        for addr in heaps[&id].foreign_pointers(&StoreTypes(store), &roots)? {
            if let Some(owner) = store.puddle_of(addr).map(cenote_store::Puddle::pool)
                && let Some(known) = reached.get_mut(&owner)
                && known.insert(addr)
            {
                waiting.insert(owner);
            }
        }
    }
    Ok(reached)
}

/// After a loss of power: computes which blocks are allocated in all pools that were in use: those that are marked *and* led to. All pools of the store are traced for that: a value may be led to from
/// another pool alone.
fn trace_due_pools(store: &Inner, open: &[(String, Weak<PoolInner>)]) -> Result<()> {
    let due = store.store.pools_due();
    if due.is_empty() || !store.store.is_writable() {
        return Ok(());
    }
    let mut handles = Vec::new();
    for info in store.store.pools() {
        // One that is in use already is so because it was not due, and this failed when it was opened.
        if open.iter().any(|(name, pool)| *name == info.record.name && pool.strong_count() > 0) {
            return Err(Error::WouldDeadlock {
                pool: info.record.name,
                by: "a pool that is open: close it, so that all can be traced",
            });
        }
        let access = if due.contains(&info.record.id) { Access::ReadWrite } else { Access::ReadOnly };
        let handle = store.store.open_pool(&info.record.name, access)?;
        // What is lost of it may lead to values of pools that are traced, which would be given back.
        if let Some(Doubt::Damage(why)) = doubt_of(store, &handle)
            && store.damage_policy != DamagePolicy::SkipDamaged
        {
            return Err(Error::NotWhole { pool: info.record.name, why });
        }
        if handle.root_puddle().is_some() {
            handles.push(handle);
        }
    }
    let heaps = handles
        .iter()
        .map(|handle| Ok((handle, TracedHeap::open(handle.clone())?)))
        .collect::<Result<Vec<_>>>()?;
    let by_id: Heaps<'_> = heaps.iter().map(|(handle, heap)| (handle.id(), heap)).collect();
    let reached = reached_from_elsewhere(&store.store, &by_id)?;
    // One that may be torn has no log left that could come back to it.
    let traceable = |handle: &PoolHandle| matches!(doubt_of(store, handle), None | Some(Doubt::Torn));
    let traced =
        |handle: &PoolHandle| due.contains(&handle.id()) && handle.is_writable() && traceable(handle);
    for (handle, heap) in heaps.iter().filter(|(handle, _)| traced(handle)) {
        let roots: Vec<u64> = reached[&handle.id()].iter().copied().collect();
        let report = store.recovery_of(handle.name(), |mut options| {
            // A store whose values may be torn anyway may also have marks that nobody flushed.
            options.believe_marks = !store.torn_allowed;
            heap.recover_with(&StoreTypes(&store.store), &roots, options)
        })?;
        store.note_traced(handle.id(), report);
        // A crash before this traces again; one before the next pool's traces that one, with this one's roots as they are.
        // SAFETY: traced just now, with all roots and what other pools reach.
        unsafe { handle.trace_done() }?;
    }
    Ok(())
}

impl Pool {
    /// The pool's name.
    #[must_use]
    pub fn name(&self) -> &str {
        self.inner.handle.name()
    }

    /// How the pool is protected at rest.
    #[must_use]
    pub fn at_rest(&self) -> AtRest {
        self.inner.handle.at_rest()
    }

    /// Checks every page of a protected pool against its hash trees, as the last psync left it, and gives no contents out. `progress` is told pages done and pages altogether; if it
    /// says `false`, that is all. In modes without a tree nothing is covered; of a pool without protection there is nothing to say.
    pub fn verify(&self, progress: &mut dyn FnMut(u64, u64) -> bool) -> Vec<VerifiedPuddle> {
        self.inner.handle.verify(progress)
    }

    /// Copies bytes of the pool from `addr` on: what a load gives, with an error where a load would be a bus error, because a page of a protected pool fails its check.
    ///
    /// # Errors
    /// [`StoreError::Sealed`] with the first page that is damaged; a range that does not lie in one of the pool's puddles; [`Error::WouldDeadlock`] in a transaction of this thread on the pool.
    pub fn read_at(&self, addr: u64, bytes: &mut [u8]) -> Result<()> {
        let _view = self.view()?;
        Ok(self.inner.handle.read_at(addr, bytes)?)
    }

    /// What to remember elsewhere, so that putting back *everything* of a protected pool from earlier is noticed; [`Pool::check_anchors`] compares. Not secret.
    #[must_use]
    pub fn anchors(&self) -> Vec<Anchor> {
        self.inner.handle.anchors()
    }

    /// Compares a protected pool with what was remembered of it.
    ///
    /// # Errors
    /// [`Error::Store`]: it is older than that, or of another history.
    pub fn check_anchors(&self, anchors: &[Anchor]) -> Result<()> {
        Ok(self.inner.handle.check_anchors(anchors)?)
    }

    /// The pool's number in its store.
    #[must_use]
    pub fn id(&self) -> PoolId {
        self.inner.handle.id()
    }

    /// Runs a transaction. All of its changes happen, or none: none if `body` returns an error or panics, or the process dies in it. On return of `Ok` they are
    /// durable at the store's level.
    ///
    /// Waits for views and transactions of other threads on this pool; of other processes too, if they share it ([`Access::Shared`]).
    ///
    /// # Errors
    /// What `body` returns; [`Error::WouldDeadlock`] if this thread holds a view or a transaction of the pool; [`Error::Store`] if the pool is read-only, the
    /// store poisoned, or the process a fork; [`Error::NotWhole`] if the pool is damaged; [`Error::Tx`] if the log cannot take the commit;
    /// [`Error::NotPsynced`], alone of all, *after* the commit, where a [`crate::PsyncPolicy`] asks for a psync of each.
    #[inline]
    pub fn write<R, E: From<Error>>(&self, body: impl FnOnce(&mut Tx<'_>) -> Result<R, E>) -> Result<R, E> {
        let result = Tx::run(Covered::One(&self.inner), body);
        if self.inner.psync_on_commit.load(Ordering::Relaxed) > 0 && result.is_ok() {
            crate::psync::after_commit(&[&self.inner])?;
        }
        result
    }

    /// How this session found the pool: as it was created, closed properly, or in use when its last writer ended (RAL-6).
    #[must_use]
    pub fn start(&self) -> PoolStart {
        self.inner.handle.start()
    }

    /// What tracing found, if the pool had to be traced in this session because power failed while it was in use: `freed_blocks` were allocated and led to by nothing,
    /// `dangling_blocks` were free and stay so, although something leads there.
    #[must_use]
    pub fn traced(&self) -> Option<RecoveryReport> {
        self.inner.store.traced(self.id())
    }

    /// Whether the pool was opened for writing.
    #[must_use]
    pub fn is_writable(&self) -> bool {
        self.inner.handle.is_writable() && self.inner.wanted.writes()
    }

    /// Whether other processes may read and write the pool too, through the daemon that keeps it. Then views and transactions wait for theirs.
    #[must_use]
    pub fn is_shared(&self) -> bool {
        self.inner.handle.member().is_some()
    }

    /// Says which processes live that have the pool, and are done with if they do not: for [`locks`](cenote_heap::locks) that lie in it.
    ///
    /// # Errors
    /// [`Error::Store`]: the system does not say who this process is.
    pub fn judge(&self) -> Result<cenote_heap::locks::PoolJudge> {
        let failed = |error: std::io::Error| StoreError::Refused { detail: error.to_string() };
        Ok(cenote_heap::locks::PoolJudge::new(&self.inner.handle).map_err(failed)?)
    }

    /// Its puddles that cannot be used, as opening the pool found them.
    #[must_use]
    pub fn damage(&self) -> Vec<cenote_store::Damage> {
        self.inner.handle.damage().to_vec()
    }

    /// Counts of the pool's heap.
    ///
    /// # Errors
    /// [`Error::HeapRecover`] if a puddle cannot be mapped.
    pub fn stats(&self) -> Result<HeapStats> {
        self.inner.refuse_forked()?;
        Ok(self.inner.heap.stats()?)
    }

    /// Superblocks of the pool's heap that are out of use, because bits of their descriptors or
    /// marks have flipped: as far as the pool was looked at when it was opened, and since.
    /// [`Pool::check`] looks at all of it.
    #[must_use]
    pub fn heap_damage(&self) -> Vec<HeapDamage> {
        self.inner.heap.damage()
    }

    /// Looks for damage, leaks, dangling pointers, and bytes that are no value of their type (a
    /// `bool` of 2, a `NonZero` of 0, a discriminant of no variant), and changes nothing. Waits for
    /// transactions; views may go on.
    ///
    /// What only another pool leads to is no leak: where something would be one, all pools of the store that can be opened are looked at, and transactions on
    /// any of them are waited for. What only a pool leads to that cannot be opened, or that this thread has a transaction on, counts as a leak.
    ///
    /// Links of leaks are verified too, inside the pool: a program may have kept the handle of one.
    ///
    /// # Errors
    /// [`Error::HeapRecover`] if a puddle cannot be mapped; [`Error::WouldDeadlock`] in a transaction of this thread on this pool.
    pub fn check(&self) -> Result<HeapReport> {
        self.check_with(TraceOptions::default())
    }

    /// [`Pool::check`] by as many threads as `options` allow, with progress reported. It may be reported from the beginning a second time, where other pools have to be looked
    /// at too.
    ///
    /// # Errors
    /// As [`Pool::check`]; [`Error::HeapRecover`] if `progress` breaks it off.
    pub fn check_with(&self, mut options: TraceOptions<'_>) -> Result<HeapReport> {
        self.inner.handle.ensure_readable()?;
        let _checking = Checking::begin(self)?;
        {
            let _view = self.view()?;
            let types = StoreTypes(&self.inner.store.store);
            let mut report = self.inner.heap.check_with(&types, options.again())?;
            if report.leaked_blocks == 0 {
                report.values = Some(self.inner.check_values(options)?);
                return Ok(report);
            }
        }
        crate::check::with_other_pools(self, options)
    }

    /// Gives the space of the pool's free superblocks (64 KiB each) back to the file system. The pool's size and its addresses stay; an allocation that needs the space
    /// again takes it, or fails as on any full disk. Transactions go on meanwhile, and none waits.
    ///
    /// What free blocks take in superblocks that hold others stays, and the puddles' own metadata.
    ///
    /// # Errors
    /// [`Error::Store`] if the pool is read-only, the store poisoned, or the process a fork; [`Error::NotWhole`] if it is damaged; [`Error::HeapRecover`] if the file
    /// system reports an error.
    pub fn trim(&self) -> Result<TrimReport> {
        self.trim_with(&mut |_| ControlFlow::Continue(()))
    }

    /// [`Pool::trim`] that tells how far it has come, and ends early if it is told to.
    ///
    /// # Errors
    /// As [`Pool::trim`].
    pub fn trim_with(
        &self,
        progress: &mut dyn FnMut(&TrimProgress) -> ControlFlow<()>,
    ) -> Result<TrimReport> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner.store, self.name())?;
        if !self.inner.changeable {
            return Err(self.inner.why_unchangeable());
        }
        Ok(self.inner.heap.trim_with(progress)?)
    }

    /// Gives back what is allocated in this pool but cannot be reached from any root of any pool: blocks that a raw allocation never attached.
    /// Opens all pools of the store, and waits for views and transactions on any of them.
    ///
    /// A block that is not allocated stays so, whatever leads to it: a pointer that dangles is no reason to take what lies there for a value.
    ///
    /// All that is given back dies at one moment, also if the process dies meanwhile: the next
    /// opener finds all of it, or nothing.
    ///
    /// # Errors
    /// [`Error::HeapRecover`]; [`Error::WouldDeadlock`]; [`Error::NotWhole`] if some pool is damaged, because what it has lost may lead to values of this one; as
    /// [`crate::Store::pool_with`], if some pool cannot be opened.
    pub fn collect(&self) -> Result<RecoveryReport> {
        self.inner.refuse_forked()?;
        let store = &self.inner.store;
        let pools = store.store.pools();
        let pools: Vec<Arc<PoolInner>> = pools
            .iter()
            .map(|info| store.pools.find_or_open(store, &info.record.name, Access::ReadWrite, By::Us))
            .collect::<Result<_>>()?;
        if let Some(pool) = pools.iter().find(|pool| crate::tx::covers_here(pool) || pool.is_viewed_here()) {
            return Err(Error::WouldDeadlock {
                pool: pool.handle.name().to_string(),
                by: "a view or a transaction",
            });
        }
        pools.iter().try_for_each(|pool| pool.refuse_doubt())?;
        // Marks are computed from what is reached: not from half of a pool.
        pools.iter().try_for_each(|pool| pool.handle.ensure_readable())?;
        let all: Vec<&PoolInner> = pools.iter().map(|pool| &**pool).collect();
        let _guards = crate::tx::lock_all(&all);
        let _turns = crate::between::turns(&all)?;
        let heaps: Heaps<'_> = all.iter().map(|pool| (pool.handle.id(), &pool.heap)).collect();
        let reached = reached_from_elsewhere(&store.store, &heaps)?;
        let roots: Vec<u64> = reached.get(&self.id()).into_iter().flatten().copied().collect();
        let heap = &self.inner.heap;
        let mut options = TraceOptions::default();
        options.believe_marks = true;
        Ok(heap.recover_with(&StoreTypes(&store.store), &roots, options)?)
    }

    /// The root of this name; see [`Reader::named_root`].
    ///
    /// # Errors
    /// As [`Pool::read`] and [`Reader::named_root`].
    pub fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>> {
        self.read()?.named_root(name)
    }

    /// The roots that have names, in the order of the names. Works for pools whose values are not shown, too: a name and an address are good for people, not for
    /// programs to follow.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in a transaction of this thread on this pool; [`Error::Store`] in a forked process.
    pub fn named_roots(&self) -> Result<Vec<NamedRoot>> {
        let view = self.view()?;
        names::list(&view, &self.inner)
    }

    /// The pool as blocks and roots, for tools.
    #[must_use]
    pub fn heap(&self) -> Blocks<'_> {
        Blocks(&self.inner.heap)
    }

    /// The heap, for the raw interface.
    ///
    /// # Safety
    /// What safe code believes of the pool stays true: a block of a type that a pointer or a root leads to holds a value of that type before the
    /// pool's lock is free, and a block that somebody has a reference to is not freed. (Allocation and roots are safe functions of
    /// [`Heap`] because they break nothing by themselves; what they leave in a pool is what values are read from.) While leaks are looked for ([`crate::Store::reclaim_in_background`]), what is
    /// changed without a transaction is said before, by [`cenote_heap::reclaim::before_change`], and under the pool's lock.
    ///
    /// At `power` what is allocated or freed without a transaction is so after a loss of power only if its mark was flushed and fenced before anything leads to the block, or before
    /// its place is given out: see [`Heap::alloc_with`]. A transaction does that.
    #[must_use]
    #[inline]
    pub unsafe fn raw_heap(&self) -> &dyn Heap {
        if !local::has_log(&self.inner.store) {
            self.inner.store.reclaims.note_used();
        }
        &self.inner.heap
    }
}

/// A pool as blocks and roots, none of which can be changed; see [`Pool::heap`].
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'p>(&'p TracedHeap);

impl Blocks<'_> {
    /// Calls `visit` for every allocated block, in order of addresses within a puddle; see [`Heap::walk`].
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    pub fn walk(
        &self,
        visit: &mut dyn FnMut(BlockInfo),
    ) -> core::result::Result<(), cenote_heap::RecoverError> {
        self.0.walk(visit)
    }

    /// Calls `visit` for every superblock, in order of addresses within a puddle: what it is used for, and how full it is.
    ///
    /// # Errors
    /// A puddle cannot be mapped.
    pub fn superblocks(
        &self,
        visit: &mut dyn FnMut(&SuperblockInfo),
    ) -> core::result::Result<(), cenote_heap::RecoverError> {
        self.0.superblocks(visit)
    }

    /// The allocated block that contains `addr`, if one does.
    #[must_use]
    pub fn owner(&self, addr: u64) -> Option<BlockInfo> {
        self.0.owner(addr)
    }

    /// Numbered root `index` of 1,024, whatever its type.
    ///
    /// # Errors
    /// There is no such root.
    pub fn root(&self, index: u16) -> core::result::Result<RootEntry, cenote_heap::RootError> {
        self.0.root(index)
    }
}

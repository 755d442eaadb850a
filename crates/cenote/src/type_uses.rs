//! Which types of a store its pools use; and types that no pool uses, which do not refuse others.
//!
//! A pool uses the types of its blocks, and those that these name
//! ([`TypeNames`](cenote_layout::types::TypeNames)). A type that no pool uses is taken out where a
//! changed type of its name comes: so a program under development changes its structures while no
//! value of them is stored.
//!
//! *States*: the old record; the new one, or none. **One batch of the catalog commits**
//! ([`cenote_store::Store::exchange_types`]). It changes no pool.
//!
//! *Why no block of the type comes back or is made meanwhile.* The list of open pools is held, so
//! no thread opens one. A block that a transaction frees is marked until the commit is durable. No
//! thread of this process allocates blocks of a type that the store has otherwise than the program,
//! or that names such a type: [`PoolInner::know`] refuses both. A program may have the type as the
//! older version of another: so a type that an open pool has learnt stays, and no pool learns
//! meanwhile ([`Inner::learning`]).
//!
//! The blocks of another moment of a pool are not known. Such a pool is *unclear* and uses every
//! type: one in shadowed mode (a loss of power takes it back), one that is damaged, torn, to be
//! traced, or named by a log that is set aside. Where a daemon keeps the store there are other
//! writers: there all is unclear.

use crate::checking::refuse_within;
use crate::error::{Error, Result};
use crate::known::known_types;
use crate::open_pool::{OpenList, PoolInner, doubt_of};
use crate::open_pools::pools_of;
use crate::session::{Inner, Store};
use cenote_heap::{HeapStats, Inspect as _, PoolBacking, PoolHeap, Reclaim};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::TypeId;
use cenote_layout::types::{TypeNames, TypeRecord};
use cenote_medium::planted::{Bug, TypeBug, planted};
use cenote_store::{Access, Damage, PoolInfo};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

/// How the pools of a store use its types.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TypeUses {
    /// All registered types, by name.
    pub types: Vec<TypeUse>,
    /// Pools of which the uses are not known, and why. Such a pool counts as a user of every type.
    pub unclear: Vec<UnclearPool>,
}

/// A registered type, and what uses it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct TypeUse {
    /// The type.
    pub record: Arc<TypeRecord>,
    /// Pools with blocks of it, by name, and how many each has.
    pub blocks: Vec<(String, u64)>,
    /// Whether a pool has blocks of the type, or of one that names it.
    pub is_used: bool,
}

/// A pool of which the uses are not known.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnclearPool {
    /// Its name.
    pub pool: String,
    /// Why.
    pub why: String,
}

impl TypeUses {
    /// Why a type cannot be removed; `None`: no pool uses it.
    #[must_use]
    pub fn keeps(&self, id: TypeId) -> Option<String> {
        let found = self.types.iter().find(|found| found.record.id == id)?;
        if let Some((pool, blocks)) = found.blocks.first() {
            return Some(format!("pool \"{pool}\" has {blocks} blocks of it"));
        }
        if found.is_used {
            return Some("a type of which a pool has blocks names it".into());
        }
        let UnclearPool { pool, why } = self.unclear.first()?;
        Some(format!("pool \"{pool}\" may have values of it: {why}"))
    }

    /// Whether no pool uses the type, as far as all pools are known.
    #[must_use]
    pub fn is_unused(&self, id: TypeId) -> bool {
        self.types.iter().any(|found| found.record.id == id) && self.keeps(id).is_none()
    }
}

impl Store {
    /// All registered types, and which pools use them. Looks at all pools, and opens those that are
    /// closed for reading. Changes nothing.
    ///
    /// # Errors
    /// [`Error::WouldDeadlock`] in code that a check calls.
    pub fn type_uses(&self) -> Result<TypeUses> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, "")?;
        let held;
        let list = pools_of(&self.inner).locked();
        held = open_of(&list);
        Ok(uses(&self.inner, &list, &held))
    }

    /// Removes a registered type that no pool uses. Durable on return. A program that uses the type
    /// registers it again.
    ///
    /// # Errors
    /// [`Error::TypeUsed`]: a pool uses it, or may use it; a pool of the store is open in this
    /// process. [`Error::TypeUnknown`]: there is no such type. [`Error::Store`]: the store is
    /// read-only, or a daemon keeps it.
    pub fn remove_type(&self, id: TypeId) -> Result<()> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, "")?;
        let list = pools_of(&self.inner).locked();
        let record = self.inner.store.type_record(id);
        let record = record.ok_or_else(|| Error::TypeUnknown { name: id.to_string() })?;
        let used = |why| Error::TypeUsed { name: record.name.clone(), why };
        // Its handles remember which types the store knows.
        if let Some((pool, _)) = list.first() {
            return Err(used(format!("pool \"{pool}\" is open in this process")));
        }
        if let Some(why) = uses(&self.inner, &list, &[]).keeps(id) {
            return Err(used(why));
        }
        // SAFETY: no pool uses it, by what the top of the file says, and no pool is open.
        unsafe { self.inner.store.exchange_types(&[id], &[]) }?;
        Ok(())
    }
}

/// Takes what this program's type contradicts out of the store's registry, if no pool uses it, and
/// registers the type. `false`: it is used, or that is not known; nothing was done. The caller
/// writes [`Inner::learning`].
pub(crate) fn replace_unused(store: &Inner, offered: &TypeRecord) -> Result<bool> {
    if store.store.is_connected() || !is_whole(store) {
        return Ok(false);
    }
    // This thread may be within what holds the list. The pools are dropped after it.
    let held;
    let list = match pools_of(store).try_locked() {
        Some(list) => list,
        None => return Ok(false),
    };
    held = open_of(&list);
    // A run of reclaiming keeps what it was told about types.
    let reclaims = |pool: &Arc<PoolInner>| {
        pool.heap.capability::<dyn Reclaim>().is_ok_and(|heap| heap.is_reclaiming())
    };
    let others = store.store.other_versions(offered);
    if others.is_empty() && store.store.type_record(offered.id).as_deref() == Some(offered) {
        // Another thread has done it.
        return Ok(true);
    }
    let mut old: Vec<TypeId> = others.iter().map(|record| record.id).collect();
    old.extend(store.store.type_record(offered.id).map(|record| record.id));
    let uses = uses(store, &list, &held);
    let learnt = |id: &TypeId| {
        let known = known_types().get(id).copied();
        let known =
            known.filter(|known| store.store.type_record(*id).as_deref() == Some(&known.record));
        known.is_some_and(|known| {
            held.iter().any(|pool| pool.known_all.read().contains(&known.rust_type))
        })
    };
    if old.iter().any(learnt) {
        return Ok(false);
    }
    let is_free = |id| uses.is_unused(id) || planted(Bug::Type(TypeBug::UsedReplaced));
    if held.iter().any(reclaims) || !old.iter().all(|id| is_free(*id)) {
        return Ok(false);
    }
    // SAFETY: no pool uses the old record, by what the top of the file says. The new one is that
    // of a type of this program, from its implementation of `Persist`.
    unsafe { store.store.exchange_types(&old, &[offered]) }?;
    store.types_exchanged();
    Ok(true)
}

/// The pools that are open. If one of these is the last handle, dropping it takes the list.
fn open_of(list: &OpenList) -> Vec<Arc<PoolInner>> {
    list.iter().filter_map(|(_, pool)| pool.upgrade()).collect()
}

/// Whether what the store says of its pools can be believed.
fn is_whole(store: &Inner) -> bool {
    let of_pools = |damage: &Damage| !matches!(damage, Damage::Orphan { .. });
    !store.store.is_unchecked_copy() && !store.store.damage().iter().any(of_pools)
}

/// Looks at all pools. The list is held, and `open` are those of it that are open.
fn uses(store: &Inner, list: &OpenList, open: &[Arc<PoolInner>]) -> TypeUses {
    let records = store.store.types();
    let mut blocks: BTreeMap<TypeId, Vec<(String, u64)>> = BTreeMap::new();
    let mut unclear = Vec::new();
    for info in store.store.pools() {
        let name = &info.record.name;
        match stats(store, &info, (list, open)) {
            Err(why) => unclear.push(UnclearPool { pool: name.clone(), why }),
            Ok(stats) => {
                for bin in stats.bins.iter().filter(|bin| bin.blocks > 0) {
                    let pools = blocks.entry(bin.type_id).or_default();
                    match pools.last_mut().filter(|(pool, _)| pool == name) {
                        Some((_, count)) => *count += bin.blocks,
                        None => pools.push((name.clone(), bin.blocks)),
                    }
                }
            }
        }
    }
    let of_blocks: BTreeSet<TypeId> = blocks.keys().copied().collect();
    let used = TypeNames::new(&records).used(&of_blocks);
    let mut types: Vec<TypeUse> = records
        .iter()
        .map(|record| TypeUse {
            record: Arc::clone(record),
            blocks: blocks.remove(&record.id).unwrap_or_default(),
            is_used: used.contains(&record.id),
        })
        .collect();
    types.sort_by(|a, b| a.record.name.cmp(&b.record.name));
    TypeUses { types, unclear }
}

/// The blocks of one pool, or why they do not say all that it may hold.
fn stats(
    store: &Inner,
    info: &PoolInfo,
    (list, open): (&OpenList, &[Arc<PoolInner>]),
) -> core::result::Result<HeapStats, String> {
    let (name, id) = (&info.record.name, info.record.id);
    if store.store.is_connected() {
        return Err("a daemon keeps the store, and other programs use it".into());
    }
    if !is_whole(store) {
        return Err("the store is damaged".into());
    }
    if info.record.mode == PoolMode::Shadowed {
        return Err("it is in shadowed mode, and a loss of power takes it back".into());
    }
    let due = store.store.pools_due().contains(&id);
    let logs = store.store.undecided_logs().map_err(|error| error.to_string())?;
    if due || logs.iter().any(|logs| logs.pools.iter().any(|(pool, _)| *pool == id)) {
        return Err("it needs recovery, or a decision about its logs".into());
    }
    let counted = |heap: &PoolHeap| match heap.stats() {
        Ok(stats) if stats.damaged_superblocks == 0 && !heap.is_damaged() => Ok(stats),
        Ok(_) => Err("its heap is damaged".to_string()),
        Err(error) => Err(error.to_string()),
    };
    if let Some(pool) = open.iter().find(|pool| pool.is_named(name)) {
        pool.refuse_doubt().map_err(|doubt| doubt.to_string())?;
        return counted(&pool.heap);
    }
    if list.iter().any(|(listed, _)| listed == name) {
        return Err("it is being closed".into());
    }
    let opened = store.store.open_pool(name, Access::ReadOnly);
    let handle = opened.map_err(|error| error.to_string())?;
    if doubt_of(store, &handle).is_some() || handle.trace_due() {
        return Err("it is damaged, torn, or needs recovery".into());
    }
    // SAFETY: for reading: a heap of a pool that is not writable changes nothing.
    let heap = PoolHeap::open(unsafe { PoolBacking::of(handle) });
    counted(&heap.map_err(|error| error.to_string())?)
}

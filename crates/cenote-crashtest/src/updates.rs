//! Updates of the store itself, crashed everywhere: format, open, create, grow, remove, register,
//! compact, close.
//!
//! A *script* of updates runs on one simulated medium; what has been acknowledged is a
//! [`KnownStore`]. Whatever a crash leaves, the next open works, what was acknowledged is there,
//! what was in flight is there whole or not at all, and no file is left that no record names.

use crate::explore::{ExploreTally, ExploreWhen};
use crate::rig::{SMALL_LOG, WINDOW_LEN, pool_options};
use crate::tier::Sampled;
use crate::walk::Walk;
use cenote::Persist;
use cenote_heap::{Inspect as _, PoolBacking, TracedHeap};
use cenote_layout::PAGE_SIZE;
use cenote_layout::header::read;
use cenote_layout::puddle::{PuddleHeader, Role};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_store::{
    Access, FormatOptions, LogLease, OpenError, OpenOptions, PoolHandle, Store, StoreError,
};
use std::collections::{BTreeMap, BTreeSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::Instant;

/// One update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Update {
    /// Make a store.
    Format,
    /// Open it for writing.
    Open,
    /// Create a pool.
    Create(&'static str),
    /// Open a pool for writing.
    Lease(&'static str),
    /// Add a puddle to a pool that is open.
    Grow(&'static str),
    /// Write something into the end of a pool's last puddle.
    Fill(&'static str),
    /// Have a puddle made ahead for a pool that is open.
    Expect(&'static str),
    /// Let go of a pool.
    Release(&'static str),
    /// Remove a pool.
    Remove(&'static str),
    /// Register a type.
    Register,
    /// Take a log.
    TakeLog,
    /// Add a segment to it.
    GrowLog,
    /// Give it back.
    ReturnLog,
    /// Create and remove pools until the catalog is written anew; only the last change is crashed.
    Compact,
    /// Close the store.
    Close,
    /// Stop without closing, as a killed process does.
    Kill,
}

/// What is known to be in a store.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct KnownStore {
    /// Whether there is a store.
    pub formatted: bool,
    /// Pools, with the number of their puddles.
    pub pools: BTreeMap<String, usize>,
    /// Types.
    pub types: usize,
    /// Pools that may hold what a loss of power loses, where the level is `process`.
    pub leased: BTreeSet<String>,
    /// Pools that something was written into.
    pub filled: BTreeSet<String>,
}

/// What [`Update::Fill`] writes.
const FILLED: u64 = 0x5ec7_e70f_a000_001d;

#[derive(Persist)]
struct Thing {
    value: u64,
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

fn options() -> OpenOptions {
    OpenOptions { log_puddle_size: SMALL_LOG, ..OpenOptions::default() }
}

fn format_options(window: u64) -> FormatOptions {
    FormatOptions { window_base: Some(window), window_len: WINDOW_LEN, uuid: None }
}

/// A script in progress.
struct Run {
    sim: Arc<SimMedium>,
    window: u64,
    pools: BTreeMap<&'static str, PoolHandle>,
    log: Option<LogLease>,
    store: Option<Store>,
    known: KnownStore,
}

impl Run {
    fn store(&self) -> Result<&Store, String> {
        self.store.as_ref().ok_or_else(|| "the store is not open".into())
    }

    /// Does one update; `known` is what it leads to.
    fn step(&mut self, update: Update) -> Result<(), String> {
        match update {
            Update::Format => {
                cenote_store::format(self.sim.clone(), &format_options(self.window))
                    .map_err(text)?;
            }
            Update::Open => {
                self.store = Some(Store::open(self.sim.clone(), options()).map_err(text)?.0)
            }
            Update::Create(name) => {
                self.store()?.create_pool(name, &pool_options(1)).map_err(text)?;
            }
            Update::Lease(name) => {
                let pool = self.store()?.open_pool(name, Access::ReadWrite).map_err(text)?;
                self.pools.insert(name, pool);
            }
            Update::Grow(name) => {
                self.pools
                    .get(name)
                    .ok_or("the pool is not open")?
                    .take_puddle(128 << 10)
                    .map_err(text)?;
            }
            Update::Fill(name) => {
                let pool = self.pools.get(name).ok_or("the pool is not open")?;
                let puddle = pool.puddles().pop().ok_or("the pool has no puddle")?;
                let word = (puddle.addr() + puddle.size() - 8) as *mut u64;
                // SAFETY: the last word of a puddle that is mapped for writing; no heap has given
                // it out.
                unsafe {
                    word.write(FILLED);
                    self.store()?.persistence().persist(word.cast(), 8);
                }
            }
            Update::Expect(name) => {
                self.pools.get(name).ok_or("the pool is not open")?.expect_puddle(128 << 10);
            }
            Update::Release(name) => drop(self.pools.remove(name)),
            Update::Remove(name) => self.store()?.remove_pool(name).map_err(text)?,
            Update::Register => {
                // SAFETY: `Thing` is as its record says.
                unsafe { self.store()?.register_type(&Thing::record()) }.map_err(text)?;
            }
            Update::TakeLog => self.log = Some(self.store()?.acquire_log().map_err(text)?),
            Update::GrowLog => {
                let log_id = self.log.as_ref().ok_or("no log")?.log_id();
                self.store()?.grow_log(log_id, 1).map_err(text)?;
            }
            Update::ReturnLog => {
                let log = self.log.take().ok_or("no log")?;
                self.store()?.release_log(log);
            }
            Update::Compact => self.compact()?,
            Update::Close => self.store.take().ok_or("not open")?.close().map_err(text)?,
            Update::Kill => {
                self.pools.clear();
                self.store.take().ok_or("not open")?.abandon();
            }
        }
        self.known = after(&self.known, update);
        Ok(())
    }

    fn compact(&mut self) -> Result<(), String> {
        for _ in 0..2000 {
            let before = self.store()?.info().catalog_bytes;
            self.sim.forget_trace();
            self.store()?.create_pool("short-lived", &pool_options(1)).map_err(text)?;
            // Also a state that this update may be found in; see `allowed`.
            if self.store()?.info().catalog_bytes < before {
                return self.store()?.remove_pool("short-lived").map_err(text);
            }
            self.sim.forget_trace();
            self.store()?.remove_pool("short-lived").map_err(text)?;
            if self.store()?.info().catalog_bytes < before {
                return Ok(());
            }
        }
        Err("the catalog was never written anew".into())
    }

    fn stop(&mut self) {
        self.pools.clear();
        if let Some(store) = self.store.take() {
            store.abandon();
        }
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        self.stop();
    }
}

fn after(known: &KnownStore, update: Update) -> KnownStore {
    let mut known = known.clone();
    match update {
        Update::Format => known.formatted = true,
        Update::Create(name) => {
            known.pools.insert(name.into(), 1);
        }
        Update::Grow(name) => *known.pools.entry(name.into()).or_default() += 1,
        Update::Remove(name) => {
            known.pools.remove(name);
            known.leased.remove(name);
            known.filled.remove(name);
        }
        Update::Fill(name) => {
            known.filled.insert(name.into());
        }
        Update::Lease(name) => {
            known.leased.insert(name.into());
        }
        Update::Register => known.types = 1,
        Update::Close => known.leased.clear(),
        _ => {}
    }
    known
}

/// What may be found when `update` was in flight.
fn allowed(known: &KnownStore, update: Update) -> Vec<KnownStore> {
    let mut out = vec![known.clone(), after(known, update)];
    if update == Update::Compact {
        let mut with = known.clone();
        with.pools.insert("short-lived".into(), 1);
        out.push(with);
    }
    out
}

/// Runs a script and checks every crash of it; those of `recoveries` have their recovery
/// crashed as well. Every update is crashed in a run of its own, which ends with it: an image wants
/// the window that the run has.
///
/// # Errors
/// The first thing that does not hold.
pub fn run(
    script: &[Update],
    level: Durability,
    window: u64,
    bug: (Bug, ExploreWhen),
    recoveries: Sampled,
) -> Result<ExploreTally, String> {
    let began = Instant::now();
    let check = Check { level, window };
    let mut walk = Walk::new(recoveries);
    for (number, &update) in script.iter().enumerate() {
        let sim = SimMedium::new(SimOptions::new(level));
        let known = KnownStore::default();
        let mut run =
            Run { sim: sim.clone(), window, pools: BTreeMap::new(), log: None, store: None, known };
        let mut before = KnownStore::default();
        plant(if bug.1 == ExploreWhen::Recovering { Bug::None } else { bug.0 });
        let result = script[..=number].iter().try_for_each(|&step| {
            before = run.known.clone();
            sim.forget_trace();
            sim.note(0);
            run.step(step)
        });
        plant(Bug::None);
        result.map_err(|e| format!("{update:?} (update {number}): {e}"))?;
        sim.note(1);
        let events = sim.trace_len();
        let in_flight = allowed(&before, update);
        let acknowledged = [run.known.clone()];
        run.stop();
        walk.tally.histories += 1;
        plant(if bug.1 == ExploreWhen::Running { Bug::None } else { bug.0 });
        let result = (1..=events).try_for_each(|event| {
            let state = sim.state_after(event);
            let may: &[KnownStore] = if state.note() == 1 { &acknowledged } else { &in_flight };
            let mut requirement = DefaultHasher::new();
            may.hash(&mut requirement);
            let look = |image: &Image, crashed: Option<&Image>| {
                check.image(image, may, crashed.is_some_and(|crashed| check.loses(crashed)))
            };
            walk.state(&state, requirement.finish(), &look, &recover)
        });
        plant(Bug::None);
        result.map_err(|e| format!("{update:?} (update {number}): {e}"))?;
    }
    walk.tally.took = began.elapsed();
    Ok(walk.tally)
}

/// Opens an image, whose opening is to be crashed; false: it is not a store yet.
fn recover(sim: &Arc<SimMedium>) -> bool {
    let opened = Store::open(sim.clone(), options());
    opened.map(|(store, _)| store.abandon()).is_ok()
}

struct Check {
    level: Durability,
    window: u64,
}

impl Check {
    /// Whether open pools may be torn: the pages of their files were in the page cache only.
    fn loses(&self, image: &Image) -> bool {
        self.level == Durability::Process && image.kind() == CrashKind::Power
    }

    /// The next open of an image, and what it finds; `lost` if pools may have been torn before.
    fn image(&self, image: &Image, may: &[KnownStore], lost: bool) -> Result<(), String> {
        let sim = SimMedium::from_image_unrecorded(image);
        let lost = lost || self.loses(image);
        let Some((store, found)) = self.open(&sim, may)? else { return Ok(()) };
        self.look(&sim, &store, &found, may, lost)?;
        store.close().map_err(|e| format!("close: {e}"))?;
        let (store, report) =
            Store::open(sim.clone(), options()).map_err(|e| format!("open again: {e}"))?;
        if !report.clean || !report.damage.is_empty() || report.orphans_removed != 0 {
            return Err(format!("the second open finds {report:?}"));
        }
        let again = self.found(&store);
        store.abandon();
        if again == found {
            Ok(())
        } else {
            Err(format!("a second open finds {again:?} instead of {found:?}"))
        }
    }

    /// Opens; where there need not be a store yet, formats first.
    fn open(
        &self,
        sim: &Arc<SimMedium>,
        may: &[KnownStore],
    ) -> Result<Option<(Store, KnownStore)>, String> {
        let opened = match Store::open(sim.clone(), options()) {
            Err(OpenError::NotAStore { .. } | OpenError::FormatInterrupted { .. })
                if may.iter().any(|k| !k.formatted) =>
            {
                cenote_store::format(sim.clone(), &format_options(self.window))
                    .map_err(|e| format!("format again: {e}"))?;
                Store::open(sim.clone(), options())
            }
            other => other,
        };
        let (store, report) = opened.map_err(|e| format!("open: {e}"))?;
        if !report.damage.is_empty() || report.demoted {
            return Err(format!(
                "a crash that is legal is reported as damage: {:?}",
                report.damage
            ));
        }
        let found = self.found(&store);
        Ok(Some((store, found)))
    }

    fn found(&self, store: &Store) -> KnownStore {
        let pools =
            store.pools().into_iter().map(|p| (p.record.name, p.puddles as usize)).collect();
        KnownStore {
            formatted: true,
            pools,
            types: store.types().len(),
            leased: BTreeSet::new(),
            filled: BTreeSet::new(),
        }
    }

    fn look(
        &self,
        sim: &SimMedium,
        store: &Store,
        found: &KnownStore,
        may: &[KnownStore],
        lost: bool,
    ) -> Result<(), String> {
        let same = |k: &KnownStore| (&k.pools, k.types) == (&found.pools, found.types);
        if !may.iter().any(same) {
            return Err(format!("found is {found:?}, allowed is {may:?}"));
        }
        let files = sim.list("puddles").map_err(text)?.len() as u64;
        if files != store.info().puddles {
            return Err(format!("{files} puddle files, {} records", store.info().puddles));
        }
        let mut others = sim.list("").map_err(text)?;
        others.retain(|name| {
            !["catalog.0", "catalog.1", "lock", "puddles", "superblock"].contains(&&**name)
        });
        if !others.is_empty() {
            return Err(format!("files are left: {others:?}"));
        }
        self.nothing_left(sim, store, may)?;
        for (name, puddles) in &found.pools {
            let pool = match store.open_pool(name, Access::ReadWrite) {
                Err(StoreError::PoolNotCovered { .. })
                    if lost && may.iter().any(|k| k.leased.contains(name)) =>
                {
                    continue;
                }
                other => other.map_err(|e| format!("pool {name}: {e}"))?,
            };
            if pool.puddles().len() != *puddles {
                return Err(format!(
                    "pool {name} has {} puddles, not {puddles}",
                    pool.puddles().len()
                ));
            }
            // SAFETY: the store is on a simulated medium, and nothing else opens its pools.
            let heap = TracedHeap::open(unsafe { PoolBacking::of(pool) })
                .map_err(|e| format!("heap of pool {name}: {e}"))?;
            let report = heap.check(None).map_err(text)?;
            if !report.is_sound() {
                return Err(format!("heap of pool {name}: {report:?}"));
            }
        }
        let lease = store.acquire_log().map_err(|e| format!("a log: {e}"))?;
        store.release_log(lease);
        Ok(())
    }

    /// What was written into a pool that is removed comes to no other, and a spare puddle that says
    /// it is zeros is.
    fn nothing_left(
        &self,
        sim: &SimMedium,
        store: &Store,
        may: &[KnownStore],
    ) -> Result<(), String> {
        let pools = store.pools();
        for name in sim.list("puddles").map_err(text)? {
            let file = format!("puddles/{name}");
            let len = sim.len(&file).map_err(text)?;
            let (mut page, mut word) = ([0; PAGE_SIZE as usize], [0; 8]);
            sim.read_at(&file, 0, &mut page).map_err(text)?;
            sim.read_at(&file, len.saturating_sub(8), &mut word).map_err(text)?;
            let Ok(header) = read::<PuddleHeader>(&page, false) else { continue };
            let clean = match Role::from_u32(header.role) {
                Some(Role::Spare) => true,
                Some(Role::Heap | Role::Metadata) => pools.iter().any(|pool| {
                    pool.record.id == header.pool
                        && !may.iter().any(|k| k.filled.contains(&pool.record.name))
                }),
                _ => false,
            };
            if clean && u64::from_le_bytes(word) == FILLED {
                return Err(format!(
                    "what a removed pool held is in puddle {name} of role {}",
                    header.role
                ));
            }
        }
        Ok(())
    }
}

//! The pools of these tests, the steps of a script, what is to be there after each, and what is.

use super::windows::{Taken, window_base};
use super::{AT_REST, HEAP, is_protected, own_key};
use cenote::{
    Access, Error, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, RelPtr, Store,
    field,
};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_store::{OpenError, StoreError};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "relocation::Root")]
pub(super) struct Root {
    pub(super) count: u64,
    pub(super) sum: u64,
    pub(super) first: Option<Ptr<Node>>,
    pub(super) wide: Option<Ptr<Wide>>,
    /// In pool "direct".
    pub(super) peer: Option<Ptr<Node>>,
    /// What makes a second file of the puddle that it is in: an off-holder is rewritten once only.
    pub(super) near: RelPtr<Node>,
}

#[derive(Persist)]
#[persist(name = "relocation::Node")]
pub(super) struct Node {
    pub(super) value: u64,
    pub(super) next: Option<Ptr<Node>>,
}

/// More than a superblock, so that it lies in a puddle of its own, which is rewritten in its file.
#[derive(Persist)]
#[persist(name = "relocation::Wide")]
pub(super) struct Wide {
    pub(super) back: Option<Ptr<Root>>,
    pub(super) data: [u64; 8000],
    /// In other sectors than `back`.
    pub(super) again: [Option<Ptr<Root>>; 4],
    pub(super) other: Option<Ptr<Wide>>,
    pub(super) rest: [u64; 1000],
}

pub(super) const WIDE: Wide =
    Wide { back: None, data: [7; 8000], again: [None; 4], other: None, rest: [8; 1000] };

pub(super) const NAMES: [&str; 3] = ["direct", "beside", "shadowed"];

/// Count and sum of a pool's list, and whether what is wide leads out of the pool.
pub(super) type Content = (u64, u64, bool);

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    DualMapping(&'static str, &'static str),
    Randomize(&'static str),
    /// Opens a pool for writing, or for reading; the simulation touches all of it.
    Write(&'static str),
    Read(&'static str),
    Push(&'static str, u64),
    Psync(&'static str),
    /// Lets what is wide in a pool lead to what is wide in another.
    Lead(&'static str, &'static str),
    /// Lets go of all pools.
    Release,
    Die,
    /// Dies, and is opened where its window is taken.
    Meet,
    /// The same after a close.
    CloseAndMeet,
}
pub(super) use Step::{
    CloseAndMeet, Die, DualMapping, Lead, Meet, Psync, Push, Randomize, Read, Release, Write,
};

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn open_options() -> OpenOptions {
    // Records of sealed pages are longer, and each page of a journal that grows is a crash point.
    let journal_half_len = if is_protected() { 64 << 10 } else { 8192 };
    OpenOptions {
        log_puddle_size: 8 << 10,
        journal_half_len,
        key: own_key(),
        accept_unprotected: true,
        ..OpenOptions::default()
    }
}

pub(super) fn base_image(level: Durability) -> Result<Image, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = cenote_store::FormatOptions {
        window_base: Some(window_base()),
        window_len: 128 << 20,
        ..Default::default()
    };
    cenote_store::format(medium.clone(), &format).map_err(text)?;
    let store = Store::open_on(medium, &open_options()).map_err(text)?;
    let mut pools = Vec::new();
    for (name, mode) in
        NAMES.into_iter().zip([PoolMode::Direct, PoolMode::Direct, PoolMode::Shadowed])
    {
        let heap = HEAP.get();
        let mut options =
            PoolOptions { puddle_size: 2 << 16, mode, heap, ..PoolOptions::default() };
        if mode == PoolMode::Shadowed {
            (options.at_rest, options.key) = (AT_REST.with(Cell::get), own_key());
        }
        pools.push(store.create_pool(name, &options).map_err(text)?);
    }
    // Those of one mode together: "beside" leads to "direct", "shadowed" to itself.
    for pools in [&[&pools[0], &pools[1]][..], &[&pools[2]]] {
        let made = store.write(pools, |tx| -> cenote::Result<()> {
            let mut peer = None;
            for pool in pools {
                let first = tx.alloc_in(pool, Node { value: 1, next: None })?;
                let peer = *peer.get_or_insert(first);
                let wide = tx.alloc_in(pool, WIDE)?;
                let root = Root {
                    count: 1,
                    sum: 1,
                    first: Some(first),
                    wide: Some(wide),
                    peer: Some(peer),
                    near: RelPtr::NULL,
                };
                let root = tx.alloc_in(pool, root)?;
                tx.set_rel(root, field!(Root, near), Some(first))?;
                tx.set(wide, field!(Wide, back), Some(root))?;
                tx.set(wide, field!(Wide, again), [Some(root); 4])?;
                tx.set(wide, field!(Wide, other), Some(wide))?;
                tx.set_root_in(pool, 0, Some(root))?;
            }
            Ok(())
        });
        made.map_err(text)?;
    }
    drop(pools);
    store.close().map_err(text)?;
    Ok(sim.image_now(CrashKind::Process))
}

pub(super) struct World {
    pub(super) store: Store,
    pub(super) pools: BTreeMap<&'static str, Pool>,
}

impl World {
    pub(super) fn open(sim: &Arc<SimMedium>) -> Result<Self, String> {
        let medium: Arc<dyn Medium> = sim.clone();
        let store = Store::open_on(medium, &open_options()).map_err(|e| format!("open: {e}"))?;
        Ok(Self { store, pools: BTreeMap::new() })
    }

    pub(super) fn step(&mut self, step: Step) -> cenote::Result<()> {
        match step {
            DualMapping(from, to) => self.store.clone_pool(from, to).map(drop),
            Randomize(name) => self.store.randomize_pool(name),
            Write(name) | Read(name) => {
                let access =
                    if matches!(step, Write(_)) { Access::ReadWrite } else { Access::ReadOnly };
                self.pools.insert(name, self.store.pool_with(name, access)?);
                Ok(())
            }
            Push(name, value) => self.pools[name].write(|tx| {
                let root = tx.root::<Root>()?.expect("a root");
                let (count, sum, next) = {
                    let root = tx.get(root)?;
                    (root.count, root.sum, root.first)
                };
                let node = tx.alloc(Node { value, next })?;
                tx.set(root, field!(Root, count), count + 1)?;
                tx.set(root, field!(Root, sum), sum + value)?;
                tx.set(root, field!(Root, first), Some(node))
            }),
            Psync(name) => self.store.psync(&[&self.pools[name]]).map(drop),
            Lead(from, to) => {
                let there = {
                    let view = self.pools[to].read()?;
                    let root = view.root::<Root>()?.expect("a root");
                    view.get(root)?.wide
                };
                self.pools[from].write(|tx| {
                    let root = tx.root::<Root>()?.expect("a root");
                    let wide = tx.get(root)?.wide.expect("a wide");
                    tx.set(wide, field!(Wide, other), there)
                })
            }
            Release => {
                self.pools.clear();
                Ok(())
            }
            Die | Meet | CloseAndMeet => Ok(()),
        }
    }

    /// Contents of all pools. One that a loss of power may have torn is `None`.
    pub(super) fn contents(&self) -> Result<BTreeMap<String, Option<Content>>, String> {
        let names: Vec<String> =
            self.store.pools().into_iter().map(|info| info.record.name).collect();
        let mut contents = BTreeMap::new();
        for name in names {
            if is_protected() {
                // Before anything is loaded from it: a page that is damaged ends the program.
                let found = match self.store.verify_pool(&name, &mut |_, _| true) {
                    Err(Error::Store(StoreError::PoolNotCovered { .. })) => Vec::new(),
                    found => found.map_err(|error| format!("{name}: {error}"))?,
                };
                if found.iter().any(|puddle| !puddle.found.damaged.is_empty()) {
                    return Err(format!("{name}: {found:?}"));
                }
            }
            let content = match self.looked_at(&name) {
                Ok(pool) => Some(self.content(&pool)?),
                Err(Error::Store(StoreError::PoolNotCovered { .. })) => None,
                Err(error) => return Err(format!("{name}: {error}")),
            };
            contents.insert(name, content);
        }
        Ok(contents)
    }

    /// A pool, to be read. One whose heap a crash left in the middle of a change is opened for
    /// writing, where that can be.
    fn looked_at(&self, name: &str) -> cenote::Result<Pool> {
        self.store.pool_with(name, Access::ReadOnly).or_else(|refused| {
            match refused.to_string().contains("interrupted a change of the heap") {
                true => self.store.pool_with(name, Access::ReadWrite).map_err(|_| refused),
                false => Err(refused),
            }
        })
    }

    pub(super) fn content(&self, pool: &Pool) -> Result<Content, String> {
        let failed = |error: Error| format!("pool {}: {error}", pool.name());
        let view = pool.read().map_err(failed)?;
        let at = view.root::<Root>().map_err(failed)?.ok_or("no root")?;
        let root = view.get(at).map_err(failed)?;
        let wide = view.get(root.wide.ok_or("no wide")?).map_err(failed)?;
        if wide.back != Some(at)
            || wide.again != [Some(at); 4]
            || wide.data != WIDE.data
            || wide.rest != WIDE.rest
        {
            let leads = (wide.back, wide.again);
            return Err(format!(
                "pool {}: what is wide leads to {leads:?}, not {at:?}",
                pool.name()
            ));
        }
        let near = view.get(root.near.get().ok_or("no off-holder")?).map_err(failed)?;
        if near.value != 1 {
            return Err(format!("pool {}: its off-holder leads to {}", pool.name(), near.value));
        }
        let other = wide.other.ok_or("no other")?.addr();
        let own = self.store.puddle_records().into_iter().filter(|puddle| puddle.pool == pool.id());
        let away = own.into_iter().all(|puddle| other.wrapping_sub(puddle.addr) >= puddle.size);
        let (mut count, mut sum, mut next) = (0, 0, root.first);
        while let Some(node) = next {
            let node = view.get(node).map_err(failed)?;
            (count, sum, next) = (count + 1, sum + node.value, node.next);
        }
        if (count, sum) != (root.count, root.sum) {
            return Err(format!(
                "pool {}: {count} of {sum}, not {} of {}",
                pool.name(),
                root.count,
                root.sum
            ));
        }
        {
            // Copies lead to themselves, as their originals do; "beside" to "direct".
            let home = if pool.name() != "beside" {
                None
            } else {
                match self.looked_at("direct") {
                    Ok(home) => Some(home),
                    Err(Error::Store(StoreError::PoolNotCovered { .. })) => {
                        return Ok((count, sum, away));
                    }
                    Err(error) => return Err(failed(error)),
                }
            };
            let peer = root.peer.ok_or("no peer")?;
            let value = match &home {
                None => view.get(peer).map_err(failed)?.value,
                Some(home) => {
                    let there = home.read().map_err(failed)?;
                    there.get(peer).map_err(failed)?.value
                }
            };
            if value != 1 {
                return Err(format!("pool {}: its peer is {value}", pool.name()));
            }
        }
        drop(view);
        let report = pool.check().map_err(failed)?;
        // A leak is what only another pool leads to.
        if report.unallocated_blocks > 0 || !report.damage.is_empty() {
            return Err(format!("pool {}: {report:?}", pool.name()));
        }
        Ok((count, sum, away))
    }

    pub(super) fn die(self) {
        self.store.clone().abandon();
    }
}

/// What is to be there after each step: by transactions, and by psyncs.
#[derive(Clone, Debug, Default)]
pub(super) struct ExpectedState {
    pub(super) written: BTreeMap<String, Content>,
    pub(super) psynced: BTreeMap<String, Content>,
    pub(super) shadowed: BTreeMap<String, bool>,
}

impl ExpectedState {
    pub(super) fn first() -> Self {
        let all: BTreeMap<String, Content> =
            NAMES.map(|name| (name.to_string(), (1, 1, false))).into();
        let shadowed = NAMES.map(|name| (name.to_string(), name == "shadowed")).into();
        Self { written: all.clone(), psynced: all, shadowed }
    }

    pub(super) fn after(&self, step: Step) -> Self {
        let mut next = self.clone();
        match step {
            DualMapping(from, to) => {
                let content = self.written[from];
                if is_protected() && self.shadowed[from] {
                    // What only memory had is psynced before it is copied.
                    next.psynced.insert(from.into(), content);
                }
                next.written.insert(to.into(), content);
                next.psynced.insert(to.into(), content);
                next.shadowed.insert(to.into(), self.shadowed[from]);
            }
            // All pools that are leased are psynced.
            Randomize(_) => next.psynced = self.written.clone(),
            Push(name, value) => {
                let (count, sum, away) = self.written[name];
                next.written.insert(name.into(), (count + 1, sum + value, away));
            }
            Lead(from, to) => {
                let (count, sum, _) = self.written[from];
                next.written.insert(from.into(), (count, sum, from != to));
            }
            Psync(name) => {
                next.psynced.insert(name.into(), self.written[name]);
            }
            // All pools are psynced before the window moves.
            CloseAndMeet => next.psynced = self.written.clone(),
            Meet if !is_protected() => next.psynced = self.written.clone(),
            Die | Meet if is_protected() => {
                let gone = self.psynced.iter().filter(|(name, _)| self.shadowed[*name]);
                next.written.extend(gone.map(|(name, content)| (name.clone(), *content)));
            }
            _ => {}
        }
        next
    }

    pub(super) fn expects(&self, name: &str, kind: CrashKind) -> Option<Content> {
        let goes_back = kind != CrashKind::Process || is_protected();
        let by_psync = goes_back && self.shadowed.get(name) == Some(&true);
        let of = if by_psync { &self.psynced } else { &self.written };
        of.get(name).copied()
    }
}

/// Runs a script; the simulation's note says how many steps are done.
pub(super) fn history(sim: &Arc<SimMedium>, steps: &[Step]) -> Result<Vec<ExpectedState>, String> {
    let mut world = World::open(sim)?;
    let mut states = vec![ExpectedState::first()];
    sim.note(0);
    for (done, step) in steps.iter().enumerate() {
        if matches!(step, Die | Meet | CloseAndMeet) {
            let window = world.store.window();
            match step {
                CloseAndMeet => {
                    world.pools.clear();
                    world.store.close().map_err(text)?;
                }
                _ => world.die(),
            }
            let _taken = if matches!(step, Die) { None } else { Some(Taken::new(window)?) };
            world = World::open(sim)?;
        } else {
            world.step(*step).map_err(|e| format!("{step:?}: {e}"))?;
        }
        states.push(states[done].after(*step));
        sim.note(done as u64 + 1);
    }
    world.die();
    Ok(states)
}

pub(super) fn verify(
    sim: &Arc<SimMedium>,
    states: &[ExpectedState],
    kind: CrashKind,
    note: u64,
    level: Durability,
) -> Result<(), String> {
    let world = World::open(sim)?;
    let contents = world.contents();
    world.die();
    compare(contents?, states, kind, note, level)
}

/// The same where the window is taken that the image says: by a writer, and before that by a
/// reader, which changes nothing.
pub(super) fn verify_where_taken(
    image: &Image,
    states: &[ExpectedState],
    kind: CrashKind,
    level: Durability,
) -> Result<(), String> {
    let open = |access| {
        let sim = SimMedium::from_image_unrecorded(image);
        let medium: Arc<dyn Medium> = sim.clone();
        let store = Store::open_on(medium, &OpenOptions { access, ..open_options() });
        store.map(|store| (sim, World { store, pools: BTreeMap::new() }))
    };
    let (_, world) = open(Access::ReadOnly).map_err(|error| format!("at home: {error}"))?;
    let window = world.store.window();
    world.die();
    let _taken = Taken::new(window)?;
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let (sim, world) = match open(access) {
            Ok(opened) => opened,
            // What is to be opened at home first: protected pools that are pending in part.
            Err(Error::Open(OpenError::WindowStays { why, .. })) if why.contains("in part") => {
                continue;
            }
            Err(error) => return Err(format!("where its window is taken: {error}")),
        };
        let contents = world.contents();
        world.die();
        let compared =
            contents.and_then(|contents| compare(contents, states, kind, image.note(), level));
        match compared {
            // A reader cannot trace, nor undo a change of a heap, at home neither.
            Err(what)
                if access == Access::ReadOnly
                    && ["needs recovery by tracing", "interrupted a change of the heap"]
                        .iter()
                        .any(|refused| what.contains(refused)) => {}
            compared => {
                compared.map_err(|what| format!("{access:?}, where its window is taken: {what}"))?
            }
        }
        let changed = |name: &String| sim.read(name).ok() != image.file(name);
        if access == Access::ReadOnly && image.names().iter().any(changed) {
            return Err("a reader has written".into());
        }
    }
    Ok(())
}

pub(super) fn compare(
    contents: BTreeMap<String, Option<Content>>,
    states: &[ExpectedState],
    kind: CrashKind,
    note: u64,
    level: Durability,
) -> Result<(), String> {
    let between = &states[note as usize..states.len().min(note as usize + 2)];
    let names: std::collections::BTreeSet<&String> =
        contents.keys().chain(between.iter().flat_map(|state| state.written.keys())).collect();
    for name in names {
        let found = match contents.get(name) {
            // Power failed at a level that does not cover it: named, and refused.
            Some(None) if kind != CrashKind::Process && level == Durability::Process => continue,
            Some(None) => return Err(format!("pool {name} is not covered")),
            Some(Some(content)) => Some(*content),
            None => None,
        };
        if !between.iter().any(|state| state.expects(name, kind) == found) {
            let expected: Vec<_> = between.iter().map(|state| state.expects(name, kind)).collect();
            return Err(format!("pool {name} holds {found:?}, not one of {expected:?}"));
        }
    }
    Ok(())
}

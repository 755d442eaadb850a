//! The pools of these tests, the steps of a history, what is to be there after each, and what is.

use super::{HEAP, at_rest, own_key};
use cenote::{
    Access, AtRest, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, Store, field,
};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use std::sync::Arc;

/// In the order of their numbers. The third is in direct mode and is only there where commits
/// survive loss of power.
pub(super) const POOLS: [&str; 3] = ["a", "b", "direct"];

/// What a root leads to.
#[derive(Persist)]
#[persist(name = "shadowed::Root")]
pub(super) struct Root {
    pub(super) count: u64,
    pub(super) sum: u64,
    pub(super) first: Option<Ptr<Node>>,
}

/// A third of a page, so that a history touches several.
#[derive(Persist)]
#[persist(name = "shadowed::Node")]
pub(super) struct Node {
    pub(super) value: u64,
    pub(super) next: Option<Ptr<Node>>,
    pub(super) pad: [u64; 170],
}

/// More than a superblock: the pool grows.
#[derive(Persist)]
#[persist(name = "shadowed::Wide")]
pub(super) struct Wide {
    pub(super) data: [u64; 9000],
}

/// Count and sum of one pool's list.
pub(super) type Content = (u64, u64);
/// Of all pools.
pub(super) type State = Vec<Content>;

#[derive(Clone, Copy, Debug)]
pub(super) enum Step {
    /// A transaction that pushes a node of this value to these pools, a bit each.
    Push(u8, u64),
    /// A transaction that frees the first node of a pool.
    Pop(usize),
    /// A transaction that needs a further puddle of a pool.
    Grow(usize),
    /// Psyncs these pools together.
    Psync(u8),
    /// The process dies, and another one goes on.
    Die,
    /// The store is closed and opened again.
    Reopen,
}
pub(super) use Step::{Die, Grow, Pop, Psync, Push, Reopen};

pub(super) fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

pub(super) fn open_options() -> OpenOptions {
    let key = own_key();
    // A record of sealed pages is longer, and a journal that grows makes a crash point of every
    // page of it.
    let journal_half_len = if at_rest() == AtRest::None { 8192 } else { 64 << 10 };
    OpenOptions {
        log_puddle_size: 8 << 10,
        journal_half_len,
        key,
        // A pool in direct mode lies beside the protected ones.
        accept_unprotected: true,
        ..OpenOptions::default()
    }
}

pub(super) fn pool_options(mode: PoolMode) -> PoolOptions {
    let heap = HEAP.with(std::cell::Cell::get);
    let options = PoolOptions { heap, puddle_size: 3 << 16, mode, ..PoolOptions::default() };
    match mode {
        PoolMode::Direct => options,
        PoolMode::Shadowed => PoolOptions { at_rest: at_rest(), key: own_key(), ..options },
    }
}

/// A free window for this thread's simulations.
pub(super) fn window_base() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! {
        static MINE: u64 = 0x3300_0000_0000 + (NEXT.fetch_add(1, Ordering::Relaxed) << 32);
    }
    MINE.with(|base| *base)
}

/// Pools of a level.
pub(super) fn names(level: Durability) -> &'static [&'static str] {
    if level == Durability::Power { &POOLS } else { &POOLS[..2] }
}

pub(super) fn base_image(level: Durability) -> Result<Image, String> {
    let sim = SimMedium::new(SimOptions::new(level));
    let medium: Arc<dyn Medium> = sim.clone();
    let format = cenote_store::FormatOptions {
        window_base: Some(window_base()),
        window_len: 64 << 20,
        ..Default::default()
    };
    cenote_store::format(medium.clone(), &format).map_err(text)?;
    let store = Store::open_on(medium, &open_options()).map_err(text)?;
    for name in names(level) {
        let mode = if *name == "direct" { PoolMode::Direct } else { PoolMode::Shadowed };
        let pool = store.create_pool(name, &pool_options(mode)).map_err(text)?;
        pool.write(|tx| -> cenote::Result<()> {
            let wide = tx.alloc(Wide { data: [0; 9000] })?;
            tx.free(wide)?;
            let root = tx.alloc(Root { count: 0, sum: 0, first: None })?;
            tx.set_root(root)
        })
        .map_err(text)?;
    }
    store.close().map_err(text)?;
    Ok(sim.image_now(CrashKind::Process))
}

pub(super) struct World {
    pub(super) store: Store,
    pub(super) pools: Vec<Pool>,
}

impl World {
    pub(super) fn open(
        sim: &Arc<SimMedium>,
        options: &OpenOptions,
        level: Durability,
    ) -> Result<Self, String> {
        let medium: Arc<dyn Medium> = sim.clone();
        let store = Store::open_on(medium, options).map_err(|e| format!("open: {e}"))?;
        let open =
            |name: &&str| store.pool_with(name, options.access).map_err(|e| format!("{name}: {e}"));
        match names(level).iter().map(open).collect() {
            Ok(pools) => Ok(Self { store, pools }),
            Err(error) => {
                store.abandon();
                Err(error)
            }
        }
    }

    pub(super) fn die(self) {
        self.store.clone().abandon();
    }

    pub(super) fn close(self) -> Result<(), String> {
        drop(self.pools);
        self.store.close().map_err(|e| format!("close: {e}"))
    }

    pub(super) fn chosen(&self, mask: u8) -> Vec<&Pool> {
        self.pools
            .iter()
            .enumerate()
            .filter(|(i, _)| mask >> i & 1 == 1)
            .map(|(_, pool)| pool)
            .collect()
    }

    pub(super) fn step(&self, step: Step) -> cenote::Result<()> {
        match step {
            Push(mask, value) => {
                let pools = self.chosen(mask);
                self.store.write(&pools, |tx| {
                    for pool in &pools {
                        let root = tx.root_in::<Root>(pool, 0)?.expect("a root");
                        let (count, sum, first) = {
                            let root = tx.get(root)?;
                            (root.count, root.sum, root.first)
                        };
                        let node =
                            tx.alloc_in(pool, Node { value, next: first, pad: [value; 170] })?;
                        tx.set(root, field!(Root, count), count + 1)?;
                        tx.set(root, field!(Root, sum), sum + value)?;
                        tx.set(root, field!(Root, first), Some(node))?;
                    }
                    Ok(())
                })
            }
            Pop(pool) => self.pools[pool].write(|tx| {
                let root = tx.root::<Root>()?.expect("a root");
                let Some(first) = tx.get(root)?.first else { return Ok(()) };
                let (value, next) = (tx.get(first)?.value, tx.get(first)?.next);
                let (count, sum) = (tx.get(root)?.count, tx.get(root)?.sum);
                tx.set(root, field!(Root, count), count - 1)?;
                tx.set(root, field!(Root, sum), sum - value)?;
                tx.set(root, field!(Root, first), next)?;
                tx.free(first)
            }),
            Grow(pool) => self.pools[pool].write(|tx| {
                for data in [[1; 9000], [2; 9000]] {
                    let wide = tx.alloc(Wide { data })?;
                    tx.free(wide)?;
                }
                Ok(())
            }),
            Psync(mask) => self.store.psync(&self.chosen(mask)).map(drop),
            Die | Reopen => Ok(()),
        }
    }

    pub(super) fn state(&self, check: bool) -> Result<State, String> {
        self.pools.iter().map(|pool| content(pool, check)).collect()
    }
}

pub(super) fn content(pool: &Pool, check: bool) -> Result<Content, String> {
    let view = pool.read().map_err(text)?;
    let root = view.root::<Root>().map_err(text)?.ok_or("no root")?;
    let root = view.get(root).map_err(text)?;
    let (mut count, mut sum, mut at) = (0, 0, root.first);
    while let Some(node) = at {
        let node = view.get(node).map_err(|e| format!("pool {}: {e}", pool.name()))?;
        if node.pad != [node.value; 170] {
            return Err(format!("pool {}: a node of value {} is torn", pool.name(), node.value));
        }
        (count, sum, at) = (count + 1, sum + node.value, node.next);
    }
    if (count, sum) != (root.count, root.sum) {
        return Err(format!(
            "pool {}: the list has {count} nodes of {sum}, the root says {} of {}",
            pool.name(),
            root.count,
            root.sum
        ));
    }
    drop(view);
    if check {
        let report = pool.check().map_err(text)?;
        if !report.is_sound() {
            return Err(format!("pool {}: the heap is not sound: {report:?}", pool.name()));
        }
    }
    Ok((count, sum))
}

pub(super) fn model(state: &mut State, lists: &mut [Vec<u64>], step: Step) {
    match step {
        Push(mask, value) => {
            for (i, list) in lists.iter_mut().enumerate() {
                if mask >> i & 1 == 1 {
                    list.push(value);
                }
            }
        }
        Pop(pool) => drop(lists[pool].pop()),
        _ => {}
    }
    *state = lists.iter().map(|list| (list.len() as u64, list.iter().sum())).collect();
}

/// What the oracle knows of a history: states after each transaction, and pools in shadowed mode
/// after each psync.
pub(super) struct History {
    pub(super) level: Durability,
    pub(super) transactions: Vec<State>,
    pub(super) psyncs: Vec<State>,
}

pub(super) const SHADOWED: usize = 2;

/// Runs a history. The simulation's note says how many transactions and psyncs were acknowledged.
pub(super) fn history(
    sim: &Arc<SimMedium>,
    steps: &[Step],
    level: Durability,
) -> Result<History, String> {
    let mut world = World::open(sim, &open_options(), level)?;
    let mut lists: Vec<Vec<u64>> = vec![Vec::new(); world.pools.len()];
    let mut psynced_lists = lists.clone();
    let mut state: State = vec![(0, 0); world.pools.len()];
    let mut known = History {
        level,
        transactions: vec![state.clone()],
        psyncs: vec![state[..SHADOWED].to_vec()],
    };
    let note = |known: &History| {
        sim.note((known.transactions.len() as u64 - 1) << 32 | (known.psyncs.len() as u64 - 1));
    };
    note(&known);
    for step in steps {
        match step {
            Push(..) | Pop(_) | Grow(_) => {
                model(&mut state, &mut lists, *step);
                known.transactions.push(state.clone());
                world.step(*step).map_err(|e| format!("{step:?}: {e}"))?;
            }
            Psync(mask) => {
                let mut psynced = known.psyncs.last().expect("the first").clone();
                for (i, content) in psynced.iter_mut().enumerate() {
                    if mask >> i & 1 == 1 {
                        *content = state[i];
                        psynced_lists[i].clone_from(&lists[i]);
                    }
                }
                known.psyncs.push(psynced);
                world.step(*step).map_err(|e| format!("{step:?}: {e}"))?;
            }
            Die | Reopen => {
                if matches!(step, Die) {
                    world.die();
                    if at_rest() != AtRest::None {
                        lists[..SHADOWED].clone_from_slice(&psynced_lists[..SHADOWED]);
                        model(&mut state, &mut lists, *step);
                        known.transactions.push(state.clone());
                    }
                } else {
                    world.close()?;
                    // One pool after the other.
                    for i in 0..SHADOWED {
                        let mut psynced = known.psyncs.last().expect("the first").clone();
                        psynced[i] = state[i];
                        psynced_lists[i].clone_from(&lists[i]);
                        known.psyncs.push(psynced);
                    }
                }
                world = World::open(sim, &open_options(), level)?;
                if world.state(false)? != state {
                    return Err(format!(
                        "after {step:?} {:?} is there, not {state:?}",
                        world.state(false)?
                    ));
                }
            }
        }
        note(&known);
    }
    world.die();
    Ok(known)
}

impl History {
    /// Whether a state may be there after a crash. What is in flight is at most a transaction, or a
    /// psync, or, in a close, two.
    pub(super) fn allows(&self, state: &State, kind: CrashKind, note: u64) -> Result<(), String> {
        let (transactions, psyncs) = ((note >> 32) as usize, (note & 0xffff_ffff) as usize);
        let last = |all: &[State], from: usize, more: usize| (from + more).min(all.len() - 1);
        let in_transactions =
            &self.transactions[transactions..=last(&self.transactions, transactions, 1)];
        if kind == CrashKind::Process && at_rest() == AtRest::None {
            return if in_transactions.contains(state) {
                Ok(())
            } else {
                Err(format!("{state:?} is there, and transactions made {in_transactions:?}"))
            };
        }
        let in_psyncs = &self.psyncs[psyncs..=last(&self.psyncs, psyncs, 2)];
        if !in_psyncs.iter().any(|psynced| psynced[..] == state[..SHADOWED]) {
            return Err(format!("{state:?} is there, and psyncs made {in_psyncs:?}"));
        }
        if !in_transactions.iter().any(|after| after[SHADOWED..] == state[SHADOWED..]) {
            return Err(format!("{state:?} is there, and transactions made {in_transactions:?}"));
        }
        Ok(())
    }

    pub(super) fn verify(&self, image: &Image, note: u64) -> Result<(), String> {
        let sim = SimMedium::from_image_unrecorded(image);
        let world = World::open(&sim, &open_options(), self.level)?;
        let state = world.state(true);
        world.die();
        self.allows(&state?, image.kind(), note)
    }

    /// The same without writing a byte.
    pub(super) fn verify_read_only(&self, image: &Image, note: u64) -> Result<(), String> {
        if self.level == Durability::Power && image.kind() != CrashKind::Process {
            return Ok(()); // a pool in direct mode is to be traced first, by a writer
        }
        let sim = SimMedium::from_image_unrecorded(image);
        let before = sim.image_now(CrashKind::Process).hash();
        let options = OpenOptions { access: Access::ReadOnly, ..open_options() };
        let world = World::open(&sim, &options, self.level)?;
        let state = world.state(true);
        world.die();
        if sim.image_now(CrashKind::Process).hash() != before {
            return Err("a read-only open changed a file".into());
        }
        self.allows(&state?, image.kind(), note).map_err(|what| format!("to read: {what}"))
    }

    /// What is done after recovery is as safe as before: another transaction, a psync, and a loss
    /// of power.
    pub(super) fn go_on(&self, image: &Image) -> Result<(), String> {
        let sim = SimMedium::from_image(image);
        let world = World::open(&sim, &open_options(), self.level)?;
        world.step(Push(1, 77)).map_err(text)?;
        world.step(Psync(3)).map_err(text)?;
        let psynced = world.state(false)?;
        world.step(Push(3, 78)).map_err(text)?;
        let crashed = sim.state_now();
        world.die();
        for image in [crashed.image_oldest(), crashed.image_latest()] {
            let sim = SimMedium::from_image_unrecorded(&image);
            let world = World::open(&sim, &open_options(), self.level)?;
            let state = world.state(true);
            world.die();
            let state = state?;
            if state[..SHADOWED] != psynced[..SHADOWED] {
                return Err(format!("later {state:?} is there, and {psynced:?} was psynced"));
            }
        }
        Ok(())
    }
}

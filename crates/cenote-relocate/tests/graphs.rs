//! Random object graphs over several pools and puddles, moved into windows that are free, partly
//! taken or elsewhere, together or one by one, cloned and given new addresses: each time what is
//! there must be isomorphic to what was, word for word, and the original the same byte for byte.
//!
//! `CENOTE_GRAPHS` sets the number of graphs (16), `CENOTE_SEED` the first seed.

use cenote_heap::{Heap as _, PoolBacking, TracedHeap};
use cenote_layout::catalog::{MoveRecord, PuddleRecord, RelocationRecord};
use cenote_layout::heap::{HeapGeometry, mark};
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::moves::Moves;
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_relative, encode_relative};
use cenote_layout::types::{Condition, PointerField, RECORD_VERSION, TypeRecord};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_relocate::{ImportManifest, ImportPool, ImportPuddle, Imported, image, options};
use cenote_store::relocate::{Backend, RewriteJob, TypeTable};
use cenote_store::{
    Access, FormatOptions, OpenOptions, PoolHandle, PoolMode, PoolOptions, Store, format,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

const NODE: TypeId = TypeId(0x10);
const PAIRS: TypeId = TypeId(0x11);
const TABLE: TypeId = TypeId(0x12);
const LEAF: TypeId = TypeId(0x13);

fn record(id: TypeId, size: u64, repeats: bool, pointers: Vec<PointerField>) -> TypeRecord {
    let name = format!("graphs::{id}");
    let (fields, variants) = (Vec::new(), Vec::new());
    let record = TypeRecord {
        version: RECORD_VERSION,
        id,
        name,
        size,
        align: 8,
        repeats,
        pointers,
        fields,
        variants,
    };
    record.check().unwrap();
    record
}

fn types() -> Vec<TypeRecord> {
    let plain = |offset, kind| PointerField {
        offset,
        stride: 8,
        count: 1,
        kind,
        tag_mask: 0,
        target: TypeId::UNTYPED,
        conditions: Vec::new(),
    };
    let native = |offset| plain(offset, PointerKind::NATIVE);
    let is = |value| vec![Condition { offset: 64, size: 1, value }];
    vec![
        // An enum among plain, tagged, relative and region pointers; the variants' pointers lie at
        // different places.
        record(
            NODE,
            72,
            false,
            vec![
                native(8),
                PointerField { tag_mask: 0xffff_0000_0000_0007, ..native(16) },
                plain(24, PointerKind::RELATIVE),
                plain(32, PointerKind::REGION),
                PointerField { conditions: is(1), ..native(40) },
                PointerField { conditions: is(2), count: 2, ..native(48) },
            ],
        ),
        record(PAIRS, 32, true, vec![PointerField { count: 2, stride: 16, ..native(8) }]),
        record(TABLE, 8, true, vec![native(0)]),
        record(LEAF, 8, true, Vec::new()),
    ]
}

/// Something allocated.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Object {
    pub(crate) pool: usize,
    addr: u64,
    size: u64,
    type_id: TypeId,
}

/// A pointer: where it stands, and where it leads, as object and offset; or nowhere.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Link {
    pub(crate) from: usize,
    offset: u64,
    kind: PointerKind,
    tag: u64,
    pub(crate) to: Option<(usize, u64)>,
}

/// Pools and what is in them.
pub(crate) struct Graph {
    pub(crate) names: Vec<String>,
    pub(crate) objects: Vec<Object>,
    pub(crate) links: Vec<Link>,
    /// Of each pool: roots, as objects.
    roots: Vec<Vec<(u16, usize)>>,
    /// Puddles where the graph was built, by address.
    puddles: Vec<PuddleRecord>,
    pub(crate) ids: Vec<PoolId>,
}

fn put(addr: u64, value: u64) {
    // SAFETY: tests write into blocks that they allocated, at offsets inside.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(addr as usize).write_unaligned(value) }
}

fn get(addr: u64) -> u64 {
    // SAFETY: as in `put`.
    unsafe { std::ptr::with_exposed_provenance::<u64>(addr as usize).read_unaligned() }
}

fn window_base(number: u64) -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    thread_local! { static MINE: u64 = 0x3700_0000_0000 + (NEXT.fetch_add(1, Relaxed) << 36) }
    MINE.with(|base| *base) + (number << 32)
}

pub(crate) fn blank(number: u64) -> Image {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let (window_base, window_len) = (Some(window_base(number)), 512 << 20);
    let uuid = Some(Uuid::from_random_bytes([number as u8 + 1; 16]));
    format(sim.clone(), &FormatOptions { window_base, window_len, uuid }).unwrap();
    sim.image_now(CrashKind::Process)
}

fn open(medium: &Arc<dyn Medium>) -> Store {
    let options = OpenOptions {
        log_puddle_size: 64 << 10,
        relocation: options(Backend::Signal),
        journal_half_len: 64 << 10,
        ..OpenOptions::default()
    };
    Store::open(Arc::clone(medium), options).unwrap().0
}

pub(crate) fn store_on(image: &Image) -> (Arc<dyn Medium>, Store) {
    let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(image);
    let store = open(&medium);
    (medium, store)
}

/// Builds a graph in a store, whose pools are closed afterwards.
pub(crate) fn build(store: &Store, random: &mut Random) -> Graph {
    let all = types();
    // SAFETY: the test lays its values out by these records.
    unsafe { store.register_types(&all.iter().collect::<Vec<_>>()) }.unwrap();
    let count = 1 + random.below(3) as usize;
    let mut graph = Graph {
        names: (0..count).map(|n| format!("pool {n}")).collect(),
        objects: Vec::new(),
        links: Vec::new(),
        roots: vec![Vec::new(); count],
        puddles: Vec::new(),
        ids: Vec::new(),
    };
    for name in &graph.names {
        let mode = if random.below(3) == 0 { PoolMode::Shadowed } else { PoolMode::Direct };
        let options = PoolOptions { puddle_size: 256 << 10, mode, ..PoolOptions::default() };
        graph.ids.push(store.create_pool(name, &options).unwrap());
    }
    let handles: Vec<_> =
        graph.names.iter().map(|name| store.open_pool(name, Access::ReadWrite).unwrap()).collect();
    // SAFETY: no other heap of these pools is open, and the test gives out no reference.
    let backing = |handle: &PoolHandle| unsafe { PoolBacking::of(handle.clone()) };
    let heaps: Vec<_> =
        handles.iter().map(|handle| TracedHeap::open(backing(handle)).unwrap()).collect();
    for _ in 0..20 + random.below(80) {
        let (pool, type_id, size) = (
            random.below(count as u64) as usize,
            [NODE, PAIRS, TABLE, LEAF][random.below(4) as usize],
            [16, 72, 96, 200, 1000, 5000, 40_000, 150_000][random.below(8) as usize],
        );
        let size = if type_id == NODE { 72 } else { size };
        let block = heaps[pool].alloc(size, 16, type_id).unwrap();
        let (addr, size) = (block.addr.as_ptr() as u64, block.size);
        for offset in (0..size).step_by(8) {
            put(addr + offset, if type_id == LEAF { random.next() } else { 0 });
        }
        graph.objects.push(Object { pool, addr, size, type_id });
        // Nothing looks at the contents of blocks that are free again.
        if random.below(4) == 0 {
            let gone = heaps[pool].alloc(72, 16, NODE).unwrap().addr.as_ptr() as u64;
            put(gone + 8, addr);
            heaps[pool].free(gone).unwrap();
        }
    }
    for from in 0..graph.objects.len() {
        let object = graph.objects[from];
        let slots: Vec<(u64, PointerKind, u64)> = match object.type_id {
            NODE => {
                let variant = random.below(3);
                put(object.addr, random.next());
                put(object.addr + 64, variant);
                // What no variant names is data, also where it looks like a pointer.
                for offset in [40, 48, 56] {
                    put(object.addr + offset, graph.objects[0].addr);
                }
                let mut slots = vec![
                    (8, PointerKind::NATIVE, 0),
                    (16, PointerKind::NATIVE, random.below(8) | random.below(1 << 16) << 48),
                    (24, PointerKind::RELATIVE, 0),
                    (32, PointerKind::REGION, 0),
                ];
                let more: &[u64] = [&[][..], &[40], &[48, 56]][variant as usize];
                slots.extend(more.iter().map(|offset| (*offset, PointerKind::NATIVE, 0)));
                slots
            }
            PAIRS => (0..object.size / 32)
                .flat_map(|value| [value * 32 + 8, value * 32 + 24])
                .map(|offset| (offset, PointerKind::NATIVE, 0))
                .collect(),
            TABLE => (0..object.size / 8).map(|word| (word * 8, PointerKind::NATIVE, 0)).collect(),
            _ => Vec::new(),
        };
        for (offset, kind, tag) in slots {
            let at = object.addr + offset;
            let number = random.below(graph.objects.len() as u64) as usize;
            let target = graph.objects[number];
            // To the start, inside, one past the end, or nowhere.
            let inside = match random.below(5) {
                0 if kind == PointerKind::NATIVE => target.size,
                1 => random.below(target.size) / 16 * 16,
                _ => 0,
            };
            let puddle = |addr: u64| {
                handles[target.pool]
                    .puddles()
                    .into_iter()
                    .find(|p| addr.wrapping_sub(p.addr()) < p.size())
                    .unwrap()
            };
            let word = match kind {
                _ if random.below(6) == 0 => tag,
                PointerKind::RELATIVE => encode_relative(at, target.addr + inside).unwrap(),
                PointerKind::REGION => {
                    let home = puddle(target.addr);
                    let (pool, puddle) = (home.pool(), home.index());
                    let offset = target.addr + inside - home.addr();
                    RegionAddress { pool, puddle, offset }.encode().unwrap()
                }
                _ => (target.addr + inside) | tag,
            };
            let to = (word != tag).then_some((number, inside));
            put(at, word);
            graph.links.push(Link { from, offset, kind, tag, to });
        }
    }
    for (pool, heap) in heaps.iter().enumerate() {
        for index in [0u16, 5, 1023] {
            let own: Vec<usize> =
                (0..graph.objects.len()).filter(|n| graph.objects[*n].pool == pool).collect();
            if let Some(object) = own.get(random.below(own.len().max(1) as u64) as usize) {
                heap.set_root(index, graph.objects[*object].addr, graph.objects[*object].type_id)
                    .unwrap();
                graph.roots[pool].push((index, *object));
            }
        }
    }
    drop(heaps);
    drop(handles);
    graph.puddles = store.puddle_records().into_iter().filter(|p| p.pool.0 != 0).collect();
    graph
}

/// Where the graph's pools are: by number in the graph, the name in the store.
pub(crate) type Names = BTreeMap<usize, String>;

impl Graph {
    /// Addresses in `store` of what was in the graph's puddles; what is not there is where it was.
    fn moved(&self, store: &Store, names: &Names) -> impl Fn(u64) -> u64 {
        let infos = store.pools();
        let id_of =
            |name: &String| infos.iter().find(|info| info.record.name == *name).unwrap().record.id;
        let records = store.puddle_records();
        let mut table = Vec::new();
        for old in &self.puddles {
            let pool = self.ids.iter().position(|id| *id == old.pool).unwrap();
            let Some(name) = names.get(&pool) else { continue };
            let id = id_of(name);
            let new = records.iter().find(|p| p.pool == id && p.index == old.index).unwrap();
            table.push((old.addr, old.size, new.addr));
        }
        move |addr| {
            let found = table.iter().find(|(old, size, _)| addr > *old && addr <= old + size);
            found.map_or(addr, |(old, _, new)| addr - old + new)
        }
    }

    /// Compares what is in the store with the graph.
    pub(crate) fn verify(&self, store: &Store, names: &Names) -> Result<(), String> {
        let handles: BTreeMap<usize, _> = names
            .iter()
            .map(|(pool, name)| (*pool, store.open_pool(name, Access::ReadOnly).unwrap()))
            .collect();
        let moved = self.moved(store, names);
        for (pool, handle) in &handles {
            // SAFETY: no other heap of the pool is open, and it is looked at only.
            let heap = TracedHeap::open(unsafe { PoolBacking::of(handle.clone()) })
                .map_err(|e| e.to_string())?;
            for (index, object) in &self.roots[*pool] {
                let root = heap.root(*index).map_err(|e| e.to_string())?.addr;
                if root != moved(self.objects[*object].addr) {
                    return Err(format!("root {index} leads to {root:#x}"));
                }
            }
            for object in self.objects.iter().filter(|object| object.pool == *pool) {
                if !heap.is_live(moved(object.addr), object.type_id) {
                    return Err(format!("{object:?} is not there"));
                }
            }
        }
        for link in
            self.links.iter().filter(|link| names.contains_key(&self.objects[link.from].pool))
        {
            let at = moved(self.objects[link.from].addr) + link.offset;
            let word = get(at);
            let expected = link.to.map(|(number, inside)| {
                let target = self.objects[number];
                // One past the end of a block is the block's, also where another puddle begins.
                moved(target.addr + 1) - 1 + inside
            });
            let found = match link.kind {
                _ if word == link.tag => None,
                PointerKind::RELATIVE => decode_relative(at, word),
                PointerKind::REGION => RegionAddress::decode(word)
                    .map(|region| store.region_address(&region).unwrap_or(0)),
                _ if word & 0xffff_0000_0000_0007 != link.tag && link.tag != 0 => {
                    return Err(format!("{link:?}: the tag is {word:#x}"));
                }
                _ => Some(word & !link.tag),
            };
            // A region pointer to a pool that was not taken along names a number that another pool
            // may have here.
            let ambiguous = link.kind == PointerKind::REGION
                && link
                    .to
                    .is_some_and(|(number, _)| !names.contains_key(&self.objects[number].pool));
            if found != expected && !ambiguous {
                return Err(format!("{link:?}: {found:x?} and not {expected:x?}"));
            }
        }
        for object in
            self.objects.iter().filter(|o| names.contains_key(&o.pool) && o.type_id == NODE)
        {
            if get(moved(object.addr) + 64) == 0
                && get(moved(object.addr) + 40) != self.objects[0].addr
            {
                return Err(format!("data of {object:?} were taken for a pointer"));
            }
        }
        Ok(())
    }
}

/// The files of all pools of a store.
pub(crate) fn files(store: &Store) -> BTreeMap<Uuid, Vec<u8>> {
    let heaps = store.puddle_records().into_iter().filter(|p| p.pool.0 != 0);
    heaps
        .map(|p| {
            let name = format!("puddles/{}", String::from_utf8_lossy(&p.uuid.to_hex()));
            (p.uuid, store.medium().read(&name).unwrap())
        })
        .collect()
}

/// What an archive would hold of some pools.
fn export(store: &Store, graph: &Graph, pools: &[usize]) -> (ImportManifest, Vec<Vec<u8>>) {
    let mut manifest = ImportManifest { pools: Vec::new(), types: types() };
    let mut bytes = Vec::new();
    for pool in pools {
        let from = store.quiescent_pool(&graph.names[*pool]).unwrap();
        manifest.pools.push(ImportPool {
            name: graph.names[*pool].clone(),
            old_id: from.record.id,
            mode: from.record.mode,
            heap: from.record.heap,
            puddle_size: from.record.puddle_size,
            size_max: from.record.size_max,
            permissions: 0o600,
            at_rest: from.at_rest,
            torn: from.torn,
            puddles: from
                .puddles
                .iter()
                .map(|(p, _)| ImportPuddle { old_addr: p.addr, size: p.size, identity: p.uuid })
                .collect(),
        });
        bytes.extend(from.puddles.iter().map(|(_, file)| store.medium().read(file).unwrap()));
    }
    (manifest, bytes)
}

fn import(store: &Store, (manifest, bytes): &(ImportManifest, Vec<Vec<u8>>)) -> Imported {
    let mut import = store.begin_import(manifest.clone()).unwrap();
    for (slot, bytes) in bytes.iter().enumerate() {
        import.write(slot, 4096, &bytes[4096..]).unwrap();
    }
    // SAFETY: the test made the values, and takes none of them for a reference.
    unsafe { import.commit() }.unwrap()
}

/// One graph, moved in all ways.
fn one(seed: u64) -> Result<(), String> {
    let random = &mut Random(seed);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let names: Names = graph.names.iter().cloned().enumerate().collect();
    graph.verify(&source, &names).map_err(|what| format!("as it was built: {what}"))?;
    let original = files(&source);

    // Elsewhere, beside pools that are there, all at once or one by one.
    let (_other, target) = store_on(&blank(1));
    for n in 0..random.below(3) {
        target.create_pool(&format!("other {n}"), &PoolOptions::default()).unwrap();
    }
    let mut pools: Vec<usize> = names.keys().copied().collect();
    if random.below(2) == 0 {
        pools.reverse();
    }
    if random.below(2) == 0 {
        let imported = import(&target, &export(&source, &graph, &pools));
        assert!(imported.pools.iter().all(|pool| pool.moved && pool.due > 0));
        graph.verify(&target, &names).map_err(|what| format!("imported together: {what}"))?;
    } else {
        for pool in &pools {
            import(&target, &export(&source, &graph, &[*pool]));
            let alone: Names = [(*pool, graph.names[*pool].clone())].into();
            graph.verify(&target, &alone).map_err(|what| format!("imported alone: {what}"))?;
        }
    }
    // Pools are removed while some of them are due, and nothing of that is left.
    target.close().map_err(|e| e.to_string())?;

    // Beside themselves, and with other addresses.
    let copies: Names = pools.iter().map(|pool| (*pool, format!("copy {pool}"))).collect();
    for (pool, copy) in &copies {
        source.clone_pool(&graph.names[*pool], copy).map_err(|e| e.to_string())?;
        let alone: Names = [(*pool, copy.clone())].into();
        graph.verify(&source, &alone).map_err(|what| format!("cloned: {what}"))?;
    }
    graph.verify(&source, &names).map_err(|what| format!("beside a clone: {what}"))?;
    let now = files(&source);
    if original.iter().any(|(uuid, bytes)| now[uuid] != *bytes) {
        return Err("the original has changed".into());
    }
    let mut exported = export(&source, &graph, &pools);
    for _ in 0..2 {
        let pool = pools[random.below(pools.len() as u64) as usize];
        source.randomize_pool(&graph.names[pool]).map_err(|e| e.to_string())?;
        if random.below(2) == 0 {
            graph.verify(&source, &names).map_err(|what| format!("randomized: {what}"))?;
        }
    }
    graph.verify(&source, &names).map_err(|what| format!("randomized twice: {what}"))?;
    source.close().map_err(|e| e.to_string())?;

    // Into a window of the same place: free, or partly taken.
    let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(&blank(0));
    let same = open(&medium);
    let taken = random.below(3);
    for n in 0..taken {
        same.create_pool(&format!("other {n}"), &PoolOptions::default()).unwrap();
    }
    if taken > 0 {
        for pool in &mut exported.0.pools {
            pool.name.push('\'');
        }
    }
    let imported = import(&same, &exported);
    let renamed: Names =
        pools.iter().zip(&exported.0.pools).map(|(n, pool)| (*n, pool.name.clone())).collect();
    if taken == 0 && pools.is_sorted() {
        assert!(
            imported.pools.iter().all(|pool| !pool.moved && pool.due == 0),
            "nothing conflicts: {imported:?}"
        );
    }
    graph
        .verify(&same, &renamed)
        .map_err(|what| format!("in the same window, {taken} in the way: {what}"))?;
    same.close().map_err(|e| e.to_string())
}

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn graphs_are_isomorphic_wherever_they_go() {
    let first = number("CENOTE_SEED", 1);
    for seed in first..first + number("CENOTE_GRAPHS", 16) {
        if let Err(what) = one(seed) {
            panic!("CENOTE_SEED={seed}: {what}");
        }
    }
}

#[test]
fn roots_that_are_forgotten_are_found() {
    plant(Bug::RootsNotRewritten);
    let found = (1..5).find_map(|seed| one(seed).err());
    plant(Bug::None);
    assert!(found.is_some_and(|what| what.contains("root")));
}

/// What is to be done to a puddle that moves by `distance`.
fn job(
    puddle: &PuddleRecord,
    distance: u64,
    moves: &Arc<Moves>,
    types: &Arc<TypeTable>,
) -> RewriteJob {
    RewriteJob {
        puddle: PuddleRecord { addr: puddle.addr + distance, ..*puddle },
        from: puddle.addr,
        moves: Arc::clone(moves),
        types: Arc::clone(types),
        all_blocks: false,
    }
}

/// Whether puddles are rewritten alike when blocks in them are condemned: a sweep that was not
/// committed makes them allocated again.
fn condemned_are_rewritten() -> bool {
    let random = &mut Random(12);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let original = files(&source);
    let types: Arc<TypeTable> =
        Arc::new(types().into_iter().map(|record| (record.id, Arc::new(record))).collect());
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + (1 << 36),
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    graph.puddles.iter().all(|puddle| {
        let job = job(puddle, 1 << 36, &moves, &types);
        let geometry = HeapGeometry::new(puddle.size, puddle.index == 0).unwrap();
        let marks = geometry.marks as usize..geometry.hints as usize;
        let mut plain = original[&puddle.uuid].clone();
        let mut condemned = plain.clone();
        let allocated = |mark: &&mut u8| **mark == mark::ALLOCATED;
        condemned[marks.clone()]
            .iter_mut()
            .filter(allocated)
            .for_each(|mark| *mark = mark::CONDEMNED);
        assert!(condemned != plain);
        image::rewrite(&mut plain, &job).unwrap();
        image::rewrite(&mut condemned, &job).unwrap();
        plain[marks.clone()].fill(0);
        condemned[marks].fill(0);
        plain == condemned
    })
}

#[test]
fn pointers_in_condemned_blocks_are_rewritten() {
    assert!(condemned_are_rewritten());
    plant(Bug::CondemnedNotRewritten);
    let rewritten = condemned_are_rewritten();
    plant(Bug::None);
    assert!(!rewritten, "nothing noticed that condemned blocks are left as they were");
}

/// Images that are no puddle's, or a puddle's with damage: no panic, and no byte is changed that is
/// not a pointer in a block.
#[test]
fn hostile_images_change_nothing_but_words_of_blocks() {
    let random = &mut Random(11);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let original = files(&source);
    let types: Arc<TypeTable> =
        Arc::new(types().into_iter().map(|record| (record.id, Arc::new(record))).collect());
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + (1 << 36),
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    let (mut refused, mut rewritten, mut damaged) = (0, 0, 0);
    for puddle in &graph.puddles {
        let job = job(puddle, 1 << 36, &moves, &types);
        let image = &original[&puddle.uuid];
        for round in 0..60 {
            let mut hostile = image.clone();
            match round % 4 {
                0 => hostile.truncate(random.below(image.len() as u64) as usize),
                1 => hostile.iter_mut().for_each(|byte| *byte = random.next() as u8),
                _ => {
                    for _ in 0..1 + random.below(2000) {
                        // Descriptors and marks lie in the first superblock.
                        let at = random.below((64 << 10).min(hostile.len() as u64)) as usize;
                        hostile[at] = if random.below(2) == 0 { random.next() as u8 } else { 0xff };
                    }
                }
            }
            let before = hostile.clone();
            match image::rewrite(&mut hostile, &job) {
                Err(_) => {
                    refused += 1;
                    assert!(hostile == before);
                }
                Ok(done) => {
                    rewritten += done.native;
                    damaged += done.damaged;
                    let changed =
                        hostile.chunks(8).zip(before.chunks(8)).filter(|(a, b)| a != b).count()
                            as u64;
                    assert!(
                        changed <= done.native + done.relative + done.region,
                        "round {round}: {changed} {done:?}"
                    );
                }
            }
            let _ = image::for_each_pointer(&mut hostile, puddle, &types, &mut |_| ());
        }
    }
    assert!(refused > 10 && rewritten > 100 && damaged > 10, "{refused} {rewritten} {damaged}");
}

/// What a crash leaves of a rewriting in the puddle's own file, any number of times: it ends the
/// same, no matter which words are new already. `Err`: it does not.
fn begun_again(random: &mut Random, distance: u64) -> Result<u64, String> {
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    // Off-holders and numbers of pools are not looked at here: of types that have them nothing is
    // repeatable.
    let native = |mut record: TypeRecord| {
        record.pointers.retain(|field| field.kind == PointerKind::NATIVE);
        (record.id, Arc::new(record))
    };
    let types: Arc<TypeTable> = Arc::new(types().into_iter().map(native).collect());
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + distance,
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    let mut crashes = 0;
    let original = files(&source);
    for puddle in &graph.puddles {
        let old = &original[&puddle.uuid];
        let work = job(puddle, distance, &moves, &types);
        let Some(stretches) = image::repeatable(old, &work) else { continue };
        let mut whole = old.clone();
        image::rewrite(&mut whole, &work).unwrap();
        let changed: Vec<usize> =
            (0..old.len()).step_by(8).filter(|at| old[*at..at + 8] != whole[*at..at + 8]).collect();
        let inside =
            |at: &usize| stretches.iter().any(|(from, to)| (*from..*to).contains(&(*at as u64)));
        assert!(changed.iter().all(inside), "words outside of {stretches:x?}");
        for round in 0..8 {
            let mut image = old.clone();
            for _ in 0..=round % 3 {
                let mut next = image.clone();
                image::rewrite(&mut next, &work).unwrap();
                for at in changed.iter().filter(|_| random.below(3) > 0) {
                    image[*at..at + 8].copy_from_slice(&next[*at..at + 8]);
                }
                crashes += u64::from(image != whole && !changed.is_empty());
            }
            image::rewrite(&mut image, &work).unwrap();
            if image != whole {
                return Err(format!("{distance:#x}, round {round}: it ends otherwise"));
            }
        }
    }
    Ok(crashes)
}

#[test]
fn what_is_rewritten_in_its_file_ends_the_same_wherever_a_crash_stopped_it() {
    let random = &mut Random(number("CENOTE_SEED", 12));
    for distance in [1 << 36, 64 << 21] {
        let crashes: u64 = (0..4).map(|_| begun_again(random, distance).unwrap()).sum();
        println!("{distance:#x}: {crashes} crashes");
        assert!(crashes > 60, "{distance:#x}: {crashes}");
    }
    // On top of where it was.
    assert_eq!(begun_again(random, 1 << 16).unwrap(), 0, "by another file");
    plant(Bug::OverlapRepeated);
    let found = (0..4).find_map(|_| begun_again(random, 1 << 16).err());
    plant(Bug::None);
    assert!(found.is_some_and(|what| what.contains("otherwise")));
}

/// A map that names the same words thousands of times, as an archive may bring one: memory for what
/// a value has words, and each word is changed once.
#[test]
fn a_pointer_map_with_more_pointers_than_words_changes_none_of_them_twice() {
    let random = &mut Random(13);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let original = files(&source);
    let again = |count| {
        let mut all = types();
        let table = all.iter_mut().find(|record| record.id == TABLE).unwrap();
        let field = table.pointers[0].clone();
        table.pointers = vec![field; count];
        table.check().unwrap();
        Arc::new(all.into_iter().map(|record| (record.id, Arc::new(record))).collect::<TypeTable>())
    };
    // By their own size: what is sent through this twice comes elsewhere.
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + (1 << 21),
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    let mut native = 0;
    for puddle in &graph.puddles {
        let rewritten = |types| {
            let work = job(puddle, 1 << 21, &moves, &types);
            let mut image = original[&puddle.uuid].clone();
            let done = image::rewrite(&mut image, &work).unwrap();
            (image, done)
        };
        let (plain, done) = rewritten(again(1));
        let (hostile, counted) = rewritten(again(3000));
        assert!(plain == hostile && done == counted, "{done:?} {counted:?}");
        native += done.native;
    }
    assert!(native > 100);
}

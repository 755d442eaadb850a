//! Random object graphs over several pools and puddles: how they are built, and compared.

use cenote_heap::{Heap as _, PoolBacking, PoolHeap};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_relative, encode_relative};
use cenote_layout::types::{Condition, PointerField, RECORD_VERSION, TypeRecord};
use cenote_medium::sim::{CrashKind, Image, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium};
use cenote_relocate::options;
use cenote_store::relocate::Backend;
use cenote_store::{
    Access, FormatOptions, HeapKind, OpenOptions, PoolHandle, PoolMode, PoolOptions, Store, format,
};
use std::collections::BTreeMap;
use std::sync::Arc;

/// splitmix64.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn next(&mut self) -> u64 {
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

pub(crate) const NODE: TypeId = TypeId(0x10);
pub(crate) const PAIRS: TypeId = TypeId(0x11);
pub(crate) const TABLE: TypeId = TypeId(0x12);
pub(crate) const LEAF: TypeId = TypeId(0x13);

pub(crate) fn record(
    id: TypeId,
    size: u64,
    repeats: bool,
    pointers: Vec<PointerField>,
) -> TypeRecord {
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

pub(crate) fn types() -> Vec<TypeRecord> {
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
    pub(crate) roots: Vec<Vec<(u16, usize)>>,
    /// Puddles where the graph was built, by address.
    pub(crate) puddles: Vec<PuddleRecord>,
    pub(crate) ids: Vec<PoolId>,
}

pub(crate) fn put(addr: u64, value: u64) {
    // SAFETY: tests write into blocks that they allocated, at offsets inside.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(addr as usize).write_unaligned(value) }
}

pub(crate) fn get(addr: u64) -> u64 {
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

pub(crate) fn open(medium: &Arc<dyn Medium>) -> Store {
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

/// All kinds of heaps.
pub(crate) const HEAPS: [HeapKind; 3] = [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR];

/// Builds a graph in a store, in traced heaps.
pub(crate) fn build(store: &Store, random: &mut Random) -> Graph {
    build_in(store, HeapKind::Traced, random)
}

/// Builds a graph in a store, whose pools are closed afterwards.
pub(crate) fn build_in(store: &Store, heap: HeapKind, random: &mut Random) -> Graph {
    let all = types();
    // SAFETY: the test lays its values out by these records.
    unsafe { store.register_types(&all.iter().collect::<Vec<_>>()) }.unwrap();
    let mut graph = Graph::with_pools(store, heap, random);
    let handles: Vec<_> =
        graph.names.iter().map(|name| store.open_pool(name, Access::ReadWrite).unwrap()).collect();
    // SAFETY: no other heap of these pools is open, and the test gives out no reference.
    let backing = |handle: &PoolHandle| unsafe { PoolBacking::of(handle.clone()) };
    let heaps: Vec<_> =
        handles.iter().map(|handle| PoolHeap::open(backing(handle)).unwrap()).collect();
    graph.add_objects(&heaps, random);
    for from in 0..graph.objects.len() {
        for slot in slots_of(&graph, from, random) {
            let link = graph.link(from, slot, &handles, random);
            graph.links.push(link);
        }
    }
    graph.add_roots(&heaps, random);
    drop(heaps);
    drop(handles);
    graph.puddles = store.puddle_records().into_iter().filter(|p| p.pool.0 != 0).collect();
    graph
}

/// Where a pointer of an object lies, what it is, and its tag.
type Slot = (u64, PointerKind, u64);

/// The pointers of an object, whose other words are written.
fn slots_of(graph: &Graph, from: usize, random: &mut Random) -> Vec<Slot> {
    let object = graph.objects[from];
    match object.type_id {
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
    }
}

impl Graph {
    /// Without objects, in new pools.
    fn with_pools(store: &Store, heap: HeapKind, random: &mut Random) -> Self {
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
            let options =
                PoolOptions { puddle_size: 256 << 10, mode, heap, ..PoolOptions::default() };
            graph.ids.push(store.create_pool(name, &options).unwrap());
        }
        graph
    }

    /// Adds objects of all types and sizes, with garbage between them.
    fn add_objects(&mut self, heaps: &[PoolHeap], random: &mut Random) {
        for _ in 0..20 + random.below(80) {
            let (pool, type_id, size) = (
                random.below(heaps.len() as u64) as usize,
                [NODE, PAIRS, TABLE, LEAF][random.below(4) as usize],
                [16, 72, 96, 200, 1000, 5000, 40_000, 150_000][random.below(8) as usize],
            );
            let size = if type_id == NODE { 72 } else { size };
            let block = heaps[pool].alloc(size, 16, type_id).unwrap();
            let (addr, size) = (block.addr.as_ptr() as u64, block.size);
            for offset in (0..size).step_by(8) {
                put(addr + offset, if type_id == LEAF { random.next() } else { 0 });
            }
            self.objects.push(Object { pool, addr, size, type_id });
            // Nothing looks at the contents of blocks that are free again.
            if random.below(4) == 0 {
                let gone = heaps[pool].alloc(72, 16, NODE).unwrap().addr.as_ptr() as u64;
                put(gone + 8, addr);
                heaps[pool].free(gone).unwrap();
            }
        }
    }

    /// Stores a pointer to the start of an object, inside it, one past its end, or nowhere.
    fn link(
        &self,
        from: usize,
        (offset, kind, tag): Slot,
        handles: &[PoolHandle],
        random: &mut Random,
    ) -> Link {
        let at = self.objects[from].addr + offset;
        let number = random.below(self.objects.len() as u64) as usize;
        let target = self.objects[number];
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
        put(at, word);
        Link { from, offset, kind, tag, to: (word != tag).then_some((number, inside)) }
    }

    /// Sets roots of all pools.
    fn add_roots(&mut self, heaps: &[PoolHeap], random: &mut Random) {
        for (pool, heap) in heaps.iter().enumerate() {
            for index in [0u16, 5, 1023] {
                let own: Vec<usize> =
                    (0..self.objects.len()).filter(|n| self.objects[*n].pool == pool).collect();
                if let Some(number) = own.get(random.below(own.len().max(1) as u64) as usize) {
                    let object = self.objects[*number];
                    heap.set_root(index, object.addr, object.type_id).unwrap();
                    self.roots[pool].push((index, *number));
                }
            }
        }
    }
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
            let heap = PoolHeap::open(unsafe { PoolBacking::of(handle.clone()) })
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

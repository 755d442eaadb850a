//! Lists with every kind of pointer, over several puddles, and walks that check each of them.

use cenote::{
    Access, Backend, HeapKind, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader,
    RegionPtr, RelPtr, RelocationOptions, Result, Store, field,
};
use std::path::Path;

/// Half a page: a list of these takes several puddles.
#[derive(Persist)]
#[persist(name = "relocate::Node")]
pub(crate) struct Node {
    pub(crate) value: u64,
    pub(crate) next: Option<Ptr<Node>>,
    pub(crate) near: RelPtr<Node>,
    pub(crate) anywhere: RegionPtr<Node>,
    pub(crate) pad: [u64; 250],
}

#[derive(Persist)]
#[persist(name = "relocate::Root")]
pub(crate) struct Root {
    pub(crate) count: u64,
    pub(crate) first: Option<Ptr<Node>>,
}

pub(crate) const NODES: u64 = 1500;
/// Nodes of a list that takes some puddles.
pub(crate) const PLAIN: u64 = 40_000;

/// All kinds.
pub(crate) const HEAPS: [HeapKind; 3] = [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR];

pub(crate) fn options(mode: PoolMode) -> PoolOptions {
    PoolOptions { puddle_size: 256 << 10, mode, ..PoolOptions::default() }
}

/// The same with a heap of that kind.
pub(crate) fn of(heap: HeapKind, mode: PoolMode) -> PoolOptions {
    PoolOptions { heap, ..options(mode) }
}

/// A list over several puddles, each node with an off-holder and a region pointer to the first.
pub(crate) fn fill(store: &Store, name: &str, mode: PoolMode, nodes: u64) {
    fill_in(store, name, &options(mode), nodes);
}

/// The same in a pool with these options.
pub(crate) fn fill_in(store: &Store, name: &str, options: &PoolOptions, nodes: u64) {
    let pool = store.create_pool(name, options).unwrap();
    pool.write(|tx| -> Result<()> {
        let root = tx.alloc(Root { count: 0, first: None })?;
        tx.set_root(root)
    })
    .unwrap();
    for value in 0..nodes {
        pool.write(|tx| -> Result<()> {
            let root = tx.root::<Root>()?.expect("a root");
            let (count, next) = (tx.get(root)?.count, tx.get(root)?.first);
            let anywhere = match next {
                Some(next) => tx.region_ptr(next)?,
                None => RegionPtr::NULL,
            };
            let node =
                tx.alloc(Node { value, next, near: RelPtr::NULL, anywhere, pad: [value; 250] })?;
            tx.set_rel(node, field!(Node, near), next)?;
            tx.set(root, field!(Root, first), Some(node))?;
            tx.set(root, field!(Root, count), count + 1)
        })
        .unwrap();
    }
    assert!(
        nodes < NODES || store.puddle_records().iter().filter(|p| p.pool == pool.id()).count() > 2,
        "several puddles"
    );
}

#[derive(Persist)]
#[persist(name = "relocate::Plain")]
pub(crate) struct Plain {
    pub(crate) next: Option<Ptr<Plain>>,
    pub(crate) value: u64,
}

/// A list of native pointers alone, so that its puddles are rewritten in their files.
pub(crate) fn fill_plain(store: &Store, name: &str, heap: HeapKind, nodes: u64) {
    let pool = store.create_pool(name, &of(heap, PoolMode::Direct)).unwrap();
    let mut next = None;
    // A transaction of a logged heap has not more tickets.
    let step = if heap == HeapKind::Logged { 500 } else { 1000 };
    for from in (0..nodes).step_by(step) {
        next = pool
            .write(|tx| -> Result<_> {
                let mut next = next;
                for value in from..nodes.min(from + step as u64) {
                    next = Some(tx.alloc(Plain { next, value })?);
                }
                tx.set_root(next.expect("some"))?;
                Ok(next)
            })
            .unwrap();
    }
}

pub(crate) fn walk_plain(store: &Store, pool: &Pool, nodes: u64) {
    let ranges: Vec<_> =
        store.puddle_records().into_iter().filter(|p| p.pool == pool.id()).collect();
    let view = pool.read().unwrap();
    let (mut at, mut left) = (view.root::<Plain>().unwrap(), nodes);
    while let Some(node) = at {
        left -= 1;
        assert!(
            ranges.iter().any(|p| node.addr().wrapping_sub(p.addr) < p.size),
            "{:#x}",
            node.addr()
        );
        let node = view.get(node).unwrap();
        assert_eq!(node.value, left);
        at = node.next;
    }
    assert_eq!(left, 0);
}

/// Follows the list by every kind of pointer; all of it must lie in this pool.
pub(crate) fn walk(store: &Store, pool: &Pool, nodes: u64) {
    let view = pool.read().unwrap();
    let root = view.get(view.root::<Root>().unwrap().expect("a root")).unwrap();
    assert_eq!(root.count, nodes);
    let ranges: Vec<_> =
        store.puddle_records().into_iter().filter(|p| p.pool == pool.id()).collect();
    let (mut at, mut value) = (root.first, nodes);
    while let Some(node) = at {
        value -= 1;
        assert!(
            ranges.iter().any(|p| node.addr().wrapping_sub(p.addr) < p.size),
            "a pointer out of the pool: {:#x}",
            node.addr()
        );
        let this = view.get(node).unwrap();
        assert_eq!((this.value, this.pad), (value, [value; 250]));
        assert_eq!(this.near.get(), this.next, "the off-holder of {value}");
        assert_eq!(
            view.resolve(this.anywhere).unwrap(),
            this.next,
            "the region pointer of {value}"
        );
        at = this.next;
    }
    assert_eq!(value, 0);
}

/// The same by plain loads, as code does that knows nothing of Cenote.
pub(crate) fn walk_raw(first: u64, nodes: u64) {
    let (mut at, mut value) = (first as *const u64, nodes);
    while !at.is_null() {
        value -= 1;
        // SAFETY: a node of an open pool: `repr(Rust)` structures have their fields somewhere, so
        // the words are found by what they hold.
        let words = unsafe { std::slice::from_raw_parts(at, size_of::<Node>() / 8) };
        assert!(words.iter().filter(|word| **word == value).count() >= 250, "node {value}");
        let next = std::mem::offset_of!(Node, next) / 8;
        at = words[next] as *const u64;
    }
    assert_eq!(value, 0);
}

pub(crate) fn first_of(pool: &Pool) -> u64 {
    let view = pool.read().unwrap();
    view.get(view.root::<Root>().unwrap().expect("a root")).unwrap().first.expect("a node").addr()
}

pub(crate) fn open_rewriting(dir: &Path, relocation: RelocationOptions) -> Store {
    if !dir.join("superblock").exists() {
        drop(Store::open(dir).unwrap());
    }
    Store::open_with(dir, &OpenOptions { relocation, ..OpenOptions::default() }).unwrap()
}

pub(crate) fn open_with(dir: &Path, access: Access, backend: Backend) -> Store {
    let relocation = RelocationOptions { backend, ..RelocationOptions::default() };
    Store::open_with(dir, &OpenOptions { access, relocation, ..OpenOptions::default() }).unwrap()
}

//! Clones on a file system whose files can share blocks.

use crate::relocate::{fill, walk};
use crate::support::{Mounted, contents, underneath};
use cenote::{Access, OpenOptions, Persist, PoolMode, PoolOptions, Ptr, Reader, Result, Store};
use cenote_medium::planted::{Bug, plant};
use std::ops::ControlFlow;
use std::path::Path;

fn mounted() -> Option<Mounted> {
    Mounted::sharing(400 << 20).map_err(|reason| println!("skipped: {reason}")).ok()
}

/// Without spare puddles, which take space whenever it suits them.
fn open(dir: &Path) -> Store {
    if !dir.join("superblock").exists() {
        drop(Store::open(dir).unwrap());
    }
    Store::open_with(dir, &OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() }).unwrap()
}

fn free(store: &Store) -> u64 {
    underneath(store).medium().free_bytes()
}

/// Bytes of a pool's puddles.
fn bytes_of(store: &Store, name: &str) -> u64 {
    let id = store.pools().iter().find(|pool| pool.record.name == name).expect("there").record.id;
    store
        .puddle_records()
        .into_iter()
        .filter(|puddle| puddle.pool == id)
        .map(|puddle| puddle.size)
        .sum()
}

const NODES: u64 = 1500;
/// What the file system takes for itself here and there.
const SLACK: u64 = 1 << 20;

#[test]
fn a_clone_that_shares_takes_no_space_until_it_is_rewritten_and_changes_no_byte_of_the_original() {
    let Some(place) = mounted() else { return };
    let dir = place.path().join("store");
    let store = open(&dir);
    fill(&store, "a", PoolMode::Direct, NODES);
    let (before, bytes) = (contents(&dir, &store, "a"), bytes_of(&store, "a"));
    let had = free(&store);
    let made = store.clone_pool_sharing("a", "b").unwrap();
    assert!(made.pending > 2 && made.shared == made.pending, "{made:?}");
    assert!(had - free(&store) < SLACK, "nothing was copied: {} bytes less", had - free(&store));
    let copied = store.clone_pool("a", "c").unwrap();
    assert_eq!(copied.shared, 0);
    assert!(had - free(&store) >= bytes);
    // All of it is shared still when another session touches it.
    store.close().unwrap();
    let store = open(&dir);
    for name in ["b", "c"] {
        walk(&store, &store.pool(name).unwrap(), NODES);
    }
    assert!(contents(&dir, &store, "a") == before, "the original has changed");
    walk(&store, &store.pool("a").unwrap(), NODES);
    assert!(had - free(&store) >= 2 * bytes - SLACK, "both have their own");
}

#[derive(Persist)]
#[persist(name = "sharing::Node")]
struct Node {
    next: Option<Ptr<Node>>,
    value: u64,
}

/// Without pointers: no word of these is rewritten.
#[derive(Persist)]
#[persist(name = "sharing::Page")]
struct Page {
    words: [u64; 256],
}

/// A pool of native pointers, whose puddles are rewritten in their files if those have all their
/// space. How much less space there is when a clone that shares is rewritten, and the size of the
/// pool.
fn taken_by_rewriting(place: &Mounted, name: &str) -> (u64, u64) {
    let store = open(&place.path().join(name));
    let pool = store
        .create_pool("a", &PoolOptions { puddle_size: 1 << 20, ..PoolOptions::default() })
        .unwrap();
    pool.write(|tx| -> Result<()> {
        let mut next = None;
        for value in 0..1000 {
            tx.alloc(Page { words: [value; 256] })?;
            next = if value % 100 == 0 { Some(tx.alloc(Node { next, value })?) } else { next };
        }
        tx.set_root(next.expect("some"))
    })
    .unwrap();
    drop(pool);
    let had = free(&store);
    assert!(store.clone_pool_sharing("a", "b").unwrap().shared > 1);
    let pool = store.pool_with("b", Access::ReadWrite).unwrap();
    pool.finish_relocation(&mut |_| ControlFlow::Continue(())).unwrap();
    let taken = had.saturating_sub(free(&store));
    let view = pool.read().unwrap();
    let (mut at, mut nodes) = (view.root::<Node>().unwrap(), 0);
    while let Some(node) = at {
        let node = view.get(node).unwrap();
        assert_eq!(node.value % 100, 0);
        (at, nodes) = (node.next, nodes + 1);
    }
    assert_eq!(nodes, 10);
    (taken, bytes_of(&store, "b"))
}

#[test]
fn what_shared_blocks_has_its_own_before_it_is_mapped() {
    let Some(place) = mounted() else { return };
    let (taken, bytes) = taken_by_rewriting(&place, "right");
    assert!(taken + SLACK >= bytes, "{taken} of {bytes}");
    plant(Bug::SharedInPlace);
    let (taken, bytes) = taken_by_rewriting(&place, "wrong");
    plant(Bug::None);
    assert!(taken + SLACK < bytes, "the bug is not seen: {taken} of {bytes}");
}

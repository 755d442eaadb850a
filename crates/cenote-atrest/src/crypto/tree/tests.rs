//! The tree against a simple model: recomputing everything from all leaves.

use super::*;
use cenote_layout::at_rest::PAGES_MAX;
use proptest::prelude::*;
use std::cell::Cell;

const OBJECT: Uuid = Uuid(*b"an object's uuid");

fn leaf(n: u64) -> Digest {
    digest(b"CnLeaf", 0, OBJECT, n, &(n + 1).to_le_bytes())
}

/// The root over all leaves, computed from scratch.
fn model_root(leaves: &[Digest]) -> Digest {
    let mut level = 0;
    let mut row = leaves.to_vec();
    loop {
        row = row
            .chunks(ARITY as usize)
            .zip(0..)
            .map(|(chunk, index)| {
                let mut node = [0; NODE_LEN];
                for (child, digest) in chunk.iter().enumerate() {
                    set_slot(&mut node, child as u64, digest);
                }
                node_digest(OBJECT, NodeId { level, index }, &node)
            })
            .collect();
        level += 1;
        if row.len() == 1 {
            return row[0];
        }
    }
}

fn apply(region: &mut [u8], change: &TreeChange) {
    for write in &change.nodes {
        region[write.offset as usize..][..NODE_LEN].copy_from_slice(&write.bytes[..]);
    }
}

/// Counts reads.
struct Counting<'a>(&'a [u8], Cell<usize>);

impl NodeSource for Counting<'_> {
    fn read_node(&self, node: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
        self.1.set(self.1.get() + 1);
        self.0.read_node(node, offset, bytes)
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    #[test]
    fn incremental_updates_give_the_root_of_recomputing_everything(
        pages in 1u64..700,
        batches in prop::collection::vec(prop::collection::vec((0u64..700, 0u64..50), 0..40), 1..6),
        forget in any::<bool>(),
    ) {
        let shape = TreeShape::new(pages).unwrap();
        let mut region = vec![0; shape.len() as usize];
        let mut leaves = vec![ZERO; pages as usize];
        let mut tree = Tree::new(OBJECT, shape, ZERO);
        for batch in batches {
            // 0: back to never written.
            let changes: Vec<(u64, Digest)> = batch
                .into_iter()
                .map(|(page, v)| (page % pages, if v == 0 { ZERO } else { leaf(v) }))
                .collect();
            for (page, digest) in &changes {
                leaves[*page as usize] = *digest;
            }
            let change = tree.prepare(&changes, &&region[..]).unwrap();
            let touched: std::collections::BTreeSet<u64> =
                changes.iter().map(|(p, _)| p / ARITY).collect();
            prop_assert!(change.nodes.len() <= touched.len() * usize::from(shape.levels()));
            apply(&mut region, &change);
            let root = change.root;
            prop_assert!(tree.commit(change));
            prop_assert_eq!(root, model_root(&leaves));
            prop_assert_eq!(tree.root(), root);
            if forget {
                tree = Tree::new(OBJECT, shape, root);
            }
        }
        for page in 0..pages {
            let current = leaves[page as usize];
            prop_assert!(tree.verify(page, &current, &&region[..]).is_ok());
            let other = leaf(1000);
            prop_assert!(matches!(tree.verify(page, &other, &&region[..]), Err(TreeFault::Leaf)));
            // And without any state: by the path alone.
            let path: Vec<Node> = (0..shape.levels())
                .map(|level| {
                    let id = NodeId { level, index: ancestor(page, level) };
                    region[shape.offset(id) as usize..][..NODE_LEN].try_into().unwrap()
                })
                .collect();
            prop_assert!(verify_path(OBJECT, &shape, &tree.root(), page, &current, &path).is_ok());
            prop_assert!(verify_path(OBJECT, &shape, &tree.root(), page, &other, &path).is_err());
        }
    }
}

/// A tree over `pages` pages of which every tenth is written, and its region.
fn example(pages: u64) -> (Tree, Vec<u8>) {
    let shape = TreeShape::new(pages).unwrap();
    let mut region = vec![0; shape.len() as usize];
    let tree = Tree::new(OBJECT, shape, ZERO);
    let changes: Vec<_> = (0..pages).step_by(10).map(|p| (p, leaf(p))).collect();
    let change = tree.prepare(&changes, &&region[..]).unwrap();
    apply(&mut region, &change);
    assert!(tree.commit(change));
    (tree, region)
}

#[test]
fn first_touch_of_a_page_reads_its_path_and_the_next_one_nothing() {
    let (tree, region) = example(1 << 16);
    let tree = Tree::new(OBJECT, tree.shape, tree.root());
    let source = Counting(&region, Cell::new(0));
    tree.verify(30_000, &leaf(30_000), &source).unwrap();
    assert_eq!(source.1.get(), 4, "log16(65,536) nodes");
    tree.verify(30_001, &ZERO, &source).unwrap();
    assert_eq!(source.1.get(), 4, "a neighbour costs a comparison");
    tree.verify(30_020, &leaf(30_020), &source).unwrap();
    assert_eq!(source.1.get(), 5, "a page nearby one node");
    tree.trim();
    assert_eq!(tree.remembered(), 3);
    tree.verify(30_000, &leaf(30_000), &source).unwrap();
    assert_eq!(source.1.get(), 6);
}

#[test]
fn an_empty_tree_of_any_size_reads_nothing_and_changes_one_path() {
    let shape = TreeShape::new(PAGES_MAX).unwrap();
    let tree = Tree::new(OBJECT, shape, ZERO);
    let nothing: &[u8] = &[];
    tree.verify(PAGES_MAX - 1, &ZERO, &nothing).unwrap();
    assert!(matches!(tree.verify(5, &leaf(1), &nothing), Err(TreeFault::Leaf)));
    assert!(matches!(tree.verify(PAGES_MAX, &ZERO, &nothing), Err(TreeFault::OutOfRange)));
    let change = tree.prepare(&[(12345, leaf(1))], &nothing).unwrap();
    assert_eq!(change.nodes.len(), 10);
    assert!(tree.commit(change));
    tree.verify(12345, &leaf(1), &nothing).unwrap();
}

#[test]
fn every_flipped_bit_of_every_node_is_refused_and_named_for_the_pages_below() {
    let (tree, region) = example(300);
    let shape = tree.shape;
    for at in 0..region.len() {
        let mut damaged = region.clone();
        damaged[at] ^= 1 << (at % 8);
        let tree = Tree::new(OBJECT, shape, tree.root());
        let mut named = 0;
        for page in 0..300 {
            let expected = if page % 10 == 0 { leaf(page) } else { ZERO };
            match tree.verify(page, &expected, &&damaged[..]) {
                Ok(()) => {}
                Err(TreeFault::Node(id)) => {
                    assert_eq!(shape.offset(id), at as u64 / 512 * 512);
                    let (first, end) = id.pages();
                    assert!((first..end).contains(&page));
                    named += 1;
                }
                Err(other) => panic!("byte {at}, page {page}: {other:?}"),
            }
        }
        assert!(named > 0, "byte {at}: no page was named");
        let error =
            tree.prepare(&(0..300).map(|p| (p, leaf(7))).collect::<Vec<_>>(), &&damaged[..]);
        assert!(
            matches!(error, Err((_, TreeFault::Node(_)))),
            "byte {at}: a change hid the damage"
        );
    }
}

#[test]
fn a_node_from_another_place_or_object_or_time_is_refused() {
    let (tree, region) = example(300);
    let (shape, root) = (tree.shape, tree.root());
    let swap = |a: NodeId, b: NodeId| {
        let mut swapped = region.clone();
        let (a, b) = (shape.offset(a) as usize, shape.offset(b) as usize);
        let node = swapped[a..a + 512].to_vec();
        swapped.copy_within(b..b + 512, a);
        swapped[b..b + 512].copy_from_slice(&node);
        swapped
    };
    let swapped = swap(NodeId { level: 0, index: 0 }, NodeId { level: 0, index: 5 });
    let fresh = || Tree::new(OBJECT, shape, root);
    assert!(matches!(fresh().verify(0, &leaf(0), &&swapped[..]), Err(TreeFault::Node(_))));
    let change = tree.prepare(&[(3, leaf(99))], &&region[..]).unwrap();
    let mut newer = region.clone();
    apply(&mut newer, &change);
    assert!(tree.commit(change));
    // The old region under the new root: everything is rolled back, from the top on.
    let rolled_back = Tree::new(OBJECT, shape, tree.root());
    let error = rolled_back.verify(200, &leaf(200), &&region[..]);
    assert!(matches!(error, Err(TreeFault::Node(NodeId { level: 2, .. }))), "{error:?}");
    let other = Tree::new(Uuid([1; 16]), shape, tree.root());
    assert!(matches!(other.verify(200, &leaf(200), &&newer[..]), Err(TreeFault::Node(_))));
}

#[test]
fn a_dropped_change_leaves_no_trace_and_a_stale_one_is_refused() {
    let (tree, region) = example(100);
    let root = tree.root();
    let dropped = tree.prepare(&[(1, leaf(50))], &&region[..]).unwrap();
    drop(dropped);
    assert_eq!(tree.root(), root);
    tree.verify(1, &ZERO, &&region[..]).unwrap();
    let first = tree.prepare(&[(1, leaf(50))], &&region[..]).unwrap();
    let second = tree.prepare(&[(2, leaf(51))], &&region[..]).unwrap();
    assert!(tree.fits(&second) && tree.commit(first));
    assert!(!tree.fits(&second) && !tree.commit(second));
    tree.verify(1, &leaf(50), &&region[..]).unwrap();
    tree.verify(2, &ZERO, &&region[..]).unwrap();
}

#[test]
fn a_node_that_cannot_be_read_is_said_to_be_that() {
    let (tree, region) = example(300);
    let tree = Tree::new(OBJECT, tree.shape, tree.root());
    let short = &region[..region.len() - 512];
    let error = tree.verify(299, &ZERO, &short);
    assert!(matches!(error, Err(TreeFault::Read(NodeId { level: 0, index: 18 }, _))), "{error:?}");
    tree.verify(0, &leaf(0), &short).unwrap();
}

#[test]
fn readers_and_a_writer_agree() {
    let (tree, region) = example(2000);
    // A source behind a lock, to which changes are applied after they are committed.
    struct Locked(RwLock<Vec<u8>>);
    impl NodeSource for Locked {
        fn read_node(&self, node: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
            (&self.0.read().unwrap()[..]).read_node(node, offset, bytes)
        }
    }
    let source = Locked(RwLock::new(region));
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut page = 0;
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    page = (page + 370) % 2000;
                    // Multiples of 10 that are no multiples of 20 are never changed.
                    if page % 20 == 10 {
                        tree.verify(page, &leaf(page), &source).unwrap();
                    }
                }
            });
        }
        for round in 0..200u64 {
            let change = tree.prepare(&[(round * 20 % 2000, leaf(round))], &source).unwrap();
            let copy = change.clone();
            assert!(tree.commit(change));
            apply(&mut source.0.write().unwrap(), &copy);
            tree.trim();
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

/// The format's digests, computed by another program.
#[test]
fn digests_are_those_of_the_format() {
    use crate::crypto::testing::hex;
    let side = PageSide { nonce: [0x5a; 32], tag: [0x5a; 32] };
    assert_eq!(
        page_digest(OBJECT, 7, &[0x5a; 4096]).to_vec(),
        hex("7d37bafca742c238c2bac24404ec0346955f43c8c833324a0eeb0eaed1877d63")
    );
    assert_eq!(
        side_digest(OBJECT, 7, &side).to_vec(),
        hex("f4ccbdd699650caf995e1913d0c189ce040c717d1fef7b5d221dbcdb5b00c665")
    );
    assert_eq!(
        node_digest(OBJECT, NodeId { level: 2, index: 3 }, &[0x5a; NODE_LEN]).to_vec(),
        hex("855d40b9699f6c1f4b1547dab815513b06c3142eca5de700311939acb121a027")
    );
    assert_eq!(page_digest(OBJECT, 7, &[0; 4096]), ZERO);
    assert_eq!(side_digest(OBJECT, 7, &PageSide::NEVER), ZERO);
}

#[test]
fn a_commit_while_a_node_is_read_does_not_bring_the_old_node_back() {
    /// Commits a change in the middle of the first read, after the old bytes were read.
    struct Interrupting<'a> {
        region: std::cell::RefCell<Vec<u8>>,
        tree: &'a Tree,
        change: Cell<Option<TreeChange>>,
    }
    impl NodeSource for Interrupting<'_> {
        fn read_node(&self, node: NodeId, offset: u64, bytes: &mut Node) -> io::Result<()> {
            (&self.region.borrow()[..]).read_node(node, offset, bytes)?;
            if let Some(change) = self.change.take() {
                assert!(self.tree.commit(change.clone()));
                apply(&mut self.region.borrow_mut(), &change);
                self.tree.trim();
            }
            Ok(())
        }
    }
    let (tree, region) = example(300);
    let change = tree.prepare(&[(3, leaf(50))], &&region[..]).unwrap();
    tree.trim();
    let source = Interrupting {
        region: std::cell::RefCell::new(region),
        tree: &tree,
        change: Cell::new(Some(change)),
    };
    tree.verify(5, &ZERO, &source).unwrap();
    assert!(source.change.take().is_none(), "the change was not committed in between");
    tree.verify(3, &leaf(50), &source).unwrap();
    assert!(matches!(tree.verify(3, &ZERO, &source), Err(TreeFault::Leaf)));
}

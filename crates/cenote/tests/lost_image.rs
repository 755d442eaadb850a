//! A page of a puddle that is lost while the puddle is rewritten, in its file or by a new one, by
//! the thread that opens the pool or by the one that answers faults: the process survives, the
//! puddle does not count as rewritten, and is rewritten later.
//!
//! A child does it, because what is tested is that no signal ends it. The rewriter that it gives
//! the store maps a file without bytes over a page of the image before it rewrites that.

use cenote::{
    Backend, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, RelocationOptions,
    Result, Store,
};
use cenote_medium::planted::{Bug, plant};
use cenote_relocate::PointerRewriter;
use cenote_store::relocate::{RewriteJob, Rewriter, Rewritten};
use cenote_testkit::child::{run_task, task};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

const PAGE: usize = 4096;
const NODES: u64 = 600;
const NONE: usize = usize::MAX;

#[derive(Persist)]
#[persist(name = "lost_image::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
    pad: [u64; 126],
}

/// Loses a page of each image, and rewrites.
#[derive(Debug)]
struct Loses {
    page: AtomicUsize,
    /// Puddles that were rewritten in their files.
    in_place: AtomicUsize,
}

// SAFETY: as `PointerRewriter`; an image of which a page is lost is not believed.
unsafe impl Rewriter for Loses {
    fn rewrite(
        &self,
        image: &mut [u8],
        job: &RewriteJob,
    ) -> core::result::Result<Rewritten, String> {
        let page = self.page.load(Ordering::SeqCst);
        if page != NONE {
            lose(image.as_ptr().addr() + page * PAGE);
        }
        PointerRewriter.rewrite(image, job)
    }

    fn repeatable(&self, image: &[u8], job: &RewriteJob) -> Option<Vec<(u64, u64)>> {
        let stretches = PointerRewriter.repeatable(image, job)?;
        self.in_place.fetch_add(1, Ordering::SeqCst);
        Some(stretches)
    }
}

/// Loses a page.
fn lose(addr: usize) {
    // SAFETY: a page of an image, which its rewriter has for itself.
    unsafe { cenote_testkit::lost::lose(addr) };
}

fn open(dir: &Path, rewriter: &Arc<Loses>, backend: Backend) -> Store {
    let rewriter: Arc<dyn Rewriter> = Arc::<Loses>::clone(rewriter);
    let relocation = RelocationOptions { rewriter: Some(rewriter), backend };
    Store::open_with(dir, &OpenOptions { relocation, ..OpenOptions::default() }).expect("a store")
}

fn make(dir: &Path) {
    let store = Store::open(dir).expect("a new store");
    for (name, mode) in [("direct", PoolMode::Direct), ("shadowed", PoolMode::Shadowed)] {
        let options = PoolOptions { puddle_size: 256 << 10, mode, ..PoolOptions::default() };
        let pool = store.create_pool(name, &options).expect("a pool");
        pool.write(|tx| -> Result<()> {
            let mut next = None;
            for value in 0..NODES {
                next = Some(tx.alloc(Node { value, next, pad: [value; 126] })?);
            }
            tx.set_root(next.expect("some"))
        })
        .expect("filled");
        if mode == PoolMode::Shadowed {
            pool.psync().expect("psynced");
        }
    }
    store.close().expect("closed");
}

/// Follows the list; all of it must lie in this pool.
fn walk(store: &Store, pool: &Pool) -> Result<()> {
    let records = store.puddle_records().into_iter();
    let ranges: Vec<_> = records.filter(|puddle| puddle.pool == pool.id()).collect();
    let view = pool.read()?;
    let (mut at, mut left) = (view.root::<Node>()?, NODES);
    while let Some(node) = at {
        left -= 1;
        let is_in = |addr: u64| ranges.iter().any(|p| addr.wrapping_sub(p.addr) < p.size);
        assert!(is_in(node.addr()), "a pointer that is not rewritten: node {left}");
        let node = view.get(node)?;
        assert_eq!((node.value, node.pad), (left, [left; 126]), "other bytes");
        at = node.next;
    }
    assert_eq!(left, 0, "a pointer that is lost");
    view.finish()
}

/// Copies of pools are rewritten, and a page of each puddle is lost.
fn lose_pages(dir: &Path, bug: Bug) {
    make(dir);
    let rewriter = Arc::new(Loses { page: AtomicUsize::new(NONE), in_place: AtomicUsize::new(0) });
    let (mut noticed, mut copies) = (0, Vec::new());
    for backend in [Backend::Eager, Backend::Signal] {
        let store = open(dir, &rewriter, backend);
        for name in ["direct", "shadowed"] {
            for page in (0..64).step_by(9) {
                println!("{backend:?}, {name}, page {page}");
                let copy = format!("{backend:?} {name} {page}");
                assert!(store.clone_pool(name, &copy).expect("a copy").pending > 1);
                rewriter.page.store(page, Ordering::SeqCst);
                plant(bug);
                let done = store.pool(&copy).and_then(|pool| walk(&store, &pool));
                rewriter.page.store(NONE, Ordering::SeqCst);
                plant(Bug::None);
                noticed += u64::from(done.is_err());
                let pool = store.pool(&copy).expect("the next time");
                walk(&store, &pool).expect("whole");
                copies.push(copy);
            }
        }
        store.close().expect("closed");
    }
    let store = Store::open(dir).expect("a store");
    for copy in copies {
        walk(&store, &store.pool(&copy).expect("a pool")).expect("whole");
    }
    let in_place = rewriter.in_place.load(Ordering::SeqCst);
    println!("{noticed} were noticed, {in_place} puddles in their files");
    assert!(noticed > 8 && in_place > 8, "{noticed} {in_place}");
}

/// Not a test of its own: what a child does.
#[test]
fn child() {
    let Some((what, dir)) = task() else { return };
    let bug = if what == "believed" { Bug::LostImageBelieved } else { Bug::None };
    lose_pages(Path::new(&dir), bug);
}

fn run(what: &str) -> (bool, String) {
    let outer = tempfile::tempdir().expect("a directory");
    run_task("lost_image::child", what, outer.path())
}

#[test]
fn a_page_that_is_lost_while_its_puddle_is_rewritten_is_an_error_and_the_puddle_stays_due() {
    let (done, said) = run("lost");
    assert!(done, "{said}");
}

#[test]
fn a_puddle_that_counts_as_rewritten_although_a_page_was_lost_is_found() {
    let (done, said) = run("believed");
    assert!(!done && said.contains("a pointer that is not rewritten"), "{said}");
}

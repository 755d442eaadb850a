//! Pools beside their copies, and pools at new addresses: every pointer is right, rewritten when
//! its puddle is first touched, by plain loads too, by several threads at once, over sessions, in
//! read-only stores, in shadowed mode; and a process that is killed while it rewrites leaves every
//! puddle wholly old or wholly new.
//!
//! `CENOTE_COPIES` sets how many copies are open at once (200), `CENOTE_RELOCATE_KILLS` how often a
//! process is killed (12).

mod lists;
mod logged;

use crate::support::contents;
use cenote::{
    Access, Backend, Error, Exclusive, ExportOptions, HeapKind, ImportOptions, Persist, Pool,
    PoolMode, Ptr, Reader, Result, Store, field,
};
use cenote_store::StoreError;
use cenote_testkit::child::{Talking, again, say};
use cenote_testkit::environment::number;
use lists::{
    HEAPS, NODES, Node, PLAIN, Root, fill_in, fill_plain, first_of, of, open_with, walk_plain,
    walk_raw,
};
use std::ops::ControlFlow;
use std::path::Path;
use std::time::Duration;

pub(crate) use lists::{fill, open_rewriting, walk};

#[test]
fn copies_are_open_beside_their_original_which_stays_byte_for_byte() {
    let copies = number("CENOTE_COPIES", 200);
    for (heap, copies) in HEAPS.into_iter().zip([copies, copies / 4, copies / 10]) {
        copies_are_open(heap, copies);
    }
}

fn copies_are_open(heap: HeapKind, copies: u64) {
    let dir = crate::support::directory();
    let store = Store::open(dir.path()).unwrap();
    fill_in(&store, "original", &of(heap, PoolMode::Direct), 150);
    let before = contents(dir.path(), &store, "original");
    for copy in 0..copies {
        let name = format!("copy {copy}");
        // Where blocks cannot be shared they are copied.
        let made = match copy % 2 {
            0 => store.clone_pool("original", &name).unwrap(),
            _ => store.clone_pool_sharing("original", &name).unwrap(),
        };
        assert!(made.moved && made.pending > 0);
    }
    let pools: Vec<Pool> = (0..copies)
        .map(|copy| store.pool_with(&format!("copy {copy}"), Access::ReadWrite).unwrap())
        .collect();
    let original = store.pool_with("original", Access::ReadOnly).unwrap();
    for pool in pools.iter().chain([&original]) {
        walk(&store, pool, 150);
        assert_eq!(pool.pending_rewrites(), 0, "all of it was touched");
        assert!(pool.check().unwrap().is_sound());
    }
    // Aggregation by plain pointer assignment: the copies become one list in the last of them.
    let all: Vec<&Pool> = pools.iter().collect();
    store
        .write(&all, |tx| -> Result<()> {
            let mut next = None;
            for pool in &all {
                let root = tx.root_in::<Root>(pool, 0)?.expect("a root");
                let mut last = tx.get(root)?.first.expect("a node");
                while let Some(further) = tx.get(last)?.next {
                    last = further;
                }
                tx.set(last, field!(Node, next), next)?;
                next = tx.get(root)?.first;
            }
            Ok(())
        })
        .unwrap();
    let mut nodes = 0;
    let last = all.last().expect("copies");
    // All of them, so that no view is of one pool alone.
    let views: Vec<_> = all.iter().map(|pool| pool.read().unwrap()).collect();
    let mut at = views
        .last()
        .expect("copies")
        .root::<Root>()
        .unwrap()
        .map(|root| views.last().expect("copies").get(root).unwrap().first.expect("a node"));
    while let Some(node) = at {
        nodes += 1;
        at = views.iter().find_map(|view| view.get(node).ok()).expect("a node").next;
    }
    assert_eq!(nodes, 150 * copies, "{} leads through all", last.name());
    drop(views);
    assert_eq!(contents(dir.path(), &store, "original"), before);
}

#[test]
fn a_puddle_is_rewritten_when_it_is_touched_and_not_before_and_sessions_go_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, "a", PoolMode::Direct, NODES);
    let pending = store.clone_pool("a", "b").unwrap().pending;
    assert!(pending > 2);
    let pool = store.pool_with("b", Access::ReadWrite).unwrap();
    assert_eq!(
        pool.pending_rewrites(),
        pending - 1,
        "the root puddle is touched when the pool is opened"
    );
    let first = first_of(&pool);
    drop(pool);
    store.close().unwrap();
    let store = open_with(dir.path(), Access::ReadWrite, Backend::Signal);
    let pool = store.pool_with("b", Access::ReadWrite).unwrap();
    assert!(pool.pending_rewrites() < pending, "what is done stays done");
    let left = pool.pending_rewrites();
    let info =
        |store: &Store| store.pools().iter().find(|pool| pool.record.name == "b").unwrap().pending;
    assert_eq!(info(&store), left);
    // Threads that know nothing of Cenote, all at once.
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| walk_raw(first, NODES));
        }
    });
    assert_eq!(pool.pending_rewrites(), 0);
    walk(&store, &pool, NODES);
    drop(pool);
    store.close().unwrap();
    let store = open_with(dir.path(), Access::ReadWrite, Backend::Signal);
    assert_eq!(info(&store), 0, "the catalog has heard of it");
    walk(&store, &store.pool_with("b", Access::ReadWrite).unwrap(), NODES);
    let orphans = std::fs::read_dir(dir.path().join("puddles")).unwrap().count();
    assert_eq!(orphans, store.puddle_records().len(), "no file is left over");
}

#[test]
fn a_puddle_of_native_pointers_is_rewritten_in_its_file_and_others_are_not() {
    use std::os::unix::fs::MetadataExt as _;
    let dir = crate::support::directory();
    let store = Store::open(dir.path()).unwrap();
    for heap in HEAPS {
        fill_plain(&store, &format!("plain {heap:?}"), heap, PLAIN);
        fill_in(&store, &format!("mixed {heap:?}"), &of(heap, PoolMode::Direct), NODES);
    }
    let inodes = |name: &str| -> Vec<u64> {
        let files = contents(dir.path(), &store, name).into_keys();
        files.map(|file| std::fs::metadata(dir.path().join(file)).unwrap().ino()).collect()
    };
    let both = [("plain", true), ("mixed", false)];
    for (heap, (name, same)) in HEAPS.into_iter().flat_map(|heap| both.map(|of| (heap, of))) {
        let name = &format!("{name} {heap:?}");
        let (original, copy) = (contents(dir.path(), &store, name), format!("{name} copy"));
        store.clone_pool(name, &copy).unwrap();
        let before = inodes(&copy);
        let pool = store.pool(&copy).unwrap();
        pool.finish_relocation(&mut |_| ControlFlow::Continue(())).unwrap();
        assert!(store.rewritten().native > 1000, "{:?}", store.rewritten());
        assert_eq!(inodes(&copy) == before, same, "{name}");
        match same {
            true => walk_plain(&store, &pool, PLAIN),
            false => walk(&store, &pool, NODES),
        }
        assert_eq!(contents(dir.path(), &store, name), original);
    }
}

#[test]
fn an_eager_session_has_all_done_when_the_pool_is_open() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    for heap in HEAPS {
        fill_in(&store, &format!("{heap:?}"), &of(heap, PoolMode::Direct), NODES);
        store.clone_pool(&format!("{heap:?}"), &format!("{heap:?} b")).unwrap();
    }
    store.clone_pool("Traced", "c").unwrap();
    store.close().unwrap();
    let store = open_with(dir.path(), Access::ReadWrite, Backend::Eager);
    for heap in HEAPS {
        let pool = store.pool_with(&format!("{heap:?} b"), Access::ReadOnly).unwrap();
        assert_eq!(pool.pending_rewrites(), 0);
        walk(&store, &pool, NODES);
        walk_raw(first_of(&pool), NODES);
    }
    drop(store);
    let store = open_with(dir.path(), Access::ReadWrite, Backend::Signal);
    let pool = store.pool_with("c", Access::ReadOnly).unwrap();
    let mut told = Vec::new();
    let done = pool
        .finish_relocation(&mut |at| {
            told.push((at.puddles, at.puddles_total));
            ControlFlow::Continue(())
        })
        .unwrap();
    let total = told[0].1;
    assert_eq!(told, (0..=total).map(|done| (done, total)).collect::<Vec<_>>());
    assert!(done.native > 1000 && done.region > 1000 && done.is_whole(), "{done:?}");
    assert_eq!(done.relative, 0, "all of the pool moved by one distance");
    walk(&store, &pool, NODES);
}

/// Threads that know nothing of Cenote and a system call, over the backends that rewrite at the
/// first touch.
#[test]
fn first_touches_wait_whatever_touches() {
    for backend in [Backend::Signal, Backend::Userfault] {
        let dir = tempfile::tempdir().unwrap();
        let store = open_with_new(dir.path(), backend);
        if store.relocation_backend() != backend {
            println!("skipped: {backend:?} is not there");
            continue;
        }
        fill(&store, "a", PoolMode::Direct, NODES);
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let name = format!("{access:?}");
            store.clone_pool("a", &name).unwrap();
            let pool = store.pool_with(&name, access).unwrap();
            let pending = pool.pending_rewrites();
            assert!(pending > 0);
            let first = first_of(&pool);
            // The last puddle's last word, by the kernel.
            let last = store
                .puddle_records()
                .into_iter()
                .filter(|p| p.pool == pool.id())
                .max_by_key(|p| p.index)
                .unwrap();
            let at = (last.addr + last.size - 8) as *const u8;
            // SAFETY: of an open pool, which no thread writes.
            let bytes = unsafe { std::slice::from_raw_parts(at, 8) };
            let wrote = std::fs::write(dir.path().join("by the kernel"), bytes);
            match &wrote {
                Ok(()) => assert!(pool.pending_rewrites() < pending, "it was rewritten for that"),
                Err(error) => {
                    assert_eq!(error.raw_os_error(), Some(14), "EFAULT: {error}");
                    println!("{backend:?}: a system call is refused");
                    store_raw_touch(at);
                    std::fs::write(dir.path().join("by the kernel"), bytes)
                        .expect("touched before");
                }
            }
            // No signal comes in a system call; the other way is there only where it helps that.
            assert_eq!(
                wrote.is_ok(),
                store.relocation_backend() == Backend::Userfault,
                "{backend:?}"
            );
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| walk_raw(first, NODES));
                }
            });
            assert_eq!(pool.pending_rewrites(), 0);
            walk(&store, &pool, NODES);
        }
    }
}

fn store_raw_touch(at: *const u8) {
    // SAFETY: of an open pool.
    unsafe { at.read_volatile() };
}

fn open_with_new(dir: &Path, backend: Backend) -> Store {
    Store::open(dir).unwrap().close().unwrap();
    open_with(dir, Access::ReadWrite, backend)
}

#[test]
fn a_read_only_store_shows_rewritten_puddles_and_changes_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let modes = [PoolMode::Direct, PoolMode::Shadowed];
    for (heap, mode) in HEAPS.into_iter().flat_map(|heap| modes.map(|mode| (heap, mode))) {
        let dir = dir.path().join(format!("{heap:?} {mode:?}"));
        let store = Store::open(&dir).unwrap();
        fill_in(&store, "a", &of(heap, mode), NODES);
        store.clone_pool("a", "b").unwrap();
        store.close().unwrap();
        let files = |dir: &Path| -> Vec<Vec<u8>> {
            let mut names: Vec<_> = std::fs::read_dir(dir.join("puddles"))
                .unwrap()
                .map(|entry| entry.unwrap().path())
                .collect();
            names.sort();
            names.iter().map(|name| std::fs::read(name).unwrap()).collect()
        };
        let before = files(&dir);
        for backend in [Backend::Signal, Backend::Userfault, Backend::Eager] {
            let store = open_with(&dir, Access::ReadOnly, backend);
            let pool = store.pool_with("b", Access::ReadOnly).unwrap();
            let first = first_of(&pool);
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| walk_raw(first, NODES));
                }
            });
            walk(&store, &pool, NODES);
            assert!(pool.check().unwrap().is_sound());
        }
        assert!(files(&dir) == before);
    }
}

#[test]
fn a_copy_in_shadowed_mode_is_psynced_and_goes_back_to_that() {
    HEAPS.into_iter().for_each(a_shadowed_copy_is_psynced);
}

fn a_shadowed_copy_is_psynced(heap: HeapKind) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill_in(&store, "a", &of(heap, PoolMode::Shadowed), NODES);
    store.clone_pool("a", "b").unwrap();
    let pool = store.pool_with("b", Access::ReadWrite).unwrap();
    pool.psync().unwrap();
    walk(&store, &pool, NODES);
    let pages = pool.psync().unwrap().pages;
    assert!(
        pages < 64,
        "rewriting makes both files: what the heap notes of itself is dirty, not {pages} pages"
    );
    pool.write(|tx| -> Result<()> {
        let root = tx.root::<Root>()?.expect("a root");
        let first = tx.get(root)?.first.expect("a node");
        tx.get_mut_pad(first)
    })
    .unwrap();
    assert!(pool.psync().unwrap().pages > 0);
    let puddles =
        store.puddle_records().into_iter().filter(|p| p.pool == pool.id()).collect::<Vec<_>>();
    // A psync is over when its record is durable; the primary has it at the latest when the store
    // is closed.
    drop(pool);
    store.close().unwrap();
    for puddle in puddles {
        let name = String::from_utf8_lossy(&puddle.uuid.to_hex()).into_owned();
        let read = |kind: &str| std::fs::read(dir.path().join(kind).join(&name)).unwrap();
        assert!(read("puddles") == read("primary"), "puddle {}", puddle.index);
    }
}

trait SetPad {
    fn get_mut_pad(&mut self, node: Ptr<Node>) -> Result<()>;
}

impl SetPad for cenote::Tx<'_> {
    fn get_mut_pad(&mut self, node: Ptr<Node>) -> Result<()> {
        let value = self.get(node)?.value;
        self.set(node, field!(Node, value), value)?;
        self.set(node, field!(Node, pad), [9; 250])
    }
}

/// Points into another pool.
#[derive(Persist)]
#[persist(name = "relocate::Across")]
struct Across {
    there: Option<Ptr<Node>>,
}

#[test]
fn new_addresses_are_followed_from_every_pool_of_the_store() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let modes = [PoolMode::Direct, PoolMode::Shadowed];
    for (heap, mode) in HEAPS.into_iter().flat_map(|heap| modes.map(|mode| (heap, mode))) {
        let name = format!("{heap:?} {mode:?}");
        fill_in(&store, &name, &of(heap, mode), NODES);
        // A transaction is over pools of one mode.
        let other = store.create_pool(&format!("to {name}"), &of(heap, mode)).unwrap();
        let pool = store.pool(&name).unwrap();
        store
            .write(&[&other, &pool], |tx| -> Result<()> {
                let root = tx.root_in::<Root>(&pool, 0)?.expect("a root");
                let there = tx.get(root)?.first;
                let across = tx.alloc_in(&other, Across { there })?;
                tx.set_root_in(&other, 0, Some(across))
            })
            .unwrap();
        assert!(matches!(
            store.randomize_pool(&name),
            Err(Error::Store(StoreError::PoolInUse { .. }))
        ));
        let old = first_of(&pool);
        drop((pool, other));
        for round in 0..3 {
            store.randomize_pool(&name).unwrap();
            let (pool, other) =
                (store.pool(&name).unwrap(), store.pool(&format!("to {name}")).unwrap());
            let new = first_of(&pool);
            assert_ne!(old, new, "a window of 2^19 places");
            let view = other.read().unwrap();
            let there = view.get(view.root::<Across>().unwrap().expect("a root")).unwrap().there;
            assert_eq!(there.expect("set").addr(), new);
            drop(view);
            if round != 1 {
                walk(&store, &pool, NODES);
            }
            assert!(
                round != 1 || heap != HeapKind::Traced || pool.pending_rewrites() > 0,
                "the third time, some puddles are moved that were never touched"
            );
        }
    }
    for info in store.pools() {
        assert!(store.pool(&info.record.name).unwrap().check().unwrap().is_sound());
    }
}

#[test]
fn what_cannot_be_copied_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    fill(&store, "a", PoolMode::Direct, 3);
    let files = || std::fs::read_dir(dir.path().join("puddles")).unwrap().count();
    let pool = store.pool("a").unwrap();
    assert!(matches!(store.clone_pool("a", "b"), Err(Error::Store(StoreError::PoolInUse { .. }))));
    drop(pool);
    let before = files();
    assert!(matches!(
        store.clone_pool("missing", "b"),
        Err(Error::Store(StoreError::PoolUnknown { .. }))
    ));
    assert!(matches!(store.clone_pool("a", "a"), Err(Error::Store(StoreError::PoolExists { .. }))));
    assert!(matches!(store.clone_pool("a", " b"), Err(Error::Store(StoreError::PoolName { .. }))));
    assert_eq!(files(), before);
    // A damaged puddle that is pending: its first touch is an error, where the caller can get one,
    // and the pool stays as it was.
    store.clone_pool("a", "b").unwrap();
    let id = store.pools().iter().find(|pool| pool.record.name == "b").unwrap().record.id;
    let puddle = store.puddle_records().into_iter().find(|p| p.pool == id).unwrap();
    store.close().unwrap();
    let file =
        dir.path().join(format!("puddles/{}", String::from_utf8_lossy(&puddle.uuid.to_hex())));
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[80] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(store.pool("b"), Err(Error::Store(StoreError::PoolDamaged { .. }))));
    walk(&store, &store.pool("a").unwrap(), 3);
}

/// Not a test by itself: what a child does until it is killed. Opens copies and what it imports,
/// and touches them.
#[test]
fn child_that_is_killed() {
    let Ok(dir) = std::env::var("CENOTE_RELOCATE_DIR") else { return };
    let store = Store::open(&dir).unwrap();
    say("ready");
    for copy in 0.. {
        let name = format!("{} {copy}", std::process::id());
        let logged = if copy % 8 < 4 { "" } else { " logged" };
        match copy % 4 {
            0 => drop(store.clone_pool(&format!("a{logged}"), &name).unwrap()),
            1 => {
                let name = format!("{name}, plain");
                drop(store.clone_pool(&format!("plain{logged}"), &name).unwrap());
                walk_plain(&store, &store.pool(&name).unwrap(), PLAIN);
                continue;
            }
            2 => drop(store.clone_pool(&format!("shadowed{logged}"), &name).unwrap()),
            _ => {
                let archive = Path::new(&dir).with_extension(format!("archive{logged}"));
                let archive = std::fs::File::open(archive).unwrap();
                let names = vec![name.clone(), format!("{name}, shadowed")];
                store.import(archive, ImportOptions { names, ..ImportOptions::default() }).unwrap();
            }
        }
        let pool = store.pool(&name).unwrap();
        walk_raw(first_of(&pool), 60);
        drop(pool);
    }
}

/// Ends of names of pools, by kind of heap.
const KINDS: [&str; 3] = ["", " logged", " wear"];

#[test]
fn a_process_that_is_killed_leaves_every_puddle_old_or_new() {
    let outer = crate::support::directory();
    let dir = outer.path().join("store");
    let store = Store::open(&dir).unwrap();
    for (heap, kind) in HEAPS.into_iter().zip(KINDS) {
        let (a, shadowed) = (&format!("a{kind}"), &format!("shadowed{kind}"));
        fill_in(&store, a, &of(heap, PoolMode::Direct), 60);
        fill_in(&store, shadowed, &of(heap, PoolMode::Shadowed), 60);
        fill_plain(&store, &format!("plain{kind}"), heap, PLAIN);
        let archive = dir.with_extension(format!("archive{kind}"));
        let options = ExportOptions::default();
        store.export_to(&[a, shadowed], archive, Exclusive::New, options).unwrap();
    }
    store.close().unwrap();
    let originals: Vec<String> = ["a", "shadowed", "plain"]
        .iter()
        .flat_map(|name| KINDS.map(|kind| format!("{name}{kind}")))
        .collect();
    let mut seed = 7u64;
    for _ in 0..number("CENOTE_RELOCATE_KILLS", 12) {
        let mut command = again("relocate::child_that_is_killed");
        let mut child = Talking::start(command.env("CENOTE_RELOCATE_DIR", &dir));
        assert_eq!(child.hear().as_deref(), Some("ready"), "the child ended");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::thread::sleep(Duration::from_micros(2_000 + (seed >> 33) % 60_000));
        child.kill();
        let store = Store::open(&dir).unwrap();
        let known: Vec<String> = store
            .puddle_records()
            .iter()
            .map(|p| String::from_utf8_lossy(&p.uuid.to_hex()).into())
            .collect();
        for file in std::fs::read_dir(dir.join("puddles")).unwrap() {
            let name = file.unwrap().file_name().into_string().unwrap();
            assert!(known.contains(&name), "a file that no pool has survived: {name}");
        }
        let names: Vec<String> = store.pools().into_iter().map(|pool| pool.record.name).collect();
        for name in names.iter().filter(|name| name.ends_with(", shadowed")) {
            let other = name.trim_end_matches(", shadowed");
            assert!(names.iter().any(|name| name == other), "half of an import");
        }
        for name in &names {
            let pool = store.pool(name).unwrap();
            match name.contains("plain") {
                true => walk_plain(&store, &pool, PLAIN),
                false => walk(&store, &pool, 60),
            }
            drop(pool);
            if !originals.contains(name) {
                // SAFETY: the pool is not open; nothing else is done with the store underneath.
                unsafe { store.as_raw() }.remove_pool(name).unwrap();
            }
        }
        store.close().unwrap();
    }
}

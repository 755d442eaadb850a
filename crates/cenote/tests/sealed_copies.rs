//! Copies, archives and new addresses of pools that are protected at rest: right pointers, no
//! plaintext in any file, no key where none is needed, and nothing that is sealed twice under one
//! key.

use crate::archives::{HEAPS, names, store_with_window, window};
use crate::at_rest::{
    PROTECTED, WORD, count, key, key_for, opened, options, push, root_file, with_word,
};
use crate::support::{directory, hashes};
use cenote::{
    Access, ArchivingError, AtRest, AtRestError, Backend, Error, ExportOptions, HeapKind,
    ImportOptions, OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader, RelocationOptions, Result,
    Store, field,
};
use cenote_archive::ArchiveReader;
use cenote_layout::catalog::PuddleRecord;
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use cenote_store::relocate::QuiescentPool;
use cenote_testkit::directories::files;
use cenote_testkit::environment::stride;
use cenote_testkit::random::mix;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;

/// A closed store with a protected pool "p" of several puddles.
pub(crate) fn closed(dir: &Path, at_rest: AtRest, nodes: u64) {
    closed_in(dir, (at_rest, HeapKind::Traced), nodes);
}

/// The same with a heap of that kind.
fn closed_in(dir: &Path, (at_rest, heap): (AtRest, HeapKind), nodes: u64) {
    let store = store_with_window(dir, window());
    let options = PoolOptions { heap, ..options(at_rest, key_for(at_rest, 1)) };
    let pool = store.create_pool("p", &options).unwrap();
    push(&pool, 0, nodes);
    drop(pool);
    store.close().unwrap();
}

/// Each protection, with each heap; one of them in the quick loop.
fn each() -> impl Iterator<Item = (AtRest, HeapKind)> {
    let all = PROTECTED.into_iter().flat_map(|at_rest| HEAPS.map(|heap| (at_rest, heap)));
    all.step_by(stride(1) as usize)
}

fn has_word(bytes: &[u8]) -> bool {
    bytes.windows(8).any(|window| window == WORD.to_le_bytes())
}

/// Nothing of what is in a pool lies open in a file.
#[track_caller]
fn clear(dir: &Path, at_rest: AtRest, when: &str) {
    let found = with_word(dir);
    assert!(at_rest == AtRest::Integrity || found.is_empty(), "{at_rest:?}, {when}: {found:?}");
}

/// Every page of a pool is as it should be, as far as its mode tells.
#[track_caller]
fn whole(pool: &Pool) {
    let found = pool.verify(&mut |_, _| true);
    let whole =
        found.iter().all(|puddle| puddle.found.damaged.is_empty() && puddle.found.pages > 0);
    assert!(!found.is_empty() && (whole || !pool.at_rest().mode().has_tree()), "{found:?}");
}

/// The pages of all files of puddles, but headers and those of zeros.
fn pages(dir: &Path) -> Vec<Vec<u8>> {
    let of = |path: &std::path::PathBuf| std::fs::read(path).unwrap();
    let files = files(&dir.join("puddles"));
    let pages = files
        .iter()
        .flat_map(|path| of(path)[4096..].chunks(4096).map(<[u8]>::to_vec).collect::<Vec<_>>());
    pages.filter(|page| page.iter().any(|byte| *byte != 0)).collect()
}

#[test]
fn a_copy_needs_no_key_and_is_sealed_anew_when_it_is_touched() {
    for (at_rest, heap) in each() {
        let dir = directory();
        closed_in(dir.path(), (at_rest, heap), 3000);
        let store = Store::open(dir.path()).unwrap();
        let copy = store.clone_pool("p", "copy").unwrap();
        assert!(copy.moved && copy.pending >= 3, "{copy:?}");
        clear(dir.path(), at_rest, "cloned");
        store.close().unwrap();
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        let pending = |store: &Store| {
            store.pools().iter().find(|info| info.record.name == "copy").unwrap().pending
        };
        assert_eq!(pending(&store), copy.pending, "which are due survives a restart");
        let (original, copied) = (store.pool("p").unwrap(), store.pool("copy").unwrap());
        assert_eq!(copied.at_rest(), at_rest);
        whole(&copied);
        assert_eq!((count(&original), count(&copied)), (3000, 3000));
        clear(dir.path(), at_rest, "touched");
        push(&copied, 3000, 3500);
        push(&original, 3000, 3001);
        store.psync(&[&original, &copied]).unwrap();
        clear(dir.path(), at_rest, "psynced");
        whole(&original);
        whole(&copied);
        drop((original, copied));
        store.close().unwrap();
        clear(dir.path(), at_rest, "closed");
        if at_rest.mode().has_key() {
            let pages = pages(dir.path());
            let all: BTreeSet<&Vec<u8>> = pages.iter().collect();
            assert_eq!(
                all.len(),
                pages.len(),
                "{at_rest:?}: something is sealed twice under one key"
            );
        }
        let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
        assert_eq!(pending(&store), 0);
        let open = |name| store.pool_with(name, Access::ReadOnly).unwrap();
        assert_eq!((count(&open("p")), count(&open("copy"))), (3001, 3500));
    }
}

#[test]
fn a_copy_has_what_was_written_and_not_psynced() {
    let dir = directory();
    store_with_window(dir.path(), window()).close().unwrap();
    let store = opened(dir.path(), Access::ReadWrite, Some(key(1)));
    let pool = store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap();
    push(&pool, 0, 100);
    pool.psync().unwrap();
    push(&pool, 100, 700);
    let busy = store.clone_pool("p", "copy");
    assert!(matches!(busy, Err(Error::Store(StoreError::PoolInUse { .. }))), "{busy:?}");
    drop(pool);
    store.clone_pool("p", "copy").unwrap();
    assert_eq!(count(&store.pool("copy").unwrap()), 700);
    store.abandon();
    let store = opened(dir.path(), Access::ReadWrite, Some(key(1)));
    assert_eq!(count(&store.pool("p").unwrap()), 700, "it was psynced for the copy");
    assert_eq!(count(&store.pool("copy").unwrap()), 700);
}

/// Hashes of the files of a pool's puddles, by name.
fn hashes_of(dir: &Path, pool: &QuiescentPool) -> Vec<(String, u64)> {
    let name = |puddle: &PuddleRecord| puddle.uuid.to_string().replace('-', "");
    let names: Vec<String> = pool.puddles.iter().map(|(puddle, _)| name(puddle)).collect();
    let own = |file: &String| names.iter().any(|name| file.ends_with(name));
    hashes(dir).into_iter().filter(|(file, _)| own(file)).collect()
}

/// A copy is one of files. So the last psync is brought into them first, of this session and of one
/// that was killed. A reader, which cannot write them, gets an error and no older state.
#[test]
fn what_the_journal_has_is_in_the_files_before_they_are_copied() {
    for at_rest in PROTECTED {
        let dir = directory();
        store_with_window(dir.path(), window()).close().unwrap();
        let open = |access| opened(dir.path(), access, key_for(at_rest, 1));
        let store = open(Access::ReadWrite);
        let pool = store.create_pool("p", &options(at_rest, key_for(at_rest, 1))).unwrap();
        push(&pool, 0, 100);
        pool.psync().unwrap();
        drop(pool);
        store.close().unwrap();
        // A psync that only the journal is sure to have: its session is killed.
        let store = open(Access::ReadWrite);
        let pool = store.pool("p").unwrap();
        push(&pool, 100, 300);
        pool.psync().unwrap();
        drop(pool);
        store.abandon();
        let before = hashes(dir.path());
        let store = open(Access::ReadOnly);
        // SAFETY: only the catalog's record of a pool is touched, which is not open.
        let refused = unsafe { store.as_raw() }.quiescent_pool("p");
        let what = "bring a protected pool's last psync into its files";
        assert!(
            matches!(refused, Err(StoreError::ReadOnly { what: why }) if why == what),
            "{refused:?}"
        );
        assert!(store.export(&["p"], Vec::new(), ExportOptions::default()).is_err());
        assert_eq!(
            count(&store.pool_with("p", Access::ReadOnly).unwrap()),
            300,
            "it is there to be read"
        );
        drop(store);
        assert_eq!(hashes(dir.path()), before, "{at_rest:?}: a refusal wrote something");
        // A session that may write copies it whole: what was killed, and what the session has
        // psynced and stored since.
        let store = open(Access::ReadWrite);
        store.clone_pool("p", "killed").unwrap();
        let pool = store.pool("p").unwrap();
        push(&pool, 300, 400);
        pool.psync().unwrap();
        push(&pool, 400, 500);
        drop(pool);
        // SAFETY: only files of pools that are not open are looked at.
        let found = unsafe { store.as_raw() }.quiescent_pool("p").unwrap();
        let then = hashes_of(dir.path(), &found);
        assert_eq!(then.len(), found.puddles.len(), "{at_rest:?}: files of other names");
        store.clone_pool("p", "copy").unwrap();
        store.abandon();
        // Nothing was left for recovery to bring there.
        let store = open(Access::ReadWrite);
        assert_eq!(hashes_of(dir.path(), &found), then, "{at_rest:?}");
        let counts = ["killed", "copy", "p"].map(|name| count(&store.pool(name).unwrap()));
        assert_eq!(counts, [300, 500, 500], "{at_rest:?}");
        // A session that only looks makes the archive of a store that was closed.
        store.close().unwrap();
        let store = open(Access::ReadOnly);
        store.export(&["p"], Vec::new(), ExportOptions::default()).unwrap();
    }
}

#[test]
fn which_puddles_are_done_survives_a_crash_and_a_change_of_the_key() {
    let dir = directory();
    closed(dir.path(), AtRest::Authenticated, 3000);
    let store = opened(dir.path(), Access::ReadWrite, None);
    store.clone_pool("p", "copy").unwrap();
    // The root puddle becomes its own by the old key, and no other is touched.
    drop(store.pool_with_key("copy", Access::ReadOnly, &key(1)).unwrap());
    store.abandon();
    let store = opened(dir.path(), Access::ReadWrite, None);
    let left = |store: &Store| {
        store.pools().iter().find(|info| info.record.name == "copy").unwrap().pending
    };
    assert!(left(&store) >= 2, "{}", left(&store));
    // A change of the key finishes the copy: with the new key comes none that opens the original.
    store.rekey_pool("copy", &key(1), &key(3)).unwrap();
    store.abandon();
    let store = opened(dir.path(), Access::ReadWrite, None);
    let open = |number| store.pool_with_key("copy", Access::ReadWrite, &key(number));
    let wrong = open(1);
    assert!(
        matches!(&wrong, Err(Error::Store(StoreError::AtRest { source, .. }))
            if matches!(**source, AtRestError::WrongKey { .. })),
        "{wrong:?}"
    );
    let pool = open(3).unwrap();
    assert_eq!(count(&pool), 3000);
    whole(&pool);
    drop(pool);
    assert_eq!(count(&store.pool_with_key("p", Access::ReadOnly, &key(1)).unwrap()), 3000);
}

#[test]
fn a_store_that_may_only_be_looked_at_shows_a_sealed_copy_and_writes_nothing() {
    for (at_rest, heap) in each() {
        let dir = directory();
        closed_in(dir.path(), (at_rest, heap), 2000);
        let store = Store::open(dir.path()).unwrap();
        store.clone_pool("p", "copy").unwrap();
        store.close().unwrap();
        let before = hashes(dir.path());
        let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
        let pool = store.pool_with("copy", Access::ReadOnly).unwrap();
        whole(&pool);
        assert_eq!(count(&pool), 2000);
        whole(&pool);
        if at_rest.mode().has_key() {
            let wrong = store.pool_with_key("copy", Access::ReadOnly, &key(2));
            assert!(matches!(wrong, Err(Error::Store(StoreError::AtRest { .. }))), "{wrong:?}");
        }
        drop(pool);
        drop(store);
        assert_eq!(hashes(dir.path()), before);
    }
}

#[test]
fn an_archive_of_a_protected_pool_is_sealed_and_needs_no_key() {
    for (at_rest, heap) in each() {
        let (here, there) = (directory(), directory());
        closed_in(here.path(), (at_rest, heap), 2500);
        let has_key = at_rest.mode().has_key();
        let before = hashes(here.path());
        let store = opened(here.path(), Access::ReadOnly, None);
        let (archive, exported) =
            store.export(&["p"], Vec::new(), ExportOptions::default()).unwrap();
        drop(store);
        assert_eq!(hashes(here.path()), before);
        assert!(
            exported.puddles >= 3 && exported.unseen.len() == usize::from(has_key),
            "{exported:?}"
        );
        assert_eq!(has_word(&archive), at_rest == AtRest::Integrity);
        // Beside the original, where addresses are taken, and in another store; twice each.
        let (store, other) =
            (Store::open(here.path()).unwrap(), store_with_window(there.path(), window()));
        for (into, list) in [(&store, ["a", "b"]), (&other, ["a", "b"])] {
            for name in list {
                let seen = into.inspect_archive(archive.as_slice(), names(&[name])).unwrap();
                assert!(seen.refused.is_none(), "{seen:?}");
                let made = into.import(archive.as_slice(), names(&[name])).unwrap().imported;
                assert_eq!((made.pools[0].moved, made.pools[0].pending), (true, exported.puddles));
            }
        }
        store.close().unwrap();
        other.close().unwrap();
        clear(here.path(), at_rest, "imported");
        for dir in [&here, &there] {
            let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
            if has_key {
                let wrong = store.pool_with_key("a", Access::ReadWrite, &key(2));
                assert!(matches!(wrong, Err(Error::Store(StoreError::AtRest { .. }))), "{wrong:?}");
            }
            for name in ["a", "b"] {
                let pool = store.pool(name).unwrap();
                assert_eq!(count(&pool), 2500);
                push(&pool, 2500, 2510);
                pool.psync().unwrap();
                whole(&pool);
            }
            // With the key only the types that are there go along.
            let exported = store.export(&["a"], Vec::new(), ExportOptions::default()).unwrap();
            assert!(exported.1.unseen.is_empty());
            let reader = ArchiveReader::open(exported.0.as_slice()).unwrap();
            let types: Vec<&str> =
                reader.manifest().types.iter().map(|kind| kind.name.as_str()).collect();
            assert_eq!(types, ["at_rest::Node"]);
            store.close().unwrap();
            clear(dir.path(), at_rest, "used");
        }
    }
}

#[test]
fn a_pool_that_keeps_its_addresses_is_sealed_anew_all_the_same() {
    let (here, there) = (directory(), directory());
    let base = window();
    let store = store_with_window(here.path(), base);
    let pool = store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap();
    push(&pool, 0, 300);
    drop(pool);
    let archive = store.export(&["p"], Vec::new(), ExportOptions::default()).unwrap().0;
    let before = std::fs::read(root_file(&store, here.path(), "p")).unwrap();
    // One window at a time.
    store.close().unwrap();
    let other = store_with_window(there.path(), base);
    let made = other.import(archive.as_slice(), ImportOptions::default()).unwrap().imported;
    assert!(!made.pools[0].moved && made.pools[0].pending > 0, "{made:?}");
    assert_eq!(count(&other.pool_with_key("p", Access::ReadWrite, &key(1)).unwrap()), 300);
    let after = std::fs::read(root_file(&other, there.path(), "p")).unwrap();
    let pages = |bytes: &[u8]| -> BTreeSet<Vec<u8>> {
        let pages = bytes[4096..256 << 10].chunks(4096).map(<[u8]>::to_vec);
        pages.filter(|page| page.iter().any(|byte| *byte != 0)).collect()
    };
    assert!(pages(&before).is_disjoint(&pages(&after)), "a page is sealed as it was");
}

/// A node with a way to any other, of its own pool or of another.
#[derive(Persist)]
#[persist(name = "sealed_copies::Cell")]
struct Cell {
    value: u64,
    next: Option<Ptr<Cell>>,
    far: Option<Ptr<Cell>>,
    words: [u64; 29],
}

/// Fills pools with cells; each leads to the next of its pool, and at random to one of any. Returns
/// where by value.
fn graph(store: &Store, pools: &[Pool], seed: u64, each: u64) -> HashMap<u64, u64> {
    let all: Vec<&Pool> = pools.iter().collect();
    let mut made: Vec<Ptr<Cell>> = Vec::new();
    for (number, pool) in (0u64..).zip(pools) {
        store
            .write(&all, |tx| -> Result<()> {
                let mut next = None;
                for value in 0..each {
                    let cell =
                        Cell { value: number * each + value, next, far: None, words: [WORD; 29] };
                    let this = tx.alloc_in(pool, cell)?;
                    made.push(this);
                    next = Some(this);
                }
                tx.set_root_in(pool, 0, next)
            })
            .unwrap();
    }
    let mut far = HashMap::new();
    for chunk in made.chunks(500) {
        let from = far.len() as u64;
        store
            .write(&all, |tx| -> Result<()> {
                for (value, this) in (from..).zip(chunk) {
                    let to = mix(seed * 1000 + value) % made.len() as u64;
                    far.insert(value, to);
                    tx.set(*this, field!(Cell, far), Some(made[to as usize]))?;
                }
                Ok(())
            })
            .unwrap();
    }
    far
}

/// Whether pools hold what [`graph`] put into others, each way within these pools.
fn same(pools: &[Pool], far: &HashMap<u64, u64>) {
    let views: Vec<_> = pools.iter().map(|pool| pool.read().unwrap()).collect();
    let mut seen = 0;
    for view in &views {
        let mut at = view.root::<Cell>().unwrap();
        while let Some(this) = at {
            let cell = view.get(this).unwrap();
            assert_eq!(cell.words, [WORD; 29]);
            let to = cell.far.unwrap();
            let found: Vec<u64> =
                views.iter().filter_map(|v| Some(v.get(to).ok()?.value)).collect();
            assert_eq!(found, [far[&cell.value]], "the way from {}", cell.value);
            (at, seen) = (cell.next, seen + 1);
        }
    }
    assert_eq!(seen, far.len());
}

#[test]
fn ways_between_protected_pools_lead_to_their_copies() {
    let seed =
        std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0xc0de);
    println!("seed {seed}");
    for (round, at_rest) in (seed..).zip([AtRest::Authenticated, AtRest::Encryption]) {
        let (here, there) = (directory(), directory());
        let store = store_with_window(here.path(), window());
        let small = PoolOptions { puddle_size: 128 << 10, ..options(at_rest, Some(key(1))) };
        let make = |name: &str| store.create_pool(name, &small).unwrap();
        let pools = [make("p"), make("q")];
        let far = graph(&store, &pools, round, 2000);
        same(&pools, &far);
        drop(pools);
        store.close().unwrap();
        let store = opened(here.path(), Access::ReadWrite, None);
        let targets = || ExportOptions { with_targets: true, ..ExportOptions::default() };
        let refused = store.export(&["p"], Vec::new(), targets()).unwrap_err();
        assert!(
            matches!(&refused, Error::Archive(ArchivingError::NoKey { pool }) if pool == "p"),
            "{refused}"
        );
        store.close().unwrap();
        let store = opened(here.path(), Access::ReadWrite, Some(key(1)));
        let alone = store.export(&["p"], Vec::new(), ExportOptions::default()).unwrap().1;
        assert!(alone.left.len() == 1 && alone.left[0].name == "q" && alone.left[0].pointers > 500);
        let (archive, exported) = store.export(&["p"], Vec::new(), targets()).unwrap();
        assert_eq!(
            (exported.pools.as_slice(), exported.left.len()),
            (&["p".into(), "q".into()][..], 0)
        );
        assert!(!has_word(&archive));
        let other = Store::open_with(
            {
                drop(store_with_window(there.path(), window()).close());
                there.path()
            },
            &OpenOptions { key: Some(key(1)), ..OpenOptions::default() },
        )
        .unwrap();
        for (into, copies) in [(&store, ["p1", "q1"]), (&store, ["p2", "q2"]), (&other, ["p", "q"])]
        {
            into.import(archive.as_slice(), names(&copies)).unwrap();
            same(&copies.map(|name| into.pool(name).unwrap()), &far);
        }
        same(&["p", "q"].map(|name| store.pool(name).unwrap()), &far);
        clear(here.path(), at_rest, "imported");
        // New addresses for one: the other's ways follow, and an anchor of the old state shows that
        // the new one is newer.
        let anchors = store.pool("q").unwrap().anchors();
        store.close().unwrap();
        let store = opened(here.path(), Access::ReadWrite, None);
        let before = store.puddle_records();
        store.randomize_pool("q").unwrap();
        assert_ne!(before, store.puddle_records());
        store.close().unwrap();
        clear(here.path(), at_rest, "moved");
        let store = opened(here.path(), Access::ReadWrite, Some(key(1)));
        for copies in [["p", "q"], ["p1", "q1"]] {
            let pools = copies.map(|name| store.pool(name).unwrap());
            same(&pools, &far);
            pools.iter().for_each(whole);
        }
        let moved = store.pool("q").unwrap();
        moved.check_anchors(&anchors).unwrap();
        drop(moved);
        store.close().unwrap();
        clear(here.path(), at_rest, "moved and touched");
    }
}

#[test]
fn every_backend_opens_a_sealed_copy_for_many_threads() {
    for backend in [Backend::Signal, Backend::Userfault, Backend::Eager] {
        let dir = directory();
        closed(dir.path(), AtRest::Authenticated, 4000);
        let relocation = RelocationOptions { backend, ..RelocationOptions::default() };
        let options = OpenOptions { key: Some(key(1)), relocation, ..OpenOptions::default() };
        let store = Store::open_with(dir.path(), &options).unwrap();
        store.clone_pool("p", "copy").unwrap();
        let pool = store.pool("copy").unwrap();
        if backend == Backend::Eager {
            assert_eq!(pool.pending_rewrites(), 0);
        }
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| count(&pool))).collect();
            threads.into_iter().for_each(|thread| assert_eq!(thread.join().unwrap(), 4000));
        });
        push(&pool, 4000, 4100);
        pool.psync().unwrap();
        assert_eq!(pool.pending_rewrites(), 0);
        whole(&pool);
    }
}

#[test]
fn a_damaged_page_of_a_copy_is_named_and_the_other_puddles_can_be_used() {
    let dir = directory();
    closed(dir.path(), AtRest::Authenticated, 3000);
    let store = opened(dir.path(), Access::ReadWrite, Some(key(1)));
    store.clone_pool("p", "copy").unwrap();
    let id = store.pools().iter().find(|info| info.record.name == "copy").unwrap().record.id;
    let last = store
        .puddle_records()
        .into_iter()
        .filter(|p| p.pool == id)
        .max_by_key(|p| p.index)
        .unwrap();
    let file = dir.path().join("puddles").join(last.uuid.to_string().replace('-', ""));
    let mut bytes = std::fs::read(&file).unwrap();
    let written = |page: &usize| bytes[page * 4096..][..4096].iter().any(|byte| *byte != 0);
    let page = (1..last.size as usize / 4096).find(written).unwrap();
    bytes[page * 4096 + 5] ^= 1;
    std::fs::write(&file, &bytes).unwrap();
    // The heap would be read when the pool is opened: what is in the store is looked at underneath.
    // SAFETY: the pool is opened to be looked at, and nothing else is done.
    let raw = unsafe { store.as_raw() };
    let pool = raw.open_pool("copy", Access::ReadOnly).unwrap();
    let found = pool.verify(&mut |_, _| true);
    let damaged: Vec<(u32, u64)> = found
        .iter()
        .flat_map(|puddle| puddle.found.damaged.iter().map(|(page, _)| (puddle.index, *page)))
        .collect();
    assert_eq!(damaged, [(last.index, page as u64 - 1)]);
    let wrong = pool.finish_relocation(&mut |_| std::ops::ControlFlow::Continue(())).unwrap_err();
    let text = wrong.to_string();
    assert!(text.contains(&format!("page {}", page - 1)), "{text}");
    assert_eq!(pool.pending_rewrites(), 1, "the others are done");
    drop(pool);
    assert_eq!(count(&store.pool("p").unwrap()), 3000, "the original is not concerned");
}

/// A copy that is made, opened, left by a crash and opened again: what is wrong then, if anything.
fn copied_and_crashed(bug: Bug) -> std::result::Result<(), String> {
    let dir = directory();
    closed(dir.path(), AtRest::Authenticated, 3000);
    plant(bug);
    let store = opened(dir.path(), Access::ReadWrite, Some(key(1)));
    let used = store
        .clone_pool("p", "copy")
        .and_then(|_| store.rekey_pool("copy", &key(1), &key(3)))
        .map_err(|error| error.to_string());
    plant(Bug::None);
    store.abandon();
    used?;
    let found = with_word(dir.path());
    if !found.is_empty() {
        return Err(format!("plaintext in {found:?}"));
    }
    let store = opened(dir.path(), Access::ReadWrite, Some(key(3)));
    let pool = store.pool("copy").map_err(|error| error.to_string())?;
    assert_eq!(count(&pool), 3000);
    Ok(())
}

#[test]
fn planted_bugs_of_sealed_copies_are_found() {
    copied_and_crashed(Bug::None).unwrap();
    for bug in
        [Bug::ResealedInPlain, Bug::NothingInherited, Bug::SealedAsForgotten, Bug::ImportNotPending]
    {
        let found = copied_and_crashed(bug).expect_err("the bug was not found");
        println!("{bug:?}: {found}");
    }
}

//! Pools go into archives and come out of them, in other stores and beside the originals; and
//! nothing is left of what does not work.

mod debugger;

use crate::support::{directory, hashes, underneath, within};
use cenote::{
    Access, ArchivingError, Codec, Error, Exclusive, ExportOptions, FormatOptions, HeapKind,
    ImportOptions, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, RegionPtr,
    RelPtr, Result, Store, field,
};
use cenote_relocate::archiving;
use cenote_store::StoreError;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Persist)]
#[persist(name = "archives::Node")]
pub(crate) struct Node {
    value: u64,
    pub(crate) next: Option<Ptr<Node>>,
    /// The one before, by distance.
    pub(crate) back: RelPtr<Node>,
    /// In another pool.
    far: RegionPtr<Node>,
    other: Option<Ptr<Node>>,
}

pub(crate) fn node(value: u64, next: Option<Ptr<Node>>) -> Node {
    Node { value, next, back: RelPtr::NULL, far: RegionPtr::NULL, other: None }
}

pub(crate) fn small() -> PoolOptions {
    PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() }
}

/// All kinds of heaps.
pub(crate) const HEAPS: [HeapKind; 3] = [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR];

/// Small pools with each heap in each mode.
fn all_small() -> impl Iterator<Item = PoolOptions> {
    let modes = [PoolMode::Direct, PoolMode::Shadowed];
    let all = modes.into_iter().flat_map(|mode| HEAPS.map(|heap| (heap, mode)));
    all.map(|(heap, mode)| PoolOptions { heap, mode, ..small() })
}

pub(crate) fn names(list: &[&str]) -> ImportOptions<'static> {
    let names = list.iter().map(|name| (*name).to_string()).collect();
    ImportOptions { names, ..ImportOptions::default() }
}

/// A list of so many nodes; more than 4,000 take several puddles.
pub(crate) fn list(store: &Store, name: &str, options: &PoolOptions, len: u64) -> Result<Pool> {
    let pool = store.create_pool(name, options)?;
    let mut next = None;
    // A transaction of a logged heap has not more tickets.
    let step = if options.heap == HeapKind::Logged { 500 } else { len };
    for end in (1..=len).rev().step_by(step as usize) {
        next = pool.write(|tx| -> Result<_> {
            let mut next = next;
            for value in (end.saturating_sub(step)..end).rev() {
                let this = tx.alloc(node(value, next))?;
                if let Some(next) = next {
                    tx.set_rel(next, field!(Node, back), Some(this))?;
                }
                next = Some(this);
            }
            tx.set_root(next.expect("a list has a node"))?;
            Ok(next)
        })?;
    }
    Ok(pool)
}

/// The list's values. Each node's way back is to the one before.
pub(crate) fn values(pool: &Pool) -> Result<Vec<u64>> {
    let view = pool.read()?;
    let (mut at, mut out, mut before) = (view.root::<Node>()?, Vec::new(), None);
    while let Some(this) = at {
        let node = view.get(this)?;
        assert_eq!(node.back.get(), before, "the way back from {}", node.value);
        out.push(node.value);
        (before, at) = (at, node.next);
    }
    Ok(out)
}

/// A window that no other test of this process has. Those with a fixed place lie below 32 TiB,
/// where none is chosen for a store that has none.
pub(crate) fn window() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x1400_0000_0000);
    NEXT.fetch_add(1 << 33, Ordering::Relaxed)
}

pub(crate) fn store_with_window(directory: &Path, base: u64) -> Store {
    let format = FormatOptions { window_base: Some(base), window_len: 1 << 32, uuid: None };
    Store::format(directory, &format).expect("an empty directory");
    Store::open(directory).expect("a store")
}

pub(crate) fn puddle_files(directory: &Path) -> Vec<String> {
    let all = hashes(directory).into_keys();
    all.filter(|name| name.starts_with("puddles/") || name.starts_with("primary/")).collect()
}

#[test]
fn pools_come_to_another_store_and_beside_the_original_and_their_pointers_are_right() -> Result<()>
{
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    let other = store_with_window(there.path(), window());
    let wanted: Vec<u64> = (0..9000).collect();
    for options in all_small() {
        let name = format!("{:?} {:?}", options.heap, options.mode);
        drop(list(&store, &name, &options, 9000)?);
        let (archive, exported) = store.export(&[&name], Vec::new(), ExportOptions::default())?;
        assert!(exported.puddles > 1, "{exported:?}");
        assert_eq!(exported.archive_bytes, archive.len() as u64);
        assert!(exported.left.is_empty());
        let before = hashes(here.path());
        // Beside the original, more than once; and elsewhere, where other addresses are.
        for copy in ["a", "b"] {
            let copy = format!("{name} {copy}");
            let made = store.import(archive.as_slice(), names(&[&copy]))?;
            assert!(
                made.imported.pools[0].moved && made.imported.pools[0].pending == exported.puddles
            );
            assert_eq!(values(&store.pool(&copy)?)?, wanted);
        }
        let made = other.import(archive.as_slice(), ImportOptions::default())?;
        assert!(made.imported.pools[0].moved);
        assert_eq!(values(&other.pool(&name)?)?, wanted);
        // And can be written as any other.
        let pool = other.pool(&name)?;
        pool.write(|tx| -> Result<()> {
            let next = tx.root::<Node>()?.expect("it has nodes");
            let first = tx.alloc(node(77, Some(next)))?;
            tx.set_rel(next, field!(Node, back), Some(first))?;
            tx.set_root(first)
        })?;
        assert_eq!(values(&pool)?.len(), 9001);
        let report = pool.check()?;
        assert_eq!((report.leaked_blocks, report.trace.map(|trace| trace.faults)), (0, Some(0)));
        // The original is the same, byte for byte.
        let after = hashes(here.path());
        for (file, hash) in before.iter().filter(|(file, _)| file.starts_with("p")) {
            assert_eq!(after.get(file), Some(hash), "{file}");
        }
    }
    store.close()?;
    other.close()
}

#[test]
fn what_is_still_to_be_rewritten_is_not_exported_by_who_may_only_look() -> Result<()> {
    let (here, there, third) = (directory(), directory(), directory());
    let store = store_with_window(here.path(), window());
    // One puddle: opening the pool touches all of it.
    drop(list(&store, "one", &small(), 10)?);
    drop(list(&store, "many", &small(), 9000)?);
    drop(list(&store, "logged", &PoolOptions { heap: HeapKind::Logged, ..small() }, 9000)?);
    drop(list(&store, "wear", &PoolOptions { heap: HeapKind::WEAR, ..small() }, 9000)?);
    let all = ["one", "many", "logged", "wear"];
    let (archive, _) = store.export(&all, Vec::new(), ExportOptions::default())?;
    store.close()?;
    store_with_window(there.path(), window())
        .import(archive.as_slice(), ImportOptions::default())?;
    let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let looked = Store::open_with(there.path(), &options)?;
    for name in all {
        for touched in [false, true] {
            if touched {
                values(&looked.pool_with(name, Access::ReadOnly)?)?;
            }
            let refused = looked.export(&[name], Vec::new(), ExportOptions::default()).map(|_| ());
            let read_only =
                Err(Error::Archive(ArchivingError::Store(StoreError::ReadOnly { what: "" })));
            assert_eq!(
                refused.as_ref().map_err(std::mem::discriminant),
                read_only.as_ref().map_err(std::mem::discriminant),
                "{name}, touched: {touched}: {refused:?}"
            );
        }
    }
    drop(looked);
    let store = Store::open(there.path())?;
    store.clone_pool("one", "clone")?;
    store.clone_pool("logged", "logged clone")?;
    store.clone_pool("wear", "wear clone")?;
    store.randomize_pool("one")?;
    let all = ["one", "many", "logged", "wear", "clone", "logged clone", "wear clone"];
    let (archive, _) = store.export(&all, Vec::new(), ExportOptions::default())?;
    store.close()?;
    let store = store_with_window(third.path(), window());
    store.import(archive.as_slice(), ImportOptions::default())?;
    for (name, len) in all.into_iter().zip([10, 9000, 9000, 9000, 10, 9000, 9000]) {
        let pool = store.pool(name)?;
        assert_eq!(values(&pool)?, (0..len).collect::<Vec<u64>>(), "{name}");
        assert!(pool.check()?.is_sound(), "{name}");
    }
    store.close()
}

#[test]
fn where_addresses_are_free_nothing_is_to_be_rewritten() -> Result<()> {
    for heap in HEAPS {
        let (here, there, base) = (directory(), directory(), window());
        let store = store_with_window(here.path(), base);
        drop(list(&store, "list", &PoolOptions { heap, ..small() }, 5000)?);
        let (archive, _) = store.export(&["list"], Vec::new(), ExportOptions::default())?;
        store.close()?;
        let other = store_with_window(there.path(), base);
        let made = other.import(archive.as_slice(), ImportOptions::default())?;
        // The first puddles of the window: the number of the pool is the same too.
        assert!(!made.imported.pools[0].moved && made.imported.pools[0].pending == 0);
        assert_eq!(values(&other.pool("list")?)?.len(), 5000);
    }
    Ok(())
}

/// Pools `a` and `b`, each pointing to the other, and `c`, which no pool points to; `removed` is
/// gone.
fn two_pools(store: &Store, heap: HeapKind) -> Result<()> {
    let of = PoolOptions { heap, ..small() };
    let (a, b) = (list(store, "a", &of, 10)?, list(store, "b", &of, 10)?);
    drop(list(store, "c", &of, 10)?);
    store.write(&[&a, &b], |tx| -> Result<()> {
        let (in_a, in_b) = (tx.root_in::<Node>(&a, 0)?, tx.root_in::<Node>(&b, 0)?);
        let (Some(in_a), Some(in_b)) = (in_a, in_b) else { panic!("lists have roots") };
        tx.set(in_a, field!(Node, other), Some(in_b))?;
        let far = tx.region_ptr(in_a)?;
        tx.set(in_b, field!(Node, far), far)
    })
}

#[test]
fn pointers_to_pools_that_stay_behind_are_told_or_their_pools_taken_along() -> Result<()> {
    HEAPS.into_iter().try_for_each(pointers_to_other_pools)
}

fn pointers_to_other_pools(heap: HeapKind) -> Result<()> {
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    two_pools(&store, heap)?;
    let (_, exported) = store.export(&["a"], Vec::new(), ExportOptions::default())?;
    assert_eq!(
        (exported.left.len(), exported.left[0].name.as_str(), exported.left[0].pointers),
        (1, "b", 1)
    );
    let (_, exported) = store.export(&["b"], Vec::new(), ExportOptions::default())?;
    assert_eq!((exported.left.len(), exported.left[0].name.as_str()), (1, "a"), "a region pointer");
    let (_, exported) = store.export(&["c"], Vec::new(), ExportOptions::default())?;
    assert!(exported.left.is_empty());

    let options = ExportOptions { with_targets: true, ..ExportOptions::default() };
    let (archive, exported) = store.export(&["a"], Vec::new(), options)?;
    assert_eq!((exported.pools, exported.left.len()), (vec!["a".into(), "b".into()], 0));
    let other = store_with_window(there.path(), window());
    drop(other.create_pool("first", &small())?); // so that numbers differ
    for target in [&store, &other] {
        target.import(archive.as_slice(), names(&["a2", "b2"]))?;
        let (a, b) = (target.pool("a2")?, target.pool("b2")?);
        target.write(&[&a, &b], |tx| -> Result<()> {
            let in_a = tx.root_in::<Node>(&a, 0)?.expect("it was there");
            let in_b = tx.get(in_a)?.other.expect("it was there");
            assert_eq!(
                Some(in_b),
                tx.root_in::<Node>(&b, 0)?,
                "a native pointer to the other copy"
            );
            let far = tx.get(in_b)?.far;
            assert_eq!(tx.resolve(far)?, Some(in_a), "a region pointer to the other copy");
            Ok(())
        })?;
    }
    Ok(())
}

/// Two to a superblock, with an eighth of it behind them; and one that takes a superblock and a
/// part of the next.
#[derive(Persist)]
#[persist(name = "archives::Big")]
struct Big {
    words: [u64; 3500],
    next: Option<Ptr<Big>>,
    huge: Option<Ptr<Huge>>,
}

#[derive(Persist)]
#[persist(name = "archives::Huge")]
struct Huge {
    words: [u64; 10_000],
    back: Option<Ptr<Big>>,
}

#[test]
fn blocks_whose_ends_are_cut_travel_too() -> Result<()> {
    HEAPS.into_iter().try_for_each(big_blocks_travel)
}

fn big_blocks_travel(heap: HeapKind) -> Result<()> {
    let here = directory();
    let store = store_with_window(here.path(), window());
    let pool = store.create_pool("big", &PoolOptions { heap, ..small() })?;
    let mut next = None;
    for word in 0..20 {
        next = Some(pool.write(|tx| -> Result<_> {
            let big = tx.alloc(Big { words: [word; 3500], next, huge: None })?;
            let huge = tx.alloc(Huge { words: [word; 10_000], back: Some(big) })?;
            tx.set(big, field!(Big, huge), Some(huge))?;
            tx.set_root(big)?;
            Ok(big)
        })?);
    }
    drop(pool);
    let archive = store.export(&["big"], Vec::new(), ExportOptions::default())?.0;
    assert!(store.import(archive.as_slice(), names(&["copy"]))?.imported.pools[0].moved);
    let copy = store.pool("copy")?;
    let view = copy.read()?;
    let (mut at, mut word) = (view.root::<Big>()?, 20);
    while let Some(big) = at {
        word -= 1;
        let huge = view.get(view.get(big)?.huge.expect("each has one"))?;
        assert!(view.get(big)?.words == [word; 3500] && huge.words == [word; 10_000]);
        assert_eq!(huge.back, Some(big));
        at = view.get(big)?.next;
    }
    assert_eq!(word, 0);
    let report = copy.check()?;
    assert_eq!((report.leaked_blocks, report.trace.map(|trace| trace.faults)), (0, Some(0)));
    Ok(())
}

#[test]
fn what_cannot_be_exported_is_refused_by_name() -> Result<()> {
    let here = directory();
    let store = store_with_window(here.path(), window());
    let pool = list(&store, "open", &small(), 10)?;
    let export = |store: &Store, names: &[&str]| {
        store.export(names, Vec::new(), ExportOptions::default()).map(|_| ()).unwrap_err()
    };
    let error = export(&store, &["open"]);
    assert!(error.to_string().contains("\"open\""), "{error}");
    assert!(
        matches!(error, Error::Archive(ArchivingError::Store(StoreError::PoolInUse { .. }))),
        "{error}"
    );
    assert!(matches!(export(&store, &[]), Error::Archive(ArchivingError::NoPool)));
    let error = export(&store, &["none"]);
    assert!(
        matches!(error, Error::Archive(ArchivingError::Store(StoreError::PoolUnknown { .. }))),
        "{error}"
    );
    // Left by a crash: a reader cannot recover it, and a writer has.
    drop(pool);
    store.abandon();
    let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let looked = Store::open_with(here.path(), &options)?;
    assert!(matches!(
        export(&looked, &["open"]),
        Error::Archive(ArchivingError::NotRecovered { .. })
    ));
    drop(looked);
    let store = Store::open(here.path())?;
    store.export(&["open"], Vec::new(), ExportOptions::default())?;
    store.close()?;
    let looked = Store::open_with(here.path(), &options)?;
    let before = hashes(here.path());
    looked.export(&["open"], Vec::new(), ExportOptions::default())?;
    drop(looked);
    assert_eq!(
        hashes(here.path()),
        before,
        "exporting from a store that is open read-only wrote something"
    );
    Ok(())
}

#[test]
fn who_opens_a_pool_that_is_exported_waits() -> Result<()> {
    let here = directory();
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), 5000)?);
    within(60, move || {
        let (send, opened) = std::sync::mpsc::channel();
        let mut opener = None;
        let mut tell = |_| {
            let (store, send) = (store.clone(), send.clone());
            opener.get_or_insert_with(|| {
                std::thread::spawn(move || {
                    let pool = store.pool("list").expect("it is there");
                    send.send(()).expect("the test listens");
                    values(&pool).expect("it is whole").len()
                })
            });
            // Long enough for a thread that does not wait.
            let early = opened.recv_timeout(std::time::Duration::from_millis(20));
            assert!(early.is_err(), "it was opened while it was exported");
            ControlFlow::Continue(())
        };
        let options = ExportOptions { progress: Some(&mut tell), ..ExportOptions::default() };
        store.export(&["list"], Vec::new(), options).expect("it is not open");
        assert_eq!(opener.expect("it was told").join().expect("it ends"), 5000);
    });
    Ok(())
}

#[test]
fn an_archive_that_is_not_whole_leaves_nothing() -> Result<()> {
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        drop(list(&store, &format!("{mode:?}"), &PoolOptions { mode, ..small() }, 5000)?);
    }
    let (archive, _) =
        store.export(&["Direct", "Shadowed"], Vec::new(), ExportOptions::default())?;
    let other = store_with_window(there.path(), window());
    let before = hashes(there.path());
    let refused = |bytes: &[u8], names: ImportOptions<'_>| {
        let error = other.import(bytes, names).unwrap_err();
        assert_eq!(hashes(there.path()), before, "{error}");
        assert!(matches!(error, Error::Archive(_)), "{error}");
        error.to_string()
    };
    let len = archive.len();
    for at in [0, 100, 300, 1000, len / 3, len / 2, len - 4000, len - 100, len - 1] {
        refused(&archive[..at], ImportOptions::default());
        let mut damaged = archive.clone();
        damaged[at] ^= 4;
        refused(&damaged, ImportOptions::default());
        assert!(other.inspect_archive(damaged.as_slice(), ImportOptions::default()).is_err());
    }
    let mut long = archive.clone();
    long.extend_from_slice(b"more");
    refused(&long, ImportOptions::default());
    refused(b"", ImportOptions::default());
    assert!(refused(&archive, names(&["one"])).contains("2 pools"));
    assert!(refused(&archive, names(&["same", "same"])).contains("same"));
    assert!(refused(&archive, names(&["x\n", "y"])).contains("control"));
    // Stopped in the middle.
    let mut steps = 0;
    let mut stop = |_| {
        steps += 1;
        if steps < 3 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    };
    refused(&archive, ImportOptions { progress: Some(&mut stop), ..ImportOptions::default() });
    assert_eq!(
        other.inspect_archive(archive.as_slice(), ImportOptions::default())?.archive_bytes,
        len as u64
    );
    other.import(archive.as_slice(), ImportOptions::default())?;
    assert!(other.import(archive.as_slice(), ImportOptions::default()).is_err(), "names are taken");
    assert_eq!(values(&other.pool("Shadowed")?)?.len(), 5000);
    Ok(())
}

#[test]
fn what_a_crash_before_the_batch_leaves_is_removed_by_the_next_writer() -> Result<()> {
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), 5000)?);
    let (archive, _) = store.export(&["list"], Vec::new(), ExportOptions::default())?;
    let other = store_with_window(there.path(), window());
    let before = puddle_files(there.path());
    let options = archiving::ImportOptions::default();
    let unpacked = archiving::unpack(underneath(&other), archive.as_slice(), options, &|_| None)
        .expect("it is whole");
    assert!(puddle_files(there.path()).len() > before.len());
    // What a process leaves that is gone, and not what one leaves that can still clean up.
    let left: Vec<_> = puddle_files(there.path())
        .into_iter()
        .filter(|file| !before.contains(file))
        .map(|file| {
            (there.path().join(&file), std::fs::read(there.path().join(&file)).expect("readable"))
        })
        .collect();
    drop(unpacked);
    assert_eq!(puddle_files(there.path()), before);
    other.abandon();
    for (path, bytes) in &left {
        std::fs::write(path, bytes).expect("writable");
    }
    assert!(!left.is_empty());
    let other = Store::open(there.path())?;
    assert!(other.report().damage.is_empty(), "{:?}", other.report().damage);
    assert_eq!(puddle_files(there.path()), before);
    assert!(other.pools().is_empty());
    other.import(archive.as_slice(), ImportOptions::default())?;
    // It was not touched: a crash now, and the next opener rewrites it.
    other.abandon();
    let other = Store::open(there.path())?;
    assert_eq!(values(&other.pool("list")?)?.len(), 5000);
    Ok(())
}

#[test]
fn a_type_of_another_layout_is_refused_with_both() -> Result<()> {
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), 10)?);
    let (archive, _) = store.export(&["list"], Vec::new(), ExportOptions::default())?;
    let other = store_with_window(there.path(), window());
    let mut record = Node::record();
    record.size += 8;
    // What another program calls by this name.
    // SAFETY: that a record is not as this program has the type is what is tested; it is refused.
    unsafe { underneath(&other).register_type(&record) }.expect("it is new there");
    let before = hashes(there.path());
    let error = other.import(archive.as_slice(), ImportOptions::default()).unwrap_err();
    assert!(
        matches!(error, Error::Archive(ArchivingError::Store(StoreError::TypeMismatch(_)))),
        "{error}"
    );
    assert!(error.to_string().contains("archives::Node"), "{error}");
    assert_eq!(hashes(there.path()), before);
    Ok(())
}

#[test]
fn pools_that_do_not_fit_are_refused_before_a_file_is_made() -> Result<()> {
    let (here, there) = (directory(), directory());
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), 10)?);
    let (archive, _) = store.export(&["list"], Vec::new(), ExportOptions::default())?;
    let mut manifest =
        store.inspect_archive(archive.as_slice(), ImportOptions::default())?.manifest;
    let huge = |manifest: &archiving::Manifest| {
        let writer = cenote_archive::ArchiveWriter::begin(Vec::new(), manifest, Codec::None)
            .expect("it can be");
        writer.finish().expect("it can be").0
    };
    // More than the disk has, and more than the window.
    manifest.window = (1 << 45, 1 << 45);
    manifest.puddles[0].addr = 1 << 45;
    manifest.pools[0].size_max = u64::MAX;
    let format =
        FormatOptions { window_base: Some(0x1000_0000_0000), window_len: 1 << 41, uuid: None };
    Store::format(there.path(), &format)?;
    let other = Store::open(there.path())?;
    let before = hashes(there.path());
    for (size, window) in [(1 << 40, false), (1 << 42, true)] {
        manifest.puddles[0].size = size;
        let error = other.import(huge(&manifest).as_slice(), ImportOptions::default()).unwrap_err();
        match error {
            Error::Archive(ArchivingError::NoSpace { wanted, free }) => {
                assert!(!window && wanted == size && free < size)
            }
            Error::Archive(ArchivingError::Store(StoreError::WindowFull { .. })) => {
                assert!(window)
            }
            error => panic!("{error}"),
        }
        assert_eq!(hashes(there.path()), before);
    }
    Ok(())
}

#[test]
fn an_archive_in_a_file_has_its_name_when_it_is_whole() -> Result<()> {
    let here = directory();
    let store = store_with_window(&here.path().join("store"), window());
    drop(list(&store, "list", &small(), 5000)?);
    let path = here.path().join("list.cenote");
    let mut stop = |_| ControlFlow::Break(());
    let options = ExportOptions { progress: Some(&mut stop), ..ExportOptions::default() };
    let stopped = store.export_to(&["list"], &path, Exclusive::New, options);
    assert!(matches!(stopped, Err(Error::Archive(ArchivingError::Stopped))));
    let left = || std::fs::read_dir(here.path()).expect("readable").count();
    assert_eq!(left(), 1, "the store, and nothing else");
    store.export_to(&["list"], &path, Exclusive::New, ExportOptions::default())?;
    let again = store.export_to(&["list"], &path, Exclusive::New, ExportOptions::default());
    assert!(matches!(again, Err(Error::Archive(ArchivingError::Exists { .. }))));
    store.export_to(&["list"], &path, Exclusive::Replace, ExportOptions::default())?;
    assert_eq!(left(), 2);
    let file = std::fs::File::open(&path).expect("it is there");
    store.import(file, names(&["copy"]))?;
    assert_eq!(values(&store.pool("copy")?)?.len(), 5000);
    Ok(())
}

#[cfg(feature = "zstd")]
#[test]
fn a_packed_archive_is_shorter_and_the_same() -> Result<()> {
    let here = directory();
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), 5000)?);
    let plain = store.export(&["list"], Vec::new(), ExportOptions::default())?.0;
    let options = ExportOptions { codec: Codec::Zstd, ..ExportOptions::default() };
    let packed = store.export(&["list"], Vec::new(), options)?.0;
    assert!(packed.len() * 2 < plain.len(), "{} of {} bytes", packed.len(), plain.len());
    store.import(packed.as_slice(), names(&["copy"]))?;
    assert_eq!(values(&store.pool("copy")?)?, (0..5000).collect::<Vec<_>>());
    Ok(())
}

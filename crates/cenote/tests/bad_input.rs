//! Bad input, as a user of this crate meets it: a typed error that says what and where, and nothing
//! has changed on the medium.
//!
//! What this crate only passes on is proved below it, with every file compared before and after:
//! wrong magic numbers, newer versions, unknown features, superblocks, locks, permissions,
//! read-only media and windows in `cenote-store/tests/errors.rs`; puddles that are missing,
//! truncated, resized or of another store in `cenote-store/tests/damage.rs`; full disks and failing
//! operations in `cenote-store/tests/recovery.rs`; addresses that are no blocks in
//! `cenote-heap/tests/bad_input.rs`.

use crate::support::{directory, hashes, underneath};
use cenote::raw::{self, TxError};
use cenote::{
    Access, DamagePolicy, Durability, Error, ErrorKind, FormatOptions, OpenOptions, Persist, Pool,
    PoolOptions, Ptr, Reader, Result, Store, TypeId,
};
use cenote_heap::{AllocError, FreeError, RootError};
use cenote_medium::Medium;
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_store::{OpenError, StoreError, WindowPolicy};
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[derive(Persist)]
#[persist(name = "bad_input::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

/// A store with one pool, one root and two puddles, cleanly closed.
fn prepared() -> tempfile::TempDir {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = store
        .create_pool("p", &PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() })
        .unwrap();
    pool.write(|tx| -> Result<()> {
        tx.alloc([0u8; 200 << 10])?;
        let node = tx.alloc(Node { value: 1, next: None })?;
        tx.set_root(node)
    })
    .unwrap();
    drop(pool);
    store.close().unwrap();
    dir
}

/// Hashes of puddle files: an open for writing changes superblock and catalog, and they only.
fn puddle_hashes(dir: &Path) -> std::collections::BTreeMap<String, u64> {
    hashes(dir).into_iter().filter(|(name, _)| name.starts_with("puddles/")).collect()
}

/// That `result` is an error of the expected kind whose message names all of `parts`.
fn refused<T: Debug>(result: Result<T>, expected: impl Fn(&Error) -> bool, parts: &[&str]) {
    let error = result.expect_err("bad input was taken");
    assert!(expected(&error), "{error:?}");
    let message = error.to_string();
    for part in parts {
        assert!(message.contains(part), "\"{message}\" does not say {part}");
    }
}

#[test]
fn a_path_that_is_no_store_is_refused_and_stays_as_it_is() {
    let dir = directory();
    let file = dir.path().join("a file");
    std::fs::write(&file, "mine").unwrap();
    let full = dir.path().join("full");
    std::fs::create_dir(&full).unwrap();
    std::fs::write(full.join("notes"), "mine").unwrap();
    let before = hashes(dir.path());
    refused(Store::open(&file), |e| matches!(e, Error::Medium(_)), &["a file"]);
    refused(Store::open(&full), |e| matches!(e, Error::Format(_)), &["full"]);
    refused(
        Store::open_with(&full, &OpenOptions::default()),
        |e| matches!(e, Error::Open(OpenError::NotAStore { .. })),
        &["full"],
    );
    refused(
        Store::open_with(dir.path().join("none"), &OpenOptions::read_only()),
        |e| matches!(e, Error::Medium(_)),
        &["none"],
    );
    refused(
        Store::open("/proc/self/fd/nothing/here"),
        |e| matches!(e, Error::Medium(_)),
        &["nothing"],
    );
    assert_eq!(hashes(dir.path()), before);
    assert!(!dir.path().join("none").exists());
}

#[test]
fn a_superblock_of_something_else_is_refused_by_open_and_not_formatted_over() {
    let dir = prepared();
    let superblock = dir.path().join("superblock");
    let mut bytes = std::fs::read(&superblock).unwrap();
    bytes.fill(b'x');
    std::fs::write(&superblock, bytes).unwrap();
    let before = hashes(dir.path());
    refused(
        Store::open(dir.path()),
        |e| matches!(e, Error::Open(OpenError::Superblock { .. })),
        &["xxxxxxxx"],
    );
    refused(
        Store::format(dir.path(), &FormatOptions::default()),
        |e| matches!(e, Error::Format(_)),
        &[],
    );
    std::fs::write(&superblock, "").unwrap();
    refused(
        Store::open(dir.path()),
        |e| matches!(e, Error::Open(OpenError::Superblock { .. })),
        &[],
    );
    std::fs::remove_file(&superblock).unwrap();
    let without = hashes(dir.path());
    assert_eq!(without.len(), before.len() - 1);
    // Its catalog and puddles may be all that is left of a user's data.
    assert!(Store::open(dir.path()).is_err());
    assert_eq!(hashes(dir.path()), without);
}

#[test]
fn a_second_opener_is_told_who_has_the_store() {
    let dir = prepared();
    let store = Store::open(dir.path()).unwrap();
    let pid = std::process::id();
    let own = Some(pid);
    let before = hashes(dir.path());
    for options in [OpenOptions::default(), OpenOptions::read_only()] {
        let locked =
            |e: &Error| matches!(e, Error::Open(OpenError::Locked { pid, .. }) if *pid == own);
        refused(Store::open_with(dir.path(), &options), locked, &[&pid.to_string()]);
    }
    assert_eq!(hashes(dir.path()), before);
    assert!(store.pool("p").unwrap().read().unwrap().root::<Node>().unwrap().is_some());
    store.close().unwrap();
    assert!(
        Store::open(dir.path()).unwrap().report().clean,
        "the same directory again after a close"
    );
}

#[test]
fn a_copy_of_a_store_is_refused_beside_it_if_its_window_is_fixed_and_moves_if_not() {
    let dir = prepared();
    let copy = directory();
    std::fs::create_dir(copy.path().join("puddles")).unwrap();
    for name in hashes(dir.path()).keys() {
        std::fs::copy(dir.path().join(name), copy.path().join(name)).unwrap();
    }
    let store = Store::open(dir.path()).unwrap();
    let before = hashes(copy.path());
    let fixed = OpenOptions { window: WindowPolicy::Fixed, ..OpenOptions::default() };
    let taken = |e: &Error| matches!(e, Error::Open(OpenError::WindowTaken { .. }));
    refused(Store::open_with(copy.path(), &fixed), taken, &["0x"]);
    assert_eq!(hashes(copy.path()), before);
    let beside = Store::open(copy.path()).unwrap();
    assert_ne!(beside.window(), store.window());
    assert!(beside.pool("p").unwrap().read().unwrap().root::<Node>().unwrap().is_some());
    assert!(store.pool("p").unwrap().read().unwrap().root::<Node>().unwrap().is_some());
    drop((store, beside));
    assert!(Store::open(copy.path()).is_ok());
}

/// The file of a puddle of the pool `p`.
fn puddle_file(dir: &Path, index: usize) -> PathBuf {
    let store = Store::open_with(dir, &OpenOptions::read_only()).unwrap();
    let raw = underneath(&store).open_pool("p", Access::ReadOnly).unwrap();
    let uuid = raw.puddles()[index].uuid().to_hex();
    dir.join("puddles").join(uuid.iter().map(|b| char::from(*b)).collect::<String>())
}

fn is_damaged(error: &Error) -> bool {
    matches!(error, Error::Store(StoreError::PoolDamaged { .. }))
}

/// Under a policy that the caller chose, what is left can be looked at as blocks, and not as
/// values.
fn only_blocks_are_shown(dir: &Path, what: &str) {
    let options = OpenOptions { damage: DamagePolicy::SkipDamaged, ..OpenOptions::read_only() };
    let store = Store::open_with(dir, &options).unwrap();
    if let Ok(pool) = store.pool_with("p", Access::ReadOnly) {
        let not_whole = |e: &Error| matches!(e, Error::NotWhole { why, .. } if !why.is_empty());
        refused(pool.read().map(drop), not_whole, &["\"p\"", what, "open_torn"]);
        assert!(pool.check().is_ok() && pool.heap().root(0).is_ok() && pool.stats().is_ok());
        assert!(pool.heap().walk(&mut |_| {}).is_ok() && pool.named_roots().is_ok());
    }
}

/// A caller that answers for values gets those that are left; a value that is not there is an
/// error.
fn values_that_are_left_are_shown(dir: &Path, what: &str, index: usize) {
    let options = OpenOptions { damage: DamagePolicy::SkipDamaged, ..OpenOptions::read_only() };
    let medium = cenote::RealMedium::open(dir, &cenote::MediumOptions::default()).unwrap();
    // SAFETY: nodes are read one by one, through pointers that are checked.
    let store = unsafe { Store::open_torn(Arc::new(medium), &options) }.unwrap();
    match store.pool_with("p", Access::ReadOnly) {
        Ok(pool) => {
            let root = pool.read().unwrap().root::<Node>();
            assert!(
                index == 1 && matches!(root, Ok(Some(_)) | Err(Error::Dangling { .. })),
                "{root:?}"
            );
        }
        Err(error) => {
            assert!(
                index == 0 && is_damaged(&error) && error.to_string().contains(what),
                "{error}"
            );
        }
    }
}

#[test]
fn a_pool_with_a_lost_truncated_or_resized_puddle_is_refused_by_name() {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("missing", |file| std::fs::remove_file(file).unwrap()),
        ("truncated", |file| {
            std::fs::File::options().write(true).open(file).unwrap().set_len(100 << 10).unwrap()
        }),
        ("longer", |file| {
            std::fs::File::options().write(true).open(file).unwrap().set_len(64 << 20).unwrap()
        }),
        ("checksum", |file| {
            let mut bytes = std::fs::read(file).unwrap();
            bytes[100] ^= 1;
            std::fs::write(file, bytes).unwrap();
        }),
    ];
    for (what, harm) in harms {
        for index in 0..2 {
            let dir = prepared();
            harm(&puddle_file(dir.path(), index));
            let before = hashes(dir.path());
            {
                let store = Store::open_with(dir.path(), &OpenOptions::read_only()).unwrap();
                refused(store.pool_with("p", Access::ReadOnly), is_damaged, &["\"p\"", what]);
            }
            assert_eq!(hashes(dir.path()), before, "{what}");
            let puddles = puddle_hashes(dir.path());
            {
                let store = Store::open(dir.path()).unwrap();
                refused(store.pool("p"), is_damaged, &["\"p\"", what]);
                store.close().unwrap();
            }
            assert_eq!(puddle_hashes(dir.path()), puddles, "{what}");
            only_blocks_are_shown(dir.path(), what);
            values_that_are_left_are_shown(dir.path(), what, index);
        }
    }
}

#[test]
fn a_type_of_another_layout_is_refused_with_both_layouts() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = store.pool("p").unwrap();
    let mut older = Node::record();
    (older.size, older.fields[0].type_name) = (24, "u128".to_string());
    older.fields[0].size = 16;
    older.fields[0].type_id = u128::TYPE_ID;
    older.fields[1].offset = 16;
    older.pointers[0].offset = 16;
    // SAFETY: that a record is not as this program has the type is what is tested; it is refused.
    unsafe { underneath(&store).register_type(&older) }.unwrap();
    let before = hashes(dir.path());
    let mismatch = |e: &Error| matches!(e, Error::Store(StoreError::TypeMismatch(_)));
    for _ in 0..2 {
        refused(
            pool.write(|tx| tx.alloc(Node { value: 1, next: None }).map(drop)),
            mismatch,
            &["u128", "u64", "24", "16"],
        );
    }
    // Also as a part of another type, or behind a pointer.
    #[derive(Persist)]
    #[persist(name = "bad_input::Holder")]
    struct Holder(Option<Ptr<Node>>);
    refused(pool.write(|tx| tx.alloc(Holder(None)).map(drop)), mismatch, &["u128"]);
    assert_eq!(pool.stats().unwrap().blocks, 0);
    // Nothing was stored but the transactions' empty logs.
    let after = hashes(dir.path());
    assert!(
        before.iter().all(|(name, hash)| after[name] == *hash || !name.starts_with("puddles/"))
    );
}

/// Every access of the first pool to a pointer that leads to no node is refused; `root` is a node.
fn all_refuse(
    store: &Store,
    [pool, other]: [&Pool; 2],
    root: Ptr<Node>,
    ptr: Ptr<Node>,
) -> Result<()> {
    let dangling = |e: &Error| matches!(e, Error::Dangling { .. });
    let addr = format!("{:#x}", ptr.addr());
    let parts = [addr.as_str(), "Node"];
    let node = || Node { value: 7, next: None };
    refused(pool.read()?.get(ptr).map(drop), dangling, &parts);
    refused(pool.write(|tx| tx.get(ptr).map(drop)), dangling, &parts);
    refused(pool.write(|tx| tx.get_mut(ptr).map(drop)), dangling, &parts);
    refused(pool.write(|tx| tx.set(ptr, cenote::field!(Node, value), 1)), dangling, &parts);
    refused(pool.write(|tx| tx.free(ptr)), dangling, &parts);
    refused(pool.write(|tx| tx.set_root(ptr)), dangling, &parts);
    refused(pool.write(|tx| tx.alloc_beside(ptr, node()).map(drop)), dangling, &parts);
    refused(pool.write(|tx| tx.in_one_pool(root, ptr)), dangling, &parts);
    // A transaction over pools of one store: no pointer leads out of them.
    let both = store.write(&[pool, other], |tx| tx.get(ptr).map(drop));
    assert!(both.is_ok() == (other.read()?.get(ptr).is_ok()));
    Ok(())
}

/// Addresses that no safe program has, and addresses that it can have: each is checked where it is
/// followed.
#[test]
fn a_pointer_that_leads_to_no_live_value_is_refused_and_nothing_changes() -> Result<()> {
    let dir = prepared();
    let elsewhere = directory();
    let store = Store::open(dir.path())?;
    let other_store = Store::open(elsewhere.path())?;
    let (pool, other_pool, in_other_store) =
        (store.pool("p")?, store.pool("q")?, other_store.pool("p")?);
    let node = || Node { value: 7, next: None };
    let root = pool.read()?.root::<Node>()?.unwrap();
    let freed = pool.write(|tx| tx.alloc(node()))?;
    pool.write(|tx| tx.free(freed))?;
    let number = pool.write(|tx| tx.alloc([1u64, 2]))?;
    let (base, len) = store.window();
    let mut addrs = vec![
        1,
        8,
        base - 16,
        base,
        base + 4096,
        base + 8192,
        base + len - 16,
        base + len,
        u64::MAX,
        u64::MAX - 15,
        1 << 47,
        1 << 63,
        root.addr() + 1,
        root.addr() + 8,
        root.addr() + 16,
        root.addr() - 16,
        number.addr(),
        freed.addr(),
        other_pool.write(|tx| tx.alloc(node()))?.addr(),
        in_other_store.write(|tx| tx.alloc(node()))?.addr(),
        core::ptr::from_ref(&root).addr() as u64,
        underneath(&store).acquire_log().map_err(Error::from)?.addr(), /* never given back, see
                                                                        * the end */
    ];
    addrs.extend((0..64).map(|bit| root.addr() ^ (1 << bit)));
    // SAFETY: followed by checked accesses alone.
    let pointers: Vec<Ptr<Node>> =
        addrs.iter().map(|addr| unsafe { Ptr::from_addr(*addr) }.unwrap()).collect();
    let (before, blocks) = (puddle_hashes(dir.path()), pool.stats()?.blocks);
    for ptr in pointers {
        all_refuse(&store, [&pool, &other_pool], root, ptr)?;
    }
    refused(store.write(&[&pool, &in_other_store], |_| Ok(())), |e| matches!(e, Error::Pools), &[]);
    refused(store.write(&[], |_| Ok(())), |e| matches!(e, Error::Pools), &[]);
    refused(
        pool.write(|tx| tx.set_root_at::<Node>(1024, None)),
        |e| matches!(e, Error::RootIndex(RootError::Index { .. })),
        &["1024"],
    );
    let after = puddle_hashes(dir.path());
    // Logs are written by transactions that fail, data is not.
    let logs = after.iter().filter(|(name, hash)| before.get(*name) != Some(*hash)).count();
    assert!(logs <= 2 && pool.stats()?.blocks == blocks);
    assert_eq!(pool.read()?.get(root)?.value, 1);
    Ok(())
}

#[test]
fn allocations_of_nothing_or_of_more_than_the_window_are_refused() -> Result<()> {
    let dir = directory();
    Store::format(dir.path(), &FormatOptions { window_len: 1 << 30, ..FormatOptions::default() })?;
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let limited = store.create_pool(
        "limited",
        &PoolOptions { puddle_size: 1 << 20, size_max: 2 << 20, ..PoolOptions::default() },
    )?;
    let before = puddle_hashes(dir.path());
    // SAFETY: nothing of what is allocated is used; the transactions end here.
    unsafe {
        let mut tx = raw::begin(&store)?;
        for heap in [pool.raw_heap(), limited.raw_heap()] {
            for align in [1, 8, 4096] {
                match tx.alloc(heap, 0, align, Node::TYPE_ID) {
                    Err(error @ TxError::ZeroSize { type_id: Node::TYPE_ID }) => {
                        assert!(error.to_string().contains("at least 1 byte"), "{error}");
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
        assert_eq!((pool.stats()?.blocks, limited.stats()?.blocks), (0, 0));
        let a = tx.alloc(pool.raw_heap(), 1, 1, TypeId::UNTYPED)?;
        for size in [
            1 << 30,
            1 << 40,
            1 << 46,
            1 << 47,
            1 << 62,
            u64::MAX - (64 << 10),
            u64::MAX - 1,
            u64::MAX,
        ] {
            match tx.alloc(pool.raw_heap(), size, 8, TypeId::UNTYPED) {
                Err(TxError::Alloc(
                    error @ (AllocError::Size { .. } | AllocError::Full { .. }),
                )) => {
                    assert!(error.to_string().contains(&size.to_string()), "{error}");
                }
                other => panic!("{other:?}"),
            }
            assert!(matches!(
                tx.alloc(limited.raw_heap(), size, 8, TypeId::UNTYPED),
                Err(TxError::Alloc(AllocError::Size { .. }))
            ));
        }
        for align in [0, 3, 4 << 20, 1 << 63, u64::MAX] {
            assert!(matches!(
                tx.alloc(pool.raw_heap(), 8, align, TypeId::UNTYPED),
                Err(TxError::Alloc(AllocError::Align { .. }))
            ));
        }
        assert!(matches!(tx.add(8 as *const u8, usize::MAX), Err(TxError::Range { .. })));
        assert!(matches!(
            tx.free(limited.raw_heap(), a.as_ptr() as u64),
            Err(TxError::Free(FreeError::OtherPool { .. }))
        ));
        tx.abort();
    }
    assert_eq!((pool.stats()?.blocks, limited.stats()?.blocks), (0, 0));
    // Files of the pools have not grown in number: only the session's log space and log are new.
    assert!(puddle_hashes(dir.path()).len() <= before.len() + 2);
    Ok(())
}

#[test]
fn pools_with_impossible_names_or_sizes_are_refused() {
    let dir = prepared();
    let store = Store::open(dir.path()).unwrap();
    let before = hashes(dir.path());
    let long = "x".repeat(300);
    for name in ["", " p", "p ", "a\nb", "\0", &long] {
        refused(store.pool(name), |e| matches!(e, Error::Store(StoreError::PoolName { .. })), &[]);
    }
    let create = |options: PoolOptions| store.create_pool("new", &options);
    for puddle_size in [0, 1, 4096, 65536, (1 << 20) + 1, 1 << 50, u64::MAX] {
        let options = PoolOptions { puddle_size, ..PoolOptions::default() };
        refused(
            create(options),
            |e| {
                matches!(
                    e,
                    Error::Store(StoreError::PuddleSize { .. } | StoreError::WindowFull { .. })
                )
            },
            &[&puddle_size.to_string()],
        );
    }
    let options = PoolOptions { puddle_size: 1 << 20, size_max: 1 << 19, ..PoolOptions::default() };
    refused(create(options), |e| matches!(e, Error::Store(StoreError::PoolFull { .. })), &["new"]);
    refused(
        store.create_pool("p", &PoolOptions::default()),
        |e| matches!(e, Error::Store(StoreError::PoolExists { .. })),
        &["\"p\""],
    );
    refused(
        store.pool_with("none", Access::ReadWrite),
        |e| matches!(e, Error::Store(StoreError::PoolUnknown { .. })),
        &["none"],
    );
    refused(
        store.remove_pool("none"),
        |e| matches!(e, Error::Store(StoreError::PoolUnknown { .. })),
        &["none"],
    );
    assert_eq!(hashes(dir.path()), before);
}

#[test]
fn a_full_disk_fails_the_transaction_that_needs_more_and_nothing_else() -> Result<()> {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let format =
        FormatOptions { window_base: Some(0x1b00_0000_0000), window_len: 1 << 30, uuid: None };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool: Pool = store
        .create_pool("p", &PoolOptions { puddle_size: 256 << 10, ..PoolOptions::default() })?;
    let node = pool.write(|tx| tx.alloc(Node { value: 1, next: None }))?;
    let full = |e: &Error| {
        // Of the medium, which lies beneath.
        assert_eq!(e.kind(), ErrorKind::Full, "{e}");
        matches!(e, Error::NoRoom { source: AllocError::Full { .. }, .. })
    };
    for round in 2..6u64 {
        sim.inject(
            Fault::once(
                FaultPoint::Operation(cenote_medium::Operation::Create),
                0,
                FaultEffect::NoSpace,
            )
            .repeating(),
        );
        pool.write(|tx| -> Result<()> {
            refused(tx.alloc([0u8; 300 << 10]).map(drop), full, &["space"]);
            // What is there already can be changed and freed; small values still fit.
            tx.get_mut(node)?.value = round;
            let small = tx.alloc(Node { value: 2, next: Some(node) })?;
            tx.free(small)
        })?;
        sim.clear_faults();
        assert_eq!(pool.read()?.get(node)?.value, round);
        assert_eq!(pool.stats()?.blocks, 1);
    }
    let grown = pool.write(|tx| tx.alloc([0u8; 300 << 10]))?;
    assert!(pool.read()?.get(grown).is_ok());
    Ok(())
}

//! What an import refuses, and that it leaves nothing then; what is done without a rewriter; pools
//! that go while they are pending.

use cenote_layout::catalog::AtRest;
use cenote_layout::header::FORMAT_VERSION;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::{RECORD_VERSION, TypeRecord};
use cenote_medium::sim::{CrashKind, Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, Operation};
use cenote_relocate::{ImportManifest, ImportPool, ImportPuddle, options};
use cenote_store::relocate::{Backend, Import, Imported, RelocationOptions};
use cenote_store::{
    Access, FormatOptions, HeapKind, OpenOptions, PoolMode, PoolOptions, Store, StoreError, format,
};
use std::sync::Arc;

const SIZE: u64 = 256 << 10;
const BASE: u64 = 0x3b00_0000_0000;

/// A store of one pool, in a window of 16 slots; each test has its own.
fn store(number: u64) -> (Arc<SimMedium>, Store) {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let base = BASE + (number << 32);
    let uuid = Some(Uuid::from_random_bytes([9; 16]));
    format(sim.clone(), &FormatOptions { window_base: Some(base), window_len: 32 << 20, uuid })
        .unwrap();
    let store = open(&sim, options(Backend::Signal));
    store.create_pool("a", &PoolOptions { puddle_size: SIZE, ..PoolOptions::default() }).unwrap();
    (sim, store)
}

fn open(sim: &Arc<SimMedium>, relocation: RelocationOptions) -> Store {
    let options = OpenOptions { log_puddle_size: 64 << 10, relocation, ..OpenOptions::default() };
    Store::open(sim.clone(), options).unwrap().0
}

/// A pool that was elsewhere.
fn pool(name: &str, old_id: u64, puddles: &[(u64, u64)]) -> ImportPool {
    ImportPool {
        name: name.into(),
        old_id: PoolId(old_id),
        mode: PoolMode::Direct,
        heap: HeapKind::Traced,
        puddle_size: SIZE,
        size_max: u64::MAX,
        permissions: 0o600,
        at_rest: AtRest::None,
        protect: cenote_store::DataProtection::None,
        torn: false,
        puddles: puddles
            .iter()
            .map(|&(old_addr, size)| ImportPuddle {
                old_addr,
                size,
                identity: Uuid::NIL,
                role: Role::Heap,
            })
            .collect(),
    }
}

fn manifest(pools: Vec<ImportPool>) -> ImportManifest {
    ImportManifest { pools, types: Vec::new() }
}

fn record(id: u64, size: u64) -> TypeRecord {
    TypeRecord {
        version: RECORD_VERSION,
        id: TypeId(id),
        name: "import::Thing".into(),
        size,
        align: 8,
        repeats: false,
        fields: Vec::new(),
        variants: Vec::new(),
        pointers: Vec::new(),
    }
}

fn commit(import: Import) -> Result<Imported, StoreError> {
    // SAFETY: no value of the pools is looked at.
    unsafe { import.commit() }
}

#[test]
fn manifests_that_cannot_be_are_refused_and_nothing_is_left() {
    const { assert!(FORMAT_VERSION == 1) };
    let (sim, store) = store(0);
    // SAFETY: no program has values of the type.
    unsafe { store.register_type(&record(1, 8)) }.unwrap();
    let before = sim.image_now(CrashKind::Process).hash();
    let far = 0x1_0000_0000;
    let refused = |manifest: ImportManifest| store.begin_import(manifest).expect_err("refused");
    let detail = |pools: Vec<ImportPool>| match refused(manifest(pools)) {
        StoreError::Import { detail } => detail,
        other => panic!("{other}"),
    };
    assert!(detail(vec![]).contains("no pool"));
    assert!(detail(vec![pool("b", 1, &[])]).contains("no puddle"));
    for at in [0, far + 4096, u64::MAX - 4095, 1 << 47] {
        assert!(detail(vec![pool("b", 1, &[(at, SIZE)])]).contains("none can be"), "{at:#x}");
    }
    assert!(detail(vec![pool("b", 1, &[(far, SIZE), (far, SIZE)])]).contains("two puddles"));
    assert!(
        detail(vec![pool("b", 1, &[(far, 4 << 20), (far + (2 << 20), SIZE)])]).contains("overlaps")
    );
    assert!(
        detail(vec![pool("b", 1, &[(far, SIZE)]), pool("b", 2, &[(2 * far, SIZE)])])
            .contains("twice")
    );
    assert!(
        detail(vec![pool("b", 1, &[(far, SIZE)]), pool("c", 1, &[(2 * far, SIZE)])])
            .contains("twice")
    );
    let many: Vec<(u64, u64)> = (1..20_000u64).map(|n| (n << 21, SIZE)).collect();
    assert!(detail(vec![pool("b", 1, &many)]).contains("at most"));
    let one = |name: &str, size| manifest(vec![pool(name, 1, &[(far, size)])]);
    assert!(matches!(refused(one(" b", SIZE)), StoreError::PoolName { .. }));
    assert!(matches!(refused(one("a", SIZE)), StoreError::PoolExists { .. }));
    for size in [0, 4096, SIZE + 1, u64::MAX] {
        assert!(matches!(refused(one("b", size)), StoreError::PuddleSize { .. }), "{size}");
    }
    assert!(matches!(refused(one("b", 64 << 20)), StoreError::WindowFull { .. }));
    let small = ImportPool { size_max: SIZE - 1, ..pool("b", 1, &[(far, SIZE)]) };
    assert!(matches!(refused(manifest(vec![small])), StoreError::PoolFull { .. }));
    let waits = HeapKind::Wear { wait_ms: u32::MAX };
    let waits = ImportPool { heap: waits, ..pool("b", 1, &[(far, SIZE)]) };
    assert!(matches!(refused(manifest(vec![waits])), StoreError::WearWait { .. }));
    let other = ImportManifest { types: vec![record(1, 16)], ..one("b", SIZE) };
    let text = refused(other).to_string();
    assert!(text.contains("8 against 16"), "both layouts: {text}");
    let mad =
        ImportManifest { types: vec![TypeRecord { align: 3, ..record(2, 8) }], ..one("b", SIZE) };
    assert!(matches!(refused(mad), StoreError::Type(_)));
    assert_eq!(sim.image_now(CrashKind::Process).hash(), before);
}

#[test]
fn an_import_that_is_given_up_or_fails_leaves_no_file_and_takes_no_address() {
    let (sim, store) = store(1);
    let files =
        || (sim.list("puddles").unwrap().len(), store.info().window_free, store.pools().len());
    let before = files();
    let begin = || {
        store
            .begin_import(manifest(vec![pool("b", 1, &[(BASE, SIZE), (BASE + (4 << 20), SIZE)])]))
            .unwrap()
    };
    let mut import = begin();
    import.create(0).unwrap();
    assert!(import.create(0).is_err() && import.create(2).is_err());
    drop(import);
    assert_eq!(files(), before);
    let mut import = begin();
    import.create(0).unwrap();
    assert!(matches!(commit(import), Err(StoreError::Import { .. })), "a file is missing");
    assert_eq!(files(), before);
    // Two of one name: the second is refused at the end.
    let (mut first, mut second) = (begin(), begin());
    for import in [&mut first, &mut second] {
        (0..2).for_each(|slot| import.create(slot).unwrap());
    }
    let imported = commit(first).unwrap();
    assert!(imported.pools[0].moved && imported.pools[0].pending == 2);
    assert!(matches!(commit(second), Err(StoreError::PoolExists { .. })));
    store.remove_pool("b").unwrap();
    assert_eq!(files(), before, "due puddles do not become spare");
    // A full disk, at each file.
    for skip in 0..3 {
        sim.inject(Fault::once(
            FaultPoint::Operation(Operation::Write),
            skip,
            FaultEffect::NoSpace,
        ));
        let mut import = begin();
        let made = (0..2).try_for_each(|slot| {
            import.create(slot).and_then(|()| import.write(slot, 4096, &[1; 4096]))
        });
        let error = made.and_then(|()| commit(import)).expect_err("full");
        assert!(error.is_no_space(), "{error}");
        sim.clear_faults();
    }
    assert_eq!(files(), before);
}

#[test]
fn without_a_rewriter_a_pool_that_is_due_is_not_opened_and_says_what_to_do() {
    let (sim, store) = store(2);
    store.clone_pool("a", "b").unwrap();
    store.close().unwrap();
    let store = open(&sim, RelocationOptions::default());
    let error = store.open_pool("b", Access::ReadOnly).expect_err("due");
    assert!(matches!(error, StoreError::RelocationPending { puddles: 1, .. }), "{error}");
    assert!(error.to_string().contains("cenote relocate"), "{error}");
    store.open_pool("a", Access::ReadWrite).unwrap();
    store.close().unwrap();
    let store = open(&sim, options(Backend::Eager));
    assert_eq!(store.open_pool("b", Access::ReadOnly).unwrap().pending_rewrites(), 0);
}

#[test]
fn a_rewriting_that_finds_the_disk_full_is_an_error_and_is_done_when_there_is_space() {
    let (sim, store) = store(3);
    store.clone_pool("a", "b").unwrap();
    for op in [Operation::Create, Operation::Write] {
        sim.inject(Fault::once(FaultPoint::Operation(op), 0, FaultEffect::NoSpace).on("puddles/"));
        let opened = store.open_pool("b", Access::ReadOnly);
        if sim.fault_hits() == 0 {
            sim.clear_faults();
            assert!(opened.is_ok());
            continue;
        }
        assert!(opened.expect_err("full").is_no_space());
        sim.clear_faults();
    }
    assert_eq!(store.open_pool("b", Access::ReadWrite).unwrap().pending_rewrites(), 0);
}

/// The disk is full at each operation in turn that takes space, of a clone and of a rewriting.
#[test]
fn wherever_the_disk_is_full_there_is_no_clone_or_a_puddle_as_it_was() {
    let (sim, store) = store(4);
    store.close().unwrap();
    let store = open(&sim, options(Backend::Signal));
    let files =
        || (sim.list("puddles").unwrap().len(), store.pools().len(), store.info().window_free);
    let mut refused = 0;
    for op in [Operation::Create, Operation::Write] {
        for skip in 0.. {
            let (before, hits) = (files(), sim.fault_hits());
            sim.inject(
                Fault::once(FaultPoint::Operation(op), skip, FaultEffect::NoSpace).on("puddles/"),
            );
            let cloned = store.clone_pool("a", "b");
            let hit = sim.fault_hits() > hits;
            sim.clear_faults();
            if !hit {
                cloned.unwrap();
                break;
            }
            refused += 1;
            assert!(cloned.expect_err("full").is_no_space());
            assert_eq!(files(), before, "{op:?} {skip}");
        }
        let mut at = 0;
        while store.pools().iter().any(|pool| pool.pending > 0) {
            let (before, hits) = (files(), sim.fault_hits());
            sim.inject(
                Fault::once(FaultPoint::Operation(op), at, FaultEffect::NoSpace).on("puddles/"),
            );
            let opened =
                store.open_pool("b", Access::ReadWrite).map(|pool| pool.pending_rewrites());
            let hit = sim.fault_hits() > hits;
            sim.clear_faults();
            match opened {
                Ok(pending) => assert!(!hit && pending == 0),
                Err(error) => assert!(hit && error.is_no_space(), "{error}"),
            }
            if hit {
                refused += 1;
                assert_eq!(files(), before, "{op:?} {at}: the new file is gone");
            } else {
                break;
            }
            at += 1;
        }
        store.remove_pool("b").unwrap();
    }
    assert!(refused > 3, "{refused}");
}

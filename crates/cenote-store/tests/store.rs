//! What a store promises while nothing goes wrong.

use crate::common::{Dir, pool_options, small};
use cenote_layout::id::{PoolId, TypeId};
use cenote_layout::types::{PointerField, TypeRecord};
use cenote_store::{
    Access, AtRest, FormatError, FormatOptions, OpenError, OpenOptions, PoolOptions, Store,
    StoreError, format,
};
use cenote_testkit::child;

#[test]
fn what_is_stored_in_a_pool_is_there_at_the_same_address_after_reopening() {
    let dir = Dir::formatted();
    let (store, report) = dir.open();
    assert!(report.clean && report.crash.is_none(), "{report:?}");
    assert!(report.damage.is_empty(), "{:?}", report.damage);
    let id = store.create_pool("accounts", &pool_options()).unwrap();
    assert_eq!(id, PoolId(1));
    let pool = store.open_pool("accounts", Access::ReadWrite).unwrap();
    assert!(pool.is_writable());
    let addr = pool.root_puddle().unwrap().body_addr() + 64;
    // SAFETY: inside the root puddle, which is mapped for writing.
    unsafe { *(addr as *mut u64) = 0xfeed };
    let found = store.puddle_of(addr).unwrap();
    assert_eq!((found.pool(), found.index()), (id, 0));
    drop(pool);
    store.close().unwrap();

    let (store, report) = dir.open();
    assert!(report.clean, "{report:?}");
    assert!(store.puddle_of(addr).is_none(), "the pool is not open yet");
    let pool = store.open_pool("accounts", Access::ReadOnly).unwrap();
    // SAFETY: the same address, mapped for reading.
    assert_eq!(unsafe { *(addr as *const u64) }, 0xfeed);
    assert!(!pool.is_writable());
    assert!(matches!(pool.take_puddle(256 << 10), Err(StoreError::PoolReadOnly { .. })));
}

#[test]
fn a_pool_opened_for_reading_first_can_be_written_after_opening_it_for_writing() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    let reader = store.open_pool("p", Access::ReadOnly).unwrap();
    let addr = reader.root_puddle().unwrap().body_addr();
    // SAFETY: mapped for reading.
    assert_eq!(unsafe { *(addr as *const u64) }, 0);
    let writer = store.open_pool("p", Access::ReadWrite).unwrap();
    // SAFETY: mapped for writing now.
    unsafe { *(addr as *mut u64) = 5 };
    drop(writer);
    // SAFETY: still mapped.
    assert_eq!(unsafe { *(addr as *const u64) }, 5);
}

#[test]
fn further_puddles_are_mapped_by_the_first_touch_and_not_before() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let size = 3 << 20;
    let mut addrs = Vec::new();
    for i in 0..4u64 {
        let puddle = pool.take_puddle(size).unwrap();
        addrs.push(puddle.body_addr());
        // SAFETY: a new puddle is mapped for writing.
        unsafe { *(puddle.body_addr() as *mut u64) = 100 + i };
    }
    drop(pool);
    store.close().unwrap();

    let (store, _) = dir.open();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert_eq!(
        pool.puddles().iter().map(|p| p.is_mapped()).collect::<Vec<_>>(),
        [true, false, false, false, false]
    );
    // SAFETY: in open puddles of the pool; the fault maps them.
    let sum: u64 = addrs.iter().map(|a| unsafe { *(*a as *const u64) }).sum();
    assert_eq!(sum, 100 + 101 + 102 + 103);
    assert!(pool.puddles().iter().all(|p| p.is_mapped()));
    let last = pool.puddles()[4];
    assert_eq!(store.puddle_of(last.addr() + size - 1).map(|p| p.index()), Some(4));
    assert!(store.puddle_of(last.addr() + size).is_none_or(|p| p.index() != 4));
}

#[test]
fn many_threads_touching_the_same_unmapped_puddles_all_get_through() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    for _ in 0..20 {
        pool.take_puddle(256 << 10).unwrap();
    }
    drop(pool);
    store.close().unwrap();
    let (store, _) = dir.open();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let barrier = std::sync::Barrier::new(8);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                barrier.wait();
                for puddle in pool.puddles() {
                    // SAFETY: mapped for writing by the fault; atomic, because all threads do it.
                    unsafe { &*(puddle.body_addr() as *const std::sync::atomic::AtomicU64) }
                        .fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                }
            });
        }
    });
    for puddle in pool.puddles() {
        // SAFETY: mapped.
        assert_eq!(unsafe { *(puddle.body_addr() as *const u64) }, 8);
    }
}

#[test]
fn pools_are_listed_refused_twice_removed_and_their_space_used_again() {
    listed_removed_and_used_again(0, 0);
    listed_removed_and_used_again(OpenOptions::default().spare_bytes_max, 2);
}

fn listed_removed_and_used_again(spare_bytes_max: u64, spares: u64) {
    let dir = Dir::formatted();
    let (store, _) =
        dir.try_open(OpenOptions { spare_bytes_max, ..OpenOptions::default() }).unwrap();
    let free = store.info().window_free;
    store.create_pool("a", &pool_options()).unwrap();
    store.create_pool("b", &pool_options()).unwrap();
    assert!(matches!(store.create_pool("a", &pool_options()), Err(StoreError::PoolExists { .. })));
    let names: Vec<String> = store.pools().into_iter().map(|p| p.record.name).collect();
    assert_eq!(names, ["a", "b"]);
    let pool = store.open_pool("a", Access::ReadWrite).unwrap();
    let addr = pool.root_puddle().unwrap().addr();
    assert!(matches!(store.remove_pool("a"), Err(StoreError::PoolInUse { .. })));
    assert!(store.pools()[0].opened);
    drop(pool);
    store.remove_pool("a").unwrap();
    assert!(store.puddle_of(addr).is_none());
    assert!(matches!(store.open_pool("a", Access::ReadOnly), Err(StoreError::PoolUnknown { .. })));
    assert!(matches!(store.remove_pool("a"), Err(StoreError::PoolUnknown { .. })));
    assert_eq!(
        store.create_pool("c", &pool_options()).unwrap(),
        PoolId(3),
        "numbers are not given twice"
    );
    let pool = store.open_pool("c", Access::ReadWrite).unwrap();
    assert_eq!(pool.root_puddle().unwrap().addr(), addr, "first fit");
    // SAFETY: mapped.
    assert_eq!(unsafe { *(pool.root_puddle().unwrap().body_addr() as *const u64) }, 0);
    drop(pool);
    for name in ["b", "c"] {
        store.remove_pool(name).unwrap();
    }
    assert_eq!(store.info().spare_puddles, spares);
    assert_eq!(store.info().window_free + spares * (2 << 20), free, "each takes a slot");
    store.close().unwrap();
    assert_eq!(std::fs::read_dir(dir.file("puddles")).unwrap().count() as u64, spares);
}

#[test]
fn names_and_sizes_that_cannot_be_are_refused() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let before = dir.contents();
    for name in ["", "a\nb", " a", &"x".repeat(256)] {
        assert!(
            matches!(store.create_pool(name, &pool_options()), Err(StoreError::PoolName { .. })),
            "{name:?}"
        );
    }
    for size in [0, 4095, 4096, 128 << 10 | 1, u64::MAX, !4095] {
        let options = PoolOptions { puddle_size: size, ..PoolOptions::default() };
        assert!(
            matches!(store.create_pool("p", &options), Err(StoreError::PuddleSize { .. })),
            "{size}"
        );
    }
    let options = PoolOptions { puddle_size: 512 << 20, ..PoolOptions::default() };
    let error = store.create_pool("p", &options).unwrap_err();
    assert!(
        matches!(error, StoreError::WindowFull { wanted, window_len, .. }
        if wanted == 512 << 20 && window_len == 256 << 20),
        "{error}"
    );
    assert_eq!(before, dir.contents());
    let options = PoolOptions { size_max: 1 << 20, ..pool_options() };
    store.create_pool("p", &options).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    assert!(matches!(pool.take_puddle(1 << 20), Err(StoreError::PoolFull { .. })));
    pool.take_puddle(768 << 10).unwrap();
}

fn node(offset: u64) -> TypeRecord {
    TypeRecord {
        version: cenote_layout::types::RECORD_VERSION,
        id: TypeId::of_name("Node"),
        name: "Node".into(),
        size: 32,
        align: 8,
        repeats: false,
        fields: Vec::new(),
        variants: Vec::new(),
        pointers: vec![PointerField {
            offset,
            stride: 8,
            count: 1,
            kind: cenote_layout::pointer::PointerKind::NATIVE,
            tag_mask: 0,
            target: TypeId::of_name("Node"),
            conditions: Vec::new(),
        }],
    }
}

fn register(store: &Store, record: &TypeRecord) -> Result<(), StoreError> {
    // SAFETY: no program has values of the type.
    unsafe { store.register_type(record) }
}

#[test]
fn a_type_of_another_layout_is_refused_with_both_layouts_in_the_message() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    register(&store, &node(8)).unwrap();
    register(&store, &node(8)).unwrap();
    store.close().unwrap();
    let (store, _) = dir.open();
    assert_eq!(*store.type_record(TypeId::of_name("Node")).unwrap(), node(8));
    let message = register(&store, &node(24)).unwrap_err().to_string();
    assert!(message.contains("pointer at 8 ") && message.contains("pointer at 24 "), "{message}");
    let mut bad = node(8);
    bad.pointers[0].offset = 30;
    assert!(matches!(register(&store, &bad), Err(StoreError::Type(_))));
    assert_eq!(store.types().len(), 1);
}

#[test]
fn a_catalog_full_of_changes_is_compacted_and_says_the_same() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("kept", &pool_options()).unwrap();
    let mut compacted = false;
    let mut largest = 0;
    for i in 0..600 {
        store.create_pool(&format!("pool {i}"), &pool_options()).unwrap();
        store.remove_pool(&format!("pool {i}")).unwrap();
        let bytes = store.info().catalog_bytes;
        compacted |= bytes < largest;
        largest = largest.max(bytes);
    }
    assert!(compacted, "never compacted: {largest} bytes");
    assert!(largest < 200 << 10, "{largest}");
    let next = store.create_pool("last", &pool_options()).unwrap();
    assert_eq!(next, PoolId(602));
    store.close().unwrap();
    let (store, report) = dir.open();
    assert!(report.damage.is_empty() && report.catalog_files_repaired == 0, "{report:?}");
    let names: Vec<String> = store.pools().into_iter().map(|p| p.record.name).collect();
    assert_eq!(names, ["kept", "last"]);
    assert_eq!(store.create_pool("more", &pool_options()).unwrap(), PoolId(603));
}

#[test]
fn several_stores_are_open_in_one_process() {
    let (one, two) = (Dir::formatted(), Dir::formatted());
    let (a, b) = (one.open().0, two.open().0);
    for store in [&a, &b] {
        store.create_pool("p", &pool_options()).unwrap();
        let pool = store.open_pool("p", Access::ReadWrite).unwrap();
        let addr = pool.root_puddle().unwrap().body_addr();
        // SAFETY: mapped for writing.
        unsafe { *(addr as *mut u64) = addr };
        let other = if store.uuid() == a.uuid() { &b } else { &a };
        assert!(other.puddle_of(addr).is_none());
    }
    a.close().unwrap();
    b.close().unwrap();
}

#[test]
fn two_stores_with_one_window_are_refused_by_name_and_not_overlapped() {
    let (one, two) = (Dir::new(), Dir::new());
    let options = small();
    format(one.medium(), &options).unwrap();
    format(two.medium(), &options).unwrap();
    let (a, _) = one.open();
    let before = two.contents();
    let error = two.try_open(OpenOptions::default()).unwrap_err();
    assert!(
        matches!(error, OpenError::WindowTaken { base, .. } if Some(base) == options.window_base),
        "{error}"
    );
    assert_eq!(before, two.contents());
    a.close().unwrap();
    two.open();
}

#[test]
fn windows_are_chosen_where_they_rarely_conflict_and_never_when_both_are_open() {
    let mut open = Vec::new();
    for _ in 0..6 {
        let dir = Dir::new();
        let options = cenote_store::FormatOptions::default();
        format(dir.medium(), &options).unwrap();
        let (store, _) = dir.open();
        assert_eq!(store.window().1, cenote_store::WINDOW_LEN_DEFAULT);
        open.push((store, dir));
    }
}

#[test]
fn format_refuses_a_directory_with_other_things_and_a_second_format() {
    let dir = Dir::new();
    let medium = dir.medium();
    std::fs::write(dir.file("letter.txt"), "dear").unwrap();
    let before = dir.contents();
    let error = format(medium.clone(), &small()).unwrap_err();
    assert!(
        matches!(&error, FormatError::NotEmpty { found, .. } if found == "letter.txt"),
        "{error}"
    );
    assert_eq!(before, dir.contents());
    std::fs::remove_file(dir.file("letter.txt")).unwrap();
    // What an interrupted format leaves.
    std::fs::write(dir.file("catalog.0"), "half").unwrap();
    std::fs::write(dir.file("superblock.new"), "").unwrap();
    assert!(matches!(
        Store::open(medium.clone(), OpenOptions::default()),
        Err(OpenError::FormatInterrupted { .. })
    ));
    format(medium.clone(), &small()).unwrap();
    let before = dir.contents();
    assert!(matches!(format(medium.clone(), &small()), Err(FormatError::Exists { .. })));
    assert_eq!(before, dir.contents());
    for (base, len) in [(Some(1), 2 << 20), (None, 0), (None, 4096), (Some(1 << 47), 2 << 20)] {
        let options =
            cenote_store::FormatOptions { window_base: base, window_len: len, uuid: None };
        assert!(
            matches!(format(Dir::new().medium(), &options), Err(FormatError::Options(_))),
            "{base:?} {len}"
        );
    }
}

#[test]
fn close_does_not_wait_and_says_who_still_holds_the_store() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let other = store.clone();
    assert!(matches!(store.close(), Err(StoreError::InUse { handles: 1 })));
    let log = other.acquire_log().unwrap();
    assert!(matches!(other.close(), Err(StoreError::LogsInUse { logs: 1 })));
    drop(log);
    let (store, report) = dir.open();
    assert!(!report.clean, "it was not closed, because a log was in use");
    drop(store); // closes
    let (_, report) = dir.open();
    assert!(report.clean);
}

#[test]
fn a_stray_store_into_a_pool_opened_for_reading_kills_and_changes_nothing() {
    const TEST: &str =
        "store::a_stray_store_into_a_pool_opened_for_reading_kills_and_changes_nothing";
    if let Some((_, path)) = child::task() {
        let (store, _) = Store::open(crate::common::real(&path), OpenOptions::default()).unwrap();
        let pool = store.open_pool("p", Access::ReadOnly).unwrap();
        let addr = pool.root_puddle().unwrap().body_addr();
        println!("about to store");
        // SAFETY: not sound at all: this is what must end the program.
        unsafe { (addr as *mut u64).write_volatile(1) };
        println!("survived");
        return;
    }
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    store.close().unwrap();
    let (status, text) = child::ended(&mut child::with_task(TEST, "store", &dir.path()));
    assert!(text.contains("about to store") && !text.contains("survived"), "{text}");
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&status), Some(11), "{:?}", status);
    let (store, _) = dir.open();
    let pool = store.open_pool("p", Access::ReadOnly).unwrap();
    // SAFETY: mapped for reading.
    assert_eq!(unsafe { *(pool.root_puddle().unwrap().body_addr() as *const u64) }, 0);
}

#[test]
fn stores_of_one_process_get_windows_of_their_own() {
    // One after the other, so that each window is free again when the next one is chosen.
    let window = || {
        let dir = Dir::new();
        format(dir.medium(), &FormatOptions::default()).unwrap();
        let (store, _) = dir.open();
        let base = store.info().window_base;
        store.close().unwrap();
        base
    };
    let bases: std::collections::BTreeSet<u64> = (0..16).map(|_| window()).collect();
    assert_eq!(bases.len(), 16);
}

#[test]
fn a_header_is_made_without_a_lock() {
    let (done, heard) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let dir = Dir::formatted();
        let (store, _) = dir.open();
        let asked = store.clone();
        let header = |id, pages| -> Result<Vec<u8>, StoreError> {
            assert_eq!((asked.objects().len(), pages), (0, 1));
            asked.create_object("inner", 4096, 0o600)?;
            assert_ne!(asked.object("inner")?.id(), id);
            Ok(Vec::new())
        };
        let made = store.create_object_at_rest("outer", 4096, 0o600, AtRest::None, header);
        let taken = store.create_object("outer", 4096, 0o600);
        assert!(matches!(taken, Err(StoreError::ObjectExists { .. })), "{taken:?}");
        done.send((made.is_ok(), store.objects().len())).expect("the test waits");
    });
    let heard = heard.recv_timeout(std::time::Duration::from_secs(60));
    assert_eq!(heard, Ok((true, 2)), "the header waits for the lock that its caller has");
}

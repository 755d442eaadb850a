//! Every way in which an open can fail: named, with what to do, and without changing a byte.

use crate::common::{Dir, pool_options, real, real_read_only, small};
use cenote_layout::header::{HeaderError, seal};
use cenote_layout::superblock::{
    INCOMPAT_ALWAYS, INCOMPAT_LOGGED_HEAPS, INCOMPAT_WEAR_HEAPS, Superblock,
};
use cenote_layout::wear::WAIT_MS_MAX;
use cenote_medium::{Durability, MediumError};
use cenote_store::{
    Access, CrashKind, DamagePolicy, FormatOptions, HeapKind, OpenError, OpenOptions, PoolOptions,
    Store, StoreError, format,
};
use cenote_testkit::child;
use std::time::{Duration, Instant};
use zerocopy::{FromBytes, IntoBytes};

/// Opens in every way, expects an error each time, and compares all files.
fn refused(dir: &Dir, expected: &dyn Fn(&OpenError) -> bool) {
    let before = dir.contents();
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let error = dir.try_open(OpenOptions { access, ..OpenOptions::default() }).unwrap_err();
        assert!(expected(&error), "{access:?}: {error:?}");
        assert!(error.to_string().len() > 20, "{error}");
    }
    assert_eq!(before, dir.contents(), "a failed open changed the medium");
}

/// Changes both copies of the superblock and gives them checksums that fit.
fn superblocks(dir: &Dir, change: impl Fn(&mut Superblock)) {
    dir.edit("superblock", |bytes| {
        for copy in bytes.chunks_exact_mut(4096) {
            let mut block = Superblock::read_from_bytes(copy).unwrap();
            change(&mut block);
            seal(&mut block);
            copy.copy_from_slice(block.as_bytes());
        }
    });
}

#[test]
fn a_directory_that_is_no_store_is_refused_and_stays_as_it_is() {
    let dir = Dir::new();
    dir.medium();
    refused(&dir, &|e| matches!(e, OpenError::NotAStore { .. }));
    std::fs::write(dir.file("notes"), "mine").unwrap();
    refused(&dir, &|e| matches!(e, OpenError::NotAStore { .. }));
    assert_eq!(dir.contents().len(), 1);
}

#[test]
fn a_superblock_of_something_else_is_refused_by_its_magic_number() {
    let dir = Dir::new();
    dir.medium();
    std::fs::write(dir.file("superblock"), vec![b'x'; 8192]).unwrap();
    refused(&dir, &|e| {
        matches!(e, OpenError::Superblock { source: HeaderError::Magic { .. }, .. })
            && e.to_string().contains("xxxxxxxx")
    });
    std::fs::write(dir.file("superblock"), "").unwrap();
    refused(&dir, &|e| {
        matches!(e, OpenError::Superblock { source: HeaderError::Truncated { .. }, .. })
    });
    assert!(!dir.contents().contains_key("lock"));
}

#[test]
fn a_newer_version_and_unknown_features_are_refused_as_such() {
    let dir = Dir::formatted();
    superblocks(&dir, |b| b.prefix.version = 2);
    refused(&dir, &|e| {
        matches!(e, OpenError::Superblock { source: HeaderError::Version { found: 2, .. }, .. })
            && e.to_string().contains("newer release")
    });
    superblocks(&dir, |b| (b.prefix.version, b.prefix.incompat) = (1, 1 << 40));
    refused(&dir, &|e| {
        matches!(e, OpenError::Superblock { source: HeaderError::Incompatible { .. }, .. })
    });
    superblocks(&dir, |b| (b.prefix.incompat, b.prefix.ro_compat) = (INCOMPAT_ALWAYS, 2));
    let error = dir.try_open(OpenOptions::default()).unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    dir.try_open(OpenOptions::read_only()).unwrap();
    superblocks(&dir, |b| (b.prefix.ro_compat, b.prefix.compat) = (0, 2));
    dir.try_open(OpenOptions::default()).unwrap();
}

#[test]
fn a_store_says_that_it_has_a_heap_of_another_kind() {
    let dir = Dir::formatted();
    let says = |bit: u64| {
        let bytes = std::fs::read(dir.file("superblock")).unwrap();
        let blocks = bytes.chunks_exact(4096).map(Superblock::read_from_bytes);
        blocks.flatten().any(|block| block.prefix.incompat & bit != 0)
    };
    let (store, _) = dir.open();
    store.create_pool("traced", &pool_options()).unwrap();
    for (heap, bit) in
        [(HeapKind::Logged, INCOMPAT_LOGGED_HEAPS), (HeapKind::WEAR, INCOMPAT_WEAR_HEAPS)]
    {
        assert!(!says(bit));
        store.create_pool(heap.name(), &PoolOptions { heap, ..pool_options() }).unwrap();
        assert!(says(bit), "{heap:?}");
    }
}

#[test]
fn blocks_wait_for_up_to_twelve_days() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    for wait_ms in [0, WAIT_MS_MAX] {
        let options = PoolOptions { heap: HeapKind::Wear { wait_ms }, ..pool_options() };
        store.create_pool(&format!("{wait_ms}"), &options).unwrap();
    }
    for wait_ms in [WAIT_MS_MAX + 1, u32::MAX] {
        let options = PoolOptions { heap: HeapKind::Wear { wait_ms }, ..pool_options() };
        let refused = store.create_pool("p", &options).unwrap_err();
        assert!(matches!(refused, StoreError::WearWait { wait_ms: w, .. } if w == wait_ms));
        assert_eq!(store.pools().len(), 2);
    }
    // More lines than a heap can count.
    let heap = HeapKind::Wear { wait_ms: 0 };
    let options = PoolOptions { heap, puddle_size: 256 << 30, ..pool_options() };
    let refused = store.create_pool("p", &options).unwrap_err();
    assert!(matches!(refused, StoreError::PuddleSize { size, .. } if size == 256 << 30));
    assert_eq!(store.pools().len(), 2);
}

#[test]
fn one_copy_by_a_newer_release_is_enough_to_refuse() {
    let dir = Dir::formatted();
    dir.edit("superblock", |bytes| {
        let mut block = Superblock::read_from_bytes(&bytes[..4096]).unwrap();
        block.prefix.incompat = 1 << 63;
        seal(&mut block);
        bytes[..4096].copy_from_slice(block.as_bytes());
    });
    refused(&dir, &|e| {
        matches!(e, OpenError::Superblock { source: HeaderError::Incompatible { .. }, .. })
    });
}

#[test]
fn two_damaged_superblocks_are_refused_with_both_reasons() {
    let dir = Dir::formatted();
    dir.edit("superblock", |bytes| {
        bytes[100] ^= 1;
        bytes[4096 + 100] ^= 1;
    });
    refused(&dir, &|e| matches!(e, OpenError::SuperblockLost { .. }));
}

#[test]
fn every_flipped_bit_of_one_superblock_copy_is_survived_named_and_repaired() {
    for bit in (0..4096 * 8).step_by(509) {
        let dir = Dir::formatted();
        let copy = bit % 2;
        dir.edit("superblock", |bytes| bytes[copy * 4096 + bit / 8] ^= 1 << (bit % 8));
        let (store, report) = dir.open();
        assert_eq!(report.damage.len(), 1, "bit {bit}: {:?}", report.damage);
        assert!(report.clean, "both copies said so: {report:?}");
        store.abandon();
        dir.edit("superblock", |bytes| bytes[copy * 4096 + bit / 8] ^= 1 << (bit % 8));
        let (store, report) = dir.open();
        assert_eq!((report.clean, report.damage.len()), (false, 1), "bit {bit}: {report:?}");
        assert_eq!(report.crash, Some(CrashKind::Process), "both copies named the session");
        store.close().unwrap();
        let (_, report) = dir.open();
        assert!(report.clean && report.damage.is_empty(), "bit {bit}: {report:?}");
    }
}

#[test]
fn a_second_opener_is_told_who_has_the_store_and_waits_no_longer_than_it_wants() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    let started = Instant::now();
    let options = OpenOptions { lock_timeout: Duration::from_millis(60), ..OpenOptions::default() };
    let error = dir.try_open(options).unwrap_err();
    let pid = std::process::id();
    assert!(
        matches!(error, OpenError::Locked { .. }) && started.elapsed() >= Duration::from_millis(60),
        "{error:?}"
    );
    assert!(error.to_string().contains(" ms: close it there"), "{error}");
    let error = dir.try_open(OpenOptions::read_only()).unwrap_err();
    assert!(matches!(error, OpenError::Locked { .. }), "{error:?}");
    assert!(!error.to_string().contains(" ms"), "it did not wait: {error}");

    // Another process names this one.
    if let Some((_, path)) = child::task() {
        let error = Store::open(real(&path), OpenOptions::default()).unwrap_err();
        match error {
            OpenError::Locked { pid: Some(pid), .. } => println!("holder {pid}"),
            other => println!("other {other:?}"),
        }
        return;
    }
    const TEST: &str =
        "errors::a_second_opener_is_told_who_has_the_store_and_waits_no_longer_than_it_wants";
    let (_, text) = child::ended(&mut child::with_task(TEST, "open", &dir.path()));
    assert!(text.contains(&format!("holder {pid}")), "{text}");

    // Who waits gets it when it is closed.
    let waiting = std::thread::spawn({
        let path = dir.path();
        move || {
            let options =
                OpenOptions { lock_timeout: Duration::from_secs(20), ..OpenOptions::default() };
            Store::open(real(&path), options).unwrap()
        }
    });
    std::thread::sleep(Duration::from_millis(30));
    store.close().unwrap();
    let (store, report) = waiting.join().unwrap();
    assert!(report.clean);
    store.close().unwrap();
}

#[test]
fn many_readers_share_a_store_and_change_nothing() {
    let dir = Dir::formatted();
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    store.close().unwrap();
    let before = dir.contents();
    // Readers in one process conflict over the window, as any two stores do; the lock itself is
    // shared.
    let (reader, report) =
        Store::open(real_read_only(&dir.path()), OpenOptions::read_only()).unwrap();
    assert!(report.clean && !reader.is_writable());
    assert!(matches!(dir.try_open(OpenOptions::read_only()), Err(OpenError::WindowTaken { .. })));
    assert!(matches!(dir.try_open(OpenOptions::default()), Err(OpenError::Locked { .. })));
    let pool = reader.open_pool("p", Access::ReadOnly).unwrap();
    // SAFETY: mapped for reading.
    assert_eq!(unsafe { *(pool.root_puddle().unwrap().body_addr() as *const u64) }, 0);
    assert!(matches!(reader.open_pool("p", Access::ReadWrite), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.create_pool("q", &pool_options()), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.remove_pool("p"), Err(StoreError::ReadOnly { .. })));
    assert!(matches!(reader.acquire_log(), Err(StoreError::ReadOnly { .. })));
    drop(pool);
    reader.close().unwrap();
    assert_eq!(before, dir.contents());
}

#[test]
fn a_read_only_medium_is_refused_for_writing_and_serves_readers() {
    let dir = Dir::formatted();
    let error = Store::open(real_read_only(&dir.path()), OpenOptions::default()).unwrap_err();
    assert!(matches!(error, OpenError::ReadOnlyMedium { .. }), "{error}");
    std::fs::remove_file(dir.file("lock")).unwrap();
    let before = dir.contents();
    assert!(matches!(dir.try_open(OpenOptions::read_only()), Err(OpenError::LockMissing { .. })));
    assert_eq!(before, dir.contents());
    dir.open();
}

#[test]
fn files_without_permission_are_refused_as_such() {
    use std::os::unix::fs::PermissionsExt;
    let dir = Dir::formatted();
    std::fs::set_permissions(dir.file("catalog.0"), std::fs::Permissions::from_mode(0o000))
        .unwrap();
    if std::fs::read(dir.file("catalog.0")).is_ok() {
        println!("skipped: this user may read any file");
        return;
    }
    let error = dir.try_open(OpenOptions::default()).unwrap_err();
    assert!(
        matches!(
            &error,
            OpenError::Medium { source, .. } if matches!(**source, MediumError::Denied { .. })
        ),
        "{error}"
    );
}

#[test]
fn more_durability_than_there_is_is_refused() {
    let dir = Dir::formatted();
    let before = dir.contents();
    let options = OpenOptions { durability: Some(Durability::Power), ..OpenOptions::default() };
    if dir.medium().describe().durability == Durability::Power {
        println!("skipped: this medium reaches power");
        return;
    }
    let error = dir.try_open(options).unwrap_err();
    assert!(matches!(error, OpenError::Durability { .. }), "{error}");
    let options = OpenOptions { log_puddle_size: 5, ..OpenOptions::default() };
    assert!(matches!(dir.try_open(options), Err(OpenError::Options(_))));
    assert_eq!(before, dir.contents());
}

#[test]
fn a_window_that_something_else_has_taken_is_named() {
    let dir = Dir::new();
    // Where this very program lies.
    let base = (files_taken_by_a_window as *const () as u64) & !((2 << 20) - 1);
    let options = FormatOptions { window_base: Some(base), ..small() };
    format(dir.medium(), &options).unwrap();
    refused(&dir, &|e| {
        matches!(e, OpenError::WindowTaken { .. })
            && e.to_string().contains("taken in this process by")
    });
}

fn files_taken_by_a_window() {}

#[test]
fn a_fork_of_the_process_has_no_access_and_does_no_harm() {
    const TEST: &str = "errors::a_fork_of_the_process_has_no_access_and_does_no_harm";
    let dir = Dir::formatted();
    if child::task().is_none() {
        // fork() of a test harness with threads is not safe: do it in a process of its own.
        let (status, text) = child::ended(&mut child::with_task(TEST, "fork", &dir.path()));
        assert!(status.success() && text.contains("child saw: Forked Forked Forked"), "{text}");
        return;
    }
    let (store, _) = dir.open();
    store.create_pool("p", &pool_options()).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let before = dir.contents();
    // SAFETY: the child only calls what is checked here and ends with `_exit`.
    let child = unsafe { libc_fork() };
    if child == 0 {
        let say = |r: Result<(), StoreError>| match r {
            Err(StoreError::Forked) => "Forked",
            _ => "something else",
        };
        let a = say(store.open_pool("p", Access::ReadOnly).map(drop));
        let b = say(pool.take_puddle(256 << 10).map(drop));
        let c = say(store.acquire_log().map(drop));
        println!("child saw: {a} {b} {c}");
        drop(pool);
        drop(store);
        // SAFETY: ends the child at once.
        unsafe { libc_exit(0) };
    }
    // SAFETY: waits for the child just made.
    let status = unsafe { libc_wait(child) };
    assert_eq!(status, 0, "the child failed");
    assert_eq!(before, dir.contents(), "the child changed files");
    assert!(
        matches!(dir.try_open(OpenOptions::default()), Err(OpenError::Locked { .. })),
        "the lock is still ours"
    );
    store.create_pool("q", &pool_options()).unwrap();
    drop(pool);
    store.close().unwrap();
    let (_, report) = dir.open();
    assert!(report.clean && report.damage.is_empty());
}

unsafe extern "C" {
    #[link_name = "fork"]
    unsafe fn libc_fork() -> i32;
    #[link_name = "_exit"]
    unsafe fn libc_exit(code: i32) -> !;
    unsafe fn waitpid(pid: i32, status: *mut i32, options: i32) -> i32;
}

unsafe fn libc_wait(pid: i32) -> i32 {
    let mut status = -1;
    // SAFETY: the caller's child; `status` is ours.
    unsafe { waitpid(pid, &raw mut status, 0) };
    status
}

#[test]
fn damage_policies_do_not_hide_a_lost_catalog() {
    let dir = Dir::formatted();
    for name in ["catalog.0", "catalog.1"] {
        dir.edit(name, |bytes| bytes[20] ^= 1);
    }
    let before = dir.contents();
    for damage in [DamagePolicy::Refuse, DamagePolicy::ReadOnly, DamagePolicy::SkipDamaged] {
        let error = dir.try_open(OpenOptions { damage, ..OpenOptions::default() }).unwrap_err();
        assert!(matches!(error, OpenError::CatalogLost { .. }), "{error}");
    }
    assert_eq!(before, dir.contents());
}

#[test]
fn a_handle_that_reads_is_named_when_it_keeps_a_writer_out() {
    let dir = Dir::formatted();
    dir.open().0.close().unwrap();
    let (reader, _) = dir.try_open(OpenOptions::read_only()).unwrap();
    let text = dir.try_open(OpenOptions::default()).unwrap_err().to_string();
    assert!(
        text.contains("this process")
            && text.contains("open for reading")
            && text.contains("until it is dropped"),
        "{text}"
    );
    drop(reader);
    let (_writer, _) = dir.open();
    let text = dir.try_open(OpenOptions::read_only()).unwrap_err().to_string();
    assert!(text.contains("open for writing already"), "{text}");
}

//! Mapping files into reserved windows.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use cenote_medium::{MapMode, Medium, MediumError, MediumOptions, OwnedMedium, RealMedium};

const PAGE: u64 = 4096;
const WINDOW: u64 = 1 << 30;

/// Counts allocations of each thread.
struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is passed on to the system's allocator; the counter does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's promise.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: the caller's promise.
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn open(path: &Path) -> RealMedium {
    RealMedium::open(path, &MediumOptions::default()).expect("open the medium")
}

/// A window reserved by `medium`: far below where the system maps, and another one each time.
fn window(medium: &RealMedium) -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x3000_0000_0000);
    let base = NEXT.fetch_add(2 * WINDOW, Ordering::Relaxed);
    medium.reserve_window(base, WINDOW).expect("reserve");
    base
}

/// What changes mappings, as tests use it.
trait Mappings: Medium {
    fn map_at(&self, name: &str, addr: u64, len: u64, mode: MapMode) -> Result<(), MediumError> {
        // SAFETY: tests reach mappings by raw pointers, and only while they are there.
        unsafe { self.map(name, addr, len, mode) }
    }

    fn unmap_at(&self, addr: u64, len: u64) -> Result<(), MediumError> {
        // SAFETY: as above.
        unsafe { self.unmap(addr, len) }
    }

    fn let_go(&self, base: u64, len: u64) -> Result<(), MediumError> {
        // SAFETY: as above.
        unsafe { self.release_window(base, len) }
    }
}

impl<M: Medium> Mappings for M {}

fn at(addr: u64) -> *mut u8 {
    std::ptr::with_exposed_provenance_mut(addr as usize)
}

#[test]
fn stores_into_a_shared_mapping_reach_the_file() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("puddle", 2 * PAGE).expect("create");
    let base = window(&medium);
    medium.map_at("puddle", base, 2 * PAGE, MapMode::ReadWrite).expect("map");
    // SAFETY: mapped just now, writable.
    unsafe { at(base + PAGE).write_volatile(7) };
    medium.unmap_at(base, 2 * PAGE).expect("unmap");
    assert_eq!(medium.read("puddle").expect("read")[PAGE as usize], 7);
    medium.sync("puddle").expect("sync");

    medium.map_at("puddle", base, 2 * PAGE, MapMode::ReadOnly).expect("map");
    // SAFETY: mapped just now, readable.
    assert_eq!(unsafe { at(base + PAGE).read_volatile() }, 7);
    medium.let_go(base, WINDOW).expect("release");
    assert!(
        matches!(medium.unmap_at(base, PAGE), Err(MediumError::BadRange { .. })),
        "the window is gone"
    );
}

#[test]
fn a_private_copy_keeps_its_stores_from_the_file_of_a_read_only_medium() {
    let dir = tempfile::tempdir().expect("directory");
    open(dir.path()).create("puddle", PAGE).expect("create");
    let read_only = MediumOptions { read_only: true, ..MediumOptions::default() };
    let medium = RealMedium::open(dir.path(), &read_only).expect("open");
    let base = window(&medium);
    assert!(matches!(
        medium.map_at("puddle", base, PAGE, MapMode::ReadWrite),
        Err(MediumError::ReadOnly { .. })
    ));
    medium.map_at("puddle", base, PAGE, MapMode::PrivateCopy).expect("map");
    // SAFETY: mapped just now, writable.
    unsafe {
        at(base).write_volatile(9);
        assert_eq!(at(base).read_volatile(), 9);
    }
    assert_eq!(medium.read("puddle").expect("read")[0], 0);
    medium.let_go(base, WINDOW).expect("release");
}

#[test]
fn a_truncated_file_is_an_error_and_is_not_mapped() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("puddle", 4 * PAGE).expect("create");
    // SAFETY: nothing is mapped.
    let owned = unsafe { OwnedMedium::new(&medium as &dyn Medium) };
    owned.truncate("puddle", 3 * PAGE + 1).expect("truncate");
    let base = window(&medium);
    let error = medium.map_at("puddle", base, 4 * PAGE, MapMode::ReadWrite).expect_err("too short");
    let found =
        matches!(error, MediumError::Truncated { needed_bytes: 16384, found_bytes: 12289, .. });
    assert!(found && error.to_string().contains("map puddle"), "{error:?}");
    medium.map_at("puddle", base, 3 * PAGE, MapMode::ReadWrite).expect("as much as there is");
    medium.let_go(base, WINDOW).expect("release");
}

#[test]
fn nothing_is_mapped_outside_a_window_of_this_medium() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("puddle", 4 * PAGE).expect("create");
    let base = window(&medium);
    let precious = Box::new([0u8; 16384]);
    let its_page = (precious.as_ptr().addr() as u64).next_multiple_of(PAGE);
    for (addr, len) in [
        (its_page, PAGE),
        (base - PAGE, PAGE),
        (base - PAGE, 2 * PAGE),
        (base + WINDOW - PAGE, 2 * PAGE),
        (base + WINDOW, PAGE),
        (base + 1, PAGE),
        (base, PAGE + 1),
        (base, 0),
        (u64::MAX - PAGE + 1, 2 * PAGE),
        (0, PAGE),
    ] {
        for result in
            [medium.map_at("puddle", addr, len, MapMode::ReadWrite), medium.unmap_at(addr, len)]
        {
            assert!(
                matches!(result, Err(MediumError::BadRange { .. })),
                "{addr:#x} {len}: {result:?}"
            );
        }
    }
    medium.let_go(base, WINDOW).expect("release");
}

#[test]
fn a_window_that_is_taken_is_refused_whole() {
    let dir = tempfile::tempdir().expect("directory");
    let (first, second) = (open(dir.path()), open(dir.path()));
    let base = window(&first);
    for (base, len) in [(base, WINDOW), (base + WINDOW / 2, PAGE), (base - PAGE, WINDOW + 2 * PAGE)]
    {
        let error = second.reserve_window(base, len).expect_err("taken");
        assert!(matches!(error, MediumError::WindowTaken { .. }), "{error:?}");
    }
    for (base, len) in [(base + 1, PAGE), (base, 0), (u64::MAX - PAGE + 1, 2 * PAGE), (0, PAGE)] {
        assert!(
            matches!(second.reserve_window(base, len), Err(MediumError::BadRange { .. })),
            "{base:#x} {len}"
        );
    }
    for (base, len) in [(base, WINDOW), (base, PAGE), (0, 0)] {
        assert!(
            matches!(second.let_go(base, len), Err(MediumError::BadRange { .. })),
            "not its own"
        );
    }
    assert!(first.let_go(base, PAGE).is_err(), "a window is released whole");
    first.let_go(base, WINDOW).expect("release");
    second.reserve_window(base, WINDOW).expect("free again");
    second.let_go(base, WINDOW).expect("release");
}

#[test]
fn mapping_does_not_allocate_whether_it_succeeds_or_fails() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    let name = "puddles/0123456789abcdef0123456789abcdef";
    medium.make_dir("puddles").expect("make");
    medium.create(name, PAGE).expect("create");
    let base = window(&medium);
    let before = ALLOCATIONS.get();
    let results = [
        medium.map_at(name, base, PAGE, MapMode::ReadWrite),
        medium.map_at(name, base, 2 * PAGE, MapMode::ReadWrite),
        medium.map_at("puddles/missing", base, PAGE, MapMode::ReadOnly),
        medium.map_at(name, base + 1, PAGE, MapMode::ReadOnly),
        medium.map_at("../x", base, PAGE, MapMode::ReadOnly),
        medium.unmap_at(base, PAGE),
    ];
    let after = ALLOCATIONS.get();
    assert_eq!(after - before, 0);
    assert_eq!(results.map(|result| result.is_ok()), [true, false, false, false, false, true]);
    medium.let_go(base, WINDOW).expect("release");
}

#[test]
fn a_forked_child_has_no_mapping() {
    let dir = tempfile::tempdir().expect("directory");
    let medium = open(dir.path());
    medium.create("puddle", PAGE).expect("create");
    let base = window(&medium);
    medium.map_at("puddle", base, PAGE, MapMode::ReadWrite).expect("map");
    let maps = std::fs::read_to_string("/proc/self/smaps").expect("smaps");
    let mut of_puddle = maps.lines().skip_while(|line| !line.starts_with(&format!("{base:x}-")));
    let flags = of_puddle.find(|line| line.starts_with("VmFlags:")).expect("flags of the mapping");
    assert!(flags.split_whitespace().any(|flag| flag == "dc"), "do not copy on fork: {flags}");
    medium.let_go(base, WINDOW).expect("release");
}

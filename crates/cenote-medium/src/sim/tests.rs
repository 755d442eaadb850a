//! Proves the fault model on small histories: every test names what a crash may or may not leave.

use super::*;
use crate::{
    Durability, LockKind, MapMode, Medium, MediumError, Operation, OwnedMedium, Persistence,
};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

mod files;
mod histories;

const FILE: &str = "puddles/a";
const LEN: u64 = 16384;
const WINDOW: u64 = 64 << 20;

/// A window of this test's own. Miri gives out no address at a wish.
fn window() -> u64 {
    if cfg!(miri) {
        let base = cenote_sys::memory::find_free(WINDOW as usize, 1 << 30);
        return base.expect("addresses") as u64;
    }
    static NEXT: AtomicU64 = AtomicU64::new(0x3f00_0000_0000);
    NEXT.fetch_add(WINDOW, Ordering::Relaxed)
}

/// A medium whose files a test may change.
fn own<'a>(medium: &'a (dyn Medium + 'static)) -> OwnedMedium<&'a (dyn Medium + 'static)> {
    // SAFETY: no reference leads into what the tests map; they look at it through raw pointers.
    unsafe { OwnedMedium::new(medium) }
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

/// A simulation with one durable file, mapped.
struct Rig {
    sim: Arc<SimMedium>,
    base: u64,
    persistence: Persistence,
}

impl Rig {
    fn new(options: SimOptions) -> Self {
        let sim = SimMedium::new(options);
        sim.make_dir("puddles").unwrap();
        sim.sync_dir("").unwrap();
        sim.create(FILE, LEN).unwrap();
        sim.sync(FILE).unwrap();
        sim.sync_dir("puddles").unwrap();
        let base = window();
        sim.reserve_window(base, WINDOW).unwrap();
        sim.map_at(FILE, base, LEN, MapMode::ReadWrite).unwrap();
        sim.forget_trace();
        let persistence = sim.persistence(options.durability);
        Self { sim, base, persistence }
    }

    fn power() -> Self {
        Self::new(SimOptions::new(Durability::Power))
    }

    fn word(&self, index: u64) -> *mut u64 {
        assert!(index < LEN / 8);
        std::ptr::with_exposed_provenance_mut((self.base + 8 * index) as usize)
    }

    fn store(&self, index: u64, value: u64) {
        // SAFETY: the word lies in the mapping of this rig.
        unsafe { self.word(index).write_volatile(value) }
    }

    fn load(&self, index: u64) -> u64 {
        // SAFETY: the word lies in the mapping of this rig.
        unsafe { self.word(index).read_volatile() }
    }

    fn flush(&self, index: u64) {
        // SAFETY: the word lies in the mapping of this rig.
        unsafe { self.persistence.flush(self.word(index).cast(), 8) }
    }

    /// Every combination of these words that a loss of power now may leave.
    fn possible(&self, words: &[u64]) -> BTreeSet<Vec<u64>> {
        possible(&self.sim.state_now(), words)
    }
}

fn words_of(image: &Image, words: &[u64]) -> Vec<u64> {
    let bytes = image.file(FILE).expect("the file is durable");
    words
        .iter()
        .map(|&w| u64::from_le_bytes(bytes[w as usize * 8..][..8].try_into().unwrap()))
        .collect()
}

fn possible(state: &CrashState, words: &[u64]) -> BTreeSet<Vec<u64>> {
    let mut all = BTreeSet::new();
    let visited = state.for_each_image(12, 0, 1, |image| {
        all.insert(words_of(&image, words));
    });
    assert_eq!(visited.exhausted, 1, "the test wants all images");
    all
}

fn set<const N: usize>(values: &[[u64; N]]) -> BTreeSet<Vec<u64>> {
    values.iter().map(|v| v.to_vec()).collect()
}

#[test]
fn a_store_without_a_flush_may_be_lost_or_kept_even_after_a_fence() {
    let rig = Rig::power();
    rig.store(3, 7);
    assert_eq!(rig.possible(&[3]), set(&[[0], [7]]));
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3]), set(&[[0], [7]]));
}

#[test]
fn a_flush_without_a_fence_may_be_lost() {
    let rig = Rig::power();
    rig.store(3, 7);
    rig.flush(3);
    assert_eq!(rig.possible(&[3]), set(&[[0], [7]]));
}

#[test]
fn a_flush_and_a_fence_are_never_lost() {
    let rig = Rig::power();
    rig.store(3, 7);
    rig.flush(3);
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3]), set(&[[7]]));
    assert_eq!(rig.sim.state_now().units(), 0);
}

#[test]
fn two_words_of_a_line_tear() {
    let rig = Rig::power();
    rig.store(8, 1);
    rig.store(9, 2);
    assert_eq!(rig.possible(&[8, 9]), set(&[[0, 0], [1, 0], [0, 2], [1, 2]]));
}

#[test]
fn a_flush_covers_the_whole_line_and_no_other() {
    let rig = Rig::power();
    for word in [7, 8, 15, 16] {
        rig.store(word, 1);
    }
    rig.flush(9);
    rig.persistence.fence();
    let images = rig.possible(&[7, 8, 15, 16]);
    assert!(images.iter().all(|w| w[1] == 1 && w[2] == 1));
    assert_eq!(images.len(), 4);
}

#[test]
fn a_store_after_the_flush_is_not_covered_by_the_fence() {
    let rig = Rig::power();
    rig.store(3, 1);
    rig.flush(3);
    rig.store(3, 2);
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3]), set(&[[1], [2]]));
}

#[test]
fn a_word_may_hold_any_value_since_it_was_durable() {
    let rig = Rig::power();
    for value in [1, 2, 3] {
        rig.store(3, value);
        rig.persistence.fence();
    }
    assert_eq!(rig.possible(&[3]), set(&[[0], [1], [2], [3]]));
    rig.store(3, 0);
    assert_eq!(rig.possible(&[3]), set(&[[0], [1], [2], [3]]), "back to the durable value");
    assert_eq!(words_of(&rig.sim.state_now().image_latest(), &[3]), [0]);
}

#[test]
fn the_moment_before_a_fence_is_a_crash_point_of_its_own() {
    let rig = Rig::power();
    rig.store(0, 1);
    rig.flush(0);
    rig.store(100, 5);
    rig.persistence.fence();
    let (sim, len) = (&rig.sim, rig.sim.trace_len());
    assert_eq!(len, 4, "stores, flush, stores, fence");
    assert_eq!(possible(&sim.state_after(len - 1), &[0, 100]).len(), 4);
    assert_eq!(possible(&sim.state_after(len), &[0, 100]), set(&[[1, 0], [1, 5]]));
    assert_eq!(possible(&sim.state_after(0), &[0, 100]), set(&[[0, 0]]));
}

#[test]
fn a_streamed_copy_is_durable_after_the_fence_and_torn_before() {
    let rig = Rig::power();
    let source = [1u64, 2, 3];
    rig.store(11, 9);
    // SAFETY: both ranges are 24 bytes long, and the destination is mapped.
    unsafe { rig.persistence.stream(rig.word(8).cast(), source.as_ptr().cast(), 24) };
    assert_eq!(rig.load(9), 2);
    assert_eq!(rig.possible(&[8, 9, 10, 11]).len(), 16);
    rig.persistence.fence();
    assert_eq!(
        rig.possible(&[8, 9, 10, 11]),
        set(&[[1, 2, 3, 0], [1, 2, 3, 9]]),
        "its neighbour is not flushed"
    );
}

#[test]
fn a_fence_of_another_thread_does_not_count() {
    let rig = Rig::power();
    rig.store(3, 7);
    rig.flush(3);
    std::thread::scope(|scope| scope.spawn(|| rig.persistence.fence()).join().unwrap());
    assert_eq!(rig.possible(&[3]), set(&[[0], [7]]));
    rig.persistence.fence();
    assert_eq!(rig.possible(&[3]), set(&[[7]]));
}

#[test]
fn a_flush_of_foreign_memory_is_nothing() {
    let rig = Rig::power();
    let local = 5u64;
    // SAFETY: `local` is readable.
    unsafe { rig.persistence.persist((&raw const local).cast(), 8) };
    // SAFETY: the simulation does not touch what is not its own.
    unsafe { rig.persistence.flush(std::ptr::without_provenance(usize::MAX - 200), 190) };
    assert_eq!(rig.sim.state_now().units(), 0);
}

#[test]
fn planted_faults_hit_the_call_that_they_name() {
    let rig = Rig::power();
    let sim = &rig.sim;
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Create), 1, FaultEffect::NoSpace));
    sim.create("a", 1).unwrap();
    assert!(matches!(sim.create("b", 77), Err(MediumError::NoSpace { needed_bytes: 77, .. })));
    assert!(!sim.exists("b").unwrap() && sim.create("b", 77).is_ok());
    sim.inject(Fault::once(FaultPoint::AnyOperation, 0, FaultEffect::Io).on("b").repeating());
    own(&**sim).write_at("a", 0, b"x").unwrap();
    assert!(own(&**sim).write_at("b", 0, b"x").is_err() && sim.read("b").is_err());
    sim.clear_faults();
    assert_eq!(sim.read("b").unwrap(), [0; 77]);
    // SAFETY: what the file says is not believed.
    let lie = |point| unsafe { sim.inject_lie(Fault::once(point, 0, FaultEffect::Drop)) };
    lie(FaultPoint::Operation(Operation::Write));
    assert!(own(&**sim).write_at("b", 0, b"x").is_ok() && sim.read("b").unwrap()[0] == 0);
    assert_eq!(sim.fault_hits(), 4);
    for point in [FaultPoint::Flush, FaultPoint::Fence] {
        lie(point);
        rig.store(3, rig.load(3) + 1);
        rig.flush(3);
        rig.persistence.fence();
        assert!(rig.possible(&[3]).len() > 1, "{point:?} was forgotten");
        rig.flush(3);
        rig.persistence.fence();
    }
}

/// What arrived of a write that fails in its middle is there, in the file and in every crash that
/// keeps it; a crash may come between the parts of one that goes on.
#[test]
fn a_short_write_leaves_its_part() {
    let rig = Rig::power();
    let sim = &rig.sim;
    let short = |eighths, then| {
        Fault::once(FaultPoint::AnyOperation, 0, FaultEffect::Short { eighths, then })
    };
    let words = |values: [u64; 8]| values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<u8>>();
    let there = || (0..8).map(|word| rig.load(word)).collect::<Vec<u64>>();
    sim.inject(short(3, Rest::NoSpace));
    assert!(
        own(&**sim)
            .write_at(FILE, 0, &words([1; 8]))
            .expect_err("no space for the rest")
            .is_no_space()
    );
    assert_eq!(there(), [1, 1, 1, 0, 0, 0, 0, 0]);
    sim.inject(short(5, Rest::Io));
    assert!(matches!(own(&**sim).write_at(FILE, 0, &words([2; 8])), Err(MediumError::Io { .. })));
    assert_eq!(there(), [2, 2, 2, 2, 2, 0, 0, 0]);
    let before = sim.trace_len();
    sim.inject(short(4, Rest::Written));
    own(&**sim).write_at(FILE, 0, &words([3; 8])).unwrap();
    assert_eq!((there(), sim.trace_len() - before), (vec![3; 8], 2), "two events");
    sim.inject(short(0, Rest::NoSpace));
    assert!(own(&**sim).write_at(FILE, 0, &words([4; 8])).is_err() && there() == [3; 8]);
    // What is no write is not cut short: it fails, or it is done.
    sim.inject(short(7, Rest::NoSpace));
    assert!(sim.create("whole", 4096).is_err() && !sim.exists("whole").unwrap());
    sim.inject(short(7, Rest::Written));
    sim.create("whole", 4096).unwrap();
    assert_eq!(sim.len("whole").unwrap(), 4096);
}

#[test]
fn a_flipped_bit_is_in_memory_and_in_every_image() {
    let rig = Rig::power();
    rig.store(3, 4);
    // SAFETY: no reference leads into the file.
    let flip = |at| unsafe { rig.sim.flip_bit(FILE, at, 0) };
    assert!(flip(24) && !flip(LEN));
    assert_eq!((rig.load(3), rig.possible(&[3])), (5, set(&[[1], [5]])));
    let mut image = rig.sim.state_now().image_latest();
    let older = image.clone();
    assert!(
        image.flip_bit(FILE, 24, 1) && image.truncate(FILE, 4096) && !image.flip_bit(FILE, 4096, 0)
    );
    assert_eq!(words_of(&image, &[3]), [7]);
    image.roll_back(FILE, &older);
    assert_eq!(image.hash(), older.hash());
    assert!(image.overwrite(FILE, 24, &[9]) && !image.overwrite(FILE, LEN - 1, &[9, 9]));
    assert_ne!(image.hash(), older.hash());
    assert!(image.remove(FILE) && image.file(FILE).is_none());
}

#[test]
fn mistakes_of_the_caller_are_errors() {
    let rig = Rig::power();
    let sim = &rig.sim;
    let at = rig.base + (1 << 20);
    assert!(matches!(
        sim.map_at(FILE, at, LEN + 4096, MapMode::ReadOnly),
        Err(MediumError::Truncated { .. })
    ));
    assert!(matches!(
        sim.map_at(FILE, at, LEN, MapMode::ReadWrite),
        Err(MediumError::BadRange { .. })
    ));
    assert!(matches!(
        sim.map_at(FILE, rig.base, LEN, MapMode::ReadOnly),
        Err(MediumError::BadRange { .. })
    ));
    assert!(matches!(
        sim.map_at(FILE, at + 8, LEN, MapMode::ReadOnly),
        Err(MediumError::BadRange { .. })
    ));
    assert!(matches!(
        sim.map_at(FILE, 4096, LEN, MapMode::ReadOnly),
        Err(MediumError::BadRange { .. })
    ));
    assert!(matches!(own(&**sim).truncate(FILE, 0), Err(MediumError::BadRange { .. })));
    assert!(matches!(sim.unmap_at(rig.base, 4096), Err(MediumError::BadRange { .. })));
    assert!(matches!(sim.create("../x", 0), Err(MediumError::BadName { .. })));
    assert!(matches!(sim.create("nowhere/x", 0), Err(MediumError::NotFound { .. })));
    assert!(matches!(sim.create(FILE, 0), Err(MediumError::Exists { .. })));
    assert!(matches!(sim.read("puddles"), Err(MediumError::NotAFile { .. })));
    assert!(matches!(
        own(&**sim).write_at(FILE, u64::MAX, b"x"),
        Err(MediumError::BadRange { .. })
    ));
    assert!(matches!(sim.reserve_window(rig.base, WINDOW), Err(MediumError::WindowTaken { .. })));
    let reader = SimOptions { read_only: true, ..SimOptions::new(Durability::Power) };
    assert!(matches!(SimMedium::new(reader).create("x", 0), Err(MediumError::ReadOnly { .. })));
    assert_eq!(sim.list("").unwrap(), ["puddles"]);
    assert_eq!(sim.list("puddles").unwrap(), ["a"]);
}

#[test]
fn a_private_copy_never_reaches_the_file() {
    let rig = Rig::power();
    rig.store(0, 1);
    let at = rig.base + (1 << 20);
    rig.sim.map_at(FILE, at, LEN, MapMode::PrivateCopy).unwrap();
    let copy: *mut u64 = std::ptr::with_exposed_provenance_mut(at as usize);
    // SAFETY: mapped just now.
    unsafe {
        assert_eq!(copy.read_volatile(), 1);
        copy.write_volatile(2);
    }
    assert_eq!(rig.possible(&[0]), set(&[[0], [1]]));
    assert_eq!(rig.sim.read(FILE).unwrap()[0], 1);
}

#[test]
fn memory_that_an_image_left_behind_does_not_show_in_the_next() {
    let rig = Rig::power();
    let image = rig.sim.state_now().image_latest();
    let base = rig.base;
    drop(rig);
    for round in 1..4u64 {
        let sim = SimMedium::from_image_unrecorded(&image);
        sim.reserve_window(base, WINDOW).unwrap();
        sim.map_at(FILE, base, LEN, MapMode::ReadWrite).unwrap();
        let rig = Rig { persistence: sim.persistence(Durability::Power), sim, base };
        assert!((0..LEN / 8).all(|word| rig.load(word) == 0), "round {round}");
        (0..10).for_each(|i| rig.store(i * 200, round));
        if round == 2 {
            rig.sim.unmap_at(base, LEN).unwrap();
            rig.sim.map_at(FILE, base, LEN, MapMode::ReadWrite).unwrap();
            assert_eq!((rig.load(200), rig.load(201)), (2, 0));
        }
        assert_eq!(
            words_of(&rig.sim.image_now(CrashKind::Process), &[0, 200, 201]),
            [round, round, 0]
        );
    }
    // A part of what is left, in another way.
    let sim = SimMedium::from_image(&image);
    sim.reserve_window(base, WINDOW).unwrap();
    sim.map_at(FILE, base + 4096, 4096, MapMode::ReadOnly).unwrap();
    assert!(sim.map_at(FILE, base, LEN, MapMode::ReadWrite).is_err(), "overlaps");
    sim.map_at(FILE, base + 65536, LEN, MapMode::ReadWrite).unwrap();
    let first: *const u64 = std::ptr::with_exposed_provenance(base as usize + 4096);
    // SAFETY: mapped just now.
    assert_eq!(unsafe { first.read_volatile() }, 0);
}

#[test]
fn a_lock_excludes_until_it_is_dropped() {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let shared = sim.lock("lock", LockKind::Shared).unwrap().unwrap();
    let other = sim.lock("lock", LockKind::Shared).unwrap().unwrap();
    assert!(sim.lock("lock", LockKind::Exclusive).unwrap().is_err());
    drop((shared, other));
    let exclusive = sim.lock("lock", LockKind::Exclusive).unwrap().unwrap();
    assert!(sim.lock("lock", LockKind::Shared).unwrap().is_err());
    assert!(sim.exists("lock").unwrap());
    drop(sim);
    drop(exclusive);
}

#[test]
fn a_history_may_begin_late_with_what_was_undecided_by_then() {
    let first = Rig::power();
    let (base, before) = (first.base, first.sim.image_now(CrashKind::Process));
    first.store(0, 1);
    first.flush(0);
    let snapshot = first.sim.snapshot();
    drop(first);
    let again = |value: u64| {
        let sim = SimMedium::from_image_paused(&before);
        sim.reserve_window(base, WINDOW).unwrap();
        sim.map_at(FILE, base, LEN, MapMode::ReadWrite).unwrap();
        let rig = Rig { persistence: sim.persistence(Durability::Power), sim, base };
        rig.store(0, value);
        rig.flush(0);
        assert_eq!(rig.sim.trace_len(), 0);
        rig
    };
    let rig = again(2);
    assert!(!rig.sim.resume(Some(&snapshot)), "another value was stored than then");
    drop(rig);
    let rig = again(1);
    assert!(rig.sim.resume(Some(&snapshot)));
    assert_eq!(rig.sim.state_now().units(), 1, "flushed, not fenced");
    rig.persistence.fence();
    let state = rig.sim.state_now();
    assert_eq!(state.units(), 0);
    let mut word = [0; 8];
    assert!(state.image_oldest().read(FILE, 0, &mut word));
    assert_eq!(u64::from_le_bytes(word), 1);
    drop(rig);
    // Without anything that is known, all is durable.
    let rig = again(3);
    assert!(rig.sim.resume(None));
    assert_eq!(rig.sim.state_now().units(), 0);
    rig.store(1, 1);
    assert_eq!(rig.sim.state_now().units(), 1);
}

#[test]
fn a_walk_gives_the_states_one_after_the_other() {
    let rig = Rig::power();
    rig.store(0, 1);
    rig.flush(0);
    rig.store(9, 1);
    rig.persistence.fence();
    rig.sim.note(1);
    let mut states = 0;
    for state in rig.sim.walk() {
        let direct = rig.sim.state_after(states);
        assert_eq!(
            (state.event(), state.units(), state.note()),
            (states, direct.units(), direct.note())
        );
        assert_eq!(state.image_latest().hash(), direct.image_latest().hash());
        assert_eq!(state.image_oldest().hash(), direct.image_oldest().hash());
        states += 1;
    }
    assert_eq!(states, rig.sim.crash_points());
}

#[test]
fn images_are_read_and_cleared_in_place() {
    let rig = Rig::power();
    rig.store(1, 5);
    let mut image = rig.sim.image_now(CrashKind::Process);
    let (hash, file) = (image.hash(), image.file_hash(FILE));
    image.clear(FILE, 16, LEN);
    assert_eq!((image.hash(), image.file_hash(FILE)), (hash, file), "that was zero");
    image.clear(FILE, 8, 8);
    assert_ne!(image.file_hash(FILE), file);
    let mut word = [7; 8];
    assert!(image.read(FILE, 8, &mut word) && word == [0; 8]);
    assert!(!image.read("puddles/none", 0, &mut word));
    let mut files = Vec::new();
    image.for_each_file(|name, len| files.push((name.to_string(), len)));
    assert_eq!(files, [(FILE.to_owned(), LEN)]);
}

#[test]
fn a_hole_reads_as_zeros_and_stores_into_it_are_counted() {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let base = window();
    sim.reserve_window(base, WINDOW).expect("window");
    sim.create("a", 64 << 10).expect("create");
    sim.sync("a").expect("sync");
    sim.sync_dir("").expect("sync");
    // SAFETY: nothing is mapped there.
    unsafe { sim.map("a", base, 64 << 10, MapMode::ReadWrite) }.expect("map");
    let word = |offset: u64| std::ptr::with_exposed_provenance_mut::<u64>((base + offset) as usize);
    // SAFETY: the file is mapped there, and only this test uses it.
    let store = |offset: u64, value: u64| unsafe { word(offset).write_volatile(value) };
    store(8192, 7);
    sim.sync("a").expect("sync");
    // SAFETY: as above, here and below.
    let release = |offset, len| unsafe { sim.release("a", offset, len) };
    assert!(release(8192, 8192).expect("release"));
    // SAFETY: as above.
    assert_eq!(unsafe { word(8192).read_volatile() }, 0);
    assert_eq!((sim.hole_bytes("a"), sim.stores_into_holes()), (8192, 0));
    // Until the next sync, a loss of power may bring the old bytes back, and leave the hole.
    let state = sim.state_now();
    let old: Vec<u64> = [state.image_oldest(), state.image_latest(), state.image_process()]
        .iter()
        .map(|image| {
            let mut bytes = [0; 8];
            assert!(image.read("a", 8192, &mut bytes));
            u64::from_le_bytes(bytes)
        })
        .collect();
    assert_eq!(old, [7, 0, 0]);
    // Beside the hole nothing is lost; in it, a store is what would end a process on a full disk.
    store(0, 1);
    assert_eq!(sim.stores_into_holes(), 0);
    store(12_288, 2);
    assert_eq!(sim.stores_into_holes(), 1);
    sim.ensure("a", 8192, 4096).expect("ensure");
    store(8192, 3);
    assert_eq!((sim.hole_bytes("a"), sim.stores_into_holes()), (4096, 1));
    // Without a sync, the space may be gone again after a loss of power, and not after a crash of
    // the process.
    let holes_of = |image: &Image| SimMedium::from_image_unrecorded(image).hole_bytes("a");
    let state = sim.state_now();
    assert_eq!((holes_of(&state.image_latest()), holes_of(&state.image_process())), (8192, 4096));
    sim.sync("a").expect("sync");
    assert_eq!(holes_of(&sim.state_now().image_oldest()), 4096);
    for (offset, len) in [(1, 4096), (0, 100), (61_440, 8192), (u64::MAX - 4095, 4096), (0, 0)] {
        for result in [release(offset, len).map(|_| ()), sim.ensure("a", offset, len)] {
            assert!(
                matches!(result, Err(MediumError::BadRange { .. })),
                "{offset} {len}: {result:?}"
            );
        }
    }
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Ensure), 0, FaultEffect::NoSpace));
    assert!(sim.ensure("a", 12_288, 4096).expect_err("a full disk").is_no_space());
    assert_eq!(sim.hole_bytes("a"), 4096);
}

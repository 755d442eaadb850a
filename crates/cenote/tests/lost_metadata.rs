//! A page of a heap's metadata that is lost while its pool is in use, each page in turn, before, in
//! and at the end of every kind of operation: the process survives, nothing is acknowledged that
//! the next session does not find, and no answer is wrong. Heaps of both kinds.
//!
//! A child does it, because what is tested is that no signal ends it. It loses a page by mapping a
//! file without bytes over it: an access is `SIGBUS`, as where a device fails. The puddle's file
//! keeps what it had until then, so the next session finds what was acknowledged. A second way cuts
//! the file short.

use cenote::{
    Error, HeapKind, MediumOptions, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader,
    RealMedium, Result, Store,
};
use cenote_layout::SLOT_SIZE;
use cenote_layout::heap::{HeapGeometry, SUPERBLOCK_SIZE};
use cenote_medium::planted::{Bug, LoggedBug, plant};
use cenote_protect::{RangeKind, explain};
use cenote_store::StoreError;
use cenote_testkit::child::{run_task, task};
use cenote_testkit::environment::stride;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::sync::Arc;

const PAGE: u64 = 4096;
const PUDDLE: u64 = 1 << 20;

#[derive(Persist)]
#[persist(name = "lost_metadata::Small")]
struct Small {
    value: u64,
    next: Option<Ptr<Small>>,
}

#[derive(Persist)]
#[persist(name = "lost_metadata::Wide")]
struct Wide {
    values: [u64; 40],
    next: Option<Ptr<Wide>>,
}

#[derive(Persist)]
#[persist(name = "lost_metadata::Large")]
struct Large {
    values: [u64; 9000],
}

/// What the pool holds: how many values of each list, their sum, and what the large block says.
type Held = (u64, u64, u64, u64);

/// Where in an operation the page is lost.
const MOMENTS: usize = 3;

/// Mode and heap of the pool, and whether transactions do what they do for a loss of power.
#[derive(Clone, Copy)]
struct Kind(PoolMode, HeapKind, bool);

const DIRECT: Kind = Kind(PoolMode::Direct, HeapKind::Traced, false);
const LOGGED: Kind = Kind(PoolMode::Direct, HeapKind::Logged, false);
const POWERED: Kind = Kind(PoolMode::Direct, HeapKind::Logged, true);

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Store(StoreError::MetadataLost { .. }))
        || error.to_string().contains("was lost while the store was open")
}

fn held(pool: &Pool) -> Result<Held> {
    let view = pool.read()?;
    let (mut smalls, mut sum, mut wides) = (0, 0u64, 0);
    let mut next = view.root_at::<Small>(0)?;
    while let Some(at) = next {
        let small = view.get(at)?;
        (smalls, sum, next) = (smalls + 1, sum.wrapping_add(small.value), small.next);
    }
    let mut next = view.root_at::<Wide>(1)?;
    while let Some(at) = next {
        let wide = view.get(at)?;
        assert!(wide.values.iter().all(|value| *value == wide.values[0]), "a value is torn");
        (wides, sum, next) = (wides + 1, sum.wrapping_add(wide.values[39]), wide.next);
    }
    let large = match view.root_at::<Large>(2)? {
        Some(large) => view.get(large)?.values[8999],
        None => 0,
    };
    view.finish()?;
    Ok((smalls, wides, sum, large))
}

/// Takes blocks of all kinds.
fn push(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    pool.write(|tx| {
        at(0);
        for round in 0..40 {
            let next = tx.root_at::<Small>(0)?;
            let small = tx.alloc(Small { value: round * 3 + 1, next })?;
            tx.set_root_at(0, Some(small))?;
            if round == 20 {
                at(1);
            }
            if round % 8 == 0 {
                let next = tx.root_at::<Wide>(1)?;
                let wide = tx.alloc(Wide { values: [round + 7; 40], next })?;
                tx.set_root_at(1, Some(wide))?;
            }
        }
        at(2);
        Ok(())
    })
}

/// Takes blocks of all kinds, and aborts.
fn quit(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    pool.write(|tx| {
        at(0);
        for round in 0..40 {
            let small = tx.alloc(Small { value: round, next: None })?;
            tx.set_root_at(0, Some(small))?;
            if round == 20 {
                at(1);
            }
        }
        at(2);
        Err(Error::Aborted("to see what is left".into()))
    })
}

/// Gives blocks back, and takes a large one in place of another.
fn pop(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    pool.write(|tx| {
        at(0);
        for round in 0..30 {
            if let Some(small) = tx.root_at::<Small>(0)? {
                let next = tx.get(small)?.next;
                tx.set_root_at(0, next)?;
                tx.free(small)?;
            }
            if round == 15 {
                at(1);
            }
        }
        if let Some(wide) = tx.root_at::<Wide>(1)? {
            let next = tx.get(wide)?.next;
            tx.set_root_at(1, next)?;
            tx.free(wide)?;
        }
        let mark = match tx.root_at::<Large>(2)? {
            Some(large) => {
                let mark = tx.get(large)?.values[8999];
                tx.free(large)?;
                mark
            }
            None => 0,
        };
        let large = tx.alloc(Large { values: [mark + 1; 9000] })?;
        tx.set_root_at(2, Some(large))?;
        at(2);
        Ok(())
    })
}

/// Changes values in place.
fn change(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    pool.write(|tx| {
        at(0);
        let mut next = tx.root_at::<Wide>(1)?;
        while let Some(wide) = next {
            let wide = tx.get_mut(wide)?;
            wide.values = [wide.values[0] + 1; 40];
            next = wide.next;
            at(1);
        }
        at(2);
        Ok(())
    })
}

/// Another type, so that superblocks are set up.
fn fresh(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    at(0);
    for round in 0..3 {
        let taken = pool.write(|tx| {
            let all = (0..300)
                .map(|value| tx.alloc([value as u64 + round; 9]))
                .collect::<Result<Vec<_>>>();
            at(1);
            all
        })?;
        at(2);
        pool.write(|tx| taken.into_iter().try_for_each(|value| tx.free(value)))?;
    }
    Ok(())
}

fn trim(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    (0..MOMENTS).for_each(at);
    pool.trim().map(drop)
}

fn reclaim(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    (0..MOMENTS).for_each(at);
    pool.reclaim().map(drop)
}

fn collect(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    (0..MOMENTS).for_each(at);
    pool.collect().map(drop)
}

fn check(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    (0..MOMENTS).for_each(at);
    pool.check().map(drop)
}

fn psync(pool: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    push(pool, at)?;
    pool.psync().map(drop)
}

fn nothing(_: &Pool, at: &mut dyn FnMut(usize)) -> Result<()> {
    (0..MOMENTS).for_each(at);
    Ok(())
}

type Operation = fn(&Pool, &mut dyn FnMut(usize)) -> Result<()>;
const OPERATIONS: [(&str, Operation); 9] = [
    ("push", push),
    ("pop", pop),
    ("change", change),
    ("fresh", fresh),
    ("trim", trim),
    ("reclaim", reclaim),
    ("collect", collect),
    ("check", check),
    ("nothing", nothing),
];

/// Those of a logged heap, which traces nothing, and that acknowledge no leak.
const OF_LOGGED: [(&str, Operation); 6] = [
    ("push", push),
    ("pop", pop),
    ("quit", quit),
    ("change", change),
    ("check", check),
    ("nothing", nothing),
];

fn open(dir: &Path, kind: Kind) -> (Store, Pool) {
    if !dir.exists() {
        drop(Store::open(dir).expect("a new store"));
    }
    let options = OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() };
    let Kind(mode, heap, force_power) = kind;
    let medium = MediumOptions { force_power, ..MediumOptions::default() };
    let medium = RealMedium::open(dir, &medium).expect("a medium");
    let store = Store::open_on(Arc::new(medium), &options).expect("a store");
    if store.pools().is_empty() {
        let options = PoolOptions { mode, heap, puddle_size: PUDDLE, ..PoolOptions::default() };
        let pool = store.create_pool("p", &options).expect("a pool");
        (0..5).for_each(|_| push(&pool, &mut |_| ()).expect("filled"));
        pop(&pool, &mut |_| ()).expect("changed");
        drop(pool);
        // Reclaim comes before the first transaction of a session.
        store.close().expect("closed");
        return open(dir, kind);
    }
    let pool = store.pool("p").expect("a pool");
    (store, pool)
}

/// Loses a page.
fn lose(addr: u64) {
    // SAFETY: a page of the store's window, which nothing but the library uses.
    unsafe { cenote_testkit::lost::lose(addr as usize) };
}

/// Pages of metadata of a puddle. Few tiny marks are used, so few of them are taken.
fn pages(size: u64, root: bool) -> Vec<u64> {
    let geometry = HeapGeometry::new(size, root).expect("a heap");
    let is_taken = |page: &u64| {
        let within = (page * PAGE).wrapping_sub(geometry.tiny) / PAGE;
        !(5..geometry.superblocks).contains(&within)
    };
    (0..geometry.first_usable * SUPERBLOCK_SIZE / PAGE).filter(is_taken).collect()
}

/// A sequence of numbers by a seed. The seed is the same in each run, unless `CENOTE_SEED` has
/// another: what is found is found again.
struct Random(u64);

impl Random {
    fn new() -> Self {
        let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
        let seed = seed.unwrap_or(1);
        println!("CENOTE_SEED={seed}, CENOTE_ALL=1 for all");
        Self(seed)
    }

    /// One in eight cases is tried: all of them take half a minute (`just histories`).
    fn chooses(&mut self) -> bool {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::env::var_os("CENOTE_ALL").is_some() || (self.0 >> 33).is_multiple_of(stride(8).min(20))
    }
}

/// What one case came to.
#[derive(Default)]
struct Told {
    lost: u64,
    right: u64,
}

/// One operation, in a session of its own, in which one page is lost.
fn case(dir: &Path, kind: Kind, page: u64, operation: Operation, moment: usize, told: &mut Told) {
    let (store, pool) = open(dir, kind);
    let before = held(&pool).expect("whole");
    let lost = match kind.1 {
        HeapKind::Logged => logged_pages()[page as usize],
        _ => base(&pool) + page * PAGE,
    };
    let mut is_there = true;
    let mut at = |now: usize| {
        if now == moment && is_there {
            is_there = false;
            lose(lost);
        }
    };
    let done = operation(&pool, &mut at);
    let usable = pool.write(|tx| tx.root_at::<Small>(0).map(drop));
    match (&done, &usable) {
        (Err(error), Err(later)) => {
            assert!(is_lost(later), "{later}");
            assert!(is_lost(error) || !error.to_string().is_empty());
            told.lost += 1;
        }
        // Its abort stored nothing to the page.
        (Err(Error::Aborted(_)), Ok(())) => told.right += 1,
        (Err(error), Ok(())) => panic!("an error of a store that goes on: {error}"),
        (Ok(()), Err(later)) => {
            // Its own last look was before the page was lost, or it only reports.
            assert!(is_lost(later), "{later}");
            told.lost += 1;
        }
        (Ok(()), Ok(())) => told.right += 1,
    }
    let now = held(&pool);
    if let (Ok(now), Ok(())) = (&now, &usable) {
        assert!(done.is_err() || is_state_after(before, *now), "{before:?} {now:?}");
    }
    drop(pool);
    let closed = store.close();
    if let Err(error) = &closed {
        assert!(is_lost(error), "{error}");
    } else {
        assert!(usable.is_ok(), "a store that acknowledges nothing was closed");
    }
    let (store, pool) = open(dir, kind);
    let report = pool.check().expect("a report");
    assert!(report.damage.is_empty() && report.dangling.is_empty(), "{report:?}");
    let after = held(&pool).expect("whole");
    match (done, now) {
        (Ok(()), Ok(now)) => assert_eq!(after, now, "what was acknowledged is not there"),
        _ => assert!(after == before || is_state_after(before, after), "{before:?} {after:?}"),
    }
    if kind.1 == HeapKind::Logged {
        // What no session acknowledged the next one has given back.
        let (is_sound, leaked) = (report.is_sound(), report.leaked_blocks);
        assert!(is_sound && leaked == 0, "{leaked} blocks are leaked");
        drop(pool);
        return store.close().expect("closed");
    }
    // Frees whose marks went to the lost page are leaks. They may lead to blocks that a later case
    // frees: so they go first.
    pool.reclaim().expect("reclaimed");
    let report = pool.check().expect("a report");
    assert!(report.is_sound() && report.leaked_blocks == 0, "{report:?}");
    // What leads nowhere is there for the next reclaim.
    let leak = pool.write(|tx| (0..30).try_for_each(|value| tx.alloc([value; 5]).map(drop)));
    leak.expect("goes on");
    drop(pool);
    store.close().expect("closed");
}

/// Whether the second is what one of the operations makes of the first.
fn is_state_after(before: Held, after: Held) -> bool {
    let (smalls, wides, _, large) = before;
    let shape = (after.0, after.1, after.3);
    [
        (smalls, wides, large),
        (smalls + 40, wides + 5, large),
        (smalls.saturating_sub(30), wides.saturating_sub(1), large + 1),
    ]
    .contains(&shape)
}

/// Where the root puddle lies, the only one.
fn base(pool: &Pool) -> u64 {
    let mut first = u64::MAX;
    pool.heap().walk(&mut |block| first = first.min(block.addr)).expect("mapped");
    first / SLOT_SIZE * SLOT_SIZE
}

/// Addresses of the pages of metadata and roots of a logged heap, which are guarded.
fn logged_pages() -> Vec<u64> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let range = |line: &str| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
    };
    let of_puddles = maps.lines().filter(|line| line.contains("/puddles/")).filter_map(range);
    let all = of_puddles.flat_map(|range| range.step_by(PAGE as usize));
    let is_metadata =
        |page: &u64| explain(*page as usize).is_some_and(|found| found.kind == RangeKind::Metadata);
    let mut pages: Vec<u64> = all.filter(is_metadata).collect();
    pages.sort_unstable();
    pages
}

fn all_cases(dir: &Path, kind: Kind) {
    let (mut random, mut told) = (Random::new(), Told::default());
    let Kind(mode, heap, _) = kind;
    let (pages, operations) = match heap {
        HeapKind::Logged => {
            let _open = open(dir, kind);
            ((0..logged_pages().len() as u64).collect(), &OF_LOGGED[..])
        }
        _ => (pages(PUDDLE, true), &OPERATIONS[..]),
    };
    for page in pages {
        for &(name, operation) in operations {
            for moment in 0..MOMENTS {
                if random.chooses() {
                    println!("page {page}, {name}, moment {moment}");
                    case(dir, kind, page, operation, moment, &mut told);
                }
            }
            if mode == PoolMode::Shadowed && random.chooses() {
                println!("page {page}, psync");
                case(dir, kind, page, psync, 1, &mut told);
            }
        }
    }
    println!("{} were told, {} were right", told.lost, told.right);
    assert!(told.lost > 0 && told.right > 0, "none was tried");
}

/// The page of the first roots, and that of the first marks.
fn planted_bug(dir: &Path, bug: Bug) {
    plant(bug);
    let geometry = HeapGeometry::new(PUDDLE, true).expect("a heap");
    for page in [geometry.roots / PAGE, geometry.marks / PAGE] {
        for (name, operation) in OPERATIONS {
            println!("page {page}, {name}");
            case(dir, DIRECT, page, operation, 1, &mut Told::default());
        }
    }
}

/// A change of a logged heap whose record goes to no file, each page in turn. A change is torn if
/// its cells lie in several pages, which the heap's random key decides: so in many stores.
fn planted_in_logged(dir: &Path, kind: Kind, (bug, moment): Planted, operations: &[Operation]) {
    plant(Bug::Logged(bug));
    for store in 0..40 {
        let dir = &dir.with_extension(store.to_string());
        let count = {
            let _open = open(dir, kind);
            logged_pages().len() as u64
        };
        for page in 0..count {
            for operation in operations {
                case(dir, kind, page, *operation, moment, &mut Told::default());
            }
        }
    }
}

/// Cuts the file of an open pool short, so that all of its metadata from a page on is lost.
fn cut_short(dir: &Path) {
    let mut poisoned = 0;
    for page in pages(PUDDLE, true).into_iter().step_by(3) {
        println!("cut at page {page}");
        let dir = dir.with_extension(page.to_string());
        let (store, pool) = open(&dir, DIRECT);
        let file = std::fs::read_dir(dir.join("puddles")).expect("readable").find_map(|entry| {
            let file = std::fs::File::options().write(true).open(entry.ok()?.path()).ok()?;
            (file.metadata().ok()?.len() == PUDDLE).then_some(file)
        });
        let file = file.expect("the puddle");
        // SAFETY: cuts a file short.
        assert_eq!(unsafe { libc::ftruncate(file.as_raw_fd(), (page * PAGE) as i64) }, 0);
        assert!(pool.write(|tx| tx.alloc([1u64; 9]).map(drop)).is_err());
        assert!(pool.write(|tx| tx.alloc([1u64; 9]).map(drop)).is_err());
        let report = pool.check();
        assert!(report.is_err() || !report.is_ok_and(|report| report.is_sound()));
        drop(pool);
        if let Err(error) = store.close() {
            assert!(is_lost(&error), "{error}");
            poisoned += 1;
        }
        let store = Store::open(&dir).expect("the store");
        let error = store.pool("p").expect_err("it is damaged");
        assert!(error.to_string().contains("truncated"), "{error}");
        store.close().expect("closed");
    }
    assert!(poisoned > 3, "{poisoned}");
}

fn run(what: &str) -> (bool, String) {
    let outer = tempfile::tempdir().expect("a directory");
    run_task("lost_metadata::child", what, outer.path())
}

/// A bug, and the moment at which a page is lost.
type Planted = (LoggedBug, usize);
const CHANGED: Planted = (LoggedBug::LostPageChanged, 1);
const BELIEVED: Planted = (LoggedBug::LostMarkBelieved, 2);

/// Not a test of its own: what a child does.
#[test]
fn child() {
    let Some((what, dir)) = task() else { return };
    let dir = dir.as_path();
    match what.as_str() {
        "direct" => all_cases(dir, DIRECT),
        "shadowed" => all_cases(dir, Kind(PoolMode::Shadowed, HeapKind::Traced, false)),
        "logged" => all_cases(dir, LOGGED),
        "logged shadowed" => all_cases(dir, Kind(PoolMode::Shadowed, HeapKind::Logged, false)),
        "logged power" => all_cases(dir, POWERED),
        "changed" => planted_in_logged(dir, LOGGED, CHANGED, &[push, pop]),
        "believed" => planted_in_logged(dir, LOGGED, BELIEVED, &[push, pop]),
        "believed power" => planted_in_logged(dir, POWERED, BELIEVED, &[push, pop]),
        "aborted" => planted_in_logged(dir, LOGGED, BELIEVED, &[quit]),
        "cut" => cut_short(dir),
        "unpoisoned" => planted_bug(dir, Bug::LostPageNotPoisoned),
        "forgotten" => planted_bug(dir, Bug::AbortForgotten),
        _ => planted_bug(dir, Bug::LostPageOfZeros),
    }
}

#[test]
fn a_page_of_metadata_that_is_lost_while_a_pool_is_open_ends_no_process_and_no_promise() {
    let (done, said) = run("direct");
    assert!(done, "{said}");
}

#[test]
fn a_page_of_metadata_of_a_shadowed_pool_that_is_lost_is_in_no_psync() {
    let (done, said) = run("shadowed");
    assert!(done, "{said}");
}

#[test]
fn a_page_of_metadata_of_a_logged_heap_that_is_lost_ends_no_process_and_no_promise() {
    for what in ["logged", "logged shadowed", "logged power"] {
        let (done, said) = run(what);
        assert!(done, "{what}: {said}");
    }
}

#[test]
fn changes_of_a_logged_heap_that_go_on_after_it_lost_a_page_are_found() {
    let (done, said) = run("changed");
    assert!(!done && said.contains("lost_metadata.rs"), "{said}");
}

#[test]
fn an_end_of_a_transaction_that_believes_marks_on_a_lost_page_is_found() {
    for what in ["believed", "believed power", "aborted"] {
        let (done, said) = run(what);
        assert!(!done && said.contains("lost_metadata.rs"), "{what}: {said}");
    }
}

#[test]
fn a_file_of_an_open_pool_that_is_cut_short_in_its_metadata_is_an_error() {
    let (done, said) = run("cut");
    assert!(done, "{said}");
}

/// The child dies of what it finds, and not of the bug.
fn is_found(what: &str, finding: &str) {
    let (done, said) = run(what);
    assert!(!done && said.contains(finding), "{said}");
}

#[test]
fn a_store_that_goes_on_after_it_lost_a_page_is_found() {
    is_found("unpoisoned", "an error of a store that goes on");
}

#[test]
fn a_transaction_whose_abort_went_to_a_lost_page_and_is_forgotten_is_found() {
    is_found("forgotten", "no live value of type");
}

#[test]
fn zeros_in_the_place_of_a_page_that_is_lost_are_found() {
    is_found("zeros", "what was acknowledged is not there");
}

//! Pools whose data are write-protected (NVM-4): stores of transactions go through, at any moment
//! of a batch; every other store ends the process, is told of, and lands nowhere.

use crate::heap_kinds::{Node, Page, assert_sound, push, values};
use cenote::raw;
use cenote::{
    Access, AtRest, CopyOptions, DataProtection, Error, ExportOptions, HeapKind, MediumOptions,
    OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, RealMedium, Result, Store,
    field,
};
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_store::StoreError;
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use cenote_testkit::random::next;
use cenote_testkit::strays::{Strays, stray_store};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

const SIGSEGV: i32 = 11;

/// Words, and their sum.
#[derive(Persist)]
#[persist(name = "protected_data::Cell")]
struct Cell {
    stamps: [u64; 40],
    sum: u64,
}

const KINDS: [DataProtection; 4] = [
    DataProtection::Deferred { wait_ms: 0 },
    DataProtection::Deferred { wait_ms: 1 },
    DataProtection::DEFERRED,
    DataProtection::Synchronous,
];
/// No batch but those that a test asks for.
const HOUR: DataProtection = DataProtection::Deferred { wait_ms: 60_000 };

fn options(protect: DataProtection) -> PoolOptions {
    PoolOptions { heap: HeapKind::Logged, protect, ..PoolOptions::default() }
}

fn modes() -> [PoolMode; 2] {
    [PoolMode::Direct, PoolMode::Shadowed]
}

fn cells(pool: &Pool, count: usize) -> Result<Vec<Ptr<Cell>>> {
    pool.write(|tx| (0..count).map(|_| tx.alloc(Cell { stamps: [1; 40], sum: 40 })).collect())
}

/// A word of the data.
fn word(addr: u64) -> u64 {
    // SAFETY: an aligned word of a pool that is open, which no thread changes now.
    unsafe { core::ptr::with_exposed_provenance::<u64>(addr as usize).read_volatile() }
}

#[test]
fn transactions_of_several_threads_never_end_the_process_and_lose_nothing() -> Result<()> {
    for (mode, protect) in modes().into_iter().flat_map(|mode| KINDS.map(|how| (mode, how))) {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let make = |name| store.create_pool(name, &PoolOptions { mode, ..options(protect) });
        let pools = [make("a")?, make("b")?];
        let blocks = [cells(&pools[0], 200)?, cells(&pools[1], 200)?];
        let added = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let (pools, blocks, added) = (&pools, &blocks, &added);
                scope.spawn(move || change_cells(thread, pools, blocks, added));
            }
        });
        let mut sum = 0;
        for (pool, blocks) in pools.iter().zip(&blocks) {
            let view = pool.read()?;
            for block in blocks {
                let cell = view.get(*block)?;
                assert_eq!(cell.stamps.iter().sum::<u64>(), cell.sum, "half a transaction");
                sum += cell.sum - 40;
            }
            view.finish()?;
        }
        assert_eq!(sum, added.load(Ordering::Relaxed), "{mode:?} {protect:?}");
        if mode == PoolMode::Shadowed {
            pools.iter().try_for_each(|pool| pool.psync().map(drop))?;
        }
    }
    Ok(())
}

/// Changes cells, allocates and frees, and aborts every third time.
fn change_cells(thread: u64, pools: &[Pool; 2], blocks: &[Vec<Ptr<Cell>>; 2], added: &AtomicU64) {
    let mut seed = thread + 1;
    for round in 0..250 {
        let which = next(&mut seed) as usize % 2;
        let block = blocks[which][next(&mut seed) as usize % 200];
        let done: Result<()> = pools[which].write(|tx| {
            let cell = tx.get_mut(block)?;
            cell.stamps[next(&mut seed) as usize % 40] += 1;
            let sum = cell.sum + 1;
            tx.set(block, field!(Cell, sum), sum)?;
            let fresh = tx.alloc(Cell { stamps: [7; 40], sum })?;
            tx.get_mut(fresh)?.sum = 3;
            tx.free(fresh)?;
            if round % 3 == 0 { Err(Error::OutOfBounds { index: 0, len: 0 }) } else { Ok(()) }
        });
        if done.is_ok() {
            added.fetch_add(1, Ordering::Relaxed);
        }
    }
}

#[test]
fn what_closes_after_a_transaction_opens_for_the_next_one_and_after_an_abort() -> Result<()> {
    for mode in modes() {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("p", &PoolOptions { mode, ..options(HOUR) })?;
        let block = cells(&pool, 1)?[0];
        for round in 0..20 {
            // Closed before, within, and after.
            pool.settle_protection();
            let failed: Result<()> = pool.write(|tx| {
                tx.get_mut(block)?.stamps[3] = 100 + round;
                pool.settle_protection();
                tx.get_mut(block)?.stamps[4] = 100 + round;
                if round % 2 == 1 { Err(Error::OutOfBounds { index: 0, len: 0 }) } else { Ok(()) }
            });
            assert_eq!(failed.is_err(), round % 2 == 1);
            let stamps = pool.read()?.get(block)?.stamps;
            assert_eq!((stamps[3], stamps[4]), (100 + round / 2 * 2, 100 + round / 2 * 2));
            let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                pool.write(|tx| -> Result<()> {
                    tx.get_mut(block)?.stamps[3] = 5;
                    pool.settle_protection();
                    panic!("in the middle")
                })
            }));
            assert!(caught.is_err());
            assert_eq!(pool.read()?.get(block)?.stamps[3], 100 + round / 2 * 2);
        }
    }
    Ok(())
}

#[test]
fn the_raw_interface_stores_by_transactions_and_where_it_announces_stores() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.create_pool("p", &options(HOUR))?;
    let block = cells(&pool, 1)?[0];
    let at = core::ptr::with_exposed_provenance_mut::<u64>(block.addr() as usize);
    pool.settle_protection();
    // SAFETY: words of a live block, which no other thread uses; the transactions end below.
    unsafe {
        let mut tx = raw::begin(&store)?;
        tx.add(at.cast(), 16)?;
        at.write_volatile(8);
        tx.set(at.add(2).cast(), (&raw const SEVEN).cast(), 8)?;
        let heap = pool.raw_heap();
        let long = tx.alloc(heap, 20_000, 16, Cell::TYPE_ID)?;
        long.write_bytes(9, 20_000);
        pool.settle_protection();
        long.write_bytes(7, 20_000);
        tx.commit()?;
        assert!(heap.find(long.as_ptr().addr() as u64).is_ok());
        assert_eq!((word(block.addr()), word(block.addr() + 16)), (8, 7));
        pool.settle_protection();
        let mut tx = raw::begin(&store)?;
        tx.add(at.cast(), 16)?;
        at.write_volatile(9);
        tx.abort();
        assert_eq!(word(block.addr()), 8);
        pool.settle_protection();
        let stores = pool.announce_stores(at.cast(), 8);
        at.write_volatile(10);
        drop(stores);
    }
    assert_eq!(word(block.addr()), 10);
    // One that logs nothing leaves nothing open: the log is full, or the range is wrong.
    pool.settle_protection();
    // SAFETY: nothing is stored.
    let empty = unsafe {
        let mut tx = raw::begin(&store)?;
        let empty = tx.add(at.cast(), 0);
        tx.commit()?;
        empty
    };
    assert!(empty.is_ok());
    Ok(())
}

static SEVEN: u64 = 7;

/// In a child: one handler steps over stray writes.
fn many_strays(dir: &Path, mode: PoolMode) -> Result<()> {
    let strays = Strays::catch();
    let store = Store::open(dir)?;
    let pool = store.create_pool("p", &PoolOptions { mode, ..options(HOUR) })?;
    let blocks = cells(&pool, 2000)?;
    if mode == PoolMode::Shadowed {
        pool.psync()?;
    }
    pool.settle_protection();
    let mut seed = 5;
    for round in 1..=STRAYS {
        let block = blocks[next(&mut seed) as usize % blocks.len()].addr();
        let address = block + next(&mut seed) % 41 * 8;
        stray_store(address as usize, u64::MAX);
        assert_eq!(strays.last(), (round, address as usize));
        if round == STRAYS / 2 {
            assert_eq!(pool.unsynced_bytes(), 0, "stray writes are not noted");
        }
        if round > STRAYS / 2 && round % 100 == 0 {
            // Others are open for their transaction meanwhile, and close.
            let block = blocks[next(&mut seed) as usize % blocks.len()];
            pool.write(|tx| -> Result<()> {
                tx.get_mut(block)?.stamps[0] = 1;
                Ok(())
            })?;
            pool.settle_protection();
        }
    }
    let view = pool.read()?;
    for block in &blocks {
        let cell = view.get(*block)?;
        assert!(cell.stamps == [1; 40] && cell.sum == 40, "a stray write landed");
    }
    view.finish()?;
    if mode == PoolMode::Shadowed {
        assert!(pool.psync()?.pages <= STRAYS / 200 * 2 + 8);
    }
    if mode == PoolMode::Direct {
        // What counts them sees one that lands.
        plant(Bug::Guard(GuardBug::StrayOpened));
        stray_store(blocks[7].addr() as usize, 5);
        plant(Bug::None);
        assert_eq!((strays.last().0, word(blocks[7].addr())), (STRAYS, 5));
    }
    Ok(())
}

const STRAYS: u64 = 5000;

/// In a child, whose memory is looked at: one transaction that comes to the same pages again and
/// again. It holds each open once.
fn again_and_again(dir: &Path) -> Result<()> {
    let store = Store::open(dir)?;
    let pool = store.create_pool("p", &options(HOUR))?;
    // A page or so apart.
    let blocks: Vec<_> = cells(&pool, 100)?.into_iter().step_by(10).collect();
    let before = peak_kib();
    pool.write(|tx| -> Result<()> {
        for round in 0..2_000_000 {
            tx.get_mut(blocks[round % blocks.len()])?.sum = 1;
        }
        Ok(())
    })?;
    let grown = peak_kib() - before;
    assert!(grown < 16 << 10, "{grown} KiB");
    drop(pool);
    store.close()
}

/// The most memory that this process has had.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("readable");
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let number = peak.and_then(|peak| peak.split_whitespace().next()?.parse().ok());
    number.expect("a number")
}

#[test]
fn a_transaction_holds_a_page_open_once_however_often_it_comes_back() {
    let dir = directory();
    let (status, said) = ended(&mut with_task("protected_data::child", "again 0", dir.path()));
    assert!(status.success(), "{said}");
}

/// In a child: a transaction, and then a store that none announces. Whether that lands is what the
/// parent looks at.
fn one_stray(dir: &Path, number: u64) -> Result<()> {
    let store = Store::open(dir)?;
    let pool = store.pool("p")?;
    let first = pool.read()?.root::<Node>()?.expect("a root");
    let page = pool.read()?.root_at::<Page>(1)?.expect("pages of its own");
    push(&pool, 77)?;
    pool.write(|tx| -> Result<()> {
        tx.get_mut(first)?.value = 5;
        Ok(())
    })?;
    pool.settle_protection();
    let target = if number == 0 { first.addr() } else { page.addr() + 8 };
    let stray = || stray_store(target as usize, u64::MAX);
    if number.is_multiple_of(2) {
        stray();
        return Ok(());
    }
    // Within a transaction on another block, which is rolled back.
    pool.write(|tx| {
        let node = tx.alloc(Node { value: 4, next: None })?;
        tx.set_root(node)?;
        stray();
        Ok(())
    })
}

/// Not a test of its own: what a child does.
#[test]
fn child() -> Result<()> {
    let Some((what, dir)) = task() else { return Ok(()) };
    match what.split_once(' ').expect("two words") {
        ("many", "direct") => many_strays(&dir, PoolMode::Direct),
        ("many", _) => many_strays(&dir, PoolMode::Shadowed),
        ("again", _) => again_and_again(&dir),
        ("open", number) => {
            plant(Bug::Guard(GuardBug::CommitKeepsOpen));
            one_stray(&dir, number.parse().expect("a number"))
        }
        (_, number) => one_stray(&dir, number.parse().expect("a number")),
    }
}

fn lines<'a>(said: &'a str, with: &str) -> Vec<&'a str> {
    said.lines().filter(|line| line.contains(with)).collect()
}

#[test]
fn ten_thousand_stray_stores_are_told_of_with_block_and_type_and_none_lands() {
    for mode in ["direct", "shadowed"] {
        let dir = directory();
        let mut command = with_task("protected_data::child", &format!("many {mode}"), dir.path());
        let output = command.output().expect("it runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{}", &said[said.len().saturating_sub(4000)..]);
        let told = lines(&said, "cenote: stray write at 0x");
        assert_eq!(told.len() as u64, STRAYS);
        assert!(told.iter().all(|line| line.contains("data of pool `p`")), "{}", told[0]);
        let described = lines(&said, "of type `protected_data::Cell`");
        assert_eq!(described.len() as u64, STRAYS, "{}", told[0]);
        assert!(described.iter().all(|line| line.contains("cenote: a store to byte ")
            && line.contains("of the block of ")
            && line.contains("in pool `p`")));
        let frames = lines(&said, " of the program");
        assert!(frames.len() >= 3 * 64, "{} lines of backtraces", frames.len());
    }
}

fn made(dir: &Path, mode: PoolMode) -> Result<()> {
    let store = Store::open(dir)?;
    let pool = store.create_pool("p", &PoolOptions { mode, ..options(HOUR) })?;
    push(&pool, 1)?;
    pool.write(|tx| {
        let page = tx.alloc(Page { words: [0; 512] })?;
        tx.set_root_at(1, Some(page))
    })?;
    if mode == PoolMode::Shadowed {
        pool.psync()?;
    }
    drop(pool);
    store.close()
}

#[test]
fn a_stray_store_ends_the_process_and_the_next_one_finds_what_was_committed() -> Result<()> {
    for mode in modes() {
        let dir = directory();
        made(dir.path(), mode)?;
        for number in 0..4 {
            let mut command =
                with_task("protected_data::child", &format!("stray {number}"), dir.path());
            let (status, said) = ended(&mut command);
            assert_eq!(status.signal(), Some(SIGSEGV), "{number}: {said}");
            assert!(said.contains("stray write at 0x"), "{said}");
            let of = if number == 0 { "Node" } else { "Page" };
            assert!(said.contains(&format!("of type `heap_kinds::{of}`")), "{said}");
            let store = Store::open(dir.path())?;
            let pool = store.pool("p")?;
            let found = values(&pool)?;
            assert_eq!(found.len() as u64, number + 2, "{found:?}");
            assert!(found[0] == 77 && found[1..].iter().all(|value| *value == 5), "{found:?}");
            assert_sound(&pool, number + 3);
            drop(pool);
            store.close()?;
        }
    }
    Ok(())
}

#[test]
fn a_planted_commit_that_keeps_its_pages_open_is_found() -> Result<()> {
    let dir = directory();
    made(dir.path(), PoolMode::Direct)?;
    let (status, said) = ended(&mut with_task("protected_data::child", "open 0", dir.path()));
    assert_eq!(status.signal(), None, "the stray write landed: {said}");
    let pool = Store::open(dir.path())?.pool("p")?;
    assert_eq!(values(&pool)?, [77, u64::MAX]);
    Ok(())
}

fn why<T: core::fmt::Debug>(refused: Result<T>) -> String {
    match refused {
        Err(Error::Store(StoreError::WriteProtected { what, .. })) => what.to_owned(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn what_is_not_done_is_a_typed_error() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let refused = |options| why(store.create_pool("p", &options));
    let usual = options(DataProtection::DEFERRED);
    let traced = PoolOptions { heap: HeapKind::Traced, ..usual.clone() };
    assert!(refused(traced).contains("a traced heap"));
    assert!(refused(PoolOptions { heap: HeapKind::WEAR, ..usual.clone() }).contains("a wear heap"));
    let (mode, at_rest) = (PoolMode::Shadowed, AtRest::Integrity);
    assert!(refused(PoolOptions { mode, at_rest, ..usual.clone() }).contains("at rest"));
    let long = DataProtection::Deferred { wait_ms: 60_001 };
    assert!(refused(options(long)).contains("more than a minute"));
    assert!(store.pools().is_empty());
    let pool = store.create_pool("p", &usual)?;
    assert!(why(pool.owner_liveness().map(drop)).contains("locks"));
    assert!(pool.unlogged().unwrap_err().to_string().contains("write-protected"));
    assert!(matches!(
        store.protect_pool("p", DataProtection::None),
        Err(Error::Store(StoreError::PoolInUse { .. }))
    ));
    drop(pool);
    let exported = store.export(&["p"], Vec::new(), ExportOptions::default());
    let told = exported.map(drop).expect_err("no archive says it").to_string();
    assert!(told.contains("an archive, which does not say so"), "{told}");
    store.protect_pool("p", DataProtection::None)?;
    store.export(&["p"], Vec::new(), ExportOptions::default()).expect("exported");
    drop(store.create_pool("traced", &PoolOptions::default())?);
    let refused = store.protect_pool("traced", DataProtection::DEFERRED);
    assert!(why(refused).contains("a traced heap"));
    Ok(())
}

#[test]
fn the_catalog_says_how_data_are_protected_and_copies_have_it() -> Result<()> {
    let dir = directory();
    let (how, other) = (DataProtection::Deferred { wait_ms: 7 }, DataProtection::Synchronous);
    {
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("p", &options(how))?;
        push(&pool, 1)?;
        assert_eq!(pool.data_protection(), how);
        drop(pool);
        store.clone_pool("p", "copy")?;
        drop(store.create_pool("plain", &options(DataProtection::None))?);
        store.protect_pool("plain", other)?;
        store.protect_pool("copy", other)?;
        store.protect_pool("copy", how)?;
        store.close()?;
    }
    let store = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    let found: Vec<_> =
        store.pools().into_iter().map(|pool| (pool.record.name, pool.protect)).collect();
    let named = |name: &str, how| (name.to_owned(), how);
    assert_eq!(found, [named("p", how), named("copy", how), named("plain", other)]);
    let pool = store.pool_with("p", Access::ReadOnly)?;
    assert_eq!((pool.data_protection(), values(&pool)?), (DataProtection::None, vec![1]));
    drop((pool, store));
    let store = Store::open(dir.path())?;
    let pool = store.pool("copy")?;
    assert_eq!(pool.data_protection(), how);
    push(&pool, 2)?;
    assert_eq!(values(&pool)?, [2, 1]);
    drop(pool);
    store.remove_pool("copy")?;
    // Its puddles serve another pool, which is not protected.
    let pool = store.create_pool("next", &options(DataProtection::None))?;
    (0..100).try_for_each(|value| push(&pool, value))?;
    assert_eq!(values(&pool)?.len(), 100);
    Ok(())
}

/// By batches of one transaction each, of which a batch of rights comes in the middle.
#[test]
fn a_pool_is_copied_into_one_whose_data_are_protected_and_backed_up() -> Result<()> {
    let dir = directory();
    let copy = dir.path().join("copy");
    let store = Store::open(dir.path().join("store"))?;
    let plain = store.create_pool("plain", &PoolOptions::default())?;
    (0..1000).try_for_each(|value| push(&plain, value))?;
    let how = DataProtection::Deferred { wait_ms: 0 };
    store.copy_pool("plain", "p", CopyOptions::new(options(how)))?;
    let pool = store.pool("p")?;
    assert_eq!((pool.data_protection(), values(&pool)?), (how, values(&plain)?));
    assert_sound(&pool, 1000);
    let _ = store.backup(&copy)?;
    push(&pool, 7)?;
    let again = Store::open(&copy)?.pool("p")?;
    assert_eq!((again.data_protection(), values(&again)?), (how, values(&plain)?));
    push(&again, 7)?;
    assert_eq!(values(&again)?, values(&pool)?);
    Ok(())
}

/// Opened and closed again and again in one process, beside threads that know its ranges.
#[test]
fn a_pool_that_is_closed_leaves_no_page_closed_and_no_thread() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let plain = store.create_pool("plain", &PoolOptions::default())?;
    drop(store.create_pool("p", &options(DataProtection::Deferred { wait_ms: 0 }))?);
    for round in 0..30 {
        let pool = store.pool("p")?;
        push(&pool, round)?;
        push(&plain, round)?;
        drop(pool);
    }
    assert_eq!((values(&plain)?.len(), values(&store.pool("p")?)?.len()), (30, 30));
    let threads = std::fs::read_dir("/proc/self/task").expect("threads");
    let name = |entry: std::fs::DirEntry| std::fs::read_to_string(entry.path().join("comm"));
    let names: Vec<String> = threads.flatten().flat_map(name).collect();
    let ours = names.iter().filter(|name| name.trim() == "cenote-protect").count();
    // Other tests have pools open too.
    assert!(ours < 20, "{ours} threads");
    Ok(())
}

/// A simulated medium keeps what it maps by itself.
#[test]
fn power_and_process_levels_are_alike() -> Result<()> {
    let dir = directory();
    let options_of = MediumOptions { create: true, force_power: true, ..MediumOptions::default() };
    let medium = std::sync::Arc::new(RealMedium::open(dir.path(), &options_of).expect("a medium"));
    cenote_store::format(medium.clone(), &cenote_store::FormatOptions::default())
        .expect("a format");
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.create_pool("p", &options(DataProtection::Deferred { wait_ms: 0 }))?;
    (0..300).try_for_each(|value| push(&pool, value))?;
    assert_eq!(values(&pool)?.len(), 300);
    assert_sound(&pool, 300);
    Ok(())
}

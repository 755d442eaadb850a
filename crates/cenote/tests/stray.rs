//! Stray writes into logs, log space and roots find them read-only: the process ends, and the store
//! is as it was. Transactions write them all the same, and take them back.

use cenote::{
    AtRest, Error, HeapKind, OpenOptions, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader,
    Result, Store, Tx,
};
use cenote_layout::heap::HeapGeometry;
use cenote_medium::planted::{Bug, GuardBug, plant};
use cenote_testkit::child::{ended, task, with_task};
use cenote_testkit::directories::directory;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};

const SIGSEGV: i32 = 11;
const PAGE: usize = 4096;
const PUDDLE: u64 = 1 << 20;
const LOG: u64 = 16 << 10;
const SPACE: usize = 64 << 10;
/// Second mappings lie above.
const WINDOWS_END: usize = 0x5800_0000_0000;

#[derive(Persist)]
#[persist(name = "stray::Node")]
struct Node {
    stamps: [u64; 40],
    next: Option<Ptr<Node>>,
}

fn options(guards: bool) -> OpenOptions {
    OpenOptions { spare_bytes_max: 0, log_puddle_size: LOG, guards, ..OpenOptions::default() }
}

fn open(dir: &Path) -> (Store, Pool) {
    let store = Store::open_with(dir, &options(true)).expect("a store");
    let pool = store.pool("p").expect("a pool");
    (store, pool)
}

fn make(dir: &Path) {
    make_as(dir, PoolOptions::default());
}

/// A store with a pool of that kind.
fn make_as(dir: &Path, kind: PoolOptions) {
    drop(Store::open(dir).expect("a new store"));
    let store = Store::open_with(dir, &options(true)).expect("a store");
    let options = PoolOptions { puddle_size: PUDDLE, ..kind };
    let pool = store.create_pool("p", &options).expect("a pool");
    let fill = |tx: &mut Tx<'_>| {
        let mut next = None;
        for _ in 0..40 {
            next = Some(tx.alloc(Node { stamps: [1; 40], next })?);
        }
        tx.set_root_at(0, next)
    };
    pool.write(fill).expect("filled");
}

/// Changes all nodes, more than one segment of a log has room for.
fn change(tx: &mut Tx<'_>, to: u64) -> Result<()> {
    let mut next = tx.root_at::<Node>(0)?;
    while let Some(at) = next {
        let node = tx.get_mut(at)?;
        (node.stamps, next) = ([to; 40], node.next);
    }
    Ok(())
}

/// The stamp of all nodes.
fn stamp(pool: &Pool) -> u64 {
    let view = pool.read().expect("a view");
    let (mut next, mut seen) = (view.root_at::<Node>(0).expect("a root"), Vec::new());
    while let Some(at) = next {
        let node = view.get(at).expect("a node");
        seen.extend(node.stamps);
        next = node.next;
    }
    assert_eq!(seen.len(), 40 * 40);
    assert!(seen.iter().all(|one| *one == seen[0]), "half a transaction");
    seen[0]
}

/// What is mapped of puddles: file, first address, bytes, rights.
fn mapped(dir: &Path) -> Vec<(PathBuf, usize, usize, String)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let puddles = dir.join("puddles");
    let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
    let parsed = maps.lines().filter_map(|line| {
        let file = PathBuf::from(&line[line.find('/')?..]);
        let mut words = line.split(' ');
        let (from, to) = words.next()?.split_once('-')?;
        let rights = words.next()?.to_owned();
        let (from, to) = (number(from), number(to));
        file.starts_with(&puddles).then_some((file, from, to - from, rights))
    });
    parsed.collect()
}

fn is_log(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.len() != PUDDLE)
}

#[test]
fn logs_are_read_only_at_their_addresses_and_written_elsewhere() {
    let dir = directory();
    let dir = dir.path().join("store");
    make(&dir);
    let (store, pool) = open(&dir);
    for to in 2..5 {
        pool.write(|tx| change(tx, to)).expect("changed");
        let failed: Result<()> = pool.write(|tx| {
            change(tx, 100)?;
            Err(Error::OutOfBounds { index: 0, len: 0 })
        });
        assert!(failed.is_err());
        assert_eq!(stamp(&pool), to);
    }
    let logs: Vec<_> = mapped(&dir).into_iter().filter(|(file, ..)| is_log(file)).collect();
    let (at, second): (Vec<_>, Vec<_>) =
        logs.into_iter().partition(|(_, at, ..)| *at < WINDOWS_END);
    assert!(at.len() > 2 && at.len() == second.len(), "{at:?} {second:?}");
    assert!(at.iter().any(|(_, _, len, _)| *len == SPACE));
    assert!(at.iter().all(|(.., rights)| rights == "r--s"), "{at:?}");
    assert!(second.iter().all(|(.., rights)| rights == "rw-s"), "{second:?}");
    drop(pool);
    store.close().expect("closed");
    assert!(mapped(&dir).is_empty());
}

#[test]
fn a_store_without_guards_has_one_mapping_of_each_log() {
    let dir = directory();
    let dir = dir.path().join("store");
    make(&dir);
    let store = Store::open_with(&dir, &options(false)).expect("a store");
    let pool = store.pool("p").expect("a pool");
    pool.write(|tx| change(tx, 2)).expect("changed");
    assert!(mapped(&dir).iter().all(|(_, at, _, rights)| *at < WINDOWS_END && rights == "rw-s"));
    assert_eq!(stamp(&pool), 2);
}

/// Where a child stores: a place in a log, in the log space, or in the root that it sets.
fn place(dir: &Path, number: usize) -> usize {
    let mut logs: Vec<_> = mapped(dir)
        .into_iter()
        .filter(|(file, at, ..)| is_log(file) && *at < WINDOWS_END)
        .collect();
    logs.sort_by_key(|(_, _, len, _)| *len);
    let find = |len: usize| logs.iter().find(|log| log.2 == len).expect("a log").1;
    let (log, segment, space) = (find(LOG as usize), find(2 * LOG as usize), find(SPACE));
    let body = log + PAGE;
    match number {
        // Header of the puddle; of the log; its range; its first entry.
        0 => log + 8,
        1 => body + 16,
        2 => body + 128,
        3 => body + 256,
        // A further segment.
        4 => segment + PAGE + 256,
        // The log space: its header, its first entry, and the free one behind the last.
        5 => space + PAGE + 16,
        6 => space + PAGE + 128,
        7 => space + PAGE + 40 * 64,
        _ => {
            let pool = mapped(dir).into_iter().find(|(file, ..)| !is_log(file)).expect("a pool").1;
            pool + HeapGeometry::new(PUDDLE, true).expect("a geometry").roots as usize
        }
    }
}

/// Not a test of its own: a child that stores into what it should not, in a transaction.
#[test]
fn child() {
    let Some((task, dir)) = task() else { return };
    let (what, number) = task.split_once(' ').expect("two words");
    plant(match what {
        "logs" => Bug::Guard(GuardBug::LogsOpen),
        "root" => Bug::Guard(GuardBug::RootRestoredOpenly),
        _ => Bug::None,
    });
    let (_store, pool) = open(&dir);
    let ended: Result<()> = pool.write(|tx| {
        tx.set_root_at::<Node>(1, tx.root_at::<Node>(0)?)?;
        change(tx, 7)?;
        if let Ok(number) = number.parse() {
            let word = core::ptr::with_exposed_provenance_mut::<u64>(place(&dir, number));
            // SAFETY: a word of a mapped log, which no code of this thread uses now; the store
            // faults, or damages the log.
            unsafe { word.write_volatile(1) };
        }
        Err(Error::OutOfBounds { index: 0, len: 0 })
    });
    assert!(ended.is_err());
    let view = pool.read().expect("a view");
    assert!(view.root_at::<Node>(1).expect("a root").is_none(), "the root is back");
}

fn run(dir: &Path, what: &str, number: &str) -> (Option<i32>, String) {
    let task = format!("{what} {number}");
    let (status, said) = ended(&mut with_task("stray::child", &task, dir));
    (status.signal(), said)
}

#[test]
fn a_stray_store_kills_its_process_and_its_transaction_is_rolled_back() {
    let dir = directory();
    let dir = dir.path().join("store");
    make(&dir);
    for number in 0..9 {
        let (signal, said) = run(&dir, "none", &number.to_string());
        assert_eq!(signal, Some(SIGSEGV), "{number}: {said}");
        assert!(said.contains("cenote: stray write at 0x"), "{said}");
        let what = if number < 8 { "a log of session " } else { "metadata of pool `p`" };
        assert!(said.contains(what), "{said}");
        let (store, pool) = open(&dir);
        let report = pool.check().expect("a report");
        assert!(report.damage.is_empty() && report.dangling.is_empty(), "{report:?}");
        assert_eq!(stamp(&pool), 1);
        let view = pool.read().expect("a view");
        assert!(view.root_at::<Node>(1).expect("a root").is_none());
        view.finish().expect("finished");
        drop(pool);
        store.close().expect("closed");
    }
}

/// Pools whose roots are guarded.
fn guarded_kinds() -> [PoolOptions; 5] {
    let kind = |mode, heap, at_rest| PoolOptions { mode, heap, at_rest, ..PoolOptions::default() };
    [
        kind(PoolMode::Direct, HeapKind::Traced, AtRest::None),
        kind(PoolMode::Shadowed, HeapKind::Traced, AtRest::None),
        kind(PoolMode::Direct, HeapKind::Logged, AtRest::None),
        kind(PoolMode::Shadowed, HeapKind::Logged, AtRest::None),
        kind(PoolMode::Shadowed, HeapKind::Logged, AtRest::Integrity),
    ]
}

#[test]
fn an_abort_takes_roots_back() {
    for kind in guarded_kinds() {
        let dir = directory();
        let dir = dir.path().join("store");
        make_as(&dir, kind);
        let (signal, said) = run(&dir, "none", "-");
        assert_eq!(signal, None, "{said}");
        assert!(said.contains("test result: ok"), "{said}");
        let (_store, pool) = open(&dir);
        assert_eq!(stamp(&pool), 1);
    }
}

#[test]
fn a_planted_abort_that_stores_at_the_roots_address_is_found() {
    for kind in guarded_kinds() {
        let dir = directory();
        let dir = dir.path().join("store");
        make_as(&dir, kind);
        let (signal, said) = run(&dir, "root", "-");
        assert_eq!(signal, Some(SIGSEGV), "{said}");
        assert!(said.contains("metadata of pool `p`"), "{said}");
        // The next session does what the abort did not.
        let (_store, pool) = open(&dir);
        assert_eq!(stamp(&pool), 1);
    }
}

#[test]
fn planted_logs_that_stay_writable_are_found() {
    let dir = directory();
    let dir = dir.path().join("store");
    make(&dir);
    // The free entry of the log space: no code minds it.
    let (signal, said) = run(&dir, "logs", "7");
    assert_eq!(signal, None, "{said}");
}

//! A page of a log that is lost while its store is open, each page in turn, at each moment of each
//! kind of transaction, its commit and its abort, and of the replay of the next session: the
//! process survives, nothing is acknowledged that the next session does not find, and no half of a
//! transaction is shown.
//!
//! A child does it, because what is tested is that no signal ends it. It loses a page by mapping a
//! file without bytes over it: an access is `SIGBUS`, as where a device fails. The log's file keeps
//! what it had until then. A second way cuts the files short.

use cenote::{
    Error, OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader, Result, Store, Tx, field,
};
use cenote_medium::planted::{Bug, Step, plant, watch};
use cenote_store::StoreError;
use cenote_testkit::child::{run_task, task};
use cenote_testkit::environment::stride;
use std::cell::Cell;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

mod ends;

use ends::{after_the_end, end_within, lose_and_end, replays, wait_for_it};

const PAGE: usize = 4096;
const PUDDLE: u64 = 1 << 20;
const LOG: u64 = 16 << 10;
/// So many that one transaction on all needs further segments.
const NODES: usize = 40;

#[derive(Persist)]
#[persist(name = "lost_log::Node")]
struct Node {
    stamps: [u64; 40],
    next: Option<Ptr<Node>>,
}

/// Where in a transaction the page is lost: before it, in its body, and in what follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Moment {
    Before,
    Begun,
    Changed,
    Done,
    At(Step),
}

const MOMENTS: [Moment; 8] = [
    Moment::Before,
    Moment::Begun,
    Moment::Changed,
    Moment::Done,
    Moment::At(Step::CommitBegun),
    Moment::At(Step::CommitStored),
    Moment::At(Step::CommitEnds),
    Moment::At(Step::AbortBegun),
];

type At<'a> = &'a dyn Fn(Moment);
type Body = fn(&mut Tx<'_>, At<'_>) -> Result<()>;

fn is_lost(error: &Error) -> bool {
    matches!(error, Error::Store(StoreError::LogLost { .. }))
}

fn nodes(tx: &Tx<'_>, root: u16) -> Result<Vec<Ptr<Node>>> {
    let (mut all, mut next) = (Vec::new(), tx.root_at::<Node>(root)?);
    while let Some(at) = next {
        all.push(at);
        next = tx.get(at)?.next;
    }
    Ok(all)
}

/// The stamps of the long list and of the pair.
fn held(pool: &Pool) -> Result<(u64, u64)> {
    let view = pool.read()?;
    let stamp = |root: u16, count: usize| {
        let (mut stamps, mut next) = (Vec::new(), view.root_at::<Node>(root)?);
        while let Some(at) = next {
            let node = view.get(at)?;
            stamps.extend_from_slice(&node.stamps);
            next = node.next;
        }
        let other = stamps.iter().find(|stamp| **stamp != stamps[0]);
        assert!(other.is_none(), "half a transaction: {other:?} beside {}", stamps[0]);
        assert_eq!(stamps.len(), count * 40, "half a transaction");
        Ok::<_, Error>(stamps[0])
    };
    let found = (stamp(0, NODES)?, stamp(1, 2)?);
    view.finish()?;
    Ok(found)
}

fn change(tx: &mut Tx<'_>, root: u16, at: At<'_>) -> Result<()> {
    for (number, node) in nodes(tx, root)?.into_iter().enumerate() {
        let node = tx.get_mut(node)?;
        node.stamps = [node.stamps[0] + 1; 40];
        if number == 0 {
            at(Moment::Changed);
        }
    }
    Ok(())
}

/// More than a segment has room for.
fn all(tx: &mut Tx<'_>, at: At<'_>) -> Result<()> {
    change(tx, 0, at)
}

fn pair(tx: &mut Tx<'_>, at: At<'_>) -> Result<()> {
    change(tx, 1, at)
}

fn words(tx: &mut Tx<'_>, at: At<'_>) -> Result<()> {
    for (number, node) in nodes(tx, 1)?.into_iter().enumerate() {
        let stamp = tx.get(node)?.stamps[0] + 1;
        tx.set(node, field!(Node, stamps), [stamp; 40])?;
        if number == 0 {
            at(Moment::Changed);
        }
    }
    Ok(())
}

/// At commit.
fn deferred(tx: &mut Tx<'_>, at: At<'_>) -> Result<()> {
    for (number, node) in nodes(tx, 1)?.into_iter().enumerate() {
        let stamps = [tx.get(node)?.stamps[0] + 1; 40];
        // SAFETY: the stamps of a live node, which come first in no other order of fields than
        // `field!` says; nothing else refers to them.
        unsafe {
            let place = (&raw const tx.get(node)?.stamps).cast_mut();
            tx.raw().set(place.cast(), stamps.as_ptr().cast(), 320).map_err(Error::from)?;
        }
        if number == 0 {
            at(Moment::Changed);
        }
    }
    Ok(())
}

/// Frees the pair, and takes another.
fn fresh(tx: &mut Tx<'_>, at: At<'_>) -> Result<()> {
    let old = nodes(tx, 1)?;
    let stamps = [tx.get(old[0])?.stamps[0] + 1; 40];
    let mut next = None;
    for node in old {
        next = Some(tx.alloc(Node { stamps, next })?);
        tx.free(node)?;
        at(Moment::Changed);
    }
    tx.set_root_at(1, next)
}

const BODIES: [(&str, Body); 5] =
    [("all", all), ("pair", pair), ("words", words), ("deferred", deferred), ("fresh", fresh)];

fn options() -> OpenOptions {
    OpenOptions { spare_bytes_max: 0, log_puddle_size: LOG, ..OpenOptions::default() }
}

fn open(dir: &Path) -> (Store, Pool) {
    let store = Store::open_with(dir, &options()).expect("a store");
    let pool = store.pool("p").expect("a pool");
    (store, pool)
}

fn make(dir: &Path) {
    drop(Store::open(dir).expect("a new store"));
    let store = Store::open_with(dir, &options()).expect("a store");
    let options = PoolOptions { puddle_size: PUDDLE, ..PoolOptions::default() };
    let pool = store.create_pool("p", &options).expect("a pool");
    let fill = |tx: &mut Tx<'_>, root: u16, count: usize| {
        let mut next = None;
        for _ in 0..count {
            next = Some(tx.alloc(Node { stamps: [1; 40], next })?);
        }
        tx.set_root_at(root, next)
    };
    let filled: Result<()> = pool.write(|tx| fill(tx, 0, NODES).and_then(|()| fill(tx, 1, 2)));
    filled.expect("filled");
    drop(pool);
    store.close().expect("closed");
}

fn is_pool(file: &Path) -> bool {
    file.metadata().is_ok_and(|file| file.len() == PUDDLE)
}

/// The files of logs that are mapped, and where.
fn logs(dir: &Path) -> Vec<(PathBuf, usize, usize)> {
    mapped(dir).into_iter().filter(|(file, ..)| !is_pool(file)).collect()
}

/// The files of puddles that are mapped, and where.
fn mapped(dir: &Path) -> Vec<(PathBuf, usize, usize)> {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("maps");
    let puddles = dir.join("puddles");
    let mut found = Vec::new();
    for line in maps.lines() {
        let Some(at) = line.find('/').filter(|at| Path::new(&line[*at..]).starts_with(&puddles))
        else {
            continue;
        };
        let file = PathBuf::from(&line[at..]);
        let range = line.split(' ').next().and_then(|range| range.split_once('-'));
        let (from, to) = range.expect("a range");
        let number = |text: &str| usize::from_str_radix(text, 16).expect("an address");
        found.push((file, number(from), number(to) - number(from)));
    }
    found.sort();
    found
}

/// Loses a page.
fn lose(addr: usize) {
    // SAFETY: a page of the store's window, which nothing but the library uses.
    unsafe { cenote_testkit::lost::lose(addr) };
}

/// Pages of the logs that this thread uses: few of the log space, which is large.
fn pages(dir: &Path) -> Vec<usize> {
    let mut pages = Vec::new();
    for (_, addr, len) in logs(dir) {
        let few = if len == 64 << 10 { 3 } else { len / PAGE };
        pages.extend((0..few).map(|page| addr + page * PAGE));
    }
    pages
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

    fn chooses(&mut self) -> bool {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        std::env::var_os("CENOTE_ALL").is_some() || (self.0 >> 33).is_multiple_of(stride(8).min(20))
    }
}

/// What is done, and when a page goes.
#[derive(Clone, Copy)]
struct Case {
    body: Body,
    aborts: bool,
    /// The number of the page, and the moment.
    lost: (usize, Moment),
    /// All of the file from that page on.
    cut: bool,
}

/// One transaction, in a session of its own. Whether the loss was noticed; `None`: there is no such
/// page.
fn case(dir: &Path, case: Case) -> Option<bool> {
    let (store, pool) = open(dir);
    // The log has its further segments.
    pool.write(|tx| all(tx, &|_| ())).expect("changed");
    let before = held(&pool).expect("whole");
    let stamps = stamps(dir, &pool);
    let (number, moment) = case.lost;
    let page = *pages(dir).get(number)?;
    let is_there = Rc::new(Cell::new(true));
    let lose_now = {
        let (is_there, dir) = (Rc::clone(&is_there), dir.to_path_buf());
        move || {
            if !is_there.replace(false) {
                return;
            }
            if !case.cut {
                return lose(page);
            }
            for (file, addr, len) in logs(&dir) {
                if (addr..addr + len).contains(&page) {
                    let file = std::fs::File::options().write(true).open(file).expect("a log");
                    file.set_len((page - addr) as u64).expect("cut short");
                }
            }
        }
    };
    let at = |now: Moment| {
        if now == moment {
            lose_now();
        }
    };
    let hears = lose_now.clone();
    watch(Some(Box::new(move |step| {
        if Moment::At(step) == moment {
            hears();
        }
    })));
    at(Moment::Before);
    let done: Result<()> = pool.write(|tx| {
        at(Moment::Begun);
        (case.body)(tx, &at)?;
        at(Moment::Done);
        if case.aborts { Err(Error::OutOfBounds { index: 0, len: 0 }) } else { Ok(()) }
    });
    watch(None);
    let usable = pool.write(|tx| tx.root_at::<Node>(0).map(drop));
    let now = held(&pool);
    match (&usable, &now) {
        (Ok(()), now) => assert!(now.is_ok() && (done.is_ok() || case.aborts), "{done:?} {now:?}"),
        (Err(later), Ok(_)) => panic!("values are shown: {later}"),
        (Err(later), Err(read)) => assert!(is_lost(later) && is_lost(read), "{later} {read}"),
    }
    drop(pool);
    let closed = store.close();
    assert_eq!(closed.is_err(), usable.is_err(), "{closed:?}");
    let noticed = usable.is_err();
    if case.cut && !is_there.get() {
        after_the_cut(dir, before, noticed, &stamps);
        return Some(noticed);
    }
    next_session(dir, before, case.aborts, done.is_ok());
    Some(noticed)
}

/// What the next session finds.
fn next_session(dir: &Path, before: (u64, u64), aborts: bool, done: bool) {
    let (store, pool) = open(dir);
    let report = pool.check().expect("a report");
    assert!(report.damage.is_empty() && report.dangling.is_empty(), "{report:?}");
    let after = held(&pool).expect("whole");
    let changed = after == (before.0 + 1, before.1) || after == (before.0, before.1 + 1);
    if done {
        assert!(changed && !aborts, "what was acknowledged is not there");
    } else {
        assert!(after == before || changed && !aborts, "{before:?} {after:?}");
    }
    drop(pool);
    store.close().expect("closed");
}

/// After a log is gone, its pool is refused, or whole. A caller that opens it as torn finds old and
/// new values, and nothing else.
fn after_the_cut(dir: &Path, before: (u64, u64), noticed: bool, stamps: &Stamps) {
    let store = Store::open_with(dir, &options()).expect("a store");
    match store.pool("p").and_then(|pool| held(&pool)) {
        Ok(found) => assert!(found.0 - before.0 + found.1 - before.1 <= 1, "{before:?} {found:?}"),
        Err(error) => assert!(noticed, "{error}"),
    }
    for aside in store.undecided_logs().expect("listed") {
        store.discard_logs(aside.client).expect("discarded");
    }
    store.close().expect("closed");
    no_zeros(stamps, before);
}

/// No part of a node says anything but a stamp that it had.
fn no_zeros((path, places): &Stamps, before: (u64, u64)) {
    let file = std::fs::File::open(path).expect("the pool");
    for place in places {
        let mut bytes = [0; 320];
        file.read_exact_at(&mut bytes, *place).expect("read");
        let words = bytes.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word));
        let known =
            |word: &u64| word.wrapping_sub(before.0) <= 1 || word.wrapping_sub(before.1) <= 1;
        let other: Vec<u64> = words.filter(|word| !known(word)).collect();
        assert!(other.is_empty(), "zeros beside stamps: {other:?}");
    }
}

/// The pool's file, and where in it stamps are.
type Stamps = (PathBuf, Vec<u64>);

fn stamps(dir: &Path, pool: &Pool) -> Stamps {
    let (file, base, _) =
        mapped(dir).into_iter().find(|(file, ..)| is_pool(file)).expect("the pool");
    let view = pool.read().expect("whole");
    let mut places = Vec::new();
    for root in 0..2 {
        let mut next = view.root_at::<Node>(root).expect("a root");
        while let Some(at) = next {
            let node = view.get(at).expect("a node");
            places.push(((&raw const node.stamps).addr() - base) as u64);
            next = node.next;
        }
    }
    (file, places)
}

fn all_cases(dir: &Path, cut: bool) {
    let (mut random, mut noticed, mut tried) = (Random::new(), 0, 0);
    for (name, body) in BODIES {
        for aborts in [false, true] {
            for moment in MOMENTS {
                for page in 0.. {
                    if !random.chooses() {
                        if page > 20 {
                            break;
                        }
                        continue;
                    }
                    println!("{name}, aborts: {aborts}, {moment:?}, page {page}, cut: {cut}");
                    // A cut store stays cut.
                    let dir = if cut { dir.join(tried.to_string()) } else { dir.to_path_buf() };
                    if !dir.exists() {
                        make(&dir);
                    }
                    let lost = (page, moment);
                    let Some(was) = case(&dir, Case { body, aborts, lost, cut }) else { break };
                    noticed += u64::from(was);
                    tried += 1;
                }
            }
        }
    }
    println!("{noticed} of {tried} were noticed");
    assert!(noticed > 0 && noticed < tried, "{noticed} of {tried}");
}

fn run(what: &str) -> (bool, String) {
    let outer = tempfile::tempdir().expect("a directory");
    run_task("lost_log::child", what, outer.path())
}

/// Each page, at the moments that tell most first, of what finds a bug.
fn planted_bug(dir: &Path, bug: Bug, cut: bool) {
    make(dir);
    let moments = [
        (true, Moment::At(Step::AbortBegun)),
        (false, Moment::Done),
        (true, Moment::Changed),
        (false, Moment::At(Step::CommitStored)),
        (false, Moment::At(Step::CommitEnds)),
        (true, Moment::Begun),
    ];
    let mut tried = 0;
    for (name, body) in [("pair", pair as Body), ("deferred", deferred), ("fresh", fresh)] {
        'pages: for page in 0.. {
            for (aborts, moment) in moments {
                println!("{name}, aborts: {aborts}, {moment:?}, page {page}");
                tried += 1;
                let dir = if cut { dir.join(tried.to_string()) } else { dir.to_path_buf() };
                if cut {
                    make(&dir);
                }
                plant(bug);
                let case = case(&dir, Case { body, aborts, lost: (page, moment), cut });
                plant(Bug::None);
                if case.is_none() {
                    break 'pages;
                }
            }
        }
    }
}

/// Not a test of its own: what a child does.
#[test]
fn child() {
    let Some((what, dir)) = task() else { return };
    let dir = dir.as_path();
    match what.as_str() {
        "lost" => all_cases(dir, false),
        "cut" => {
            std::fs::create_dir(dir).expect("a directory");
            all_cases(dir, true);
        }
        "ends" => end_within(dir),
        "replays" => replays(dir),
        "believed" => {
            plant(Bug::LostReplayBelieved);
            replays(dir);
        }
        "asked" | "unasked" => wait_for_it(dir),
        "unwritten" => after_the_end(dir, "loses"),
        "written" => after_the_end(dir, "loses, and writes"),
        "loses" => lose_and_end(dir, Bug::None),
        "loses, and writes" => lose_and_end(dir, Bug::LostLogWritten),
        "unpoisoned" => planted_bug(dir, Bug::LostLogNotPoisoned, false),
        "read" => planted_bug(dir, Bug::LostLogRead, false),
        "restored" => planted_bug(dir, Bug::LostLogRestored, true),
        other => panic!("{other}"),
    }
}

#[test]
fn a_page_of_a_log_that_is_lost_at_any_moment_of_a_transaction_ends_no_process_and_no_promise() {
    let (done, said) = run("lost");
    assert!(done, "{said}");
}

#[test]
fn a_log_that_is_cut_short_at_any_moment_of_a_transaction_is_an_error() {
    let (done, said) = run("cut");
    assert!(done, "{said}");
}

#[test]
fn a_page_that_is_lost_while_a_log_is_replayed_leaves_the_log_to_the_next_session() {
    let (done, said) = run("replays");
    assert!(done, "{said}");
}

#[test]
fn no_value_changes_whose_entry_went_to_a_page_that_is_lost() {
    let (done, said) = run("unwritten");
    assert!(done, "{said}");
}

#[test]
fn a_transaction_that_waits_for_one_that_loses_its_log_does_not_begin() {
    let (done, said) = run("asked");
    assert!(done, "{said}");
}

/// The child dies of what it finds, one of these, and not of the bug.
fn is_found(what: &str, findings: &[&str]) {
    let (done, said) = run(what);
    assert!(!done && findings.iter().any(|finding| said.contains(finding)), "{said}");
}

#[test]
fn a_transaction_that_goes_on_without_its_log_is_found() {
    is_found("written", &["half a transaction"]);
}

#[test]
fn a_store_that_goes_on_after_it_lost_a_page_of_a_log_is_found() {
    is_found("unpoisoned", &["what was acknowledged is not there", "half a transaction"]);
}

#[test]
fn half_a_transaction_that_is_shown_is_found() {
    is_found("read", &["half a transaction", "values are shown"]);
}

#[test]
fn what_stands_in_the_place_of_a_page_of_a_log_and_gets_into_the_data_is_found() {
    is_found("restored", &["zeros beside stamps"]);
}

#[test]
fn a_replay_that_believes_what_took_the_place_of_a_page_is_found() {
    is_found("believed", &["half a transaction", "a page that was lost is believed"]);
}

#[test]
fn a_transaction_that_begins_on_what_one_left_in_its_log_is_found() {
    is_found("unasked", &["a transaction began on what one had left"]);
}

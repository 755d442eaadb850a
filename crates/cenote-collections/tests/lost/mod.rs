//! A page that cannot be read, each page of a pool in turn, under every operation of every
//! collection: the process survives, and the caller gets an error or the right answer.
//!
//! A child does it, because what is tested is that no signal ends it. It has two ways to lose a
//! page: it makes the page inaccessible while the pool is open, or it harms the page of a protected
//! pool's file before the pool is opened. An operation was done before on the whole pool, so its
//! right answer is known. One that changes something is given up after it has answered; then all
//! values are what they were.

mod operations;

use crate::common::directory;
use cenote::{
    Access, AtRest, Error, OpenOptions, Pool, PoolMode, PoolOptions, Reader, Result, Store,
};
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use cenote_testkit::child::{run_task, task};
use operations::{All, changes, fill, reads};
use std::collections::BTreeSet;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::string::String;

const PAGE: u64 = 4096;

/// What an operation came to.
#[derive(Debug, PartialEq, Eq)]
enum FoundAnswer {
    /// All that the pool holds of it.
    Answer(String),
    /// The page cannot be read.
    Lost,
    /// There is no such operation.
    NoneLeft,
}

/// Whether an error says what was done to the page.
fn is_of_page(error: &Error) -> bool {
    use StoreError::{MetadataLost, Sealed, Unreadable};
    matches!(error, Error::Store(Unreadable { .. } | Sealed { .. } | MetadataLost(_)))
}

fn found(what: &str, result: Option<Result<String>>) -> FoundAnswer {
    match result {
        None => FoundAnswer::NoneLeft,
        Some(Ok(answer)) => FoundAnswer::Answer(answer),
        Some(Err(error)) if is_of_page(&error) => FoundAnswer::Lost,
        Some(Err(error)) => panic!("{what}: {error}"),
    }
}

/// Operation `number` that reads, in a view.
fn in_view(pool: &Pool, number: usize) -> FoundAnswer {
    let view = match pool.read() {
        Ok(view) => view,
        Err(error) => return found("a view", Some(Err(error))),
    };
    let result = roots(&view).and_then(|all| reads(&view, &all, number).transpose());
    match (found(&format!("read {number}"), result.transpose()), view.finish()) {
        (FoundAnswer::Answer(answer), Ok(())) => FoundAnswer::Answer(answer),
        (FoundAnswer::NoneLeft, Ok(())) => FoundAnswer::NoneLeft,
        (_, Err(error)) if !is_of_page(&error) => panic!("read {number}: {error}"),
        _ => FoundAnswer::Lost,
    }
}

/// The same in a transaction, which commits.
fn in_transaction(pool: &Pool, number: usize) -> FoundAnswer {
    let done = pool.write(|tx| -> Result<_> { reads(tx, &roots(tx)?, number).transpose() });
    found(&format!("read {number} of a transaction"), done.transpose())
}

/// Operation `number` that changes something, and is given up.
fn changing(pool: &Pool, number: usize) -> FoundAnswer {
    /// Why the transaction is given up: its answer, or what failed.
    struct Stop(Option<Result<String>>);
    impl From<Error> for Stop {
        fn from(error: Error) -> Self {
            Self(Some(Err(error)))
        }
    }
    let done = pool.write(|tx| -> Result<(), Stop> {
        let all = roots(tx)?;
        let answer = changes(tx, &all, number);
        // One that commits would be told at its end.
        let is_lost = tx.faults().first().is_some();
        match answer {
            Some(Ok(_)) if is_lost => Err(Stop(Some(Ok("LOST".into())))),
            answer => Err(Stop(answer)),
        }
    });
    let Err(Stop(result)) = done else { panic!("change {number} was not given up") };
    match found(&format!("change {number}"), result) {
        FoundAnswer::Answer(answer) if answer == "LOST" => FoundAnswer::Lost,
        found => found,
    }
}

fn roots(reader: &impl Reader) -> Result<All> {
    Ok(*reader.get(reader.root::<All>()?.expect("a root"))?)
}

type Operation = fn(&Pool, usize) -> FoundAnswer;
const KINDS: [(&str, Operation); 3] =
    [("view", in_view), ("transaction", in_transaction), ("change", changing)];

/// Every operation with its answer.
fn answers(pool: &Pool) -> Vec<(&'static str, Operation, usize, FoundAnswer)> {
    let mut all = Vec::new();
    for (kind, operation) in KINDS {
        for number in 0.. {
            match operation(pool, number) {
                FoundAnswer::NoneLeft => break,
                FoundAnswer::Lost => panic!("{kind} {number}: the pool is whole"),
                answer => all.push((kind, operation, number, answer)),
            }
        }
    }
    assert!(all.len() > 100, "{}", all.len());
    all
}

/// Pages with blocks, and one behind each of them, where new blocks may come.
fn pages(pool: &Pool) -> BTreeSet<u64> {
    let mut pages = BTreeSet::new();
    pool.heap()
        .walk(&mut |block| {
            pages.extend((block.addr..block.addr + block.size).step_by(16).map(|addr| addr / PAGE));
        })
        .expect("mapped");
    let behind: Vec<u64> =
        pages.iter().map(|page| page + 1).filter(|page| page % 16 != 0).collect();
    pages.extend(behind);
    pages
}

/// One in how many cases is tried: all of them take a minute.
fn one_in() -> u64 {
    if std::env::var_os("CENOTE_ALL").is_some() { 1 } else { 6 }
}

fn seeded() -> impl FnMut() -> bool {
    let seed = std::env::var("CENOTE_SEED").ok().and_then(|seed| seed.parse().ok());
    let mut random: u64 = seed.unwrap_or(1);
    println!("CENOTE_SEED={random}, CENOTE_ALL=1 for all");
    move || crate::common::random(&mut random).is_multiple_of(one_in())
}

/// Makes pages inaccessible while the pool is open.
fn while_open(dir: &Path) {
    let store = Store::open(dir).expect("a store");
    let pool = store.pool("p").expect("a pool");
    pool.write(fill).expect("filled");
    let (expected, mut chosen) = (answers(&pool), seeded());
    let protect = |page: u64, access| {
        let addr = core::ptr::without_provenance_mut((page * PAGE) as usize);
        // SAFETY: a page of the store's window, which is made accessible again below.
        assert_eq!(unsafe { libc::mprotect(addr, PAGE as usize, access) }, 0);
    };
    let (mut lost, mut right) = (0, 0);
    for page in pages(&pool) {
        for (kind, operation, number, answer) in &expected {
            if !chosen() {
                continue;
            }
            println!("page {page:#x}, {kind} {number}");
            protect(page, libc::PROT_NONE);
            let found = operation(&pool, *number);
            protect(page, libc::PROT_READ | libc::PROT_WRITE);
            match found {
                FoundAnswer::Lost => lost += 1,
                found => {
                    assert!(found == *answer, "page {page:#x}, {kind} {number}: another answer");
                    right += 1;
                }
            }
        }
    }
    for (kind, operation, number, answer) in &expected {
        assert!(operation(&pool, *number) == *answer, "{kind} {number}: something was changed");
    }
    println!("{lost} were told, {right} were right");
    assert!(lost > 50 && right > 50, "{lost} {right}");
    let report = pool.check().expect("a report");
    assert!(report.is_sound(), "{report:?}");
}

fn open_protected(dir: &Path) -> (Store, Result<Pool>) {
    let mut key: [u8; 32] = core::array::from_fn(|i| (i as u8).wrapping_mul(73) ^ 0x5a);
    let key =
        cenote::MasterKey::with_locking(&mut key, cenote::Locking::IfPossible).expect("a key");
    let key = std::sync::Arc::new(cenote::Keyring::new(key).locking(cenote::Locking::IfPossible));
    let options =
        OpenOptions { key: Some(key.clone()), spare_bytes_max: 0, ..OpenOptions::default() };
    let store = Store::open_with(dir, &options).expect("the store opens");
    if store.pools().is_empty() {
        let (mode, at_rest) = (PoolMode::Shadowed, AtRest::Authenticated);
        let options = PoolOptions { mode, at_rest, key: Some(key), ..PoolOptions::default() };
        store.create_pool("p", &options).expect("a pool");
    }
    let pool = store.pool_with("p", Access::ReadWrite);
    (store, pool)
}

/// Flips a bit of a page of a protected pool before it is opened.
fn before_it_is_opened(dir: &Path) {
    drop(Store::open(dir).expect("a store"));
    let (store, pool) = open_protected(dir);
    let pool = pool.expect("a pool");
    pool.write(fill).expect("filled");
    pool.psync().expect("psynced");
    let (expected, mut chosen) = (answers(&pool), seeded());
    drop(pool);
    store.close().expect("closed");
    let mut files = std::fs::read_dir(dir.join("puddles")).expect("readable");
    let path = files.next().expect("a file").expect("a file").path();
    let bytes = std::fs::read(&path).expect("readable");
    let file = std::fs::File::options().write(true).open(&path).expect("writable");
    let (mut opened, mut lost) = (0, 0);
    for page in 1..bytes.len() / PAGE as usize {
        let whole = &bytes[page * PAGE as usize..][..PAGE as usize];
        if whole.iter().all(|byte| *byte == 0) || one_in() > 1 && page % 7 != 0 {
            continue;
        }
        let at = page * PAGE as usize + 77;
        file.write_all_at(&[bytes[at] ^ 4], at as u64).expect("written");
        let (store, pool) = open_protected(dir);
        if let Ok(pool) = pool {
            opened += 1;
            for (kind, operation, number, answer) in &expected {
                // A new superblock, whose marks nothing has read yet, is always made.
                let is_first_look = *kind == "change" && *number == 29;
                if !chosen() && !is_first_look {
                    continue;
                }
                println!("page {page}, {kind} {number}");
                match operation(&pool, *number) {
                    FoundAnswer::Lost => lost += 1,
                    found => {
                        assert!(found == *answer, "page {page}, {kind} {number}: another answer")
                    }
                }
            }
        }
        // What was read is not written back over the harm.
        store.abandon();
        file.write_all_at(&bytes, 0).expect("written");
    }
    println!("{opened} opened, {lost} were told");
    assert!(opened > 2 && lost > 5, "{opened} {lost}");
}

/// Changes of two operations, of which the first makes a collection for the second.
const OF_TWO: [usize; 8] = [11, 12, 28, 29, 65, 68, 96, 99];

/// Changes that a lost page breaks off, whose error the program ignores: it commits.
fn committed(dir: &Path) {
    let store = Store::open(dir).expect("a store");
    let pool = store.pool("p").expect("a pool");
    pool.write(fill).expect("filled");
    let (mut number, mut random) = (0, 7);
    let (mut broken_off, mut whole, mut aborted) = (0, 0, 0);
    loop {
        let pages: Vec<u64> = pages(&pool).into_iter().collect();
        let mut ended = false;
        for _ in 0..if one_in() == 1 { pages.len() } else { 12 } {
            let page = pages[crate::common::random(&mut random) as usize % pages.len()];
            let protect = |access| {
                let addr = core::ptr::without_provenance_mut((page * PAGE) as usize);
                // SAFETY: a page of the store's window, which is made accessible again below.
                assert_eq!(unsafe { libc::mprotect(addr, PAGE as usize, access) }, 0);
            };
            let mut failed = false;
            let done = pool.write(|tx| -> Result<()> {
                let all = roots(tx)?;
                protect(libc::PROT_NONE);
                let answer = changes(tx, &all, number);
                protect(libc::PROT_READ | libc::PROT_WRITE);
                ended |= answer.is_none();
                match answer {
                    Some(Err(error)) => {
                        assert!(is_of_page(&error), "page {page:#x}, change {number}: {error}");
                        failed = true;
                        Ok(())
                    }
                    _ => Err(Error::Aborted("it was whole".into())),
                }
            });
            match done {
                Ok(()) => broken_off += 1,
                Err(Error::HalfDone { .. }) => aborted += 1,
                Err(error) if failed => assert!(is_of_page(&error), "{error}"),
                Err(_) => whole += 1,
            }
            if failed {
                let mut report = pool.check().expect("a report");
                assert!(report.dangling.is_empty(), "change {number}: {report:?}");
                if OF_TWO.contains(&number) {
                    pool.collect().expect("collected");
                    report = pool.check().expect("a report");
                }
                assert!(report.is_sound(), "page {page:#x}, change {number}: {report:?}");
                let view = pool.read().expect("a view");
                let all = roots(&view).expect("roots");
                (0..).map_while(|read| reads(&view, &all, read)).for_each(|read| {
                    read.expect("readable");
                });
            }
        }
        if ended {
            break;
        }
        number += 1;
    }
    println!("{broken_off} broken off, {aborted} aborted, {whole} whole");
    assert!(broken_off > 20 && aborted > 5 && whole > 50, "{broken_off}, {aborted}, {whole}");
}

/// An iterator ends early, and its transaction commits.
fn planted_bug(dir: &Path) {
    plant(Bug::LostPageCommitted);
    while_open(dir);
}

fn run(what: &str) -> (bool, String) {
    run_task("lost::child", what, directory().path())
}

/// Not a test of its own: what a child does.
#[test]
fn child() {
    let Some((what, dir)) = task() else { return };
    let dir = dir.as_path();
    match what.as_str() {
        "open" => while_open(dir),
        "protected" => before_it_is_opened(dir),
        "view" => of_a_view(dir),
        "committed" => committed(dir),
        _ => planted_bug(dir),
    }
}

#[test]
fn a_page_that_is_lost_while_a_pool_is_open_is_an_error_of_each_operation_that_needs_it() {
    let (done, said) = run("open");
    assert!(done, "{said}");
}

#[test]
fn a_damaged_page_of_a_protected_pool_is_an_error_of_each_operation_that_needs_it() {
    let (done, said) = run("protected");
    assert!(done, "{said}");
}

#[test]
fn a_change_that_a_lost_page_breaks_off_leaks_nothing_if_its_transaction_commits() {
    let (done, said) = run("committed");
    assert!(done, "{said}");
}

#[test]
fn a_transaction_that_commits_after_an_iterator_has_ended_early_is_found() {
    let (done, said) = run("bug");
    let named = said.contains(": another answer") && said.contains(", transaction ");
    assert!(!done && named, "{said}");
}

/// What is left of a view whose iterator ended early.
fn of_a_view(dir: &Path) {
    let store = Store::open(dir).expect("a store");
    let pool = store.pool("p").expect("a pool");
    pool.write(fill).expect("filled");
    let last = {
        let view = pool.read().expect("a view");
        roots(&view).expect("roots").last_of_list(&view)
    };
    let page = core::ptr::without_provenance_mut((last / PAGE * PAGE) as usize);
    // SAFETY: a page of the store's window.
    assert_eq!(unsafe { libc::mprotect(page, PAGE as usize, libc::PROT_NONE) }, 0);
    let short = |view: &cenote::View<'_>| {
        let all = roots(view).expect("another page");
        let count = all.list_of(view).expect("another page").count();
        assert!(count < 300, "{count}");
        all
    };
    let view = pool.read().expect("a view");
    short(&view);
    let error = view.finish().expect_err("an iterator ended early");
    assert!(is_of_page(&error), "{error}");
    // A call that returns the error is enough.
    let view = pool.read().expect("a view");
    let all = short(&view);
    assert!(is_of_page(&all.last(&view).expect_err("the page")));
    drop(view);
    let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let view = pool.read().expect("a view");
        short(&view);
    }));
    let said = dropped.expect_err("it panics");
    let said = said.downcast_ref::<String>().expect("a text");
    assert!(said.contains("View::finish") && said.contains("\"p\""), "{said}");
    // The pool is free: a transaction goes on with what can be read.
    let done = pool.write(|tx| -> Result<_> { Ok(roots(tx)?.list_of(tx)?.count()) });
    assert!(is_of_page(&done.expect_err("it aborts")));
    pool.write(|tx| roots(tx)?.pop_front(tx)).expect("another page");
}

/// An iterator has no way to return an error: its view does when it is finished, and panics where
/// it is dropped instead, unless a call has returned an error since.
#[test]
fn a_view_whose_iterator_ended_early_is_not_dropped_in_silence() {
    let (done, said) = run("view");
    assert!(done, "{said}");
}

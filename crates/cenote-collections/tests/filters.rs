//! A filter function is asked about its own type, and not about another that has the same id.
//!
//! Ids are 64-bit hashes. That two of these types have one took three minutes of one core.

use crate::common::{assert_sound, directory};
use cenote::persist::TypeSetError;
use cenote::{Error, Persist, Pool, Reader, Store};
use cenote_collections::{InlineStr, List, Vec};
use cenote_medium::planted::{Bug, plant};
use cenote_testkit::child::again;
use std::path::Path;
use std::sync::{Mutex, OnceLock, mpsc};
use std::time::Duration;

/// Its id is that of the header of [`Texts`], which is private to the collections.
#[derive(Persist, Clone, Copy)]
#[persist(name = "rev::X")]
struct Number<const N: u64>(u64);
type Colliding = Number<4268303714344535655>;

#[derive(Persist, Clone, Copy)]
#[persist(name = "rev::Y")]
struct Text<const N: u64> {
    text: InlineStr<22>,
    nz: std::num::NonZeroU64,
}
type Texts = List<Text<16603240083733121556>>;

#[derive(Persist)]
#[persist(name = "filters::Holder")]
struct Holder {
    list: Texts,
}

const LEN: u64 = 300;
const AT: &str = "CENOTE_TEST_FILTERS_AT";
const BUG: &str = "CENOTE_TEST_FILTERS_BUG";

/// A store with a list, closed.
fn make(path: &Path) {
    let pool = Store::open(path).unwrap().pool("test").unwrap();
    pool.write(|tx| -> cenote::Result<()> {
        let list = Texts::new(tx)?;
        for k in 1..=LEN {
            let text = InlineStr::truncated("a text");
            list.push_back(tx, Text { text, nz: k.try_into().unwrap() })?;
        }
        let holder = tx.alloc(Holder { list })?;
        tx.set_root(holder)
    })
    .unwrap();
}

/// A program that knows the colliding type, and not the list, finds and frees what is leaked.
fn collect_elsewhere(path: &Path, bug: bool) -> u64 {
    let test = "filters::a_filter_is_asked_about_its_own_type_and_no_other_of_its_id";
    let mut command = again(test);
    command.env(AT, path);
    if bug {
        command.env(BUG, "1");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let freed = text.lines().find_map(|line| line.split_once("freed ")?.1.parse().ok());
    freed.unwrap_or_else(|| panic!("{output:?}"))
}

#[test]
fn a_filter_is_asked_about_its_own_type_and_no_other_of_its_id() {
    if let Some(path) = std::env::var_os(AT) {
        let bug = if std::env::var_os(BUG).is_some() { Bug::FilterById } else { Bug::None };
        plant(bug);
        assert!(cenote::filter::register::<Colliding>(|_, _| ()).unwrap().is_none());
        let pool = Store::open(path).unwrap().pool("test").unwrap();
        println!("\nfreed {}", pool.collect().unwrap().freed_blocks);
        return;
    }
    let dir = directory();
    make(dir.path());
    assert_eq!(collect_elsewhere(dir.path(), false), 0);
    let pool = Store::open(dir.path()).unwrap().pool("test").unwrap();
    assert_sound(&pool);
    let view = pool.read().unwrap();
    let holder = view.get(view.root::<Holder>().unwrap().unwrap()).unwrap();
    assert_eq!(holder.list.iter(&view).unwrap().map(|text| text.nz.get()).max(), Some(LEN));
    drop(view);
    // In a program that has the list, the id is taken.
    let refused = cenote::filter::register::<Colliding>(|_, _| ()).unwrap_err();
    assert!(matches!(refused, Error::Types(TypeSetError::SameName { .. })), "{refused}");
    assert_eq!(pool.collect().unwrap().freed_blocks, 0);
}

#[test]
fn a_filter_that_is_asked_about_every_type_of_its_id_is_found() {
    // `Bug::FilterById` is planted in the process that collects.
    let dir = directory();
    make(dir.path());
    assert!(collect_elsewhere(dir.path(), true) >= LEN);
}

/// What a filter asked of its pool, and was told.
static ASKED: Mutex<std::vec::Vec<(bool, bool)>> = Mutex::new(std::vec::Vec::new());
static POOL: OnceLock<Pool> = OnceLock::new();

#[derive(Persist)]
#[persist(name = "filters::Asking")]
struct Asking {
    list: List<u64>,
}

#[test]
fn a_filter_that_asks_for_its_pool_does_not_wait_for_ever() {
    let dir = directory();
    let pool = Store::open(dir.path()).unwrap().pool("test").unwrap();
    pool.write(|tx| -> cenote::Result<()> {
        let list = List::from_iter(tx, 0..10)?;
        let asking = tx.alloc(Asking { list })?;
        tx.set_root(asking)
    })
    .unwrap();
    POOL.set(pool.clone()).unwrap();
    let replaced = cenote::filter::register::<Asking>(|_, _| {
        let pool = POOL.get().unwrap();
        let written = pool.write(|tx| tx.alloc(1u64)).is_ok();
        ASKED.lock().unwrap().push((pool.read().is_ok(), written));
    });
    assert!(replaced.unwrap().is_none());
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let checked = pool.check().map(drop);
        let collected = pool.collect().map(drop);
        let _ = done.send((checked.is_ok(), collected.is_ok()));
    });
    let both = ended.recv_timeout(Duration::from_secs(30)).expect("it waits for ever");
    assert_eq!(both, (true, true));
    let asked = ASKED.lock().unwrap().clone();
    assert!(asked.len() >= 2 && asked.iter().all(|(_, written)| !written), "{asked:?}");
    assert_eq!(asked.last(), Some(&(false, false)), "a collection refuses both");
}

#[derive(Persist)]
#[persist(name = "filters::Many")]
struct Many(u64);

/// What a filter was told on threads that help: of a write, an open, and counts.
static TOLD: Mutex<std::vec::Vec<[bool; 3]>> = Mutex::new(std::vec::Vec::new());
static STORE: OnceLock<(Store, Pool)> = OnceLock::new();

/// A filter that runs on a thread which the check waits for.
#[test]
fn a_filter_on_a_thread_that_helps_waits_for_nothing() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = store.pool("test").unwrap();
    pool.write(|tx| -> cenote::Result<()> {
        let all = Vec::new(tx)?;
        for number in 0..20_000 {
            let one = tx.alloc(Many(number))?;
            all.push(tx, one)?;
        }
        let root = tx.alloc(all)?;
        tx.set_root(root)
    })
    .unwrap();
    STORE.set((store, pool.clone())).unwrap();
    let filter: cenote::filter::Filter = |_, _| {
        if std::thread::current().name() == Some("cenote-trace") {
            let (store, pool) = STORE.get().unwrap();
            let written = pool.write(|tx| tx.alloc(1u64)).is_ok();
            let told = [written, store.pool("test").is_ok(), pool.stats().is_ok()];
            TOLD.lock().unwrap().push(told);
        } else if TOLD.lock().unwrap().is_empty() {
            // The machine may have no processor for a helper until this thread waits.
            std::thread::sleep(Duration::from_micros(100));
        }
    };
    assert!(cenote::filter::register::<Many>(filter).unwrap().is_none());
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        for _ in 0..20 {
            let mut options = cenote::TraceOptions::default();
            (options.workers, options.alone_blocks) = (std::num::NonZero::new(3), 0);
            assert!(pool.check_with(options).unwrap().is_sound());
            if !TOLD.lock().unwrap().is_empty() {
                break;
            }
        }
        let _ = done.send(());
    });
    ended.recv_timeout(Duration::from_secs(30)).expect("it waits for ever");
    let told = TOLD.lock().unwrap();
    assert!(!told.is_empty() && told.iter().all(|told| *told == [false, false, true]), "{told:?}");
}

#[derive(Persist)]
#[persist(name = "filters::Reclaimed")]
struct Reclaimed(u64);

/// What a filter was told by a reclaim, of a write and of an open.
static HEARD: Mutex<std::vec::Vec<[bool; 2]>> = Mutex::new(std::vec::Vec::new());
static RECLAIMED: Mutex<Option<(Store, Pool)>> = Mutex::new(None);

/// Reclaims beside a filter that asks for its pool; how many blocks, if it ends.
fn reclaimed_with_filter(bug: Bug, patience: Duration) -> Result<u64, mpsc::RecvTimeoutError> {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        plant(bug);
        let dir = directory();
        let pool = Store::open(dir.path()).unwrap().pool("test").unwrap();
        pool.write(|tx| -> cenote::Result<()> {
            tx.alloc(1u64)?;
            let root = tx.alloc(Reclaimed(1))?;
            tx.set_root(root)
        })
        .unwrap();
        drop(pool);
        let store = Store::open(dir.path()).unwrap();
        let pool = store.pool("test").unwrap();
        *RECLAIMED.lock().unwrap() = Some((store, pool.clone()));
        let _ = done.send(pool.reclaim().unwrap().blocks);
        RECLAIMED.lock().unwrap().take();
    });
    ended.recv_timeout(patience)
}

/// A reclaim calls filters with locks that no other thread may wait for.
#[test]
fn a_filter_of_a_reclaim_waits_for_nothing() {
    let filter: cenote::filter::Filter = |_, _| {
        let found = RECLAIMED.lock().unwrap().clone();
        if let Some((store, pool)) = found {
            let told = [pool.write(|tx| tx.alloc(1u64)).is_ok(), store.pool("test").is_ok()];
            HEARD.lock().unwrap().push(told);
        }
    };
    assert!(cenote::filter::register::<Reclaimed>(filter).unwrap().is_none());
    let blocks = reclaimed_with_filter(Bug::None, Duration::from_secs(30));
    assert_eq!(blocks.expect("it waits for ever"), 1);
    let heard = HEARD.lock().unwrap().clone();
    assert!(!heard.is_empty() && heard.iter().all(|told| *told == [false; 2]), "{heard:?}");
    let blocks = reclaimed_with_filter(Bug::SliceWaits, Duration::from_secs(2));
    assert!(blocks.is_err(), "a planted bug is not found: {blocks:?}");
}

#[derive(Persist)]
#[persist(name = "filters::Closing")]
struct Closing(u64);

/// The only handle of a pool.
static LAST: Mutex<Option<Pool>> = Mutex::new(None);

/// Opens a pool whose filter drops the last handle of another one; whether that ends.
fn opened_while_another_closes(bug: Bug, patience: Duration) -> bool {
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        plant(bug);
        let dir = directory();
        let pool = Store::open(dir.path()).unwrap().pool("test").unwrap();
        pool.write(|tx| -> cenote::Result<()> {
            let root = tx.alloc(Closing(1))?;
            tx.set_root(root)
        })
        .unwrap();
        drop(pool);
        let options = cenote::OpenOptions { verify_values: true, ..Default::default() };
        let store = Store::open_with(dir.path(), &options).unwrap();
        *LAST.lock().unwrap() = Some(store.pool("other").unwrap());
        drop(store.pool("test").unwrap());
        assert!(LAST.lock().unwrap().is_none(), "the filter was not asked");
        store.remove_pool("other").unwrap();
        store.close().unwrap();
        done.send(()).unwrap();
    });
    ended.recv_timeout(patience).is_ok()
}

/// The list of open pools is held while values are looked at; a pool that is closed takes it.
#[test]
fn a_filter_that_drops_the_last_handle_of_a_pool_waits_for_nothing() {
    let filter: cenote::filter::Filter = |_, _| {
        let last = LAST.lock().unwrap().take();
        drop(last);
    };
    assert!(cenote::filter::register::<Closing>(filter).unwrap().is_none());
    assert!(opened_while_another_closes(Bug::None, Duration::from_secs(30)));
    assert!(!opened_while_another_closes(Bug::ClosedWithin, Duration::from_secs(2)));
}

//! Stores that meet in one process: windows that are taken, and stores that open elsewhere because
//! of it.

use crate::archives::{
    HEAPS, Node, list, node, puddle_files, small, store_with_window, values, window,
};
use crate::support::{directory, hashes, underneath};
use cenote::{
    Access, AtRest, Error, HeapKind, Keyring, MasterKey, OpenOptions, PoolMode, PoolOptions,
    Reader, Result, Store, WindowPolicy, field,
};
use cenote_store::OpenError;
use cenote_testkit::child::again;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

const LEN: u64 = 9000;
/// For a window that another test has.
const PATIENCE: Duration = Duration::from_secs(60);

/// A store of that window, with a list over several puddles in each of these pools.
fn store_with_lists(dir: &Path, base: u64, pools: &[(&str, PoolOptions)]) {
    let store = store_with_window(dir, base);
    for (name, options) in pools {
        drop(list(&store, name, options, LEN).expect("a list"));
    }
    store.close().expect("closed");
}

/// A pool in each mode, with each heap.
fn each() -> [(&'static str, PoolOptions); 6] {
    let of = |heap, mode| PoolOptions { heap, mode, ..small() };
    let [traced, logged, wear] = HEAPS;
    let (direct, shadowed) = (PoolMode::Direct, PoolMode::Shadowed);
    [
        ("direct", of(traced, direct)),
        ("shadowed", of(traced, shadowed)),
        ("logged", of(logged, direct)),
        ("logged shadowed", of(logged, shadowed)),
        ("wear", of(wear, direct)),
        ("wear shadowed", of(wear, shadowed)),
    ]
}

const EACH: [&str; 6] =
    ["direct", "shadowed", "logged", "logged shadowed", "wear", "wear shadowed"];

fn wanted() -> Vec<u64> {
    (0..LEN).collect()
}

fn names(store: &Store) -> Vec<String> {
    store.pools().into_iter().map(|info| info.record.name).collect()
}

/// All lists are as they were made, by a reader of each pool; no pool has damage or a leak.
fn whole(store: &Store) -> Result<()> {
    for name in names(store) {
        let pool = store.pool_with(&name, Access::ReadOnly)?;
        assert_eq!(values(&pool)?, wanted(), "{name}");
        let report = pool.check()?;
        assert_eq!((report.leaked_blocks, report.damage.len()), (0, 0), "{name}: {report:?}");
    }
    Ok(())
}

/// Address space that something else of this process has.
pub(crate) struct Taken(u64);

impl Taken {
    /// Waits for a store of another test that has come to the same place: there are fewer places
    /// for windows than this process formats stores.
    pub(crate) fn new(base: u64) -> Self {
        let begun = Instant::now();
        loop {
            // A simulation that has ended may have left it idle.
            cenote_medium::sim::release_idle_windows();
            match cenote_sys::memory::reserve(base as usize, 1 << 21) {
                Ok(()) => return Self(base),
                Err(error) => assert!(begun.elapsed() < PATIENCE, "it is never free: {error}"),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        // SAFETY: reserved by `new`; nothing was mapped there.
        unsafe { cenote_sys::memory::release(self.0 as usize, 1 << 21) }.expect("reserved");
    }
}

#[test]
fn stores_that_share_a_window_are_open_in_one_process_together() -> Result<()> {
    let (one, two) = (directory(), directory());
    let base = window();
    for dir in [&one, &two] {
        store_with_lists(dir.path(), base, &each());
    }
    let first = Store::open(one.path())?;
    let second = Store::open(two.path())?;
    assert_eq!((first.window().0, first.report().window_moved_from), (base, None));
    assert_ne!(second.window().0, base);
    assert_eq!(second.report().window_moved_from, Some(base));
    whole(&first)?;
    whole(&second)?;
    for store in [&first, &second] {
        for name in EACH {
            let pool = store.pool(name)?;
            pool.write(|tx| -> Result<()> {
                let first = tx.alloc(node(LEN, None))?;
                tx.free(first)
            })?;
        }
    }
    first.close()?;
    second.close()?;
    // It stays where it is, and nothing of it is pending.
    let second = Store::open(two.path())?;
    assert_eq!(second.report().window_moved_from, None);
    assert!(second.pools().iter().all(|info| info.pending == 0), "{:?}", second.pools());
    whole(&second)?;
    whole(&Store::open(one.path())?)
}

#[test]
fn a_store_moves_again_and_again_before_and_after_a_puddle_is_touched() -> Result<()> {
    let dir = directory();
    let base = window();
    store_with_lists(dir.path(), base, &each());
    let mut home = base;
    let mut taken = Vec::new();
    for round in 0..6 {
        taken.push(Taken::new(home));
        if round == 4 {
            // The first window is free again.
            taken.remove(0);
        }
        let store = Store::open(dir.path())?;
        let here = store.window().0;
        assert_eq!(store.report().window_moved_from, Some(home), "round {round}");
        if round % 3 == 1 {
            // Some of a pool: its root puddle, and what the first node is in.
            for name in ["direct", "logged"] {
                let pool = store.pool(name)?;
                let view = pool.read()?;
                let first = view.root::<Node>()?.expect("a node");
                assert!(view.get(first)?.next.is_some());
            }
        }
        if round == 2 {
            whole(&store)?;
        }
        store.close()?;
        home = here;
    }
    let store = Store::open(dir.path())?;
    let moved = store.pool("direct")?;
    moved.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
    drop(moved);
    whole(&store)
}

#[test]
fn pools_that_are_due_of_an_earlier_move_come_along() -> Result<()> {
    for touched in [false, true] {
        let dir = directory();
        let base = window();
        store_with_lists(dir.path(), base, &each());
        let store = Store::open(dir.path())?;
        store.clone_pool("direct", "copy")?;
        store.clone_pool("shadowed", "twin")?;
        store.clone_pool("logged", "logged copy")?;
        store.clone_pool("logged shadowed", "logged twin")?;
        if touched {
            for name in ["copy", "twin", "logged copy", "logged twin"] {
                drop(store.pool(name)?);
            }
        }
        store.close()?;
        let _taken = Taken::new(base);
        let store = Store::open(dir.path())?;
        assert_eq!(store.report().window_moved_from, Some(base));
        whole(&store)?;
        store.randomize_pool("copy")?;
        store.randomize_pool("logged twin")?;
        store.close()?;
        let store = Store::open(dir.path())?;
        let home = store.window().0;
        store.close()?;
        let _also = Taken::new(home);
        let store = Store::open(dir.path())?;
        assert_eq!(store.report().window_moved_from, Some(home));
        whole(&store)?;
    }
    Ok(())
}

#[test]
fn a_reader_of_a_store_whose_window_is_taken_writes_no_file() -> Result<()> {
    let dir = directory();
    let base = window();
    store_with_lists(dir.path(), base, &each());
    let before = hashes(dir.path());
    let _taken = Taken::new(base);
    let one = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    let two = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    assert!(one.window() != two.window() && one.window().0 != base);
    whole(&one)?;
    whole(&two)?;
    drop((one, two));
    assert_eq!(hashes(dir.path()), before);
    Ok(())
}

const CHILD_DIR: &str = "CENOTE_WINDOWS_CHILD_DIR";

/// Not a test of its own: what a child process runs. It commits, and ends in the middle of a
/// transaction.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let store = Store::open(&dir).expect("a store");
    for name in names(&store) {
        let pool = store.pool(&name).expect("a pool");
        pool.write(|tx| -> Result<()> {
            let next = tx.root::<Node>()?.expect("a node");
            let first = tx.alloc(node(LEN + 1, Some(next)))?;
            tx.set_rel(next, field!(Node, back), Some(first))?;
            tx.set_root(first)
        })
        .expect("committed");
    }
    // One transaction for each pool: those of both modes together would be refused after a loss of
    // power.
    let begun = std::sync::Barrier::new(names(&store).len());
    std::thread::scope(|scope| {
        for name in names(&store) {
            let (pool, begun) = (store.pool(&name).expect("a pool"), &begun);
            scope.spawn(move || {
                let _: Result<()> = pool.write(|tx| {
                    let next = tx.root::<Node>()?.expect("a node");
                    let first = tx.alloc(node(LEN + 2, Some(next)))?;
                    tx.set_rel(next, field!(Node, back), Some(first))?;
                    tx.set_root(first)?;
                    begun.wait();
                    std::process::abort();
                });
            });
        }
    });
}

/// A store that a process left in the middle of a transaction on each pool.
fn killed(dir: &Path, base: u64) {
    store_with_lists(dir, base, &each());
    let status = again("windows::child")
        .env(CHILD_DIR, dir)
        .stderr(std::process::Stdio::null())
        .stdout(std::process::Stdio::null())
        .status()
        .expect("it runs");
    assert!(!status.success());
}

fn recovered(store: &Store) -> Result<()> {
    assert!(!store.report().clean);
    assert!(
        store.report().logs.iter().any(|log| format!("{:?}", log.outcome).contains("RolledBack"))
    );
    let all: Vec<u64> = std::iter::once(LEN + 1).chain(0..LEN).collect();
    for name in EACH {
        let pool = store.pool_with(name, Access::ReadOnly)?;
        assert_eq!(values(&pool)?, all, "{name}");
        assert_eq!(pool.check()?.damage.len(), 0);
    }
    Ok(())
}

#[test]
fn a_store_is_recovered_before_it_moves_and_by_a_reader_in_memory() -> Result<()> {
    let dir = directory();
    let base = window();
    killed(dir.path(), base);
    let before = hashes(dir.path());
    let taken = Taken::new(base);
    for _ in 0..2 {
        recovered(&Store::open_with(dir.path(), &OpenOptions::read_only())?)?;
        assert_eq!(hashes(dir.path()), before);
    }
    let store = Store::open(dir.path())?;
    assert_eq!(store.report().window_moved_from, Some(base));
    recovered(&store)?;
    for name in EACH {
        let pool = store.pool(name)?;
        pool.write(|tx| -> Result<()> {
            let first = tx.root::<Node>()?.expect("a node");
            let second = tx.get(first)?.next.expect("a second node");
            tx.set_rel(second, field!(Node, back), None)?;
            tx.free(first)?;
            tx.set_root(second)
        })?;
        assert_eq!(values(&pool)?, wanted(), "{name}");
    }
    store.close()?;
    drop(taken);
    whole(&Store::open(dir.path())?)
}

#[test]
fn a_fixed_window_that_is_taken_is_refused_and_says_by_whom() -> Result<()> {
    let (one, two) = (directory(), directory());
    let base = window();
    for dir in [&one, &two] {
        store_with_lists(dir.path(), base, &each()[..1]);
    }
    let before = hashes(two.path());
    let first = Store::open(one.path())?;
    for access in [Access::ReadWrite, Access::ReadOnly] {
        let options = OpenOptions { window: WindowPolicy::Fixed, access, ..OpenOptions::default() };
        let refused = Store::open_with(two.path(), &options).expect_err("it is taken");
        let path = one.path().display().to_string();
        assert!(
            matches!(&refused, Error::Open(OpenError::WindowTaken { by, base: at, .. })
                if *at == base && by.contains(&path)),
            "{refused}"
        );
    }
    assert_eq!(hashes(two.path()), before);
    first.close()?;
    let fixed = OpenOptions { window: WindowPolicy::Fixed, ..OpenOptions::default() };
    whole(&Store::open_with(two.path(), &fixed)?)
}

fn key() -> Arc<Keyring> {
    let mut bytes: [u8; 32] = core::array::from_fn(|i| (i as u8) ^ 0x35);
    Arc::new(Keyring::new(MasterKey::from_bytes(&mut bytes).expect("a key")))
}

#[test]
fn protected_pools_move_with_the_window() -> Result<()> {
    let modes =
        [AtRest::Integrity, AtRest::Encryption, AtRest::EncryptionIntegrity, AtRest::Authenticated];
    for (at_rest, heap) in modes.into_iter().flat_map(|mode| HEAPS.map(|heap| (mode, heap))) {
        let dir = directory();
        let base = window();
        let key = (at_rest != AtRest::Integrity).then(key);
        let options =
            PoolOptions { mode: PoolMode::Shadowed, at_rest, heap, key: key.clone(), ..small() };
        store_with_lists(dir.path(), base, &[("sealed", options), ("open", small())]);
        let open = OpenOptions { key, accept_unprotected: true, ..OpenOptions::default() };
        let taken = Taken::new(base);
        let before = hashes(dir.path());
        let reader = Store::open_with(
            dir.path(),
            &OpenOptions { access: Access::ReadOnly, ..open.clone() },
        )?;
        whole(&reader)?;
        drop(reader);
        assert_eq!(hashes(dir.path()), before, "{at_rest:?}");
        let store = Store::open_with(dir.path(), &open)?;
        let home = store.window().0;
        store.close()?;
        // All of the pool is pending: it may move once more.
        let _also = Taken::new(home);
        let store = Store::open_with(dir.path(), &open)?;
        assert_eq!(store.report().window_moved_from, Some(home));
        drop(store.pool("sealed")?);
        let home = store.window().0;
        store.close()?;
        // Its root puddle is not, the others are: it stays, and says why. A logged heap touches
        // all puddles when it is opened.
        let third = (heap == HeapKind::Traced).then(|| Taken::new(home));
        if third.is_some() {
            let stays = Store::open_with(dir.path(), &open).expect_err("it is due in part");
            assert!(matches!(
                &stays,
                Error::Open(OpenError::WindowStays { why, .. }) if why.contains("sealed")
            ));
        }
        drop(third);
        let store = Store::open_with(dir.path(), &open)?;
        whole(&store)?;
        store.close()?;
        drop(taken);
    }
    Ok(())
}

#[test]
fn a_window_grows_where_it_lies_or_by_moving() -> Result<()> {
    let dir = directory();
    let base = window();
    store_with_lists(dir.path(), base, &each());
    let files = || {
        let all = hashes(dir.path());
        let of_pools = puddle_files(dir.path());
        of_pools.into_iter().map(move |file| (file.clone(), all[&file])).collect::<Vec<_>>()
    };
    let before = files();
    let longer = OpenOptions { window_len_min: 6 << 30, ..OpenOptions::default() };
    let store = Store::open_with(dir.path(), &longer)?;
    assert_eq!((store.window(), store.report().window_moved_from), ((base, 6 << 30), None));
    store.close()?;
    assert_eq!(files(), before, "nothing was rewritten");
    let store = Store::open(dir.path())?;
    assert_eq!(store.window(), (base, 6 << 30));
    whole(&store)?;
    store.close()?;
    let _taken = Taken::new(base + (6 << 30));
    let longer = OpenOptions { window_len_min: 8 << 30, ..OpenOptions::default() };
    let store = Store::open_with(dir.path(), &longer)?;
    assert_eq!((store.window().1, store.report().window_moved_from), (8 << 30, Some(base)));
    whole(&store)
}

#[test]
fn a_store_moves_beside_a_protected_pool_with_a_damaged_file() -> Result<()> {
    let dir = directory();
    let base = window();
    let sealed = PoolOptions { mode: PoolMode::Shadowed, at_rest: AtRest::Integrity, ..small() };
    store_with_lists(dir.path(), base, &[("sealed", sealed), ("open", small())]);
    let store = Store::open(dir.path())?;
    let pool =
        store.pools().into_iter().find(|info| info.record.name == "sealed").expect("it is there");
    let puddle = store.puddle_records().into_iter().find(|puddle| puddle.pool == pool.record.id);
    let puddle = puddle.expect("a puddle");
    let name: String = puddle.uuid.to_hex().iter().map(|byte| char::from(*byte)).collect();
    store.close()?;
    let file = dir.path().join("puddles").join(name);
    let bytes = std::fs::read(&file).unwrap();
    std::fs::remove_file(&file).unwrap();
    let taken = Taken::new(base);
    let reader = Store::open_with(dir.path(), &OpenOptions::read_only())?;
    assert_eq!(values(&reader.pool_with("open", Access::ReadOnly)?)?, wanted());
    assert!(reader.pool_with("sealed", Access::ReadOnly).is_err());
    drop(reader);
    let store = Store::open(dir.path())?;
    assert_eq!(store.report().window_moved_from, Some(base));
    assert_eq!(values(&store.pool("open")?)?, wanted());
    assert!(store.pool("sealed").is_err());
    let home = store.window().0;
    store.close()?;
    // All of the pool is pending still, so it moves once more.
    drop(taken);
    let _taken = Taken::new(home);
    assert!(Store::open(dir.path())?.pool("sealed").is_err());
    std::fs::write(&file, bytes).unwrap();
    whole(&Store::open(dir.path())?)
}

/// Many stores of one window, opened and closed at random, some of them by readers.
#[test]
fn hundreds_of_stores_of_one_window() -> Result<()> {
    const STORES: usize = 120;
    let base = window();
    let seed =
        std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x77d0_u64);
    println!("seed {seed}");
    let mut state = seed;
    let mut random = move |below: usize| {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as usize % below
    };
    let dirs: Vec<_> = (0..STORES).map(|_| directory()).collect();
    let mut counts = vec![1u64; STORES];
    for dir in &dirs {
        let store = store_with_window(dir.path(), base);
        drop(list(&store, "p", &small(), 1)?);
        store.close()?;
    }
    let open = |at: usize| Store::open(dirs[at].path());
    let mut stores: Vec<Option<Store>> = (0..STORES).map(|at| open(at).ok()).collect();
    assert!(stores.iter().all(Option::is_some), "all are open at once");
    for _ in 0..3 * STORES {
        let at = random(STORES);
        let Some(store) = &stores[at] else {
            stores[at] = Some(open(at)?);
            continue;
        };
        let pool = store.pool("p")?;
        match random(4) {
            0 => {
                drop(pool);
                let store = stores[at].take().expect("it is open");
                if random(2) == 0 {
                    store.close()?
                } else {
                    underneath(&store).clone().abandon()
                }
                continue;
            }
            1 => assert_eq!(values(&pool)?, (0..counts[at]).rev().collect::<Vec<_>>()),
            _ => {
                let value = counts[at];
                pool.write(|tx| -> Result<()> {
                    let next = tx.root::<Node>()?;
                    let first = tx.alloc(node(value, next))?;
                    if let Some(next) = next {
                        tx.set_rel(next, field!(Node, back), Some(first))?;
                    }
                    tx.set_root(first)
                })?;
                counts[at] += 1;
            }
        }
    }
    drop(stores);
    for (at, count) in counts.iter().enumerate() {
        assert_eq!(
            values(&open(at)?.pool("p")?)?,
            (0..*count).rev().collect::<Vec<_>>(),
            "store {at}"
        );
    }
    Ok(())
}

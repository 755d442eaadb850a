//! Pools in shadowed mode on a real directory.
//!
//! * `kill -9` loses no transaction.
//! * A loss of power loses nothing that was psynced, whatever it leaves of shadows and logs.
//! * What cannot be psynced is refused; policies psync by themselves.
//! * A pool whose file is missing is refused until the file is there again.

mod steps;

use cenote::{
    Access, CrashKind, DamagePolicy, Error, OpenOptions, PoolMode, PoolOptions, PoolStart,
    PowerLossPolicy, PsyncPolicy, Reader, Result, Store, field,
};
use cenote_store::StoreError;
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use cenote_testkit::environment::number;
use cenote_testkit::random::mix;
use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use steps::apply;
pub(crate) use steps::{CELLS, Root, lose_power, make, shadowed, step_of, steps};

/// On a file system behind the page cache, where there is one.
fn directory() -> tempfile::TempDir {
    tempfile::tempdir().unwrap()
}

/// Every file of puddles has all the space that its length says.
#[track_caller]
fn all_have_their_space(dir: &Path) {
    use std::os::unix::fs::MetadataExt as _;
    let mut files = 0;
    for entry in
        ["puddles", "primary"].iter().flat_map(|kind| std::fs::read_dir(dir.join(kind)).unwrap())
    {
        let (path, file) = entry.map(|entry| (entry.path(), entry.metadata().unwrap())).unwrap();
        assert!(
            file.blocks() * 512 >= file.len(),
            "{}: {} of {}",
            path.display(),
            file.blocks() * 512,
            file.len()
        );
        files += 1;
    }
    assert!(files >= 4, "{files} files");
}

#[test]
fn primaries_and_shadows_have_all_their_space_when_they_are_made_moved_and_restored() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "x");
    all_have_their_space(dir.path());
    steps(&pool, 1, 30);
    store.psync(&[&pool]).unwrap();
    drop(pool);
    store.clone_pool("x", "y").unwrap();
    drop(
        store
            .pool("y")
            .unwrap()
            .finish_relocation(&mut |_| std::ops::ControlFlow::Continue(()))
            .unwrap(),
    );
    all_have_their_space(dir.path());
    store.abandon();
    lose_power(dir.path(), 3);
    // Of a shadow that was not synced nothing need be there, nor the space that it had.
    for entry in std::fs::read_dir(dir.path().join("primary")).unwrap() {
        let primary = entry.unwrap();
        let shadow =
            std::fs::File::create(dir.path().join("puddles").join(primary.file_name())).unwrap();
        shadow.set_len(primary.metadata().unwrap().len()).unwrap();
    }
    let store = Store::open(dir.path()).unwrap();
    for name in ["x", "y"] {
        assert_eq!(step_of(&store.pool(name).unwrap()), 30);
    }
    all_have_their_space(dir.path());
}

const CHILD_DIR: &str = "CENOTE_SHADOWED_CHILD_DIR";

/// Not a test of its own: what a child process runs. Says the step after each transaction, and the
/// step with the highest bit set after each psync.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let options = OpenOptions { lock_timeout: Duration::from_secs(20), ..OpenOptions::default() };
    let store = Store::open_with(&dir, &options).unwrap();
    let pools = ["x", "y"].map(|name| store.pool(name).unwrap());
    let mut step = step_of(&pools[0]);
    loop {
        step += 1;
        store
            .write(&[&pools[0], &pools[1]], |tx| {
                apply(tx, &pools[0], step)?;
                apply(tx, &pools[1], step)
            })
            .unwrap();
        if !acknowledge(step) {
            return;
        }
        if step.is_multiple_of(3) {
            store.psync(&[&pools[0], &pools[1]]).unwrap();
            if !acknowledge(step | PSYNCED) {
                return;
            }
        }
    }
}

/// The bit of a word that acknowledges a psync.
pub(crate) const PSYNCED: u64 = 1 << 63;

/// Kills the child after its first word and a time. Returns the step and the psync that it
/// acknowledged last.
pub(crate) fn kill(child: Acknowledging, after: Duration, known: (u64, u64)) -> (u64, u64) {
    let mut known = known;
    for word in child.kill(true, after, |word| word & PSYNCED != 0 || word < 1 << 40) {
        match word & PSYNCED {
            0 => known.0 = word,
            _ => known.1 = word & !PSYNCED,
        }
    }
    known
}

#[test]
fn kill_nine_loses_no_transaction_and_a_loss_of_power_no_psync() {
    let (kills, seed) = (number("CENOTE_KILLS", 30), number("CENOTE_SEED", 0xce07));
    println!("seed {seed}");
    let dir = directory();
    {
        let store = Store::open(dir.path()).unwrap();
        make(&store, "x");
        make(&store, "y");
    }
    let mut known = (0, 0);
    let (mut powers, mut gone) = (0, 0);
    for round in 0..kills {
        let child = Acknowledging::start(again("shadowed::child").env(CHILD_DIR, dir.path()));
        known = kill(child, Duration::from_micros(mix(seed + round) % 60_000), known);
        let power = round % 3 == 2;
        if power {
            lose_power(dir.path(), seed + round);
        }
        let store = Store::open(dir.path()).unwrap();
        let report = store.report();
        assert_eq!(report.crash, Some(if power { CrashKind::Power } else { CrashKind::Process }));
        assert!(report.damage.is_empty() && report.not_covered.is_empty(), "{report:?}");
        assert_eq!(report.restored.len(), if power { 2 } else { 0 }, "{report:?}");
        let pools = ["x", "y"].map(|name| store.pool(name).unwrap());
        let there = pools.each_ref().map(step_of);
        assert_eq!(there[0], there[1], "round {round}: the pools are not at one step");
        if power {
            powers += 1;
            assert_eq!(pools[0].start(), PoolStart::Dirty(CrashKind::Power));
            let in_flight =
                there[0].is_multiple_of(3) && there[0] > known.1 && there[0] <= known.0 + 1;
            assert!(
                there[0] == known.1 || in_flight,
                "round {round}: step {} is there, {known:?} was acknowledged",
                there[0]
            );
            gone += known.0.saturating_sub(there[0]);
            known = (there[0], there[0]);
        } else {
            assert!(
                there[0] == known.0 || there[0] == known.0 + 1,
                "round {round}: step {} is there, {known:?} was acknowledged",
                there[0]
            );
            // Closed below, which psyncs.
            known = (there[0], there[0]);
        }
        drop(pools);
        store.close().unwrap();
    }
    println!(
        "{kills} kills, {powers} losses of power, {} steps, {gone} that were not psynced are gone",
        known.0
    );
    assert!(known.0 > kills, "the children hardly did anything");
}

#[test]
fn a_close_is_a_psync() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "p");
    steps(&pool, 1, 40);
    drop(pool);
    store.close().unwrap();
    // Stored into again, and not psynced.
    let store = Store::open(dir.path()).unwrap();
    assert!(store.report().clean);
    let pool = store.pool("p").unwrap();
    steps(&pool, 41, 50);
    drop(pool);
    store.abandon();
    lose_power(dir.path(), 1);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(step_of(&store.pool("p").unwrap()), 40);
    assert_eq!(store.report().restored[0].name, "p");
}

/// A pool that is not opened by the session that recovers is closed with what the dead had left in
/// it.
#[test]
fn the_last_process_to_close_psyncs_what_dead_ones_left() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "p");
    pool.psync().unwrap();
    steps(&pool, 1, 9);
    drop(pool);
    store.abandon();
    Store::open(dir.path()).unwrap().close().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let pool = store.pool("p").unwrap();
    assert_eq!(pool.start(), PoolStart::Clean);
    steps(&pool, 10, 12);
    drop(pool);
    store.abandon();
    lose_power(dir.path(), 2);
    assert_eq!(step_of(&Store::open(dir.path()).unwrap().pool("p").unwrap()), 9);
}

#[test]
fn a_psync_writes_what_changed_and_nothing_if_nothing_did() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "p");
    steps(&pool, 1, 100);
    let first = pool.psync().unwrap();
    assert!(first.seq > 0 && first.pages > 5, "{first:?}");
    assert_eq!(pool.unsynced_bytes(), 0);
    let nothing = pool.psync().unwrap();
    assert_eq!((nothing.seq, nothing.pages, nothing.journal_bytes), (0, 0, 0));
    pool.write(|tx| -> Result<()> {
        let root = tx.root::<Root>()?.unwrap();
        tx.set(root, field!(Root, step), 101)
    })
    .unwrap();
    assert_eq!(pool.unsynced_bytes(), 4096);
    let one = pool.psync().unwrap();
    assert_eq!(
        (one.seq, one.pages, one.data_bytes),
        (first.seq + 1, 1, 64),
        "one line of one page"
    );
}

#[test]
fn what_cannot_be_psynced_is_refused() {
    let (dir, other) = (directory(), directory());
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "p");
    let direct =
        store.create_pool("d", &PoolOptions { mode: PoolMode::Direct, ..shadowed() }).unwrap();
    assert!(
        matches!(direct.psync(), Err(Error::Store(StoreError::NotShadowed { name })) if name == "d")
    );
    assert!(matches!(store.psync(&[]), Err(Error::Pools)));
    let elsewhere = Store::open(other.path()).unwrap();
    assert!(matches!(elsewhere.psync(&[&pool]), Err(Error::Pools)));
    let both = store.write(&[&pool, &direct], |_| Ok::<(), Error>(()));
    assert!(matches!(both, Err(Error::Modes { .. })), "{both:?}");
    let inside = pool.write(|_| pool.psync().map(drop));
    assert!(matches!(inside, Err(Error::WouldDeadlock { by: "a transaction", .. })), "{inside:?}");
    for policy in [
        PsyncPolicy::default(),
        PsyncPolicy { every: Some(Duration::ZERO), ..Default::default() },
        PsyncPolicy { bytes: Some(0), ..Default::default() },
    ] {
        assert!(matches!(pool.psync_by(policy), Err(Error::Policy(_))));
    }
    drop((pool, direct));
    store.close().unwrap();
    let store = Store::open_with(dir.path(), &OpenOptions::read_only()).unwrap();
    let pool = store.pool_with("p", Access::ReadOnly).unwrap();
    assert!(matches!(pool.psync(), Err(Error::Store(StoreError::PoolReadOnly { .. }))));
}

#[test]
fn threads_that_psync_one_pool_share_the_work() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pools = [make(&store, "p"), make(&store, "q")];
    let (threads, rounds) = (8, 20);
    let start = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pool, start) = (&pools[thread % 2], &start);
            scope.spawn(move || {
                start.wait();
                for _ in 0..rounds {
                    let step = pool
                        .write(|tx| -> Result<u64> {
                            let root = tx.root::<Root>()?.unwrap();
                            let step = tx.get(root)?.step + 1;
                            apply(tx, pool, step)?;
                            Ok(step)
                        })
                        .unwrap();
                    pool.psync().unwrap();
                    assert!(step > 0);
                }
            });
        }
    });
    let (_, records, syncs) = {
        // SAFETY: asked for figures only.
        unsafe { store.as_raw() }.psync_figures().unwrap()
    };
    println!("{} psyncs, {records} records, {syncs} syncs", threads * rounds);
    assert!(records < (threads * rounds) as u64, "no thread ever shared a psync");
    let want = (threads / 2 * rounds) as u64;
    drop(pools);
    store.abandon();
    lose_power(dir.path(), 3);
    let store = Store::open(dir.path()).unwrap();
    for name in ["p", "q"] {
        assert_eq!(
            step_of(&store.pool(name).unwrap()),
            want,
            "each was psynced before its thread ended"
        );
    }
}

#[test]
fn psyncs_by_policy_come_by_themselves() {
    let policies = [
        PsyncPolicy { every: Some(Duration::from_millis(10)), ..Default::default() },
        PsyncPolicy { bytes: Some(8192), ..Default::default() },
        PsyncPolicy { on_commit: true, ..Default::default() },
    ];
    for policy in policies {
        let dir = directory();
        let store = Store::open(dir.path()).unwrap();
        let pool = make(&store, "p");
        let auto = pool.psync_by(policy).unwrap();
        steps(&pool, 1, 30);
        if policy.on_commit {
            assert_eq!(pool.unsynced_bytes(), 0, "each was psynced before it was acknowledged");
        } else {
            let started = Instant::now();
            while auto.figures().psyncs == 0 || pool.unsynced_bytes() >= policy.bytes.unwrap_or(1) {
                assert!(
                    started.elapsed() < Duration::from_secs(300),
                    "{policy:?}: {:?}",
                    auto.figures()
                );
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(auto.figures().held_max > Duration::ZERO && auto.figures().failures == 0);
        }
        auto.stop().unwrap();
        let unsynced = pool.unsynced_bytes();
        drop(pool);
        store.abandon();
        lose_power(dir.path(), 4);
        let there = step_of(&Store::open(dir.path()).unwrap().pool("p").unwrap());
        assert!(
            there == 30 || (unsynced > 0 && there > 0),
            "{policy:?}: {there}, {unsynced} unsynced"
        );
        // No thread psyncs any more.
        let store = Store::open(dir.path()).unwrap();
        let pool = store.pool("p").unwrap();
        steps(&pool, there + 1, there + 1);
        assert!(pool.unsynced_bytes() > 0);
    }
}

fn holds_cells(primary: &Path) -> bool {
    std::fs::read(primary).unwrap().iter().filter(|b| **b != 0).count() > 4000
}

/// A pool at step 20 of which step 10 was psynced, in a store that lost power. If `trimmed`,
/// nothing of the journal is needed.
fn lost(trimmed: bool) -> tempfile::TempDir {
    let dir = directory();
    let mut store = Store::open(dir.path()).unwrap();
    let (mut pool, mut fine) = (make(&store, "p"), store.create_pool("fine", &shadowed()).unwrap());
    steps(&pool, 1, 10);
    if trimmed {
        drop((pool, fine));
        store.close().unwrap();
        store = Store::open(dir.path()).unwrap();
        (pool, fine) = (store.pool("p").unwrap(), store.pool("fine").unwrap());
    }
    if !trimmed {
        store.psync(&[&pool, &fine]).unwrap();
        // By its contents a test knows whose primary a file is; a thread brings them there.
        let files = || {
            std::fs::read_dir(dir.path().join("primary"))
                .unwrap()
                .map(|entry| entry.unwrap().path())
        };
        let started = Instant::now();
        while !files().any(|path| holds_cells(&path)) {
            assert!(started.elapsed() < Duration::from_secs(60), "nothing was applied");
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    steps(&pool, 11, 20);
    drop((pool, fine));
    store.abandon();
    lose_power(dir.path(), 5);
    dir
}

#[test]
fn a_read_only_open_after_a_loss_of_power_shows_the_last_psync_and_changes_nothing() {
    let dir = lost(false);
    let contents = || {
        let mut all = Vec::new();
        for part in ["puddles", "primary", "."] {
            for entry in std::fs::read_dir(dir.path().join(part)).unwrap() {
                let path = entry.unwrap().path();
                if path.is_file() {
                    all.push((path.clone(), std::fs::read(&path).unwrap()));
                }
            }
        }
        all.sort();
        all
    };
    let before = contents();
    for _ in 0..2 {
        let store = Store::open_with(dir.path(), &OpenOptions::read_only()).unwrap();
        assert_eq!(store.report().restored.len(), 2, "{:?}", store.report());
        assert_eq!(step_of(&store.pool_with("p", Access::ReadOnly).unwrap()), 10);
        store.close().unwrap();
    }
    assert!(before == contents(), "a read-only open changed a file");
    assert_eq!(step_of(&Store::open(dir.path()).unwrap().pool("p").unwrap()), 10);
}

/// Takes files away, looks at what an open says, and brings them back.
fn without(dir: &Path, which: impl Fn(&Path) -> bool, look: impl FnOnce()) {
    let aside = directory();
    let mut taken = Vec::new();
    for part in [dir.to_path_buf(), dir.join("primary")] {
        for entry in std::fs::read_dir(part).unwrap() {
            let path = entry.unwrap().path();
            if path.is_file() && which(&path) {
                let to = aside.path().join(path.file_name().unwrap());
                std::fs::copy(&path, &to).unwrap();
                std::fs::remove_file(&path).unwrap();
                taken.push((path, to));
            }
        }
    }
    assert!(!taken.is_empty());
    look();
    for (path, to) in taken {
        std::fs::copy(to, path).unwrap();
    }
}

#[test]
fn a_pool_that_cannot_go_back_is_refused_until_its_file_is_there_again() {
    // The journal, which all such pools need; a primary that it is about, and one that it is not
    // about: either costs its own pool alone.
    for (file, trimmed) in [("journal.pools", false), ("primary/", false), ("primary/", true)] {
        let dir = lost(trimmed);
        let others = file == "primary/";
        let of_p = |path: &Path| {
            if file == "journal.pools" {
                return path.ends_with(file);
            }
            // The one with cells: the other pool is empty.
            path.parent().unwrap().ends_with("primary") && holds_cells(path)
        };
        without(dir.path(), of_p, || {
            for _ in 0..2 {
                let store = Store::open(dir.path()).unwrap();
                let report = store.report();
                assert!(report.not_covered.iter().any(|(_, name)| name == "p"), "{report:?}");
                assert!(
                    report.damage.iter().any(|damage| damage.to_string().contains(file)),
                    "{report:?}"
                );
                let refused = store.pool("p");
                assert!(
                    matches!(refused, Err(Error::Store(StoreError::PoolDamaged { .. }))),
                    "{refused:?}"
                );
                assert_eq!(store.pool("fine").is_ok(), others);
                // As blocks, not as values, if that is what is asked for.
                drop((refused, store));
                let options = OpenOptions {
                    access: Access::ReadOnly,
                    damage: DamagePolicy::ReadOnly,
                    power_loss: PowerLossPolicy::ReadOnly,
                    ..OpenOptions::default()
                };
                let store = Store::open_with(dir.path(), &options).unwrap();
                if let Ok(pool) = store.pool_with("p", Access::ReadOnly) {
                    assert!(pool.read().is_err());
                }
            }
        });
        let store = Store::open(dir.path()).unwrap();
        assert!(store.report().damage.is_empty(), "{:?}", store.report());
        assert_eq!(step_of(&store.pool("p").unwrap()), 10, "{file} {trimmed}");
        drop(store);
        assert!(Store::open(dir.path()).unwrap().report().not_covered.is_empty());
    }
}

#[test]
fn a_removed_pool_takes_its_files_along() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    let pool = make(&store, "p");
    steps(&pool, 1, 5);
    pool.psync().unwrap();
    drop(pool);
    store.remove_pool("p").unwrap();
    let primaries = || std::fs::read_dir(dir.path().join("primary")).unwrap().count();
    assert_eq!(primaries(), 0);
    let kept = make(&store, "q");
    steps(&kept, 1, 3);
    kept.psync().unwrap();
    drop(kept);
    store.abandon();
    // What a crash leaves of a pool that is being made.
    std::fs::write(dir.path().join("primary/00112233445566778899aabbccddeeff"), b"half").unwrap();
    lose_power(dir.path(), 6);
    let store = Store::open(dir.path()).unwrap();
    assert_eq!(primaries(), 1);
    assert_eq!(
        step_of(&store.pool("q").unwrap()),
        3,
        "records of the removed pool are passed over"
    );
}

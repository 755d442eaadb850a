//! Pools that are protected at rest, on a real directory: no plaintext in any file, the last psync
//! after every crash, keys, damage, what is refused.

mod pools;

use crate::shadowed::{CELLS, PSYNCED, Root, kill, step_of, steps};
use cenote::{
    Access, AtRest, AtRestError, CrashKind, Error, Keyring, Locking, OpenOptions, Pool, PoolMode,
    PoolOptions, PoolStart, Result, Store,
};
use cenote_medium::planted::{Bug, plant};
use cenote_medium::sim::{Fault, FaultEffect, FaultPoint, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, Operation};
use cenote_store::StoreError;
use cenote_testkit::child::{Acknowledging, acknowledge, again};
use cenote_testkit::directories::files;
use cenote_testkit::environment::number;
use cenote_testkit::random::mix;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

pub(crate) use pools::{
    CHECKED, Node, PROTECTED, WORD, closed, count, key, key_for, opened, options, push, root_file,
    touch, with_word,
};

#[test]
fn plaintext_is_in_no_file_while_running_after_a_psync_a_close_and_a_crash() {
    for at_rest in PROTECTED {
        let dir = tempfile::tempdir().unwrap();
        let store = Store::open(dir.path()).unwrap();
        let pool = store.create_pool("p", &options(at_rest, key_for(at_rest, 1))).unwrap();
        assert_eq!(pool.at_rest(), at_rest);
        let clear = |when: &str| {
            let found = with_word(dir.path());
            // Integrity hides nothing: the pages lie there as they are, once they are psynced, and
            // in no log before.
            match (at_rest, when) {
                (AtRest::Integrity, "running") => assert!(found.is_empty(), "{found:?}"),
                (AtRest::Integrity, _) => {
                    assert!(!found.is_empty(), "the search finds nothing at all")
                }
                _ => assert!(found.is_empty(), "{at_rest:?}, {when}: {found:?}"),
            }
        };
        push(&pool, 0, 500);
        touch(&pool);
        clear("running");
        let psync = pool.psync().unwrap();
        assert!(psync.pages > 50, "{psync:?}");
        clear("psynced");
        push(&pool, 500, 600);
        touch(&pool);
        clear("going on");
        drop(pool);
        store.abandon();
        clear("crashed");
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        let pool = store.pool("p").unwrap();
        assert_eq!(count(&pool), 500, "{at_rest:?}: the last psync");
        assert_eq!(store.report().restored.len(), 1);
        push(&pool, 500, 700);
        drop(pool);
        store.close().unwrap();
        clear("closed");
        let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
        assert!(store.report().clean);
        assert_eq!(count(&store.pool_with("p", Access::ReadOnly).unwrap()), 700);
    }
}

const CHILD_DIR: &str = "CENOTE_AT_REST_CHILD_DIR";
/// Nodes that the child pushes before each psync.
const BETWEEN: u64 = 10;

/// Not a test of its own: what a child process runs. Says how many nodes there are after each
/// psync, with the highest bit set.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let options = OpenOptions {
        lock_timeout: Duration::from_secs(20),
        key: Some(key(1)),
        ..OpenOptions::default()
    };
    let store = Store::open_with(&dir, &options).unwrap();
    let pool = store.pool("p").unwrap();
    let mut there = count(&pool);
    loop {
        push(&pool, there, there + BETWEEN);
        touch(&pool);
        pool.psync().unwrap();
        there += BETWEEN;
        if !acknowledge(there | PSYNCED) {
            return;
        }
    }
}

#[test]
fn kill_nine_goes_back_to_the_last_psync_and_leaves_no_plaintext() {
    let (kills, seed) = (number("CENOTE_KILLS", 12), number("CENOTE_SEED", 0xa7e5));
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    drop(store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap());
    store.close().unwrap();
    let mut known = (0, 0);
    for round in 0..kills {
        let child = Acknowledging::start(again("at_rest::child").env(CHILD_DIR, dir.path()));
        known = kill(child, Duration::from_micros(mix(seed + round) % 60_000), known);
        assert_eq!(with_word(dir.path()), Vec::<PathBuf>::new(), "round {round}");
        let store = opened(dir.path(), Access::ReadWrite, Some(key(1)));
        let report = store.report();
        assert_eq!(report.crash, Some(CrashKind::Process));
        assert!(report.damage.is_empty() && report.logs.is_empty(), "{report:?}");
        assert_eq!(report.restored.len(), 1, "{report:?}");
        let pool = store.pool("p").unwrap();
        assert!(matches!(pool.start(), PoolStart::Dirty(_)));
        let there = count(&pool);
        assert!(
            there == known.1 || there == known.1 + BETWEEN,
            "round {round}: {there}, {known:?}"
        );
        assert!(pool.check().unwrap().is_sound());
        known.1 = there;
        drop(pool);
        store.close().unwrap();
    }
    assert!(known.1 > kills, "the children hardly did anything");
}

/// What an opening came to, as far as keys go.
fn refusal(opened: Result<Pool>) -> Option<AtRestError> {
    match opened {
        Err(Error::Store(StoreError::AtRest { source, .. })) => Some(*source),
        Err(error) => panic!("{error}"),
        Ok(_) => None,
    }
}

#[test]
fn a_pool_opens_under_its_key_and_under_no_other() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let open = |store: &Store, key: &Keyring| store.pool_with_key("p", Access::ReadWrite, key);
    let pool = store.create_pool("p", &options(AtRest::EncryptionIntegrity, Some(key(1)))).unwrap();
    push(&pool, 0, 5);
    // Open in this process already: another opener has to give the key all the same.
    assert!(matches!(refusal(open(&store, &key(2))), Some(AtRestError::WrongKey { .. })));
    assert!(matches!(refusal(store.pool("p")), Some(AtRestError::NoKey { .. })));
    assert_eq!(count(&open(&store, &key(1)).unwrap()), 5);
    drop(pool);
    store.close().unwrap();
    let store = Store::open(dir.path()).unwrap();
    assert!(matches!(refusal(open(&store, &key(2))), Some(AtRestError::WrongKey { .. })));
    assert!(matches!(refusal(store.pool("p")), Some(AtRestError::NoKey { .. })));
    let passphrase = || {
        let cheap = cenote::Argon2Params { memory_kib: 64, passes: 1, lanes: 1 };
        Keyring::from_passphrase(&mut b"correct horse".to_vec(), cheap, Locking::IfPossible)
            .unwrap()
    };
    assert!(matches!(refusal(open(&store, &passphrase())), Some(AtRestError::WrongKeyKind { .. })));
    assert_eq!(count(&open(&store, &key(1)).unwrap()), 5);
    // Another key, in this session and in the next; and a passphrase.
    store.rekey_pool("p", &key(1), &key(3)).unwrap();
    assert!(matches!(refusal(open(&store, &key(1))), Some(AtRestError::WrongKey { .. })));
    let pool = open(&store, &key(3)).unwrap();
    push(&pool, 5, 3000);
    assert!(pool.psync().unwrap().seq > 0);
    let busy = store.rekey_pool("p", &key(3), &key(4));
    assert!(matches!(busy, Err(Error::Store(StoreError::PoolInUse { .. }))), "{busy:?}");
    drop(pool);
    let wrong = store.rekey_pool("p", &key(1), &key(4));
    assert!(matches!(wrong, Err(Error::Store(StoreError::AtRest { .. }))), "{wrong:?}");
    store.rekey_pool("p", &key(3), &passphrase()).unwrap();
    store.close().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let pool = open(&store, &passphrase()).unwrap();
    assert_eq!(
        count(&pool),
        3000,
        "puddles that were taken under the old key are under the new one"
    );
    drop(pool);
    // A key for a pool that needs none may mean that the pool was replaced.
    drop(store.create_pool("plain", &options(AtRest::None, None)).unwrap());
    let plain = store.pool_with_key("plain", Access::ReadWrite, &key(1));
    assert!(matches!(plain, Err(Error::Store(StoreError::NotProtected { .. }))), "{plain:?}");
    let plain = store.create_pool("other", &options(AtRest::None, Some(key(1))));
    assert!(matches!(plain, Err(Error::Store(StoreError::NotProtected { .. }))), "{plain:?}");
    assert!(matches!(
        refusal(store.create_pool("other", &options(AtRest::Encryption, None))),
        Some(AtRestError::NoKey { .. })
    ));
    assert!(
        store.pools().iter().all(|pool| pool.record.name != "other"),
        "it was made all the same"
    );
}

#[test]
fn a_damaged_page_is_named_and_the_others_can_be_read() {
    for at_rest in CHECKED {
        let dir = tempfile::tempdir().unwrap();
        let path = closed(dir.path(), at_rest);
        let bytes = std::fs::read(&path).unwrap();
        // The last page of the puddle that was ever written: values.
        let written = |page: &usize| bytes[page * 4096..][..4096].iter().any(|byte| *byte != 0);
        let page = (1..64).rev().find(written).unwrap();
        let file = std::fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(&[bytes[page * 4096 + 77] ^ 4], page as u64 * 4096 + 77).unwrap();
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        let pool = store.pool("p").unwrap();
        let (mut last, mut told) = (0, 0);
        let found = pool.verify(&mut |done, all| {
            (last, told) = (done, all);
            true
        });
        assert_eq!(last, told);
        let damaged: Vec<u64> = found[0].found.damaged.iter().map(|(page, _)| *page).collect();
        assert_eq!(damaged, [page as u64 - 1], "{at_rest:?}: {found:?}");
        assert!(
            found[0].found.covered
                && found.iter().skip(1).all(|puddle| puddle.found.damaged.is_empty())
        );
        let addr = store
            .puddle_records()
            .iter()
            .find(|p| p.pool == pool.id() && p.index == 0)
            .unwrap()
            .addr;
        let mut word = [0; 8];
        let read = |page: usize, word: &mut [u8]| pool.read_at(addr + page as u64 * 4096 + 8, word);
        match read(page, &mut word) {
            Err(Error::Store(StoreError::Sealed { source, .. })) => {
                assert!(source.to_string().contains(&format!("page {}", page - 1)), "{source}");
            }
            other => panic!("{other:?}"),
        }
        (page - 3..page).for_each(|page| read(page, &mut word).unwrap());
        drop(pool);
        store.abandon();
        // Put right again, all of it is there.
        std::fs::write(&path, &bytes).unwrap();
        let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
        assert_eq!(count(&store.pool_with("p", Access::ReadOnly).unwrap()), 300);
    }
}

#[test]
fn files_that_were_cut_short_swapped_or_put_back_are_refused() {
    for at_rest in PROTECTED {
        let dir = tempfile::tempdir().unwrap();
        let path = closed(dir.path(), at_rest);
        let bytes = std::fs::read(&path).unwrap();
        let open = || {
            let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
            store.pool_with("p", Access::ReadOnly)
        };
        let refused = |what: &str| match open() {
            Err(Error::Store(StoreError::PoolDamaged { .. } | StoreError::AtRest { .. })) => {}
            other => panic!("{at_rest:?}, {what}: {other:?}"),
        };
        std::fs::write(&path, &bytes[..bytes.len() - 4096]).unwrap();
        refused("cut short");
        let mut without = bytes.clone();
        without[256 << 10..][..512].fill(0);
        std::fs::write(&path, &without).unwrap();
        refused("without its protection");
        let mut damaged = bytes.clone();
        damaged[(256 << 10) + 300] ^= 1;
        std::fs::write(&path, &damaged).unwrap();
        refused("a bit of its protection");
        // The puddle of another pool of the same mode, size and key.
        std::fs::write(&path, &bytes).unwrap();
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        drop(store.create_pool("q", &options(at_rest, key_for(at_rest, 1))).unwrap());
        let other = root_file(&store, dir.path(), "q");
        store.close().unwrap();
        let of_other = std::fs::read(&other).unwrap();
        std::fs::write(&path, &of_other).unwrap();
        refused("swapped");
        // With the header page of the right one.
        let mut forged = of_other;
        forged[..4096].copy_from_slice(&bytes[..4096]);
        std::fs::write(&path, &forged).unwrap();
        refused("swapped behind its header");
        // What was right once: one file is refused, the whole store is found by anchors.
        std::fs::write(&path, &bytes).unwrap();
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        drop(store.pool("p").unwrap());
        store.close().unwrap();
        let whole: Vec<_> =
            files(dir.path()).into_iter().map(|path| (std::fs::read(&path), path)).collect();
        let store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
        let pool = store.pool("p").unwrap();
        push(&pool, 300, 400);
        pool.psync().unwrap();
        let anchors = pool.anchors();
        pool.check_anchors(&anchors).unwrap();
        drop(pool);
        store.close().unwrap();
        if at_rest.mode().has_tree() {
            std::fs::write(&path, &bytes).unwrap();
            refused("put back alone");
        }
        for (bytes, path) in whole {
            std::fs::write(path, bytes.unwrap()).unwrap();
        }
        let store = opened(dir.path(), Access::ReadOnly, key_for(at_rest, 1));
        let pool = store.pool_with("p", Access::ReadOnly).unwrap();
        assert_eq!(count(&pool), 300, "{at_rest:?}");
        let checked = pool.check_anchors(&anchors);
        // Modes without a tree have no generation; but the puddle that the pool took is gone.
        assert!(checked.is_err(), "{at_rest:?}: {checked:?}");
    }
}

#[test]
fn what_protected_pools_cannot_do_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let direct =
        PoolOptions { mode: PoolMode::Direct, ..options(AtRest::Authenticated, Some(key(1))) };
    let protected = |result: Result<()>| match result {
        Err(Error::Store(StoreError::Protected { .. })) => {}
        other => panic!("{other:?}"),
    };
    protected(store.create_pool("d", &direct).map(drop));
    let pool = store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap();
    let plain = store.create_pool("plain", &options(AtRest::None, None)).unwrap();
    push(&pool, 0, 10);
    let together = store.write(&[&pool, &plain], |_| -> Result<()> { Ok(()) });
    assert!(matches!(together, Err(Error::Modes { .. })), "{together:?}");
    // A transaction in a transaction would wait for itself, though it has another log.
    let nested = pool.write(|_| plain.write(|_| -> Result<()> { Ok(()) }));
    assert!(matches!(nested, Err(Error::WouldDeadlock { .. })), "{nested:?}");
    // Both kinds in one psync are one record.
    push(&plain, 0, 3);
    assert!(store.psync(&[&pool, &plain]).unwrap().pages > 1);
    drop((pool, plain));
    let pool = store.pool_with_key("p", Access::ReadWrite, &key(1)).unwrap();
    assert_eq!(count(&pool), 10);
    // Space stays: a hole would be a page that was never written.
    assert!(pool.trim().unwrap().unsupported);
}

/// A puddle that is named, and of which there is no memory to be had, is given back.
#[test]
fn growth_that_fails_late_leaves_no_puddle() {
    let sim = SimMedium::new(SimOptions::new(Durability::Process));
    let medium: Arc<dyn Medium> = sim.clone();
    let window_base = Some(crate::archives::window());
    let format =
        cenote_store::FormatOptions { window_base, window_len: 64 << 20, ..Default::default() };
    cenote_store::format(Arc::clone(&medium), &format).unwrap();
    let key = Some(key(1));
    let opening = cenote_store::OpenOptions { key: key.clone(), ..Default::default() };
    let store = cenote_store::Store::open(Arc::clone(&medium), opening).unwrap().0;
    store.create_pool("p", &options(AtRest::Authenticated, key)).unwrap();
    let pool = store.open_pool("p", Access::ReadWrite).unwrap();
    let seen = || (store.puddle_records(), medium.list("puddles").unwrap());
    let before = seen();
    sim.inject(Fault::once(FaultPoint::Operation(Operation::Map), 0, FaultEffect::Io));
    let failed = pool.take_puddle(256 << 10);
    assert!(failed.is_err() && sim.fault_hits() == 1, "{failed:?}");
    assert_eq!(seen(), before);
    assert_eq!(pool.take_puddle(256 << 10).unwrap().index(), 1);
    store.abandon();
}

/// Random steps, psyncs, closes and crashes: the pool is always what the steps up to some moment
/// make, and that moment is the right one.
#[test]
fn a_protected_pool_is_removed_where_no_other_is_in_shadowed_mode() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let pool = store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap();
    push(&pool, 0, 300);
    pool.psync().unwrap();
    drop(pool);
    // SAFETY: the pool is not open; nothing else is done with the store underneath.
    unsafe { store.as_raw() }.remove_pool("p").unwrap();
    assert!(store.pools().is_empty());
    store.close().unwrap();
    let heaps = |path: &PathBuf| std::fs::metadata(path).unwrap().len() >= 256 << 10;
    assert_eq!(files(&dir.path().join("puddles")).iter().filter(|path| heaps(path)).count(), 0);
}

#[test]
fn what_is_psynced_while_it_is_verified_is_not_called_damaged() {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let pool = store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap();
    push(&pool, 0, 400);
    pool.psync().unwrap();
    std::thread::scope(|scope| {
        let psyncs = scope.spawn(|| {
            for round in 0..60 {
                push(&pool, 400 + round, 401 + round);
                pool.psync().unwrap();
            }
        });
        let mut looks = 0;
        while !psyncs.is_finished() || looks == 0 {
            for puddle in pool.verify(&mut |_, _| true) {
                assert_eq!(puddle.found.damaged, [], "look {looks}");
            }
            looks += 1;
        }
    });
}

#[test]
fn a_protected_pool_is_what_a_model_says() {
    let seed =
        std::env::var("CENOTE_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(0x4d0de1);
    println!("seed {seed}");
    for (at_rest, seed) in PROTECTED.into_iter().zip(seed..) {
        let dir = tempfile::tempdir().unwrap();
        let mut store = Store::open(dir.path()).unwrap();
        let mut pool = store.create_pool("p", &options(at_rest, key_for(at_rest, 1))).unwrap();
        pool.write(|tx| -> Result<()> {
            let root = tx.alloc(Root { step: 0, cells: [None; CELLS] })?;
            tx.set_root(root)
        })
        .unwrap();
        pool.psync().unwrap();
        let (mut now, mut safe) = (0, 0);
        for round in 0..40 {
            let random = mix(seed * 1000 + round);
            steps(&pool, now + 1, now + random % 30);
            now += random % 30;
            let what = random >> 32 & 7;
            if what < 4 {
                pool.psync().unwrap();
            }
            if what < 5 {
                safe = now;
            }
            if !(4..6).contains(&what) {
                continue;
            }
            drop(pool);
            match what {
                4 => store.close().unwrap(),
                _ => store.abandon(),
            }
            now = safe;
            store = opened(dir.path(), Access::ReadWrite, key_for(at_rest, 1));
            pool = store.pool("p").unwrap();
            assert_eq!(step_of(&pool), now, "{at_rest:?}, round {round}");
        }
        assert_eq!(step_of(&pool), now);
        assert!(pool.verify(&mut |_, _| true).iter().all(|puddle| puddle.found.damaged.is_empty()));
    }
}

/// A pool that grows, is psynced and crashes: what is wrong then, if anything.
fn grown_and_crashed(bug: Bug) -> std::result::Result<(), String> {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(dir.path()).unwrap();
    let pool = store.create_pool("p", &options(AtRest::Authenticated, Some(key(1)))).unwrap();
    // A thread's log is taken with its first transaction, and holds what that changes in place.
    plant(bug);
    push(&pool, 0, 100);
    touch(&pool);
    let first = pool.psync();
    push(&pool, 100, 2000);
    let psynced = first.and_then(|_| pool.psync());
    plant(Bug::None);
    let psynced = psynced.map_err(|error| error.to_string())?;
    let found = with_word(dir.path());
    let damaged: usize =
        pool.verify(&mut |_, _| true).iter().map(|puddle| puddle.found.damaged.len()).sum();
    if !found.is_empty() || damaged > 0 {
        return Err(format!("plaintext in {found:?}, {damaged} pages are damaged"));
    }
    drop(pool);
    store.abandon();
    plant(bug);
    let store = opened(dir.path(), Access::ReadWrite, Some(key(1)));
    plant(Bug::None);
    if store.report().restored.len() != 1 {
        return Err("the pool does not count as gone back".into());
    }
    let pool = store.pool("p").unwrap();
    let report = pool.check().map_err(|error| error.to_string())?;
    if !report.is_sound() {
        return Err(format!("{report:?}"));
    }
    assert!(psynced.pages > 200, "{psynced:?}");
    assert_eq!(count(&pool), 2000);
    Ok(())
}

#[test]
fn planted_bugs_of_protected_pools_are_found() {
    grown_and_crashed(Bug::None).unwrap();
    for bug in
        [Bug::GrownNotPsynced, Bug::SealedNotCommitted, Bug::HiddenLogInFile, Bug::ProtectedNotVoid]
    {
        let found = grown_and_crashed(bug).expect_err("the bug was not found");
        println!("{bug:?}: {found}");
    }
}

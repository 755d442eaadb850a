//! Copies of pools into pools of each kind of heap ([`Store::copy_pool`]): what is in them, what is
//! refused, and what goes on after it was stopped.

mod killed;
mod world;

use crate::common::directory;
use cenote::HeapKind::{Logged, Traced};
use cenote::{
    Access, CopiedPool, CopyOptions, CopyProgress, CopyRefused, Error, HeapKind, Persist, Pool,
    PoolOptions, Ptr, Reader, Result, Store,
};
use cenote_medium::planted::{Bug, CopyBug, plant};
use cenote_store::StoreError;
use core::ops::ControlFlow;
use world::{COUNT, Kept, contents, fill, formatted, opened, options};

const KINDS: [HeapKind; 3] = [Traced, Logged, HeapKind::WEAR];

/// Ways of keeping data that this build has.
const KEPT: [Kept; 3] = [Kept::Direct, Kept::Shadowed, Kept::Protected];

fn copied(store: &Store, from: &str, to: &str, pool: PoolOptions) -> Result<CopiedPool> {
    store.copy_pool(from, to, CopyOptions::new(pool))
}

/// A copy that is stopped after so many transactions.
fn stopped(
    store: &Store,
    from: &str,
    to: &str,
    pool: PoolOptions,
    after: u64,
) -> Result<CopiedPool> {
    let mut left = after;
    let mut stop = |_: &CopyProgress| match left {
        0 => ControlFlow::Break(()),
        _ => {
            left -= 1;
            ControlFlow::Continue(())
        }
    };
    let mut options = CopyOptions::new(pool);
    options.batch = 4;
    options.progress = Some(&mut stop);
    store.copy_pool(from, to, options)
}

#[track_caller]
fn assert_sound(pool: &Pool, blocks: u64) {
    let report = pool.check().expect("checked");
    assert!(report.is_sound(), "{report:#?}");
    assert_eq!(report.stats.blocks, blocks, "{report:#?}");
}

/// A store whose pool "from" is filled.
fn filled(path: &std::path::Path, pool: &PoolOptions, count: u64) -> Result<Store> {
    let store = formatted(path);
    let source = store.create_pool("from", pool)?;
    fill(&store, &source, count)?;
    Ok(store)
}

#[test]
fn a_copy_holds_what_its_source_holds() -> Result<()> {
    for (kept, from, to) in KEPT
        .into_iter()
        .flat_map(|kept| KINDS.map(|from| KINDS.map(|to| (kept, from, to))))
        .flatten()
    {
        let dir = directory();
        let store = filled(dir.path(), &options(from, kept), COUNT)?;
        let source = store.pool("from")?;
        let (before, blocks) = (contents(&store, &source)?, source.stats()?.blocks);
        // A leak is not copied.
        source.write(|tx| tx.alloc(99u64).map(drop))?;
        let copy = copied(&store, "from", "to", options(to, kept))?;
        assert_eq!((copy.blocks, copy.heap, copy.resumed), (blocks, to, false));
        let pool = store.pool("to")?;
        assert_eq!(contents(&store, &pool)?, before, "{kept:?}, {from:?} to {to:?}");
        assert_sound(&pool, blocks);
        assert_eq!(contents(&store, &source)?, before);
        // It leads nowhere into its source, and can be changed.
        drop(source);
        let tracked = store.pools().iter().find(|pool| pool.record.name == "to").cloned();
        assert_eq!(tracked.expect("it is there").record.heap, to);
        drop(pool);
        store.remove_pool("from")?;
        store.close()?;
        let store = opened(dir.path());
        let pool = store.pool("to")?;
        assert_eq!(contents(&store, &pool)?, before);
        assert_sound(&pool, blocks);
    }
    Ok(())
}

#[test]
fn a_copy_that_was_stopped_anywhere_goes_on() -> Result<()> {
    for (kept, from, to) in [
        (Kept::Direct, Traced, Logged),
        (Kept::Direct, Logged, Traced),
        (Kept::Shadowed, Traced, Logged),
        (Kept::Protected, Logged, Traced),
        (Kept::Direct, Traced, HeapKind::WEAR),
        (Kept::Protected, HeapKind::WEAR, Logged),
    ] {
        let dir = directory();
        let store = filled(dir.path(), &options(from, kept), 40)?;
        let source = store.pool("from")?;
        let (before, blocks) = (contents(&store, &source)?, source.stats()?.blocks);
        drop(source);
        store.close()?;
        let (mut rounds, mut phases) = (0, 0);
        loop {
            let store = opened(dir.path());
            match stopped(&store, "from", "to", options(to, kept), rounds % 3 + 1) {
                Ok(copy) => {
                    assert_eq!((copy.blocks, copy.resumed), (blocks, true));
                    let pool = store.pool("to")?;
                    assert_eq!(contents(&store, &pool)?, before);
                    assert_sound(&pool, blocks);
                    break;
                }
                Err(Error::Copy(CopyRefused::Stopped { pool, from })) => {
                    assert_eq!((pool.as_str(), from.as_str()), ("to", "from"));
                    let refused = store.pool("to").unwrap_err();
                    let named = "\"to\" is an unfinished copy of pool \"from\"";
                    assert!(refused.to_string().contains(named), "{refused}");
                    phases += 1;
                }
                Err(error) => return Err(error),
            }
            rounds += 1;
            // As a process that dies.
            store.abandon();
        }
        assert!(phases > 15, "{kept:?}: stopped {phases} times");
    }
    Ok(())
}

/// A store with a copy that was stopped on the way.
fn half_done(path: &std::path::Path, to: HeapKind, after: u64) -> Result<Store> {
    let store = filled(path, &options(Traced, Kept::Direct), 40)?;
    let refused = stopped(&store, "from", "to", options(to, Kept::Direct), after).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::Stopped { .. })), "{refused}");
    Ok(store)
}

#[track_caller]
fn assert_changed(result: Result<CopiedPool>, expected: &str) {
    match result {
        Err(Error::Copy(CopyRefused::Changed { pool, from, what, .. })) => {
            assert_eq!((pool.as_str(), from.as_str(), what), ("to", "from", expected));
        }
        other => panic!("{other:?}"),
    }
}

fn set_list(pool: &Pool) -> Result<()> {
    pool.write(|tx| {
        let ring = tx.root_at::<world::Ring>(500)?.expect("set");
        tx.set(ring, cenote::field!(world::Ring, number), 77)
    })
}

#[test]
fn a_source_that_has_changed_is_refused() -> Result<()> {
    for to in KINDS {
        let dir = directory();
        let store = half_done(dir.path(), to, 20)?;
        let again = || copied(&store, "from", "to", options(to, Kept::Direct));
        set_list(&store.pool("from")?)?;
        assert_changed(again(), "a value");
        // The copy can go, and another one begin.
        store.remove_pool("to")?;
        again()?;
        let (source, copy) = (store.pool("from")?, store.pool("to")?);
        assert_eq!(contents(&store, &copy)?, contents(&store, &source)?);
    }
    let dir = directory();
    let store = half_done(dir.path(), Logged, 20)?;
    let again = || copied(&store, "from", "to", options(Logged, Kept::Direct));
    let source = store.pool("from")?;
    let kept = source.read()?.root_at::<u64>(1023)?;
    source.write(|tx| tx.set_root_at::<u64>(1023, None))?;
    // The directory of names keeps the last root.
    assert_changed(again(), "a value");
    source.write(|tx| tx.set_root_at(1023, kept))?;
    source.write(|tx| tx.set_root_at(3, kept))?;
    assert_changed(again(), "a root");
    source.write(|tx| tx.set_root_at::<u64>(3, None))?;
    // It is as it was.
    drop(source);
    again()?;
    Ok(())
}

#[test]
fn a_change_that_is_not_noticed_is_a_planted_bug() -> Result<()> {
    let dir = directory();
    let store = half_done(dir.path(), Logged, 20)?;
    set_list(&store.pool("from")?)?;
    plant(Bug::Copy(CopyBug::NotCompared));
    let done = copied(&store, "from", "to", options(Logged, Kept::Direct));
    plant(Bug::None);
    done?;
    let (source, copy) = (store.pool("from")?, store.pool("to")?);
    assert_ne!(contents(&store, &copy)?, contents(&store, &source)?, "it would be a mixture");
    drop((source, copy));
    store.remove_pool("to")?;
    let refused = stopped(&store, "from", "to", options(Logged, Kept::Direct), 2).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::Stopped { .. })), "{refused}");
    let source = store.pool("from")?;
    let kept = source.read()?.root_at::<u64>(1023)?;
    source.write(|tx| tx.set_root_at(3, kept))?;
    plant(Bug::Copy(CopyBug::RootsNotCompared));
    let done = copied(&store, "from", "to", options(Logged, Kept::Direct));
    plant(Bug::None);
    done?;
    let copy = store.pool("to")?;
    assert!(copy.read()?.root_at::<u64>(3)?.is_none() && kept.is_some(), "it would be older");
    Ok(())
}

/// With each of these a copy is another one than without.
#[test]
fn planted_bugs_of_a_copy_are_seen() -> Result<()> {
    let seen = |bug: CopyBug, to: HeapKind| -> Result<bool> {
        let dir = directory();
        let store = filled(dir.path(), &options(Traced, Kept::Direct), 40)?;
        let source = store.pool("from")?;
        let (before, blocks) = (contents(&store, &source)?, source.stats()?.blocks);
        drop(source);
        for after in [3, 9, 20] {
            plant(Bug::Copy(bug));
            let stopped = stopped(&store, "from", "to", options(to, Kept::Direct), after);
            let opens = store.pool("to").is_ok();
            plant(Bug::None);
            if opens || !matches!(stopped, Err(Error::Copy(CopyRefused::Stopped { .. }))) {
                return Ok(true);
            }
        }
        plant(Bug::Copy(bug));
        let done = copied(&store, "from", "to", options(to, Kept::Direct));
        plant(Bug::None);
        if done.is_err() {
            return Ok(true);
        }
        let pool = store.pool("to")?;
        let report = pool.check()?;
        let same = report.is_sound() && report.stats.blocks == blocks;
        Ok(!same || contents(&store, &pool).ok().is_none_or(|found| found != before))
    };
    for to in KINDS {
        assert!(!seen(CopyBug::EndNotPsynced, to)?, "that is of pools in shadowed mode: {to:?}");
        for bug in [
            CopyBug::ScannedEarly,
            CopyBug::OpensUnfinished,
            CopyBug::RelativeAsItStands,
            CopyBug::TableForgotten,
        ] {
            assert!(seen(bug, to)?, "{bug:?} into a {to:?} heap");
        }
    }
    Ok(())
}

#[test]
fn what_is_in_the_way_is_refused() -> Result<()> {
    let dir = directory();
    let store = half_done(dir.path(), Logged, 5)?;
    let logged = || options(Logged, Kept::Direct);
    let refused = copied(&store, "from", "to", options(Traced, Kept::Direct)).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::Kind { .. })), "{refused}");
    let refused = copied(&store, "other", "to", logged()).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::OtherSource { .. })), "{refused}");
    let refused = copied(&store, "to", "third", logged()).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::Unfinished { .. })), "{refused}");
    for (from, to) in [("from", "other"), ("from", "from")] {
        let refused = copied(&store, from, to, options(Traced, Kept::Direct)).unwrap_err();
        assert!(matches!(refused, Error::Store(StoreError::PoolExists { .. })), "{refused}");
    }
    let refused = copied(&store, "nowhere", "third", logged()).unwrap_err();
    assert!(matches!(refused, Error::Store(StoreError::PoolUnknown { .. })), "{refused}");
    let empty = store.create_pool("empty", &logged())?;
    let refused = copied(&store, "from", "empty", logged()).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::Open { .. })), "{refused}");
    drop(empty);
    copied(&store, "from", "empty", logged())?;
    let other = store.pool("other")?;
    let refused: Result<CopiedPool> = other.write(|_| copied(&store, "from", "third", logged()));
    assert!(matches!(refused, Err(Error::WouldDeadlock { .. })), "{refused:?}");
    assert!(!store.pools().iter().any(|pool| pool.record.name == "third"));
    // All of it is as before.
    copied(&store, "from", "to", logged())?;
    Ok(())
}

/// Words that are no pointers to others than this program.
#[derive(Persist)]
#[persist(name = "copies::Keeper")]
struct Keeper {
    kept: Option<Ptr<u64>>,
}

struct Packed {
    word: u64,
}

// SAFETY: any bytes are a value; the word is described.
unsafe impl Persist for Packed {
    const TYPE_ID: cenote::TypeId = cenote::TypeId::of_name("copies::Packed");

    fn type_name() -> String {
        "copies::Packed".into()
    }

    fn describe(layout: &mut cenote::persist::LayoutBuilder) {
        layout.field::<u64>("word", 0);
        layout.possible_pointers(0, 1);
    }
}

#[test]
fn a_block_that_cannot_be_copied_is_named() -> Result<()> {
    let dir = directory();
    let store = formatted(dir.path());
    let pool = store.create_pool("from", &options(Traced, Kept::Direct))?;
    let again = || {
        let refused = copied(&store, "from", "to", options(Logged, Kept::Direct)).unwrap_err();
        let Error::Copy(refused) = refused else { panic!("{refused}") };
        store.remove_pool("to").expect("it is removed");
        refused
    };
    let keeper = pool.write(|tx| {
        let value = tx.alloc(5u64)?;
        let keeper = tx.alloc(Keeper { kept: Some(value) })?;
        tx.free(value)?;
        tx.set_root(keeper)?;
        Ok::<_, Error>(keeper)
    })?;
    match again() {
        CopyRefused::Dangling { block, type_name, at, .. } => {
            assert_eq!((block, at), (keeper.addr(), keeper.addr()));
            assert_eq!(type_name, "copies::Keeper");
        }
        other => panic!("{other}"),
    }
    let packed = pool.write(|tx| {
        tx.set(keeper, cenote::field!(Keeper, kept), None)?;
        let packed = tx.alloc(Packed { word: 12 })?;
        tx.set_root_at(1, Some(packed))?;
        Ok::<_, Error>(packed)
    })?;
    match again() {
        CopyRefused::Unclear { block, at, .. } => {
            assert_eq!((block, at), (packed.addr(), packed.addr()));
        }
        other => panic!("{other}"),
    }
    pool.write(|tx| tx.get_mut(packed).map(|packed| packed.word = 0))?;
    // SAFETY: the block is led to by a root that no value is read from.
    let untyped = unsafe { pool.raw_heap() }
        .alloc(64, 8, cenote::TypeId::UNTYPED)
        .expect("a block")
        .addr
        .as_ptr() as u64;
    // SAFETY: as above.
    unsafe { pool.raw_heap() }.set_root(2, untyped, cenote::TypeId::UNTYPED).expect("set");
    match again() {
        CopyRefused::NoRecord { block, type_id, .. } => {
            assert_eq!((block, type_id), (untyped, cenote::TypeId::UNTYPED));
        }
        other => panic!("{other}"),
    }
    // SAFETY: as above.
    unsafe { pool.raw_heap() }.set_root(2, 0, cenote::TypeId::UNTYPED).expect("set");
    copied(&store, "from", "to", options(Logged, Kept::Direct))?;
    assert_sound(&store.pool("to")?, 2);
    Ok(())
}

#[test]
fn a_full_pool_ends_a_copy_and_more_room_is_another_one() -> Result<()> {
    let dir = directory();
    let store = filled(dir.path(), &options(Traced, Kept::Direct), COUNT)?;
    let small = |size_max| PoolOptions { size_max, ..options(Logged, Kept::Direct) };
    let large = store.pool("from")?;
    for _ in 0..200 {
        large.write(|tx| {
            let root = tx.root_at::<Chunk>(7)?;
            let chunk = tx.alloc(Chunk { words: [1; 2000], next: root })?;
            tx.set_root_at(7, Some(chunk))
        })?;
    }
    drop(large);
    let refused = copied(&store, "from", "to", small(2 << 20)).unwrap_err();
    assert!(matches!(refused, Error::NoRoom { .. }), "{refused}");
    assert!(!store.pools().iter().any(|pool| pool.record.name == "to"), "nothing was begun");
    let refused = copied(&store, "from", "to", small(4 << 20)).unwrap_err();
    assert!(matches!(refused, Error::NoRoom { .. }), "{refused}");
    let refused = store.pool_with("to", Access::ReadOnly).unwrap_err();
    assert!(matches!(refused, Error::Copy(CopyRefused::Unfinished { .. })), "{refused}");
    store.remove_pool("to")?;
    copied(&store, "from", "to", options(Logged, Kept::Direct))?;
    let (source, copy) = (store.pool("from")?, store.pool("to")?);
    assert_eq!(contents(&store, &copy)?, contents(&store, &source)?);
    assert_sound(&copy, source.stats()?.blocks);
    Ok(())
}

#[derive(Persist)]
#[persist(name = "copies::Chunk")]
struct Chunk {
    words: [u64; 2000],
    next: Option<Ptr<Chunk>>,
}

#[derive(Persist)]
#[persist(name = "copies::Triple")]
struct Triple {
    before: u64,
    kept: Option<Ptr<u64>>,
    behind: u64,
}

/// Arrays of a logged heap are zero to the end of their blocks, whatever the blocks held before.
#[test]
fn what_a_block_has_beyond_an_array_is_zero() -> Result<()> {
    let found = |bug: Bug| -> Result<bool> {
        let dir = directory();
        let store = formatted(dir.path());
        let pool = store.create_pool("p", &options(Logged, Kept::Direct))?;
        // Blocks full of what looks like pointers to nothing.
        let base = pool.write(|tx| tx.alloc(0u64)).map(|ptr: Ptr<u64>| ptr.addr())?;
        for round in 0..60 {
            let dirty: Vec<Ptr<[u64; 64]>> = pool.write(|tx| {
                (0..20).map(|_| tx.alloc([base + 0x10_0008 + round; 64])).collect::<Result<_>>()
            })?;
            pool.write(|tx| dirty.iter().try_for_each(|dirty| tx.free(*dirty)))?;
        }
        plant(bug);
        let made = pool.write(|tx| {
            for index in 0..64 {
                let header = tx.alloc(Keeper { kept: None })?;
                // 17 values of 24 bytes: 408 of 512.
                // SAFETY: no value of the array is read.
                let (array, _) = unsafe { tx.alloc_array::<_, Triple>(header, 17) }?;
                tx.set_root_at(index, Some(array))?;
                tx.set_root_at(index + 64, Some(header))?;
            }
            Ok::<_, Error>(())
        });
        plant(Bug::None);
        made?;
        let report = pool.check()?;
        Ok(report.trace.is_some_and(|trace| trace.faults == 0))
    };
    assert!(found(Bug::None)?, "the ends of arrays lead nowhere");
    assert!(!found(Bug::Copy(CopyBug::EndNotCleared))?, "the blocks held other values before");
    Ok(())
}

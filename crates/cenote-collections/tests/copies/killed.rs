//! Children that copy a pool are killed at random moments, and others go on.
//!
//! After each kill the new pool is absent, empty, unfinished or whole. `CENOTE_KILLS` sets the
//! number of kills for each kind of pool (12).

use super::world::{COUNT, Kept, contents, fill, formatted, opened, options};
use crate::common::directory;
use cenote::HeapKind::{Logged, Traced};
use cenote::{
    Access, CopyOptions, CopyProgress, CopyRefused, Error, HeapKind, Pool, Result, Store,
};
use cenote_store::StoreError;
use cenote_testkit::child::{Acknowledging, acknowledge, task, with_task};
use cenote_testkit::environment::number;
use cenote_testkit::random::mix;
use core::ops::ControlFlow;
use std::time::Duration;

const TEST: &str = "copies::killed::a_copy_that_is_killed_goes_on";

const CASES: [(Kept, HeapKind, HeapKind); 4] = [
    (Kept::Direct, Traced, Logged),
    (Kept::Direct, Logged, Traced),
    (Kept::Shadowed, Traced, Logged),
    (Kept::Protected, Logged, Traced),
];

/// Copies; a child says a word after each transaction. What another has finished is finished.
fn copy(store: &Store, case: usize, is_child: bool) -> Result<()> {
    let (kept, _, to) = CASES[case];
    let mut say = |_: &CopyProgress| match !is_child || acknowledge(1) {
        true => ControlFlow::Continue(()),
        false => ControlFlow::Break(()),
    };
    let mut with = CopyOptions::new(options(to, kept));
    with.batch = 2;
    with.progress = Some(&mut say);
    match store.copy_pool("from", "to", with) {
        Err(Error::Store(StoreError::PoolExists { .. })) => Ok(()),
        done => done.map(drop),
    }
}

/// The new pool, if it is whole.
fn whole(store: &Store) -> Result<Option<Pool>> {
    if !store.pools().iter().any(|pool| pool.record.name == "to") {
        return Ok(None);
    }
    match store.pool_with("to", Access::ReadWrite) {
        Err(Error::Copy(CopyRefused::Unfinished { .. })) => Ok(None),
        // Nothing was begun in it.
        Ok(pool) if pool.stats()?.blocks == 0 => Ok(None),
        pool => pool.map(Some),
    }
}

#[test]
fn a_copy_that_is_killed_goes_on() -> Result<()> {
    if let Some((case, directory)) = task() {
        let store = opened(&directory);
        copy(&store, case.parse().expect("a number"), true)?;
        // The parent hears a word of each child, and kills it.
        while acknowledge(2) {
            std::thread::sleep(Duration::from_millis(5));
        }
        return Ok(());
    }
    let kills = number("CENOTE_KILLS", 12);
    for (case, (kept, from, to)) in CASES.into_iter().enumerate() {
        let dir = directory();
        let store = formatted(dir.path());
        let source = store.create_pool("from", &options(from, kept))?;
        fill(&store, &source, COUNT)?;
        let (before, blocks) = (contents(&store, &source)?, source.stats()?.blocks);
        drop(source);
        store.close()?;
        let (mut unfinished, mut finished) = (0, 0);
        for kill in 0..kills {
            let mut child = with_task(TEST, &case.to_string(), dir.path());
            let after = Duration::from_micros(mix(kill) % 60_000);
            let _ =
                Acknowledging::start(&mut child).kill(true, after, |word| word == 1 || word == 2);
            let store = opened(dir.path());
            let Some(pool) = whole(&store)? else {
                unfinished += 1;
                store.abandon();
                continue;
            };
            finished += 1;
            assert_eq!(contents(&store, &pool)?, before, "{kept:?}, {from:?} to {to:?}");
            drop(pool);
            store.remove_pool("to")?;
            store.close()?;
        }
        let store = opened(dir.path());
        copy(&store, case, false)?;
        let pool = whole(&store)?.expect("nothing killed this one");
        assert_eq!(contents(&store, &pool)?, before, "{kept:?}, {from:?} to {to:?}");
        super::assert_sound(&pool, blocks);
        println!("{kept:?}, {from:?} to {to:?}: {unfinished} unfinished, {finished} finished");
    }
    Ok(())
}

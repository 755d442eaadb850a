//! Files of puddles that no record names are removed if nothing can be lost with them. Two stores
//! share their directories by mounts, in turns: neither removes what the other has made, whether
//! sessions close or are killed.

use crate::at_rest::{count, options, push};
use crate::linked::{Bound, linked, made, opened};
use crate::support::directory;
use cenote::{Access, AtRest, OpenOptions, PoolMode, PoolOptions, Result, Store};
use cenote_medium::planted::{Bug, plant};
use cenote_store::Damage;
use std::fs;
use std::path::Path;

/// Pools that a store makes while its directories are another one's, too.
const LATER: [(&str, PoolMode, AtRest); 3] = [
    ("later direct", PoolMode::Direct, AtRest::None),
    ("later shadowed", PoolMode::Shadowed, AtRest::None),
    ("later protected", PoolMode::Shadowed, AtRest::Integrity),
];

/// Makes the pools and writes them.
fn make_later(dir: &Path, closes: bool) -> Result<()> {
    let store = opened(dir, Access::ReadWrite)?;
    for (name, mode, at_rest) in LATER {
        let options = PoolOptions { mode, ..options(at_rest, None) };
        let pool = store.create_pool(name, &options)?;
        push(&pool, 0, 3);
        if mode == PoolMode::Shadowed {
            pool.psync()?;
        }
    }
    end(store, closes)
}

fn end(store: Store, closes: bool) -> Result<()> {
    match closes {
        true => store.close(),
        false => {
            store.abandon();
            Ok(())
        }
    }
}

/// How much the pools have; the error: of the first that cannot be opened.
fn later(dir: &Path) -> Result<Vec<u64>> {
    let store = opened(dir, Access::ReadWrite)?;
    let counts = LATER.iter().map(|(name, ..)| Ok(count(&store.pool(name)?))).collect();
    store.close()?;
    counts
}

fn orphans(store: &Store) -> usize {
    let damage = &store.report().damage;
    damage.iter().filter(|damage| matches!(damage, Damage::Orphan { .. })).count()
}

/// The directories of a store are mounted into its copy. One of them makes pools, and the other is
/// opened, and ended, twice; the first has its pools then. `None`: no mounts here.
fn in_turns(copy_makes: bool, ends: [bool; 3], bug: Bug) -> Result<Option<Result<Vec<u64>>>> {
    let keep = directory();
    let (dir, copy) = (made(keep.path()), keep.path().join("other"));
    linked(&dir, &copy, "nothing");
    fs::write(copy.join("lock"), "").unwrap();
    if copy_makes {
        // The original may have been killed, of which nothing is in the copy.
        end(opened(&dir, Access::ReadWrite)?, ends[2])?;
    }
    let mount = |what: &str| Bound::new(&dir.join(what), &copy.join(what));
    let (Some(_puddles), Some(_primaries)) = (mount("puddles"), mount("primary")) else {
        println!("skipped: no bind mounts here");
        return Ok(None);
    };
    let (one, other) = if copy_makes { (&copy, &dir) } else { (&dir, &copy) };
    make_later(one, ends[0])?;
    plant(bug);
    for _ in 0..2 {
        let looked = opened(other, Access::ReadOnly)?;
        assert!(bug != Bug::None || orphans(&looked) >= 4, "{:?}", looked.report().damage);
        drop(looked);
        end(opened(other, Access::ReadWrite)?, ends[1])?;
    }
    plant(Bug::None);
    Ok(Some(later(one)))
}

#[test]
fn a_store_removes_no_file_that_another_one_has_made() -> Result<()> {
    for copy_makes in [false, true] {
        for ends in 0..8 {
            let ends = [ends & 1 == 0, ends & 2 == 0, ends & 4 == 0];
            if !copy_makes && !ends[2] {
                continue;
            }
            let Some(found) = in_turns(copy_makes, ends, Bug::None)? else { return Ok(()) };
            let found = found.unwrap_or_else(|error| panic!("{copy_makes}, {ends:?}: {error}"));
            assert_eq!(found, [3; 3], "the copy makes them: {copy_makes}, they close: {ends:?}");
        }
        let lost = in_turns(copy_makes, [true; 3], Bug::LeftoversNotJudged)?;
        assert!(lost.is_some_and(|found| found.is_err()), "{copy_makes}");
    }
    Ok(())
}

/// A file of a pool that was removed is put back in the closed store.
#[test]
fn a_file_without_a_record_in_a_closed_store_stays_and_is_told() -> Result<()> {
    let keep = directory();
    let dir = made(keep.path());
    let names = || -> Vec<_> {
        let entries = fs::read_dir(dir.join("puddles")).unwrap();
        entries.map(|entry| entry.unwrap().path()).collect()
    };
    let before: Vec<_> = names().into_iter().map(|path| (fs::read(&path).unwrap(), path)).collect();
    let options = OpenOptions { spare_bytes_max: 0, ..OpenOptions::default() };
    let store = Store::open_with(&dir, &options)?;
    store.remove_pool("direct")?;
    // A batch behind that of the removal.
    store.pool("shadowed")?;
    store.close()?;
    let after = names();
    let gone: Vec<_> = before.iter().filter(|(_, path)| !after.contains(path)).collect();
    assert!(!gone.is_empty());
    gone.iter().for_each(|(bytes, path)| fs::write(path, bytes).unwrap());
    for access in [Access::ReadOnly, Access::ReadWrite, Access::ReadOnly] {
        let store = opened(&dir, access)?;
        assert!(orphans(&store) > 0, "{:?}", store.report().damage);
        let said = store.report().damage[0].to_string();
        assert!(said.contains("may belong to another store"), "{said}");
        assert_eq!(count(&store.pool_with("shadowed", Access::ReadOnly)?), 3);
        drop(store);
        assert!(gone.iter().any(|(_, path)| path.exists()));
    }
    // What an operator removes is told no more.
    gone.iter().for_each(|(_, path)| drop(fs::remove_file(path)));
    assert_eq!(orphans(&opened(&dir, Access::ReadOnly)?), 0);
    Ok(())
}

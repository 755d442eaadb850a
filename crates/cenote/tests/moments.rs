//! Files of another moment that have the stamp which is expected, unless closes and rewriting see
//! to it: of a puddle whose pointers were rewritten where it lies, of a close that was begun and
//! not finished, and of a puddle that was away for several sessions.

use crate::archives::{Node, list, small, store_with_window, window};
use crate::hot_copies::{add, damaged, made, opened, shows, written};
use crate::seals::{Files, files, put_back, refused, root_file};
use crate::support::directory;
use cenote::{
    Access, CopyPolicy, Error, Persist, PoolId, PoolMode, PoolOptions, Ptr, Reader, Result, Store,
};
use cenote_layout::puddle::PuddleHeader;
use cenote_medium::planted::{Bug, plant};
use cenote_store::StoreError;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use zerocopy::FromBytes;

/// Points into another pool.
#[derive(Persist)]
#[persist(name = "moments::Across")]
struct Across {
    there: Option<Ptr<Node>>,
}

/// The part of a program that rewrites the pointers.
#[derive(Clone, Copy, Debug)]
enum By {
    Reader,
    Finish,
}

/// The pointer leads to the list.
fn follow(store: &Store, access: Access) -> Result<()> {
    let (pool, list) = (store.pool_with("across", access)?, store.pool_with("list", access)?);
    let first = list.read()?.root::<Node>()?.expect("a root");
    let view = pool.read()?;
    let across = view.root::<Across>()?.expect("a root");
    assert_eq!(view.get(across)?.there.expect("it leads somewhere").addr(), first.addr());
    Ok(())
}

/// A closed store with a list, and a pool that leads into it. The number of that one.
fn across(dir: &Path, mode: PoolMode) -> Result<PoolId> {
    let options = PoolOptions { mode, ..small() };
    let store = store_with_window(dir, window());
    let target = list(&store, "list", &options, 10)?;
    let pool = store.create_pool("across", &options)?;
    store.write(&[&target, &pool], |tx| -> Result<()> {
        let there = tx.root_in::<Node>(&target, 0)?;
        let across = tx.alloc_in(&pool, Across { there })?;
        tx.set_root_in(&pool, 0, Some(across))
    })?;
    let id = pool.id();
    drop((target, pool));
    store.close()?;
    Ok(id)
}

/// The list moves, and pointers to it are rewritten; then each file of the pool that leads to it is
/// as it was before. How many there are, and how many are refused.
fn rewritten(mode: PoolMode, by: By, bug: Bug) -> Result<(usize, usize)> {
    let keep = directory();
    let dir = keep.path().join("store");
    let id = across(&dir, mode)?;
    let older = files(&dir);
    plant(bug);
    let store = Store::open(&dir)?;
    store.randomize_pool("list")?;
    match by {
        By::Reader => follow(&store, Access::ReadOnly)?,
        By::Finish => {
            let pool = store.pool("across")?;
            pool.finish_relocation(&mut |_| ControlFlow::Continue(()))?;
        }
    }
    store.close()?;
    plant(Bug::None);
    let is_of = |bytes: &[u8]| PuddleHeader::read_from_prefix(bytes).unwrap().0.pool == id;
    let newer: Files = files(&dir).into_iter().filter(|(_, bytes)| is_of(bytes)).collect();
    let (mut all, mut refused) = (0, 0);
    for (path, bytes) in newer {
        assert_ne!(older[&path], bytes, "it was rewritten");
        fs::write(dir.join(&path), &older[&path]).unwrap();
        let store = Store::open(&dir)?;
        let shown = store.pool("across").map(drop);
        let is_damaged = matches!(shown, Err(Error::Store(StoreError::PoolDamaged { .. })));
        (all, refused) = (all + 1, refused + usize::from(is_damaged));
        store.close()?;
        fs::write(dir.join(&path), bytes).unwrap();
    }
    if bug == Bug::None {
        let store = Store::open(&dir)?;
        follow(&store, Access::ReadWrite)?;
        store.close()?;
    }
    Ok((all, refused))
}

#[test]
fn a_file_of_before_its_pointers_were_rewritten_is_refused() -> Result<()> {
    for mode in [PoolMode::Direct, PoolMode::Shadowed] {
        for by in [By::Reader, By::Finish] {
            let (all, refused) = rewritten(mode, by, Bug::None)?;
            assert!(all > 0 && all == refused, "{mode:?}, {by:?}: {refused} of {all}");
        }
    }
    let (all, refused) = rewritten(PoolMode::Direct, By::Reader, Bug::RewrittenUnmarked)?;
    assert!(refused < all);
    Ok(())
}

/// What a close writes after it has sealed files, or after its batch.
const LAST: [&[&str]; 2] = [&["superblock", "catalog.0", "catalog.1"], &["superblock"]];

/// A close is not finished; the next session closes the store, and files of the first close are put
/// back, each alone. How many there are, and how many are refused.
fn unfinished(last: &[&str], bug: Bug) -> (usize, usize) {
    let keep = directory();
    let dir = made(keep.path());
    let store = opened(&dir, CopyPolicy::Refuse).unwrap();
    drop(written(&store));
    let before: Vec<Vec<u8>> = last.iter().map(|name| fs::read(dir.join(name)).unwrap()).collect();
    store.close().unwrap();
    for (name, bytes) in last.iter().zip(before) {
        fs::write(dir.join(name), bytes).unwrap();
    }
    let older = files(&dir);
    plant(bug);
    let store = opened(&dir, CopyPolicy::Refuse).unwrap();
    drop(written(&store));
    store.close().unwrap();
    plant(Bug::None);
    let shown = put_back(&dir, &older, CopyPolicy::Refuse);
    let store = opened(&dir, CopyPolicy::Refuse).unwrap();
    assert_eq!(["direct", "shadowed", "idle"].map(|name| shows(&store, name).unwrap()), [3, 3, 1]);
    store.close().unwrap();
    (shown.len(), refused(&shown))
}

#[test]
fn a_file_of_a_close_that_was_not_finished_is_refused_after_the_next_one() {
    for last in LAST {
        let (all, refused) = unfinished(last, Bug::None);
        assert!(all >= 3 && all == refused, "{last:?}: {refused} of {all}");
        let (all, refused) = unfinished(last, Bug::SealOfUnfinished);
        assert!(refused < all, "{last:?}: {refused} of {all}");
    }
}

/// How the session ends whose file is away.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Closed,
    Killed,
}

/// The file of a pool is away when its session ends, and for so many sessions after it. Whether an
/// older one is refused then, and what the file itself shows.
fn away(end: End, sessions: u64, bug: Bug) -> (bool, Result<u64>) {
    let keep = directory();
    let dir = made(keep.path());
    let store = opened(&dir, CopyPolicy::Refuse).unwrap();
    let file = root_file(&dir, &store, "direct");
    let mut older = fs::read(&file).unwrap();
    drop(written(&store));
    store.close().unwrap();
    if end == End::Closed {
        older = fs::read(&file).unwrap();
    }
    let store = opened(&dir, CopyPolicy::Refuse).unwrap();
    drop(written(&store));
    let own = fs::read(&file).unwrap();
    fs::remove_file(&file).unwrap();
    plant(bug);
    match end {
        End::Closed => store.close().unwrap(),
        End::Killed => store.abandon(),
    }
    for _ in 0..sessions {
        let store = opened(&dir, CopyPolicy::Refuse).unwrap();
        assert!(shows(&store, "direct").is_err());
        add(&store.pool("idle").unwrap());
        store.close().unwrap();
    }
    plant(Bug::None);
    let [older, own] = [&older, &own].map(|bytes| {
        fs::write(&file, bytes).unwrap();
        let store = opened(&dir, CopyPolicy::Refuse).unwrap();
        let shown = shows(&store, "direct");
        store.abandon();
        shown
    });
    (damaged(&older), own)
}

#[test]
fn an_older_file_of_a_puddle_that_was_away_is_refused_after_any_number_of_sessions() {
    for (end, sessions) in [End::Closed, End::Killed]
        .into_iter()
        .flat_map(|end| (0..4).map(move |sessions| (end, sessions)))
    {
        let (refused, own) = away(end, sessions, Bug::None);
        assert!(refused, "{end:?}, {sessions}");
        assert_eq!(own.unwrap(), 3, "{end:?}, {sessions}: its own file");
    }
    assert!(!away(End::Closed, 0, Bug::NamedStaysForMarked).0);
    assert!(!away(End::Killed, 2, Bug::LeftByLease).0);
}

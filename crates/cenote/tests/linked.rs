//! Two directories that share files of a store by hard links, or directories by bind mounts, have
//! one writer.
//!
//! The generator links one file, or one directory's files, at a time, and copies the rest; one
//! store is open, or closed, when the links are made.

use crate::at_rest::{count, options, push};
use crate::support::{directory, hashes};
use cenote::{Access, AtRest, Error, OpenOptions, Pool, Result, Store};
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, plant};
use cenote_store::{OpenError, StoreError};
use std::fs;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is linked, each with the pools that cannot be written then; `None`: the store cannot.
const LINKED: [(&str, Option<&[&str]>); 6] = [
    ("puddles", Some(&["direct", "shadowed"])),
    ("primary", Some(&["shadowed"])),
    ("superblock", None),
    ("catalog.0", None),
    ("catalog.1", None),
    ("journal.pools", None),
];
const POOLS: [&str; 2] = ["direct", "shadowed"];

/// A store with a pool in each mode, closed.
pub(crate) fn made(keep: &Path) -> PathBuf {
    let dir = keep.join("store");
    let store = Store::open(&dir).unwrap();
    push(&store.pool("direct").unwrap(), 0, 3);
    let shadowed = store.create_pool("shadowed", &options(AtRest::None, None)).unwrap();
    push(&shadowed, 0, 3);
    shadowed.psync().unwrap();
    drop(shadowed);
    store.close().unwrap();
    dir
}

/// Copies a directory; what is named is linked.
pub(crate) fn linked(from: &Path, to: &Path, what: &str) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap();
        let (within, other) = (name == what || from.ends_with(what), to.join(name));
        if path.is_dir() {
            linked(&path, &other, what);
        } else if within {
            fs::hard_link(&path, other).unwrap();
        } else if name != "lock" {
            fs::copy(&path, other).unwrap();
        }
    }
}

/// Whether the error names a file with two names.
fn names_links(error: &Error) -> bool {
    let medium = match error {
        Error::Open(OpenError::Medium { source, .. }) => &**source,
        Error::Store(StoreError::Medium(source)) => source,
        _ => return false,
    };
    matches!(medium, MediumError::Linked { links: 2, .. })
        && error.to_string().contains("rename the copy over")
}

/// Opens a store to write, and says which pools it may write.
fn writable(dir: &Path) -> Result<Vec<&'static str>> {
    let store = Store::open(dir)?;
    let mut pools = Vec::new();
    for name in POOLS {
        match store.pool(name) {
            Ok(pool) => {
                push(&pool, count(&pool), count(&pool) + 1);
                pools.push(name);
            }
            Err(error) => assert!(names_links(&error), "{name}: {error}"),
        }
    }
    store.close()?;
    Ok(pools)
}

fn check(dir: &Path, what: &str, refused: Option<&[&str]>) {
    match (writable(dir), refused) {
        (Ok(pools), Some(refused)) => {
            let others: Vec<_> = POOLS.into_iter().filter(|pool| !refused.contains(pool)).collect();
            assert_eq!(pools, others, "{what}");
        }
        (Err(error), None) => assert!(names_links(&error), "{what}: {error}"),
        (found, _) => panic!("{what}: {found:?}"),
    }
}

#[test]
fn files_of_two_stores_are_written_by_neither() {
    for (what, refused) in LINKED {
        let keep = directory();
        let (dir, other) = (made(keep.path()), keep.path().join("other"));
        linked(&dir, &other, what);
        check(&dir, what, refused);
        check(&other, what, refused);
        let looked = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
        let store = Store::open_with(&other, &looked).unwrap();
        assert_eq!(
            count(&store.pool_with("direct", Access::ReadOnly).unwrap()),
            3 + u64::from(what == "primary"),
            "{what}"
        );
        drop(store);
        fs::remove_dir_all(&other).unwrap();
        assert_eq!(writable(&dir).unwrap(), POOLS, "{what}");
    }
}

#[test]
fn a_link_that_is_made_while_a_store_is_open_lets_no_second_writer_in() -> Result<()> {
    for (what, refused) in LINKED {
        let keep = directory();
        let (dir, other) = (made(keep.path()), keep.path().join("other"));
        // The copied superblock says "closed".
        linked(&dir, &other, what);
        let names: Vec<_> =
            walk(&other).into_iter().filter(|path| path_is_of(path, &other, what)).collect();
        let kept: Vec<_> =
            names.iter().map(|path| (dir.join(path.strip_prefix(&other).unwrap()), path)).collect();
        kept.iter().for_each(|(_, path)| fs::remove_file(path).unwrap());
        let store = Store::open(&dir)?;
        let pools: Vec<Pool> = POOLS.iter().map(|name| store.pool(name)).collect::<Result<_>>()?;
        let view = pools[0].read()?;
        kept.iter().for_each(|(original, path)| fs::hard_link(original, path).unwrap());
        match writable(&other) {
            // The superblock that is shared names the process that has the store.
            Err(Error::Open(OpenError::Locked { .. })) if what == "superblock" => {}
            Err(error) if refused.is_none() => assert!(names_links(&error), "{what}: {error}"),
            Ok(written) => {
                assert!(refused.is_some_and(|no| no.iter().all(|pool| !written.contains(pool))))
            }
            Err(error) => panic!("{what}: {error}"),
        }
        drop(view);
        // The first one goes on.
        for pool in &pools {
            push(pool, 3, 5);
            assert_eq!(count(pool), 5, "{what}");
        }
        drop(pools);
        store.close()?;
    }
    Ok(())
}

fn walk(dir: &Path) -> Vec<PathBuf> {
    cenote_testkit::directories::files(dir)
}

fn path_is_of(path: &Path, dir: &Path, what: &str) -> bool {
    path.strip_prefix(dir).unwrap().starts_with(what)
}

#[test]
fn planted_a_writer_of_a_file_with_two_names_changes_a_view_of_the_other_store() -> Result<()> {
    let keep = directory();
    let (dir, other) = (made(keep.path()), keep.path().join("other"));
    linked(&dir, &other, "puddles");
    let looked = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let store = Store::open_with(&dir, &looked)?;
    let pool = store.pool_with("direct", Access::ReadOnly)?;
    plant(Bug::LinksAccepted);
    let written = writable(&other);
    plant(Bug::None);
    assert_eq!(written?, POOLS);
    let seen = catch_unwind(AssertUnwindSafe(|| count(&pool)));
    assert_ne!(seen.ok(), Some(3), "another store's transaction is seen, or half of it");
    Ok(())
}

/// One directory of a store that is mounted at another place too, until this is dropped.
pub(crate) struct Bound(PathBuf);

impl Bound {
    /// `None` where this process may not mount.
    pub(crate) fn new(from: &Path, to: &Path) -> Option<Self> {
        let done = Command::new("mount").arg("--bind").args([from, to]).output();
        done.is_ok_and(|done| done.status.success()).then(|| Self(to.to_owned()))
    }
}

impl Drop for Bound {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

/// Opens a store to write, or to read.
pub(crate) fn opened(dir: &Path, access: Access) -> Result<Store> {
    Store::open_with(dir, &OpenOptions { access, ..OpenOptions::default() })
}

fn is_locked<T>(opened: &Result<T>) -> bool {
    matches!(opened, Err(Error::Open(OpenError::Locked { .. })))
}

const DIRECTORIES: [&str; 2] = ["puddles", "primary"];

#[test]
fn directories_that_are_mounted_into_two_stores_have_one_writer() -> Result<()> {
    for what in DIRECTORIES {
        let keep = directory();
        let (dir, other) = (made(keep.path()), keep.path().join("other"));
        linked(&dir, &other, "nothing");
        let Some(_bound) = Bound::new(&dir.join(what), &other.join(what)) else {
            println!("skipped: no bind mounts here");
            return Ok(());
        };
        let store = opened(&dir, Access::ReadWrite)?;
        for access in [Access::ReadWrite, Access::ReadOnly] {
            let second = opened(&other, access);
            assert!(is_locked(&second), "{what}, {access:?}: {second:?}");
            let said = second.unwrap_err().to_string();
            assert!(said.contains(&format!("\"{what}\"")) && said.contains("bind mount"), "{said}");
        }
        store.close()?;
        // Readers go together, and keep a writer out.
        let readers = (opened(&dir, Access::ReadOnly)?, opened(&other, Access::ReadOnly)?);
        assert!(is_locked(&opened(&other, Access::ReadWrite)), "{what}");
        drop(readers);
        opened(&other, Access::ReadWrite)?.close()?;
    }
    Ok(())
}

#[test]
fn the_directories_of_an_open_store_are_locked_whatever_else_is_closed() -> Result<()> {
    for what in DIRECTORIES {
        let keep = directory();
        let dir = made(keep.path());
        let asked = || fs::File::open(dir.join(what)).unwrap();
        let store = opened(&dir, Access::ReadWrite)?;
        drop(asked());
        assert!(asked().try_lock_shared().is_err(), "{what}");
        store.close()?;
        let store = opened(&dir, Access::ReadOnly)?;
        assert!(asked().try_lock_shared().is_ok() && asked().try_lock().is_err(), "{what}");
        drop(store);
        let other = asked();
        other.try_lock().unwrap();
        assert!(is_locked(&opened(&dir, Access::ReadOnly)), "{what}");
        drop(other);
        opened(&dir, Access::ReadWrite)?.close()?;
    }
    Ok(())
}

/// A store with a pool that has no primaries, closed.
fn without_primaries(keep: &Path) -> PathBuf {
    let dir = keep.join("plain");
    let store = Store::open(&dir).unwrap();
    push(&store.pool("direct").unwrap(), 0, 3);
    store.close().unwrap();
    dir
}

/// Whether another store is refused whose `primary` is the one that an open store has made.
fn refused_beside_new_primaries(bug: Bug) -> Result<Option<bool>> {
    let keep = directory();
    let (dir, other) = (without_primaries(keep.path()), made(keep.path()));
    assert!(!dir.join("primary").exists());
    let store = opened(&dir, Access::ReadWrite)?;
    plant(bug);
    let pool = store.create_pool("shadowed", &options(AtRest::None, None));
    plant(Bug::None);
    push(&pool?, 0, 3);
    let Some(bound) = Bound::new(&dir.join("primary"), &other.join("primary")) else {
        println!("skipped: no bind mounts here");
        return Ok(None);
    };
    let asked = [Access::ReadWrite, Access::ReadOnly];
    let refused = asked.map(|access| is_locked(&opened(&other, access)));
    assert_eq!(refused[0], refused[1]);
    store.close()?;
    drop(bound);
    let store = opened(&dir, Access::ReadWrite)?;
    let whole = store.pool("shadowed").map(|pool| count(&pool));
    assert!(bug != Bug::None || whole? == 3);
    store.close()?;
    Ok(Some(refused[0]))
}

#[test]
fn a_directory_of_primaries_that_a_session_makes_is_locked() -> Result<()> {
    assert_ne!(refused_beside_new_primaries(Bug::None)?, Some(false));
    assert_ne!(refused_beside_new_primaries(Bug::NewDirectoryNotHeld)?, Some(true));
    Ok(())
}

/// One store is open, and a copy of it; then a directory of the first is mounted into the copy,
/// which is written and closed. Whether files of the first have changed.
fn written_over_a_mount(what: &str, bug: Bug) -> Result<Option<bool>> {
    let keep = directory();
    let (dir, other) = (made(keep.path()), keep.path().join("other"));
    linked(&dir, &other, "nothing");
    let (store, second) = (opened(&dir, Access::ReadWrite)?, opened(&other, Access::ReadWrite)?);
    let direct = second.pool("direct")?;
    let before = hashes(&dir.join(what));
    let Some(bound) = Bound::new(&dir.join(what), &other.join(what)) else {
        println!("skipped: no bind mounts here");
        return Ok(None);
    };
    plant(bug);
    let written = (|| -> Result<()> {
        let new = second.create_pool("new", &options(AtRest::None, None))?;
        push(&new, 0, 3);
        new.psync()?;
        push(&direct, 3, 5);
        let shadowed = second.pool("shadowed")?;
        push(&shadowed, 3, 5);
        shadowed.psync().map(drop)
    })();
    plant(Bug::None);
    let changed = hashes(&dir.join(what)) != before;
    drop(direct);
    let closed = second.close();
    let changed = changed || hashes(&dir.join(what)) != before;
    drop(bound);
    if bug == Bug::None {
        written?;
        closed?;
        let second = opened(&other, Access::ReadWrite)?;
        let counts = ["direct", "shadowed", "new"].map(|name| second.pool(name).map(|p| count(&p)));
        assert_eq!(counts.into_iter().collect::<Result<Vec<_>>>()?, [5, 5, 3], "{what}");
        second.close()?;
        let counts = POOLS.map(|name| store.pool(name).map(|pool| count(&pool)));
        assert_eq!(counts.into_iter().collect::<Result<Vec<_>>>()?, [3, 3], "{what}");
    }
    drop(store);
    Ok(Some(changed))
}

#[test]
fn what_is_mounted_into_an_open_store_is_not_written_by_it() -> Result<()> {
    for what in DIRECTORIES {
        assert_ne!(written_over_a_mount(what, Bug::None)?, Some(true), "{what}");
        assert_ne!(written_over_a_mount(what, Bug::MountFollowed)?, Some(false), "{what}");
    }
    Ok(())
}

#[test]
fn planted_directories_that_are_not_held_let_a_second_writer_in() -> Result<()> {
    let keep = directory();
    let dir = made(keep.path());
    let other = fs::File::open(dir.join("puddles")).unwrap();
    other.try_lock().unwrap();
    plant(Bug::DirectoriesNotHeld);
    let store = opened(&dir, Access::ReadWrite);
    plant(Bug::None);
    store?.close()?;
    assert!(is_locked(&opened(&dir, Access::ReadWrite)));
    Ok(())
}

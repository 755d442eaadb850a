//! Damage under a daemon: a file of a pool or an object, or a journal, is not as it was left. The
//! daemon starts, serves the rest, and goes on; a client gets an error that names what and where,
//! or what was there. No process dies of it: clients are in this one.

use crate::common::{Counter, Daemon};
use cenote::{
    Access, Error, ExportOptions, ImportOptions, OpenOptions, PermissionChange, Persist, Pool,
    PoolMode, PoolOptions, Ptr, Reader, Store,
};
use cenote_object::{Objects, ObjectsOptions, Permission};
use cenote_testkit::{directories, environment, random};
use std::collections::BTreeMap;
use std::mem::offset_of;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

const PAGE: usize = 4096;
/// What each pool counts, and every byte of each object.
const WHOLE: u64 = 41;
/// Pools, and objects, by what harm comes to them.
const POOLS: [&str; 3] = ["direct", "shadowed", "other"];
const OBJECTS: [&str; 2] = ["thing", "still"];

/// What is done to a file.
#[derive(Clone, Copy, Debug)]
enum Harm {
    Remove,
    Cut,
    Longer,
    Flip(usize),
    Garbage,
}

impl Harm {
    const ALL: [Self; 8] = [
        Self::Remove,
        Self::Cut,
        Self::Longer,
        Self::Flip(0),
        Self::Flip(8),
        Self::Flip(40),
        Self::Flip(PAGE + 24),
        Self::Garbage,
    ];

    fn on(self, path: &Path) {
        let mut bytes = std::fs::read(path).expect("readable");
        match self {
            Self::Remove => return std::fs::remove_file(path).expect("removed"),
            Self::Cut => bytes.truncate(bytes.len() / 2 / PAGE * PAGE),
            Self::Longer => bytes.resize(bytes.len() + PAGE, 0),
            Self::Flip(at) => bytes[at] ^= 0x20,
            Self::Garbage => bytes.iter_mut().take(2 * PAGE).for_each(|byte| *byte = 0xa7),
        }
        std::fs::write(path, bytes).expect("written");
    }
}

fn fill(pool: &Pool) {
    pool.write(|tx| -> cenote::Result<()> {
        let counter = tx.alloc(Counter { count: WHOLE, twice: 2 * WHOLE, list: None })?;
        tx.set_root(counter)
    })
    .expect("written");
}

fn objects_of(store: &Store) -> Result<Objects, String> {
    Objects::open(&store.handle(), &ObjectsOptions::default()).map_err(|error| error.to_string())
}

/// The store, closed, and the files that harm comes to: whose, and the path.
fn make(daemon: &Daemon) -> Vec<(&'static str, PathBuf)> {
    let store = Store::open(daemon.store()).expect("a store");
    for name in POOLS {
        let mode = if name == "shadowed" { PoolMode::Shadowed } else { PoolMode::Direct };
        let options = PoolOptions { mode, ..PoolOptions::default() };
        let pool = store.create_pool(name, &options).expect("a pool");
        fill(&pool);
        if mode == PoolMode::Shadowed {
            pool.psync().expect("psynced");
        }
    }
    let objects = objects_of(&store).expect("objects");
    for name in OBJECTS {
        objects.pcreate(name, 3 * PAGE as u64, None, 0o600).expect("created");
        let mut object = objects.attach(name, Permission::ReadWrite, None).expect("attached");
        object.as_mut_slice().expect("writable").fill(WHOLE as u8);
        object.psync().expect("psynced");
    }
    let mut files = vec![
        ("shadowed", daemon.store().join("journal.pools")),
        ("thing", daemon.store().join("journal")),
    ];
    let hex = |uuid: String| uuid.replace('-', "");
    let ids: BTreeMap<_, _> =
        store.pools().into_iter().map(|pool| (pool.record.id, pool.record.name)).collect();
    for puddle in store.puddle_records() {
        let file = hex(puddle.uuid.to_string());
        let of = POOLS
            .into_iter()
            .take(2)
            .find(|name| ids.get(&puddle.pool).is_some_and(|of| of == name));
        let Some(of) = of else { continue };
        files.push((of, daemon.store().join("puddles").join(&file)));
        let primary = daemon.store().join("primary").join(&file);
        files.extend(primary.exists().then_some((of, primary)));
    }
    let thing = objects.info("thing").expect("there").object.id().to_string();
    files.push(("thing", daemon.store().join("puddles").join(hex(thing))));
    drop(objects);
    store.close().expect("closed");
    assert!(files.len() >= 6, "{files:?}");
    files
}

fn count(pool: &Pool) -> cenote::Result<u64> {
    let view = pool.read()?;
    let root =
        view.root::<Counter>()?.ok_or(Error::NotInTransaction { pool: "without a root".into() })?;
    Ok(view.get(root)?.count)
}

/// Every request about a pool: what came of it, `None` if it was done and what it showed was right.
fn ask_pool(store: &Store, name: &str) -> Vec<(&'static str, Option<String>)> {
    let right = |found: cenote::Result<u64>| match found {
        Ok(WHOLE) => None,
        Ok(other) => Some(format!("{other} and not {WHOLE} is in it, says nothing")),
        Err(error) => Some(error.to_string()),
    };
    let failed = |done: cenote::Result<()>| done.err().map(|error| error.to_string());
    let mut said = vec![
        ("read", right(store.pool_with(name, Access::ReadOnly).and_then(|pool| count(&pool)))),
        (
            "chmod",
            failed(store.set_permissions(
                name,
                PermissionChange { permissions: Some(0o600), ..Default::default() },
            )),
        ),
        ("export", failed(store.export(&[name], Vec::new(), Default::default()).map(drop))),
    ];
    let copy = format!("copy of {name}");
    let cloned = store.clone_pool(name, &copy).and_then(|_| count(&store.pool(&copy)?));
    said.push(("clone", right(cloned)));
    let _ = store.remove_pool(&copy);
    let written = store.pool(name).and_then(|pool| {
        let found = count(&pool)?;
        pool.write(|tx| -> cenote::Result<()> {
            let lost = || Error::NotInTransaction { pool: "without a root".into() };
            let root = tx.root::<Counter>()?.ok_or_else(lost)?;
            tx.get_mut(root)?.twice += 1;
            Ok(())
        })?;
        if name == "shadowed" {
            pool.psync()?;
        }
        pool.check().map(|_| found)
    });
    said.push(("write", right(written)));
    said
}

/// Every request about an object.
fn ask_object(store: &Store, name: &str) -> Vec<(&'static str, Option<String>)> {
    let attached = |permission| -> Result<(), String> {
        let text = |error: cenote_object::ObjectError| error.to_string();
        let objects = objects_of(store)?;
        objects.info(name).map_err(text)?;
        let mut object = objects.attach(name, permission, None).map_err(text)?;
        if object.as_slice().iter().any(|byte| u64::from(*byte) != WHOLE) {
            return Err("other bytes are in it, says nothing".into());
        }
        if permission == Permission::ReadWrite {
            object.as_mut_slice().map_err(text)?[PAGE] = WHOLE as u8;
            object.psync().map_err(text)?;
        }
        object.detach().map_err(text)
    };
    vec![
        ("attach", attached(Permission::Read).err()),
        ("psync", attached(Permission::ReadWrite).err()),
    ]
}

/// Files keep their inodes, so that the store does not pass for a copy.
fn restore(dir: &Path, whole: &BTreeMap<PathBuf, Vec<u8>>) {
    let now = directories::contents(dir);
    for path in now.keys().filter(|path| !whole.contains_key(*path)) {
        std::fs::remove_file(path).expect("removed");
    }
    for (path, bytes) in whole.iter().filter(|(path, bytes)| now.get(*path) != Some(bytes)) {
        std::fs::write(path, bytes).expect("written");
    }
}

/// What one damage came to: cases that are wrong, and how many requests were refused.
fn one(daemon: &mut Daemon, (harmed, file): (&str, &Path), case: &str) -> (Vec<String>, usize) {
    let (mut wrong, mut refused) = (Vec::new(), 0);
    let name = file.file_name().and_then(|name| name.to_str()).expect("text");
    // A journal is that of all shadowed pools, or of all objects.
    let concerns = |other: &str| match name {
        "journal" => OBJECTS.contains(&other),
        _ => other == harmed,
    };
    daemon.restart();
    let mut told = Vec::new();
    for pool in POOLS {
        let store = daemon.connect();
        told.extend(
            ask_pool(&store, pool).into_iter().map(|(request, said)| (pool, request, said)),
        );
    }
    for object in OBJECTS {
        let store = daemon.connect();
        told.extend(
            ask_object(&store, object).into_iter().map(|(request, said)| (object, request, said)),
        );
    }
    for (subject, request, said) in told {
        let Some(said) = said else { continue };
        refused += 1;
        let names = said.contains(harmed) || said.contains(subject) || said.contains(name);
        if !concerns(subject) || said.contains("says nothing") || !names {
            wrong.push(format!("{case}: {request} of {subject}: {said}"));
        }
    }
    if !daemon.is_running() || daemon.connect().pools().len() < 2 {
        wrong.push(format!("{case}: the daemon has ended, or lost pools"));
    }
    daemon.kill();
    (wrong, refused)
}

#[test]
fn a_daemon_serves_what_is_whole_beside_what_is_damaged() {
    let mut daemon = Daemon::prepare(&[]);
    let files = make(&daemon);
    let whole = directories::contents(&daemon.store());
    let nothing = one(&mut daemon, ("direct", Path::new("nothing")), "no damage");
    assert_eq!(nothing, (Vec::new(), 0));
    restore(&daemon.store(), &whole);
    let mut random = environment::number("CENOTE_SEED", 1);
    println!("CENOTE_SEED={random}, CENOTE_ALL=1 for all");
    let all = std::env::var_os("CENOTE_ALL").is_some();
    let (mut wrong, mut refused) = (Vec::new(), 0);
    for (harmed, file) in &files {
        for harm in Harm::ALL {
            if !random::next(&mut random).is_multiple_of(4) && !all {
                continue;
            }
            harm.on(file);
            let place =
                file.strip_prefix(daemon.store()).expect("in the store").display().to_string();
            let case = format!("{harm:?} of {place} of {harmed}");
            let (more, told) = one(&mut daemon, (harmed, file), &case);
            wrong.extend(more);
            refused += told;
            restore(&daemon.store(), &whole);
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
    assert!(refused > 10, "{refused} refusals");
}

#[derive(Persist, Clone, Copy)]
#[repr(u8)]
#[persist(name = "damaged::Kind")]
#[allow(dead_code)]
enum Kind {
    One = 1,
    Two = 2,
}

#[derive(Persist)]
#[repr(C)]
#[persist(name = "damaged::Shape")]
struct Shape {
    mark: [u8; 16],
    count: NonZeroU64,
    letter: char,
    flag: bool,
    kind: Kind,
    this: Ptr<Shape>,
    other: Option<Ptr<Counter>>,
}

const MARK: [u8; 16] = *b"a shape in files";

/// Changes after which a shape is no value: where, and bytes.
fn breaks() -> [(usize, Vec<u8>); 6] {
    [
        (offset_of!(Shape, count), vec![0; 8]),
        (offset_of!(Shape, letter), vec![0, 0xd8, 0, 0]),
        (offset_of!(Shape, letter), vec![0, 0, 0x11, 0]),
        (offset_of!(Shape, flag), vec![2]),
        (offset_of!(Shape, kind), vec![3]),
        (offset_of!(Shape, this), vec![0; 8]),
    ]
}

/// A closed store with one shape in pool "shapes"; the pool's file, and where the shape is in it.
fn shapes(dir: &Path) -> (PathBuf, usize) {
    let pool = Store::open(dir).expect("a store").pool("shapes").expect("a pool");
    pool.write(|tx| -> cenote::Result<()> {
        let counter = tx.alloc(Counter { count: 1, twice: 2, list: None })?;
        // SAFETY: not followed as what it is not.
        let first = unsafe { counter.cast() };
        let count = NonZeroU64::MIN;
        let shape = Shape {
            mark: MARK,
            count,
            letter: 'x',
            flag: true,
            kind: Kind::Two,
            this: first,
            other: None,
        };
        let shape = tx.alloc(shape)?;
        tx.set(shape, cenote::field!(Shape, this), shape)?;
        tx.set_root(shape)
    })
    .expect("written");
    drop(pool);
    let mut files = std::fs::read_dir(dir.join("puddles")).expect("readable").flatten();
    let found = files.find_map(|file| {
        let bytes = std::fs::read(file.path()).expect("readable");
        Some((file.path(), bytes.windows(16).position(|window| window == MARK)?))
    });
    found.expect("the shape is in a file")
}

/// Bytes that are no value come to a daemon in an archive, and are refused there.
#[test]
fn a_daemon_takes_no_value_that_is_none() {
    let from = tempfile::tempdir().expect("a directory");
    let (file, at) = shapes(from.path());
    let whole = std::fs::read(&file).expect("readable");
    let archive = || {
        let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
        let store = Store::open_with(from.path(), &options).expect("opened");
        store.export(&["shapes"], Vec::new(), ExportOptions::default()).expect("exported").0
    };
    let mut daemon = Daemon::start(&[]);
    for (offset, bytes) in breaks() {
        let mut broken = whole.clone();
        broken[at + offset..][..bytes.len()].copy_from_slice(&bytes);
        std::fs::write(&file, &broken).expect("written");
        let refused = daemon.connect().import(archive().as_slice(), ImportOptions::default());
        let said = refused.expect_err("no value").to_string();
        assert!(
            said.contains("damaged::Shape") && said.contains("shapes"),
            "{bytes:?} at {offset}: {said}"
        );
        assert!(daemon.is_running() && daemon.connect().pools().is_empty());
    }
    std::fs::write(&file, &whole).expect("written");
    let store = daemon.connect();
    store.import(archive().as_slice(), ImportOptions::default()).expect("whole");
    let pool = store.pool("shapes").expect("opened");
    assert!(pool.read().expect("a view").root::<Shape>().expect("readable").is_some());
}

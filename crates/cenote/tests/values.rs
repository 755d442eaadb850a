//! Bytes that are no value of their type are found: by `Pool::check`, by an import, and by an open
//! after damage. Bytes are changed in the files of a closed store, as a rotting disk would.

use crate::archives::HEAPS;
use crate::support::directory;
use cenote::persist::Rule;
use cenote::{
    Access, ArchivingError, Error, ExportOptions, HeapKind, ImportOptions, MediumOptions,
    OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader, RealMedium, Result, Store,
};
use cenote_layout::heap::{HeapGeometry, MARKS_SIZE, SUPERBLOCK_SIZE};
use cenote_layout::mark;
use cenote_medium::planted::{Bug, plant};
use std::mem::offset_of;
use std::num::{NonZeroU16, NonZeroU64};
use std::path::{Path, PathBuf};

pub(crate) const MARK: [u8; 16] = *b"find-me-in-files";

#[derive(Persist, Clone, Copy)]
#[repr(u16)]
#[persist(name = "values::Level")]
#[allow(dead_code)]
pub(crate) enum Level {
    Low = 1,
    High = 300,
}

#[derive(Persist, Clone, Copy)]
#[repr(u8)]
#[persist(name = "values::Kind")]
pub(crate) enum Kind {
    Empty,
    Flag(bool) = 7,
    Inner { level: Level, count: NonZeroU16 },
}

#[derive(Persist)]
#[repr(C)]
#[persist(name = "values::Record")]
pub(crate) struct Record {
    mark: [u8; 16],
    pub(crate) count: NonZeroU64,
    pub(crate) letter: char,
    pub(crate) flag: bool,
    kinds: [Kind; 3],
    this: Ptr<Record>,
    other: Option<Ptr<Record>>,
}

#[derive(Persist)]
#[repr(C)]
#[persist(name = "values::Other")]
struct Other {
    mark: [u8; 16],
    number: u64,
}

fn record(this: Ptr<Record>) -> Record {
    let count = NonZeroU16::MIN;
    Record {
        mark: MARK,
        count: NonZeroU64::MIN,
        letter: 'x',
        flag: true,
        kinds: [Kind::Empty, Kind::Flag(false), Kind::Inner { level: Level::High, count }],
        this,
        other: None,
    }
}

/// A store with one record in pool "p", closed.
pub(crate) fn store() -> Result<tempfile::TempDir> {
    store_in(HeapKind::Traced)
}

/// The same with a heap of that kind.
fn store_in(heap: HeapKind) -> Result<tempfile::TempDir> {
    let dir = directory();
    let pool = PoolOptions { puddle_size: 256 << 10, heap, ..PoolOptions::default() };
    let pool = Store::open(dir.path())?.create_pool("p", &pool)?;
    pool.write(|tx| -> Result<()> {
        let other = tx.alloc(Other { mark: *b"a block of Other", number: 1 })?;
        // SAFETY: not followed as what it is not.
        let first = unsafe { other.cast() };
        let this = tx.alloc(record(first))?;
        tx.set(this, cenote::field!(Record, this), this)?;
        tx.set_named_root("other", Some(other))?;
        tx.set_root(this)
    })?;
    Ok(dir)
}

/// The file and the place of the bytes that begin with `mark`.
pub(crate) fn find(dir: &Path, mark: [u8; 16]) -> (PathBuf, usize) {
    for entry in std::fs::read_dir(dir.join("puddles")).expect("puddles") {
        let path = entry.expect("a file").path();
        let bytes = std::fs::read(&path).expect("readable");
        if let Some(at) = bytes.windows(16).position(|window| window == mark) {
            return (path, at);
        }
    }
    panic!("the record is in no file");
}

/// Writes into the record of a closed store; returns what was there.
pub(crate) fn put(dir: &Path, offset: usize, bytes: &[u8]) -> Vec<u8> {
    let (path, at) = find(dir, MARK);
    put_at(&path, at + offset, bytes)
}

/// Writes into a file of a closed store; returns what was there.
pub(crate) fn put_at(path: &Path, at: usize, bytes: &[u8]) -> Vec<u8> {
    let mut all = std::fs::read(path).expect("readable");
    let place = &mut all[at..at + bytes.len()];
    let before = place.to_vec();
    place.copy_from_slice(bytes);
    std::fs::write(path, all).expect("writable");
    before
}

/// A change that makes what the record holds no value: where, bytes, field, rule.
pub(crate) type Break = (usize, Vec<u8>, &'static str, Rule);

/// One of each rule, at each kind of place.
pub(crate) fn breaks() -> Vec<Break> {
    let kind = |i| offset_of!(Record, kinds) + i * size_of::<Kind>();
    vec![
        (offset_of!(Record, count), vec![0; 8], "count", Rule::NotZero),
        (offset_of!(Record, letter), vec![0, 0xd8, 0, 0], "letter", Rule::Char),
        (offset_of!(Record, flag), vec![9], "flag", Rule::Bool),
        (offset_of!(Record, this), vec![0; 8], "this", Rule::NotNull),
        (kind(0), vec![1], "kinds[0]", Rule::Tag),
        (kind(1) + 1, vec![2], "kinds[1].Flag.0", Rule::Bool),
        (kind(2) + 2, vec![2, 0], "kinds[2].Inner.level", Rule::Tag),
        (kind(2) + 4, vec![0, 0], "kinds[2].Inner.count", Rule::NotZero),
    ]
}

fn read_only(dir: &Path) -> Result<Pool> {
    let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    Store::open_with(dir, &options)?.pool_with("p", Access::ReadOnly)
}

#[test]
fn check_names_block_field_and_number_of_every_broken_rule() -> Result<()> {
    let dir = store()?;
    let pool = read_only(dir.path())?;
    let report = pool.check()?;
    let values = report.values.as_ref().expect("values were looked at");
    assert!(report.is_sound() && values.blocks == 1, "{report:?}");
    let this = pool.read()?.root::<Record>()?.expect("set").addr();
    drop(pool);
    for (offset, bytes, field, rule) in breaks() {
        let before = put(dir.path(), offset, &bytes);
        let report = read_only(dir.path())?.check()?;
        let values = report.values.as_ref().expect("values were looked at");
        assert_eq!((values.invalid, values.findings.len()), (1, 1), "{field}: {values:?}");
        let found = &values.findings[0];
        assert!(!report.is_sound() && found.type_name == "values::Record");
        assert_eq!((found.block, found.at - this), (this, offset as u64), "{field}");
        assert_eq!((found.field.as_str(), found.rule), (field, rule));
        put(dir.path(), offset, &before);
    }
    assert!(read_only(dir.path())?.check()?.is_sound());
    Ok(())
}

/// The archive of pool "p" of a store.
fn archive(dir: &Path) -> Result<Vec<u8>> {
    let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let store = Store::open_with(dir, &options)?;
    Ok(store.export(&["p"], Vec::new(), ExportOptions::default())?.0)
}

#[test]
fn an_archive_with_a_value_that_is_none_is_refused_and_leaves_nothing() -> Result<()> {
    HEAPS.into_iter().try_for_each(an_archive_with_a_value_that_is_none)
}

fn an_archive_with_a_value_that_is_none(heap: HeapKind) -> Result<()> {
    let (from, to) = (store_in(heap)?, directory());
    let target = Store::open(to.path())?;
    drop(target.pool("own")?);
    let files = |dir: &Path| {
        let all = std::fs::read_dir(dir.join("puddles")).expect("puddles");
        let mut names: Vec<_> = all.map(|entry| entry.expect("a file").file_name()).collect();
        names.sort();
        names
    };
    let before = files(to.path());
    for (offset, bytes, field, rule) in breaks() {
        let whole = put(from.path(), offset, &bytes);
        let archive = archive(from.path())?;
        let error =
            target.import(archive.as_slice(), ImportOptions::default()).expect_err("refused");
        let Error::Archive(ArchivingError::Values { pool, count, first }) = &error else {
            panic!("{error}")
        };
        assert_eq!((pool.as_str(), *count, first.len()), ("p", 1, 1), "{error}");
        assert_eq!((first[0].field.as_str(), first[0].rule), (field, rule));
        assert_eq!(
            (first[0].type_name.as_str(), first[0].at - first[0].block),
            ("values::Record", offset as u64)
        );
        assert!(error.to_string().contains("values::Record"), "{error}");
        assert!(target.pools().iter().all(|pool| pool.record.name == "own"));
        assert_eq!(files(to.path()), before, "a file was left");
        put(from.path(), offset, &whole);
    }
    let made = target.import(archive(from.path())?.as_slice(), ImportOptions::default())?;
    assert_eq!(made.stale.count, 0);
    let pool = target.pool("p")?;
    assert!(pool.read()?.root::<Record>()?.is_some() && pool.check()?.is_sound());
    Ok(())
}

/// Gives the record of a closed store another mark.
fn put_mark(dir: &Path, mark: u8) {
    let (path, at) = find(dir, MARK);
    let mut bytes = std::fs::read(&path).expect("readable");
    let geometry = HeapGeometry::new(bytes.len() as u64, true).expect("a heap puddle");
    let marks = (geometry.marks + at as u64 / SUPERBLOCK_SIZE * MARKS_SIZE) as usize;
    let number = at % SUPERBLOCK_SIZE as usize / size_of::<Record>().next_multiple_of(16);
    assert_eq!(bytes[marks + number], mark::ALLOCATED, "the record's");
    bytes[marks + number] = mark;
    std::fs::write(path, bytes).expect("writable");
}

/// Allocates a record beside the record: a superblock without a used block is free as a whole.
fn neighbour(dir: &Path) -> Result<()> {
    Store::open(dir)?.pool("p")?.write(|tx| {
        let other = tx.alloc(Other { mark: [0; 16], number: 2 })?;
        // SAFETY: not followed.
        let next = tx.alloc(Record { mark: [0; 16], ..record(unsafe { other.cast() }) })?;
        tx.set_named_root("next", Some(next))
    })
}

/// Marks that no import takes for an allocated block, and that a running process takes for one.
#[test]
fn a_block_whose_mark_is_no_openers_is_shown_to_none_after_an_import() -> Result<()> {
    for mark in mark::TAKEN..mark::ALLOCATED {
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let (from, to) = (store()?, directory());
            neighbour(from.path())?;
            put(from.path(), offset_of!(Record, flag), &[9]);
            put_mark(from.path(), mark);
            let archive = archive(from.path())?;
            let target = Store::open(to.path())?;
            target.pool("own")?.write(|tx| -> Result<()> {
                let other = tx.alloc(Other { mark: [0; 16], number: 1 })?;
                // SAFETY: not followed. The store knows the type of the record from here on.
                tx.alloc(record(unsafe { other.cast() })).map(drop)
            })?;
            let imported = target.import(archive.as_slice(), ImportOptions::default());
            assert_eq!(imported.is_ok(), mark == mark::TAKEN, "mark {mark:#x}");
            if imported.is_err() {
                continue;
            }
            drop(target);
            let options = OpenOptions { access, ..OpenOptions::default() };
            let store = Store::open_with(to.path(), &options)?;
            let pool = store.pool_with("p", access)?;
            let view = pool.read()?;
            let shown = view.root::<Record>();
            assert!(
                matches!(shown, Err(Error::Dangling { .. })),
                "mark {mark:#x}, {access:?}: {shown:?}"
            );
        }
    }
    Ok(())
}

/// What a writer that was killed left TAKEN is free for the next opener, also for one that only
/// reads and changes no mark.
#[test]
fn a_reader_is_shown_no_block_that_is_free_for_the_next_opener() -> Result<()> {
    let dir = store()?;
    neighbour(dir.path())?;
    put_mark(dir.path(), mark::TAKEN);
    let pool = read_only(dir.path())?;
    let view = pool.read()?;
    assert!(view.named_root::<Record>("next")?.is_some());
    let shown = view.root::<Record>().map(|root| root.is_some());
    assert!(matches!(shown, Err(Error::Dangling { .. })), "{shown:?}");
    Ok(())
}

#[test]
fn an_import_tells_of_pointers_to_other_types_and_following_one_is_an_error() -> Result<()> {
    HEAPS.into_iter().try_for_each(an_import_tells_of_pointers)
}

fn an_import_tells_of_pointers(heap: HeapKind) -> Result<()> {
    let (from, to) = (store_in(heap)?, directory());
    let pool = Store::open(from.path())?.pool("p")?;
    let (this, other) = {
        let view = pool.read()?;
        let this = view.root::<Record>()?.expect("set");
        (this, view.named_root::<Other>("other")?.expect("set"))
    };
    drop(pool);
    let target = Store::open(to.path())?;
    for (name, addr) in [("another type", other.addr()), ("inside", this.addr() + 16)] {
        let place = offset_of!(Record, other);
        let whole = put(from.path(), place, &addr.to_le_bytes());
        let names = vec![name.to_string()];
        let options = ImportOptions { names, ..ImportOptions::default() };
        let made = target.import(archive(from.path())?.as_slice(), options)?;
        assert_eq!(made.stale.count, 1, "{name}");
        let found = &made.stale.first[0];
        assert_eq!(
            (found.field.as_str(), found.rule, found.found),
            ("other", Rule::Reference, addr.into())
        );
        let pool = target.pool(name)?;
        let view = pool.read()?;
        let root = view.get(view.root::<Record>()?.expect("set"))?;
        assert!(matches!(view.get(root.other.expect("stale")), Err(Error::Dangling { .. })));
        assert!(!pool.check()?.is_sound());
        put(from.path(), place, &whole);
    }
    Ok(())
}

/// What the store says about the values of pool "p".
fn values_of(dir: &Path, options: &OpenOptions) -> Result<Option<Error>> {
    let pool = Store::open_with(dir, options)?.pool("p")?;
    // Blocks can be looked at in any case.
    pool.check()?;
    let write = pool.write(|_| Ok::<(), Error>(())).err();
    let read = pool.read().err();
    assert_eq!(read.as_ref().map(ToString::to_string), write.map(|error| error.to_string()));
    Ok(read)
}

/// Flips a bit in one copy of the superblock; the other copy makes it good.
fn damage_superblock(dir: &Path) {
    let path = dir.join("superblock");
    let mut bytes = std::fs::read(&path).expect("readable");
    bytes[20] ^= 1;
    std::fs::write(path, bytes).expect("writable");
}

/// Makes a mark of a free place illegal, beside the record's.
fn damage_mark(dir: &Path) {
    let (path, at) = find(dir, MARK);
    let mut bytes = std::fs::read(&path).expect("readable");
    let geometry = HeapGeometry::new(bytes.len() as u64, true).expect("a heap puddle");
    let marks = geometry.marks + at as u64 / SUPERBLOCK_SIZE * MARKS_SIZE;
    bytes[marks as usize + 40] = 7;
    std::fs::write(path, bytes).expect("writable");
}

#[test]
fn the_first_open_after_damage_shows_no_value_that_is_none() -> Result<()> {
    for (what, damage) in [("superblock", damage_superblock as fn(&Path)), ("mark", damage_mark)] {
        for (offset, bytes, field, rule) in breaks() {
            let dir = store()?;
            damage(dir.path());
            put(dir.path(), offset, &bytes);
            let error = values_of(dir.path(), &OpenOptions::default())?.expect("refused");
            let Error::InvalidValues { pool, count: 1, first } = &error else {
                panic!("{what}: {error}")
            };
            assert_eq!((pool.as_str(), first[0].field.as_str(), first[0].rule), ("p", field, rule));
        }
        let dir = store()?;
        damage(dir.path());
        assert!(
            values_of(dir.path(), &OpenOptions::default())?.is_none(),
            "all is well but for the {what}"
        );
    }
    Ok(())
}

/// The damage is the record's own mark, which is illegal then, and live.
#[test]
fn the_first_open_after_damage_looks_at_values_whose_marks_are_illegal() -> Result<()> {
    for mark in mark::TAKEN + 1..mark::ALLOCATED {
        let dir = store()?;
        put(dir.path(), offset_of!(Record, flag), &[9]);
        put_mark(dir.path(), mark);
        let error = values_of(dir.path(), &OpenOptions::default())?;
        assert!(matches!(error, Some(Error::InvalidValues { count: 1, .. })), "mark {mark:#x}");
    }
    Ok(())
}

#[test]
fn a_healthy_open_looks_at_no_value_unless_it_is_asked_to() -> Result<()> {
    let dir = store()?;
    put(dir.path(), offset_of!(Record, flag), &[9]);
    assert!(values_of(dir.path(), &OpenOptions::default())?.is_none());
    let asked = OpenOptions { verify_values: true, ..OpenOptions::default() };
    assert!(matches!(values_of(dir.path(), &asked)?, Some(Error::InvalidValues { .. })));
    let options = MediumOptions { create: false, ..MediumOptions::default() };
    let medium = std::sync::Arc::new(RealMedium::open(dir.path(), &options)?);
    // SAFETY: no value is read.
    let store = unsafe { Store::open_torn(medium, &asked) }?;
    assert!(store.pool("p")?.read().is_ok(), "the caller answers for it");
    Ok(())
}

#[test]
fn values_that_are_believed_are_found() -> Result<()> {
    let dir = store()?;
    put(dir.path(), offset_of!(Record, flag), &[9]);
    plant(Bug::ValuesBelieved);
    let report = read_only(dir.path())?.check()?;
    plant(Bug::None);
    assert!(report.is_sound(), "the bug is planted where check looks");
    assert!(!read_only(dir.path())?.check()?.is_sound());
    let (archive, to) = (archive(dir.path())?, directory());
    let target = Store::open(to.path())?;
    plant(Bug::ValuesBelieved);
    let imported = target.import(archive.as_slice(), ImportOptions::default());
    plant(Bug::None);
    assert!(imported.is_ok(), "the bug is planted where an import looks");
    damage_superblock(dir.path());
    plant(Bug::ValuesBelieved);
    let shown = values_of(dir.path(), &OpenOptions::default());
    plant(Bug::None);
    assert!(shown?.is_none(), "the bug is planted where an open looks");
    Ok(())
}

/// A copy that was made while its store was open, and that the caller accepts: nothing of it is
/// shown that is no value.
#[test]
fn an_accepted_copy_shows_no_value_that_is_none() -> Result<()> {
    use cenote::CopyPolicy;
    let accepted = OpenOptions { copy: CopyPolicy::CheckAndOpen, ..OpenOptions::default() };
    let dir = store()?;
    let copies = directory();
    let copy_of = |name: &str| {
        let to = copies.path().join(name);
        std::fs::create_dir_all(to.join("puddles")).expect("made");
        for from in [dir.path().to_owned(), dir.path().join("puddles")] {
            for entry in std::fs::read_dir(&from).expect("readable").flatten() {
                let place = to.join(entry.path().strip_prefix(dir.path()).expect("in it"));
                if entry.path().is_file() {
                    std::fs::copy(entry.path(), place).expect("copied");
                }
            }
        }
        to
    };
    let open = Store::open(dir.path())?;
    let taken: Vec<PathBuf> =
        (0..=breaks().len()).map(|number| copy_of(&number.to_string())).collect();
    open.close()?;
    for (copy, (offset, bytes, field, rule)) in taken.iter().zip(breaks()) {
        put(copy, offset, &bytes);
        match values_of(copy, &accepted)?.expect("refused") {
            Error::InvalidValues { count: 1, first, .. } => {
                assert_eq!((first[0].field.as_str(), first[0].rule), (field, rule));
            }
            // A pointer that leads astray is what a check of the heap finds.
            error @ Error::NotWhole { .. } => assert_eq!(field, "this", "{error}"),
            error => panic!("{field}: {error}"),
        }
    }
    assert!(values_of(taken.last().expect("one more"), &accepted)?.is_none(), "it is whole");
    Ok(())
}

/// What a program stored by `unsafe` into a protected pool travels sealed: an import cannot look at
/// it. It is found where the key is: by a check, and by an open that is asked to look.
#[test]
fn values_of_a_protected_pool_are_looked_at_after_its_import() -> Result<()> {
    use crate::at_rest::{CHECKED, key_for, options};
    for (at_rest, (offset, bytes, field, rule)) in CHECKED.into_iter().cycle().zip(breaks()) {
        let (from, to) = (directory(), directory());
        let key = key_for(at_rest, 5);
        let archive = {
            let store = Store::open(from.path())?;
            let pool = store.create_pool("p", &options(at_rest, key.clone()))?;
            pool.write(|tx| -> Result<()> {
                let other = tx.alloc(Other { mark: MARK, number: 1 })?;
                // SAFETY: not followed as what it is not.
                let first = unsafe { other.cast() };
                let this = tx.alloc(record(first))?;
                tx.set(this, cenote::field!(Record, this), this)?;
                tx.set_root(this)?;
                let place = std::ptr::from_mut(tx.get_mut(this)?).cast::<u8>();
                // SAFETY: bytes of the record, which no one looks at from here on.
                unsafe { place.add(offset).copy_from_nonoverlapping(bytes.as_ptr(), bytes.len()) };
                Ok(())
            })?;
            pool.psync()?;
            drop(pool);
            store.export(&["p"], Vec::new(), ExportOptions::default())?.0
        };
        Store::open(to.path())?.import(archive.as_slice(), ImportOptions::default())?;
        let asked = OpenOptions { verify_values: true, key: key.clone(), ..OpenOptions::default() };
        match values_of(to.path(), &asked)? {
            Some(Error::InvalidValues { count: 1, first, .. }) => {
                assert_eq!((first[0].field.as_str(), first[0].rule), (field, rule));
            }
            other => panic!("{at_rest:?}, {field}: {other:?}"),
        }
        let looking = OpenOptions { access: Access::ReadOnly, key, ..OpenOptions::default() };
        let report =
            Store::open_with(to.path(), &looking)?.pool_with("p", Access::ReadOnly)?.check()?;
        assert!(!report.is_sound() && report.values.is_some_and(|values| values.invalid == 1));
    }
    Ok(())
}

//! Versions of types: two ids, typed refusals of other versions, and pools with versioned values.

use crate::support::{contents, directory, underneath};
use cenote::{
    Access, Error, ErrorKind, HeapKind, Persist, Pool, PoolOptions, Ptr, Reader, Result, Store,
    StoreError,
};
use cenote_medium::planted::{Bug, TypeBug, plant};

/// A user as the first release of a program had it.
#[derive(Persist)]
#[persist(name = "versions::User")]
struct UserV1 {
    number: u64,
    next: Option<Ptr<UserV1>>,
}

/// The same with a field more.
#[derive(Persist)]
#[persist(name = "versions::User", version = 2)]
struct User {
    number: u64,
    next: Option<Ptr<User>>,
    age: u64,
}

#[derive(Persist)]
#[persist(name = "versions::First", version = 1)]
struct First(u64);

#[derive(Persist)]
#[persist(name = "versions::Pair")]
struct Pair<T> {
    both: [T; 2],
}

#[derive(Persist)]
#[persist(name = "versions::Holder")]
struct Holder {
    user: Option<Ptr<User>>,
}

fn user(number: u64) -> User {
    User { number, next: None, age: 20 }
}

fn older(number: u64) -> UserV1 {
    UserV1 { number, next: None }
}

#[track_caller]
fn refused<T>(result: Result<T>, kind: ErrorKind, parts: &[&str]) {
    let error = result.err().expect("another version is there");
    assert!(matches!(error, Error::Store(StoreError::TypeVersion(_))), "{error}");
    assert_eq!(error.kind(), kind, "{error}");
    for part in parts {
        assert!(error.to_string().contains(part), "{part:?} is not in: {error}");
    }
}

#[test]
fn a_version_is_in_the_physical_id_and_in_no_pointer() {
    assert_eq!(User::TYPE_ID, UserV1::TYPE_ID);
    assert_eq!(UserV1::PHYSICAL_ID, UserV1::TYPE_ID);
    assert_ne!(User::PHYSICAL_ID, User::TYPE_ID);
    assert_eq!((First::PHYSICAL_ID, First::VERSION, User::VERSION), (First::TYPE_ID, 1, 2));
    assert_eq!(<Option<Ptr<User>>>::PHYSICAL_ID, <Option<Ptr<UserV1>>>::TYPE_ID);
    assert_eq!(<Pair<User>>::TYPE_ID, <Pair<UserV1>>::TYPE_ID);
    assert_ne!(<Pair<User>>::PHYSICAL_ID, <Pair<User>>::TYPE_ID);
    assert_eq!(<Pair<Ptr<User>>>::PHYSICAL_ID, <Pair<Ptr<User>>>::TYPE_ID);
    assert_ne!(<(u8, User)>::PHYSICAL_ID, <(u8, User)>::TYPE_ID);
    let record = User::record();
    record.check().expect("it makes sense");
    assert_eq!(
        (record.id, record.logical(), record.version.of_type),
        (User::PHYSICAL_ID, User::TYPE_ID, 2,)
    );
    assert_eq!(record.pointers[0].target, User::TYPE_ID);
    assert!(!UserV1::record().is_versioned() && <Pair<User>>::record().is_versioned());
    assert_eq!(<Pair<User>>::record().fields[0].type_id, <[User; 2]>::PHYSICAL_ID);
}

#[test]
fn a_newer_program_is_refused_where_a_pool_has_older_values() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    pool.write(|tx| {
        let old = tx.alloc(older(1))?;
        tx.set_root(old)
    })?;
    let newer = ["versions::User has version 1 in this store", "version 2 in this program"];
    refused(pool.write(|tx| tx.alloc(user(2)).map(drop)), ErrorKind::Unfinished, &newer);
    refused(pool.read()?.root::<User>().map(drop), ErrorKind::Unfinished, &newer);
    // Also behind a pointer, and as an argument: the error names the type that changed.
    let holder = pool.write(|tx| tx.alloc(Holder { user: None }).map(drop));
    refused(holder, ErrorKind::Unfinished, &newer);
    let pair = pool.write(|tx| tx.alloc(Pair { both: [user(1), user(2)] }).map(drop));
    refused(pair, ErrorKind::Unfinished, &newer);
    // The older type of the same program reads its values.
    let root = pool.read()?.root::<UserV1>()?.expect("a root");
    assert_eq!(pool.read()?.get(root)?.number, 1);
    drop(pool);
    store.close()?;
    // A look changes nothing.
    let store = Store::open(dir.path())?;
    let before = contents(dir.path(), &store, "p");
    store.close()?;
    let store = Store::open_with(dir.path(), &cenote::OpenOptions::read_only())?;
    let pool = store.pool_with("p", Access::ReadOnly)?;
    refused(pool.read()?.root::<User>().map(drop), ErrorKind::Unfinished, &newer);
    assert_eq!(contents(dir.path(), &store, "p"), before);
    Ok(())
}

#[test]
fn an_older_program_is_refused_where_a_pool_has_newer_values() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    pool.write(|tx| {
        let new = tx.alloc(user(1))?;
        tx.set_root(new)
    })?;
    let older_program = ["versions::User has version 2 in this store", "version 1 in this program"];
    for _ in 0..2 {
        let alloc = pool.write(|tx| tx.alloc(older(2)).map(drop));
        refused(alloc, ErrorKind::Unsupported, &older_program);
        refused(pool.read()?.root::<UserV1>().map(drop), ErrorKind::Unsupported, &older_program);
        let pair = pool.write(|tx| tx.alloc(Pair { both: [older(1), older(2)] }).map(drop));
        refused(pair, ErrorKind::Unsupported, &older_program);
    }
    let root = pool.read()?.root::<User>()?.expect("a root");
    assert_eq!(pool.read()?.get(root)?.age, 20);
    Ok(())
}

#[test]
fn a_version_that_no_pool_uses_makes_room_for_another() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    let old = pool.write(|tx| tx.alloc(older(1)))?;
    pool.write(|tx| tx.free(old))?;
    // The pool has learnt it, and may allocate more of them.
    let both = ["has version 1 in this store", "version 2 in this program"];
    refused(pool.write(|tx| tx.alloc(user(1)).map(drop)), ErrorKind::Unfinished, &both);
    pool.write(|tx| tx.alloc(older(1)).and_then(|old| tx.free(old)))?;
    drop(pool);
    let pool = store.pool("p")?;
    let new = pool.write(|tx| tx.alloc(user(1)))?;
    let known: Vec<_> =
        store.types().into_iter().filter(|of| of.logical() == User::TYPE_ID).collect();
    assert_eq!((known.len(), known[0].version.of_type), (1, 2));
    // By the id that pointers say, too.
    assert_eq!(store.type_record(User::TYPE_ID).as_deref(), Some(&User::record()));
    pool.write(|tx| tx.free(new))?;
    drop(pool);
    store.pool("p")?.write(|tx| tx.alloc(older(1)).map(drop))?;
    assert_eq!(store.type_record(User::TYPE_ID).as_deref(), Some(&UserV1::record()));
    Ok(())
}

/// A list of users, by a root, a named root and a holder.
fn list(pool: &Pool) -> Result<()> {
    pool.write(|tx| {
        let mut head = tx.alloc(user(0))?;
        for number in 1..50 {
            head = tx.alloc(User { next: Some(head), ..user(number) })?;
        }
        tx.set_root(head)?;
        tx.set_named_root("users", Some(head))?;
        let holder = tx.alloc(Holder { user: Some(head) })?;
        tx.set_named_root("holder", Some(holder))?;
        let pair = tx.alloc(Pair { both: [User { next: Some(head), ..user(1) }, user(2)] })?;
        tx.set_named_root("pair", Some(pair))
    })
}

fn walked(pool: &Pool) -> Result<u64> {
    let view = pool.read()?;
    let holder = view.named_root::<Holder>("holder")?.expect("a holder");
    let (mut next, mut count) = (view.get(holder)?.user, 0);
    while let Some(at) = next {
        assert_eq!(view.get(at)?.age, 20);
        (next, count) = (view.get(at)?.next, count + 1);
    }
    Ok(count)
}

/// Faults that a check finds: pointers, leaks and values.
fn faults(pool: &Pool) -> Result<u64> {
    let report = pool.check()?;
    let traces = [&report.trace, &report.leak_trace].into_iter().flatten();
    let traced: u64 = traces.map(|trace| trace.faults + trace.unknown_types.len() as u64).sum();
    Ok(traced + report.leaked_blocks + report.values.map_or(0, |values| values.invalid))
}

#[test]
fn pools_of_each_heap_with_versioned_values_are_sound_also_as_copies_and_archives() -> Result<()> {
    for heap in [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR] {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("p", &PoolOptions { heap, ..PoolOptions::default() })?;
        list(&pool)?;
        assert_eq!((walked(&pool)?, faults(&pool)?), (50, 0), "{heap:?}");
        drop(pool);
        store.close()?;
        let store = Store::open(dir.path())?;
        let pool = store.pool("p")?;
        assert_eq!((walked(&pool)?, faults(&pool)?), (50, 0), "{heap:?}");
        drop(pool);
        store.clone_pool("p", "q")?;
        let copy = store.pool("q")?;
        assert_eq!((walked(&copy)?, faults(&copy)?), (50, 0), "{heap:?}");
        drop(copy);
        let mut archive = Vec::new();
        store.export(&["p"], &mut archive, cenote::ExportOptions::default())?;
        let other = directory();
        let elsewhere = Store::open(other.path())?;
        elsewhere.import(archive.as_slice(), cenote::ImportOptions::default())?;
        let pool = elsewhere.pool("p")?;
        assert_eq!((walked(&pool)?, faults(&pool)?), (50, 0), "{heap:?}");
        drop(pool);
        // A store that has older values does not take newer ones in.
        let third = directory();
        let older_store = Store::open(third.path())?;
        older_store.pool("o")?.write(|tx| tx.alloc(older(1)).map(drop))?;
        let refused = older_store.import(archive.as_slice(), cenote::ImportOptions::default());
        assert!(refused.expect_err("refused").to_string().contains("version"));
    }
    Ok(())
}

#[test]
fn another_layout_with_the_same_version_is_refused_with_what_to_raise() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let mut record = User::record();
    record.fields[2].name = "years".into();
    // SAFETY: a record that is not as this program has the type is tested: it is refused.
    unsafe { underneath(&store).register_type(&record) }.expect("registered");
    let pool = store.pool("p")?;
    // SAFETY: nothing reads the block.
    unsafe { pool.raw_heap() }.alloc(24, 8, User::PHYSICAL_ID).expect("a block");
    let error = pool.write(|tx| tx.alloc(user(1)).map(drop)).expect_err("another layout");
    assert!(matches!(error, Error::Store(StoreError::TypeMismatch(_))), "{error}");
    assert!(error.to_string().contains("version = 3"), "{error}");
    Ok(())
}

#[test]
fn planted_another_version_is_registered_beside_the_first() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    pool.write(|tx| tx.alloc(older(1)).map(drop))?;
    plant(Bug::Type(TypeBug::OtherVersionsIgnored));
    let planted = pool.write(|tx| tx.alloc(user(2)).map(drop));
    plant(Bug::None);
    assert!(planted.is_ok(), "the bug shows");
    Ok(())
}

#[test]
fn planted_a_pointer_to_a_versioned_value_is_taken_for_a_fault() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    list(&pool)?;
    plant(Bug::Type(TypeBug::LogicalIdsNotResolved));
    let found = faults(&pool);
    plant(Bug::None);
    assert!(found? > 0, "the bug shows");
    Ok(())
}

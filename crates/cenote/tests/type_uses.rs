//! Which pools use a type; and types that no pool uses, which do not refuse a changed one.

use crate::support::{directory, underneath};
use cenote::{
    Error, ErrorKind, HeapKind, Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, Result, Store,
    StoreError, TxError, TypeId,
};
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, TypeBug, plant};

#[derive(Persist)]
#[persist(name = "type_uses::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

#[derive(Persist)]
#[persist(name = "type_uses::Holder")]
struct Holder([Node; 2]);

fn node() -> Node {
    Node { value: 1, next: None }
}

/// The node of a program that is older, or newer.
fn older() -> TypeRecord {
    let mut older = Node::record();
    (older.size, older.fields[0].type_name) = (24, "u128".to_string());
    (older.fields[0].size, older.fields[0].type_id) = (16, u128::TYPE_ID);
    (older.fields[1].offset, older.pointers[0].offset) = (16, 16);
    older
}

/// What that program does: it registers its type.
fn register(store: &Store, record: &TypeRecord) {
    // SAFETY: that a record is not as this program has the type is what is tested. No value of it
    // is read.
    unsafe { underneath(store).register_type(record) }.expect("registered");
}

/// What that program does: it makes a value.
fn block(pool: &Pool, size: u64, type_id: TypeId) -> Result<()> {
    // SAFETY: nothing reads the block as a value.
    unsafe { pool.raw_heap() }.alloc(size, 8, type_id).map_err(TxError::from)?;
    Ok(())
}

fn alloc(pool: &Pool) -> Result<()> {
    pool.write(|tx| tx.alloc(node()).map(drop))
}

#[track_caller]
fn refused(result: Result<()>) {
    let error = result.expect_err("another layout is in use");
    assert!(matches!(error, Error::Store(StoreError::TypeMismatch(_))), "{error}");
}

#[test]
fn a_changed_type_of_which_no_pool_has_values_is_no_error() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    register(&store, &older());
    let (first, second) = (store.pool("first")?, store.pool("second")?);
    alloc(&first)?;
    alloc(&second)?;
    assert_eq!(store.type_record(Node::TYPE_ID).as_deref(), Some(&Node::record()));
    let list = first.write(|tx| {
        let last = tx.alloc(node())?;
        let list = tx.alloc(Node { value: 2, next: Some(last) })?;
        tx.set_root(list).map(|()| list)
    })?;
    drop((first, second));
    store.close()?;
    // The exchange is in the catalog, and pointers are followed as ever.
    let store = Store::open(dir.path())?;
    let pool = store.pool("first")?;
    let view = pool.read()?;
    let next = view.get(list)?.next.expect("a link");
    assert_eq!(view.get(next)?.value, 1);
    Ok(())
}

#[test]
fn one_block_in_any_pool_of_any_heap_keeps_its_type_until_the_pool_is_gone() -> Result<()> {
    for heap in [HeapKind::Traced, HeapKind::Logged, HeapKind::WEAR] {
        let dir = directory();
        let store = Store::open(dir.path())?;
        register(&store, &older());
        let old = store.create_pool("old", &PoolOptions { heap, ..PoolOptions::default() })?;
        block(&old, 24, Node::TYPE_ID)?;
        let new = store.pool("new")?;
        refused(alloc(&new));
        // Also if it is closed, and in a later session.
        drop(old);
        refused(alloc(&new));
        drop(new);
        store.close()?;
        let store = Store::open(dir.path())?;
        let new = store.pool("new")?;
        refused(alloc(&new));
        let uses = store.type_uses()?;
        let found = uses.types.iter().find(|found| found.record.id == Node::TYPE_ID);
        assert_eq!(found.expect("registered").blocks, [("old".to_string(), 1)], "{heap:?}");
        assert!(uses.unclear.is_empty() && !uses.is_unused(Node::TYPE_ID));
        store.remove_pool("old")?;
        assert!(store.type_uses()?.is_unused(Node::TYPE_ID));
        alloc(&new)?;
    }
    Ok(())
}

#[test]
fn a_type_within_the_values_of_another_is_used() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let mut holder = Holder::record();
    (holder.size, holder.fields[0].size) = (48, 48);
    (holder.pointers[0].offset, holder.pointers[0].stride) = (16, 24);
    register(&store, &older());
    register(&store, &holder);
    let pool = store.pool("p")?;
    block(&pool, 48, Holder::TYPE_ID)?;
    refused(alloc(&pool));
    let uses = store.type_uses()?;
    let found = uses.types.iter().find(|found| found.record.id == Node::TYPE_ID);
    assert!(found.is_some_and(|found| found.is_used && found.blocks.is_empty()));
    Ok(())
}

#[test]
fn a_pool_whose_other_moment_may_have_values_keeps_all_types() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    register(&store, &older());
    let options = PoolOptions { mode: PoolMode::Shadowed, ..PoolOptions::default() };
    drop(store.create_pool("shadowed", &options)?);
    let pool = store.pool("p")?;
    refused(alloc(&pool));
    assert_eq!(store.type_uses()?.unclear[0].pool, "shadowed");
    store.remove_pool("shadowed")?;
    alloc(&pool)
}

#[test]
fn a_type_that_no_pool_uses_is_removed_and_no_other() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    let pool = store.pool("p")?;
    alloc(&pool)?;
    pool.write(|tx| tx.alloc(7u64).map(drop))?;
    register(&store, &{
        let mut other = Node::record();
        (other.id, other.name) = (TypeId(77), "type_uses::Gone".into());
        other
    });
    let used = |id, part: &str| {
        let error = store.remove_type(id).expect_err("it is used");
        assert_eq!(
            (error.kind(), matches!(error, Error::TypeUsed { .. })),
            (ErrorKind::Misuse, true)
        );
        assert!(error.to_string().contains(part), "{error}");
    };
    used(TypeId(77), "\"p\" is open in this process");
    drop(pool);
    used(Node::TYPE_ID, "pool \"p\" has 1 blocks");
    store.remove_type(TypeId(77))?;
    let again = store.remove_type(TypeId(77)).expect_err("it is gone");
    assert_eq!(again.kind(), ErrorKind::NotFound);
    store.close()?;
    let store = Store::open(dir.path())?;
    assert!(store.type_record(TypeId(77)).is_none() && store.type_record(Node::TYPE_ID).is_some());
    Ok(())
}

#[test]
fn planted_a_type_is_exchanged_under_its_values() -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    register(&store, &older());
    let pool = store.pool("p")?;
    block(&pool, 24, Node::TYPE_ID)?;
    plant(Bug::Type(TypeBug::UsedReplaced));
    let planted = alloc(&pool);
    plant(Bug::None);
    assert!(planted.is_ok(), "the bug shows");
    Ok(())
}

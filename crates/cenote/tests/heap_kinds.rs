//! Pools with each kind of heap: what a user sees is the same with all, and what only tracing can
//! do is a typed error with the others.

use cenote::{
    Access, AtRest, DataProtection, Error, HeapKind, Keyring, Locking, MasterKey, OpenOptions,
    Persist, Pool, PoolMode, PoolOptions, Ptr, Reader, Result, Store,
};
use cenote_heap::WrongKind;
use cenote_layout::puddle::header_space;
use cenote_testkit::child::{self, Acknowledging, acknowledge};
use cenote_testkit::directories::directory;
use cenote_testkit::random::next;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

#[derive(Persist, Debug, PartialEq)]
#[persist(name = "heap_kinds::Node")]
pub(crate) struct Node {
    pub(crate) value: u64,
    pub(crate) next: Option<Ptr<Node>>,
}

/// Of many lines.
#[derive(Persist)]
#[persist(name = "heap_kinds::Page")]
pub(crate) struct Page {
    pub(crate) words: [u64; 512],
}

const ALL: [HeapKind; 3] = [HeapKind::Traced, UNTRACED[0], UNTRACED[1]];
const UNTRACED: [HeapKind; 2] = [HeapKind::Logged, HeapKind::Wear { wait_ms: 1 }];

/// With the options of a pool of each of these kinds; of logged ones, also of one whose data are
/// write-protected.
fn over(kinds: &[HeapKind], test: fn(PoolOptions) -> Result<()>) -> Result<()> {
    kinds.iter().try_for_each(|heap| {
        println!("{heap:?}");
        test(PoolOptions { heap: *heap, ..PoolOptions::default() })?;
        if *heap == HeapKind::Logged {
            println!("with protected data");
            test(PoolOptions { heap: *heap, protect: PROTECTED, ..PoolOptions::default() })?;
        }
        Ok(())
    })
}

/// Batches come in the middle of what tests do.
const PROTECTED: DataProtection = DataProtection::Deferred { wait_ms: 1 };

pub(crate) fn push(pool: &Pool, value: u64) -> Result<()> {
    pool.write(|tx| {
        let next = tx.root::<Node>()?;
        let node = tx.alloc(Node { value, next })?;
        tx.set_root(node)
    })
}

fn pop(pool: &Pool) -> Result<Option<u64>> {
    pool.write(|tx| {
        let Some(first) = tx.root::<Node>()? else { return Ok(None) };
        let (value, next) = {
            let node = tx.get(first)?;
            (node.value, node.next)
        };
        match next {
            Some(next) => tx.set_root(next)?,
            None => tx.set_root_at::<Node>(0, None)?,
        }
        tx.free(first)?;
        Ok(Some(value))
    })
}

pub(crate) fn values(pool: &Pool) -> Result<Vec<u64>> {
    let view = pool.read()?;
    let (mut out, mut at) = (Vec::new(), view.root::<Node>()?);
    while let Some(ptr) = at {
        let node = view.get(ptr)?;
        out.push(node.value);
        at = node.next;
    }
    Ok(out)
}

pub(crate) fn assert_sound(pool: &Pool, blocks: u64) {
    let report = pool.check().expect("checked");
    assert!(report.is_sound(), "{report:#?}");
    assert_eq!(report.stats.blocks, blocks, "{report:#?}");
}

#[test]
fn values_survive_close_and_open_and_a_reader() -> Result<()> {
    over(&ALL, |options| {
        let dir = directory();
        {
            let store = Store::open(dir.path())?;
            let pool = store.create_pool("list", &options)?;
            for i in 0..1000 {
                push(&pool, i)?;
            }
            assert_eq!(pop(&pool)?, Some(999));
            drop(pool);
            store.close()?;
        }
        {
            let store = Store::open_with(dir.path(), &OpenOptions::read_only())?;
            let pool = store.pool_with("list", Access::ReadOnly)?;
            assert_eq!(values(&pool)?, (0..999).rev().collect::<Vec<_>>());
            assert_sound(&pool, 999);
            let refused = pool.write(|tx| tx.alloc(Node { value: 0, next: None })).unwrap_err();
            assert!(refused.to_string().contains("open read-only"), "{refused}");
        }
        let store = Store::open(dir.path())?;
        let pool = store.pool("list")?;
        assert_eq!(values(&pool)?.len(), 999);
        push(&pool, 7)?;
        assert_sound(&pool, 1000);
        assert_eq!(store.pools()[0].record.heap, options.heap);
        Ok(())
    })
}

#[test]
fn an_error_or_a_panic_in_a_transaction_gives_back_all_that_it_took() -> Result<()> {
    over(&ALL, |options| {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("list", &options)?;
        push(&pool, 1)?;
        push(&pool, 2)?;
        let failed: Result<()> = pool.write(|tx| {
            let root = tx.root::<Node>()?.expect("a root");
            let node = tx.alloc(Node { value: 3, next: Some(root) })?;
            let page = tx.alloc(Page { words: [7; 512] })?;
            tx.set_root(node)?;
            tx.free(page)?;
            tx.free(root)?;
            Err(Error::Dangling { addr: 1, type_name: "a reason".into() })
        });
        assert!(failed.is_err());
        assert_eq!(values(&pool)?, [2, 1]);
        assert_sound(&pool, 2);
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let _ = pool.write(|tx| -> Result<()> {
                let next = tx.root::<Node>()?;
                let node = tx.alloc(Node { value: 9, next })?;
                tx.set_root(node)?;
                panic!("planned");
            });
        }));
        assert!(panicked.is_err());
        assert_eq!(values(&pool)?, [2, 1]);
        assert_sound(&pool, 2);
        // What was aborted can be taken again, and freed by another transaction.
        assert_eq!(pop(&pool)?, Some(2));
        push(&pool, 4)?;
        assert_eq!(values(&pool)?, [4, 1]);
        assert_sound(&pool, 2);
        Ok(())
    })
}

#[test]
fn a_block_is_freed_once_and_a_pointer_to_it_is_an_error() -> Result<()> {
    over(&ALL, |options| {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("list", &options)?;
        push(&pool, 1)?;
        let root = pool.read()?.root::<Node>()?.expect("a root");
        let twice = pool.write(|tx| {
            tx.set_root_at::<Node>(0, None)?;
            tx.free(root)?;
            tx.free(root)
        });
        assert!(matches!(twice, Err(Error::Tx(_))), "{twice:?}");
        assert_eq!(values(&pool)?, [1]);
        assert_eq!(pop(&pool)?, Some(1));
        assert!(matches!(pool.read()?.get(root), Err(Error::Dangling { .. })));
        assert!(matches!(pool.write(|tx| tx.free(root)), Err(Error::Dangling { .. })));
        assert_sound(&pool, 0);
        Ok(())
    })
}

#[test]
fn transactions_of_many_blocks_and_of_many_sizes_are_whole() -> Result<()> {
    over(&ALL, |options| {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("list", &options)?;
        pool.write(|tx| {
            for value in 0..3000 {
                let next = tx.root::<Node>()?;
                let node = tx.alloc(Node { value, next })?;
                tx.set_root(node)?;
            }
            Ok::<_, Error>(())
        })?;
        assert_eq!(values(&pool)?.len(), 3000);
        assert_sound(&pool, 3000);
        pool.write(|tx| {
            for _ in 0..200 {
                let page = tx.alloc(Page { words: [1; 512] })?;
                tx.free(page)?;
            }
            Ok::<_, Error>(())
        })?;
        assert_sound(&pool, 3000);
        while pop(&pool)?.is_some() {}
        assert_sound(&pool, 0);
        Ok(())
    })
}

#[test]
fn what_only_tracing_can_do_is_a_typed_error() -> Result<()> {
    over(&UNTRACED, |options| {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let pool = store.create_pool("list", &options)?;
        push(&pool, 1)?;
        for refused in [pool.trim().map(drop), pool.collect().map(drop)] {
            let refused = refused.unwrap_err();
            assert!(
                matches!(
                    refused,
                    Error::HeapRecover(cenote_heap::RecoverError::Kind(WrongKind { .. }))
                ),
                "{refused}"
            );
        }
        assert_eq!(values(&store.pool("list")?)?, [1]);
        Ok(())
    })
}

#[test]
fn a_shadowed_pool_has_what_was_psynced() -> Result<()> {
    over(&ALL, |options| {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let options = PoolOptions { mode: PoolMode::Shadowed, ..options };
        let pool = store.create_pool("list", &options)?;
        for i in 0..100 {
            push(&pool, i)?;
        }
        pool.psync()?;
        assert_eq!(pop(&pool)?, Some(99));
        drop(pool);
        store.close()?;
        let store = Store::open(dir.path())?;
        let pool = store.pool("list")?;
        assert_eq!(values(&pool)?, (0..99).rev().collect::<Vec<_>>());
        assert_sound(&pool, 99);
        Ok(())
    })
}

#[test]
fn a_shadowed_pool_that_lost_its_root_puddle_is_refused_and_not_made_anew() -> Result<()> {
    over(&UNTRACED, |options| {
        let dir = directory();
        let store = Store::open(dir.path())?;
        let options = PoolOptions { mode: PoolMode::Shadowed, puddle_size: 256 << 10, ..options };
        let pool = store.create_pool("list", &options)?;
        for i in 0..3000 {
            push(&pool, i)?;
        }
        assert!(pool.stats()?.puddles > 1);
        pool.psync()?;
        drop(pool);
        let root = store.puddle_records().into_iter().find(|p| p.pool.0 != 0 && p.index == 0);
        let root = root.expect("a root puddle");
        store.close()?;
        let name = root.uuid.to_string().replace('-', "");
        let header = header_space(root.size);
        // An open after a close believes the shadow, one after a crash the primary.
        for place in ["puddles", "primary"] {
            let path = dir.path().join(place).join(&name);
            let file = std::fs::File::options().write(true).open(path).expect("its file");
            file.write_all_at(&vec![0; (root.size - header) as usize], header).expect("zeros");
        }
        let store = Store::open(dir.path())?;
        for access in [Access::ReadOnly, Access::ReadWrite] {
            let error = store.pool_with("list", access).expect_err("no heap is made there");
            assert!(error.to_string().contains("heap"), "{error}");
        }
        assert!(store.clone_pool("list", "other").is_err());
        Ok(())
    })
}

#[test]
fn a_protected_pool_has_what_was_psynced() -> Result<()> {
    over(&ALL, |options| {
        let key = || {
            let mut bytes = *b"a key of thirty-two bytes, known";
            let key = MasterKey::with_locking(&mut bytes, Locking::IfPossible).expect("a key");
            Arc::new(Keyring::new(key).locking(Locking::IfPossible))
        };
        let dir = directory();
        let store = Store::open(dir.path())?;
        let (mode, at_rest) = (PoolMode::Shadowed, AtRest::Authenticated);
        let options = PoolOptions {
            mode,
            at_rest,
            key: Some(key()),
            protect: DataProtection::None,
            ..options
        };
        let pool = store.create_pool("list", &options)?;
        for i in 0..100 {
            push(&pool, i)?;
        }
        pool.psync()?;
        drop(pool);
        store.close()?;
        let store = Store::open(dir.path())?;
        let pool = store.pool_with_key("list", Access::ReadWrite, &key())?;
        assert_eq!(pop(&pool)?, Some(99));
        assert_sound(&pool, 99);
        Ok(())
    })
}

const KILLED: &str = "heap_kinds::a_killed_program_leaves_what_it_acknowledged";

/// Pushes and pops, by numbers from a seed, and says each one when it is committed.
fn change_for_ever(dir: &Path, mut seed: u64) -> Result<()> {
    let store = Store::open(dir)?;
    let pool = store.pool("list")?;
    loop {
        let said = if next(&mut seed).is_multiple_of(3) {
            pop(&pool)?.map_or(1, |value| value << 2 | 1)
        } else {
            let value = next(&mut seed) >> 20;
            push(&pool, value)?;
            value << 2 | 2
        };
        if !acknowledge(said) {
            return Ok(());
        }
    }
}

/// What the list is after the words of a child.
fn after(mut list: Vec<u64>, words: &[u64]) -> Vec<u64> {
    for word in words {
        match word & 3 {
            1 => drop(list.pop()),
            _ => list.push(word >> 2),
        }
    }
    list
}

#[test]
fn a_killed_program_leaves_what_it_acknowledged() -> Result<()> {
    if let Some((task, dir)) = child::task() {
        return change_for_ever(&dir, task.parse().expect("a seed"));
    }
    over(&ALL, killed)
}

fn killed(options: PoolOptions) -> Result<()> {
    let dir = directory();
    let store = Store::open(dir.path())?;
    drop(store.create_pool("list", &options)?);
    store.close()?;
    let mut list = Vec::new();
    for round in 0..cenote_testkit::environment::number("CENOTE_KILLS", 12) {
        let mut command = child::with_task(KILLED, &round.to_string(), dir.path());
        let child = Acknowledging::start(&mut command);
        let words = child.kill(true, Duration::from_millis(5 + round * 7 % 40), |word| {
            matches!(word & 3, 1 | 2) && word >> 2 < 1 << 27
        });
        let known = after(list, &words);
        let store = Store::open(dir.path())?;
        let pool = store.pool("list")?;
        let found: Vec<u64> = values(&pool)?.into_iter().rev().collect();
        // The last change may be committed and not acknowledged.
        let common = known.iter().zip(&found).take_while(|(a, b)| a == b).count();
        assert!(
            known.len().abs_diff(found.len()) <= 1 && common + 1 >= known.len().max(found.len()),
            "round {round}: {} acknowledged, {} found, {common} alike",
            known.len(),
            found.len()
        );
        assert_sound(&pool, found.len() as u64);
        list = found;
    }
    Ok(())
}

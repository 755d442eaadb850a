//! Long work tells how far it is, and space is given back, through the interface that users name.

use cenote::{
    Durability, Error, OpenOptions, Persist, Pool, PoolOptions, Ptr, Reader, RecoveryOptions,
    Result, Store, TraceOptions, Use,
};
use cenote_medium::Medium;
use cenote_medium::sim::{CrashKind, SimMedium, SimOptions};
use cenote_store::FormatOptions;
use std::num::NonZero;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

#[derive(Persist)]
#[persist(name = "progress::Node")]
struct Node {
    value: u64,
    next: Option<Ptr<Node>>,
}

const NODES: u64 = 10_000;

/// A list of so many nodes.
fn fill(pool: &Pool, nodes: u64) -> Result<()> {
    for first in (0..nodes).step_by(1000) {
        pool.write(|tx| -> Result<()> {
            let mut next = tx.root::<Node>()?;
            for value in first..nodes.min(first + 1000) {
                next = Some(tx.alloc(Node { value, next })?);
            }
            next.map_or(Ok(()), |head| tx.set_root(head))
        })?;
    }
    Ok(())
}

#[test]
fn recovery_tells_which_pool_it_traces_and_how_far_it_is() -> Result<()> {
    let sim = SimMedium::new(SimOptions { record: false, ..SimOptions::new(Durability::Power) });
    let medium: Arc<dyn Medium> = sim.clone();
    let format = FormatOptions {
        window_base: Some(0x1d80_0000_0000),
        window_len: 1 << 30,
        ..FormatOptions::default()
    };
    cenote_store::format(medium.clone(), &format)?;
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let pool = store.create_pool("long list", &PoolOptions::default())?;
    fill(&pool, NODES)?;
    store.clone().abandon();
    drop((pool, store));
    let medium: Arc<dyn Medium> =
        SimMedium::from_image_unrecorded(&sim.image_now(CrashKind::Power));
    let store = Store::open_on(medium, &OpenOptions::default())?;
    let heard = Arc::new(Mutex::new(Vec::new()));
    let hears = Arc::clone(&heard);
    let asked = Arc::new(Mutex::new(Some(store.clone())));
    let asks = Arc::clone(&asked);
    store.set_recovery(RecoveryOptions {
        threads: NonZero::new(1),
        interval: Duration::ZERO,
        progress: Some(Arc::new(move |at| {
            hears.lock().unwrap().push((at.pool.to_owned(), at.blocks, at.superblocks));
            // What would wait for the pool that is being opened is refused.
            let store = asks.lock().unwrap().clone().expect("a store");
            for refused in [store.pool("other").err(), store.backup("nowhere").err()] {
                assert!(matches!(refused, Some(Error::WouldDeadlock { .. })), "{refused:?}");
            }
        })),
    });
    let pool = store.pool("long list")?;
    drop(asked.lock().unwrap().take());
    let heard = heard.lock().unwrap();
    assert!(heard.len() > 2, "{heard:?}");
    assert!(heard.iter().all(|(name, blocks, superblocks)| {
        name == "long list" && *blocks <= NODES && *superblocks >= NODES / 4096
    }));
    assert!(heard.windows(2).all(|pair| pair[0].1 <= pair[1].1), "{heard:?}");
    assert_eq!(pool.traced().map(|report| report.trace.blocks), Some(NODES));
    Ok(())
}

#[test]
fn a_check_tells_how_far_it_is_and_can_be_broken_off() -> Result<()> {
    let directory = crate::support::directory();
    let store = Store::open(directory.path())?;
    let pool = store.pool("p")?;
    fill(&pool, NODES)?;
    let mut reports = 0;
    let mut tell = |at: &cenote::TraceProgress| {
        reports += 1;
        assert!(at.blocks <= NODES);
        ControlFlow::Continue(())
    };
    let mut options = TraceOptions::default();
    options.workers = NonZero::new(1);
    options.interval = Duration::ZERO;
    options.progress = Some(&mut tell);
    let report = pool.check_with(options)?;
    assert!(report.is_sound() && reports > 2, "{reports} reports of {report:?}");
    let mut stop = |_: &cenote::TraceProgress| ControlFlow::Break(());
    let mut options = TraceOptions::default();
    options.interval = Duration::ZERO;
    options.progress = Some(&mut stop);
    assert!(matches!(pool.check_with(options), Err(Error::HeapRecover(_))));
    assert!(pool.check()?.is_sound());
    Ok(())
}

#[test]
fn a_pool_is_trimmed_while_it_is_in_use_and_its_values_stay() -> Result<()> {
    let directory = crate::support::directory();
    let store = Store::open(directory.path())?;
    let pool =
        store.create_pool("p", &PoolOptions { puddle_size: 16 << 20, ..PoolOptions::default() })?;
    fill(&pool, 1000)?;
    let blocks = || -> u64 {
        let files = std::fs::read_dir(directory.path().join("puddles")).unwrap();
        files
            .map(|file| std::os::unix::fs::MetadataExt::blocks(&file.unwrap().metadata().unwrap()))
            .sum()
    };
    let before = blocks();
    let view = pool.read()?;
    let report = pool.trim()?;
    if report.unsupported {
        println!("skipped: this file system cannot take part of a file back");
        return Ok(());
    }
    // Of 256 superblocks, metadata takes 21 and the values one; one is to spare.
    assert!(report.released_bytes >= 233 << 16 && blocks() + report.released_bytes / 512 <= before);
    let mut at = view.root::<Node>()?;
    for value in (0..1000).rev() {
        let node = view.get(at.expect("a node"))?;
        assert_eq!(node.value, value);
        at = node.next;
    }
    drop(view);
    let mut holes = 0;
    pool.heap().superblocks(&mut |superblock| holes += u64::from(superblock.used == Use::Hole))?;
    assert_eq!(holes << 16, report.released_bytes);
    // 1.6 MB of values take their space again.
    let after = blocks();
    fill(&pool, 100_000)?;
    assert!(pool.check()?.is_sound());
    assert!(blocks() >= after + 3000, "{} blocks, {after} before", blocks());
    drop(pool);
    let reader = Store::open_with(directory.path(), &OpenOptions::read_only());
    assert!(reader.is_err(), "the store is open for writing here");
    store.close()?;
    let store = Store::open_with(directory.path(), &OpenOptions::read_only())?;
    let refused = store.pool_with("p", cenote::Access::ReadOnly)?.trim();
    assert!(matches!(refused, Err(Error::Store(_))), "{refused:?}");
    Ok(())
}

/// Frees the list.
fn empty(pool: &Pool) -> Result<()> {
    while pool.write(|tx| -> Result<bool> {
        let mut at = tx.root::<Node>()?;
        for _ in 0..1000 {
            let Some(node) = at else { break };
            at = tx.get(node)?.next;
            tx.free(node)?;
        }
        match at {
            Some(node) => tx.set_root(node).map(|()| true),
            None => tx.set_root_at::<Node>(0, None).map(|()| false),
        }
    })? {}
    Ok(())
}

#[test]
fn a_pool_that_is_trimmed_by_itself_gives_back_what_was_freed() -> Result<()> {
    let directory = crate::support::directory();
    let store = Store::open(directory.path())?;
    let pool = store.create_pool("p", &PoolOptions::default())?;
    assert!(matches!(pool.trim_by(Duration::ZERO), Err(Error::Policy(_))));
    if pool.trim()?.unsupported {
        println!("skipped: this file system cannot take part of a file back");
        return Ok(());
    }
    let trimming = pool.trim_by(Duration::from_millis(5))?;
    let before = trimming.figures();
    assert_eq!((before.trims > 0, before.failures), (true, 0));
    fill(&pool, 50_000)?;
    empty(&pool)?;
    let deadline = std::time::Instant::now() + Duration::from_secs(60);
    // Nodes of 16 bytes: 12 superblocks, most of which no cache has a block of.
    while trimming.figures().released_bytes < before.released_bytes + (1 << 19) {
        assert!(std::time::Instant::now() < deadline, "{:?}", trimming.figures());
        std::thread::sleep(Duration::from_millis(1));
    }
    // Values come and go while it trims.
    for _ in 0..5 {
        fill(&pool, 20_000)?;
        empty(&pool)?;
    }
    fill(&pool, 1000)?;
    trimming.stop()?;
    assert!(pool.check()?.is_sound());
    drop(pool);
    store.close()?;
    Ok(())
}

//! A pool whose long list keeps the tracer busy, and a reclaim that is disturbed in the middle of
//! it.

use cenote::{
    HeapReport, Persist, Pool, Ptr, Reader, ReclaimOptions, ReclaimReport, Result, Store,
};
use core::ops::ControlFlow;
use core::time::Duration;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

#[derive(Persist)]
#[persist(name = "reclaim::Node")]
pub(crate) struct Node {
    pub(crate) value: u64,
    pub(crate) next: Option<Ptr<Node>>,
}

/// One test at a time: a store that is closed and opened again needs its window, which another
/// test's store may have chosen meanwhile.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Nodes of the list that keeps the tracer busy.
pub(crate) const LEN: u64 = 3000;

pub(crate) fn node(
    tx: &mut cenote::Tx<'_>,
    value: u64,
    next: Option<Ptr<Node>>,
) -> Result<Ptr<Node>> {
    tx.alloc(Node { value, next })
}

/// A first session: root 0 leads to a long list, whose last node leads to a value by way of
/// another; root 1 to a node that leads nowhere. `leaks` nodes are led to by nothing.
pub(crate) fn first_session(dir: &Path, leaks: u64) -> Result<()> {
    let pool = Store::open(dir)?.pool("p")?;
    pool.write(|tx| -> Result<()> {
        let hidden = node(tx, 777, None)?;
        let between = node(tx, 888, Some(hidden))?;
        let mut next = node(tx, 0, Some(between))?;
        for value in 1..LEN {
            next = node(tx, value, Some(next))?;
        }
        tx.set_root_at(0, Some(next))?;
        let seen = node(tx, 1, None)?;
        tx.set_root_at(1, Some(seen))?;
        for value in 0..leaks {
            node(tx, 1_000_000 + value, None)?;
        }
        Ok(())
    })
}

pub(crate) fn open(dir: &Path) -> Result<(Store, Pool)> {
    let store = Store::open(dir)?;
    let pool = store.pool("p")?;
    Ok((store, pool))
}

/// Reclaims in the smallest slices; calls `meddle` once, when the tracer is in the middle of the
/// list and root 1 is behind it.
pub(crate) fn meddled(
    pool: &Pool,
    mut meddle: impl FnMut() -> Result<()>,
) -> Result<ReclaimReport> {
    let mut done = false;
    let mut options = ReclaimOptions::default();
    options.hold = Duration::ZERO;
    let mut progress = |so_far: &cenote::ReclaimProgress| {
        if !done && so_far.reached_blocks > 40 {
            done = true;
            assert!(
                so_far.reached_blocks < LEN,
                "the tracer is through already: the test tests nothing"
            );
            meddle().unwrap();
        }
        ControlFlow::Continue(())
    };
    options.progress = Some(&mut progress);
    let report = pool.reclaim_with(options)?;
    assert!(done);
    Ok(report)
}

/// The last node of the long list.
pub(crate) fn tail(tx: &cenote::Tx<'_>) -> Result<Ptr<Node>> {
    let mut at = tx.root_at::<Node>(0)?.expect("made");
    while tx.get(at)?.value != 0 {
        at = tx.get(at)?.next.expect("a longer list");
    }
    Ok(at)
}

pub(crate) fn sound(report: &HeapReport) -> bool {
    report.leaked_blocks == 0 && report.unallocated_blocks == 0
}

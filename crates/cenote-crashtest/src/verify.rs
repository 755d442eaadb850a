//! The oracle: what must hold of any store that a crash left behind.
//!
//! 1. It opens, nothing is damaged, no log is set aside.
//! 2. Its data are one of the states that are allowed: what was acknowledged, or that with the
//!    commit in flight.
//! 3. Marks are exact: no block is allocated that nothing leads to, none is reachable that is not
//!    allocated, but for the pointers that are meant to dangle; and these lead to an error, or to a
//!    node that is attached. After a crash of processes this holds without tracing, after a loss of
//!    power once the pool has been opened.
//! 4. What is allocated now does not overlap what is there, and an abort gives it back.
//! 5. (Some images.) A read-only open shows the same, and changes no byte. (After a loss of power
//!    it may say that marks have to be computed first.)
//! 6. (Some images.) A commit on the recovered store is there after a clean close, which leaves
//!    nothing to recover.

use crate::data::{Model, Node, Root, observe};
use crate::rig::{POOLS, open_options};
use cenote::{Access, HeapReport, OpenOptions, Pool, Reader, Store, field};
use cenote_heap::OpenError;
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Opens the store on `sim` and both of its pools: all that recovery is.
///
/// # Errors
/// The store does not open, or something is reported that a legal crash cannot have caused.
pub fn open(sim: &Arc<SimMedium>) -> Result<(Store, Pool, Pool), String> {
    let store = Store::open_on(sim.clone(), &open_options()).map_err(|e| format!("open: {e}"))?;
    let report = store.report();
    if !report.damage.is_empty() || report.demoted || !report.not_covered.is_empty() {
        return Err(format!(
            "a crash that is legal is reported as damage: {:?} {:?}",
            report.damage, report.not_covered
        ));
    }
    let [a, b] = POOLS.map(|name| store.pool_with(name, Access::ReadWrite));
    let (a, b) = (a.map_err(|e| format!("pool a: {e}"))?, b.map_err(|e| format!("pool b: {e}"))?);
    Ok((store, a, b))
}

/// Checks one image against the states that are allowed; `thorough` adds points 5 and 6. Gives a
/// hash of what was found: the data, where every block is, and how many are allocated.
///
/// # Errors
/// What does not hold.
pub fn verify(image: &Image, allowed: &[&Model], thorough: bool) -> Result<u64, String> {
    if thorough {
        read_only(image, allowed).map_err(|e| format!("read-only open: {e}"))?;
    }
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, a, b) = open(&sim)?;
    let result = check(&a, &b, allowed);
    if result.is_err() || !thorough {
        sim.stop_looking();
        drop((a, b));
        store.abandon();
        return result.map(|(_, found)| found);
    }
    let (model, found) = result?;
    let value = 0xfeed;
    a.write(|tx| -> cenote::Result<()> {
        let root = tx.root::<Root>()?.ok_or_else(|| cenote::Error::Aborted("no root".into()))?;
        tx.set(root, field!(Root, words), [value; 11])
    })
    .map_err(text)?;
    drop((a, b));
    store.close().map_err(|e| format!("close: {e}"))?;
    let sim = SimMedium::from_image_unrecorded(&sim.image_now(CrashKind::Power));
    let (store, a, b) = open(&sim)?;
    if !store.report().clean || store.report().crash.is_some() || !store.report().logs.is_empty() {
        return Err(format!("the second open is not a clean one: {:?}", store.report()));
    }
    let expected = Model { words: [value, value], ..model };
    check(&a, &b, &[&expected]).map_err(|e| format!("second open: {e}"))?;
    drop((a, b));
    store.abandon();
    Ok(found)
}

/// Looks at an image without changing it.
fn read_only(image: &Image, allowed: &[&Model]) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let before = sim.image_now(image.kind()).hash();
    let store = Store::open_on(sim.clone(), &OpenOptions::read_only()).map_err(text)?;
    let pools = POOLS.map(|name| store.pool_with(name, Access::ReadOnly));
    let result = match pools {
        [Ok(a), Ok(b)] => observe(&a, &b).and_then(|(model, _)| {
            if allowed.contains(&&model) {
                Ok(())
            } else {
                Err(format!("the data are {model:x?}, allowed is {allowed:x?}"))
            }
        }),
        [Err(cenote::Error::TraceDue { .. }), _] | [_, Err(cenote::Error::TraceDue { .. })]
            if image.kind() == CrashKind::Power =>
        {
            Ok(())
        }
        // A change of a logged heap was broken off, and a reader takes none back.
        [Err(cenote::Error::HeapOpen(OpenError::Logged(_))), _]
        | [_, Err(cenote::Error::HeapOpen(OpenError::Logged(_)))] => Ok(()),
        [a, b] => Err(format!("{:?} {:?}", a.err(), b.err())),
    };
    drop(store);
    result?;
    if sim.image_now(image.kind()).hash() == before { Ok(()) } else { Err("it has written".into()) }
}

/// Where the pointers lead that are meant to dangle.
fn stale_of(a: &Pool) -> cenote::Result<Vec<u64>> {
    let view = a.read()?;
    let Some(root) = view.root::<Root>()? else { return Ok(Vec::new()) };
    Ok(view.get(root)?.stale.iter().flatten().map(|node| node.addr()).collect())
}

/// Whether nothing is wrong but that something leads to these addresses.
fn is_sound(report: &HeapReport, stale: &[u64]) -> bool {
    let meant = |addr: u64| stale.contains(&addr);
    let listed = report.unallocated.len() as u64 == report.unallocated_blocks;
    let findings = report.trace.iter().flat_map(|trace| &trace.findings);
    let told =
        report.trace.as_ref().is_none_or(|trace| trace.findings.len() as u64 == trace.faults);
    let mut others = report.clone();
    (others.unallocated_blocks, others.trace) = (0, None);
    others.is_sound()
        && listed
        && told
        && report.unallocated.iter().all(|block| meant(block.addr))
        && findings.map(|finding| finding.to).all(meant)
}

fn check(a: &Pool, b: &Pool, allowed: &[&Model]) -> Result<(Model, u64), String> {
    let (model, mut live) = observe(a, b)?;
    if !allowed.contains(&&model) {
        return Err(format!("the data are {model:x?}, allowed is {allowed:x?}"));
    }
    let stale = stale_of(a).map_err(text)?;
    for pool in [a, b] {
        let report = pool.check().map_err(text)?;
        if !is_sound(&report, &stale) || !report.damage.is_empty() {
            return Err(format!("heap of pool {}: {report:?}", pool.name()));
        }
    }
    let blocks = a.stats().map_err(text)?.blocks;
    let mut found = DefaultHasher::new();
    (&model, &live, blocks).hash(&mut found);
    let mut overlap = None;
    let aborted = a.write(|tx| -> cenote::Result<()> {
        for value in 0..3 {
            let node = tx.alloc(Node { value, twin: !value })?;
            let (start, end) = (node.addr(), node.addr() + size_of::<Node>() as u64);
            if let Some(other) = live.iter().find(|(at, len)| *at < end && start < at + len) {
                overlap = Some(format!("a new block at {start:#x} lies on {other:x?}"));
            }
            live.push((start, end - start));
        }
        Err(cenote::Error::Aborted(String::new()))
    });
    if let Some(overlap) = overlap {
        return Err(overlap);
    }
    if !matches!(aborted, Err(cenote::Error::Aborted(_))) {
        return Err(format!("allocation after recovery: {aborted:?}"));
    }
    if a.stats().map_err(text)?.blocks != blocks {
        return Err("abort after recovery keeps allocations".into());
    }
    if observe(a, b)?.0 != model {
        return Err("an aborted allocation changed data".into());
    }
    Ok((model, found.finish()))
}

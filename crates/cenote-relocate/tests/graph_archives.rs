//! Random object graphs over several pools, as archives: which pools `with_targets` takes along,
//! what is told of pointers to the others, and that what comes out in a window where something is
//! in the way, in any order, is the same graph.
//!
//! The graphs are those of graphs.rs, with every kind of pointer: tagged, in arrays and enums,
//! off-holders, region pointers, to other pools, null, into blocks and one past their ends.
//! `CENOTE_ARCHIVED_GRAPHS` sets how many there are (40).

use crate::graph::{Graph, HEAPS, Names, Random, blank, build_in, files, store_on};
use crate::graphs::number;
use cenote_medium::planted::{Bug, PointerBug, plant};
use cenote_relocate::archiving::{self, ExportOptions, ImportOptions};
use cenote_store::{HeapKind, PoolOptions, Store};
use std::collections::{BTreeMap, BTreeSet};

/// The pools that pointers of `taken` lead to and that are not among them: how many pointers.
fn foreign(graph: &Graph, taken: &BTreeSet<usize>) -> BTreeMap<usize, u64> {
    let mut out = BTreeMap::new();
    for link in graph.links.iter().filter(|link| taken.contains(&graph.objects[link.from].pool)) {
        let pool = link.to.map(|(object, _)| graph.objects[object].pool);
        if let Some(pool) = pool.filter(|pool| !taken.contains(pool)) {
            *out.entry(pool).or_insert(0) += 1;
        }
    }
    out
}

/// What is exported of a pool, by the graph.
fn expected(graph: &Graph, pool: usize, with_targets: bool) -> BTreeSet<usize> {
    let mut taken = BTreeSet::from([pool]);
    let mut before = 0;
    while with_targets && taken.len() > before {
        before = taken.len();
        taken.extend(foreign(graph, &taken).into_keys());
    }
    taken
}

/// An archive of one pool, and perhaps its targets.
fn archive(
    source: &Store,
    graph: &Graph,
    pool: usize,
    with_targets: bool,
) -> Result<Vec<u8>, String> {
    let options = ExportOptions { with_targets, ..ExportOptions::default() };
    // SAFETY: this thread alone has the store.
    let (bytes, exported) =
        unsafe { archiving::export(source, &[&graph.names[pool]], Vec::new(), options) }
            .map_err(|e| e.to_string())?;
    let taken = expected(graph, pool, with_targets);
    let names: Vec<String> = taken.iter().map(|pool| graph.names[*pool].clone()).collect();
    if exported.pools != names {
        return Err(format!("{:?} are taken along and not {names:?}", exported.pools));
    }
    let left: BTreeMap<usize, u64> = exported
        .left
        .iter()
        .map(|left| {
            (graph.ids.iter().position(|id| *id == left.id).expect("of the graph"), left.pointers)
        })
        .collect();
    match foreign(graph, &taken) {
        wanted if wanted == left => Ok(bytes),
        wanted => Err(format!("left behind: {left:?} and not {wanted:?}")),
    }
}

fn one(seed: u64, heap: HeapKind) -> Result<bool, String> {
    let random = &mut Random(seed);
    let (_medium, source) = store_on(&blank(0));
    let graph = build_in(&source, heap, random);
    let original = files(&source);
    let mut pools: Vec<usize> = (0..graph.names.len()).collect();
    for at in (1..pools.len()).rev() {
        pools.swap(at, random.below(at as u64 + 1) as usize);
    }
    let mut archives = Vec::new();
    for pool in pools {
        let with_targets = random.below(2) == 0;
        let bytes = archive(&source, &graph, pool, with_targets)?;
        archives.push((expected(&graph, pool, with_targets), bytes));
    }
    if files(&source) != original {
        return Err("the original has changed".into());
    }
    source.close().map_err(|e| e.to_string())?;
    let along = archives.iter().any(|(taken, _)| taken.len() > 1);
    // Where they were, so that something is in the way, or elsewhere.
    let (_other, target) = store_on(&blank(random.below(2)));
    for n in 0..random.below(3) {
        target
            .create_pool(&format!("other {n}"), &PoolOptions::default())
            .map_err(|e| e.to_string())?;
    }
    let mut conflicts = false;
    for (round, (taken, bytes)) in archives.iter().enumerate() {
        let names: Names =
            taken.iter().map(|pool| (*pool, format!("{round} {}", graph.names[*pool]))).collect();
        let options =
            ImportOptions { names: names.values().cloned().collect(), ..ImportOptions::default() };
        let unpacked = archiving::unpack(&target, bytes.as_slice(), options, &|_| None)
            .map_err(|e| e.to_string())?;
        let made = unpacked.commit(&target, &|_| None).map_err(|e| e.to_string())?;
        conflicts |= made.imported.pools.iter().any(|pool| pool.moved);
        graph
            .verify(&target, &names)
            .map_err(|what| format!("round {round}, {names:?}: {what}"))?;
    }
    Ok(along && conflicts)
}

#[test]
fn archives_hold_what_pointers_lead_to_and_come_out_the_same() {
    let count = number("CENOTE_ARCHIVED_GRAPHS", 40);
    for heap in HEAPS {
        let rich = (1..=count).filter(|seed| {
            one(*seed, heap).unwrap_or_else(|what| panic!("seed {seed}, {heap:?}: {what}"))
        });
        assert!(
            rich.count() as u64 * 8 > count,
            "graphs that take others along and come to other addresses"
        );
    }
}

#[test]
fn pools_that_are_overlooked_are_found() {
    let bugs = [PointerBug::TagsKeptInScan, PointerBug::RegionsLeftOut].map(Bug::Pointer);
    for (bug, heap) in bugs.into_iter().flat_map(|bug| HEAPS.map(|heap| (bug, heap))) {
        plant(bug);
        let found = (1..60).find_map(|seed| one(seed, heap).err());
        plant(Bug::None);
        let found = found.unwrap_or_else(|| panic!("{bug:?} was not found"));
        assert!(found.contains("left behind") || found.contains("taken along"), "{bug:?}: {found}");
    }
}

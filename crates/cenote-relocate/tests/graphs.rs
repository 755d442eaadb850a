//! Random object graphs over several pools and puddles, moved into windows that are free, partly
//! taken or elsewhere, together or one by one, cloned and given new addresses: each time what is
//! there must be isomorphic to what was, word for word, and the original the same byte for byte.
//!
//! `CENOTE_GRAPHS` sets the number of graphs (16), `CENOTE_SEED` the first seed.

use crate::graph::*;
use cenote_layout::catalog::{MoveRecord, PuddleRecord, RelocationRecord};
use cenote_layout::heap::{HeapGeometry, mark};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::moves::Moves;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::TypeRecord;
use cenote_medium::Medium;
use cenote_medium::planted::{Bug, PointerBug, plant};
use cenote_medium::sim::SimMedium;
use cenote_relocate::{ImportManifest, ImportPool, ImportPuddle, Imported, PointerRewriter, image};
use cenote_store::relocate::{PoolBlocks, ReadPuddle, RewriteJob, Rewriter as _, TypeTable};
use cenote_store::{HeapKind, PoolOptions, Store};
use std::collections::BTreeMap;
use std::sync::Arc;

/// What an archive would hold of some pools.
fn export(store: &Store, graph: &Graph, pools: &[usize]) -> (ImportManifest, Vec<Vec<u8>>) {
    let mut manifest = ImportManifest { pools: Vec::new(), types: types() };
    let mut bytes = Vec::new();
    for pool in pools {
        let from = store.quiescent_pool(&graph.names[*pool]).unwrap();
        manifest.pools.push(ImportPool {
            name: graph.names[*pool].clone(),
            old_id: from.record.id,
            mode: from.record.mode,
            heap: from.record.heap,
            puddle_size: from.record.puddle_size,
            size_max: from.record.size_max,
            permissions: 0o600,
            at_rest: from.at_rest,
            protect: cenote_store::DataProtection::None,
            torn: from.torn,
            puddles: from
                .puddles
                .iter()
                .map(|(p, _)| ImportPuddle {
                    old_addr: p.addr,
                    size: p.size,
                    identity: p.uuid,
                    role: p.role,
                })
                .collect(),
        });
        bytes.extend(from.puddles.iter().map(|(_, file)| store.medium().read(file).unwrap()));
    }
    (manifest, bytes)
}

fn import(store: &Store, (manifest, bytes): &(ImportManifest, Vec<Vec<u8>>)) -> Imported {
    let mut import = store.begin_import(manifest.clone()).unwrap();
    for (slot, bytes) in bytes.iter().enumerate() {
        import.write(slot, 4096, &bytes[4096..]).unwrap();
    }
    // SAFETY: the test made the values, and takes none of them for a reference.
    unsafe { import.commit() }.unwrap()
}

/// One graph, moved in all ways.
fn one(seed: u64, heap: HeapKind) -> Result<(), String> {
    let random = &mut Random(seed);
    let (_medium, source) = store_on(&blank(0));
    let graph = build_in(&source, heap, random);
    let names: Names = graph.names.iter().cloned().enumerate().collect();
    graph.verify(&source, &names).map_err(|what| format!("as it was built: {what}"))?;
    let original = files(&source);
    let mut pools: Vec<usize> = names.keys().copied().collect();
    into_another(&source, &graph, &mut pools, random)?;

    // Beside themselves, and with other addresses.
    let copies: Names = pools.iter().map(|pool| (*pool, format!("copy {pool}"))).collect();
    for (pool, copy) in &copies {
        source.clone_pool(&graph.names[*pool], copy).map_err(|e| e.to_string())?;
        let alone: Names = [(*pool, copy.clone())].into();
        graph.verify(&source, &alone).map_err(|what| format!("cloned: {what}"))?;
    }
    graph.verify(&source, &names).map_err(|what| format!("beside a clone: {what}"))?;
    let now = files(&source);
    if original.iter().any(|(uuid, bytes)| now[uuid] != *bytes) {
        return Err("the original has changed".into());
    }
    let exported = export(&source, &graph, &pools);
    for _ in 0..2 {
        let pool = pools[random.below(pools.len() as u64) as usize];
        source.randomize_pool(&graph.names[pool]).map_err(|e| e.to_string())?;
        if random.below(2) == 0 {
            graph.verify(&source, &names).map_err(|what| format!("randomized: {what}"))?;
        }
    }
    graph.verify(&source, &names).map_err(|what| format!("randomized twice: {what}"))?;
    source.close().map_err(|e| e.to_string())?;
    into_the_same_window(&graph, &pools, exported, random)
}

/// Elsewhere, beside pools that are there, all at once or one by one.
fn into_another(
    source: &Store,
    graph: &Graph,
    pools: &mut [usize],
    random: &mut Random,
) -> Result<(), String> {
    let names: Names = graph.names.iter().cloned().enumerate().collect();
    let (_other, target) = store_on(&blank(1));
    for n in 0..random.below(3) {
        target.create_pool(&format!("other {n}"), &PoolOptions::default()).unwrap();
    }
    if random.below(2) == 0 {
        pools.reverse();
    }
    if random.below(2) == 0 {
        let imported = import(&target, &export(source, graph, pools));
        assert!(imported.pools.iter().all(|pool| pool.moved && pool.pending > 0));
        graph.verify(&target, &names).map_err(|what| format!("imported together: {what}"))?;
    } else {
        for pool in &*pools {
            import(&target, &export(source, graph, &[*pool]));
            let alone: Names = [(*pool, graph.names[*pool].clone())].into();
            graph.verify(&target, &alone).map_err(|what| format!("imported alone: {what}"))?;
        }
    }
    // Pools are removed while some of them are pending, and nothing of that is left.
    target.close().map_err(|e| e.to_string())
}

/// Into a window of the same place: free, or partly taken.
fn into_the_same_window(
    graph: &Graph,
    pools: &[usize],
    mut exported: (ImportManifest, Vec<Vec<u8>>),
    random: &mut Random,
) -> Result<(), String> {
    let medium: Arc<dyn Medium> = SimMedium::from_image_unrecorded(&blank(0));
    let same = open(&medium);
    let taken = random.below(3);
    for n in 0..taken {
        same.create_pool(&format!("other {n}"), &PoolOptions::default()).unwrap();
    }
    if taken > 0 {
        for pool in &mut exported.0.pools {
            pool.name.push('\'');
        }
    }
    let imported = import(&same, &exported);
    let renamed: Names =
        pools.iter().zip(&exported.0.pools).map(|(n, pool)| (*n, pool.name.clone())).collect();
    if taken == 0 && pools.is_sorted() {
        assert!(
            imported.pools.iter().all(|pool| !pool.moved && pool.pending == 0),
            "nothing conflicts: {imported:?}"
        );
    }
    graph
        .verify(&same, &renamed)
        .map_err(|what| format!("in the same window, {taken} in the way: {what}"))?;
    same.close().map_err(|e| e.to_string())
}

pub(crate) fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn graphs_are_isomorphic_wherever_they_go() {
    let first = number("CENOTE_SEED", 1);
    let seeds = first..first + number("CENOTE_GRAPHS", 16);
    for (seed, heap) in seeds.flat_map(|seed| HEAPS.map(|heap| (seed, heap))) {
        if let Err(what) = one(seed, heap) {
            panic!("CENOTE_SEED={seed}, {heap:?}: {what}");
        }
    }
}

#[test]
fn roots_that_are_forgotten_are_found() {
    for heap in HEAPS {
        plant(Bug::RootsNotRewritten);
        let found = (1..5).find_map(|seed| one(seed, heap).err());
        plant(Bug::None);
        assert!(found.is_some_and(|what| what.contains("root")), "{heap:?}");
    }
}

/// The list of the blocks of a puddle's pool, as its files have it.
fn blocks_of(
    graph: &Graph,
    files: &BTreeMap<Uuid, Vec<u8>>,
    pool: PoolId,
    heap: HeapKind,
) -> Result<PoolBlocks, String> {
    let puddles: Vec<PuddleRecord> =
        graph.puddles.iter().filter(|puddle| puddle.pool == pool).copied().collect();
    let read: ReadPuddle<'_> = &mut |puddle, at, bytes| {
        bytes.copy_from_slice(&files[&puddle.uuid][at as usize..][..bytes.len()]);
        Ok(())
    };
    PointerRewriter.blocks(heap, &puddles, read).unwrap()
}

/// What is to be done to a puddle that moves by `distance`.
fn job(
    puddle: &PuddleRecord,
    distance: u64,
    moves: &Arc<Moves>,
    types: &Arc<TypeTable>,
) -> RewriteJob {
    RewriteJob {
        puddle: PuddleRecord { addr: puddle.addr + distance, ..*puddle },
        heap: HeapKind::Traced,
        from: puddle.addr,
        moves: Arc::clone(moves),
        types: Arc::clone(types),
        all_blocks: false,
        blocks: None,
    }
}

/// Whether puddles are rewritten alike when blocks in them are condemned: a sweep that was not
/// committed makes them allocated again.
fn condemned_are_rewritten() -> bool {
    let random = &mut Random(12);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let original = files(&source);
    let types: Arc<TypeTable> =
        Arc::new(types().into_iter().map(|record| (record.id, Arc::new(record))).collect());
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + (1 << 36),
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    graph.puddles.iter().all(|puddle| {
        let job = job(puddle, 1 << 36, &moves, &types);
        let geometry = HeapGeometry::new(puddle.size, puddle.index == 0).unwrap();
        let marks = geometry.marks as usize..geometry.hints as usize;
        let mut plain = original[&puddle.uuid].clone();
        let mut condemned = plain.clone();
        let allocated = |mark: &&mut u8| **mark == mark::ALLOCATED;
        condemned[marks.clone()]
            .iter_mut()
            .filter(allocated)
            .for_each(|mark| *mark = mark::CONDEMNED);
        assert!(condemned != plain);
        image::rewrite(&mut plain, &job).unwrap();
        image::rewrite(&mut condemned, &job).unwrap();
        plain[marks.clone()].fill(0);
        condemned[marks].fill(0);
        plain == condemned
    })
}

#[test]
fn pointers_in_condemned_blocks_are_rewritten() {
    assert!(condemned_are_rewritten());
    plant(Bug::CondemnedNotRewritten);
    let rewritten = condemned_are_rewritten();
    plant(Bug::None);
    assert!(!rewritten, "nothing noticed that condemned blocks are left as they were");
}

/// Images that are no puddle's, or a puddle's with damage: no panic, and no byte is changed that is
/// not a pointer in a block.
#[test]
fn hostile_images_change_nothing_but_words_of_blocks() {
    let random = &mut Random(11);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let original = files(&source);
    let types: Arc<TypeTable> =
        Arc::new(types().into_iter().map(|record| (record.id, Arc::new(record))).collect());
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + (1 << 36),
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    let (mut refused, mut rewritten, mut damaged) = (0, 0, 0);
    for puddle in &graph.puddles {
        let job = job(puddle, 1 << 36, &moves, &types);
        let image = &original[&puddle.uuid];
        for round in 0..60 {
            let mut hostile = image.clone();
            match round % 4 {
                0 => hostile.truncate(random.below(image.len() as u64) as usize),
                1 => hostile.iter_mut().for_each(|byte| *byte = random.next() as u8),
                _ => {
                    for _ in 0..1 + random.below(2000) {
                        // Descriptors and marks lie in the first superblock.
                        let at = random.below((64 << 10).min(hostile.len() as u64)) as usize;
                        hostile[at] = if random.below(2) == 0 { random.next() as u8 } else { 0xff };
                    }
                }
            }
            let before = hostile.clone();
            match image::rewrite(&mut hostile, &job) {
                Err(_) => {
                    refused += 1;
                    assert!(hostile == before);
                }
                Ok(done) => {
                    rewritten += done.native;
                    damaged += done.damaged;
                    let changed =
                        hostile.chunks(8).zip(before.chunks(8)).filter(|(a, b)| a != b).count()
                            as u64;
                    assert!(
                        changed <= done.native + done.relative + done.region,
                        "round {round}: {changed} {done:?}"
                    );
                }
            }
            let _ = image::for_each_pointer(&mut hostile, puddle, &types, &mut |_| ());
        }
    }
    assert!(refused > 10 && rewritten > 100 && damaged > 10, "{refused} {rewritten} {damaged}");
}

/// What a crash leaves of a rewriting in the puddle's own file, any number of times: it ends the
/// same, no matter which words are new already. `Err`: it does not.
fn begun_again(random: &mut Random, heap: HeapKind, distance: u64) -> Result<u64, String> {
    let (_medium, source) = store_on(&blank(0));
    let graph = build_in(&source, heap, random);
    // Off-holders and numbers of pools are not looked at here: of types that have them nothing is
    // repeatable.
    let native = |mut record: TypeRecord| {
        record.pointers.retain(|field| field.kind == PointerKind::NATIVE);
        (record.id, Arc::new(record))
    };
    let types: Arc<TypeTable> = Arc::new(types().into_iter().map(native).collect());
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + distance,
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    let mut crashes = 0;
    let original = files(&source);
    for puddle in &graph.puddles {
        let old = &original[&puddle.uuid];
        let mut work = job(puddle, distance, &moves, &types);
        work.heap = heap;
        if heap != HeapKind::Traced {
            work.blocks = Some(Arc::new(blocks_of(&graph, &original, puddle.pool, heap)?));
        }
        let Some(stretches) = image::repeatable(old, &work) else { continue };
        let mut whole = old.clone();
        image::rewrite(&mut whole, &work).unwrap();
        let changed: Vec<usize> =
            (0..old.len()).step_by(8).filter(|at| old[*at..at + 8] != whole[*at..at + 8]).collect();
        let inside =
            |at: &usize| stretches.iter().any(|(from, to)| (*from..*to).contains(&(*at as u64)));
        assert!(changed.iter().all(inside), "words outside of {stretches:x?}");
        for round in 0..8 {
            let mut image = old.clone();
            for _ in 0..=round % 3 {
                let mut next = image.clone();
                image::rewrite(&mut next, &work).unwrap();
                for at in changed.iter().filter(|_| random.below(3) > 0) {
                    image[*at..at + 8].copy_from_slice(&next[*at..at + 8]);
                }
                crashes += u64::from(image != whole && !changed.is_empty());
            }
            image::rewrite(&mut image, &work).unwrap();
            if image != whole {
                return Err(format!("{distance:#x}, round {round}: it ends otherwise"));
            }
        }
    }
    Ok(crashes)
}

#[test]
fn what_is_rewritten_in_its_file_ends_the_same_wherever_a_crash_stopped_it() {
    let random = &mut Random(number("CENOTE_SEED", 12));
    for heap in HEAPS {
        for distance in [1 << 36, 64 << 21] {
            let crashes: u64 = (0..4).map(|_| begun_again(random, heap, distance).unwrap()).sum();
            println!("{heap:?}, {distance:#x}: {crashes} crashes");
            assert!(crashes > 60, "{distance:#x}: {crashes}");
        }
        // On top of where it was.
        assert_eq!(begun_again(random, heap, 1 << 16).unwrap(), 0, "by another file");
        plant(Bug::Pointer(PointerBug::OverlapRepeated));
        let found = (0..4).find_map(|_| begun_again(random, heap, 1 << 16).err());
        plant(Bug::None);
        assert!(found.is_some_and(|what| what.contains("otherwise")), "{heap:?}");
    }
}

/// A map that names the same words thousands of times, as an archive may bring one: memory for what
/// a value has words, and each word is changed once.
#[test]
fn a_pointer_map_with_more_pointers_than_words_changes_none_of_them_twice() {
    let random = &mut Random(13);
    let (_medium, source) = store_on(&blank(0));
    let graph = build(&source, random);
    let original = files(&source);
    let again = |count| {
        let mut all = types();
        let table = all.iter_mut().find(|record| record.id == TABLE).unwrap();
        let field = table.pointers[0].clone();
        table.pointers = vec![field; count];
        table.check().unwrap();
        Arc::new(all.into_iter().map(|record| (record.id, Arc::new(record))).collect::<TypeTable>())
    };
    // By their own size: what is sent through this twice comes elsewhere.
    let moves = graph.puddles.iter().map(|p| MoveRecord {
        from: p.addr,
        to: p.addr + (1 << 21),
        size: p.size,
    });
    let relocation =
        RelocationRecord { id: Uuid([1; 16]), moves: moves.collect(), pools: Vec::new() };
    let moves = Arc::new(Moves::new(&relocation).unwrap());
    let mut native = 0;
    for puddle in &graph.puddles {
        let rewritten = |types| {
            let work = job(puddle, 1 << 21, &moves, &types);
            let mut image = original[&puddle.uuid].clone();
            let done = image::rewrite(&mut image, &work).unwrap();
            (image, done)
        };
        let (plain, done) = rewritten(again(1));
        let (hostile, counted) = rewritten(again(3000));
        assert!(plain == hostile && done == counted, "{done:?} {counted:?}");
        native += done.native;
    }
    assert!(native > 100);
}

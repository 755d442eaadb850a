//! What the roles of a logged heap's puddles are for: no block lies in a puddle for metadata.

use crate::protected::{Heap, backing, fill, held, make, open, options};
use cenote_heap::logged::{LoggedError, LoggedOptions, Protection};
use cenote_layout::catalog::{AtRest, PoolMode, PuddleRecord};
use cenote_layout::puddle::Role;
use cenote_medium::{Medium, MediumOptions, RealMedium};
use cenote_store::relocate::{ImportManifest, ImportPool, ImportPuddle};
use cenote_store::{FormatOptions, Store, format};
use cenote_testkit::directories::directory;
use std::path::Path;
use std::sync::Arc;

/// A pool that was closed: its puddles, and what they hold.
type Closed = Vec<(PuddleRecord, Vec<u8>)>;

fn closed(path: &Path, guards: u32) -> (Closed, usize, u64) {
    make(path, PoolMode::Direct);
    let store = open(path);
    let options = LoggedOptions { guards, ..options(Protection::Hidden) };
    let heap = Heap::open_pool(backing(&store), &options).expect("a heap");
    fill(&heap);
    let (count, window) = (held(&heap).len(), store.info().window_base);
    let mut puddles: Vec<PuddleRecord> = store.puddle_records();
    puddles.retain(|puddle| puddle.pool.0 != 0);
    puddles.sort_unstable_by_key(|puddle| puddle.index);
    drop(heap);
    store.close().expect("closed");
    let name = |p: &PuddleRecord| format!("puddles/{}", String::from_utf8_lossy(&p.uuid.to_hex()));
    let read = |p: &PuddleRecord| std::fs::read(path.join(name(p))).expect("a file");
    (puddles.into_iter().map(|p| (p, read(&p))).collect(), count, window)
}

/// Another store with the pool, whose puddles have these roles.
fn imported(
    path: &Path,
    from: &Closed,
    window: u64,
    role: impl Fn(&PuddleRecord) -> Role,
) -> Store {
    let options = MediumOptions { create: true, ..MediumOptions::default() };
    let medium: Arc<dyn Medium> = Arc::new(RealMedium::open(path, &options).expect("a directory"));
    let window = FormatOptions { window_base: Some(window), window_len: 1 << 30, uuid: None };
    format(medium, &window).expect("formatted");
    let store = open(path);
    let puddle = |p: &PuddleRecord| ImportPuddle {
        old_addr: p.addr,
        size: p.size,
        identity: p.uuid,
        role: role(p),
    };
    let pool = ImportPool {
        name: "x".into(),
        old_id: from[0].0.pool,
        mode: PoolMode::Direct,
        heap: cenote_layout::catalog::HeapKind::Logged,
        puddle_size: 1 << 20,
        size_max: 64 << 20,
        permissions: 0o600,
        at_rest: AtRest::None,
        protect: cenote_store::DataProtection::None,
        torn: false,
        puddles: from.iter().map(|(p, _)| puddle(p)).collect(),
    };
    let manifest = ImportManifest { pools: vec![pool], types: Vec::new() };
    let mut import = store.begin_import(manifest).expect("begun");
    for (slot, (p, bytes)) in from.iter().enumerate() {
        import.write(slot, 4096, &bytes[4096..p.size as usize]).expect("written");
    }
    // SAFETY: a copy of a pool; no values of types are in it.
    unsafe { import.commit() }.expect("committed");
    store
}

#[test]
fn a_block_in_a_puddle_with_role_metadata_is_refused_and_metadata_with_role_heap_are_not() {
    let dir = directory();
    let (from, count, window) = closed(&dir.path().join("from"), 1);
    let metadata = from.iter().filter(|(p, _)| p.role == Role::Metadata).count();
    assert!(metadata > 0 && from.len() > metadata + 1);
    // As archives, and copies of earlier builds, have them: all with the role of blocks.
    for (name, role) in [("same", None), ("earlier", Some(Role::Heap))] {
        let role = |p: &PuddleRecord| role.unwrap_or(p.role);
        let store = imported(&dir.path().join(name), &from, window, role);
        let heap = Heap::open_pool(backing(&store), &options(Protection::Hidden)).expect(name);
        assert_eq!(held(&heap).len(), count, "{name}");
        fill(&heap);
        assert_eq!(held(&heap).len(), 2 * count, "{name}");
    }
    let data = from.iter().rfind(|(p, _)| p.role == Role::Heap && p.index != 0).expect("blocks");
    let wrong = data.0.index;
    let role = |p: &PuddleRecord| if p.index == wrong { Role::Metadata } else { p.role };
    let store = imported(&dir.path().join("wrong"), &from, window, role);
    match Heap::open_pool(backing(&store), &options(Protection::Hidden)) {
        Err(LoggedError::Puddle { puddle, .. }) => assert_eq!(puddle, wrong),
        other => panic!("{:?}", other.map(drop)),
    }
}

//! Copies of pools with a logged heap: damage is found before anything is copied, and planted bugs
//! in what rewrites them are found.

use super::lists::{Plain, Root, fill, fill_in, fill_plain, of, walk};
use crate::support::{directory, hashes};
use cenote::{
    ArchivingError, AtRest, Error, ExportOptions, HeapKind, ImportOptions, PoolMode, PoolOptions,
    Reader, Result, Store,
};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, LoggedBug, plant};
use cenote_store::StoreError;

/// One flipped bit of the metadata, in the table of the only sub-heap that has blocks.
#[test]
fn a_pool_whose_heap_is_damaged_is_neither_copied_nor_moved_and_the_cell_is_named() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    fill_in(&store, "a", &of(HeapKind::Logged, PoolMode::Direct), 60);
    fill(&store, "beside", PoolMode::Direct, 60);
    let id = store.pools().iter().find(|pool| pool.record.name == "a").unwrap().record.id;
    let root = store.puddle_records().into_iter().find(|p| p.pool == id && p.index == 0).unwrap();
    store.close().unwrap();
    let file = dir.path().join(format!("puddles/{}", String::from_utf8_lossy(&root.uuid.to_hex())));
    let mut bytes = std::fs::read(&file).unwrap();
    let state = (0..bytes.len()).step_by(32).rfind(|at| bytes[at + 7] == 0xa5).expect("a record");
    bytes[state + 8] ^= 0x10;
    std::fs::write(&file, &bytes).unwrap();
    // It is not the stamp of a close that says so.
    let store = Store::open(dir.path()).unwrap();
    let before = hashes(dir.path());
    let refused = |result: Result<()>| match result.unwrap_err() {
        Error::Store(StoreError::HeapDamaged { name, detail })
        | Error::Archive(ArchivingError::Store(StoreError::HeapDamaged { name, detail })) => {
            assert_eq!(name, "a");
            assert!(detail.contains("damaged at offset 0x"), "{detail}");
        }
        other => panic!("{other}"),
    };
    refused(store.clone_pool("a", "b").map(drop));
    refused(store.randomize_pool("a"));
    refused(store.randomize_pool("beside"));
    refused(store.export(&["a"], Vec::new(), ExportOptions::default()).map(drop));
    let pools = |all: std::collections::BTreeMap<String, _>| -> Vec<_> {
        all.into_iter().filter(|(name, _)| name.starts_with("puddles/")).collect()
    };
    assert!(pools(hashes(dir.path())) == pools(before));
    assert_eq!(store.pools().len(), 2);
    // It is asked before, and not by who opens the copy.
    plant(Bug::Logged(LoggedBug::CopiedDamaged));
    let copied = store.clone_pool("a", "b").map(drop);
    plant(Bug::None);
    assert!(copied.is_ok() && store.pool("b").is_err());
    walk(&store, &store.pool("beside").unwrap(), 60);
}

/// For each planted bug in copies of logged heaps, what a copy is.
#[test]
fn copies_of_logged_heaps_find_planted_bugs() {
    let copied = |bug: Bug| {
        let dir = directory();
        let store = Store::open(dir.path()).unwrap();
        let options = of(HeapKind::Logged, PoolMode::Direct);
        fill_in(&store, "a", &options, 60);
        fill_plain(&store, "plain", HeapKind::Logged, 300);
        let count = |name: &str, plain: bool| -> Result<u64> {
            let pool = store.pool(name)?;
            let (view, mut found) = (pool.read()?, 0);
            if plain {
                let mut at = view.root::<Plain>()?;
                while let Some(node) = at {
                    (at, found) = (view.get(node)?.next, found + 1);
                }
            } else if let Some(root) = view.root::<Root>()? {
                let mut at = view.get(root)?.first;
                while let Some(node) = at {
                    (at, found) = (view.get(node)?.next, found + 1);
                }
            }
            Ok(found)
        };
        plant(bug);
        let made = store
            .clone_pool("a", "b")
            .and_then(|_| store.clone_pool("plain", "c"))
            .and_then(|_| Ok((count("b", false)?, count("c", true)?)));
        plant(Bug::None);
        made
    };
    assert_eq!(copied(Bug::None).unwrap(), (60, 300));
    for bug in [LoggedBug::FirstOfRunRewritten, LoggedBug::RootsOfTracedHeap] {
        let found = copied(Bug::Logged(bug));
        println!("{bug:?}: {found:?}");
        assert!(!matches!(found, Ok((60, 300))), "{bug:?}");
    }
}

/// Numbers and roles of a pool's puddles.
fn roles(store: &Store, name: &str) -> Vec<(u32, Role)> {
    let id = store.pools().iter().find(|pool| pool.record.name == name).unwrap().record.id;
    let of = |p: &PuddleRecord| (p.index, p.role);
    let mut all: Vec<_> = store.puddle_records().iter().filter(|p| p.pool == id).map(of).collect();
    all.sort_unstable_by_key(|(index, _)| *index);
    all
}

/// Puddles of metadata have that role after a clone and an import, into the same store and into
/// another one. Blocks come into none of them afterwards.
#[test]
fn puddles_of_metadata_keep_their_role_wherever_a_pool_goes() {
    let (here, there) = (directory(), directory());
    let store = Store::open(here.path()).unwrap();
    let other = Store::open(there.path()).unwrap();
    for (mode, at_rest) in [
        (PoolMode::Direct, AtRest::None),
        (PoolMode::Shadowed, AtRest::None),
        (PoolMode::Shadowed, AtRest::Integrity),
    ] {
        let name = format!("{mode:?} {at_rest:?}");
        let options = PoolOptions { at_rest, ..of(HeapKind::Logged, mode) };
        fill_in(&store, &name, &options, 6000);
        let wanted = roles(&store, &name);
        assert!(wanted.iter().any(|(_, role)| *role == Role::Metadata), "{wanted:?}");
        let clone = format!("{name} clone");
        store.clone_pool(&name, &clone).unwrap();
        assert_eq!(roles(&store, &clone), wanted, "{clone}");
        walk(&store, &store.pool(&clone).unwrap(), 6000);
        let (archive, _) = store.export(&[&name], Vec::new(), ExportOptions::default()).unwrap();
        other.import(archive.as_slice(), ImportOptions::default()).unwrap();
        // A sealed archive says no roles, and shows no metadata.
        let is_said = at_rest == AtRest::None;
        assert_eq!(roles(&other, &name) == wanted, is_said, "{name}");
        let pool = other.pool(&name).unwrap();
        walk(&other, &pool, 6000);
        assert!(pool.check().unwrap().is_sound());
        drop(pool);
    }
}

#[test]
fn planted_imports_that_forget_roles_are_found() {
    let dir = directory();
    let store = Store::open(dir.path()).unwrap();
    fill_in(&store, "a", &of(HeapKind::Logged, PoolMode::Direct), 6000);
    plant(Bug::Logged(LoggedBug::ImportedRolesForgotten));
    store.clone_pool("a", "b").unwrap();
    plant(Bug::None);
    assert_ne!(roles(&store, "a"), roles(&store, "b"));
}

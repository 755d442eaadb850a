//! Values of collections are looked at where they are in use, and only there: unused places of
//! arrays, nodes and pages are zero, which is no value of these types.

use crate::common::{directory, random};
use cenote::persist::Rule;
use cenote::{
    ArchivingError, Error, ExportOptions, ImportOptions, OpenOptions, Persist, PoolOptions, Result,
    Store,
};
use cenote_collections::{BTreeMap, ForwardList, HashMap, InlineStr, List, String, Vec};
use std::num::NonZeroU32;

/// No value of it is zero.
#[derive(Persist, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[persist(name = "values::Item")]
#[repr(C)]
struct Item {
    mark: [u8; 12],
    number: NonZeroU32,
}

impl Item {
    fn new(number: u64) -> Self {
        let number = NonZeroU32::new(number as u32 % 60 + 1).expect("not 0");
        Self { mark: *b"item-of-test", number }
    }
}

#[derive(Persist, Clone, Copy)]
#[persist(name = "values::All")]
struct All {
    list: List<Item>,
    forward: ForwardList<Item>,
    tree: BTreeMap<Item, Item>,
    hash: HashMap<Item, Item>,
    vec: Vec<Item>,
}

#[test]
fn places_that_are_not_in_use_are_no_invalid_values_and_places_in_use_are_looked_at() -> Result<()>
{
    let dir = directory();
    let options = PoolOptions { puddle_size: 1 << 20, ..PoolOptions::default() };
    let pool = Store::open(dir.path())?.create_pool("p", &options)?;
    let all = pool.write(|tx| -> Result<All> {
        let (list, forward) = (List::new(tx)?, ForwardList::new(tx)?);
        let (tree, hash) = (BTreeMap::new(tx)?, HashMap::new(tx)?);
        let all = All { list, forward, tree, hash, vec: Vec::new(tx)? };
        let root = tx.alloc(all)?;
        tx.set_root(root)?;
        Ok(all)
    })?;
    let mut seed = 7;
    for round in 0..60 {
        pool.write(|tx| -> Result<()> {
            for _ in 0..12 {
                let item = Item::new(random(&mut seed));
                all.list.push_back(tx, item)?;
                all.forward.push_front(tx, item)?;
                all.tree.insert(tx, item, item)?;
                all.hash.insert(tx, item, item)?;
                all.vec.push(tx, item)?;
            }
            for _ in 0..round % 24 {
                let item = Item::new(random(&mut seed));
                all.list.pop_front(tx)?;
                all.forward.pop_front(tx)?;
                all.tree.remove(tx, &item)?;
                all.hash.remove(tx, &item)?;
                all.vec.pop(tx)?;
            }
            Ok(())
        })?;
        let values = pool.check()?.values.expect("values are looked at");
        assert!(values.invalid == 0 && values.blocks > 10, "{values:?}");
    }
    drop(pool);

    // In the file every item is broken, one after the other.
    let (mut broken, mut kinds) = (0, std::collections::BTreeSet::new());
    let mut files = std::vec::Vec::new();
    for entry in std::fs::read_dir(dir.path().join("puddles")).expect("puddles") {
        let path = entry.expect("a file").path();
        let bytes = std::fs::read(&path).expect("readable");
        files.push((path, bytes));
    }
    for (path, bytes) in &mut files {
        for at in 0..bytes.len() - 16 {
            if bytes[at..].starts_with(b"item-of-test") {
                bytes[at + 12..at + 16].fill(0);
                broken += 1;
            }
        }
        std::fs::write(path, bytes).expect("writable");
    }
    let values = Store::open(dir.path())?.pool("p")?.check()?.values.expect("values are looked at");
    for found in &values.findings {
        kinds.insert(found.type_name.split('<').next().unwrap_or_default().to_string());
    }
    let names = ["[values::Item]", "cenote/BTreeLeaf", "cenote/ForwardListNode", "cenote/HashPage"];
    assert!(names.iter().all(|name| kinds.contains(*name)), "{kinds:?}");
    // What lies in free blocks is no value.
    assert!(values.invalid > 100 && values.invalid <= broken, "{} of {broken}", values.invalid);
    Ok(())
}

#[derive(Persist)]
#[persist(name = "values::Texts")]
struct Texts {
    name: InlineStr<31>,
    text: String,
    words: List<InlineStr<31>>,
}

/// Replaces bytes that stand once in the files of pools.
fn replace(dir: &std::path::Path, from: &[u8], to: &[u8]) {
    let mut places = 0;
    for entry in std::fs::read_dir(dir.join("puddles")).expect("puddles") {
        let path = entry.expect("a file").path();
        let mut bytes = std::fs::read(&path).expect("readable");
        while let Some(at) = bytes.windows(from.len()).position(|window| window == from) {
            bytes[at..at + to.len()].copy_from_slice(to);
            places += 1;
        }
        std::fs::write(&path, bytes).expect("writable");
    }
    assert_eq!(places, 1, "{from:?}");
}

/// A text is UTF-8 wherever values are judged: by `check`, by an import, and at an open.
#[test]
fn bytes_of_a_text_that_are_no_utf8_are_found_by_check_import_and_open() -> Result<()> {
    let long = "xy\u{e4}".repeat(40_000);
    // What stands there, what comes in its place, and the type that has it. The last one crosses a
    // piece of a block that is looked at in pieces.
    let cases: [(&[u8], &[u8], &str); 5] = [
        (b"inline-text-1", b"inline\xfftext-1", "values::Texts"),
        (b"\x0dinline-text-1", b"\x40inline-text-1", "values::Texts"),
        (b"string-text-2", b"string-text-\xc3", "[cenote/Utf8]"),
        (b"in-a-list-3", b"in-\x80-list-3", "cenote/ListNode"),
        (b"long-text-4", b"long-text\xe0\x80", "[cenote/Utf8]"),
    ];
    for (from, to, type_name) in cases {
        let dir = directory();
        let pool = Store::open(dir.path())?.pool("p")?;
        pool.write(|tx| -> Result<()> {
            let text = String::from_str(tx, &format!("string-text-2{long}long-text-4{long}"))?;
            let words = List::new(tx)?;
            words.push_back(tx, InlineStr::truncated("in-a-list-3"))?;
            let name = InlineStr::truncated("inline-text-1");
            let root = tx.alloc(Texts { name, text, words })?;
            tx.set_root(root)
        })?;
        assert!(pool.check()?.is_sound());
        drop(pool);
        replace(dir.path(), from, to);
        let store = Store::open(dir.path())?;
        let pool = store.pool("p")?;
        let values = pool.check()?.values.expect("looked at");
        assert_eq!(values.invalid, 1, "{from:?}: {values:?}");
        let found = &values.findings[0];
        assert!(found.rule == Rule::Text && found.type_name.starts_with(type_name), "{found:?}");
        drop(pool);
        let archive = store.export(&["p"], std::vec::Vec::new(), ExportOptions::default())?.0;
        drop(store);
        let other = directory();
        let target = Store::open(other.path())?;
        let refused = target.import(archive.as_slice(), ImportOptions::default());
        assert!(
            matches!(refused, Err(Error::Archive(ArchivingError::Values { count: 1, .. }))),
            "{refused:?}"
        );
        let options = OpenOptions { verify_values: true, ..OpenOptions::default() };
        let refused = Store::open_with(dir.path(), &options)?.pool("p")?.read().map(drop);
        assert!(matches!(refused, Err(Error::InvalidValues { count: 1, .. })), "{refused:?}");
    }
    Ok(())
}

//! Flipped bits in the metadata of a logged heap: `check` names each of them, or the pool is
//! refused and named. Nothing panics, and other pools are checked all the same.

use crate::common::{Fixture, empty};
use cenote::{HeapKind, PoolOptions};
use cenote_layout::header::{Header as _, read};
use cenote_layout::logged::{BlockState, CELL_SIZE, LISTS_OFFSET, SlabRecord, SubHeapHeader};
use std::path::{Path, PathBuf};

/// A store with pool `plain`, and pool `logged`, which has blocks of several sizes and free ones.
fn with_logged_pool() -> Fixture {
    let fixture = empty();
    let store = cenote::Store::open(&fixture.store).expect("opened");
    store.pool("plain").expect("a pool");
    let options = PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() };
    let pool = store.create_pool("logged", &options).expect("a pool");
    let written = pool.write(|tx| -> cenote::Result<()> {
        let mut freed = Vec::new();
        for round in 0..12u64 {
            tx.alloc([round; 4])?;
            tx.alloc([round; 40])?;
            freed.push(tx.alloc([round; 600])?);
        }
        freed.into_iter().step_by(2).try_for_each(|block| tx.free(block))
    });
    written.expect("committed");
    fixture
}

/// The file that begins a sub-heap, and where its metadata begin.
fn metadata(store: &Path) -> (PathBuf, usize, SubHeapHeader) {
    let magic = SubHeapHeader::MAGIC;
    let found =
        std::fs::read_dir(store.join("puddles")).expect("readable").flatten().find_map(|entry| {
            let bytes = std::fs::read(entry.path()).expect("readable");
            let at = bytes.chunks(4096).position(|page| page.starts_with(&magic))? * 4096;
            let header: SubHeapHeader = read(&bytes[at..at + 4096], false).expect("a header");
            Some((entry.path(), at, header))
        });
    found.expect("a sub-heap")
}

/// Whether a bit of a cell says that a slot of a slab is used. A reader cannot tell its flip from a
/// step that a crash has torn: it takes the flip back (docs/logged-heap.md).
fn is_used_word_of_slab(cell: &[u8], bit: usize) -> bool {
    let word = SlabRecord::USED_WORD * 64;
    cell[7] == BlockState::Slab as u8 && (word..word + 64).contains(&bit)
}

#[test]
fn check_names_each_flipped_bit_of_a_logged_heaps_metadata() {
    let fixture = with_logged_pool();
    let sound = fixture.run("check", &["--json"]).exits(1).json();
    let leaks = |value: &serde_json::Value| {
        let findings = value["findings"].as_array().expect("a list");
        findings.iter().filter(|finding| finding["kind"] == "leak").count()
    };
    assert_eq!(leaks(&sound), sound["findings"].as_array().expect("a list").len(), "{sound}");
    let (path, base, header) = metadata(&fixture.store);
    let table = header.geometry().expect("a geometry").table;
    let whole = std::fs::read(&path).expect("readable");
    let cells = (LISTS_OFFSET..header.metadata_len).step_by(CELL_SIZE as usize);
    let used: Vec<u64> = cells
        .filter(|at| *at < LISTS_OFFSET + 8192 || *at >= table)
        .filter(|at| {
            let at = base + *at as usize;
            whole[at..at + CELL_SIZE as usize].iter().any(|byte| *byte != 0)
        })
        .collect();
    assert!(used.len() > 60, "{} cells are used", used.len());
    let mut named = 0;
    for (round, at) in used.iter().enumerate() {
        let mut bytes = whole.clone();
        let bit = round * 41 % 256;
        bytes[base + *at as usize + bit / 8] ^= 1 << (bit % 8);
        std::fs::write(&path, &bytes).expect("written");
        let check = fixture.run("check", &["--json"]).exits(1).json();
        if is_used_word_of_slab(&whole[base + *at as usize..], bit) {
            assert_eq!(check["findings"], sound["findings"], "it reads as the record of before");
            continue;
        }
        let findings = check["findings"].as_array().expect("a list");
        let about: Vec<_> = findings
            .iter()
            .filter(|finding| finding["kind"] != "leak" && finding["pool"] == "logged")
            .collect();
        assert!(!about.is_empty(), "bit {bit} of the cell at {at:#x} is not found: {check}");
        let texts = about.iter().filter_map(|finding| finding["text"].as_str());
        named += usize::from(texts.into_iter().any(|text| text.contains("metadata of sub-heap")));
        assert!(check.to_string().contains("plain"), "the other pool is checked: {check}");
    }
    assert!(named > used.len() / 2, "{named} of {} are named with their place", used.len());
    std::fs::write(&path, &whole).expect("written");
    assert_eq!(leaks(&fixture.run("check", &["--json"]).exits(1).json()), leaks(&sound));
}

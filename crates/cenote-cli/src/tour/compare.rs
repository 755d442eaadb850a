//! The end of a tour: compares the index that survived with one that was never disturbed.

use super::index;
use crate::failure::Failure;
use cenote::{Access, OpenOptions, Store};
use std::collections::BTreeMap;
use std::path::Path;

/// What was compared, and what differs.
#[derive(Debug, Default)]
pub(crate) struct Comparison {
    pub(crate) entries: u64,
    pub(crate) positions: u64,
    /// Bytes of the blocks in the pool, and of its puddles.
    pub(crate) block_bytes: u64,
    pub(crate) pool_bytes: u64,
    pub(crate) store_bytes: u64,
    /// Sentences, the first few.
    pub(crate) differences: Vec<String>,
    /// All of them.
    pub(crate) difference_count: u64,
}

/// Differences that are told.
const TOLD: usize = 10;

impl Comparison {
    fn differs(&mut self, text: impl FnOnce() -> String) {
        self.difference_count += 1;
        if self.differences.len() < TOLD {
            self.differences.push(text());
        }
    }
}

/// Compares the index in the store, entry by entry, with one that is built here from the same
/// words; and checks the heap.
pub(crate) fn compare(dir: &Path, words: &[&str]) -> Result<Comparison, Failure> {
    let mut expected: BTreeMap<&str, Vec<u64>> = BTreeMap::new();
    for (position, word) in (0..).zip(words) {
        expected.entry(word).or_default().push(position);
    }
    let options = OpenOptions { access: Access::ReadOnly, ..OpenOptions::default() };
    let store = Store::open_with(dir, &options)?;
    let pool = store.pool_with(index::POOL, Access::ReadOnly)?;
    let mut seen = Comparison { store_bytes: store.info().puddle_bytes, ..Comparison::default() };

    let next = index::progress(&pool)?.map_or(0, |progress| progress.next);
    if next != words.len() as u64 {
        seen.differs(|| format!("{next} words are indexed, there are {}", words.len()));
    }
    let mut remaining = expected.iter();
    index::for_each(&pool, &mut |word, positions| {
        seen.entries += 1;
        seen.positions += positions.len() as u64;
        match remaining.next() {
            Some((expected_word, expected_positions)) if *expected_word == word => {
                if expected_positions != positions {
                    let at = expected_positions.iter().zip(positions).position(|(a, b)| a != b);
                    seen.differs(|| {
                        format!(
                            "\"{word}\" has {} positions, there should be {}; the first {} are the \
                             same",
                            positions.len(),
                            expected_positions.len(),
                            at.unwrap_or(positions.len().min(expected_positions.len()))
                        )
                    });
                }
            }
            Some((expected_word, _)) => {
                seen.differs(|| format!("\"{word}\" stands where \"{expected_word}\" should"))
            }
            None => seen.differs(|| format!("\"{word}\" stands there, and is not in the text")),
        }
    })?;
    let missing: Vec<&str> = remaining.map(|(word, _)| *word).collect();
    for word in missing {
        seen.differs(|| format!("\"{word}\" is missing at the end"));
    }

    let report = pool.check()?;
    seen.block_bytes = report.stats.block_bytes;
    seen.pool_bytes = report.stats.bytes;
    if !report.is_sound() {
        seen.differs(|| {
            format!(
                "the heap is not sound: {} blocks leaked, {} reached and not allocated, \
                 {} damaged superblocks",
                report.leaked_blocks,
                report.unallocated_blocks,
                report.damage.len()
            )
        });
    }
    for damage in &store.report().damage {
        seen.differs(|| damage.to_string());
    }
    Ok(seen)
}

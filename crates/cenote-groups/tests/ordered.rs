//! Records that share lines, validated when their groups have drained, on the modelled cache: no
//! crash leaves a valid record that is not whole.
//!
//! A record is three words and has a tag elsewhere. Its tag is stored when its group, and all
//! groups before it, have drained.

use crate::common::{FILE, MappedFile, word_of};
use cenote_groups::{CacheModel, GroupOptions, Leaving, Replacement, UpdateGroup, UpdateGroups};
use cenote_medium::planted::{Bug, GroupBug, plant};
use cenote_medium::sim::{Limits, SimMedium};
use cenote_medium::{Durability, Medium};
use std::collections::VecDeque;

const RECORDS: usize = 6;
const TAGS: usize = 512;

/// Writes the records, and drains at the end; the number of images, or what is wrong with one.
fn crashed(counters: u32, model: CacheModel) -> Result<u64, String> {
    let file = MappedFile::new(Durability::Power);
    let leaving = Leaving::Modelled(model);
    let groups = UpdateGroups::new(file.persistence, GroupOptions { counters, leaving });
    let mut waiting: VecDeque<(usize, UpdateGroup)> = VecDeque::new();
    let mut tagged = groups.sgroup();
    for record in 0..RECORDS {
        let group = groups.sgroup();
        // SAFETY: words of the mapping.
        unsafe {
            for word in 3 * record..3 * record + 3 {
                group.store(file.word(word), 100 + record as u64);
            }
        }
        waiting.push_back((record, group));
        validate(&file, &mut waiting, &mut tagged);
    }
    groups.drain();
    validate(&file, &mut waiting, &mut tagged);
    assert!(waiting.is_empty());
    groups.drain();
    file.sim.note(RECORDS as u64);
    let mut wrong = None;
    let limits = Limits { exhaustive_units: 8, samples: 60, ..Limits::default() };
    let visited = file.sim.explore(.., limits, |state, image| {
        let bytes = SimMedium::from_image_unrecorded(&image).read(FILE).unwrap();
        for record in 0..RECORDS {
            let words = 3 * record..3 * record + 3;
            let whole = words.into_iter().all(|word| word_of(&bytes, word) != 0);
            let is_valid = word_of(&bytes, TAGS + record) != 0;
            if is_valid && !whole || !is_valid && state.note() > record as u64 {
                wrong.get_or_insert(format!("record {record}: valid {is_valid}, whole {whole}"));
            }
        }
    });
    wrong.map_or(Ok(visited.images), Err)
}

fn validate(
    file: &MappedFile,
    waiting: &mut VecDeque<(usize, UpdateGroup)>,
    tagged: &mut UpdateGroup,
) {
    while waiting.front().is_some_and(|(_, group)| group.left() == 0) {
        let Some((record, _)) = waiting.pop_front() else { break };
        // SAFETY: a word of the mapping.
        unsafe { tagged.store(file.word(TAGS + record), 1) };
    }
}

const CACHES: [CacheModel; 4] = [
    CacheModel { sets: 1, ways: 1, replacement: Replacement::First },
    CacheModel { sets: 1, ways: 2, replacement: Replacement::LeastRecent },
    CacheModel { sets: 2, ways: 1, replacement: Replacement::Random(3) },
    CacheModel { sets: 8, ways: 2, replacement: Replacement::First },
];

#[test]
fn no_crash_leaves_a_valid_record_that_is_not_whole() {
    for counters in [0, 1, 2, 64] {
        for model in CACHES {
            crashed(counters, model).unwrap_or_else(|wrong| panic!("{counters} {model:?} {wrong}"));
        }
    }
}

#[test]
fn lines_that_count_before_the_fence_are_caught() {
    plant(Bug::Group(GroupBug::DrainNotFenced));
    let found = crashed(64, CACHES[3]);
    plant(Bug::None);
    assert!(found.is_err(), "{found:?}");
}

#[test]
fn a_group_without_a_counter_that_stays_in_the_cache_is_caught() {
    plant(Bug::Group(GroupBug::ExhaustedNotWritten));
    let found = crashed(0, CACHES[3]);
    plant(Bug::None);
    assert!(found.is_err(), "{found:?}");
}

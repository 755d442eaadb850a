//! The kernel, one thread: scans of marks and runs of superblocks against plain models. (Several
//! threads: `interleavings.rs`.)

#[allow(dead_code)]
#[path = "../src/traced/anchor.rs"]
mod anchor;
#[allow(dead_code)]
#[path = "../src/traced/marks.rs"]
mod marks;
#[path = "../src/traced/runs.rs"]
mod runs;
#[allow(dead_code, unused_imports)]
#[path = "../src/sync.rs"]
mod sync;

use cenote_layout::heap::mark;
use cenote_medium::planted::{Bug, plant};
use proptest::prelude::*;
use runs::RunWords as _;
use sync::{AtomicU8, AtomicU64, Ordering};

#[repr(align(64))]
struct Marks([AtomicU8; 1024]);

proptest! {
    #[test]
    fn scans_agree_with_a_look_at_each_byte(
        bytes in prop::collection::vec(
            prop_oneof![
                Just(0u8), Just(1), Just(2), Just(0x80), Just(0xfe), Just(0xff), any::<u8>()
            ],
            1..1024,
        )
    ) {
        let marks = Marks([const { AtomicU8::new(0) }; 1024]);
        for (mark, byte) in marks.0.iter().zip(&bytes) {
            mark.store(*byte, Ordering::Relaxed);
        }
        let marks = &marks.0[..bytes.len()];
        for value in [mark::FREE, mark::CACHED, mark::ALLOCATED] {
            let expected = bytes.iter().filter(|b| **b == value).count();
            prop_assert_eq!(marks::count(marks, value) as usize, expected);
            prop_assert_eq!(marks::all(marks, value), expected == bytes.len());
            for (i, &byte) in bytes.iter().enumerate() {
                let bit = marks::bits(marks, i / 64, value) >> (i % 64) & 1;
                prop_assert_eq!(bit != 0, byte == value);
            }
        }
        let mut claimed = [0; marks::WORDS];
        let number = marks::claim(marks, mark::CACHED, &mut claimed);
        prop_assert_eq!(number as usize, bytes.iter().filter(|b| **b == mark::FREE).count());
        for (i, &byte) in bytes.iter().enumerate() {
            prop_assert_eq!(claimed[i / 64] >> (i % 64) & 1 != 0, byte == mark::FREE);
            let expected = if byte == mark::FREE { mark::CACHED } else { byte };
            prop_assert_eq!(marks[i].load(Ordering::Relaxed), expected);
        }
    }
}

struct Plain {
    anchors: Vec<AtomicU64>,
    hints: Vec<AtomicU64>,
}

impl Plain {
    fn new(len: u32) -> Self {
        let backing = Self {
            anchors: (0..len).map(|_| AtomicU64::new(anchor::TAKEN)).collect(),
            hints: (0..len.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
        };
        runs::put(&backing, 0, len);
        backing
    }
}

impl runs::RunWords for Plain {
    fn anchor(&self, number: u32) -> &AtomicU64 {
        &self.anchors[number as usize]
    }
    fn hints(&self, word: u32) -> &AtomicU64 {
        &self.hints[word as usize]
    }
    fn len(&self) -> u32 {
        self.anchors.len() as u32
    }
}

#[test]
fn neighbours_coalesce_and_the_first_fit_is_taken() {
    let map = Plain::new(100);
    assert_eq!(runs::take(&map, 10, 1), runs::TakenRun::At(0));
    for i in 1..10 {
        assert_eq!(runs::take(&map, 10, 1), runs::TakenRun::At(i * 10));
    }
    assert_eq!(runs::take(&map, 1, 1), runs::TakenRun::None);
    runs::put(&map, 30, 10);
    runs::put(&map, 50, 10);
    assert_eq!(runs::take(&map, 11, 1), runs::TakenRun::None);
    runs::put(&map, 40, 10);
    assert_eq!(runs::take(&map, 30, 1), runs::TakenRun::At(30));
}

#[test]
fn a_stale_hint_is_passed_over_and_stays() {
    let map = Plain::new(10);
    assert!(anchor::take(map.anchor(4)));
    assert_eq!(runs::take(&map, 5, 1), runs::TakenRun::At(5));
    assert_eq!(runs::take(&map, 5, 1), runs::TakenRun::Disturbed);
    runs::put(&map, 4, 1);
    assert_eq!(runs::take(&map, 5, 1), runs::TakenRun::At(0));
}

proptest! {
    #[test]
    fn behaves_as_a_plain_list_of_flags(ops in prop::collection::vec((1u32..40, 0u32..4), 1..200)) {
        let len = 300;
        let map = Plain::new(len);
        let mut flags = vec![true; len as usize];
        let mut taken = Vec::new();
        for (count, shift) in ops {
            let align = 1 << shift;
            let expected = (0..len).step_by(align).map(|a| a as usize).find(|&a| {
                let end = a + count as usize;
                end <= len as usize && flags[a..end].iter().all(|&f| f)
            });
            let found = runs::take(&map, count, align as u32);
            let taken_at = |at| runs::TakenRun::At(at as u32);
            prop_assert_eq!(found, expected.map_or(runs::TakenRun::None, taken_at));
            match expected {
                Some(at) => {
                    flags[at..at + count as usize].fill(false);
                    taken.push((at, count));
                }
                None => {
                    if let Some((at, count)) = taken.pop() {
                        runs::put(&map, at as u32, count);
                        flags[at..at + count as usize].fill(true);
                    }
                }
            }
        }
    }
}

/// A refill, with a free in the middle of it: how many free marks are in a superblock that no list
/// has.
fn lost_by_a_refill(bug: Bug) -> u32 {
    let marks = Marks([const { AtomicU8::new(mark::CACHED) }; 1024]);
    let marks = &marks.0[..8];
    let anchor = AtomicU64::new(anchor::FULL);
    marks[3].store(mark::FREE, Ordering::Release);
    assert!(anchor::announce(&anchor));
    let seen = anchor.load(Ordering::Acquire);
    let mut claimed = [0; marks::WORDS];
    assert_eq!((marks::claim(marks, mark::CACHED, &mut claimed), claimed[0]), (1, 8));
    marks[5].store(mark::FREE, Ordering::Release);
    assert!(!anchor::announce(&anchor), "it is listed already");
    plant(bug);
    let settled = anchor::settle(&anchor, seen);
    plant(Bug::None);
    assert_eq!(settled, anchor::state(anchor.load(Ordering::Relaxed)) == anchor::FULL);
    if settled { marks::count(marks, mark::FREE) } else { 0 }
}

#[test]
fn a_refill_that_does_not_look_for_new_free_blocks_is_noticed() {
    assert_eq!(lost_by_a_refill(Bug::None), 0);
    assert_eq!(lost_by_a_refill(Bug::RefillUnchecked), 1);
}

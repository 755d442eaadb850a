//! What `scheck` says, with a modelled cache, where lines leave one by one.

use crate::common::MappedFile;
use cenote_groups::{CacheModel, GroupOptions, Leaving, Replacement, UpdateGroups};
use cenote_medium::planted::{Bug, GroupBug, plant};
use cenote_medium::{Durability, counters};

/// Words of a line.
const LINE: usize = 8;

fn cache(sets: usize, ways: usize, replacement: Replacement) -> Leaving {
    Leaving::Modelled(CacheModel { sets, ways, replacement })
}

fn groups(file: &MappedFile, counters: u32, leaving: Leaving) -> UpdateGroups {
    UpdateGroups::new(file.persistence, GroupOptions { counters, leaving })
}

/// Two lines of one group leave a cache of one set and two ways one after the other.
#[test]
fn a_group_counts_down_as_its_lines_leave_a_full_set() {
    for replacement in [Replacement::LeastRecent, Replacement::First] {
        let file = MappedFile::new(Durability::Power);
        let groups = groups(&file, 8, cache(1, 2, replacement));
        let (first, second) = (groups.sgroup(), groups.sgroup());
        assert_eq!((groups.scheck(&first), groups.scheck(&second)), (0, 0));
        // SAFETY: words of the mapping.
        unsafe {
            first.store(file.word(0), 1);
            first.store(file.word(LINE), 2);
            first.store(file.word(1), 3);
            assert_eq!((first.left(), second.left()), (2, 0));
            assert_eq!(file.durable(&[0, 1, LINE]), [0, 0, 0]);
            second.store(file.word(2 * LINE), 4);
        }
        assert_eq!((first.left(), second.left()), (1, 1));
        // What was stored to last is not what came first.
        match replacement {
            Replacement::LeastRecent => assert_eq!(file.durable(&[0, 1, LINE]), [0, 0, 2]),
            _ => assert_eq!(file.durable(&[0, 1, LINE]), [1, 3, 0]),
        }
        groups.drain();
        assert_eq!((first.left(), second.left()), (0, 0));
        assert_eq!(file.durable(&[0, 1, LINE, 2 * LINE]), [1, 3, 2, 4]);
    }
}

#[test]
fn a_line_that_is_in_a_group_does_not_count_for_another() {
    let count = || {
        let file = MappedFile::new(Durability::Power);
        let groups = groups(&file, 8, cache(4, 4, Replacement::Random(7)));
        let (first, second) = (groups.sgroup(), groups.sgroup());
        // SAFETY: words of the mapping.
        unsafe {
            first.store(file.word(0), 1);
            second.store(file.word(1), 2);
            second.write(file.word(LINE - 1).cast(), &[9; 16]);
        }
        (first.left(), second.left())
    };
    assert_eq!(count(), (1, 1));
    plant(Bug::Group(GroupBug::KnownLineCounted));
    assert_ne!(count(), (1, 1));
    plant(Bug::None);
}

#[test]
fn without_a_free_counter_a_group_is_written_through_and_zero() {
    let durable = || {
        let file = MappedFile::new(Durability::Power);
        let groups = groups(&file, 2, cache(4, 4, Replacement::First));
        let counted = [groups.sgroup(), groups.sgroup()];
        let through = groups.sgroup();
        assert!(through.is_written_through() && !counted[1].is_written_through());
        // SAFETY: words of the mapping.
        unsafe { through.write(file.word(0).cast(), &[1; 72]) };
        assert_eq!(groups.scheck(&through), 0);
        file.durable(&[0, LINE]) == [0x0101_0101_0101_0101; 2]
    };
    assert!(durable());
    plant(Bug::Group(GroupBug::ExhaustedNotWritten));
    assert!(!durable());
    plant(Bug::None);
}

#[test]
fn a_counter_is_given_out_again_when_its_last_line_has_left() {
    let left = || {
        let file = MappedFile::new(Durability::Power);
        let groups = groups(&file, 1, cache(4, 4, Replacement::First));
        let first = groups.sgroup();
        // SAFETY: words of the mapping.
        unsafe { first.store(file.word(0), 1) };
        drop(first);
        let free = groups.free_counters();
        let next = groups.sgroup();
        // A group that has stored nothing has nothing left.
        let left = next.left();
        drop(next);
        groups.drain();
        (free, left, groups.free_counters())
    };
    assert_eq!(left(), (0, 0, 1));
    plant(Bug::Group(GroupBug::CounterFreedEarly));
    assert_ne!(left(), (0, 0, 1));
    plant(Bug::None);
}

#[test]
fn forgotten_lines_are_waited_for_no_more_and_not_written_back() {
    let file = MappedFile::new(Durability::Power);
    let groups = groups(&file, 8, cache(4, 4, Replacement::First));
    let group = groups.sgroup();
    // SAFETY: words of the mapping.
    unsafe { (0..4).for_each(|line| group.store(file.word(line * LINE), 1)) };
    // The first and the last line lie in the range in part alone.
    groups.forget(file.addr(1)..file.addr(3 * LINE + 1));
    assert_eq!(group.left(), 2);
    groups.drain();
    assert_eq!(group.left(), 0);
    assert_eq!(file.durable(&[0, LINE, 2 * LINE, 3 * LINE]), [1, 0, 0, 1]);
}

#[test]
fn at_process_nothing_is_executed_and_nothing_is_left() {
    let file = MappedFile::new(Durability::Process);
    let groups = groups(&file, 8, GroupOptions::default().leaving);
    let before = counters::snapshot();
    let group = groups.sgroup();
    // SAFETY: words of the mapping.
    unsafe { group.write(file.word(0).cast(), &[1; 640]) };
    assert_eq!((group.left(), groups.free_counters()), (0, 0));
    groups.drain();
    assert_eq!(counters::snapshot() - before, counters::Counts::default());
}

/// A modelled cache executes nothing either: its lines leave by themselves.
#[test]
fn a_store_into_a_group_flushes_and_fences_nothing() {
    let file = MappedFile::new(Durability::Power);
    let groups = groups(&file, 64, cache(2, 2, Replacement::LeastRecent));
    let before = counters::snapshot();
    for line in 0..64 {
        let group = groups.sgroup();
        // SAFETY: words of the mapping.
        unsafe { group.store(file.word(line * LINE), 1) };
    }
    assert_eq!(counters::snapshot() - before, counters::Counts::default());
    groups.drain();
    let spent = counters::snapshot() - before;
    assert_eq!((spent.flushes, spent.fences), (4, 1), "the four lines that are left");
}

//! Several members on one heap (RAL-8), in one process: what each sees of the others, and what
//! becomes of what one leaves behind. Members are played: "dead" is one whose heap is forgotten and
//! whose identity is said to be dead. (`killed.rs` has real processes, killed anywhere.)

use crate::common::room_for;
use crate::common::shared::{Files, SharedBacking};
use cenote_heap::{
    AllocError, Heap as _, Inspect as _, OpenError, RecoverError, Sharing as _, Trace, TracedHeap,
};
use cenote_layout::heap::MEMBER_COUNT;
use cenote_layout::id::TypeId;
use cenote_medium::planted::{Bug, plant};
use std::collections::BTreeSet;

type Heap = TracedHeap<SharedBacking>;

fn alloc(heap: &Heap, size: u64) -> u64 {
    heap.alloc(size, 16, TypeId(1)).unwrap().addr.as_ptr() as u64
}

/// Dies with all that it has.
fn die(heap: Heap) {
    heap.backing().kill();
    std::mem::forget(heap);
}

/// Whether every superblock of the pool can be had as a block of its own: none is lost, none is
/// used.
fn is_whole(heap: &Heap) -> bool {
    let mut all = Vec::new();
    while let Ok(block) = heap.alloc(65_536, 16, TypeId(9)) {
        all.push(block.addr.as_ptr() as u64);
    }
    let stats = heap.stats().unwrap();
    all.iter().for_each(|&addr| heap.free(addr).unwrap());
    all.len() as u64 == stats.superblocks - stats.metadata_superblocks
}

/// In a thread that ends, so that nothing stays in a cache.
fn passing<T: Send>(f: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| scope.spawn(f).join())
        .unwrap_or_else(|e| std::panic::resume_unwind(e))
}

fn sound(heap: &Heap) {
    let report = heap.check(None).unwrap();
    assert!(report.miscounted.is_empty() && report.damage.is_empty(), "{report:?}");
}

/// Two members with blocks of many sizes, each block stamped, given to the other to be freed.
fn work_in_turns(seed: u64) {
    let files = Files::new(1 << 20, 16 << 20);
    let (one, two) = (Heap::open(files.played(1)).unwrap(), Heap::open(files.played(2)).unwrap());
    assert_eq!((one.member(), two.member()), (Some(1), Some(2)));
    let mut random = crate::common::Random(seed);
    let mut all: Vec<(u64, u64)> = Vec::new();
    for round in 0..40_000u64 {
        let (heap, other) = if round % 2 == 0 { (&one, &two) } else { (&two, &one) };
        let size = [16, 48, 64, 400, 2000, 14_000, 65_536, 200_000][random.below(8) as usize];
        if all.len() < 300
            && let Ok(block) = heap.alloc(size, 16, TypeId(1 + random.below(3)))
        {
            let addr = block.addr.as_ptr() as u64;
            crate::common::write(addr, 0, round);
            crate::common::write(addr, block.size - 8, !round);
            all.push((addr, round));
        }
        if all.len() > 200 {
            let (addr, round) = all.swap_remove(random.below(all.len() as u64) as usize);
            let size = other.usable_size(addr).unwrap();
            assert!(
                crate::common::read(addr, 0) == round
                    && crate::common::read(addr, size - 8) == !round,
                "given out twice"
            );
            other.free(addr).unwrap();
        }
    }
    let blocks: BTreeSet<u64> = all.iter().map(|(addr, _)| *addr).collect();
    let mut seen = BTreeSet::new();
    one.walk(&mut |block| assert!(seen.insert(block.addr))).unwrap();
    assert_eq!(seen, blocks);
    sound(&one);
    all.iter().for_each(|(addr, _)| one.free(*addr).unwrap());
    drop(two);
    // What the other one had in its caches is free; what this one has is given back when memory is
    // short.
    assert!(is_whole(&one));
    sound(&one);
}

#[test]
fn members_share_blocks_puddles_and_free_space() {
    passing(|| work_in_turns(7));
}

#[test]
fn a_join_that_adopts_again_is_noticed() {
    // Whether one of them has blocks in caches where the other one looks first is a matter of the
    // seed.
    let found = |seed| {
        std::panic::catch_unwind(|| {
            passing(|| {
                plant(Bug::JoinAdoptsAgain);
                work_in_turns(seed);
            });
        })
    };
    assert!((7..27).any(|seed| found(seed).is_err()));
}

/// A member dies with cached, held and large blocks, and a superblock of each size; returns the one
/// that lives, and its block.
fn one_of_two_dies(files: &Files) -> (Heap, u64) {
    let living = Heap::open(files.played(1)).unwrap();
    let mine = alloc(&living, 64);
    let dying = Heap::open(files.played(2)).unwrap();
    let sizes = [16, 32, 48, 64, 1000, 5000, 14_336];
    let blocks: Vec<u64> = sizes.iter().map(|&size| alloc(&dying, size)).collect();
    let large = alloc(&dying, 150_000);
    for addr in blocks.iter().copied().chain([large]) {
        dying.clear_mark(&dying.find(addr).unwrap());
    }
    let freed = alloc(&dying, 65_536);
    dying.free(freed).unwrap();
    assert!(dying.stats().unwrap().cached_blocks > 4096 + 2048 + 1365 - 3);
    die(dying);
    (living, mine)
}

fn sweep_in_turn() {
    let files = Files::new(1 << 20, 2 << 20);
    let (living, mine) = one_of_two_dies(&files);
    let before = living.stats().unwrap();
    let swept = living.sweep_dead().unwrap();
    assert_eq!(swept.members, 1);
    let after = living.stats().unwrap();
    // Seven small blocks were held; a large one has three superblocks.
    assert_eq!(swept.blocks, before.cached_blocks - after.cached_blocks + 7);
    assert_eq!((after.cached_blocks, swept.superblocks), (1023, 3));
    assert_eq!(living.sweep_dead().unwrap().members, 0);
    assert_eq!(living.stats().unwrap().blocks, 1);
    sound(&living);
    // The next member gets the number, and is not taken for the dead one.
    let next = Heap::open(files.played(3)).unwrap();
    assert_eq!(next.member(), Some(2));
    drop(next);
    living.free(mine).unwrap();
    assert!(is_whole(&living));
}

#[test]
fn what_a_dead_member_had_is_free_and_the_others_keep_theirs() {
    passing(sweep_in_turn);
}

#[test]
fn a_sweep_that_forgets_hands_or_tells_no_thread_is_noticed() {
    for (bug, work) in [
        (Bug::SweepForgetsHands, sweep_in_turn as fn()),
        (Bug::SweepNotAnnounced, sweep_in_turn),
        (Bug::SeatFreedEarly, leave_in_turn),
    ] {
        let planted = || {
            plant(bug);
            work();
        };
        let found = std::panic::catch_unwind(|| passing(planted));
        assert!(found.is_err(), "{bug:?}");
    }
}

fn leave_in_turn() {
    let files = Files::new(1 << 20, 1 << 20);
    let stays = Heap::open(files.played(1)).unwrap();
    for number in 2..100 {
        let leaves = Heap::open(files.played(number)).unwrap();
        assert_eq!(leaves.member(), Some(2));
        let (small, large) = (alloc(&leaves, 64 * (number % 20 + 1)), alloc(&leaves, 65_537));
        leaves.free(small).unwrap();
        leaves.free(large).unwrap();
        drop(leaves);
        assert_eq!(stays.stats().unwrap().cached_blocks, 0);
    }
    sound(&stays);
    assert!(is_whole(&stays));
}

#[test]
fn members_that_leave_take_nothing_with_them() {
    passing(leave_in_turn);
}

#[test]
fn memory_of_the_dead_is_found_before_a_pool_is_called_full() {
    let files = Files::new(room_for(15), room_for(15));
    let living = Heap::open(files.played(1)).unwrap();
    let dying = Heap::open(files.played(2)).unwrap();
    // Each of the 15 superblocks has a type of its own.
    let block = |i: u64| dying.alloc(1000, 16, TypeId(20 + i)).unwrap().addr.as_ptr() as u64;
    let blocks: Vec<u64> = (0..15).map(block).collect();
    assert!(matches!(living.alloc(65_536, 16, TypeId(1)), Err(AllocError::Full { .. })));
    blocks.iter().for_each(|&addr| dying.free(addr).unwrap());
    die(dying);
    for _ in 0..15 {
        alloc(&living, 65_536);
    }
    assert!(matches!(living.alloc(65_536, 16, TypeId(1)), Err(AllocError::Full { .. })));
}

#[test]
fn the_first_member_after_all_have_died_begins_a_session() {
    let files = Files::new(1 << 20, 4 << 20);
    for round in 0..3 {
        let (living, mine) = one_of_two_dies(&files);
        assert_eq!(living.member(), Some(1), "round {round}");
        // Two puddles are in use, and the next member looks at only one.
        let far: Vec<u64> = (0..20).map(|_| alloc(&living, 65_536)).collect();
        die(living);
        let next = Heap::open(files.played(3)).unwrap();
        assert_eq!(next.member(), Some(1));
        let other = Heap::open(files.played(4)).unwrap();
        other.free(mine).unwrap();
        far.iter().for_each(|&addr| next.free(addr).unwrap());
        drop(other);
        assert_eq!(next.stats().unwrap().blocks, 0);
        sound(&next);
        assert!(is_whole(&next));
    }
}

#[test]
fn seats_are_limited_and_dead_ones_do_not_count() {
    let files = Files::new(1 << 20, 1 << 20);
    let heaps: Vec<Heap> =
        (1..=MEMBER_COUNT).map(|n| Heap::open(files.played(n)).unwrap()).collect();
    let refused = Heap::open(files.played(70)).unwrap_err();
    assert!(matches!(refused, OpenError::Members { most } if u64::from(most) == MEMBER_COUNT));
    let highest = heaps.last().unwrap();
    assert_eq!(highest.member().map(u64::from), Some(MEMBER_COUNT));
    let (cached, held) = (alloc(highest, 64), alloc(highest, 64));
    highest.clear_mark(&highest.find(held).unwrap());
    highest.free(cached).unwrap();
    // Half of them die. A member that joins sweeps, so one free seat is enough.
    let mut heaps = heaps;
    for heap in heaps.split_off(40) {
        die(heap);
    }
    drop(heaps.pop());
    let next = Heap::open(files.played(71)).unwrap();
    assert_eq!(next.stats().unwrap().cached_blocks, 0);
    let more: Vec<Heap> =
        (72..72 + MEMBER_COUNT - 40).map(|n| Heap::open(files.played(n)).unwrap()).collect();
    assert_eq!(more.len() as u64 + 40, MEMBER_COUNT);
    assert!(passing(|| is_whole(&next)));
}

#[test]
fn a_heap_that_others_have_open_is_not_recovered() {
    let files = Files::new(1 << 20, 1 << 20);
    let (one, two) = (Heap::open(files.played(1)).unwrap(), Heap::open(files.played(2)).unwrap());
    let kept = alloc(&two, 64);
    let refused = one.recover(&crate::common::TypeMap::new(), &[]).unwrap_err();
    assert!(matches!(refused, RecoverError::Shared { others: 1 }));
    two.free(kept).unwrap();
    die(two);
    let lost = alloc(&one, 64);
    one.recover(&crate::common::TypeMap::new(), &[]).unwrap();
    assert_eq!(one.stats().unwrap().blocks, 0);
    one.free(lost).unwrap_err();
    let two = Heap::open(files.played(3)).unwrap();
    assert_eq!(two.member(), Some(2));
    alloc(&two, 64);
    sound(&one);
}

#[test]
fn a_member_that_is_stopped_on_a_slow_path_delays_the_sweep_and_nothing_else() {
    let files = Files::new(1 << 20, 2 << 20);
    let (living, _) = one_of_two_dies(&files);
    let slow = Heap::open(files.played(3)).unwrap();
    // Opening swept; a next one dies.
    let dying = Heap::open(files.played(4)).unwrap();
    alloc(&dying, 64);
    die(dying);
    let result = slow.alloc_inline(65_536, 16, TypeId(1), |_| {
        let refused = living.sweep_dead().unwrap_err();
        assert!(matches!(
            refused,
            RecoverError::NotQuiet { member } if Some(member as u8) == slow.member()
        ));
        // The others go on.
        let block = alloc(&living, 3000);
        living.free(block).unwrap();
        Ok(cenote_heap::Taking::Allocated)
    });
    slow.free(result.unwrap().addr.as_ptr() as u64).unwrap();
    let swept = living.sweep_dead().unwrap();
    assert!(swept.members == 1 && swept.blocks > 1000, "{swept:?}");
    sound(&living);
}

#[test]
fn a_log_that_is_not_replayed_keeps_its_member_alive() {
    let files = Files::new(1 << 20, 1 << 20);
    let living = Heap::open(files.played(1)).unwrap();
    let backing = files.played(2);
    let control = living.backing().control();
    let dying = Heap::open(backing).unwrap();
    assert!(control.workers[0].alloc(&dying, 0, 64, TypeId(1)));
    let who = dying.backing().who;
    die(dying);
    // The test's judge says dead at once; with a log it would not.
    assert!(!living.backing().lives(who));
    control.workers[0].who.store(12345, std::sync::atomic::Ordering::Release);
    assert!(living.backing().lives(12345), "no such process, but its log stands");
    control.workers[0].replay();
    assert!(!living.backing().lives(12345));
    assert_eq!(living.sweep_dead().unwrap().members, 1);
    assert_eq!(living.stats().unwrap().blocks, 1, "what was finished is allocated");
}

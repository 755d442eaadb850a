use super::*;

fn flips<C: Cell + PartialEq + core::fmt::Debug>(cell: C, number: u64) {
    flips_but(cell, number, None);
}

/// All bits, but that those of the word `told` leave the cell what it was.
fn flips_but<C>(cell: C, number: u64, told: Option<usize>)
where
    C: Cell + PartialEq + core::fmt::Debug,
{
    let raw = cell.to_raw(number);
    let read = C::from_raw(raw, number).expect("as it was written");
    assert_eq!(read.to_raw(number), raw);
    assert_eq!(C::from_raw(raw, number + 1), None, "in a wrong place");
    for bit in 0..256 {
        let mut flipped = raw;
        flipped[bit / 64] ^= 1 << (bit % 64);
        let found = C::from_raw(flipped, number).map(|found| found.to_raw(number));
        let expected = (told == Some(bit / 64)).then_some(raw);
        assert_eq!(found, expected, "{cell:?} bit {bit}");
    }
}

#[test]
fn one_flipped_bit_of_a_cell_is_found() {
    for unit in [0, 8, 1 << 20] {
        flips(BlockRecord::new(unit, 9, BlockState::Allocated, TypeId(7)), unit + 700);
        let free = BlockRecord::new(unit, 8, BlockState::Free, TypeId::UNTYPED);
        flips(BlockRecord { next: 5, prev: 9, ..free }, 1000);
    }
    flips(ListHead::default(), ListHead::cell(6));
    flips(ListHead { head: 4, tail: 9, blocks: 2, ..ListHead::default() }, 650);
    for state in [LevelEntry::PRESENT, LevelEntry::ABSENT] {
        flips(LevelEntry { state, ..LevelEntry::default() }, LevelEntry::cell(0));
    }
    let part = |kind, first| PartEntry::new(kind, first, 3, 8192, 4096 * 5 - 64);
    flips(part(PartKind::Data, 1 << 20).expect("a part"), PartEntry::cell(0));
    flips(part(PartKind::Levels, 5 | 2 << 32).expect("a part"), PartEntry::cell(127));
    flips(LaneLink { own: 3, sequence: 4, sub_heap: 2, lane: 1, ..LaneLink::default() }, 900);
    for size in SLAB_SIZES {
        let slab = SlabRecord::new(1 << 20, size, TypeId(7));
        assert!((42..=64).contains(&slab.slots()));
        let block = slab.as_block();
        assert!(u64::from(size * slab.slots()) * 64 > block.size() * 62);
        let slab = SlabRecord { used: 0x1f & slab.all(), ..slab };
        flips_but(slab, 1000, Some(SlabRecord::USED_WORD));
        assert_eq!(BlockRecord::from_raw(slab.to_raw(1000), 1000), Some(block));
        assert_eq!(BlockRecord::from_raw(block.to_raw(1000), 1000), None);
    }
    for bit in 0..256 {
        let mut raw = EMPTY;
        raw[bit / 64] ^= 1 << (bit % 64);
        assert_eq!(BlockRecord::from_raw(raw, 900), None, "an empty slot, bit {bit}");
    }
}

#[test]
fn one_flipped_bit_of_the_micro_log_is_found() {
    for (sequence, unit, kind) in
        [(0, 0, MicroKind::Alloc), (7, 99, MicroKind::Free), (1 << 39, 5, MicroKind::Alloc)]
    {
        let entry = MicroEntry::new(3, 17, sequence, unit, kind);
        assert_eq!(entry.read(3, 17), Some((sequence, unit, kind)));
        assert_eq!((entry.read(2, 17), entry.read(3, 16)), (None, None));
        for bit in 0..64 {
            let place = MicroEntry { place: entry.place ^ 1 << bit, ..entry };
            let tail = MicroEntry { tail: entry.tail ^ 1 << bit, ..entry };
            assert_eq!((place.read(3, 17), tail.read(3, 17)), (None, None), "{bit}");
        }
    }
    for state in [LaneState::Running, LaneState::Committed] {
        let word = LaneWord { sequence: 12, state };
        assert_eq!(LaneWord::decode(word.encode(1), 1), Some(word));
        for bit in 0..64 {
            assert_eq!(LaneWord::decode(word.encode(1) ^ 1 << bit, 1), None, "{bit}");
        }
        assert_eq!(word.next(), LaneWord { sequence: 13, state: LaneState::Running });
    }
}

#[test]
fn one_flipped_bit_of_a_sub_heap_word_is_found() {
    for (puddle, page, number) in [(0, 7, 0), (900, 1, 5), ((1 << 28) - 1, (1 << 16) - 1, 255)] {
        let word = SubHeapWord { puddle, page };
        let bits = word.encode(number).expect("a word");
        assert_eq!(SubHeapWord::decode(bits, number), Some(word));
        assert_eq!(SubHeapWord::decode(bits, number + 1), None, "in a wrong place");
        for bit in 0..64 {
            assert_eq!(SubHeapWord::decode(bits ^ 1 << bit, number), None, "{bit}");
        }
    }
    for bit in 0..64 {
        assert_eq!(SubHeapWord::decode(1 << bit, 0), None, "no sub-heap, bit {bit}");
    }
    let bad = [SubHeapWord { puddle: 1, page: 0 }, SubHeapWord { puddle: 1 << 28, page: 1 }];
    assert_eq!(bad.map(|word| word.encode(0)), [None, None]);
}

#[test]
fn geometry_has_room_for_all_blocks_and_a_header_says_it() {
    for (data_len, lanes) in [(4096, 1), (1 << 16, 2), (3 << 20, 16), (1 << 32, 64)] {
        let levels = SubHeapGeometry::levels_for(data_len);
        let geometry = SubHeapGeometry::new(lanes, 0, levels).expect("a geometry");
        assert!(slots_of(levels) * 4 >= data_len / UNIT_SIZE * 5);
        let (last, len) = geometry.level_range(levels - 1);
        assert_eq!(last + len, geometry.metadata_len);
        let header = SubHeapHeader::new(3, &geometry);
        assert_eq!(header.geometry(), Some(geometry));
        let read: SubHeapHeader = crate::header::read(header.as_bytes(), true).expect("a header");
        assert_eq!(read, header);
        let heap = LoggedHeader::new(&geometry, 1);
        let read: LoggedHeader = crate::header::read(heap.as_bytes(), true).expect("a header");
        assert_eq!((read, read.geometry()), (heap, Some(geometry)));
    }
    let bad = [(0, 1), (LANES_MAX + 1, 1), (1, 0), (1, LEVELS_MAX + 1)];
    assert!(bad.iter().all(|&(lanes, levels)| SubHeapGeometry::new(lanes, 0, levels).is_none()));
    assert!((0..24).all(|level| home_of(u64::MAX, level) < LEVEL_SLOTS << level));
    assert_eq!((level_of(127), level_of(128), level_of(383), level_of(384)), (0, 1, 1, 2));
}

#[test]
fn a_seal_is_one_of_its_change_alone_and_no_flipped_bit_makes_another() {
    let contents = [[1, 2, 3, 4], [5, 6, 7, 8]];
    for sequence in 1..200 {
        for seal in [seal_in_order(sequence), seal_of_contents(sequence, &contents)] {
            assert!(is_seal(sequence, seal) && seal != 0);
            assert!(!is_seal(sequence + 1, seal) && !is_seal(sequence + 2, seal));
            assert!((0..64).all(|bit| !is_seal(sequence, seal ^ 1 << bit)), "{sequence}");
        }
    }
    assert_ne!(seal_of_contents(7, &contents), seal_of_contents(7, &contents[..1]));
}

#[test]
fn a_torn_step_of_a_slab_reads_as_one_of_its_two_sides_and_two_are_damage() {
    let (number, used) = (77, SlabRecord::USED_WORD);
    for (size, from, to) in [(16, 0b1011, 0b1111), (48, 1, 0), (192, 0x1_0000, 0x3_0000)] {
        let slab = SlabRecord { used: from, ..SlabRecord::new(1 << 20, size, TypeId(7)) };
        let (old, new) = (slab.to_raw(number), SlabRecord { used: to, ..slab }.to_raw(number));
        assert!(SlabRecord::is_step(old, new));
        let with = |slots: RawCell, check: RawCell| [old[0], old[1], slots[used], check[used + 1]];
        let torn = [with(new, old), with(old, new)];
        assert!(torn.iter().all(|&raw| plain_of(SlabRecord::SEED, raw, number).is_none()));
        // What a step would make of a torn cell differs from it in no bit, or in two.
        for (raw, read) in torn.into_iter().zip([from, to]) {
            let next = (0..slab.slots()).map(|bit| SlabRecord { used: read ^ 1 << bit, ..slab });
            assert!(next.map(|slab| slab.to_raw(number)).all(|new| !SlabRecord::is_step(raw, new)));
        }
        let read = torn.map(|raw| SlabRecord::from_raw(raw, number).map(|slab| slab.used));
        assert_eq!(read, [Some(from), Some(to)], "slots of {size} bytes");
        let block = BlockRecord::from_raw(torn[0], number).expect("a slab is a block");
        assert_eq!(block, slab.as_block());
        // Any other damage, and steps of two slots.
        let mut far = with(new, old);
        far[used] ^= 1 << 40;
        let mut checked = old;
        checked[used + 1] ^= 1 << 63;
        for raw in [far, checked, [old[0] ^ 1 << 60, old[1], new[used], old[3]]] {
            assert_eq!(SlabRecord::from_raw(raw, number), None);
        }
        assert!(!SlabRecord::is_step(old, far) && !SlabRecord::is_step(old, old));
        assert!(!SlabRecord::is_step(EMPTY, new) && !SlabRecord::is_step(old, EMPTY));
    }
}

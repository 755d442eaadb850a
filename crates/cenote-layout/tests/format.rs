//! `docs/format.md` draws what this crate defines: offsets, sizes, magic numbers, seeds and the
//! numbers of enums are compared here, so that neither changes without the other. (The section
//! about heap puddles has its own checks beside the heap's code.)

use cenote_layout::catalog::{
    BATCH_NUMBER_MAX, FLAG_LAST, FRAME_HEADER_LEN, PAYLOAD_LEN_MAX, RECORD_MAGIC, Record,
    RecordError, RecordHeader, decode_frame, encode_frame,
};
use cenote_layout::checksum::{checksum, seed};
use cenote_layout::header::{FORMAT_VERSION, Header, HeaderPrefix};
use cenote_layout::id::PoolId;
use cenote_layout::kept::KeptHeader;
use cenote_layout::log::{
    CONTROL_OFFSET, END_BASE, ENTRIES_OFFSET, ENTRY_HEADER_SIZE, ENTRY_INLINE_DATA_MAX,
    EntryHeader, EntryKind, LAST_BASE, LOG_QUARANTINED, LogControl, LogHeader, LogRange, MIN_HALF,
    Order, PIECE_LEN, RANGE_OFFSET, Seal, SequenceRange, entry_size,
};
use cenote_layout::log_space::{
    ENTRY_CONTINUATION, ENTRY_FREE, ENTRY_HEAD, LOG_SPACE_ENTRIES_OFFSET, LogSpaceEntry,
    LogSpaceHeader,
};
use cenote_layout::logged::{
    BlockRecord, LANES_OFFSET, LISTS_OFFSET, LaneLink, LevelEntry, ListHead, LoggedHeader,
    PARTS_OFFSET, PartEntry, PartKind, SlabRecord, SubHeapHeader, UNDO_OFFSET, UndoEntry,
    UndoHeader,
};
use cenote_layout::puddle::{PuddleHeader, Role, STAMP_AT, header_space};
use cenote_layout::snapshot::{SNAPSHOT_PIECE_LEN, SnapshotSum, SnapshotTrailer};
use cenote_layout::superblock::{self, JournalMark, Superblock};
use cenote_layout::types::{TYPE_NAME_LEN_MAX, TYPE_RECORD_LEN_MAX};
use std::mem::offset_of;

#[path = "format/archives.rs"]
mod archives;
mod drawn;
#[path = "format/objects.rs"]
mod objects;
#[path = "format/records.rs"]
mod records;

use drawn::{assert_drawn, document, rows, section};

#[track_caller]
fn assert_superblock_drawn(text: &str) {
    assert_drawn(
        section(text, "## Superblock"),
        &[
            (offset_of!(Superblock, prefix), "prefix"),
            (offset_of!(Superblock, store), "store"),
            (offset_of!(Superblock, window_base), "window_base"),
            (offset_of!(Superblock, window_len), "window_len"),
            (offset_of!(Superblock, generation), "generation"),
            (offset_of!(Superblock, state), "state"),
            (offset_of!(Superblock, durability), "durability"),
            (offset_of!(Superblock, boot_id), "boot_id"),
            (offset_of!(Superblock, opener_pid), "opener_pid"),
            (offset_of!(Superblock, opener_start_ticks), "opener_start_ticks"),
            (offset_of!(Superblock, formatted_at_s), "formatted_at_s"),
            (offset_of!(Superblock, client), "client"),
            (offset_of!(Superblock, catalog_batch), "catalog_batch"),
            (offset_of!(Superblock, journals), "journals"),
            (offset_of!(Superblock, device), "device"),
            (offset_of!(Superblock, directory_inode), "directory_inode"),
            (offset_of!(Superblock, superblock_inode), "superblock_inode"),
            (offset_of!(Superblock, origin), "origin"),
            (offset_of!(Superblock, tied_from), "tied_from"),
            (offset_of!(Superblock, journal_states), "journal_states"),
            (offset_of!(Superblock, tied_batch), "tied_batch"),
            (offset_of!(Superblock, mounting), "mounting"),
            (offset_of!(Superblock, era), "era"),
            (offset_of!(Superblock, unclosed), "unclosed"),
            (offset_of!(Superblock, reserved1), "zero"),
            (size_of::<Superblock>(), ""),
        ],
    );
    assert_drawn(
        section(text, "## Superblock"),
        &[
            (offset_of!(JournalMark, epoch), "epoch"),
            (offset_of!(JournalMark, generation), "generation"),
            (offset_of!(JournalMark, trimmed), "trimmed"),
            (offset_of!(JournalMark, chain), "chain"),
            (size_of::<JournalMark>(), ""),
        ],
    );
}

#[test]
fn headers_are_drawn_as_they_are() {
    let text = document();
    let prefix = section(&text, "### Header prefix");
    let drawn: Vec<&str> = prefix.lines().filter(|line| line.starts_with("      ")).collect();
    let offsets: Vec<usize> =
        drawn[0].split_whitespace().map(|n| n.parse().expect("an offset")).collect();
    let names: Vec<&str> = drawn[2].trim().trim_matches('|').split('|').map(str::trim).collect();
    assert_eq!(
        names,
        ["magic", "version", "header_len", "compat", "ro_compat", "incompat", "checksum"]
    );
    let expected = [
        offset_of!(HeaderPrefix, magic),
        offset_of!(HeaderPrefix, version),
        offset_of!(HeaderPrefix, header_len),
        offset_of!(HeaderPrefix, compat),
        offset_of!(HeaderPrefix, ro_compat),
        offset_of!(HeaderPrefix, incompat),
        offset_of!(HeaderPrefix, checksum),
        size_of::<HeaderPrefix>(),
    ];
    assert_eq!(offsets, expected);

    assert_superblock_drawn(&text);
    assert_drawn(
        section(&text, "## Puddle header"),
        &[
            (offset_of!(PuddleHeader, prefix), "prefix"),
            (offset_of!(PuddleHeader, uuid), "uuid"),
            (offset_of!(PuddleHeader, store), "store"),
            (offset_of!(PuddleHeader, addr), "addr"),
            (offset_of!(PuddleHeader, size), "size"),
            (offset_of!(PuddleHeader, pool), "pool"),
            (offset_of!(PuddleHeader, role), "role"),
            (offset_of!(PuddleHeader, index), "index"),
            (offset_of!(PuddleHeader, generation), "generation"),
            (offset_of!(PuddleHeader, reserved), "zero"),
            (STAMP_AT as usize, ""),
        ],
    );
    for magic in [
        &Superblock::MAGIC,
        &PuddleHeader::MAGIC,
        &LogHeader::MAGIC,
        &LogSpaceHeader::MAGIC,
        &RECORD_MAGIC,
    ] {
        assert!(
            text.contains(&format!("magic \"{}\"", magic.escape_ascii())),
            "{}",
            magic.escape_ascii()
        );
    }
    assert!(text.contains(&format!("Format version: **{FORMAT_VERSION}**")));
    let states = [superblock::STATE_CLEAN, superblock::STATE_OPEN];
    let levels = [
        superblock::DURABILITY_UNSAID,
        superblock::DURABILITY_PROCESS,
        superblock::DURABILITY_POWER,
    ];
    assert_eq!(
        (states, levels),
        ([1, 2], [0, 1, 2]),
        "as drawn: 1 clean, 2 open; 0 none yet, 1 process, 2 power"
    );
    let roles =
        [Role::Heap, Role::Log, Role::LogSpace, Role::Object, Role::Spare].map(|role| role as u32);
    assert_eq!(roles, [1, 2, 3, 4, 5], "as drawn: 1 heap, 2 log, 3 log space, 4 object, 5 spare");
}

#[test]
fn snapshots_are_drawn_and_summed_up_as_they_are() {
    let text = document();
    assert_drawn(
        section(&text, "## Snapshot"),
        &[
            (offset_of!(SnapshotTrailer, prefix), "prefix"),
            (offset_of!(SnapshotTrailer, object), "object"),
            (offset_of!(SnapshotTrailer, store), "store"),
            (offset_of!(SnapshotTrailer, addr), "addr"),
            (offset_of!(SnapshotTrailer, size), "size"),
            (offset_of!(SnapshotTrailer, data_len), "data_len"),
            (offset_of!(SnapshotTrailer, taken_at_s), "taken_at_s"),
            (offset_of!(SnapshotTrailer, sum), "sum"),
            (offset_of!(SnapshotTrailer, at_rest), "at_rest"),
            (offset_of!(SnapshotTrailer, permissions), "permissions"),
            (offset_of!(SnapshotTrailer, name_len), "name_len"),
            (offset_of!(SnapshotTrailer, reserved0), "zero"),
            (offset_of!(SnapshotTrailer, name), "name"),
            (offset_of!(SnapshotTrailer, reserved), "zero"),
            (size_of::<SnapshotTrailer>(), ""),
        ],
    );
    assert!(text.contains(&format!("magic \"{}\"", SnapshotTrailer::MAGIC.escape_ascii())));
    assert_eq!(SnapshotTrailer::SEED, 0x4345_4e4f_5445_000d, "as in the table of checksums");
    assert_eq!(SNAPSHOT_PIECE_LEN, 1_048_576, "as in the table of checksums");
    let mut sum = SnapshotSum::default();
    sum.add(b"one");
    sum.add(b"two");
    assert_eq!(sum.value(), checksum(checksum(seed::SNAPSHOT, b"one"), b"two"));
}

#[test]
fn kept_psyncs_are_drawn_as_they_are() {
    let text = document();
    assert_drawn(
        section(&text, "### Kept psyncs"),
        &[
            (offset_of!(KeptHeader, prefix), "prefix"),
            (offset_of!(KeptHeader, store), "store"),
            (offset_of!(KeptHeader, puddle), "puddle"),
            (offset_of!(KeptHeader, len), "len"),
            (offset_of!(KeptHeader, sum), "sum"),
            (offset_of!(KeptHeader, reserved), "zero"),
            (size_of::<KeptHeader>(), ""),
        ],
    );
    assert!(text.contains(&format!("magic \"{}\"", KeptHeader::MAGIC.escape_ascii())));
    assert_eq!(KeptHeader::SEED, 0x4345_4e4f_5445_000f, "as in the table of checksums");
}

/// PUD-11: a page of header for every 2 MiB or part of them, whatever the size.
#[test]
fn header_space_is_a_page_for_every_slot_or_part_of_one() {
    let (page, slot) = (4096, 2 << 20);
    for (size, pages) in
        [(page, 1), (slot - page, 1), (slot, 1), (slot + page, 2), (5 << 20, 3), (1 << 30, 512)]
    {
        assert_eq!(header_space(size), pages * page, "of {size} bytes");
    }
}

#[test]
fn the_catalog_is_drawn_as_it_is() {
    let text = document();
    let catalog = section(&text, "## Catalog");
    assert_drawn(
        catalog,
        &[
            (offset_of!(RecordHeader, magic), "magic"),
            (offset_of!(RecordHeader, batch), "batch"),
            (offset_of!(RecordHeader, index), "index"),
            (offset_of!(RecordHeader, flags), "flags"),
            (offset_of!(RecordHeader, payload_len), "payload_len"),
            (offset_of!(RecordHeader, reserved0), "zero"),
            (offset_of!(RecordHeader, journals), "journals"),
            (offset_of!(RecordHeader, checksum), "checksum"),
            (size_of::<RecordHeader>(), "payload"),
        ],
    );
    assert_eq!((PAYLOAD_LEN_MAX, FLAG_LAST), (1_048_576, 1));
    assert!(catalog.contains("1 to 1,048,576"));
    assert!(
        section(&text, "## Type records and pointer maps").contains("more than 1,048,512 bytes")
    );
    assert_eq!((TYPE_RECORD_LEN_MAX, TYPE_NAME_LEN_MAX), (1_048_512, 1024));

    // The number of each variant is the first byte of its payload. (Number 4 is left for `Type`,
    // whose records have tests of their own; so have those of objects.)
    let records = records::one_of_each();
    let documented = rows(section(&text, "### Payload"));
    let documented: Vec<&Vec<String>> =
        documented.iter().filter(|row| row[0].parse::<usize>().is_ok()).collect();
    assert!(
        documented.iter().enumerate().all(|(number, row)| row[0] == number.to_string()),
        "{documented:?}"
    );
    assert_eq!(documented[4][1], "`Type`");
    for record in &records {
        let mut frame = Vec::new();
        encode_frame((1, [0; 2]), (0, true), record, &mut frame);
        let row = documented[usize::from(frame[FRAME_HEADER_LEN])];
        let name = format!("{record:?}");
        let name = name.split(['(', ' ']).next().unwrap_or_default();
        assert_eq!(row[1], format!("`{name}`"));
        assert_eq!(decode_frame(&frame).expect("whole").record, *record);
    }
    // The role's number in a record is one less than in a header: uuid (16), pool (1), role.
    let mut frame = Vec::new();
    encode_frame((1, [0; 2]), (0, true), &records[2], &mut frame);
    assert_eq!(u32::from(frame[FRAME_HEADER_LEN + 1 + 16 + 1]), Role::LogSpace as u32 - 1);
}

#[test]
fn a_frame_with_something_in_reserved_bytes_is_refused() {
    let mut frame = Vec::new();
    encode_frame((7, [0; 2]), (0, true), &Record::PoolRemoved(PoolId(1)), &mut frame);
    let payload_end = FRAME_HEADER_LEN + usize::from(frame[offset_of!(RecordHeader, payload_len)]);
    let change = |at: usize, to: u8| {
        let mut frame = frame.clone();
        frame[at] = to;
        frame[48..56].fill(0);
        let sum = checksum(seed::CATALOG, &frame[..payload_end]);
        frame[48..56].copy_from_slice(&sum.to_le_bytes());
        decode_frame(&frame).map(|frame| frame.batch)
    };
    assert_eq!(change(offset_of!(RecordHeader, flags), 0), Ok(7), "the checksum is made anew");
    for at in [offset_of!(RecordHeader, reserved0), offset_of!(RecordHeader, flags) + 1] {
        assert_eq!(change(at, 2), Err(RecordError::Payload), "byte {at}");
    }
    // And numbers beyond those that are ever reached.
    for at in [offset_of!(RecordHeader, batch) + 7, offset_of!(RecordHeader, journals) + 15] {
        assert_eq!(change(at, 0x40), Err(RecordError::Payload), "byte {at}");
    }
    assert_eq!(BATCH_NUMBER_MAX, 0x40 << 56);
}

#[test]
fn log_spaces_and_logs_are_drawn_as_they_are() {
    let text = document();
    let space = section(&text, "## Log space");
    let entries = LOG_SPACE_ENTRIES_OFFSET as usize;
    assert_drawn(
        space,
        &[
            (offset_of!(LogSpaceHeader, prefix), "prefix"),
            (offset_of!(LogSpaceHeader, client), "client"),
            (offset_of!(LogSpaceHeader, capacity), "capacity"),
            (offset_of!(LogSpaceHeader, reserved), "zero"),
            (entries, "entry"),
            (entries + size_of::<LogSpaceEntry>(), "entry"),
        ],
    );
    assert_drawn(
        space,
        &[
            (offset_of!(LogSpaceEntry, checksum), "checksum"),
            (offset_of!(LogSpaceEntry, state), "state"),
            (offset_of!(LogSpaceEntry, puddle), "puddle"),
            (offset_of!(LogSpaceEntry, addr), "addr"),
            (offset_of!(LogSpaceEntry, log_id), "log_id"),
            (offset_of!(LogSpaceEntry, segment), "segment"),
            (offset_of!(LogSpaceEntry, reserved), "zero"),
            (size_of::<LogSpaceEntry>(), ""),
        ],
    );
    assert_eq!(
        [ENTRY_FREE, ENTRY_HEAD, ENTRY_CONTINUATION],
        [0, 1, 2],
        "as drawn: free, head, continuation"
    );

    let log = section(&text, "## Log");
    let (control, range) = (CONTROL_OFFSET as usize, RANGE_OFFSET as usize);
    assert_drawn(
        log,
        &[
            (offset_of!(LogHeader, prefix), "prefix"),
            (offset_of!(LogHeader, owner), "owner"),
            (offset_of!(LogHeader, log_id), "log_id"),
            (offset_of!(LogHeader, capacity), "capacity"),
            (offset_of!(LogHeader, segment), "segment"),
            (offset_of!(LogHeader, reserved), "zero"),
            (control + offset_of!(LogControl, epoch), "epoch"),
            (control + offset_of!(LogControl, state), "state"),
            (control + offset_of!(LogControl, reserved), "zero"),
            (range + offset_of!(LogRange, range), "range"),
            (range + offset_of!(LogRange, tail), "tail"),
            (range + offset_of!(LogRange, last), "last"),
            (range + offset_of!(LogRange, overflow), "overflow"),
            (range + offset_of!(LogRange, reserved), "zero"),
            (ENTRIES_OFFSET as usize, "entry"),
        ],
    );
    assert_eq!((control, range), (size_of::<LogHeader>(), control + size_of::<LogControl>()));
    assert_eq!(2 * MIN_HALF, 2048, "as drawn: a capacity of at least 2,048");
    assert!(log.contains(&format!("{LOG_QUARANTINED:#x}")), "the mark of a log that is set aside");
    assert_eq!(LOG_QUARANTINED.to_le_bytes(), *b"QDAMAGED");
}

#[test]
fn entries_and_seals_are_drawn_as_they_are() {
    let text = document();
    assert_drawn(
        section(&text, "### Entry"),
        &[
            (offset_of!(EntryHeader, checksum), "checksum"),
            (offset_of!(EntryHeader, addr), "addr"),
            (offset_of!(EntryHeader, size), "size"),
            (offset_of!(EntryHeader, index), "index"),
            (offset_of!(EntryHeader, seq), "seq"),
            (offset_of!(EntryHeader, kind), "kind"),
            (offset_of!(EntryHeader, order), "order"),
            (offset_of!(EntryHeader, unfenced), "unfenced"),
            (ENTRY_HEADER_SIZE as usize, "data"),
        ],
    );
    assert_drawn(
        section(&text, "### Seal"),
        &[
            (offset_of!(Seal, entries), "entries"),
            (offset_of!(Seal, entries_checksum), "entries_checksum"),
            (offset_of!(Seal, contents), "contents"),
            (size_of::<Seal>(), ""),
        ],
    );
    // Whole lines; up to 32 bytes of data in the first.
    assert_eq!(ENTRY_INLINE_DATA_MAX, 32);
    for len in 0..5000 {
        assert_eq!(entry_size(len), (32 + len).next_multiple_of(64));
    }
    assert!(section(&text, "### Checksums").contains("pieces of 1,024 bytes"));
    assert_eq!(PIECE_LEN, 1024);

    let kinds = rows(section(&text, "### Entry"));
    let kinds: Vec<&Vec<String>> =
        kinds.iter().filter(|row| row[0].parse::<u8>().is_ok()).collect();
    assert_eq!(kinds.len(), 9);
    assert!(EntryKind::from_u8(0).is_none() && EntryKind::from_u8(10).is_none());
    for row in kinds {
        let kind = EntryKind::from_u8(row[0].parse().expect("a number")).expect("a kind");
        let name: String =
            row[1].split(' ').map(|word| word[..1].to_uppercase() + &word[1..]).collect();
        assert_eq!(name, format!("{kind:?}"));
        let class = if kind.class() == 1 { "undo" } else { "redo" };
        let order = if kind.order() == Order::Backward { "backward" } else { "forward" };
        assert_eq!(row[2], format!("{class}, {order}"), "{name}");
        let len = match &row[4] {
            none if none == "none" => 0,
            bytes if bytes.contains(" bytes") => {
                bytes.split(' ').next().unwrap().parse().expect("a number")
            }
            _ => 40,
        };
        let size = if matches!(kind, EntryKind::ClearBitsOnAbort | EntryKind::ClearBitsOnCommit) {
            8
        } else {
            40
        };
        let size = if kind == EntryKind::Seal { size_of::<Seal>() as u32 } else { size };
        assert_eq!(kind.data_len(size), len, "{name}");
        assert_eq!(
            kind.is_sealed(),
            matches!(kind, EntryKind::Undo | EntryKind::Fresh | EntryKind::Allocation),
            "{name}"
        );
    }
}

#[test]
fn the_numbers_of_sequence_ranges_are_those_documented() {
    let text = document();
    let range = section(&text, "### Sequence range");
    let below = |back: u64| u32::try_from((1_u64 << 32) - back).expect("32 bits");
    assert!(
        range.contains("highest base of a transaction is 2^32 - 20")
            && range.contains("= 2^32 - 12")
    );
    assert_eq!((LAST_BASE - 4, LAST_BASE, END_BASE), (below(20), below(16), below(12)));
    assert_eq!(
        (SequenceRange::running(8), SequenceRange::committed(8)),
        (SequenceRange { lo: 8, hi: 10 }, SequenceRange { lo: 10, hi: 12 })
    );
    let word = |lo: u32, hi: u32| u64::from(lo) | u64::from(hi) << 32;
    assert!(SequenceRange::from_word(word(END_BASE, END_BASE + 2)).is_some());
    for (lo, hi) in [(END_BASE + 2, END_BASE + 4), (1, 3), (8, 11), (8, 8)] {
        assert_eq!(SequenceRange::from_word(word(lo, hi)), None, "({lo}, {hi})");
    }
}

#[test]
fn the_table_of_seeds_is_that_of_the_code() {
    let text = document();
    let documented: Vec<(String, String)> = rows(section(&text, "### Checksums"))
        .into_iter()
        .filter(|row| row[1].contains("0x"))
        .map(|row| (row[0].clone(), row[1].clone()))
        .collect();
    let expected = [
        ("superblock copy", seed::SUPERBLOCK),
        ("puddle header", seed::PUDDLE),
        ("catalog frame", seed::CATALOG),
        ("log header", seed::LOG),
        ("log entry", seed::LOG),
        ("log space header", seed::LOG_SPACE),
        ("log space entry", seed::LOG_SPACE),
        ("descriptor", seed::DESCRIPTOR),
        ("type name, to type id", seed::TYPE_NAME),
        ("contents under a seal", seed::SEAL),
        ("object header", seed::OBJECT),
        ("journal header", seed::JOURNAL_HEADER),
        ("psync record", seed::PSYNC),
        ("sub-heap header", seed::SUB_HEAP),
        ("block record", seed::BLOCK_RECORD),
        ("list head", seed::LIST_HEAD),
        ("level entry", seed::LEVEL_ENTRY),
        ("undo record", seed::UNDO),
        ("seal of a change", seed::UNDO_SEAL),
        ("micro entry", seed::MICRO),
        ("word of a lane", seed::LANE),
        ("part of a sub-heap", seed::PART),
        ("link of a lane", seed::LANE_LINK),
        ("logged heap header", seed::LOGGED),
        ("word of a sub-heap", seed::SUB_HEAP_WORD),
        ("slab record", seed::SLAB_RECORD),
        ("word of a ticket", seed::TICKET),
    ];
    for (name, seed) in expected {
        let row = documented.iter().find(|(what, _)| what == name);
        assert!(
            row.is_some_and(|(_, shown)| shown.contains(&format!("{seed:#x}"))),
            "{name}: {row:?}"
        );
    }
    // No seed is there twice, but for those that are told apart by what else is in them.
    let plain: Vec<&String> = documented
        .iter()
        .map(|(_, shown)| shown)
        .filter(|shown| !shown.contains("log_id"))
        .collect();
    let different: std::collections::BTreeSet<_> = plain.iter().collect();
    assert_eq!(different.len() + 1, plain.len(), "log space header and entry share one: {plain:?}");
    // Headers are sealed with the seed of their kind.
    assert_eq!([Superblock::SEED, PuddleHeader::SEED], [seed::SUPERBLOCK, seed::PUDDLE]);
    assert_eq!([LogHeader::SEED, LogSpaceHeader::SEED], [seed::LOG, seed::LOG_SPACE]);
}

#[test]
fn sub_heaps_are_drawn_as_they_are() {
    let text = document();
    let section = section(&text, "## Sub-heap");
    macro_rules! drawn {
        ($of:ty: $($field:ident),+) => {
            assert_drawn(section, &[
                $((offset_of!($of, $field), stringify!($field)),)+
                (size_of::<$of>(), ""),
            ])
        };
    }
    drawn!(
        SubHeapHeader: prefix, metadata_len, number, lanes, levels, class_min, tickets, reserved
    );
    drawn!(LoggedHeader: prefix, lanes, levels, tickets, guards, reserved);
    drawn!(PartEntry: first, kind, puddle, from, pages, unused, check);
    drawn!(LaneLink: own, sequence, sub_heap, lane, reserved, check);
    drawn!(BlockRecord: place, type_id, next, prev, reserved, check);
    drawn!(SlabRecord: place, type_id, used, size, check);
    drawn!(ListHead: head, tail, blocks, reserved, check);
    drawn!(LevelEntry: used, state, reserved, check);
    drawn!(UndoHeader: check, sequence, count, seal, reserved);
    drawn!(UndoEntry: cell, old);
    let parts = [PartKind::Data as u32, PartKind::Levels as u32];
    for number in [LevelEntry::PRESENT, LevelEntry::ABSENT].into_iter().chain(parts) {
        assert!(section.contains(&format!("{number:#x}")), "{number:#x}");
    }
    assert!(section.contains("magic \"CENSUBHP\"") && SubHeapHeader::MAGIC == *b"CENSUBHP");
    assert!(section.contains("magic \"CENLOGHP\"") && LoggedHeader::MAGIC == *b"CENLOGHP");
    assert_eq!((UNDO_OFFSET, LISTS_OFFSET), (4096, 20_480));
    assert_eq!((PARTS_OFFSET, LANES_OFFSET), (24_576, 28_672));
    assert_eq!((LoggedHeader::ROOTS, LoggedHeader::SUB_HEAPS), (12_288, 32_768));
    assert_eq!((LoggedHeader::roots_at(0), LoggedHeader::sub_heaps_at(0)), (8192, 24_576));
}

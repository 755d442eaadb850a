//! Archives.

use crate::drawn::{assert_drawn, document, rows, section};
use cenote_layout::archive::{
    ArchiveEntry, ArchiveHeader, CHUNK_LEN_MAX, Codec, FLAG_SKIP, LeftEntry, MANIFEST_LEN_MAX,
    PoolEntry, PuddleEntry, SECTION_MAGIC, SectionHeader, SectionKind, section_sum,
};
use cenote_layout::catalog::{AtRest, HeapKind, PoolMode};
use cenote_layout::checksum::checksum;
use cenote_layout::header::Header;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use std::mem::offset_of;

#[test]
fn archives_are_drawn_as_they_are() {
    let text = document();
    let archive = section(&text, "## Archive");
    assert_drawn(
        archive,
        &[
            (offset_of!(ArchiveHeader, prefix), "prefix"),
            (offset_of!(ArchiveHeader, archive), "archive"),
            (offset_of!(ArchiveHeader, store), "store"),
            (offset_of!(ArchiveHeader, window_base), "window_base"),
            (offset_of!(ArchiveHeader, window_len), "window_len"),
            (offset_of!(ArchiveHeader, made_at_s), "made_at_s"),
            (offset_of!(ArchiveHeader, codec), "codec"),
            (offset_of!(ArchiveHeader, pools), "pools"),
            (offset_of!(ArchiveHeader, puddles), "puddles"),
            (offset_of!(ArchiveHeader, types), "types"),
            (offset_of!(ArchiveHeader, left), "left"),
            (offset_of!(ArchiveHeader, reserved0), "zero"),
            (size_of::<ArchiveHeader>(), ""),
        ],
    );
    assert_drawn(
        archive,
        &[
            (offset_of!(SectionHeader, magic), "magic"),
            (offset_of!(SectionHeader, number), "number"),
            (offset_of!(SectionHeader, kind), "kind"),
            (offset_of!(SectionHeader, flags), "flags"),
            (offset_of!(SectionHeader, puddle), "puddle"),
            (offset_of!(SectionHeader, codec), "codec"),
            (offset_of!(SectionHeader, offset), "offset"),
            (offset_of!(SectionHeader, len), "len"),
            (offset_of!(SectionHeader, stored_len), "stored_len"),
            (offset_of!(SectionHeader, chain), "chain"),
            (offset_of!(SectionHeader, checksum), "checksum"),
            (size_of::<SectionHeader>(), ""),
        ],
    );
    for magic in [ArchiveHeader::MAGIC, SECTION_MAGIC] {
        assert!(archive.contains(&format!("magic \"{}\"", magic.escape_ascii())));
    }
}

#[test]
fn archives_are_numbered_and_summed_up_as_they_are() {
    assert_eq!(ArchiveHeader::SEED, 0x4345_4e4f_5445_0010, "as in the table of checksums");
    assert_eq!((CHUNK_LEN_MAX, MANIFEST_LEN_MAX, FLAG_SKIP), (1_048_576, 67_108_864, 1));
    assert_eq!(
        [SectionKind::Entry, SectionKind::Chunk, SectionKind::End].map(|kind| kind as u32),
        [1, 2, 3]
    );
    assert_eq!([Codec::None, Codec::Zstd].map(|codec| codec as u32), [0, 1]);
    let section = SectionHeader {
        magic: SECTION_MAGIC,
        number: 7,
        kind: 2,
        flags: 0,
        puddle: 1,
        codec: 0,
        offset: 4096,
        len: 3,
        stored_len: 3,
        chain: 5,
        checksum: 99,
    };
    let mut bytes = zerocopy::IntoBytes::as_bytes(&section).to_vec();
    bytes[56..].fill(0);
    assert_eq!(
        section_sum(&section, b"abc"),
        checksum(checksum(ArchiveHeader::SEED, &bytes), b"abc")
    );
}

#[test]
fn entries_of_archives_are_encoded_as_they_are() {
    let text = document();
    let archive = section(&text, "## Archive");
    let pool = PoolEntry {
        id: PoolId(3),
        name: "p".into(),
        mode: PoolMode::Shadowed,
        heap: HeapKind::Traced,
        at_rest: AtRest::None,
        puddle_size: 4,
        size_max: 5,
        permissions: 6,
        created_at_s: 7,
    };
    let torn = postcard::to_allocvec(&ArchiveEntry::TornPool(pool.clone())).unwrap();
    assert_eq!(torn, [4, 3, 1, b'p', 1, 0, 0, 4, 5, 6, 7]);
    let wear = PoolEntry { heap: HeapKind::Wear { wait_ms: 100 }, ..pool.clone() };
    let pool = postcard::to_allocvec(&ArchiveEntry::Pool(pool)).unwrap();
    assert_eq!(pool, [0, 3, 1, b'p', 1, 0, 0, 4, 5, 6, 7]);
    let wear = postcard::to_allocvec(&ArchiveEntry::Pool(wear)).unwrap();
    assert_eq!(wear, [0, 3, 1, b'p', 1, 2, 100, 0, 4, 5, 6, 7]);
    let puddle = PuddleEntry { uuid: Uuid([9; 16]), pool: PoolId(3), index: 1, addr: 2, size: 4 };
    let encoded = postcard::to_allocvec(&ArchiveEntry::Puddle(puddle)).unwrap();
    assert_eq!(encoded, [&[1][..], &[9; 16], &[3, 1, 2, 4]].concat());
    let left = LeftEntry { id: PoolId(2), name: "q".into(), pointers: 5, from_type: TypeId(6) };
    assert_eq!(postcard::to_allocvec(&ArchiveEntry::Left(left)).unwrap(), [3, 2, 1, b'q', 5, 6]);
    let names: Vec<String> = rows(archive).into_iter().skip(2).map(|row| row[1].clone()).collect();
    assert_eq!(names, ["`Pool`", "`Puddle`", "`Type`", "`Left`", "`TornPool`"]);
}

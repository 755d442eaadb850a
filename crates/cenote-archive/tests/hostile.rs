//! Archives that a reader must refuse: cut short, damaged, put together otherwise, and forged.
//! Each is a typed error.

use crate::common::{Parts, manifest, node, pool, puddle, read, write};
use cenote_archive::{ArchiveError, ArchiveReader, ArchiveStep, Codec, Manifest};
use cenote_layout::archive::{
    ArchiveEntry, FLAG_SKIP, INCOMPAT_SEALED, MANIFEST_LEN_MAX, SectionKind,
};
use cenote_layout::catalog::{AtRest, PoolMode};
use cenote_layout::header::HeaderError;
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::types::{Condition, TypeRecord};
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};

fn whole() -> Vec<u8> {
    write(&manifest(), Codec::None)
}

#[test]
fn every_shorter_archive_is_cut_short() {
    let bytes = whole();
    for len in 0..bytes.len() {
        match read(&bytes[..len]) {
            Err(ArchiveError::Truncated { at, .. }) => assert_eq!(at, len as u64),
            Err(ArchiveError::Header(HeaderError::Truncated { .. })) => assert!(len < 256),
            other => panic!("{len} bytes: {other:?}"),
        }
    }
    let mut long = bytes;
    long.push(0);
    let error = read(long.as_slice());
    let end = long.len() as u64;
    assert!(matches!(error, Err(ArchiveError::Trailing { at }) if at + 1 == end));
}

#[test]
fn every_flipped_bit_is_found() {
    let mut bytes = whole();
    for at in 0..bytes.len() {
        // In the pages, which have one checksum each, some of them.
        let step = if bytes.len() - at > 400 && at > 1400 && at % 61 != 0 { 8 } else { 1 };
        for bit in (0..8).step_by(step) {
            bytes[at] ^= 1 << bit;
            let found = read(bytes.as_slice());
            bytes[at] ^= 1 << bit;
            assert!(found.is_err(), "bit {bit} of byte {at}");
        }
    }
    assert!(read(bytes.as_slice()).is_ok());
}

#[test]
fn sections_that_change_places_or_are_missing_or_there_twice_are_found() {
    let parts = Parts::of(&whole());
    let count = parts.sections.len();
    for a in 0..count {
        let mut without = parts.clone();
        without.sections.remove(a);
        assert!(read(without.bytes().as_slice()).is_err(), "without {a}");
        let mut twice = parts.clone();
        twice.sections.insert(a, parts.sections[a].clone());
        assert!(read(twice.bytes().as_slice()).is_err(), "{a} twice");
        for b in a + 1..count {
            let mut other = parts.clone();
            other.sections.swap(a, b);
            assert!(read(other.bytes().as_slice()).is_err(), "{a} and {b}");
        }
    }
    // Of another archive, whole, at the same place.
    let mut stranger = manifest();
    stranger.archive = Uuid([9; 16]);
    let mut mixed = parts.clone();
    mixed.sections[count - 2] =
        Parts::of(&write(&stranger, Codec::None)).sections[count - 2].clone();
    assert!(matches!(read(mixed.bytes().as_slice()), Err(ArchiveError::Order { .. })));
}

/// An archive with the entries of a manifest that the writer would refuse, every checksum right.
fn forged(manifest: &Manifest) -> Vec<u8> {
    let mut parts = Parts::of(&whole());
    let template = parts.sections[0].0;
    let entries = manifest.pools.iter().cloned().map(ArchiveEntry::Pool);
    let entries = entries.chain(manifest.puddles.iter().copied().map(ArchiveEntry::Puddle));
    let entries = entries.chain(manifest.types.iter().cloned().map(ArchiveEntry::Type));
    let entries = entries.chain(manifest.left.iter().cloned().map(ArchiveEntry::Left));
    let made = entries.map(|entry| {
        let payload = postcard::to_allocvec(&entry).expect("it can be encoded");
        let mut section = template;
        section.len = payload.len() as u32;
        (section, payload)
    });
    let mut sections: Vec<_> = made.collect();
    sections
        .extend(parts.sections.into_iter().filter(|(s, _)| s.kind != SectionKind::Entry as u32));
    parts.sections = sections;
    parts.header.pools = manifest.pools.len() as u32;
    parts.header.puddles = manifest.puddles.len() as u32;
    parts.header.types = manifest.types.len() as u32;
    parts.header.left = manifest.left.len() as u32;
    parts.sealed()
}

type Change = fn(&mut Manifest);

/// What no manifest may be.
const CHANGES: &[(&str, Change)] = &[
    ("a pool without a number", |m| m.pools[0].id = PoolId(0)),
    ("two pools of one number", |m| m.pools[1].id = m.pools[0].id),
    ("pools out of order", |m| m.pools.swap(0, 1)),
    ("no name", |m| m.pools[0].name.clear()),
    ("a long name", |m| m.pools[0].name = "x".repeat(256)),
    ("a name with control characters", |m| m.pools[0].name = "a\nb\u{1b}[2J".into()),
    ("a name with a space at its end", |m| m.pools[0].name = "a ".into()),
    ("two pools of one name", |m| m.pools[1].name = m.pools[0].name.clone()),
    ("an odd puddle size", |m| m.pools[0].puddle_size = 5000),
    ("a small limit", |m| m.pools[0].size_max = 4096),
    ("puddles beyond the limit", |m| m.pools[0].size_max = 2 * SLOT_SIZE),
    ("odd permissions", |m| m.pools[0].permissions = 0o4755),
    ("a pool without puddles", |m| m.pools.push(pool(9, "none"))),
    ("a puddle without a pool", |m| m.puddles.push(puddle(9, 0, 9, SLOT_SIZE))),
    ("no root puddle", |m| m.puddles[0].index = 1),
    ("a puddle missing", |m| m.puddles[1].index = 2),
    ("a puddle twice", |m| m.puddles[1].index = 0),
    ("puddles out of order", |m| m.puddles.swap(0, 1)),
    ("pools of puddles out of order", |m| m.puddles.rotate_right(1)),
    ("no identity", |m| m.puddles[0].uuid = Uuid::NIL),
    ("one identity twice", |m| m.puddles[1].uuid = m.puddles[0].uuid),
    ("no size", |m| m.puddles[0].size = 0),
    ("an odd size", |m| m.puddles[0].size += 1),
    ("an absurd size", |m| m.puddles[0].size = 1 << 63),
    ("sizes whose sum overflows", |m| {
        m.pools[0].size_max = u64::MAX;
        m.puddles[0].size = u64::MAX / 4096 * 4096;
    }),
    ("an odd address", |m| m.puddles[0].addr += PAGE_SIZE),
    ("an address before the window", |m| m.puddles[0].addr = SLOT_SIZE),
    ("an address that overflows", |m| m.puddles[0].addr = u64::MAX / SLOT_SIZE * SLOT_SIZE),
    ("an end behind the window", |m| m.puddles[1].addr = m.window.0 + m.window.1 - SLOT_SIZE),
    ("two puddles at one address", |m| m.puddles[1].addr = m.puddles[0].addr),
    ("puddles that overlap", |m| m.puddles[2].addr = m.puddles[1].addr + SLOT_SIZE),
    ("a type twice", |m| m.types.push(node())),
    ("a pointer outside its type", |m| m.types[0].pointers[0].offset = 16),
    ("a pointer far outside its type", |m| m.types[0].pointers[0].offset = u64::MAX - 7),
    ("a pointer that is not aligned", |m| m.types[0].pointers[0].offset = 4),
    ("more pointers than fit", |m| m.types[0].pointers[0].count = 1 << 60),
    ("pointers whose places overflow", |m| {
        m.types[0].pointers[0].count = u64::MAX;
        m.types[0].pointers[0].stride = 1 << 62;
    }),
    ("a condition outside its type", |m| {
        let outside = Condition { offset: u64::MAX, size: 8, value: 0 };
        m.types[0].pointers[0].conditions.push(outside);
    }),
    ("a type of a later release", |m| m.types[0].version = 2),
    ("an empty repeating type", |m| {
        m.types[0] = TypeRecord {
            size: 0,
            repeats: true,
            fields: Vec::new(),
            pointers: Vec::new(),
            ..node()
        };
    }),
    ("left behind and there", |m| m.left[0].id = PoolId(3)),
    ("left behind without a number", |m| m.left[0].id = PoolId(0)),
    ("left behind twice", |m| m.left.push(m.left[0].clone())),
    ("left behind without a name", |m| m.left[0].name.clear()),
];

#[test]
fn manifests_that_cannot_be_are_refused_although_every_checksum_fits() {
    assert!(read(forged(&manifest()).as_slice()).is_ok());
    for (what, change) in CHANGES {
        let mut bad = manifest();
        change(&mut bad);
        match read(forged(&bad).as_slice()) {
            Err(ArchiveError::Manifest { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
    }
}

#[test]
fn protections_that_the_header_denies_are_refused() {
    let refused = |bytes: &[u8], why: &str| match read(bytes) {
        Err(ArchiveError::Manifest { detail, .. }) if detail.contains(why) => {}
        other => panic!("{why}: {other:?}"),
    };
    let mut protected = manifest();
    (protected.pools[0].at_rest, protected.pools[0].mode) =
        (AtRest::Authenticated, PoolMode::Direct);
    refused(&forged(&protected), "no pool in direct mode");
    // Who does not know of sealed puddles would take them for plain ones: the header says so, or
    // the archive is none.
    protected.pools[0].mode = PoolMode::Shadowed;
    refused(&forged(&protected), "disagree");
    let mut unsealed = Parts::of(&whole());
    unsealed.header.prefix.incompat = INCOMPAT_SEALED;
    refused(&unsealed.sealed(), "disagree");
}

/// A protection that no release knows, and ones that do not fit the rest of the archive: the reader
/// hands out no manifest to register.
#[test]
fn a_protection_that_is_unknown_or_does_not_fit_is_refused_before_any_chunk() {
    let mut sealed = manifest();
    sealed.pools.iter_mut().for_each(|pool| pool.mode = PoolMode::Shadowed);
    sealed.pools[1].at_rest = AtRest::Integrity;
    let sealed_archive = |manifest: &Manifest| {
        let mut parts = Parts::of(&forged(manifest));
        parts.header.prefix.incompat = INCOMPAT_SEALED;
        parts
    };
    let open = |bytes: &[u8]| ArchiveReader::open(bytes).map(|reader| reader.manifest().clone());
    assert_eq!(open(&sealed_archive(&sealed).sealed()).expect("it can be"), sealed);
    // Where the entry of the second pool says it: the only byte that another protection changes.
    let payload = |at_rest| {
        let mut pool = sealed.pools[1].clone();
        pool.at_rest = at_rest;
        postcard::to_allocvec(&ArchiveEntry::Pool(pool)).expect("it can be encoded")
    };
    let (some, other) = (payload(AtRest::Integrity), payload(AtRest::Authenticated));
    let differs: Vec<usize> = (0..some.len()).filter(|&at| some[at] != other[at]).collect();
    let &[at] = &differs[..] else { panic!("{differs:?}") };
    assert_eq!((some[at], other[at]), (1, 4));
    for code in 5..0x80 {
        let mut parts = sealed_archive(&sealed);
        parts.sections[1].1[at] = code;
        let found = open(&parts.sealed());
        assert!(matches!(found, Err(ArchiveError::Order { .. })), "protection {code}: {found:?}");
    }
    // The same as a number of several bytes, and ones that wrap to a known one.
    for code in [[0x85, 0x01], [0x81, 0x02], [0x80, 0x80]] {
        let mut parts = sealed_archive(&sealed);
        parts.sections[1].1.splice(at..=at, code);
        parts.sections[1].0.len += 1;
        let found = open(&parts.sealed());
        assert!(matches!(found, Err(ArchiveError::Order { .. })), "{code:x?}: {found:?}");
    }
    // A pool that says that it is protected among those of an archive that is not, and the other
    // way round.
    type Change = fn(&mut Manifest, &mut u64);
    let changes: &[(&str, Change)] = &[
        ("no feature bit", |_, incompat| *incompat = 0),
        ("no protected pool", |m, _| m.pools[1].at_rest = AtRest::None),
        ("a pool in direct mode", |m, _| m.pools[1].mode = PoolMode::Direct),
        ("another pool in direct mode", |m, _| {
            m.pools[0].at_rest = AtRest::Integrity;
            m.pools[0].mode = PoolMode::Direct;
        }),
    ];
    for (what, change) in changes {
        let (mut bad, mut incompat) = (sealed.clone(), INCOMPAT_SEALED);
        change(&mut bad, &mut incompat);
        let mut parts = sealed_archive(&bad);
        parts.header.prefix.incompat = incompat;
        let found = open(&parts.sealed());
        assert!(matches!(found, Err(ArchiveError::Manifest { .. })), "{what}: {found:?}");
    }
    // Chunks that a protected puddle has behind its pages are of no puddle that says less.
    let mut parts = sealed_archive(&sealed);
    let last = chunk_at(&parts, 0);
    parts.sections[last].0.offset = sealed.puddles[2].size;
    assert!(read(parts.clone().sealed().as_slice()).is_ok());
    parts.sections[last].0.offset =
        AtRest::Integrity.stored_len(sealed.puddles[2].size).expect("it can be");
    assert!(matches!(read(parts.sealed().as_slice()), Err(ArchiveError::Chunk { .. })));
    let mut parts = Parts::of(&whole());
    parts.sections[last].0.offset = sealed.puddles[2].size;
    assert!(matches!(read(parts.sealed().as_slice()), Err(ArchiveError::Chunk { .. })));
}

#[test]
fn counts_that_promise_billions_of_entries_take_no_memory() {
    for change in [
        (|p: &mut Parts| p.header.pools = u32::MAX) as fn(&mut Parts),
        |p| p.header.puddles = u32::MAX,
        |p| p.header.types = u32::MAX,
        |p| p.header.left = u32::MAX,
        |p| p.header.types = 0,
    ] {
        let mut parts = Parts::of(&whole());
        change(&mut parts);
        let found = read(parts.sealed().as_slice());
        assert!(
            matches!(found, Err(ArchiveError::Order { .. } | ArchiveError::Header(_))),
            "{found:?}"
        );
    }
    // Lengths inside an entry: a name of 2^60 bytes.
    let mut parts = Parts::of(&whole());
    let mut payload = vec![0, 3];
    payload.extend([0xff; 8]);
    payload.push(0x0f);
    parts.sections[0].0.len = payload.len() as u32;
    parts.sections[0].1 = payload;
    assert!(matches!(read(parts.sealed().as_slice()), Err(ArchiveError::Order { .. })));
    // A section that says that it is longer than any.
    let mut parts = Parts::of(&whole());
    parts.sections[0].0.stored_len = u32::MAX;
    assert!(matches!(read(parts.bytes().as_slice()), Err(ArchiveError::Damaged { .. })));
}

/// The last chunk but `back`.
fn chunk_at(parts: &Parts, back: usize) -> usize {
    parts.sections.len() - 2 - back
}

#[test]
fn chunks_outside_a_body_or_over_another_are_refused() {
    let changes: &[fn(&mut Parts, usize)] = &[
        |p, at| p.sections[at].0.puddle = 3,
        |p, at| p.sections[at].0.puddle = u32::MAX,
        |p, at| p.sections[at].0.puddle = 0,
        |p, at| p.sections[at].0.offset = 0,
        |p, at| p.sections[at].0.offset = 4096,
        |p, at| p.sections[at].0.offset += 1,
        |p, at| p.sections[at].0.offset = 128 << 10,
        |p, at| p.sections[at].0.offset = u64::MAX - 4095,
        |p, at| p.sections[at].0.len = 0,
        |p, at| p.sections[at].0.len = 8192,
        |p, at| p.sections[at].0.codec = 1,
        |p, at| p.sections[at].0.codec = 2,
        |p, at| p.sections[at].1.truncate(100),
        |p, at| p.sections[at].1.extend([0; 4096]),
    ];
    for (number, change) in changes.iter().enumerate() {
        let mut parts = Parts::of(&whole());
        let at = chunk_at(&parts, 0);
        change(&mut parts, at);
        let found = read(parts.sealed().as_slice());
        assert!(matches!(found, Err(ArchiveError::Chunk { .. })), "{number}: {found:?}");
    }
}

#[test]
fn an_end_that_counts_otherwise_is_refused() {
    let mut parts = Parts::of(&whole());
    let at = chunk_at(&parts, 0);
    parts.sections.remove(at);
    assert!(matches!(read(parts.sealed().as_slice()), Err(ArchiveError::Order { .. })));
}

#[test]
fn a_section_of_a_later_release_is_skipped_where_it_says_so_and_refused_where_not() {
    let parts = Parts::of(&whole());
    for at in 0..parts.sections.len() {
        let mut later = parts.clone();
        let mut section = later.sections[0].0;
        (section.kind, section.flags, section.len) = (77, FLAG_SKIP, 5);
        later.sections.insert(at, (section, b"later".to_vec()));
        // The end counts it too.
        let last = later.sections.len() - 1;
        later.sections[last].1[0] += 1;
        assert_eq!(read(later.clone().sealed().as_slice()).expect("it is whole").0, manifest());
        later.sections[at].0.flags = 0;
        let refused = read(later.sealed().as_slice());
        assert!(
            matches!(refused, Err(ArchiveError::UnknownSection { kind: 77, .. })),
            "{refused:?}"
        );
    }
    let mut later = parts.clone();
    later.header.prefix.version = 2;
    assert!(matches!(
        read(later.sealed().as_slice()),
        Err(ArchiveError::Header(HeaderError::Version { found: 2, .. }))
    ));
    let mut later = parts;
    later.header.prefix.incompat = 1 << 5;
    assert!(matches!(
        read(later.sealed().as_slice()),
        Err(ArchiveError::Header(HeaderError::Incompatible { unknown: 32, .. }))
    ));
}

#[test]
fn sections_that_are_skipped_have_an_end_in_the_manifest_and_are_told_behind_it() {
    let with = |at: usize, len: usize, count: u64| {
        let mut later = Parts::of(&whole());
        let mut section = later.sections[0].0;
        (section.kind, section.flags, section.len) = (77, FLAG_SKIP, len as u32);
        let many = std::iter::repeat_n((section, vec![7; len]), count as usize);
        later.sections.splice(at..at, many);
        later.sealed()
    };
    // As many bytes as a manifest may have, and as many sections without a byte.
    for (len, count) in [(1 << 20, 65), (0, MANIFEST_LEN_MAX / 64 + 1)] {
        let bytes = with(1, len, count);
        let refused = ArchiveReader::open(bytes.as_slice());
        assert!(matches!(refused, Err(ArchiveError::ManifestLen { .. })), "{refused:?}");
    }
    let last = Parts::of(&whole()).sections.len() - 1;
    let bytes = with(last, 0, 1000);
    let mut reader = ArchiveReader::open(bytes.as_slice()).expect("its manifest is whole");
    let mut skipped = 0;
    // Its end counts none of them, and is refused.
    while let Ok(step @ (ArchiveStep::Skipped | ArchiveStep::Chunk(_))) = reader.step() {
        skipped += u64::from(step == ArchiveStep::Skipped);
    }
    assert_eq!(skipped, 1000, "the reader returns after each");
}

#[cfg(feature = "zstd")]
#[test]
fn what_unpacks_to_more_or_less_than_it_says_is_refused() {
    let bytes = write(&manifest(), Codec::Zstd);
    let parts = Parts::of(&bytes);
    let at = chunk_at(&parts, 0);
    // Zeros of 256 MiB in some 8 KiB, said to be a page.
    let mut bomb = vec![0; 1 << 20];
    let zeros = vec![0u8; 256 << 20];
    let len = zstd_safe::compress(bomb.as_mut_slice(), &zeros, 1).expect("it is short");
    drop(zeros);
    let frames: Vec<Vec<u8>> = vec![bomb[..len].to_vec(), Vec::new(), vec![0xff; 60], vec![0; 60]];
    for frame in frames {
        let mut bad = parts.clone();
        bad.sections[at].0.len = frame.len().next_multiple_of(4096).max(4096) as u32;
        bad.sections[at].0.offset = 32 << 10;
        bad.sections[at].1 = frame;
        let found = read(bad.sealed().as_slice());
        assert!(matches!(found, Err(ArchiveError::Chunk { .. })), "{found:?}");
    }
    // Every shorter frame.
    for len in 0..parts.sections[at].1.len() {
        let mut bad = parts.clone();
        bad.sections[at].1.truncate(len);
        assert!(read(bad.sealed().as_slice()).is_err(), "{len} bytes of a frame");
    }
    // Packed chunks in an archive that says that it has none.
    let mut bad = parts;
    bad.header.codec = 0;
    assert!(matches!(read(bad.sealed().as_slice()), Err(ArchiveError::Chunk { .. })));
}

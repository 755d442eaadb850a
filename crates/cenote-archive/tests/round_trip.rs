//! What is written is read.

use crate::common::{chunks, manifest, page, read, write};
use cenote_archive::{ArchiveError, ArchiveReader, ArchiveWriter, Codec};
use cenote_layout::SLOT_SIZE;
use proptest::prelude::*;
use std::io::Read;

/// Pages of the first puddle's body.
const PAGES_MAX: u64 = 2 * SLOT_SIZE / 4096 - 2;

/// A pipe that gives one byte at a time.
struct Drops<'a>(&'a [u8]);

impl Read for Drops<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let len = buf.len().min(1);
        self.0.read(&mut buf[..len])
    }
}

fn codecs() -> Vec<Codec> {
    [Codec::None, Codec::Zstd]
        .into_iter()
        .filter(|codec| cenote_archive::codec_is_built(*codec))
        .collect()
}

#[test]
fn an_archive_that_comes_in_drops_is_read_as_it_was_written() {
    for codec in codecs() {
        let bytes = write(&manifest(), codec);
        let (found, data) = read(Drops(&bytes)).expect("it is whole");
        assert_eq!(found, manifest());
        let wanted: Vec<_> = chunks().into_iter().map(|(p, o, b)| (p as usize, o, b)).collect();
        assert_eq!(data, wanted, "{codec:?}");
    }
}

#[test]
fn totals_say_what_there_was_and_packing_makes_it_less() {
    for codec in codecs() {
        let bytes = write(&manifest(), codec);
        let mut reader = ArchiveReader::open(bytes.as_slice()).expect("it is whole");
        while reader.next_chunk().expect("it is whole").is_some() {}
        let totals = reader.totals();
        assert_eq!((totals.chunks, totals.bytes), (4, 5 * 4096));
        // Pools, puddles, a type, what was left, chunks.
        assert_eq!(totals.sections, 2 + 3 + 1 + 1 + 4);
        match codec {
            Codec::None => assert_eq!(totals.stored_bytes, totals.bytes),
            Codec::Zstd => assert!(totals.stored_bytes < totals.bytes / 10, "{totals:?}"),
        }
        assert_eq!(reader.bytes_read(), bytes.len() as u64);
    }
}

#[test]
fn what_does_not_get_shorter_is_stored_as_it_is() {
    let mut noise = 1u64;
    let bytes: Vec<u8> = (0..1 << 16)
        .map(|_| {
            noise = noise
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (noise >> 56) as u8
        })
        .collect();
    for codec in codecs() {
        let mut writer =
            ArchiveWriter::begin(Vec::new(), &manifest(), codec).expect("it can be written");
        writer.chunk(1, 1 << 20, &bytes).expect("it can be written");
        let (archive, totals, _) = writer.finish().expect("it can be written");
        assert_eq!(totals.stored_bytes, bytes.len() as u64);
        assert_eq!(read(archive.as_slice()).expect("it is whole").1, [(1, 1 << 20, bytes.clone())]);
    }
}

#[test]
fn the_writer_refuses_what_no_reader_takes() {
    let mut bad = manifest();
    bad.puddles[1].addr = bad.puddles[0].addr;
    let begun = ArchiveWriter::begin(Vec::new(), &bad, Codec::None);
    assert!(matches!(begun, Err(ArchiveError::Manifest { .. })));
    let mut writer =
        ArchiveWriter::begin(Vec::new(), &manifest(), Codec::None).expect("it can be written");
    for (puddle, offset, len) in [
        (9, 4096, 4096),
        (0, 0, 4096),
        (0, 4096, 100),
        (0, 4100, 4096),
        (0, 4096, 0),
        (0, SLOT_SIZE - 4096, 8192),
        (1, u64::MAX - 4095, 4096),
        (1, 8192, (1 << 20) + 4096),
    ] {
        let written = writer.chunk(puddle, offset, &vec![1; len]);
        assert!(matches!(written, Err(ArchiveError::Chunk { .. })), "{puddle} {offset:#x} {len}");
    }
    writer.chunk(1, 8192, &page(1)).expect("it can be written");
    assert!(matches!(writer.chunk(1, 8192, &page(1)), Err(ArchiveError::Chunk { .. })), "twice");
    assert!(
        matches!(writer.chunk(0, 8192, &page(1)), Err(ArchiveError::Chunk { .. })),
        "backwards"
    );
}

/// A stream that has room for so many bytes.
struct Full(usize);

impl std::io::Write for Full {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        if self.0 == 0 {
            return Err(std::io::ErrorKind::StorageFull.into());
        }
        let len = buf.len().min(self.0);
        self.0 -= len;
        Ok(len)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_stream_that_fails_anywhere_is_an_error_with_its_place() {
    let whole = write(&manifest(), Codec::None);
    for room in (0..whole.len()).step_by(97) {
        let written =
            ArchiveWriter::begin(Full(room), &manifest(), Codec::None).and_then(|mut writer| {
                for (puddle, offset, bytes) in chunks() {
                    writer.chunk(puddle, offset, &bytes)?;
                }
                writer.finish()
            });
        match written {
            Err(ArchiveError::Io { what: "write", at, .. }) => assert!(at <= room as u64),
            Err(other) => panic!("{other}"),
            Ok(_) => panic!("{room} bytes were enough"),
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_pages_come_back(
        pages in proptest::collection::btree_map(0u64..PAGES_MAX, any::<u8>(), 0..20),
    ) {
        for codec in codecs() {
            let mut writer = ArchiveWriter::begin(Vec::new(), &manifest(), codec)
                .expect("it can be written");
            for (number, seed) in &pages {
                writer.chunk(1, 8192 + number * 4096, &page(*seed)).expect("it can be written");
            }
            let bytes = writer.finish().expect("it can be written").0;
            let found = read(bytes.as_slice()).expect("it is whole").1;
            let wanted: Vec<_> =
                pages.iter().map(|(n, seed)| (1, 8192 + n * 4096, page(*seed))).collect();
            prop_assert_eq!(found, wanted);
        }
    }
}

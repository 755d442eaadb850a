//! Archives: one that is kept as a test of the format, with entries, numbers and pages changed,
//! left out, repeated and exchanged; as they are then, or with every checksum made right again, so
//! that what lies behind the checksums is reached too; or bytes of nothing but chance.
//!
//! What is asserted: nothing panics; what is read keeps the manifest's rules; chunks are whole
//! pages of bodies, in order; and what was read can be written, and is read as the same.

use crate::forge;
use crate::input::Input;
use cenote_archive::{ArchiveReader, ArchiveWriter, Codec, Manifest};

/// What damage begins with.
const SEEDS: [&[u8]; 2] = [
    include_bytes!("../../cenote-archive/tests/golden/version-1.cenote"),
    include_bytes!("../../cenote-archive/tests/golden/version-1-zstd.cenote"),
];

pub(crate) fn run(input: &mut Input<'_>) {
    let bytes = match input.below(8) {
        0 => {
            let len = input.below(600);
            input.bytes(len)
        }
        1 => {
            let mut bytes = SEEDS[input.below(2)].to_vec();
            for _ in 0..=input.below(4) {
                input.damage(&mut bytes);
            }
            bytes.truncate(bytes.len() - input.below(2) * input.below(bytes.len()));
            bytes
        }
        _ => {
            let seed = SEEDS[input.below(2)];
            forge::archive(input, seed).expect("it is whole")
        }
    };
    let Some((manifest, chunks)) = read(&bytes) else { return };
    let mut writer = ArchiveWriter::begin(Vec::new(), &manifest, Codec::None)
        .expect("what was read can be written");
    for (puddle, offset, bytes) in &chunks {
        writer.chunk(*puddle, *offset, bytes).expect("what was read can be written");
    }
    let (again, ..) = writer.finish().expect("what was read can be written");
    assert_eq!(read(&again), Some((manifest, chunks)), "it is read as something else");
}

type Chunks = Vec<(u32, u64, Vec<u8>)>;

fn read(bytes: &[u8]) -> Option<(Manifest, Chunks)> {
    let mut reader = match ArchiveReader::open(bytes) {
        Ok(reader) => reader,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return None;
        }
    };
    reader.manifest().check().expect("a manifest that breaks the rules was handed out");
    let mut chunks = Vec::new();
    let mut before = (0, 0);
    loop {
        let extent = |manifest: &Manifest, puddle: usize| {
            manifest.puddles.get(puddle).map(|p| manifest.extent_of(p))
        };
        match reader.next_chunk() {
            Ok(Some(chunk)) => {
                let (puddle, offset, bytes) = (chunk.puddle, chunk.offset, chunk.bytes.to_vec());
                let (from, to) = extent(reader.manifest(), puddle).expect("a chunk of no puddle");
                assert!(offset >= from && offset + bytes.len() as u64 <= to);
                assert!(bytes.len().is_multiple_of(4096) && (puddle, offset) >= before);
                before = (puddle, offset + bytes.len() as u64);
                chunks.push((puddle as u32, offset, bytes));
            }
            Ok(None) => break,
            Err(error) => {
                assert!(!error.to_string().is_empty());
                return None;
            }
        }
    }
    Some((reader.manifest().clone(), chunks))
}

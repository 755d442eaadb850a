//! Archives: one that is kept as a test of the format, with entries, numbers and pages changed, left out, repeated and exchanged; as they are then, or with every
//! checksum made right again, so that what lies behind the checksums is reached too; or bytes of nothing but chance.
//!
//! What is asserted: nothing panics; what is read keeps the manifest's rules; chunks are whole pages of bodies, in order; and what was
//! read can be written, and is read as the same.

use crate::input::Input;
use cenote_archive::{ArchiveReader, ArchiveWriter, Codec, Manifest};
use cenote_layout::archive::{ArchiveHeader, SectionHeader, section_sum};
use cenote_layout::header::seal;
use zerocopy::{FromBytes, IntoBytes};

/// What damage begins with.
const SEEDS: [&[u8]; 2] = [
    include_bytes!("../../cenote-archive/tests/golden/version-1.cenote"),
    include_bytes!("../../cenote-archive/tests/golden/version-1-zstd.cenote"),
];

type Section = (SectionHeader, Vec<u8>);

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
        _ => changed(input),
    };
    let Some((manifest, chunks)) = read(&bytes) else { return };
    let mut writer =
        ArchiveWriter::begin(Vec::new(), &manifest, Codec::None).expect("what was read can be written");
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
        let extent =
            |manifest: &Manifest, puddle: usize| manifest.puddles.get(puddle).map(|p| manifest.extent_of(p));
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

/// A seed that is taken apart, changed and put together.
fn changed(input: &mut Input<'_>) -> Vec<u8> {
    let bytes = SEEDS[input.below(2)];
    let (mut header, mut rest) = ArchiveHeader::read_from_prefix(bytes).expect("it is whole");
    let mut sections: Vec<Section> = Vec::new();
    while let Ok((section, tail)) = SectionHeader::read_from_prefix(rest) {
        let (payload, tail) = tail.split_at(section.stored_len as usize);
        sections.push((section, payload.to_vec()));
        rest = tail;
    }
    for _ in 0..=input.below(4) {
        if sections.is_empty() {
            break;
        }
        let at = input.below(sections.len());
        match input.below(8) {
            0 => drop(sections.remove(at)),
            1 => sections.insert(at, sections[at].clone()),
            2 => {
                let other = input.below(sections.len());
                sections.swap(at, other);
            }
            3 => {
                let section = &mut sections[at].0;
                match input.below(6) {
                    0 => section.kind = input.below(5) as u32,
                    1 => section.flags = input.below(3) as u32,
                    2 => section.puddle = input.number(2) as u32,
                    3 => section.offset = input.number(4096),
                    4 => section.len = input.number(4096) as u32,
                    _ => section.codec = input.below(3) as u32,
                }
            }
            4 => {
                let field = [48, 80, 88, 104, 108, 112, 116, 120][input.below(8)];
                let word = input.number(2).to_le_bytes();
                header.as_mut_bytes()[field..field + 4].copy_from_slice(&word[..4]);
            }
            _ => {
                let payload = &mut sections[at].1;
                if input.one_in(8) {
                    payload.truncate(input.below(payload.len() + 1));
                }
                input.damage(payload);
                // Most changes are about what is in a section, not about its length.
                sections[at].0.len = match sections[at].0.kind {
                    2 => sections[at].0.len,
                    _ => sections[at].1.len() as u32,
                };
            }
        }
    }
    if !input.one_in(6) {
        seal(&mut header);
        let mut chain = header.prefix.checksum;
        for (number, (section, payload)) in sections.iter_mut().enumerate() {
            section.number = number as u64;
            section.chain = chain;
            section.stored_len = payload.len() as u32;
            section.checksum = section_sum(section, payload);
            chain = section.checksum;
        }
    }
    let mut out = header.as_bytes().to_vec();
    for (section, payload) in &sections {
        out.extend_from_slice(section.as_bytes());
        out.extend_from_slice(payload);
    }
    out
}

//! A small archive, and its sections as they lie in it, to be changed and put together again.

use cenote_archive::{
    ArchiveError, ArchiveReader, ArchiveWriter, Codec, LeftEntry, Manifest, PoolEntry, PuddleEntry,
};
use cenote_layout::SLOT_SIZE;
use cenote_layout::archive::{ArchiveHeader, SectionHeader, section_sum};
use cenote_layout::catalog::{AtRest, HeapKind, PoolMode};
use cenote_layout::header::seal;
use cenote_layout::id::{PoolId, TypeId, Uuid};
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{FieldRecord, PointerField, TypeRecord};
use zerocopy::{FromBytes, IntoBytes};

pub(crate) const BASE: u64 = 0x6000_0000_0000;

pub(crate) fn pool(id: u64, name: &str) -> PoolEntry {
    PoolEntry {
        id: PoolId(id),
        name: name.into(),
        mode: PoolMode::Direct,
        heap: HeapKind::Traced,
        at_rest: AtRest::None,
        puddle_size: SLOT_SIZE,
        size_max: 1 << 30,
        permissions: 0o640,
        created_at_s: 1_700_000_000,
    }
}

pub(crate) fn puddle(pool: u64, index: u32, slot: u64, size: u64) -> PuddleEntry {
    let uuid = Uuid([(16 * pool + u64::from(index)) as u8; 16]);
    PuddleEntry { uuid, pool: PoolId(pool), index, addr: BASE + slot * SLOT_SIZE, size }
}

pub(crate) fn node() -> TypeRecord {
    let field = |name: &str, offset, type_name: &str| FieldRecord {
        name: name.into(),
        offset,
        size: 8,
        type_id: TypeId::of_name(type_name),
        type_name: type_name.into(),
    };
    TypeRecord {
        version: 1,
        id: TypeId::of_name("Node"),
        name: "Node".into(),
        size: 16,
        align: 8,
        repeats: false,
        fields: vec![field("key", 0, "u64"), field("next", 8, "Option<Ptr<Node>>")],
        variants: Vec::new(),
        pointers: vec![PointerField {
            offset: 8,
            stride: 8,
            count: 1,
            kind: PointerKind::NATIVE,
            tag_mask: 0,
            target: TypeId::of_name("Node"),
            conditions: Vec::new(),
        }],
    }
}

pub(crate) fn manifest() -> Manifest {
    Manifest {
        archive: Uuid([0xa1; 16]),
        store: Uuid([0x51; 16]),
        window: (BASE, 64 * SLOT_SIZE),
        made_at_s: 1_800_000_000,
        pools: vec![pool(3, "first"), PoolEntry { mode: PoolMode::Shadowed, ..pool(7, "second") }],
        torn: std::collections::BTreeSet::new(),
        puddles: vec![
            puddle(3, 0, 1, SLOT_SIZE),
            puddle(3, 1, 4, 2 * SLOT_SIZE),
            puddle(7, 0, 2, 128 << 10),
        ],
        types: vec![node()],
        left: vec![LeftEntry {
            id: PoolId(5),
            name: "elsewhere".into(),
            pointers: 2,
            from_type: TypeId::of_name("Node"),
        }],
    }
}

/// A page that says which one it is.
pub(crate) fn page(number: u8) -> Vec<u8> {
    (0..4096u32).map(|i| if i % 64 < 8 { number } else { 0 }).collect()
}

pub(crate) fn chunks() -> Vec<(u32, u64, Vec<u8>)> {
    vec![
        (0, 4096, page(1)),
        (1, 3 << 20, [page(2), page(3)].concat()),
        (2, 4096, page(4)),
        (2, 124 << 10, page(5)),
    ]
}

pub(crate) fn write(manifest: &Manifest, codec: Codec) -> Vec<u8> {
    let mut writer = ArchiveWriter::begin(Vec::new(), manifest, codec).expect("it can be written");
    for (puddle, offset, bytes) in chunks() {
        writer.chunk(puddle, offset, &bytes).expect("it can be written");
    }
    writer.finish().expect("it can be written").0
}

pub(crate) type Chunks = Vec<(usize, u64, Vec<u8>)>;

pub(crate) fn read(bytes: impl std::io::Read) -> Result<(Manifest, Chunks), ArchiveError> {
    let mut reader = ArchiveReader::open(bytes)?;
    let mut chunks = Vec::new();
    while let Some(chunk) = reader.next_chunk()? {
        chunks.push((chunk.puddle, chunk.offset, chunk.bytes.to_vec()));
    }
    Ok((reader.manifest().clone(), chunks))
}

/// An archive taken apart.
#[derive(Clone)]
pub(crate) struct Parts {
    pub(crate) header: ArchiveHeader,
    pub(crate) sections: Vec<(SectionHeader, Vec<u8>)>,
}

impl Parts {
    pub(crate) fn of(bytes: &[u8]) -> Self {
        let (header, mut rest) = ArchiveHeader::read_from_prefix(bytes).expect("it was written");
        let mut sections = Vec::new();
        while !rest.is_empty() {
            let (section, tail) = SectionHeader::read_from_prefix(rest).expect("it was written");
            let (payload, tail) = tail.split_at(section.stored_len as usize);
            sections.push((section, payload.to_vec()));
            rest = tail;
        }
        Self { header, sections }
    }

    /// As they are.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = self.header.as_bytes().to_vec();
        for (section, payload) in &self.sections {
            out.extend_from_slice(section.as_bytes());
            out.extend_from_slice(payload);
        }
        out
    }

    /// Makes numbers, chain, lengths as stored and checksums right, as a forger would who wants
    /// them to be believed.
    pub(crate) fn sealed(mut self) -> Vec<u8> {
        seal(&mut self.header);
        let mut chain = self.header.prefix.checksum;
        for (number, (section, payload)) in self.sections.iter_mut().enumerate() {
            section.number = number as u64;
            section.chain = chain;
            section.stored_len = payload.len() as u32;
            section.checksum = section_sum(section, payload);
            chain = section.checksum;
        }
        self.bytes()
    }
}

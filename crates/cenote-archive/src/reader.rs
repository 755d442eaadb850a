//! Reads an archive, and believes nothing.
//!
//! Each section is checked in this order:
//!
//! 1. The lengths that its header names, before the reader reads by them.
//! 2. The checksum, over all of the section.
//! 3. Number and chain, which say that it is the next section.
//! 4. Its contents.
//!
//! So an accident is reported as damage at a byte; only a forged archive reaches the last check.

use crate::codec::Packer;
use crate::error::ArchiveError;
use crate::manifest::Manifest;
use cenote_layout::archive::{
    ArchiveEntry, ArchiveHeader, CHUNK_LEN_MAX, Codec, FLAG_SKIP, INCOMPAT_SEALED, INCOMPAT_TORN,
    MANIFEST_LEN_MAX, SECTION_MAGIC, SectionHeader, SectionKind, Totals, is_chunk, section_sum,
};
use cenote_layout::header::read;
use std::collections::BTreeSet;
use std::io::{self, BufReader, Read};
use zerocopy::{FromZeros as _, IntoBytes as _};

/// Whole pages of a puddle's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk<'a> {
    /// The puddle's place in the manifest.
    pub puddle: usize,
    /// Where they lie in it.
    pub offset: u64,
    /// What they hold.
    pub bytes: &'a [u8],
}

/// What comes next in an archive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ArchiveStep<'a> {
    /// Bytes of a puddle.
    Chunk(Chunk<'a>),
    /// A section of a later release, which says itself that it can be left out. There may be any
    /// number of these: the caller counts them, or decides between them whether to go on.
    Skipped,
    /// The end of an archive that was whole.
    End,
}

/// Reads an archive from a stream.
pub struct ArchiveReader<R: Read> {
    input: BufReader<R>,
    /// Bytes read.
    at: u64,
    chain: u64,
    totals: Totals,
    codec: Codec,
    packer: Packer,
    payload: Vec<u8>,
    unpacked: Vec<u8>,
    place: ChunkPlace,
    manifest: Manifest,
    ended: bool,
}

impl<R: Read> core::fmt::Debug for ArchiveReader<R> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ArchiveReader").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<R: Read> ArchiveReader<R> {
    /// Reads and checks header and manifest.
    ///
    /// # Errors
    /// It is no archive, or one of a later release, or damaged, or nothing that can be.
    pub fn open(input: R) -> Result<Self, ArchiveError> {
        let mut input = BufReader::with_capacity(64 << 10, input);
        let mut bytes = [0; size_of::<ArchiveHeader>()];
        let (got, failed) = read_full(&mut input, &mut bytes);
        if let Some(source) = failed {
            return Err(ArchiveError::Io { what: "read", at: got as u64, source });
        }
        let header = read::<ArchiveHeader>(bytes.get(..got).unwrap_or_default(), false)?;
        let codec = Codec::from_u32(header.codec).unwrap_or_default();
        let manifest = Manifest {
            archive: header.archive,
            store: header.store,
            window: (header.window_base, header.window_len),
            made_at_s: header.made_at_s,
            pools: Vec::new(),
            torn: BTreeSet::new(),
            puddles: Vec::new(),
            types: Vec::new(),
            left: Vec::new(),
        };
        let mut reader = Self {
            input,
            at: got as u64,
            chain: header.prefix.checksum,
            totals: Totals::default(),
            codec,
            packer: Packer::new(codec)?,
            payload: Vec::new(),
            unpacked: Vec::new(),
            place: ChunkPlace::new(&manifest),
            manifest,
            ended: false,
        };
        reader.read_manifest(&header)?;
        Ok(reader)
    }

    /// What the archive holds.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Bytes read so far.
    #[must_use]
    pub fn bytes_read(&self) -> u64 {
        self.at
    }

    /// How chunks are packed.
    #[must_use]
    pub fn codec(&self) -> Codec {
        self.codec
    }

    /// Counts of the part read so far: of the whole archive when [`ArchiveReader::next_chunk`] has
    /// returned `None`.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.totals
    }

    fn read_manifest(&mut self, header: &ArchiveHeader) -> Result<(), ArchiveError> {
        // Lengths are not believed: nothing is reserved by them.
        let counts = [header.pools, header.puddles, header.types, header.left];
        let mut manifest_len = 0;
        for (kind, count) in counts.into_iter().enumerate() {
            for _ in 0..count {
                let (start, section) = loop {
                    let (start, section, known) = self.section()?;
                    // Skipped items count as well, so that a manifest of nothing else has an end.
                    manifest_len += u64::from(section.len)
                        + size_of::<SectionHeader>() as u64 * u64::from(!known);
                    if manifest_len > MANIFEST_LEN_MAX {
                        return Err(ArchiveError::ManifestLen {
                            len: manifest_len,
                            max: MANIFEST_LEN_MAX,
                        });
                    }
                    if known {
                        break (start, section);
                    }
                };
                if section.kind != SectionKind::Entry as u32 {
                    return Err(order(
                        start,
                        "the manifest has fewer entries than the header says",
                    ));
                }
                let Ok((entry, [])) = postcard::take_from_bytes::<ArchiveEntry>(&self.payload)
                else {
                    return Err(order(start, "no entry of a manifest"));
                };
                match (kind, entry) {
                    (0, ArchiveEntry::Pool(pool)) => self.manifest.pools.push(pool),
                    (0, ArchiveEntry::TornPool(pool)) => {
                        self.manifest.torn.insert(pool.id);
                        self.manifest.pools.push(pool);
                    }
                    (1, ArchiveEntry::Puddle(puddle)) => self.manifest.puddles.push(puddle),
                    (2, ArchiveEntry::Type(record)) => {
                        // Before it is kept: one that passes is no larger than its bytes allow.
                        record.check().map_err(|error| {
                            ArchiveError::manifest(format!("type {}", record.id), error.to_string())
                        })?;
                        self.manifest.types.push(record);
                    }
                    (3, ArchiveEntry::Left(entry)) => self.manifest.left.push(entry),
                    _ => return Err(order(start, "entries of the manifest are out of order")),
                }
            }
        }
        self.manifest.check()?;
        if self.manifest.is_sealed() != (header.prefix.incompat & INCOMPAT_SEALED != 0) {
            let detail = "the header and the pools disagree about their protection at rest";
            return Err(ArchiveError::manifest("pools", detail));
        }
        if self.manifest.torn.is_empty() == (header.prefix.incompat & INCOMPAT_TORN != 0) {
            let detail = "the header and the pools disagree about which of them may be torn";
            return Err(ArchiveError::manifest("pools", detail));
        }
        self.place = ChunkPlace::new(&self.manifest);
        Ok(())
    }

    /// The next chunk; `None` at the end of an archive that was whole.
    ///
    /// # Errors
    /// The archive is damaged, cut short, or not as any release writes it. Nothing that was read of
    /// it is to be kept.
    pub fn next_chunk(&mut self) -> Result<Option<Chunk<'_>>, ArchiveError> {
        loop {
            let (start, section) = match self.next_section()? {
                Next::Chunk(start, section) => (start, section),
                Next::Skipped => continue,
                Next::End => return Ok(None),
            };
            return self.unpacked(start, &section).map(Some);
        }
    }

    /// The same, section by section: for callers that act between skipped sections.
    ///
    /// # Errors
    /// As [`ArchiveReader::next_chunk`].
    pub fn step(&mut self) -> Result<ArchiveStep<'_>, ArchiveError> {
        Ok(match self.next_section()? {
            Next::Chunk(start, section) => ArchiveStep::Chunk(self.unpacked(start, &section)?),
            Next::Skipped => ArchiveStep::Skipped,
            Next::End => ArchiveStep::End,
        })
    }

    fn next_section(&mut self) -> Result<Next, ArchiveError> {
        if self.ended {
            return Ok(Next::End);
        }
        let (start, section, known) = self.section()?;
        if !known {
            return Ok(Next::Skipped);
        }
        if section.kind == SectionKind::End as u32 {
            return self.end(start).map(|()| Next::End);
        }
        Ok(Next::Chunk(start, section))
    }

    /// The chunk of a section, whose payload was read.
    fn unpacked(&mut self, start: u64, section: &SectionHeader) -> Result<Chunk<'_>, ArchiveError> {
        if section.kind != SectionKind::Chunk as u32 {
            return Err(order(start, "the manifest has more entries than the header says"));
        }
        let codec = Codec::from_u32(section.codec);
        let len = u64::from(section.len);
        self.place.advance(start, section.puddle, section.offset, len)?;
        let bad = |detail| {
            let (puddle, offset) = (section.puddle, section.offset);
            ArchiveError::Chunk { at: start, puddle, offset, len, detail }
        };
        let bytes = match codec {
            Some(Codec::None) if section.stored_len == section.len => self.payload.as_slice(),
            Some(Codec::Zstd) if self.codec == Codec::Zstd && section.stored_len < section.len => {
                self.unpacked.resize(section.len as usize, 0);
                if !self.packer.unpack(&self.payload, &mut self.unpacked) {
                    return Err(bad("it is not packed, or unpacks to another length"));
                }
                self.unpacked.as_slice()
            }
            _ => return Err(bad("its lengths do not fit the way in which it is packed")),
        };
        self.totals.chunks += 1;
        self.totals.bytes += len;
        self.totals.stored_bytes += u64::from(section.stored_len);
        Ok(Chunk { puddle: section.puddle as usize, offset: section.offset, bytes })
    }

    fn end(&mut self, start: u64) -> Result<(), ArchiveError> {
        let Ok((said, [])) = postcard::take_from_bytes::<Totals>(&self.payload) else {
            return Err(order(start, "no end of an archive"));
        };
        // The end counts those before it.
        let found = Totals { sections: self.totals.sections - 1, ..self.totals };
        if said != found {
            return Err(order(start, "its end counts other sections than there are"));
        }
        self.totals = found;
        self.ended = true;
        let (got, failed) = read_full(&mut self.input, &mut [0]);
        match failed {
            Some(source) => Err(ArchiveError::Io { what: "read", at: self.at, source }),
            None if got > 0 => Err(ArchiveError::Trailing { at: self.at }),
            None => Ok(()),
        }
    }

    /// Reads the next section; its payload is in `self.payload`. `false`: this release does not
    /// know it, and it is to be skipped.
    fn section(&mut self) -> Result<(u64, SectionHeader, bool), ArchiveError> {
        let start = self.at;
        let mut section = SectionHeader::new_zeroed();
        self.fill(section.as_mut_bytes(), "the start of a section")?;
        let damaged = |detail| Err(ArchiveError::Damaged { at: start, detail });
        if section.magic != SECTION_MAGIC {
            return damaged("no section begins here");
        }
        if section.stored_len > CHUNK_LEN_MAX || section.len > CHUNK_LEN_MAX {
            return damaged("a section is longer than any can be");
        }
        let mut payload = core::mem::take(&mut self.payload);
        payload.resize(section.stored_len as usize, 0);
        let filled = self.fill(&mut payload, "a section");
        self.payload = payload;
        filled?;
        if section_sum(&section, &self.payload) != section.checksum {
            return damaged("the checksum does not fit");
        }
        if section.number != self.totals.sections || section.chain != self.chain {
            return Err(order(start, "a section is missing, there twice, or of another archive"));
        }
        self.chain = section.checksum;
        self.totals.sections += 1;
        match SectionKind::from_u32(section.kind) {
            None if section.flags & FLAG_SKIP != 0 => return Ok((start, section, false)),
            None => return Err(ArchiveError::UnknownSection { kind: section.kind, at: start }),
            Some(_) if section.flags != 0 => {
                return Err(order(start, "a section has unknown flags"));
            }
            Some(SectionKind::Chunk) => {}
            Some(SectionKind::Entry | SectionKind::End) => {
                let fits = (section.puddle, section.offset, section.codec) == (0, 0, 0)
                    && section.len == section.stored_len;
                if !fits {
                    return Err(order(start, "a section says what only a chunk can"));
                }
            }
        }
        Ok((start, section, true))
    }

    fn fill(&mut self, buf: &mut [u8], inside: &'static str) -> Result<(), ArchiveError> {
        let (got, failed) = read_full(&mut self.input, buf);
        self.at += got as u64;
        match failed {
            Some(source) => Err(ArchiveError::Io { what: "read", at: self.at, source }),
            None if got < buf.len() => Err(ArchiveError::Truncated { at: self.at, inside }),
            None => Ok(()),
        }
    }
}

/// What the next section is.
enum Next {
    Chunk(u64, SectionHeader),
    Skipped,
    End,
}

fn order(at: u64, detail: &'static str) -> ArchiveError {
    ArchiveError::Order { at, detail }
}

/// Reads until the buffer is full, the stream ends or fails.
fn read_full(input: &mut impl Read, buf: &mut [u8]) -> (usize, Option<io::Error>) {
    let mut done = 0;
    while let Some(rest) = buf.get_mut(done..).filter(|rest| !rest.is_empty()) {
        match input.read(rest) {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (done, Some(error)),
        }
    }
    (done, None)
}

/// Where the next chunk may lie. Chunks rise by puddle and by offset, so that none covers what
/// another has.
#[derive(Clone, Debug)]
pub(crate) struct ChunkPlace {
    /// From where to where, by puddle.
    extents: Vec<(u64, u64)>,
    puddle: u32,
    end: u64,
}

impl ChunkPlace {
    pub(crate) fn new(manifest: &Manifest) -> Self {
        let extents = manifest.puddles.iter().map(|puddle| manifest.extent_of(puddle)).collect();
        Self { extents, puddle: 0, end: 0 }
    }

    /// A chunk comes next.
    pub(crate) fn advance(
        &mut self,
        at: u64,
        puddle: u32,
        offset: u64,
        len: u64,
    ) -> Result<(), ArchiveError> {
        let bad = |detail| Err(ArchiveError::Chunk { at, puddle, offset, len, detail });
        let Some(&(from, to)) = self.extents.get(puddle as usize) else {
            return bad("there is no such puddle");
        };
        if !is_chunk(offset, len) {
            return bad("it is not whole pages, or more than a chunk may have");
        }
        if offset < from || offset.checked_add(len).is_none_or(|end| end > to) {
            return bad("it is not in the puddle's body");
        }
        if puddle < self.puddle || (puddle == self.puddle && offset < self.end) {
            return bad("it comes after one that it belongs before");
        }
        (self.puddle, self.end) = (puddle, offset + len);
        Ok(())
    }
}

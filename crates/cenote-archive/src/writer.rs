//! Writes an archive: the manifest at once, then chunks in order, then the end.
//!
//! The writer refuses what the reader would. It does not know whether its bytes are on a disk:
//! the caller, which gave it the stream, syncs that.

use crate::codec::Packer;
use crate::error::ArchiveError;
use crate::manifest::Manifest;
use crate::reader::ChunkPlace;
use cenote_layout::archive::{
    ArchiveHeader, CHUNK_LEN_MAX, Codec, INCOMPAT_SEALED, INCOMPAT_TORN, MANIFEST_LEN_MAX,
    SECTION_MAGIC, SectionHeader, SectionKind, Totals, section_sum,
};
use cenote_layout::header::{Header as _, HeaderPrefix, seal};
use std::io::{self, IoSlice, Write};
use zerocopy::IntoBytes as _;

/// Writes an archive to a stream.
pub struct ArchiveWriter<W: Write> {
    out: W,
    at: u64,
    chain: u64,
    totals: Totals,
    codec: Codec,
    packer: Packer,
    packed: Vec<u8>,
    place: ChunkPlace,
}

impl<W: Write> core::fmt::Debug for ArchiveWriter<W> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ArchiveWriter").field("at", &self.at).finish_non_exhaustive()
    }
}

impl<W: Write> ArchiveWriter<W> {
    /// Begins an archive: writes its header and its manifest.
    ///
    /// # Errors
    /// A manifest that no reader would take; a codec that this program is built without; the
    /// stream.
    pub fn begin(out: W, manifest: &Manifest, codec: Codec) -> Result<Self, ArchiveError> {
        manifest.check()?;
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        let mut header = ArchiveHeader {
            prefix: HeaderPrefix::new(ArchiveHeader::MAGIC, size_of::<ArchiveHeader>() as u32),
            archive: manifest.archive,
            store: manifest.store,
            window_base: manifest.window.0,
            window_len: manifest.window.1,
            made_at_s: manifest.made_at_s,
            codec: codec as u32,
            pools: count(manifest.pools.len()),
            puddles: count(manifest.puddles.len()),
            types: count(manifest.types.len()),
            left: count(manifest.left.len()),
            reserved0: 0,
            reserved: [0; 128],
        };
        if manifest.is_sealed() {
            header.prefix.incompat |= INCOMPAT_SEALED;
        }
        if !manifest.torn.is_empty() {
            header.prefix.incompat |= INCOMPAT_TORN;
        }
        seal(&mut header);
        header.check_fields()?;
        let mut writer = Self {
            out,
            at: 0,
            chain: header.prefix.checksum,
            totals: Totals::default(),
            codec,
            packer: Packer::new(codec)?,
            packed: Vec::new(),
            place: ChunkPlace::new(manifest),
        };
        writer.write(&[header.as_bytes()])?;
        let mut manifest_len = 0;
        for entry in manifest.entries() {
            let payload = postcard::to_allocvec(&entry).unwrap_or_default();
            manifest_len += payload.len() as u64;
            if manifest_len > MANIFEST_LEN_MAX || payload.len() > CHUNK_LEN_MAX as usize {
                return Err(ArchiveError::ManifestLen { len: manifest_len, max: MANIFEST_LEN_MAX });
            }
            writer.section(
                SectionKind::Entry,
                (0, 0),
                Codec::None,
                payload.len() as u32,
                &payload,
            )?;
        }
        Ok(writer)
    }

    /// Writes whole pages of the body of a puddle ([`Manifest::extent_of`]), which is named by its
    /// place in the manifest: behind what was written before, by puddle and by offset.
    /// At most [`CHUNK_LEN_MAX`] bytes. Pages that are not written are zero.
    ///
    /// # Errors
    /// [`ArchiveError::Chunk`] for bytes that cannot be there; the stream.
    pub fn chunk(&mut self, puddle: u32, offset: u64, bytes: &[u8]) -> Result<(), ArchiveError> {
        self.place.advance(self.at, puddle, offset, bytes.len() as u64)?;
        let len = bytes.len() as u32;
        let mut packed = core::mem::take(&mut self.packed);
        let written = match self.packer.pack(self.codec, bytes, &mut packed) {
            Some(short) => {
                self.totals.stored_bytes += short.len() as u64;
                self.section(SectionKind::Chunk, (puddle, offset), self.codec, len, short)
            }
            None => {
                self.totals.stored_bytes += u64::from(len);
                self.section(SectionKind::Chunk, (puddle, offset), Codec::None, len, bytes)
            }
        };
        self.packed = packed;
        self.totals.chunks += 1;
        self.totals.bytes += u64::from(len);
        written
    }

    /// Writes the end, and gives the stream back with what there was, and the archive's bytes.
    ///
    /// # Errors
    /// The stream.
    pub fn finish(mut self) -> Result<(W, Totals, u64), ArchiveError> {
        let totals = self.totals;
        let payload = postcard::to_allocvec(&totals).unwrap_or_default();
        self.section(SectionKind::End, (0, 0), Codec::None, payload.len() as u32, &payload)?;
        let at = self.at;
        self.out.flush().map_err(|source| ArchiveError::Io { what: "write", at, source })?;
        Ok((self.out, totals, at))
    }

    /// Bytes written so far.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.at
    }

    fn section(
        &mut self,
        kind: SectionKind,
        (puddle, offset): (u32, u64),
        codec: Codec,
        len: u32,
        payload: &[u8],
    ) -> Result<(), ArchiveError> {
        let mut header = SectionHeader {
            magic: SECTION_MAGIC,
            number: self.totals.sections,
            kind: kind as u32,
            flags: 0,
            puddle,
            codec: codec as u32,
            offset,
            len,
            stored_len: payload.len() as u32,
            chain: self.chain,
            checksum: 0,
        };
        header.checksum = section_sum(&header, payload);
        self.chain = header.checksum;
        self.totals.sections += 1;
        self.write(&[header.as_bytes(), payload])
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<(), ArchiveError> {
        write_all(&mut self.out, parts).map_err(|source| ArchiveError::Io {
            what: "write",
            at: self.at,
            source,
        })?;
        self.at += parts.iter().map(|part| part.len() as u64).sum::<u64>();
        Ok(())
    }
}

/// Writes parts one after the other, by one call where the stream can do that.
fn write_all(out: &mut impl Write, parts: &[&[u8]]) -> io::Result<()> {
    let mut slices: Vec<IoSlice<'_>> = parts.iter().map(|part| IoSlice::new(part)).collect();
    let mut rest = slices.as_mut_slice();
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match out.write_vectored(rest) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => IoSlice::advance_slices(&mut rest, n),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

//! Export: what is in pools, as it lies in their files.
//!
//! | pool | files that are read |
//! | --- | --- |
//! | direct mode | the puddles' files: no process has them open and nothing is left to replay |
//! | shadowed mode | the shadows: a closed store has psynced them, so shadow and primary are the |
//! | | same; after a crash of processes a writable open has recovered them |
//! | of a daemon's store | the files that the daemon hands out, to be read; no client writes the |
//! | | pool while this session lasts |
//!
//! A session that may only look cannot recover, and refuses what a crash left.
//!
//! Files are read from front to back, [`STEP`] bytes at a time, where they have data; what is zero
//! is left out. If the store has no other pool than those that are taken, no pointer can lead to
//! another one, and none is looked at: then the cost is that of a copy.
//!
//! A pool that is protected at rest goes as it lies there, sealed: no key is needed, and the
//! archive holds nothing that the files do not. Its contents are read only if the store was opened
//! with a key, which then has to be the pool's. Without a key the export takes all types of the
//! store, and does not know where the pool's pointers lead.

use super::scan::{
    Body, FoundReferences, PuddleScan, ScanWorld, closure, described_apart, is_zero,
};
use super::{ArchivingError, OnArchiving, tell};
use cenote_archive::{ArchiveWriter, Codec, LeftEntry, Manifest, PoolEntry, PuddleEntry, Totals};
use cenote_heap::PoolImages;
use cenote_layout::PAGE_SIZE;
use cenote_layout::archive::CHUNK_LEN_MAX;
use cenote_layout::catalog::{AtRest, LeaseRecord, PoolRecord, PuddleRecord};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::types::TypeRecord;
use cenote_medium::FileHandle;
use cenote_store::relocate::QuiescentPool;
use cenote_store::{Access, PoolInfo, Store, StoreError};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

/// Bytes that are read at once, and most of a chunk.
const STEP: u64 = CHUNK_LEN_MAX as u64;
/// Pages of zeros that are worth a chunk's end.
const ZERO_PAGES_MIN: usize = 8;

/// How pools are exported.
#[derive(Default)]
pub struct ExportOptions<'a> {
    /// How chunks are packed.
    pub codec: Codec,
    /// Pools that pointers lead to are taken along, and those that theirs lead to.
    pub with_targets: bool,
    /// Told after each step.
    pub progress: Option<OnArchiving<'a>>,
}

impl core::fmt::Debug for ExportOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        let mut f = f.debug_struct("ExportOptions");
        f.field("codec", &self.codec)
            .field("with_targets", &self.with_targets)
            .finish_non_exhaustive()
    }
}

/// What was exported.
#[derive(Clone, Debug)]
pub struct Exported {
    /// The archive's identity.
    pub archive: Uuid,
    /// Names of the pools, by number.
    pub pools: Vec<String>,
    /// Puddles of them.
    pub puddles: u64,
    /// Bytes of those.
    pub puddle_bytes: u64,
    /// What the archive holds of them.
    pub totals: Totals,
    /// Bytes of the archive.
    pub archive_bytes: u64,
    /// Pools that pointers lead to and that were not taken along: in another store these pointers
    /// dangle.
    pub left: Vec<LeftEntry>,
    /// Names of pools that are protected at rest and could not be looked into, because the store
    /// was opened without a key: where their pointers lead is not known.
    pub unseen: Vec<String>,
}

/// Writes an archive of pools to a stream, which is flushed and not synced.
///
/// # Errors
/// A pool is not known, open, left by a crash, to be traced or damaged; a file cannot be read; the
/// stream. What the stream got is then no archive.
///
/// # Safety
/// No thread opens one of the pools for writing before this returns. (Other processes are kept out
/// by the store's lock.)
pub unsafe fn export<W: Write>(
    store: &Store,
    names: &[&str],
    out: W,
    options: ExportOptions<'_>,
) -> Result<(W, Exported), ArchivingError> {
    let ExportOptions { codec, with_targets, mut progress } = options;
    let infos = store.pools();
    // SAFETY: the caller's.
    let taken = unsafe { TakenPools::of(store, &infos, names, with_targets, &mut progress) }?;
    let manifest = taken.manifest(store, &infos)?;
    let of = manifest.bytes();
    let mut writer = ArchiveWriter::begin(out, &manifest, codec)?;
    let (mut number, mut done, mut buffer) = (0, 0, vec![0; STEP as usize]);
    for source in taken.sources.values() {
        for (puddle, file) in &source.puddles {
            // SAFETY: it is read only, by the lines below, and dropped with this round.
            let file = unsafe { store.open_quiescent(puddle, file) }?;
            let extent = manifest.extent_of(&puddle_entry(puddle));
            write_puddle(&mut writer, number, extent, &file, &mut buffer, &mut |at| {
                tell(&mut progress, done + at.min(puddle.size), of)
            })?;
            number += 1;
            done += puddle.size;
        }
    }
    let (out, totals, archive_bytes) = writer.finish()?;
    let exported = Exported {
        archive: manifest.archive,
        pools: manifest.pools.iter().map(|pool| pool.name.clone()).collect(),
        puddles: manifest.puddles.len() as u64,
        puddle_bytes: of,
        totals,
        archive_bytes,
        left: manifest.left,
        unseen: taken.unseen,
    };
    Ok((out, exported))
}

/// The name of a pool, if the store has it.
fn name_of(infos: &[PoolInfo], id: PoolId) -> Option<&str> {
    infos.iter().find(|info| info.record.id == id).map(|info| info.record.name.as_str())
}

/// The pools that are taken along, and what their pointers say.
#[derive(Default)]
struct TakenPools {
    sources: BTreeMap<PoolId, QuiescentPool>,
    found: FoundReferences,
    /// Names of those that could not be looked into.
    unseen: Vec<String>,
}

impl TakenPools {
    /// Takes the pools of these names, and those that their pointers lead to if `with_targets` says
    /// so.
    ///
    /// # Safety
    /// As [`export`].
    unsafe fn of(
        store: &Store,
        infos: &[PoolInfo],
        names: &[&str],
        with_targets: bool,
        progress: &mut Option<OnArchiving<'_>>,
    ) -> Result<Self, ArchivingError> {
        let all_puddles = store.places_of_pools()?;
        let type_of = |id| store.type_record(id);
        let world = ScanWorld::new(&type_of, &all_puddles);
        let mut todo = Vec::new();
        for name in names {
            let info = infos.iter().find(|info| info.record.name == *name);
            let info = info.ok_or_else(|| StoreError::PoolUnknown { name: (*name).into() })?;
            todo.push(info.record.id);
        }
        if todo.is_empty() {
            return Err(ArchivingError::NoPool);
        }
        let wanted: BTreeSet<PoolId> = todo.iter().copied().collect();
        // Where there is no other pool, no pointer leads to one.
        let pointers = infos.iter().any(|info| !wanted.contains(&info.record.id));
        let mut taken = Self::default();
        while let Some(id) = todo.pop() {
            if taken.sources.contains_key(&id) {
                continue;
            }
            // A region pointer may still say the number of a pool that was removed.
            let Some(name) = name_of(infos, id) else { continue };
            let source = source(store, name, id)?;
            if source.at_rest != AtRest::None && !store.has_key_for(source.at_rest) {
                if with_targets {
                    return Err(ArchivingError::NoKey { pool: name.into() });
                }
                taken.unseen.push(name.to_owned());
                taken.sources.insert(id, source);
                continue;
            }
            // SAFETY: the caller's.
            unsafe { taken.look_into(store, &source, (&world, pointers), progress) }?;
            taken.sources.insert(id, source);
            if with_targets {
                let foreign = taken.found.foreign.keys();
                todo.extend(foreign.filter(|id| !taken.sources.contains_key(id)));
            }
        }
        Ok(taken)
    }

    /// Finds what the pointers of a pool say, where `pointers` says that there are any to look for.
    ///
    /// # Safety
    /// As [`export`].
    unsafe fn look_into(
        &mut self,
        store: &Store,
        source: &QuiescentPool,
        (world, pointers): (&ScanWorld<'_>, bool),
        progress: &mut Option<OnArchiving<'_>>,
    ) -> Result<(), ArchivingError> {
        let sealed = source.at_rest != AtRest::None;
        let look = || store.open_pool(&source.record.name, Access::ReadOnly);
        let opened = sealed.then(look).transpose()?;
        let open = |puddle: &PuddleRecord| {
            // They come by number, without a gap.
            let name = source.puddles.get(puddle.index as usize).map_or("", |(_, name)| name);
            // SAFETY: it is read only, by the lines below, and dropped before this returns.
            unsafe { store.open_quiescent(puddle, name) }
        };
        let read = |(puddle, file): (&PuddleRecord, &FileHandle), offset: u64, bytes: &mut [u8]| {
            match &opened {
                Some(pool) => {
                    // SAFETY: the caller lets no thread open the pool for writing.
                    Ok(unsafe { pool.read_at(puddle.addr.saturating_add(offset), bytes) }?)
                }
                None => Ok(file.read_exact_at(offset, bytes)?),
            }
        };
        let puddles: Vec<PuddleRecord> = source.puddles.iter().map(|(puddle, _)| *puddle).collect();
        let pool = (source.record.name.as_str(), source.record.heap);
        let list = described_apart(pool, &puddles, &mut |puddle, offset, bytes| {
            read((puddle, &open(puddle)?), offset, bytes)
        })?;
        let images = PoolImages::new(source.record.heap, list.as_ref());
        for puddle in &puddles {
            let file = open(puddle)?;
            let bytes = |offset: u64, bytes: &mut [u8]| read((puddle, &file), offset, bytes);
            let body = Body { bytes: &bytes, puddle, images };
            PuddleScan { body, world, pointers }.run(&mut self.found)?;
            tell(progress, 0, 0)?;
        }
        Ok(())
    }

    /// Pools that pointers lead to and that are not taken along.
    fn left(&self, infos: &[PoolInfo]) -> Vec<LeftEntry> {
        let left = self.found.foreign.iter().filter(|(id, _)| !self.sources.contains_key(id));
        left.map(|(id, (pointers, from_type))| {
            let removed = || format!("(removed, number {id})");
            let name = name_of(infos, *id).map_or_else(removed, String::from);
            LeftEntry { id: *id, name, pointers: *pointers, from_type: *from_type }
        })
        .collect()
    }

    /// What the archive says of itself.
    fn manifest(&self, store: &Store, infos: &[PoolInfo]) -> Result<Manifest, ArchivingError> {
        let sources = &self.sources;
        let puddles = sources.values().flat_map(|source| &source.puddles);
        Ok(Manifest {
            archive: store.medium().random_uuid()?,
            store: store.uuid(),
            window: store.window(),
            made_at_s: store.medium().now_s(),
            pools: sources
                .values()
                .map(|source| pool_entry(&source.record, source.at_rest))
                .collect(),
            torn: sources.iter().filter(|(_, source)| source.torn).map(|(id, _)| *id).collect(),
            puddles: puddles.map(|(puddle, _)| puddle_entry(puddle)).collect(),
            types: self.types(store),
            left: self.left(infos),
        })
    }

    /// The types that values of the pools may have.
    fn types(&self, store: &Store) -> Vec<TypeRecord> {
        if self.unseen.is_empty() {
            let known = store.types().into_iter().map(|record| (record.id, record)).collect();
            return closure(&self.found.types, &known);
        }
        // Which of them are used is not known.
        let mut all: Vec<TypeRecord> =
            store.types().into_iter().map(|record| (*record).clone()).collect();
        all.sort_by_key(|record| record.id);
        all
    }
}

fn pool_entry(pool: &PoolRecord, at_rest: AtRest) -> PoolEntry {
    PoolEntry {
        id: pool.id,
        name: pool.name.clone(),
        mode: pool.mode,
        heap: pool.heap,
        at_rest,
        puddle_size: pool.puddle_size,
        size_max: pool.size_max,
        permissions: pool.permissions,
        created_at_s: pool.created_at_s,
    }
}

fn puddle_entry(puddle: &PuddleRecord) -> PuddleEntry {
    PuddleEntry {
        uuid: puddle.uuid,
        pool: puddle.pool,
        index: puddle.index,
        addr: puddle.addr,
        size: puddle.size,
    }
}

/// A pool whose files are the truth, or why it is none.
fn source(store: &Store, name: &str, id: PoolId) -> Result<QuiescentPool, ArchivingError> {
    // Leases that a crash left, and that this session cannot end. A session that may write has
    // ended them.
    let left =
        |lease: &LeaseRecord| lease.pool == id && lease.writable && lease.client != store.client();
    if !store.is_writable() && store.lease_records().iter().any(left) {
        return Err(ArchivingError::NotRecovered { pool: name.into() });
    }
    if store.pools_due().contains(&id) {
        return Err(ArchivingError::TraceDue { pool: name.into() });
    }
    let pool = store.quiescent_pool(name)?;
    pool.refuse_to_archive()?;
    let whole =
        pool.puddles.iter().enumerate().all(|(at, (puddle, _))| puddle.index as usize == at);
    if pool.puddles.is_empty() || !whole {
        let detail = "the catalog lacks records of its puddles".into();
        return Err(ArchivingError::Damaged { pool: name.into(), detail });
    }
    Ok(pool)
}

/// Writes what is not zero of a part of a puddle's file.
fn write_puddle<W: Write>(
    writer: &mut ArchiveWriter<W>,
    number: u32,
    (from, end): (u64, u64),
    file: &FileHandle,
    buffer: &mut [u8],
    tell: &mut dyn FnMut(u64) -> Result<(), ArchivingError>,
) -> Result<(), ArchivingError> {
    let mut at = from;
    while let Some((from, to)) = file.next_data(at, end)? {
        at = from;
        while at < to {
            let step = (to - at).min(STEP);
            let bytes = buffer.get_mut(..step as usize).unwrap_or_default();
            file.read_exact_at(at, bytes)?;
            write_pages(writer, number, at, bytes)?;
            at += step;
            tell(at)?;
        }
    }
    tell(end)
}

/// Writes the pages of `bytes` that are not zero; a few that are between them go along.
fn write_pages<W: Write>(
    writer: &mut ArchiveWriter<W>,
    number: u32,
    offset: u64,
    bytes: &[u8],
) -> Result<(), ArchivingError> {
    let page = PAGE_SIZE as usize;
    let (mut start, mut end, mut zeros) = (0, 0, 0);
    for (i, bytes_of) in bytes.chunks(page).enumerate() {
        if is_zero(bytes_of) {
            zeros += 1;
            continue;
        }
        if start < end && zeros >= ZERO_PAGES_MIN {
            writer.chunk(number, offset + start as u64, &bytes[start..end])?;
            start = i * page;
        } else if start == end {
            start = i * page;
        }
        end = (i + 1) * page;
        zeros = 0;
    }
    if start < end {
        writer.chunk(number, offset + start as u64, &bytes[start..end])?;
    }
    Ok(())
}

//! Import: an archive becomes pools of a store, or nothing.
//!
//! States, which are those of [`cenote_store::relocate::ImportManifest`]'s import: (1) header and manifest are read and checked, types are compared with the store's, names and room looked for: nothing
//! has changed; (2) each puddle gets a file under a new identity, which no record names, and what the archive holds of it; (3) the archive's end is read, which says that
//! all of it was whole; (4) files are synced, and **the catalog's batch commits**. What ends an import before that leaves files that nobody knows: they are removed at
//! once, or by the next writable open.
//!
//! An archive is believed as far as its checksums and rules go. What is in the blocks is its author's: whoever imports an archive trusts its author as one whose store is opened.

use super::{OnShip, ShipError, ShipProgress};
use cenote_archive::{ArchiveReader, Manifest, PoolEntry, PuddleEntry};
use cenote_layout::catalog::PoolMode;
use cenote_layout::id::PoolId;
use cenote_medium::{FileHandle, MediumError};
use cenote_store::relocate::{Import, ImportManifest, ImportPool, ImportPuddle, Imported};
use cenote_store::{Store, StoreError};
use std::io::Read;

/// How an archive is imported.
#[derive(Default)]
pub struct ImportOptions<'a> {
    /// What its pools are to be called, by number: one name for each. Empty: as they were.
    pub names: Vec<String>,
    /// Told after each step.
    pub progress: Option<OnShip<'a>>,
}

impl core::fmt::Debug for ImportOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImportOptions").field("names", &self.names).finish_non_exhaustive()
    }
}

/// What was in an archive, and what became of it.
#[derive(Clone, Debug)]
pub struct Shipped {
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes of it.
    pub archive_bytes: u64,
    /// The pools in this store, in the manifest's order.
    pub imported: Imported,
}

/// An archive that is read and checked, in files that nobody knows yet. Dropped, it leaves nothing.
#[derive(Debug)]
pub struct Unpacked {
    import: Import,
    manifest: Manifest,
    archive_bytes: u64,
}

impl Unpacked {
    /// Makes its pools part of the store, under new identities. They keep their addresses where those are free; the pointers of others are rewritten
    /// when they are first touched. Durable on return.
    ///
    /// # Errors
    /// A name that was taken meanwhile, no room in the window any more, the medium. Nothing was imported then.
    pub fn commit(self) -> Result<Shipped, ShipError> {
        let Self { import, manifest, archive_bytes } = self;
        let imported = import.commit()?;
        Ok(Shipped { manifest, archive_bytes, imported })
    }
}

/// Reads an archive to its end, checks all of it, and puts its puddles into files of a store that nobody knows before [`Unpacked::commit`].
///
/// # Errors
/// The archive: see [`cenote_archive::ArchiveError`]. The store: a name that is taken, a type with another layout, no room in the window or on the disk. Nothing is left then.
pub fn unpack<R: Read>(store: &Store, input: R, options: ImportOptions<'_>) -> Result<Unpacked, ShipError> {
    let ImportOptions { names, mut progress } = options;
    let mut reader = ArchiveReader::open(input)?;
    let manifest = reader.manifest().clone();
    let mut import = store.begin_import(wanted(&manifest, names)?)?;
    let of = manifest.bytes();
    // Before the first file, so that a disk that is too small is not filled first. It may become full all the same.
    let copies = |puddle: &PuddleEntry| match manifest.pool(puddle.pool).map(|pool| pool.mode) {
        Some(PoolMode::Shadowed) => 2 * puddle.size,
        _ => puddle.size,
    };
    let wanted = manifest.puddles.iter().map(copies).sum();
    let no_space = || ShipError::NoSpace { wanted, free: store.medium().free_bytes() };
    let failed = |error: StoreError| match error {
        StoreError::Medium(MediumError::NoSpace { .. }) => no_space(),
        error => error.into(),
    };
    if wanted > store.medium().free_bytes() {
        return Err(no_space());
    }
    let (mut open, mut before, mut next): (Option<FileHandle>, u64, usize) = (None, 0, 0);
    while let Some(chunk) = reader.next_chunk()? {
        // Puddles come in order; one without chunks is made when a later one comes.
        while next <= chunk.puddle {
            before += next.checked_sub(1).and_then(|at| manifest.puddles.get(at)).map_or(0, |p| p.size);
            open = Some(import.create(next).map_err(failed)?);
            next += 1;
        }
        if let Some(file) = &open {
            file.write_at(chunk.offset, chunk.bytes).map_err(|error| failed(error.into()))?;
        }
        let done = before + chunk.offset + chunk.bytes.len() as u64;
        if let Some(progress) = &mut progress
            && progress(ShipProgress { done, of }).is_break()
        {
            return Err(ShipError::Stopped);
        }
    }
    for rest in next..manifest.puddles.len() {
        import.create(rest).map_err(failed)?;
    }
    let archive_bytes = reader.bytes_read();
    Ok(Unpacked { import, manifest, archive_bytes })
}

/// Reads an archive to its end and checks all of it, for nothing but that.
///
/// # Errors
/// As [`unpack`], of the archive.
pub fn inspect<R: Read>(input: R, mut progress: Option<OnShip<'_>>) -> Result<(Manifest, u64), ShipError> {
    let mut reader = ArchiveReader::open(input)?;
    let manifest = reader.manifest().clone();
    let mut done = 0;
    while let Some(chunk) = reader.next_chunk()? {
        done += chunk.bytes.len() as u64;
        if let Some(progress) = &mut progress
            && progress(ShipProgress { done, of: manifest.bytes() }).is_break()
        {
            return Err(ShipError::Stopped);
        }
    }
    Ok((manifest, reader.bytes_read()))
}

/// What the store is asked to take in.
fn wanted(manifest: &Manifest, names: Vec<String>) -> Result<ImportManifest, ShipError> {
    if !names.is_empty() && names.len() != manifest.pools.len() {
        let list: Vec<String> =
            manifest.pools.iter().take(5).map(|pool| format!("\"{}\"", pool.name)).collect();
        return Err(ShipError::Names {
            pools: manifest.pools.len(),
            names: list.join(", "),
            given: names.len(),
        });
    }
    let mut names = names.into_iter();
    let puddles = |id: PoolId| {
        manifest.puddles_of(id).map(|(_, p)| ImportPuddle { old_addr: p.addr, size: p.size }).collect()
    };
    let pool = |pool: &PoolEntry| ImportPool {
        name: names.next().unwrap_or_else(|| pool.name.clone()),
        old_id: pool.id,
        mode: pool.mode,
        heap: pool.heap,
        puddle_size: pool.puddle_size,
        size_max: pool.size_max,
        permissions: pool.permissions,
        puddles: puddles(pool.id),
    };
    Ok(ImportManifest { pools: manifest.pools.iter().map(pool).collect(), types: manifest.types.clone() })
}

//! Import: an archive becomes pools of a store, or nothing.
//!
//! States, which are those of [`cenote_store::relocate::ImportManifest`]'s import: (1) header and
//! manifest are read and checked, types are compared with the store's, names and room looked for:
//! nothing has changed; (2) each puddle gets a file under a new identity, which no record names,
//! and what the archive holds of it; (3) the archive's end is read, which says that all of it was
//! whole, and values are looked at ([`super::check_values`]); (4) files are synced,
//! and **the catalog's batch commits**. An import that ends before that leaves files that
//! the catalog does not know: they are removed at once, or by the next writable open.
//!
//! An archive is believed as far as its checksums and the rules of its types go. Other contents of
//! the blocks are the author's: lengths, texts, and which of a node's places are in use. So an
//! archive is imported from an author whose store would be opened.

use super::{ArchivingError, OnArchiving, Stale, check_values, tell};
use cenote_archive::{ArchiveError, ArchiveReader, ArchiveStep, Manifest, PoolEntry};
use cenote_layout::id::{PoolId, TypeId};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;
use cenote_medium::MediumError;
use cenote_medium::planted::{Bug, planted};
use cenote_store::relocate::{Import, ImportManifest, ImportPool, ImportPuddle, Imported};
use cenote_store::{DataProtection, Store, StoreError, TypeMismatch};
use std::io::Read;

/// How an archive is imported.
#[derive(Default)]
pub struct ImportOptions<'a> {
    /// What its pools are to be called, by number: one name for each. Empty: as they were.
    pub names: Vec<String>,
    /// Told after each step.
    pub progress: Option<OnArchiving<'a>>,
}

impl core::fmt::Debug for ImportOptions<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ImportOptions").field("names", &self.names).finish_non_exhaustive()
    }
}

/// The types that the importing program has, by id: an import does not register another layout of
/// one of them.
pub type ProgramTypes<'a> = &'a dyn Fn(TypeId) -> Option<TypeRecord>;

/// What was in an archive, and what became of it.
#[derive(Clone, Debug)]
pub struct ImportedArchive {
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes of it.
    pub archive_bytes: u64,
    /// The pools in this store, in the manifest's order.
    pub imported: Imported,
    /// Pointers in them that lead to values of other types: following one is an error. A daemon
    /// tells of none.
    pub stale: Stale,
}

/// An archive that is read and checked, in files that no record names yet. Dropped, it leaves
/// nothing.
#[derive(Debug)]
pub struct Unpacked {
    import: Import,
    manifest: Manifest,
    archive_bytes: u64,
    stale: Stale,
}

impl Unpacked {
    /// Makes its pools part of the store, under new identities. They keep their addresses where
    /// those are free; the pointers of others are rewritten when they are first touched.
    /// Durable on return.
    ///
    /// # Errors
    /// A name that was taken meanwhile, a type that the program has come to know with another
    /// layout, no room in the window any more, the medium. Nothing was imported then.
    pub fn commit(
        self,
        store: &Store,
        program: ProgramTypes<'_>,
    ) -> Result<ImportedArchive, ArchivingError> {
        let Self { import, manifest, archive_bytes, stale } = self;
        agree(store, &manifest, program)?;
        // SAFETY: `unpack` has checked all values, and nothing writes the files since.
        let imported = unsafe { import.commit() }?;
        Ok(ImportedArchive { manifest, archive_bytes, imported, stale })
    }
}

/// Reads an archive to its end, checks all of it, and puts its puddles into files of a store that
/// no record names before [`Unpacked::commit`].
///
/// # Errors
/// The archive: see [`cenote_archive::ArchiveError`]; values that are none
/// ([`ArchivingError::Values`]). The store: a name that is taken, a type with another layout, no
/// room in the window or on the disk. Nothing is left then.
pub fn unpack<R: Read>(
    store: &Store,
    input: R,
    options: ImportOptions<'_>,
    program: ProgramTypes<'_>,
) -> Result<Unpacked, ArchivingError> {
    let ImportOptions { names, mut progress } = options;
    let mut reader = ArchiveReader::open(input)?;
    let manifest = reader.manifest().clone();
    let asked = asked(store, &manifest, names, program)?;
    let wanted = asked.disk_bytes;
    let mut import = store.begin_import(asked.manifest)?;
    let of = manifest.bytes();
    let failed = |error: StoreError| match error {
        StoreError::Medium(MediumError::NoSpace { .. }) if !store.is_connected() => {
            no_space(store, wanted)
        }
        error => error.into(),
    };
    // Before the first file, so that a disk that is too small is not filled first. It may become
    // full all the same.
    if wanted > store.medium().free_bytes() {
        return Err(no_space(store, wanted));
    }
    let (mut before, mut next, mut done) = (0, 0, 0);
    loop {
        let step = match reader.step() {
            Err(ArchiveError::Truncated { .. }) if planted(Bug::ArchiveEndUnread) => break,
            step => step?,
        };
        match step {
            ArchiveStep::End => break,
            ArchiveStep::Skipped => {}
            ArchiveStep::Chunk(chunk) => {
                // Puddles come in order.
                while next < chunk.puddle {
                    before += manifest.puddles.get(next).map_or(0, |puddle| puddle.size);
                    next += 1;
                }
                import.write(chunk.puddle, chunk.offset, chunk.bytes).map_err(failed)?;
                done = (before + chunk.offset + chunk.bytes.len() as u64).min(of);
            }
        }
        tell(&mut progress, done, of)?;
    }
    import.create_rest().map_err(failed)?;
    let stale = check_values(&import)?;
    let archive_bytes = reader.bytes_read();
    Ok(Unpacked { import, manifest, archive_bytes, stale })
}

/// What is in an archive that is whole, and what would keep it out of a store.
#[derive(Debug)]
pub struct Inspected {
    /// Its manifest.
    pub manifest: Manifest,
    /// Bytes of it.
    pub archive_bytes: u64,
    /// Why [`unpack`] with the same options would refuse it, if it would.
    pub refused: Option<ArchivingError>,
}

/// Reads an archive to its end and checks all that [`unpack`] checks, values excepted, and does
/// nothing. The store may be open for reading only.
///
/// # Errors
/// As [`unpack`], of the archive. What the store says about it is in [`Inspected::refused`].
pub fn inspect<R: Read>(
    store: &Store,
    input: R,
    options: ImportOptions<'_>,
    program: ProgramTypes<'_>,
) -> Result<Inspected, ArchivingError> {
    let ImportOptions { names, mut progress } = options;
    let mut reader = ArchiveReader::open(input)?;
    let manifest = reader.manifest().clone();
    let refused = asked(store, &manifest, names, program)
        .and_then(|asked| {
            store.check_import(&asked.manifest)?;
            let enough = asked.disk_bytes <= store.medium().free_bytes();
            if enough { Ok(()) } else { Err(no_space(store, asked.disk_bytes)) }
        })
        .err();
    let mut done = 0;
    loop {
        match reader.step()? {
            ArchiveStep::End => break,
            ArchiveStep::Skipped => {}
            ArchiveStep::Chunk(chunk) => done += chunk.bytes.len() as u64,
        }
        tell(&mut progress, done, manifest.bytes())?;
    }
    Ok(Inspected { archive_bytes: reader.bytes_read(), manifest, refused })
}

fn no_space(store: &Store, wanted: u64) -> ArchivingError {
    ArchivingError::NoSpace { wanted, free: store.medium().free_bytes() }
}

/// What an archive asks of a store.
struct Asked {
    manifest: ImportManifest,
    /// Bytes of all files that its puddles take.
    disk_bytes: u64,
}

/// Compares what does not depend on the store's state.
fn asked(
    store: &Store,
    manifest: &Manifest,
    names: Vec<String>,
    program: ProgramTypes<'_>,
) -> Result<Asked, ArchivingError> {
    agree(store, manifest, program)?;
    let manifest = wanted(manifest, names)?;
    let disk_bytes = manifest.disk_bytes();
    Ok(Asked { manifest, disk_bytes })
}

/// Refuses types that the program has with another layout, unless the store has decided: what it
/// knows it says itself, where such a type is used.
fn agree(
    store: &Store,
    manifest: &Manifest,
    program: ProgramTypes<'_>,
) -> Result<(), ArchivingError> {
    if planted(Bug::ProgramNotAsked) {
        return Ok(());
    }
    for offered in &manifest.types {
        let known = program(offered.id).filter(|known| known != offered);
        if let Some(known) =
            known.filter(|_| store.type_record(offered.id).as_deref() != Some(offered))
        {
            return Err(ArchivingError::ProgramType(Box::new(TypeMismatch {
                known,
                offered: offered.clone(),
            })));
        }
    }
    Ok(())
}

/// What the store is asked to take in.
fn wanted(manifest: &Manifest, names: Vec<String>) -> Result<ImportManifest, ArchivingError> {
    if !names.is_empty() && names.len() != manifest.pools.len() {
        let list: Vec<String> =
            manifest.pools.iter().take(5).map(|pool| format!("\"{}\"", pool.name)).collect();
        return Err(ArchivingError::Names {
            pools: manifest.pools.len(),
            names: list.join(", "),
            given: names.len(),
        });
    }
    let mut names = names.into_iter();
    let puddles = |id: PoolId| {
        let puddles = manifest.puddles_of(id);
        puddles
            .map(|(_, p)| ImportPuddle {
                old_addr: p.addr,
                size: p.size,
                identity: p.uuid,
                role: Role::Heap,
            })
            .collect()
    };
    let pool = |pool: &PoolEntry| ImportPool {
        name: names.next().unwrap_or_else(|| pool.name.clone()),
        old_id: pool.id,
        mode: pool.mode,
        heap: pool.heap,
        puddle_size: pool.puddle_size,
        size_max: pool.size_max,
        permissions: pool.permissions,
        at_rest: pool.at_rest,
        protect: DataProtection::None,
        torn: manifest.torn.contains(&pool.id),
        puddles: puddles(pool.id),
    };
    Ok(ImportManifest {
        pools: manifest.pools.iter().map(pool).collect(),
        types: manifest.types.clone(),
    })
}

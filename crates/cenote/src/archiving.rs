//! Pools that leave the store, and pools that come in: archives (PUD-9).
//!
//! [`Store::export`] writes pools into one stream of bytes, with their types; [`Store::import`]
//! makes them pools of a store: of another one, or of the same beside the originals, as often as
//! one likes. Pointers are right afterwards, native ones too: what does not keep its address is
//! rewritten when it is first touched.
//!
//! ```
//! use cenote::{ExportOptions, ImportOptions, Persist, Ptr, Reader, Store};
//!
//! #[derive(Persist)]
//! struct Node { value: u64, next: Option<Ptr<Node>> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! # let directory = directory.path();
//! let store = Store::open(directory)?;
//! store.pool("numbers")?.write(|tx| -> cenote::Result<()> {
//!     let next = Some(tx.alloc(Node { value: 43, next: None })?);
//!     let first = tx.alloc(Node { value: 42, next })?;
//!     tx.set_root(first)
//! })?;
//! let archive = store.export(&["numbers"], Vec::new(), ExportOptions::default())?.0;
//!
//! let names = vec!["copy".into()];
//! store.import(archive.as_slice(), ImportOptions { names, ..ImportOptions::default() })?;
//! let copy = store.pool("copy")?;
//! let view = copy.read()?;
//! let first = view.root::<Node>()?.expect("it was there");
//! let second = view.get(first)?.next.expect("it was there");
//! assert_eq!(view.get(second)?.value, 43);
//! # Ok(())
//! # }
//! ```
//!
//! A pool that is protected at rest is exported and imported as it is sealed: neither needs a key,
//! and opening it needs the key that it had. It is sealed under new data keys when it is first
//! touched; [`Store::rekey_pool`] gives it another key.
//!
//! Archives hold no raw objects, whose pointers no type describes and which have a protection of
//! their own: snapshots do, which are files of their own (`cenote_object`).

use crate::checking::refuse_within;
use crate::error::Result;
use crate::known::of_this_program;
use crate::open_pools::{HeldPools, pools_of};
use crate::session::Store;
use cenote_relocate::archiving;
use cenote_store::Access;
use std::io::{Read, Write};
use std::path::Path;

pub use cenote_relocate::archiving::{
    ArchivingError, ArchivingProgress, Codec, Exclusive, ExportOptions, Exported, ImportOptions,
    ImportedArchive, Inspected, LeftEntry, OnArchiving, Stale,
};

impl Store {
    /// Writes pools into one archive, with their types, roots and names. Returns the stream,
    /// flushed.
    ///
    /// None of the pools may be open. A thread that opens one meanwhile waits. A pool that was open
    /// for writing at a loss of power is traced first. [`Exported::left`] lists pointers to pools
    /// that are not in the archive: in another store they dangle. The export reads values of a
    /// protected pool only if the store was opened with [`OpenOptions::key`](crate::OpenOptions).
    /// Otherwise [`Exported::unseen`] names the pool, and the archive has all types of the store.
    ///
    /// # Errors
    /// [`Error::Archive`](crate::Error::Archive): a pool is not known, open, or damaged; a store
    /// that is open read-only holds one that must be recovered; the stream fails. What the stream
    /// got is no archive then.
    pub fn export<W: Write>(
        &self,
        pools: &[&str],
        out: W,
        options: ExportOptions<'_>,
    ) -> Result<(W, Exported)> {
        let _held = self.hold_for_export(pools, options.with_targets)?;
        // SAFETY: `_held` keeps the pools that are read from being opened.
        Ok(unsafe { archiving::export(&self.inner.store, pools, out, options) }?)
    }

    /// The same into a file, which has its name only when it is whole and on the disk.
    ///
    /// # Errors
    /// As [`Store::export`]; the file is there already, or cannot be made. Then nothing is left.
    pub fn export_to(
        &self,
        pools: &[&str],
        path: impl AsRef<Path>,
        exclusive: Exclusive,
        options: ExportOptions<'_>,
    ) -> Result<Exported> {
        let _held = self.hold_for_export(pools, options.with_targets)?;
        let exported = archiving::to_file(path.as_ref(), exclusive, |file| {
            // SAFETY: `_held` keeps the pools that are read from being opened.
            unsafe { archiving::export(&self.inner.store, pools, file, options) }
                .map(|(_, exported)| exported)
        });
        Ok(exported?)
    }

    /// Makes the pools of an archive pools of this store, under new identities. Durable on return;
    /// until then the store is as it was, also after a crash.
    ///
    /// They keep their addresses where those are free. Others are rewritten when they are first
    /// touched.
    ///
    /// An archive is checked before anything of it counts. So are its values, as far as records of
    /// types say which bytes are none; pools that are protected at rest excepted. Other contents of
    /// its blocks are believed, as in any store that is opened (lengths and texts of collections,
    /// say). So import archives only of authors whose stores you would open.
    ///
    /// # Errors
    /// [`Error::Archive`](crate::Error::Archive): the archive is damaged or was made by a later
    /// release; a name is taken; a type has another layout in this store, or in this program; there
    /// is no room; bytes of a value are no value of its type, or a collection's link leads to no
    /// part of it ([`ArchivingError::Values`]).
    pub fn import(&self, input: impl Read, options: ImportOptions<'_>) -> Result<ImportedArchive> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, "that is imported")?;
        let unpacked = archiving::unpack(&self.inner.store, input, options, &of_this_program)?;
        // No thread opens one of the pools before it is known whether this program agrees about
        // their types.
        let list = pools_of(&self.inner).locked();
        let made = unpacked.commit(&self.inner.store, &of_this_program)?;
        drop(list);
        Ok(made)
    }

    /// Reads an archive to its end and checks it as [`Store::import`] with the same options would,
    /// except for values. Changes nothing, so the store may be open for reading only.
    ///
    /// # Errors
    /// [`Error::Archive`](crate::Error::Archive): the archive is damaged or was made by a later
    /// release. What the store says of a whole one is in [`Inspected::refused`].
    pub fn inspect_archive(
        &self,
        input: impl Read,
        options: ImportOptions<'_>,
    ) -> Result<Inspected> {
        Ok(archiving::inspect(&self.inner.store, input, options, &of_this_program)?)
    }

    /// Keeps the pools that are exported, or any if pointers decide which those are, from being
    /// opened.
    fn hold_for_export(&self, pools: &[&str], all: bool) -> Result<HeldPools<'_>> {
        self.inner.refuse_forked()?;
        refuse_within(&self.inner, pools.first().copied().unwrap_or_default())?;
        if self.inner.store.is_writable() {
            let due = self.pools_due();
            for info in self.pools() {
                let wanted = all || pools.contains(&info.record.name.as_str());
                if wanted && due.contains(&info.record.id) {
                    // Opening it traces it.
                    drop(self.pool_with(&info.record.name, Access::ReadWrite)?);
                }
            }
        }
        let names = match all {
            true => self.pools().into_iter().map(|info| info.record.name).collect(),
            false => pools.iter().map(|name| (*name).to_owned()).collect(),
        };
        Ok(pools_of(&self.inner).hold(names))
    }
}

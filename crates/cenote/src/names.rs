//! Roots by name (RAL-6: any number of them, beside the 1,024 that have numbers).
//!
//! They are ordinary typed data of the pool, made and changed by the transaction that names something, and traced like everything else. The last numbered root leads
//! to a *directory*, once a name was given: a table of chains by a hash of the name. What the last numbered root led to before moves into the directory, so all
//! 1,024 stay usable.
//!
//! ```text
//! root 1023 --> Directory:  numbered (root 1023's own) | chain 0 | chain 1 | ...
//!                                                        |
//!                                                        +--> Entry: next | target | len | name --> Entry ...
//! ```
//!
//! Both types take any bytes for a value: a name is cut at its length, and shown as far as it is text; a target is followed only after the same check as a
//! numbered root. So a directory can be listed in a pool whose values are not believed, too. A chain that leads back into itself ends the listing.

use crate::error::{Error, Result};
use crate::field;
use crate::persist::{LayoutBuilder, Persist, TypeId};
use crate::pool::{PoolInner, dangling};
use crate::ptr::{FieldOffset, Ptr};
use crate::reader::Reader;
use crate::tx::Tx;
use cenote_heap::Heap;
use cenote_layout::checksum::checksum;
use cenote_layout::heap::RootEntry;
use core::mem::offset_of;
use std::collections::HashSet;

/// The numbered root that the directory is under.
const DIRECTORY_ROOT: u16 = 1023;
/// Chains of a directory, which is a block of 4 KiB.
const CHAINS: usize = 510;
/// Most bytes of a name: so an entry has 256.
const NAME_LEN_MAX: usize = 231;

/// A root that has a name, as [`Reader::named_roots`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRoot {
    /// The name.
    pub name: String,
    /// Address of the root object.
    pub addr: u64,
    /// Its type.
    pub type_id: TypeId,
}

/// Where a root leads. 0: nowhere.
#[derive(Clone, Copy)]
#[repr(C)]
struct Target {
    addr: u64,
    type_id: u64,
}

#[repr(C)]
struct Directory {
    numbered: Target,
    chains: [Option<Ptr<Entry>>; CHAINS],
}

#[repr(C)]
struct Entry {
    next: Option<Ptr<Entry>>,
    target: Target,
    len: u8,
    name: [u8; NAME_LEN_MAX],
}

const _: () = assert!(size_of::<Directory>() == 4096 && size_of::<Entry>() == 256);

/// Implements `Persist` for a type of this file: a declared type's name has no `/`, so nobody else's block passes for one of these.
macro_rules! persist {
    ($name:literal, $type:ident, |$layout:ident| $fields:expr) => {
        // SAFETY: every field and pointer is described where it is, any bytes are a value, and the name belongs to this file.
        unsafe impl Persist for $type {
            const TYPE_ID: TypeId = TypeId::of_name($name);

            fn type_name() -> String {
                $name.to_string()
            }

            fn describe($layout: &mut LayoutBuilder) {
                $fields
            }
        }
    };
}

persist!("cenote/RootTarget", Target, |layout| {
    layout.field::<u64>("addr", offset_of!(Self, addr));
    layout.field::<u64>("type_id", offset_of!(Self, type_id));
    layout.untyped_pointer(offset_of!(Self, addr));
});
persist!("cenote/RootDirectory", Directory, |layout| {
    layout.field::<Target>("numbered", offset_of!(Self, numbered));
    layout.field::<[Option<Ptr<Entry>>; CHAINS]>("chains", offset_of!(Self, chains));
});
persist!("cenote/NamedRoot", Entry, |layout| {
    layout.field::<Option<Ptr<Entry>>>("next", offset_of!(Self, next));
    layout.field::<Target>("target", offset_of!(Self, target));
    layout.field::<u8>("len", offset_of!(Self, len));
    layout.field::<[u8; NAME_LEN_MAX]>("name", offset_of!(Self, name));
});

impl From<RootEntry> for Target {
    fn from(entry: RootEntry) -> Self {
        Self { addr: entry.addr, type_id: entry.type_id.0 }
    }
}

impl From<Target> for RootEntry {
    fn from(target: Target) -> Self {
        Self { addr: target.addr, type_id: TypeId(target.type_id) }
    }
}

impl Entry {
    fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.len).min(NAME_LEN_MAX)]
    }
}

/// The bytes of a name that a root can have.
fn checked(name: &str) -> Result<&[u8]> {
    let bad = |reason| Err(Error::RootName { name: name.chars().take(80).collect(), reason });
    if name.is_empty() {
        return bad("it is empty");
    }
    if name.len() > NAME_LEN_MAX {
        return bad("it has more than 231 bytes");
    }
    if name.chars().any(char::is_control) {
        return bad("it has control characters");
    }
    Ok(name.as_bytes())
}

/// Part of the format: the chain that a name is in.
fn chain_of(name: &[u8]) -> usize {
    (checksum(0, name) % CHAINS as u64) as usize
}

fn chain_field(chain: usize) -> Option<FieldOffset<Directory, Option<Ptr<Entry>>>> {
    field!(Directory, chains).element(chain)
}

/// The pool's directory, if a name was ever given. The caller holds a view or a transaction of the pool.
fn directory(pool: &PoolInner) -> Result<Option<Ptr<Directory>>> {
    let entry = pool.heap.root(DIRECTORY_ROOT)?;
    if entry.addr == 0 || entry.type_id != Directory::TYPE_ID {
        return Ok(None);
    }
    pool.know::<Directory>()?;
    if !pool.is_live::<Directory>(entry.addr) {
        return Err(dangling::<Directory>(entry.addr));
    }
    pool.readable(entry.addr, size_of::<Directory>())?;
    // SAFETY: a live block of this type, whose layout the store has confirmed.
    Ok(unsafe { Ptr::from_addr(entry.addr) })
}

/// Numbered root `index`, wherever it is kept. The caller holds a view or a transaction of the pool.
pub(crate) fn numbered(pool: &PoolInner, index: u16) -> Result<RootEntry> {
    if index == DIRECTORY_ROOT
        && let Some(directory) = directory(pool)?
    {
        // SAFETY: a live block, which nobody changes while the pool is held; read here and now.
        return Ok(unsafe { directory.as_ref() }.numbered.into());
    }
    Ok(pool.heap.root(index)?)
}

/// Sets the numbered root that the directory keeps; `false` if this one is not kept there.
pub(crate) fn set_numbered(tx: &mut Tx<'_>, pool: &PoolInner, index: u16, entry: RootEntry) -> Result<bool> {
    if index != DIRECTORY_ROOT {
        return Ok(false);
    }
    let Some(directory) = directory(pool)? else { return Ok(false) };
    tx.set(directory, field!(Directory, numbered), entry.into())?;
    Ok(true)
}

/// An entry by its name, and the one before it in its chain.
struct Found {
    entry: Ptr<Entry>,
    before: Option<Ptr<Entry>>,
}

fn find<R: Reader>(reader: &R, directory: Ptr<Directory>, name: &[u8]) -> Result<Option<Found>> {
    let mut at = reader.get(directory)?.chains.get(chain_of(name)).copied().flatten();
    let mut before = None;
    let mut seen = HashSet::new();
    while let Some(entry) = at {
        let value = reader.get(entry)?;
        if value.name() == name {
            return Ok(Some(Found { entry, before }));
        }
        if !seen.insert(entry.addr()) {
            break;
        }
        (before, at) = (at, value.next);
    }
    Ok(None)
}

/// What the root of this name leads to.
pub(crate) fn get<T: Persist, R: Reader>(reader: &R, pool: &PoolInner, name: &str) -> Result<Option<Ptr<T>>> {
    let Some(directory) = directory(pool)? else { return Ok(None) };
    let Some(found) = find(reader, directory, name.as_bytes())? else { return Ok(None) };
    let target: RootEntry = reader.get(found.entry)?.target.into();
    if target.type_id != T::TYPE_ID {
        return Err(Error::NamedRootType {
            pool: pool.handle.name().to_string(),
            name: name.to_string(),
            found: target.type_id,
            expected: T::TYPE_ID,
            expected_name: T::type_name(),
        });
    }
    pool.know::<T>()?;
    // SAFETY: followed through checked accesses alone. (The value may be in another pool than the name, so it is not looked at here.)
    Ok(unsafe { Ptr::from_addr(target.addr) })
}

/// All names, sorted.
pub(crate) fn list<R: Reader>(reader: &R, pool: &PoolInner) -> Result<Vec<NamedRoot>> {
    let Some(directory) = directory(pool)? else { return Ok(Vec::new()) };
    let mut roots = Vec::new();
    let mut seen = HashSet::new();
    for chain in &reader.get(directory)?.chains {
        let mut at = *chain;
        while let Some(entry) = at.filter(|entry| seen.insert(entry.addr())) {
            let value = reader.get(entry)?;
            roots.push(NamedRoot {
                name: String::from_utf8_lossy(value.name()).into_owned(),
                addr: value.target.addr,
                type_id: TypeId(value.target.type_id),
            });
            at = value.next;
        }
    }
    roots.sort_by(|a, b| (&a.name, a.addr).cmp(&(&b.name, b.addr)));
    Ok(roots)
}

/// Gives a name to what `root` says, or takes the name away.
pub(crate) fn set<'p>(tx: &mut Tx<'p>, pool: &'p PoolInner, name: &str, root: RootEntry) -> Result<()> {
    let bytes = checked(name)?;
    if root.addr == 0 {
        return remove(tx, pool, name).map(drop);
    }
    let directory = match directory(pool)? {
        Some(directory) => directory,
        None => make(tx, pool)?,
    };
    if let Some(found) = find(tx, directory, bytes)? {
        return tx.set(found.entry, field!(Entry, target), root.into());
    }
    let chain = chain_of(bytes);
    let Some(place) = chain_field(chain) else { return Ok(()) };
    let next = tx.get(directory)?.chains.get(chain).copied().flatten();
    let mut entry = Entry { next, target: root.into(), len: bytes.len() as u8, name: [0; NAME_LEN_MAX] };
    entry.name[..bytes.len()].copy_from_slice(bytes);
    let entry = tx.alloc_covered(pool, entry)?;
    tx.set(directory, place, Some(entry))
}

/// A directory that takes over the last numbered root.
fn make<'p>(tx: &mut Tx<'p>, pool: &'p PoolInner) -> Result<Ptr<Directory>> {
    let numbered = pool.heap.root(DIRECTORY_ROOT)?.into();
    let directory = tx.alloc_covered(pool, Directory { numbered, chains: [None; CHAINS] })?;
    let entry = RootEntry { addr: directory.addr(), type_id: Directory::TYPE_ID };
    tx.write_root_slot(pool, DIRECTORY_ROOT, entry)?;
    Ok(directory)
}

/// Takes a name away; whether there was one.
pub(crate) fn remove(tx: &mut Tx<'_>, pool: &PoolInner, name: &str) -> Result<bool> {
    let Some(directory) = directory(pool)? else { return Ok(false) };
    let Some(found) = find(tx, directory, name.as_bytes())? else { return Ok(false) };
    let next = tx.get(found.entry)?.next;
    match (found.before, chain_field(chain_of(name.as_bytes()))) {
        (Some(before), _) => tx.set(before, field!(Entry, next), next)?,
        (None, Some(place)) => tx.set(directory, place, next)?,
        (None, None) => return Ok(false),
    }
    tx.free(found.entry)?;
    Ok(true)
}

//! Roots by name (RAL-6: any number of them, beside the 1,024 that have numbers).
//!
//! They are ordinary typed data of the pool: the transaction that names a value makes and changes
//! them, and they are traced like everything else. The first name makes a *directory*, a table of
//! chains by a hash of the name, and the last numbered root then leads to it. The directory keeps
//! where that root led before, so all 1,024 stay usable.
//!
//! ```text
//! root 1023 --> Directory:  numbered (root 1023's own) | chain 0 | chain 1 | ...
//!                                                          |
//!                     +------------------------------------+
//!                     +--> NameEntry: next | target | len | name --> NameEntry ...
//! ```
//!
//! Both types take any bytes for a value: a name is cut at its length, and shown as far as it is
//! text; a target is followed only after the same check as a numbered root. So a directory can be
//! listed in a pool whose values are not believed, too. A chain that leads back into itself ends
//! the listing.

use crate::error::{Error, Result};
use crate::field;
use crate::open_pool::PoolInner;
use crate::persist::{LayoutBuilder, Persist, TypeId};
use crate::ptr::{FieldOffset, Ptr};
use crate::reader::{NamedRoot, Reader};
use cenote_layout::checksum::checksum;
use cenote_layout::frees::FREES_ROOT;
use cenote_layout::heap::RootEntry;
use core::mem::offset_of;
use std::collections::HashSet;

/// The numbered root that the directory is under.
pub(crate) const DIRECTORY_ROOT: u16 = 1023;
/// Chains of a directory, which is a block of 4 KiB.
pub(crate) const CHAINS: usize = 510;
/// Most bytes of a name: so an entry has 256.
pub(crate) const NAME_LEN_MAX: usize = 231;

/// Where a root leads. 0: nowhere.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct RootTarget {
    addr: u64,
    type_id: u64,
}

#[repr(C)]
pub(crate) struct Directory {
    pub(crate) numbered: RootTarget,
    pub(crate) chains: [Option<Ptr<NameEntry>>; CHAINS],
}

#[repr(C)]
pub(crate) struct NameEntry {
    pub(crate) next: Option<Ptr<NameEntry>>,
    pub(crate) target: RootTarget,
    pub(crate) len: u8,
    pub(crate) name: [u8; NAME_LEN_MAX],
}

const _: () = assert!(size_of::<Directory>() == 4096 && size_of::<NameEntry>() == 256);

/// Implements `Persist` for a type of this crate: a declared type's name has no `/`, so no block of
/// a program's type passes for one of these.
macro_rules! persist {
    ($name:literal, $type:ident, |$layout:ident| $fields:expr) => {
        // SAFETY: every field and pointer is described where it is, any bytes are a value, and the
        // name belongs to this crate.
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

pub(crate) use persist;

persist!("cenote/RootTarget", RootTarget, |layout| {
    layout.field::<u64>("addr", offset_of!(Self, addr));
    layout.field::<u64>("type_id", offset_of!(Self, type_id));
    layout.untyped_pointer(offset_of!(Self, addr));
});
persist!("cenote/RootDirectory", Directory, |layout| {
    layout.field::<RootTarget>("numbered", offset_of!(Self, numbered));
    layout.field::<[Option<Ptr<NameEntry>>; CHAINS]>("chains", offset_of!(Self, chains));
});
persist!("cenote/NamedRoot", NameEntry, |layout| {
    layout.field::<Option<Ptr<NameEntry>>>("next", offset_of!(Self, next));
    layout.field::<RootTarget>("target", offset_of!(Self, target));
    layout.field::<u8>("len", offset_of!(Self, len));
    layout.field::<[u8; NAME_LEN_MAX]>("name", offset_of!(Self, name));
});

impl From<RootEntry> for RootTarget {
    fn from(entry: RootEntry) -> Self {
        Self { addr: entry.addr, type_id: entry.type_id.0 }
    }
}

impl From<RootTarget> for RootEntry {
    fn from(target: RootTarget) -> Self {
        Self { addr: target.addr, type_id: TypeId(target.type_id) }
    }
}

impl NameEntry {
    fn name(&self) -> &[u8] {
        &self.name[..usize::from(self.len).min(NAME_LEN_MAX)]
    }
}

/// The bytes of a name that a root can have.
pub(crate) fn checked(name: &str) -> Result<&[u8]> {
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
pub(crate) fn chain_of(name: &[u8]) -> usize {
    (checksum(0, name) % CHAINS as u64) as usize
}

pub(crate) fn chain_field(chain: usize) -> Option<FieldOffset<Directory, Option<Ptr<NameEntry>>>> {
    field!(Directory, chains).element(chain)
}

/// The pool's directory, if a name was ever given. The caller holds a view or a transaction of the
/// pool.
pub(crate) fn directory(pool: &PoolInner) -> Result<Option<Ptr<Directory>>> {
    let entry = pool.root_entry(DIRECTORY_ROOT)?;
    if entry.addr == 0 || entry.type_id != Directory::TYPE_ID {
        return Ok(None);
    }
    pool.know::<Directory>()?;
    if !pool.is_live::<Directory>(entry.addr) {
        return Err(pool.dangling::<Directory>(entry.addr));
    }
    pool.readable(entry.addr, size_of::<Directory>())?;
    // SAFETY: a live block of this type, whose layout the store has confirmed.
    Ok(unsafe { Ptr::from_addr(entry.addr) })
}

/// Numbered root `index`, wherever it is kept. The caller holds a view or a transaction of the
/// pool.
pub(crate) fn numbered(pool: &PoolInner, index: u16) -> Result<RootEntry> {
    if index == DIRECTORY_ROOT
        && let Some(directory) = directory(pool)?
    {
        // SAFETY: a live block, which no thread changes while the pool is held; read here and now.
        return Ok(unsafe { directory.as_ref() }.numbered.into());
    }
    pool.root_entry(index)
}

/// What the store calls a type.
pub(crate) fn type_name(pool: &PoolInner, id: TypeId) -> String {
    let record = pool.handle.store().type_record(id);
    record.map_or_else(|| id.to_string(), |record| record.name.to_string())
}

/// What numbered root `index` leads to. The caller holds a view or a transaction of the pool.
pub(crate) fn root<T: Persist>(pool: &PoolInner, index: u16) -> Result<Option<Ptr<T>>> {
    let entry = numbered(pool, index)?;
    if entry.addr == 0 {
        return Ok(None);
    }
    if entry.type_id != T::TYPE_ID {
        return Err(Error::RootType {
            pool: pool.handle.name().to_string(),
            index,
            found: entry.type_id,
            found_name: type_name(pool, entry.type_id),
            expected: T::TYPE_ID,
            expected_name: T::type_name(),
        });
    }
    pool.know::<T>()?;
    if !pool.is_live::<T>(entry.addr) {
        return Err(pool.dangling::<T>(entry.addr));
    }
    // SAFETY: a live block of type `T`, whose layout the store has just confirmed.
    Ok(unsafe { Ptr::from_addr(entry.addr) })
}

/// An entry by its name, and the one before it in its chain.
pub(crate) struct FoundName {
    pub(crate) entry: Ptr<NameEntry>,
    pub(crate) before: Option<Ptr<NameEntry>>,
}

pub(crate) fn find<R: Reader>(
    reader: &R,
    directory: Ptr<Directory>,
    name: &[u8],
) -> Result<Option<FoundName>> {
    let mut at = reader.get(directory)?.chains.get(chain_of(name)).copied().flatten();
    let mut before = None;
    let mut seen = HashSet::new();
    while let Some(entry) = at {
        let value = reader.get(entry)?;
        if value.name() == name {
            return Ok(Some(FoundName { entry, before }));
        }
        if !seen.insert(entry.addr()) {
            break;
        }
        (before, at) = (at, value.next);
    }
    Ok(None)
}

/// Whether a name is one of this crate's own, which programs neither give nor see.
pub(crate) fn is_hidden(name: &[u8]) -> bool {
    name == FREES_ROOT.as_bytes()
}

/// What the root of this name leads to.
pub(crate) fn get<T: Persist, R: Reader>(
    reader: &R,
    pool: &PoolInner,
    name: &str,
) -> Result<Option<Ptr<T>>> {
    if is_hidden(name.as_bytes()) {
        return Ok(None);
    }
    let Some(directory) = directory(pool)? else { return Ok(None) };
    let Some(found) = find(reader, directory, name.as_bytes())? else { return Ok(None) };
    let target: RootEntry = reader.get(found.entry)?.target.into();
    if target.type_id != T::TYPE_ID {
        return Err(Error::NamedRootType {
            pool: pool.handle.name().to_string(),
            name: name.to_string(),
            found: target.type_id,
            found_name: type_name(pool, target.type_id),
            expected: T::TYPE_ID,
            expected_name: T::type_name(),
        });
    }
    pool.know::<T>()?;
    // SAFETY: followed through checked accesses alone. (The value may be in another pool than the
    // name, so it is not looked at here.)
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
            at = value.next;
            if is_hidden(value.name()) {
                continue;
            }
            roots.push(NamedRoot {
                name: String::from_utf8_lossy(value.name()).into_owned(),
                addr: value.target.addr,
                type_id: TypeId(value.target.type_id),
            });
        }
    }
    roots.sort_by(|a, b| (&a.name, a.addr).cmp(&(&b.name, b.addr)));
    Ok(roots)
}

//! The data of imports and copies between pools or stores: descriptions of an import, its result,
//! and a pool that is copied as it lies there.

use crate::kernel::puddles::puddle::{file_name, text};
use crate::kernel::store::Control;
use cenote_layout::catalog::{
    AtRest, DataProtection, HeapKind, PoolMode, PoolRecord, PuddleRecord,
};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::puddle::Role;
use cenote_layout::types::TypeRecord;

/// What is to be imported together: pointers between these pools stay right.
#[derive(Clone, Debug, Default)]
pub struct ImportManifest {
    /// Pools, each with all its puddles.
    pub pools: Vec<ImportPool>,
    /// The types of what is in them, with pointer maps. Those that the store knows must be the
    /// same.
    pub types: Vec<TypeRecord>,
}

impl ImportManifest {
    /// Bytes of all files that its pools take.
    #[must_use]
    pub fn disk_bytes(&self) -> u64 {
        let of_pool = |pool: &ImportPool| {
            let of =
                |puddle: &ImportPuddle| pool.at_rest.stored_len(puddle.size).unwrap_or(u64::MAX);
            let sum = pool.puddles.iter().fold(0_u64, |sum, puddle| sum.saturating_add(of(puddle)));
            let twice = pool.mode == PoolMode::Shadowed && pool.at_rest == AtRest::None;
            if twice { sum.saturating_mul(2) } else { sum }
        };
        self.pools.iter().fold(0, |sum, pool| sum.saturating_add(of_pool(pool)))
    }
}

/// A pool to be imported.
#[derive(Clone, Debug)]
pub struct ImportPool {
    /// What it is to be called.
    pub name: String,
    /// Its number where it comes from: region pointers say it.
    pub old_id: PoolId,
    /// Its mode.
    pub mode: PoolMode,
    /// Its allocator.
    pub heap: HeapKind,
    /// Bytes that its first puddle was created with.
    pub puddle_size: u64,
    /// The pool never takes more bytes than this.
    pub size_max: u64,
    /// Permission bits, as of a file.
    pub permissions: u32,
    /// How it is protected at rest: then its puddles come sealed.
    pub at_rest: AtRest,
    /// How its data are to be write-protected.
    pub protect: DataProtection,
    /// Whether it may hold half a transaction ([`crate::PoolHandle::is_torn`]): then it does here.
    pub torn: bool,
    /// In index order, from the root puddle on, without a gap.
    pub puddles: Vec<ImportPuddle>,
}

/// A puddle to be imported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ImportPuddle {
    /// The address for which its pointers are right.
    pub old_addr: u64,
    /// Its bytes, header included.
    pub size: u64,
    /// Its identity where it comes from: if it is sealed, it is so as that.
    pub identity: Uuid,
    /// Its role where it comes from, of those that pools' puddles have; [`Role::Heap`] if that does
    /// not say it: no archive does. An import that can read the pool's metadata learns it from
    /// them.
    pub role: Role,
}

/// Where the bytes of one puddle go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportSlot {
    /// The file's name in the store's directory.
    pub file: String,
    /// Its bytes; of a protected pool with what lies behind the sealed pages.
    pub size: u64,
    /// Which pool of the manifest.
    pub pool: usize,
    /// Which of its puddles.
    pub puddle: usize,
}

/// What was imported.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Imported {
    /// The pools, in the manifest's order.
    pub pools: Vec<ImportedPool>,
}

/// A pool that was imported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ImportedPool {
    /// Its number in this store.
    pub id: PoolId,
    /// Its name.
    pub name: String,
    /// Whether some puddle of it has another address than before.
    pub moved: bool,
    /// Puddles that are to be rewritten when they are touched.
    pub pending: u64,
    /// Puddles whose files share blocks with what they are copies of.
    pub shared: u64,
}

/// A pool that no process has open, with nothing left to be done.
#[derive(Clone, Debug)]
pub struct QuiescentPool {
    /// What the catalog says of it.
    pub record: PoolRecord,
    /// How it is protected at rest.
    pub at_rest: AtRest,
    /// How its data are write-protected.
    pub protect: DataProtection,
    /// Whether it may hold half a transaction ([`crate::PoolHandle::is_torn`]).
    pub torn: bool,
    /// Its puddles in index order, each with the name of the file that holds it. For a pool in
    /// shadowed mode: the contents that the next opener will see. For a protected one: sealed
    /// contents, with their side data behind the puddle's bytes ([`AtRest::stored_len`]).
    pub puddles: Vec<(PuddleRecord, String)>,
}

impl QuiescentPool {
    pub(crate) fn new(control: &Control, record: PoolRecord, at_rest: AtRest) -> Self {
        let puddles = control.catalog.state.puddles_of(record.id);
        let named = |puddle: PuddleRecord| (puddle, text(&file_name(puddle.uuid)).to_owned());
        let torn = control.catalog.state.torn.contains(&record.id);
        let protect = control.catalog.state.data_protection(record.id);
        Self { record, at_rest, protect, torn, puddles: puddles.into_iter().map(named).collect() }
    }

    /// Bytes of the file of one of its puddles.
    #[must_use]
    pub fn stored_len(&self, puddle: &PuddleRecord) -> u64 {
        self.at_rest.stored_len(puddle.size).unwrap_or(puddle.size)
    }
}

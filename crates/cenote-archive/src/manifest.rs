//! The manifest of an archive: its contents, and the rules for them. Writer and reader both refuse
//! a manifest that breaks a rule.

use crate::error::ArchiveError;
use cenote_layout::PAGE_SIZE;
use cenote_layout::SLOT_SIZE;
use cenote_layout::archive::{ArchiveEntry, LeftEntry, PoolEntry, PuddleEntry};
use cenote_layout::catalog::{AtRest, POOL_NAME_LEN_MAX, PoolMode};
use cenote_layout::id::{PoolId, Uuid};
use cenote_layout::outline;
use cenote_layout::puddle::header_space;
use cenote_layout::types::TypeRecord;
use std::collections::{BTreeMap, BTreeSet, HashSet};

/// The contents of an archive, without the bytes of the puddles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Manifest {
    /// The archive's identity.
    pub archive: Uuid,
    /// The store that it was made from.
    pub store: Uuid,
    /// First address and bytes of that store's window: all addresses of puddles, and so all native
    /// pointers between them, lie in it.
    pub window: (u64, u64),
    /// When it was made, in seconds since 1970.
    pub made_at_s: u64,
    /// Pools, by rising number.
    pub pools: Vec<PoolEntry>,
    /// Those of the pools that may hold half a transaction, because their logs were discarded.
    pub torn: BTreeSet<PoolId>,
    /// Their puddles, by pool and index. An archive's chunks name a puddle by its place here.
    pub puddles: Vec<PuddleEntry>,
    /// Types, by rising id.
    pub types: Vec<TypeRecord>,
    /// Pools that pointers lead to and that are not in the archive.
    pub left: Vec<LeftEntry>,
}

impl Manifest {
    /// Bytes of all puddles.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.puddles.iter().map(|puddle| puddle.size).sum()
    }

    /// Whether some pool is protected at rest.
    #[must_use]
    pub fn is_sealed(&self) -> bool {
        self.pools.iter().any(|pool| pool.at_rest != AtRest::None)
    }

    /// From where to where chunks of a puddle may lie in its file: its body, or, in a pool that is
    /// protected at rest, all that is sealed and what belongs to that.
    #[must_use]
    pub fn extent_of(&self, puddle: &PuddleEntry) -> (u64, u64) {
        match self.pool(puddle.pool).map_or(AtRest::None, |pool| pool.at_rest) {
            AtRest::None => (header_space(puddle.size), puddle.size),
            at_rest => (PAGE_SIZE, at_rest.stored_len(puddle.size).unwrap_or(0)),
        }
    }

    /// A pool's puddles, by index, with their places in [`Manifest::puddles`].
    pub fn puddles_of(&self, pool: PoolId) -> impl Iterator<Item = (usize, &PuddleEntry)> {
        let from = self.puddles.partition_point(|puddle| puddle.pool < pool);
        let own = self.puddles.iter().enumerate().skip(from);
        own.take_while(move |(_, puddle)| puddle.pool == pool)
    }

    /// All entries, in the order in which an archive has them.
    pub(crate) fn entries(&self) -> impl Iterator<Item = ArchiveEntry> + '_ {
        let pools = self.pools.iter().cloned().map(|pool| match self.torn.contains(&pool.id) {
            true => ArchiveEntry::TornPool(pool),
            false => ArchiveEntry::Pool(pool),
        });
        let puddles = self.puddles.iter().copied().map(ArchiveEntry::Puddle);
        let types = self.types.iter().cloned().map(ArchiveEntry::Type);
        pools.chain(puddles).chain(types).chain(self.left.iter().cloned().map(ArchiveEntry::Left))
    }

    /// Checks that everything in it can be, and fits together.
    ///
    /// # Errors
    /// [`ArchiveError::Manifest`] for the first thing that cannot be.
    pub fn check(&self) -> Result<(), ArchiveError> {
        self.check_pools()?;
        self.check_puddles()?;
        for (i, record) in self.types.iter().enumerate() {
            let bad =
                |detail: &str| Err(ArchiveError::manifest(format!("type {}", record.id), detail));
            if let Err(error) = record.check() {
                return bad(&error.to_string());
            }
            if i > 0 && record.id <= self.types[i - 1].id {
                return bad("it is there twice, or out of order");
            }
        }
        let mut left = HashSet::new();
        for entry in &self.left {
            let bad = |detail| {
                Err(ArchiveError::manifest(format!("pool {} left behind", entry.id), detail))
            };
            if self.pool(entry.id).is_some() {
                return bad("it is in the archive");
            }
            if !left.insert(entry.id) {
                return bad("it is there twice");
            }
            if entry.id.0 == 0 {
                return bad("no pool has this number");
            }
            if let Err(reason) = check_name(&entry.name) {
                return bad(reason);
            }
        }
        Ok(())
    }

    /// The pool of this number.
    #[must_use]
    pub fn pool(&self, id: PoolId) -> Option<&PoolEntry> {
        let at = self.pools.binary_search_by_key(&id, |pool| pool.id).ok()?;
        self.pools.get(at)
    }

    fn check_pools(&self) -> Result<(), ArchiveError> {
        let mut names = HashSet::new();
        if self.pools.is_empty() {
            return Err(ArchiveError::manifest("pools", "there are none"));
        }
        for (i, pool) in self.pools.iter().enumerate() {
            let bad = |detail| Err(ArchiveError::manifest(format!("pool {}", pool.id), detail));
            if pool.id.0 == 0 {
                return bad("no pool has this number");
            }
            if i > 0 && pool.id <= self.pools[i - 1].id {
                return bad("it is there twice, or out of order");
            }
            if let Err(reason) = check_name(&pool.name) {
                return bad(reason);
            }
            if !names.insert(pool.name.as_str()) {
                return bad("another one has its name");
            }
            if pool.at_rest != AtRest::None && pool.mode != PoolMode::Shadowed {
                return bad("it is protected at rest, which no pool in direct mode is");
            }
            if !outline::has_room(pool.puddle_size, true)
                || !pool.puddle_size.is_multiple_of(PAGE_SIZE)
            {
                return bad("no puddle can have the size of its first one");
            }
            if pool.size_max < pool.puddle_size {
                return bad("it could not have its first puddle");
            }
            if pool.permissions > 0o777 {
                return bad("it has permissions that no file has");
            }
        }
        Ok(())
    }

    fn check_puddles(&self) -> Result<(), ArchiveError> {
        let window_end = self.window.0.saturating_add(self.window.1);
        let (mut sums, mut uuids) = (BTreeMap::<PoolId, u64>::new(), HashSet::new());
        for (i, puddle) in self.puddles.iter().enumerate() {
            let bad = |detail| {
                let what = format!("puddle {} of pool {}", puddle.index, puddle.pool);
                Err(ArchiveError::manifest(what, detail))
            };
            let Some(pool) = self.pool(puddle.pool) else { return bad("there is no such pool") };
            let before = i.checked_sub(1).map(|i| &self.puddles[i]);
            if before.is_some_and(|before| before.pool > puddle.pool) {
                return bad("it is out of order");
            }
            let expected = match before {
                Some(before) if before.pool == puddle.pool => before.index.checked_add(1),
                _ => Some(0),
            };
            if expected != Some(puddle.index) {
                return bad("it is there twice or out of order, or one before it is missing");
            }
            if puddle.uuid.is_nil() || !uuids.insert(puddle.uuid) {
                return bad("its identity is none, or another one's");
            }
            if !puddle.size.is_multiple_of(PAGE_SIZE)
                || puddle.size > 1 << 46
                || !outline::has_room(puddle.size, puddle.index == 0)
            {
                return bad("no puddle can have its size");
            }
            let end = puddle.addr.checked_add(puddle.size);
            if !puddle.addr.is_multiple_of(SLOT_SIZE)
                || puddle.addr < self.window.0
                || end.is_none_or(|end| end > window_end)
            {
                return bad("its address is not in the window");
            }
            // Both are below 2^47: sums of sizes that do not overlap in a window are too, and of
            // others the next sum is refused.
            let sum = sums.entry(puddle.pool).or_default();
            *sum = sum.saturating_add(puddle.size);
            if *sum > pool.size_max {
                return bad("its pool is larger than it may be");
            }
        }
        if sums.len() != self.pools.len() {
            return Err(ArchiveError::manifest("pools", "one of them has no puddle"));
        }
        let mut places: Vec<&PuddleEntry> = self.puddles.iter().collect();
        places.sort_unstable_by_key(|puddle| puddle.addr);
        for pair in places.windows(2) {
            if let [a, b] = pair
                && a.end().next_multiple_of(SLOT_SIZE) > b.addr
            {
                let what = format!("puddles {} and {}", a.uuid, b.uuid);
                return Err(ArchiveError::manifest(what, "they overlap"));
            }
        }
        Ok(())
    }
}

/// What keeps a text from being the name of a pool.
fn check_name(name: &str) -> Result<(), &'static str> {
    if name.is_empty() || name.len() > POOL_NAME_LEN_MAX {
        return Err("its name is empty, or has more than 255 bytes");
    }
    if name.chars().any(char::is_control) || name.trim() != name {
        return Err("its name has control characters, or begins or ends with a space");
    }
    Ok(())
}

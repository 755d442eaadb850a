//! The pools of a store, as what pointers of one of them lead to.

use crate::stop::Stop;
use cenote::{Access, Pool, PoolId, Store};
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use cenote_layout::values::shown::ShownBlocks;
use std::collections::BTreeMap;

/// A pool, and those that its pointers lead to: they are opened when the first pointer does.
pub(super) struct StoreBlocks<'s> {
    store: &'s Store,
    /// By address.
    puddles: Vec<PuddleRecord>,
    /// Pools that were asked for, or why they cannot be read.
    pools: BTreeMap<PoolId, Result<Pool, String>>,
    pool: &'s Pool,
    /// Once it is set, no block is there any more: a walk ends.
    stop: &'s Stop,
}

impl<'s> StoreBlocks<'s> {
    pub(super) fn new(store: &'s Store, pool: &'s Pool, stop: &'s Stop) -> Self {
        let mut puddles = store.puddle_records();
        puddles.sort_by_key(|puddle| puddle.addr);
        Self { store, puddles, pools: BTreeMap::new(), pool, stop }
    }

    /// The puddle in which an address lies.
    fn puddle(&self, addr: u64) -> Option<PuddleRecord> {
        let behind = self.puddles.partition_point(|puddle| puddle.addr <= addr);
        let puddle = self.puddles.get(behind.checked_sub(1)?)?;
        (addr - puddle.addr < puddle.size && puddle.pool.0 != 0).then_some(*puddle)
    }

    /// The pool in which an address lies.
    fn pool(&mut self, addr: u64) -> Result<&Pool, String> {
        let puddle = self.puddle(addr).ok_or("no pool of this store is there")?;
        if puddle.pool == self.pool.id() {
            return Ok(self.pool);
        }
        let store = self.store;
        let opened = self.pools.entry(puddle.pool).or_insert_with(|| {
            let pools = store.pools();
            let info = pools.iter().find(|pool| pool.record.id == puddle.pool);
            let name = &info.ok_or("no pool of this store is there")?.record.name;
            store
                .pool_with(name, Access::ReadOnly)
                .map_err(|error| format!("it leads into pool \"{name}\": {error}"))
        });
        opened.as_ref().map_err(Clone::clone)
    }
}

impl ShownBlocks for StoreBlocks<'_> {
    fn block(&mut self, addr: u64) -> Result<(TypeId, u64), String> {
        if self.stop.is_set() {
            return Err("stopped".into());
        }
        match self.pool(addr)?.heap().owner(addr) {
            Some(block) if block.addr == addr => Ok((block.type_id, block.size)),
            Some(block) => Err(format!("it is inside of the block at {:#x}", block.addr)),
            None => Err("no block begins there".into()),
        }
    }

    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool {
        !self.stop.is_set() && self.pool(addr).is_ok_and(|pool| pool.read_at(addr, bytes).is_ok())
    }

    fn address(&mut self, place: &RegionAddress) -> Option<u64> {
        let is_it =
            |puddle: &&PuddleRecord| puddle.pool == place.pool && puddle.index == place.puddle;
        let puddle = self.puddles.iter().find(is_it)?;
        (place.offset < puddle.size).then(|| puddle.addr + place.offset)
    }
}

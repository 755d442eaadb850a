//! Turns region pointers (pool, puddle and offset) into addresses, and back (RAL-5).
//!
//! The catalog has the address of every puddle, behind a lock. A program that follows a region
//! pointer takes no lock if a thread has asked for that puddle before: a small table, which all
//! stores of the process share, has the addresses. Invariant: an entry is a guess, and counts only
//! if this store's window has, at that address, the puddle that was asked for. So no entry is ever
//! removed.

use crate::kernel::store::Store;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::pointer::RegionAddress;
use core::sync::atomic::{AtomicU64, Ordering};

const GUESSES: usize = 256;

/// Addresses of puddles, by a hash of pool and number.
static GUESS: [AtomicU64; GUESSES] = [const { AtomicU64::new(0) }; GUESSES];

impl Store {
    /// The address that a region pointer leads to; `None` if the store has no such puddle, or the
    /// offset is beyond its end. The pool need not be open: then nothing is mapped there.
    #[must_use]
    pub fn region_address(&self, region: &RegionAddress) -> Option<u64> {
        let key = region.pool.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(region.puddle);
        let guess = &GUESS[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as usize % GUESSES];
        let base = guess.load(Ordering::Relaxed);
        if let Some(puddle) = self.puddle_of(base)
            && puddle.pool() == region.pool
            && puddle.index() == region.puddle
            && puddle.addr() == base
        {
            return (region.offset < puddle.size()).then(|| base + region.offset);
        }
        let control = self.inner().control();
        let is_it =
            |record: &&PuddleRecord| record.pool == region.pool && record.index == region.puddle;
        let record = *control.catalog.state.puddles.values().find(is_it)?;
        drop(control);
        guess.store(record.addr, Ordering::Relaxed);
        (region.offset < record.size).then(|| record.addr + region.offset)
    }

    /// Pool, puddle and offset of an address in an open pool.
    #[must_use]
    pub fn region_of(&self, addr: u64) -> Option<RegionAddress> {
        let puddle = self.puddle_of(addr)?;
        Some(RegionAddress {
            pool: puddle.pool(),
            puddle: puddle.index(),
            offset: addr - puddle.addr(),
        })
    }
}

//! Fat pointers, as libraries with position-independent data have them: pool id and offset, 16
//! bytes, looked up at every use.
//!
//! The lookup is what PMDK's is: a thread remembers the last pool and its address; if the id is
//! another, or a pool was closed since, a table is searched. So in a structure of one pool a
//! dereference is a few predictable instructions, and what is left of the cost is mainly the size.

use std::cell::Cell;
use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

/// A pool's id and an offset in it.
#[derive(Debug)]
#[repr(C)]
pub struct Fat<T> {
    pool: u64,
    offset: u64,
    target: PhantomData<*mut T>,
}

impl<T> Clone for Fat<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Fat<T> {}

const _: () = assert!(size_of::<Fat<u64>>() == 16);

static POOLS: Mutex<BTreeMap<u64, u64>> = Mutex::new(BTreeMap::new());
/// Changes when a pool is closed.
static CHANGES: AtomicU64 = AtomicU64::new(1);

thread_local! {
    /// The pool used last: changes seen, id, address.
    static LAST: Cell<(u64, u64, u64)> = const { Cell::new((0, 0, 0)) };
}

/// Makes a pool known: where its offset 0 is.
pub fn open(pool: u64, base: u64) {
    POOLS.lock().unwrap_or_else(PoisonError::into_inner).insert(pool, base);
    CHANGES.fetch_add(1, Ordering::Relaxed);
}

impl<T> Fat<T> {
    /// Leads nowhere.
    pub const NULL: Self = Self { pool: 0, offset: 0, target: PhantomData };

    /// To an address of a pool whose offset 0 is at `base`.
    #[must_use]
    pub fn new(pool: u64, base: u64, addr: u64) -> Self {
        Self { pool, offset: addr - base, target: PhantomData }
    }

    /// The address, or null.
    #[inline(always)]
    #[must_use]
    pub fn direct(self) -> *mut T {
        if self.pool == 0 || self.offset == 0 {
            return core::ptr::null_mut();
        }
        let (seen, pool, base) = LAST.get();
        let base = if seen == CHANGES.load(Ordering::Relaxed) && pool == self.pool {
            base
        } else {
            find(self.pool)
        };
        core::ptr::with_exposed_provenance_mut((base + self.offset) as usize)
    }
}

#[cold]
fn find(pool: u64) -> u64 {
    let pools = POOLS.lock().unwrap_or_else(PoisonError::into_inner);
    let base = pools.get(&pool).copied().unwrap_or(0);
    LAST.set((CHANGES.load(Ordering::Relaxed), pool, base));
    base
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fat_pointer_leads_back_to_its_address() {
        let values = [7u64, 8];
        let base = values.as_ptr().expose_provenance() as u64 - 64;
        open(11, base);
        open(12, base + 8);
        assert!(Fat::<u64>::NULL.direct().is_null());
        for (pool, base) in [(11, base), (12, base + 8), (11, base)] {
            let fat = Fat::<u64>::new(pool, base, values.as_ptr().addr() as u64 + 8);
            // SAFETY: the address of the second value.
            assert_eq!(unsafe { fat.direct().read() }, 8);
        }
    }
}

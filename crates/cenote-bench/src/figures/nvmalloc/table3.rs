//! NVMalloc, Table 3: a store of keys and values in memory, as memcached is one, by its allocator.
//!
//! An operation is a put or a delete, half each, of a random one of 2^14 keys. A put allocates an
//! item, copies key and value into it, links it into the index and frees the item that the key had;
//! a delete unlinks and frees. Keys have 10 bytes, values 10 bytes to 4 KiB (`10B-4KB`), or 1 KiB
//! (`1KB`). Unit: million operations a second. What is to be done is computed before the clock
//! starts. Whenever an item is freed, its length, first and last byte are compared.
//!
//! The index is memcached's: buckets in memory of the process, and links in items. At `power` an
//! item is flushed and fenced before the index leads to it; links are not, as a program that keeps
//! its items would find them by its heap.
//!
//! | system | what it is |
//! | --- | --- |
//! | `slab` | memcached's allocator ([`super::slab`]) |
//! | `glibc`, `mimalloc` | malloc |
//! | `traced`, `logged` | heaps of this project |
//! | `wear`, `wear-0` | the wear heap, with a wait of 100 ms and without one |

use super::slab::Slab;
use crate::allocator::{Allocator, Fault, verdict};
use crate::case::{Case, Failure, NO_LEVEL, POWER, PROCESS, Sample, Stopwatch, Unit};
use crate::figures::figure::{Body, Figure};
use crate::figures::poseidon::On;
use crate::logged::Logged;
use crate::place::Settings;
use crate::random::Random;
use crate::traced::Traced;
use crate::wear::Wear;
use cenote::Durability;
use cenote_heap::logged::LoggedOptions;
use cenote_medium::Persistence;
use std::ptr::NonNull;
use std::sync::Arc;

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "nvmalloc-table3",
    title: "NVMalloc, Table 3: a store of keys and values, by its allocator",
    body: Body::Cases(ours),
};

/// The rows: least and greatest bytes of a value.
pub const ROWS: [(&str, usize, usize); 2] = [("10B-4KB", 10, 4096), ("1KB", 1024, 1024)];

/// Keys.
const KEYS: usize = 1 << 14;

/// Operations that are computed before; then they are repeated.
const COMPUTED: usize = 1 << 16;

fn ours(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let slab = Arc::new(Slab::default());
    let slab = On { allocator: slab, system: "slab", level: NO_LEVEL, counted: false };
    let mut cases = cases_of(&slab);
    for (level, durability) in [(PROCESS, Durability::Process), (POWER, Durability::Power)] {
        let allocator = Traced::open(settings, durability)?;
        cases.extend(cases_of(&On { allocator, system: "traced", level, counted: true }));
        let allocator = Logged::open(settings, durability, &LoggedOptions::default())?;
        cases.extend(cases_of(&On { allocator, system: "logged", level, counted: true }));
        for (system, wait_ms) in [("wear", 100), ("wear-0", 0)] {
            let allocator = Wear::open(settings, durability, wait_ms)?;
            cases.extend(cases_of(&On { allocator, system, level, counted: true }));
        }
    }
    Ok(cases)
}

/// All rows for one system.
#[must_use]
pub fn cases_of<A: Allocator>(on: &On<A>) -> Vec<Case> {
    let mut cases = Vec::new();
    for (row, least, most) in ROWS {
        let mut items = ItemStore::new(Arc::clone(&on.allocator), on.persistence(), KEYS);
        let steps = steps(KEYS, least, most);
        let mut at = 0;
        let mut case = Case::new(row, on.system, on.level, move |count| {
            run(&mut items, &steps, &mut at, count)
        });
        (case.counted, case.unit) = (on.counted, Unit::Millions("Mops/s"));
        cases.push(case);
    }
    cases
}

/// A put of a value of so many bytes, or a delete (0).
#[derive(Clone, Copy)]
struct ItemStep {
    key: u32,
    bytes: u32,
}

fn steps(keys: usize, least: usize, most: usize) -> Vec<ItemStep> {
    let mut random = Random::new(3);
    let mut step = || {
        let bytes = if random.below(2) == 0 { 0 } else { least + random.below(most - least + 1) };
        ItemStep { key: random.below(keys) as u32, bytes: bytes as u32 }
    };
    (0..COMPUTED).map(|_| step()).collect()
}

/// Goes on with the steps where the run before ended.
fn run<A: Allocator>(
    items: &mut ItemStore<A>,
    steps: &[ItemStep],
    at: &mut usize,
    count: u64,
) -> Result<Sample, Failure> {
    let mut watch = Stopwatch::new();
    let wrong = watch.time(count, || -> Result<u64, Fault> {
        let mut wrong = 0;
        for _ in 0..count {
            let ItemStep { key, bytes } = steps[*at % steps.len()];
            *at += 1;
            wrong |= match bytes {
                0 => items.delete(key),
                _ => items.put(key, bytes as usize)?,
            };
        }
        Ok(wrong)
    })?;
    verdict(wrong)?;
    Ok(watch.sample())
}

/// Bytes of a key.
const KEY_BYTES: usize = 10;

/// What an item begins with; its value follows.
#[derive(Clone, Copy)]
#[repr(C)]
struct ItemHead {
    /// The next item of the bucket.
    next: Option<Item>,
    bytes: u32,
    key: [u8; KEY_BYTES],
}

type Item = NonNull<ItemHead>;

/// Where the value begins.
const VALUE: usize = size_of::<ItemHead>();

/// Keys and values in blocks of an allocator.
struct ItemStore<A: Allocator> {
    allocator: Arc<A>,
    persistence: Persistence,
    /// The first item of each, a power of two of them.
    buckets: Vec<Option<Item>>,
    /// What values are copied from.
    source: Vec<u8>,
}

fn key_of(number: u32) -> [u8; KEY_BYTES] {
    let mut key = *b"k:00000000";
    let (digits, mut rest) = (&mut key[2..], number);
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest & 15) as u8;
        rest >>= 4;
    }
    key
}

impl<A: Allocator> ItemStore<A> {
    fn new(allocator: Arc<A>, persistence: Persistence, buckets: usize) -> Self {
        let buckets = vec![None; buckets.next_power_of_two()];
        Self { allocator, persistence, buckets, source: vec![7; 4096] }
    }

    fn bucket_of(&self, key: &[u8; KEY_BYTES]) -> usize {
        let mut hash = 0xcbf2_9ce4_8422_2325u64;
        for &byte in key {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
        (hash ^ hash >> 32) as usize & (self.buckets.len() - 1)
    }

    /// Not 0 if the item that the key had is not as it should be.
    fn put(&mut self, number: u32, bytes: usize) -> Result<u64, Fault> {
        let key = key_of(number);
        let bucket = self.bucket_of(&key);
        let size = VALUE + bytes;
        let Some(block) = NonNull::new(self.allocator.alloc(size)) else {
            return Err(Fault::OutOfMemory(size));
        };
        let (item, value) = (block.cast::<ItemHead>(), self.source[..bytes].as_ptr());
        // SAFETY: a block of `size` bytes at a multiple of 8, which is this store's own until it is
        // freed; the source is other memory.
        unsafe {
            item.write(ItemHead { next: None, bytes: bytes as u32, key });
            let to = block.add(VALUE);
            value.copy_to_nonoverlapping(to.as_ptr(), bytes);
            to.write(number as u8);
            to.add(bytes - 1).write(number as u8);
            self.persistence.persist(block.as_ptr(), size);
        }
        let old = self.unlink(bucket, &key);
        // SAFETY: as above; the link is a word of the head.
        unsafe { (*item.as_ptr()).next = self.buckets[bucket] };
        self.buckets[bucket] = Some(item);
        Ok(old.map_or(0, |old| self.give_back(old, number)))
    }

    /// Not 0 if the item that the key had is not as it should be.
    fn delete(&mut self, number: u32) -> u64 {
        let key = key_of(number);
        let old = self.unlink(self.bucket_of(&key), &key);
        old.map_or(0, |old| self.give_back(old, number))
    }

    fn unlink(&mut self, bucket: usize, key: &[u8; KEY_BYTES]) -> Option<Item> {
        let mut link: *mut Option<Item> = &mut self.buckets[bucket];
        loop {
            // SAFETY: a bucket, or the link of an item that the bucket leads to; such items are not
            // freed, and this store alone uses them.
            unsafe {
                let item = (*link)?;
                let head = item.as_ptr();
                if (*head).key == *key {
                    *link = (*head).next;
                    return Some(item);
                }
                link = &raw mut (*head).next;
            }
        }
    }

    fn give_back(&self, item: Item, number: u32) -> u64 {
        let block = item.cast::<u8>();
        // SAFETY: an item that was unlinked and is not freed yet, with its value behind its head.
        // A length that is not its own would lead beyond the block, so it is looked at first.
        unsafe {
            let bytes = (*item.as_ptr()).bytes as usize;
            let is_whole = (1..=self.source.len()).contains(&bytes)
                && block.add(VALUE).read() == number as u8
                && block.add(VALUE + bytes - 1).read() == number as u8;
            u64::from(!is_whole) | u64::from(!self.allocator.free(block.as_ptr()))
        }
    }
}

impl<A: Allocator> Drop for ItemStore<A> {
    fn drop(&mut self) {
        for bucket in 0..self.buckets.len() {
            while let Some(item) = self.buckets[bucket] {
                // SAFETY: an item of a bucket, unlinked here and freed once.
                unsafe {
                    self.buckets[bucket] = (*item.as_ptr()).next;
                    self.allocator.free(item.cast().as_ptr());
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::allocator::testing::Arena;

    fn of(arena: Arena) -> (Vec<Result<Sample, Failure>>, Arc<Arena>) {
        let allocator = Arc::new(arena);
        let on = On {
            allocator: Arc::clone(&allocator),
            system: "arena",
            level: NO_LEVEL,
            counted: false,
        };
        let ran = cases_of(&on).into_iter().map(|mut case| (case.work)(4000)).collect();
        (ran, allocator)
    }

    #[test]
    fn items_are_freed_and_damaged_ones_found() {
        let (ran, arena) = of(Arena::default());
        assert!(ran.iter().all(|sample| sample.as_ref().is_ok_and(|s| s.operations == 4000)));
        let (taken, freed) = arena.counts();
        assert!(taken > 3000 && taken == freed, "{taken} {freed}");
        for arena in [
            Arena { refuses: Some(100), ..Arena::default() },
            Arena { scribbles: true, ..Arena::default() },
        ] {
            for ran in of(arena).0 {
                let error = ran.expect_err("a damaged item").to_string();
                assert!(error.contains("refused"), "{error}");
            }
        }
        for ran in of(Arena { limit: Some(150), ..Arena::default() }).0 {
            assert!(ran.expect_err("no memory").to_string().contains("no block of"));
        }
    }

    #[test]
    fn a_store_has_the_last_value_of_each_key() {
        let mut items = ItemStore::new(Arc::new(Slab::default()), Persistence::PROCESS, 16);
        for number in 0..500 {
            assert_eq!(items.put(number, 100).expect("there is memory"), 0);
            assert_eq!(items.put(number, 200).expect("there is memory"), 0);
        }
        let linked = |items: &mut ItemStore<Slab>, number| {
            let key = key_of(number);
            let bucket = items.bucket_of(&key);
            let item = items.unlink(bucket, &key)?;
            // SAFETY: an item that was linked.
            let bytes = unsafe { (*item.as_ptr()).bytes };
            assert_eq!(items.give_back(item, number), 0);
            Some(bytes)
        };
        assert_eq!(items.delete(7), 0);
        assert_eq!(linked(&mut items, 7), None);
        assert!((8..500).all(|number| linked(&mut items, number) == Some(200)));
    }

    #[test]
    fn every_heap_has_both_rows() {
        let settings = Settings { quick: true, ..Settings::default() };
        for mut case in ours(&settings).expect("stores") {
            let sample = (case.work)(300).unwrap_or_else(|error| panic!("{case:?}: {error}"));
            assert!(sample.operations == 300 && !sample.elapsed.is_zero(), "{case:?}");
        }
    }
}

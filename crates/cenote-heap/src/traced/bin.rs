//! Bins: the blocks of one type and class that a thread's cache has ([`super::cache`]).

use super::marks::WORDS;
use crate::class::class_size;
use cenote_layout::heap::SUPERBLOCK_SIZE;
use cenote_layout::id::TypeId;
use core::ptr::null;
use core::sync::atomic::AtomicU8;

/// Most bytes in the stack of a bin, if that are `STACK_MIN` blocks at least.
const STACK_BYTES: u64 = 128 << 10;
const STACK_MIN: u64 = 16;
const STACK_MAX: usize = 256;

/// A block that a cache has, and its mark.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BinEntry {
    pub(crate) addr: u64,
    pub(crate) mark: *const AtomicU8,
}

/// The superblock that a bin takes blocks from: those whose bit is set are the bin's.
#[derive(Debug)]
pub(crate) struct Current {
    /// Address of the superblock.
    pub(crate) base: u64,
    /// The mark of its first block.
    pub(crate) marks: *const AtomicU8,
    /// Number of bits that are set.
    pub(crate) left: u32,
    /// No bit of a word before this one is set.
    pub(crate) word: u32,
    pub(crate) bits: [u64; WORDS],
}

impl Current {
    /// Takes a block back, if it is one of this superblock.
    #[inline]
    pub(crate) fn keep(&mut self, entry: BinEntry) -> bool {
        if entry.addr.wrapping_sub(self.base) >= SUPERBLOCK_SIZE {
            return false;
        }
        let index = (entry.mark.addr()).wrapping_sub(self.marks.addr());
        self.bits[index / 64] |= 1 << (index % 64);
        self.word = self.word.min((index / 64) as u32);
        self.left += 1;
        true
    }
}

/// Blocks of one type and class that a cache has.
#[derive(Debug)]
#[repr(C)]
pub(crate) struct Bin {
    pub(crate) type_id: TypeId,
    /// Blocks on the stack.
    pub(crate) len: u32,
    pub(crate) capacity: u32,
    pub(crate) class: u32,
    pub(crate) block_size: u32,
    /// Number of the list of superblocks with free blocks of this kind.
    pub(crate) list: u32,
    pub(crate) current: Current,
    /// The stack: addresses, oldest first, and their marks.
    addrs: [u64; STACK_MAX],
    marks: [*const AtomicU8; STACK_MAX],
}

impl Bin {
    pub(crate) fn new(type_id: TypeId, class: u32, list: u32) -> Self {
        let block_size = class_size(class);
        let capacity = match STACK_BYTES.checked_div(block_size) {
            Some(count) => count.clamp(STACK_MIN, STACK_MAX as u64),
            None => 0,
        };
        let current = Current { base: 0, marks: null(), left: 0, word: 0, bits: [0; WORDS] };
        Self {
            type_id,
            len: 0,
            capacity: capacity as u32,
            class,
            block_size: block_size as u32,
            list,
            current,
            addrs: [0; STACK_MAX],
            marks: [null(); STACK_MAX],
        }
    }

    /// Takes the youngest block off the stack, if there is one and this is the bin for that type.
    /// (For which class is known by where it was found.)
    #[inline(always)]
    pub(crate) fn pop(&mut self, type_id: TypeId) -> Option<BinEntry> {
        if self.type_id != type_id || self.len == 0 {
            return None;
        }
        let at = self.len as usize - 1;
        self.len = at as u32;
        // SAFETY: `len` never exceeds `capacity`, nor that `STACK_MAX`.
        unsafe {
            Some(BinEntry {
                addr: *self.addrs.get_unchecked(at),
                mark: *self.marks.get_unchecked(at),
            })
        }
    }

    #[inline]
    pub(crate) fn is_full(&self) -> bool {
        self.len == self.capacity
    }

    /// Puts a CACHED block on the stack, if there is room and `claim`, which makes it CACHED, says
    /// yes.
    #[inline(always)]
    pub(crate) fn push_if(&mut self, entry: BinEntry, claim: impl FnOnce() -> bool) -> bool {
        let len = self.len;
        if len == self.capacity || !claim() {
            return false;
        }
        let at = len as usize;
        // SAFETY: below `capacity`, which does not exceed `STACK_MAX`.
        unsafe {
            *self.addrs.get_unchecked_mut(at) = entry.addr;
            *self.marks.get_unchecked_mut(at) = entry.mark;
        }
        self.len = len + 1;
        true
    }

    /// Fills the stack from the current superblock, half of it or what is there, so that lower
    /// addresses come out first: run by run of neighbours.
    pub(crate) fn fill(&mut self) {
        let count = (self.capacity / 2).min(self.capacity - self.len).min(self.current.left);
        let current = &mut self.current;
        let size = u64::from(self.block_size);
        let mut end = (self.len + count) as usize;
        while end > self.len as usize {
            let bits = current.bits[current.word as usize];
            if bits == 0 {
                current.word += 1;
                continue;
            }
            let first = bits.trailing_zeros();
            let run = (bits >> first).trailing_ones().min(end as u32 - self.len);
            current.bits[current.word as usize] = bits & !(u64::MAX >> (64 - run) << first);
            let index = current.word * 64 + first;
            let start = end - run as usize;
            let mut addr = current.base + u64::from(index) * size;
            let mut mark = current.marks.wrapping_add(index as usize);
            for (addrs, marks) in
                self.addrs[start..end].iter_mut().zip(&mut self.marks[start..end]).rev()
            {
                (*addrs, *marks) = (addr, mark);
                addr += size;
                mark = mark.wrapping_add(1);
            }
            end = start;
        }
        self.len += count;
        current.left -= count;
    }

    /// The `count` oldest blocks of the stack, or all, oldest first; and the current superblock.
    pub(crate) fn oldest(&mut self, count: u32) -> (impl Iterator<Item = BinEntry>, &mut Current) {
        let count = count.min(self.len) as usize;
        let entries = self.addrs[..count].iter().zip(&self.marks[..count]);
        (entries.map(|(&addr, &mark)| BinEntry { addr, mark }), &mut self.current)
    }

    /// Forgets the `count` oldest blocks of the stack.
    pub(crate) fn forget(&mut self, count: usize) {
        self.addrs.copy_within(count..self.len as usize, 0);
        self.marks.copy_within(count..self.len as usize, 0);
        self.len -= count as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stacks_are_bounded_by_bytes_and_number() {
        for class in 1..crate::class::CLASS_COUNT as u32 {
            let bin = Bin::new(TypeId(1), class, 0);
            let bytes = u64::from(bin.capacity) * u64::from(bin.block_size);
            assert!(
                (16..=256).contains(&bin.capacity) && (bytes <= STACK_BYTES || bin.capacity == 16)
            );
            // Half a stack is filled and spilled at a time: what two of the largest kinds hold is
            // less than one more puddle.
            assert!(bytes <= 512 << 10);
        }
    }

    #[test]
    fn a_stack_is_filled_from_the_current_superblock_in_order_of_addresses() {
        let marks: Vec<AtomicU8> = (0..64).map(|_| AtomicU8::new(1)).collect();
        let mut bin = Bin::new(TypeId(1), 33, 0);
        assert_eq!((bin.block_size, bin.capacity), (2048, 64));
        bin.current =
            Current { base: 1 << 20, marks: marks.as_ptr(), left: 3, word: 0, bits: [0; WORDS] };
        bin.current.bits[0] = 0b1011;
        bin.fill();
        let base = 1 << 20;
        let size = u64::from(bin.block_size);
        let entries: Vec<BinEntry> = bin.oldest(9).0.collect();
        let addrs: Vec<u64> = entries.iter().map(|entry| entry.addr).collect();
        assert_eq!(addrs, [base + 3 * size, base + size, base]);
        assert_eq!((bin.len, bin.current.left), (3, 0));
        assert!(
            bin.current.keep(entries[1])
                && !bin.current.keep(BinEntry { addr: base - 64, mark: null() })
        );
        assert_eq!((bin.current.left, bin.current.bits[0]), (1, 0b10));
    }
}

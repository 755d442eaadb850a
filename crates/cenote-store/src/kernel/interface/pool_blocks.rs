//! Which blocks of a pool are allocated, where a puddle does not say that of its own.

use super::error::StoreError;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::id::TypeId;
use std::collections::BTreeMap;

/// Blocks of one size and one type that lie side by side, and which of them are allocated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockRun {
    /// From the start of the puddle to the first.
    pub offset: u64,
    /// Bytes of each.
    pub size: u64,
    /// Bit `i`: block `i` is allocated. Bit 0 is set.
    pub used: u64,
    /// What they hold.
    pub type_id: TypeId,
}

impl BlockRun {
    /// Blocks from the first to the last that is allocated.
    #[must_use]
    pub const fn count(&self) -> u32 {
        u64::BITS - self.used.leading_zeros()
    }
}

/// The allocated blocks of a pool whose heap describes them elsewhere than beside them, by number
/// of their puddle. A list is of one moment: that of the puddles that it was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PoolBlocks(BTreeMap<u32, Vec<BlockRun>>);

impl PoolBlocks {
    /// Adds a block. Those of one puddle come by rising offset.
    pub fn add(&mut self, puddle: u32, offset: u64, size: u64, type_id: TypeId) {
        let runs = self.0.entry(puddle).or_default();
        if let Some(last) = runs.last_mut().filter(|run| (run.size, run.type_id) == (size, type_id))
        {
            let behind = offset.wrapping_sub(last.offset);
            if size != 0 && behind.is_multiple_of(size) && behind / size < u64::from(u64::BITS) {
                last.used |= 1 << (behind / size);
                return;
            }
        }
        runs.push(BlockRun { offset, size, used: 1, type_id });
    }

    /// Those of a puddle, by rising offset.
    #[must_use]
    pub fn of(&self, puddle: u32) -> &[BlockRun] {
        self.0.get(&puddle).map_or(&[], Vec::as_slice)
    }
}

/// Reads what a puddle of a pool holds, from an offset on.
pub type ReadPuddle<'a> =
    &'a mut dyn FnMut(&PuddleRecord, u64, &mut [u8]) -> Result<(), StoreError>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_side_by_side_are_one_run_and_others_are_not() {
        let mut blocks = PoolBlocks::default();
        let (a, b) = (TypeId(1), TypeId(2));
        for (offset, size, type_id) in
            [(0, 16, a), (32, 16, a), (63 * 16, 16, a), (64 * 16, 16, a), (2048, 16, b)]
        {
            blocks.add(3, offset, size, type_id);
        }
        blocks.add(3, 4096, 64, b);
        blocks.add(4, 0, 64, b);
        let used = |puddle| -> Vec<(u64, u64, u32)> {
            blocks.of(puddle).iter().map(|run| (run.offset, run.used, run.count())).collect()
        };
        let first = (0, 1 | 1 << 2 | 1 << 63, 64);
        assert_eq!(used(3), [first, (1024, 1, 1), (2048, 1, 1), (4096, 1, 1)]);
        assert_eq!((used(4).len(), used(5).len()), (1, 0));
    }
}

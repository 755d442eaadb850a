//! Maps of relaxed durability: the first leaf, and those that the index leads to.

use super::{Blocks, Checked, DESTROYED, Structures, constructor, places, target, words};
use crate::id::TypeId;
use crate::types::TypeRecord;

extern crate alloc;
use alloc::vec::Vec;

impl Structures<'_> {
    /// The leaves of the index are entered with its own.
    pub(super) fn relaxed(
        &mut self,
        header: u64,
        record: &TypeRecord,
        blocks: &mut dyn Blocks,
    ) -> Checked {
        let at = places(header, record, ["closed", "first", "index"])?;
        let [closed, first, index] = words(at, blocks)?;
        if closed == DESTROYED {
            return Ok(());
        }
        let (leaf, tree) =
            (target(record, at[1] - header, header)?, target(record, at[2] - header, header)?);
        if first != 0 {
            self.enter(at[1], first, leaf, blocks)?;
        }
        self.enter(at[2], index, tree, blocks).map(drop)
    }

    /// Links in an element that own what they lead to: their places, and the types.
    pub(super) fn owning(&self, element: TypeId) -> Vec<(u64, TypeId)> {
        let Some(record) = self.values.record_of(element) else { return Vec::new() };
        let is_leaf = |id| {
            let target = self.values.record_of(id);
            target.is_some_and(|target| constructor(&target.name) == "cenote/RelaxedLeaf")
        };
        let owns = record.pointers.iter().filter(|pointer| is_leaf(pointer.target));
        owns.map(|pointer| (pointer.offset, pointer.target)).collect()
    }
}

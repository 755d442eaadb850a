//! The catalog's records of stamps ([`crate::kernel::puddles::stamps`]): the seal of each puddle,
//! and the era in which a close left it.

use super::CatalogState;
use cenote_layout::catalog::Record;
use cenote_layout::id::Uuid;
use cenote_layout::puddle::is_era;
use std::collections::BTreeMap;

impl CatalogState {
    /// The records that name the seals of all puddles, and then the eras of those that were left:
    /// a seal ends what was left before it.
    pub(super) fn sealed(&self) -> impl Iterator<Item = Record> {
        let by_stamp = |stamps: &BTreeMap<Uuid, u64>| {
            let mut by_stamp: BTreeMap<u64, Vec<Uuid>> = BTreeMap::new();
            for (puddle, stamp) in stamps {
                by_stamp.entry(*stamp).or_default().push(*puddle);
            }
            by_stamp.into_iter().flat_map(|(stamp, puddles)| Record::sealed(stamp, &puddles))
        };
        by_stamp(&self.seals).chain(by_stamp(&self.left))
    }

    /// The same for objects: their records are written anew with other addresses, and their files
    /// stay as they are.
    pub(crate) fn stamps_of_objects(&self) -> Vec<Record> {
        let is_object = |(puddle, _): &(&Uuid, &u64)| self.objects.contains_key(puddle);
        let stamps = self.seals.iter().filter(is_object).chain(self.left.iter().filter(is_object));
        stamps.flat_map(|(puddle, stamp)| Record::sealed(*stamp, &[*puddle])).collect()
    }

    /// These puddles have a seal, or were left in an era.
    pub(super) fn stamped(&mut self, stamp: u64, puddles: &[Uuid]) {
        for puddle in puddles {
            if is_era(stamp) {
                self.left.insert(*puddle, stamp);
            } else {
                self.left.remove(puddle);
                self.seals.insert(*puddle, stamp);
            }
        }
    }

    /// A puddle has no stamp any more.
    pub(super) fn unsealed(&mut self, puddle: &Uuid) {
        self.seals.remove(puddle);
        self.left.remove(puddle);
    }
}

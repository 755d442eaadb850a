//! Pools that are being copied or moved for a client ([`crate::relocate`], copies.rs).

use crate::kernel::interface::options::Access;
use crate::kernel::store::Control;
use crate::kernel::store::extensions::Extension;
use cenote_layout::id::PoolId;
use cenote_medium::planted::{Bug, planted};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

/// Pools that are held.
#[derive(Debug, Default)]
pub(crate) struct PoolPins(BTreeMap<PoolId, Hold>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// By this many copies.
    Copied(u32),
    Moved,
}

impl PoolPins {
    /// Whether a pool cannot be granted for this.
    pub(crate) fn exclude(&self, pool: PoolId, access: Access) -> bool {
        match self.0.get(&pool) {
            None => false,
            Some(Hold::Copied(_)) => access.writes() && !planted(Bug::CopyNotHeld),
            Some(Hold::Moved) => true,
        }
    }

    /// Whether it is held at all.
    pub(crate) fn any(&self, pool: PoolId) -> bool {
        self.0.contains_key(&pool)
    }

    pub(crate) fn add(&mut self, pool: PoolId, hold: Hold) -> bool {
        match (self.0.entry(pool), hold) {
            (Entry::Vacant(place), hold) => {
                place.insert(hold);
                true
            }
            (Entry::Occupied(mut place), Hold::Copied(_)) => match place.get_mut() {
                Hold::Copied(copies) => {
                    *copies += 1;
                    true
                }
                Hold::Moved => false,
            },
            (Entry::Occupied(_), Hold::Moved) => false,
        }
    }

    pub(crate) fn end(&mut self, pool: PoolId) {
        if let Some(Hold::Copied(copies)) = self.0.get_mut(&pool)
            && *copies > 1
        {
            *copies -= 1;
            return;
        }
        self.0.remove(&pool);
    }
}

impl Extension for PoolPins {}

impl Control {
    pub(crate) fn held(&self) -> &PoolPins {
        self.parts.get()
    }

    pub(crate) fn held_mut(&mut self) -> &mut PoolPins {
        self.parts.get_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_go_beside_each_other_and_a_move_goes_alone() {
        let (mut holds, pool) = (PoolPins::default(), PoolId(7));
        assert!(holds.add(pool, Hold::Copied(1)) && holds.add(pool, Hold::Copied(1)));
        assert!(!holds.add(pool, Hold::Moved), "it is being copied");
        assert!(holds.exclude(pool, Access::ReadWrite) && holds.exclude(pool, Access::Shared));
        assert!(
            !holds.exclude(pool, Access::ReadOnly) && !holds.exclude(PoolId(8), Access::ReadWrite)
        );
        holds.end(pool);
        assert!(holds.any(pool), "the other copy goes on");
        holds.end(pool);
        assert!(!holds.any(pool) && holds.add(pool, Hold::Moved));
        assert!(holds.exclude(pool, Access::ReadOnly) && !holds.add(pool, Hold::Copied(1)));
        holds.end(pool);
        assert!(!holds.any(pool));
    }
}

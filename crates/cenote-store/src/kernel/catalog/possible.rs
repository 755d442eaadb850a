//! Removes puddle records that cannot be.

use super::CatalogState;
use crate::kernel::interface::report::Damage;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::puddle::Role;
use cenote_layout::{PAGE_SIZE, SLOT_SIZE};

impl CatalogState {
    /// Takes out puddle records that cannot be (outside the window, misaligned, one on top of the
    /// other) and names them: a record that passes can be mapped at its address.
    pub(crate) fn check(&mut self, window_base: u64, window_len: u64) -> Vec<Damage> {
        let mut damage = Vec::new();
        let mut by_addr: Vec<PuddleRecord> = self.puddles.values().copied().collect();
        by_addr.sort_by_key(|p| (p.addr, p.uuid));
        let window_end = window_base.saturating_add(window_len);
        let mut free_from = window_base;
        for puddle in by_addr {
            let end = puddle.addr.checked_add(puddle.size);
            let problem = if !puddle.addr.is_multiple_of(SLOT_SIZE)
                || puddle.size == 0
                || !puddle.size.is_multiple_of(PAGE_SIZE)
            {
                Some("its address or size is not aligned")
            } else if end.is_none_or(|end| end > window_end) || puddle.addr < window_base {
                Some("it lies outside the window")
            } else if puddle.addr < free_from {
                Some("it lies on top of another puddle")
            } else if puddle.pool.0 != 0 && !self.pools.contains_key(&puddle.pool) {
                Some("its pool is not known")
            } else if puddle.role == Role::Object && !self.objects.contains_key(&puddle.uuid) {
                Some("its object is not known")
            } else if (puddle.pool.0 == 0) == (puddle.role.is_of_pool()) {
                Some("its role and its pool do not fit")
            } else {
                None
            };
            if let Some(problem) = problem {
                damage.push(Damage::Puddle {
                    uuid: puddle.uuid,
                    pool: puddle.pool,
                    index: puddle.index,
                    detail: format!(
                        "catalog record at {:#x}, {} bytes: {problem}",
                        puddle.addr, puddle.size
                    ),
                });
                self.puddles.remove(&puddle.uuid);
            } else {
                free_from = end.unwrap_or(free_from).next_multiple_of(SLOT_SIZE);
            }
        }
        damage
    }
}

#[cfg(test)]
mod tests {
    use super::super::samples::{object, pool, puddle};
    use super::*;
    use cenote_layout::catalog::Record;
    use cenote_layout::id::{PoolId, Uuid};

    #[test]
    fn an_objects_puddle_without_its_object_is_damage() {
        let base = 1 << 40;
        let mut state = CatalogState::default();
        for (number, addr) in [(1, base), (2, base + (4 << 20))] {
            state.apply(&Record::Puddle(PuddleRecord {
                uuid: Uuid([number; 16]),
                pool: PoolId(0),
                role: Role::Object,
                index: 0,
                addr,
                size: 8192,
            }));
        }
        state.apply(&object(1, "a"));
        let damage = state.check(base, 64 << 20);
        assert!(
            matches!(&damage[..], [Damage::Puddle { uuid, .. }] if *uuid == Uuid([2; 16])),
            "{damage:?}"
        );
        assert!(state.puddles.contains_key(&Uuid([1; 16])));
    }

    #[test]
    fn impossible_puddles_are_named_and_left_out() {
        let base = 1 << 40;
        let mut state = CatalogState::default();
        for record in [
            Record::NextPool(PoolId(1)),
            pool(1, "a"),
            puddle(1, 1, base, 3 << 20),
            puddle(2, 1, base + (2 << 20), 4096),
            puddle(3, 1, base + 4096, 4096),
            puddle(4, 9, base + (8 << 20), 4096),
            puddle(5, 1, base + (64 << 20), 4096),
            puddle(6, 1, base + (4 << 20), 4096),
        ] {
            state.apply(&record);
        }
        let damage = state.check(base, 64 << 20);
        assert_eq!(damage.len(), 4, "{damage:?}");
        assert_eq!(state.puddles.len(), 2);
    }
}

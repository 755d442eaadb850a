//! Finds addresses for the puddles of a pool ([`super`], "Addresses").

use crate::kernel::puddles::window::Space;
use crate::manifest::ImportPuddle;
use cenote_layout::SLOT_SIZE;

/// A pool moves as a whole if the room that takes is at most so many times its size.
const SPREAD_MAX: u64 = 4;

/// Finds places: new addresses of all puddles of a pool. Those are taken then; `None`, and nothing
/// is, if there is no room.
pub(super) fn place(space: &mut Space, puddles: &[ImportPuddle]) -> Option<Vec<u64>> {
    let take_all =
        |space: &mut Space, at: &mut dyn FnMut(&mut Space, &ImportPuddle) -> Option<u64>| {
            let mut taken = Vec::with_capacity(puddles.len());
            for puddle in puddles {
                match at(space, puddle) {
                    Some(addr) => taken.push(addr),
                    None => {
                        for (addr, puddle) in taken.iter().zip(puddles) {
                            space.give_back(*addr, puddle.size);
                        }
                        return None;
                    }
                }
            }
            Some(taken)
        };
    let take_at = |space: &mut Space, addr: u64, size| space.take_at(addr, size).then_some(addr);
    if let Some(kept) =
        take_all(space, &mut |space, puddle| take_at(space, puddle.old_addr, puddle.size))
    {
        return Some(kept);
    }
    let first = puddles.iter().map(|puddle| puddle.old_addr).min()?;
    let last = puddles.iter().map(|puddle| puddle.old_addr + puddle.size).max()?;
    let sum: u64 = puddles.iter().map(|puddle| puddle.size.next_multiple_of(SLOT_SIZE)).sum();
    if (last - first) / SPREAD_MAX <= sum
        && let Some(base) = space.take(last - first)
    {
        space.give_back(base, last - first);
        let together = take_all(space, &mut |space, puddle| {
            take_at(space, base + (puddle.old_addr - first), puddle.size)
        });
        if together.is_some() {
            return together;
        }
    }
    take_all(space, &mut |space, puddle| space.take(puddle.size))
}

#[cfg(test)]
mod tests {
    use super::*;
    use cenote_layout::id::Uuid;
    use cenote_layout::puddle::Role;

    const BASE: u64 = 1 << 40;

    fn puddles(list: &[(u64, u64)]) -> Vec<ImportPuddle> {
        list.iter()
            .map(|&(slot, slots)| ImportPuddle {
                old_addr: BASE + slot * SLOT_SIZE,
                size: slots * SLOT_SIZE,
                identity: Uuid::NIL,
                role: Role::Heap,
            })
            .collect()
    }

    fn slots(placed: Option<Vec<u64>>) -> Option<Vec<u64>> {
        Some(placed?.into_iter().map(|addr| (addr - BASE) / SLOT_SIZE).collect())
    }

    #[test]
    fn addresses_are_kept_if_all_are_free_and_else_moved_together_and_at_last_one_by_one() {
        let mut space = Space::new(BASE, 16 * SLOT_SIZE);
        let pool = puddles(&[(2, 1), (4, 2)]);
        assert_eq!(slots(place(&mut space, &pool)), Some(vec![2, 4]), "free: kept");
        assert_eq!(
            slots(place(&mut space, &pool)),
            Some(vec![6, 8]),
            "taken: both by one distance"
        );
        assert_eq!(slots(place(&mut space, &puddles(&[(2, 1), (4, 2)]))), Some(vec![10, 12]));
        let free = space.free_bytes();
        assert_eq!(free, 7 * SLOT_SIZE);
        // 0, 1, 3, 7, 11, 14 and 15 are left: no room for four in a row.
        assert_eq!(slots(place(&mut space, &pool)), Some(vec![0, 14]), "one by one");
        assert_eq!(space.free_bytes(), 4 * SLOT_SIZE);
        assert_eq!(place(&mut space, &pool), None, "no room");
        assert_eq!(space.free_bytes(), 4 * SLOT_SIZE, "and nothing is taken");
    }
}

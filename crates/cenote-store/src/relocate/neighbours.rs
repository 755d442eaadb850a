//! Finds ranges for pointers one past the end of a puddle that stays, where another moves away
//! behind it.

use cenote_layout::catalog::MoveRecord;

/// Adds those puddles that stay where they are and end where one that moves began, as moves to
/// where they are: a pointer one past their end is theirs, and stays. Sorts by address.
pub(super) fn add_neighbours(moves: &mut Vec<MoveRecord>, all: impl Iterator<Item = (u64, u64)>) {
    moves.sort_by_key(|moved| moved.from);
    let begins = |addr: u64| moves.binary_search_by_key(&addr, |moved| moved.from).is_ok();
    let stay: Vec<MoveRecord> = all
        .filter(|&(addr, size)| begins(addr + size) && !begins(addr))
        .map(|(addr, size)| MoveRecord { from: addr, to: addr, size })
        .collect();
    moves.extend(stay);
    moves.sort_by_key(|moved| moved.from);
}

//! Finds a place for a new window that no other store has, as far as can be known.
//!
//! All windows lie in one part of the address space ([`REGION`], 48 TiB), clear of the loader, of
//! libraries and of the sanitizers' shadow memory. Places are multiples of the window's length,
//! rounded up to a power of two. Two windows of one length then collide only if they have the same
//! place; with places at finer steps they would collide twice as often, because each overlaps what
//! begins in it and what it begins in. Windows of several lengths fill the region as buddies do,
//! without gaps.
//!
//! The choice begins at a hash of the store's identity, so stores of machines that never met have
//! different places. It prefers, in this order:
//!
//! 1. a place that no known window has a byte of: not one that this process chose, and not one that
//!    the user's programs noted ([`crate::kernel::puddles::known`]);
//! 2. of the others, the one that was chosen or noted longest ago.
//!
//! A place counts only if it is free in this process now. Two processes that choose at one moment
//! may choose one place: then one of the stores moves when both are open in one process
//! ([`crate::relocate`]).

use crate::kernel::puddles::known;
use cenote_layout::SLOT_SIZE;
use cenote_layout::checksum::checksum;
use cenote_layout::id::Uuid;
use cenote_medium::{Medium, MediumKind};
use core::sync::atomic::{AtomicU64, Ordering};

/// Where windows are chosen.
const REGION: (u64, u64) = (0x2000_0000_0000, 0x5000_0000_0000);
/// Least distance of two places.
const STRIDE_MIN: u64 = 1 << 30;
/// Most places that are looked at.
const PLACES_MAX: u64 = 4096;

/// Windows that this process chose last, each as one word (0: none), and how many it chose. No
/// lock, because a forked child may format a store too.
static CHOSEN: [AtomicU64; 1024] = [const { AtomicU64::new(0) }; 1024];
static CHOSEN_COUNT: AtomicU64 = AtomicU64::new(0);

/// A range of addresses: base and bytes.
type Range = (u64, u64);

fn overlap((base, len): Range, (other, other_len): Range) -> bool {
    base < other.saturating_add(other_len) && other < base.saturating_add(len)
}

/// What this process chose, the last one last.
fn chosen() -> Vec<Range> {
    let count = CHOSEN_COUNT.load(Ordering::Acquire);
    let all = CHOSEN.len() as u64;
    let words = (count.saturating_sub(all)..count)
        .map(|at| CHOSEN[(at % all) as usize].load(Ordering::Acquire));
    words.map(|word| ((word >> 32) * SLOT_SIZE, (word & 0xffff_ffff) * SLOT_SIZE)).collect()
}

fn remember((base, len): Range) {
    let at = CHOSEN_COUNT.fetch_add(1, Ordering::AcqRel) as usize % CHOSEN.len();
    CHOSEN[at].store((base / SLOT_SIZE) << 32 | (len / SLOT_SIZE), Ordering::Release);
}

/// When a window that has a byte of this one was known last, counted from 1; 0: never.
fn last_known(known: &[Range], range: Range) -> usize {
    known.iter().rposition(|other| overlap(*other, range)).map_or(0, |at| at + 1)
}

/// Places for a window of `len` bytes, those first that the module prefers; none has a byte of what
/// is in `not`.
fn candidates(uuid: Uuid, len: u64, known: &[Range], not: &[Range]) -> Vec<u64> {
    let stride = len.next_power_of_two().max(STRIDE_MIN);
    let places = (REGION.1 - REGION.0) / stride;
    let hash = checksum(0, &uuid.0);
    let base = |attempt: u64| REGION.0 + hash.wrapping_add(attempt) % places * stride;
    let all = (0..places.min(PLACES_MAX)).map(base);
    let allowed = all.filter(|base| !not.iter().any(|other| overlap(*other, (*base, len))));
    let mut candidates: Vec<(usize, u64)> =
        allowed.map(|base| (last_known(known, (base, len)), base)).collect();
    candidates.sort_by_key(|(last, _)| *last);
    candidates.into_iter().map(|(_, base)| base).collect()
}

/// Whether windows on this medium are noted: a simulation repeats itself, and does not depend on
/// the machine's stores.
fn is_noted(medium: &dyn Medium) -> bool {
    medium.describe().kind != MediumKind::Simulated
}

/// A place for a window of `len` bytes that is free in this process and has no byte of what is in
/// `not`.
pub(crate) fn choose(medium: &dyn Medium, uuid: Uuid, len: u64, not: &[Range]) -> Option<u64> {
    let mut known = if is_noted(medium) { known::read() } else { Vec::new() };
    let before = CHOSEN_COUNT.load(Ordering::Acquire);
    known.extend(chosen());
    for base in candidates(uuid, len, &known, not) {
        if medium.reserve_window(base, len).is_err() {
            continue;
        }
        // Another thread may have chosen it a moment ago.
        let since = CHOSEN_COUNT.load(Ordering::Acquire).wrapping_sub(before) as usize;
        let is_mine = chosen().iter().rev().take(since).all(|other| !overlap(*other, (base, len)));
        if is_mine {
            remember((base, len));
        }
        // SAFETY: reserved just now, and nothing was mapped in it.
        let _ = unsafe { medium.release_window(base, len) };
        if is_mine {
            return Some(base);
        }
    }
    None
}

/// Lets later choices of this user's programs avoid a window.
pub(crate) fn note(medium: &dyn Medium, base: u64, len: u64) {
    if is_noted(medium) {
        known::note(base, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    const LEN: u64 = 1 << 36;

    #[test]
    fn windows_that_were_chosen_are_remembered_by_every_byte() {
        // No test formats a store so high.
        let (base, len) = (0x4fff_0000_0000, 1 << 30);
        assert_eq!(last_known(&chosen(), (base, len)), 0);
        remember((base, len));
        let known = chosen();
        let last = |base, len| last_known(&known, (base, len));
        assert!(last(base, len) > 0);
        assert!(
            last(base + len - SLOT_SIZE, 1 << 40) > 0 && last(base - SLOT_SIZE, 2 * SLOT_SIZE) > 0
        );
        assert_eq!((last(base + len, len), last(base - len, len)), (0, 0));
    }

    #[test]
    fn hundreds_of_windows_of_the_default_length_have_a_place_each() {
        let len = crate::FormatOptions::default().window_len;
        let (mut known, mut seen) = (Vec::new(), BTreeSet::new());
        for number in 0..700u32 {
            let mut id = [1; 16];
            id[..4].copy_from_slice(&number.to_le_bytes());
            let base = candidates(Uuid(id), len, &known, &[])[0];
            assert!(seen.insert(base), "window {number} is another one's");
            known.push((base, len));
        }
        assert!(known.iter().all(|(base, len)| *base >= REGION.0 && base + len <= REGION.1));
        assert!((1..700).all(|i| known[..i].iter().all(|other| !overlap(*other, known[i]))));
    }

    #[test]
    fn windows_of_several_lengths_do_not_overlap_while_there_is_room() {
        let mut known: Vec<Range> = Vec::new();
        for number in 0..80u64 {
            let len = [1 << 30, 3 << 30, LEN, 1 << 38][number as usize % 4];
            let base = candidates(Uuid([number as u8 + 1; 16]), len, &known, &[])[0];
            assert!(known.iter().all(|other| !overlap(*other, (base, len))), "window {number}");
            known.push((base, len));
        }
    }

    #[test]
    fn where_all_places_are_known_the_one_that_was_known_longest_ago_is_first() {
        let all: Vec<Range> =
            candidates(Uuid([3; 16]), LEN, &[], &[]).iter().map(|at| (*at, LEN)).collect();
        assert_eq!(all.len(), 768);
        let order = candidates(Uuid([9; 16]), LEN, &all, &[]);
        assert_eq!(order[0], all[0].0);
        // A place that must not be is not there at all.
        let without = candidates(Uuid([9; 16]), LEN, &all, &[(all[0].0 + SLOT_SIZE, 1)]);
        assert_eq!((without.len(), without[0]), (767, all[1].0));
    }
}

//! Marks: one byte a block that says whether the block is allocated, and how.
//!
//! Invariant: every legal mark has an even number of bits set, so one flipped bit of any mark makes
//! it illegal. Only FREE, ALLOCATED and CONDEMNED survive the processes that have the pool open;
//! every other legal mark means *free* to the next opener. An opener that finds an illegal mark
//! takes the superblock out of use (crate `cenote-heap`, `adopt`).
//!
//! | mark | value | bits |
//! | --- | --- | --- |
//! | FREE | 0x00 | 0 |
//! | ALLOCATED | 0xff | 8 |
//! | TAKEN | 0xf0 | 4 |
//! | TINY, CONDEMNED, spare values | the first of the words with 4 bits | 4 |
//! | in a cache of member 1 to 56 | the next words with 4 bits | 4 |
//! | held by member 1 to 56 | the last words with 4 bits, then words with 2 or 6 | 4, 2, 6 |
//!
//! So all that a pool of one process writes is at distance 4 from FREE and from ALLOCATED: three
//! flipped bits of a mark are found there too. FREE and ALLOCATED are at distance 8. Words above
//! TAKEN have no meaning but ALLOCATED, so one comparison says whether a block is live.

/// Most processes that have a pool open for writing at one time.
pub const MEMBER_COUNT: u64 = 56;

/// No process has the block: it can be claimed.
pub const FREE: u8 = 0;
/// Allocated: the only value that survives a crash as such.
pub const ALLOCATED: u8 = 0xff;
/// Taken by a transaction at level `power` that has not committed: allocated for the running
/// processes, free for the next opener.
pub const TAKEN: u8 = 0xf0;
/// In place of the first mark in the metadata of a superblock that uses its tiny marks, while it is
/// in use.
pub const TINY: u8 = WORDS[0];
/// No program may use the block: no root leads to it. What an opener makes of it,
/// [`SweepState`](crate::heap::SweepState) says.
pub const CONDEMNED: u8 = WORDS[1];
/// Values without a meaning yet, illegal so far. A new mark is named here, gets a [`Meaning`], and
/// says there what an opener makes of it.
pub const SPARE: [u8; 3] = [WORDS[2], WORDS[3], WORDS[4]];
/// In a cache of member 1, and of the only process where there is one.
pub const CACHED: u8 = cached(1);
/// Held by member 1, and by the only process where there is one.
pub const HELD: u8 = held(1);

const MEMBERS: usize = MEMBER_COUNT as usize;
/// Words before those of members.
const RESERVED: usize = 5;
const WORD_COUNT: usize = RESERVED + 2 * MEMBERS;

/// Words below TAKEN with 4 bits, then with 2 or 6, each group in ascending order.
const WORDS: [u8; WORD_COUNT] = {
    let mut words = [0; WORD_COUNT];
    let (mut count, mut round) = (0, 0);
    while round < 2 {
        let mut value = 1u8;
        while value < TAKEN {
            let bits = value.count_ones();
            let fits = if round == 0 { bits == 4 } else { bits == 2 || bits == 6 };
            if fits && count < WORD_COUNT {
                words[count] = value;
                count += 1;
            }
            value += 1;
        }
        round += 1;
    }
    assert!(count == WORD_COUNT);
    words
};

/// The mark of a block in a cache of a member, 1 to [`MEMBER_COUNT`].
#[must_use]
pub const fn cached(member: u8) -> u8 {
    WORDS[RESERVED + member as usize - 1]
}

/// The mark of a block that a transaction of a member freed and that is not over yet: not
/// allocated, and not to be given out.
#[must_use]
pub const fn held(member: u8) -> u8 {
    WORDS[RESERVED + MEMBERS + member as usize - 1]
}

/// What a legal mark says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// [`FREE`].
    Free,
    /// [`ALLOCATED`].
    Allocated,
    /// [`TAKEN`].
    Taken,
    /// [`TINY`].
    Tiny,
    /// [`CONDEMNED`].
    Condemned,
    /// [`cached`].
    Cached(u8),
    /// [`held`].
    Held(u8),
}

/// Meaning by value.
static MEANINGS: [Option<Meaning>; 256] = {
    let mut table = [None; 256];
    table[FREE as usize] = Some(Meaning::Free);
    table[ALLOCATED as usize] = Some(Meaning::Allocated);
    table[TAKEN as usize] = Some(Meaning::Taken);
    table[TINY as usize] = Some(Meaning::Tiny);
    table[CONDEMNED as usize] = Some(Meaning::Condemned);
    let mut member = 1;
    while member <= MEMBERS as u8 {
        table[cached(member) as usize] = Some(Meaning::Cached(member));
        table[held(member) as usize] = Some(Meaning::Held(member));
        member += 1;
    }
    table
};

/// What a mark says; `None`: it is illegal.
#[inline]
#[must_use]
pub fn meaning(mark: u8) -> Option<Meaning> {
    MEANINGS[mark as usize]
}

/// Whether the mark of a block is illegal. (TINY is the mark of no block.)
#[inline]
#[must_use]
pub fn is_illegal(mark: u8) -> bool {
    matches!(meaning(mark), None | Some(Meaning::Tiny))
}

/// Whether a mark says, to a running process, that the block belongs to a program.
#[inline]
#[must_use]
pub const fn is_live(mark: u8) -> bool {
    mark >= TAKEN
}

/// Whether an illegal mark was more likely ALLOCATED than FREE before its bits flipped.
#[must_use]
pub const fn was_allocated(mark: u8) -> bool {
    mark.count_ones() > 4
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_flipped_bit_makes_every_mark_illegal() {
        for value in 0..=255u8 {
            let legal = meaning(value).is_some();
            assert!(!legal || value.count_ones() % 2 == 0, "{value:#x}");
            for bit in 0..8 {
                assert!(!legal || meaning(value ^ 1 << bit).is_none(), "{value:#x} {bit}");
            }
        }
        assert!(SPARE.iter().all(|&mark| meaning(mark).is_none() && mark.count_ones() == 4));
    }

    #[test]
    fn what_one_process_writes_is_four_bits_from_what_survives() {
        for mark in
            [CACHED, HELD, TAKEN, TINY, CONDEMNED].into_iter().chain((1..=8).map(held)).chain(SPARE)
        {
            assert_eq!(mark.count_ones(), 4, "{mark:#x}");
        }
        assert!((1..=MEMBER_COUNT as u8).all(|member| cached(member).count_ones() == 4));
    }

    #[test]
    fn members_have_marks_of_their_own() {
        for member in 1..=MEMBER_COUNT as u8 {
            assert_eq!(meaning(cached(member)), Some(Meaning::Cached(member)));
            assert_eq!(meaning(held(member)), Some(Meaning::Held(member)));
        }
        let live: Vec<u8> =
            (0..=255).filter(|&mark| meaning(mark).is_some() && is_live(mark)).collect();
        assert_eq!(live, [TAKEN, ALLOCATED]);
        assert_eq!((0..=255).filter(|&mark| meaning(mark).is_some()).count(), 5 + 2 * MEMBERS);
    }
}

//! Tickets: what a sub-heap knows of one block that a pool's transaction allocated or is to free.
//!
//! A ticket is one line:
//!
//! ```text
//! 0      8           32      48         64
//! | word | zeros     | entry | zeros    |
//! ```
//!
//! Invariant: the entry ([`MicroEntry`](super::MicroEntry)) counts if it has the number of the
//! word. Then the *mark* in the word says whether the block is allocated: ALLOCATED, or not. The
//! transaction's log names the mark, as it names the marks of other heaps. The word lies in another
//! cell than the entry, because changes cover the entry and not the word.

use super::{CELL_SIZE, MICRO_SEQUENCE_BITS};
use crate::checksum::{checksum, seed};
use crate::mark::{ALLOCATED, FREE, HELD, TAKEN};
use zerocopy::IntoBytes;

/// Bytes of a ticket.
pub const TICKET_SIZE: u64 = 2 * CELL_SIZE;
/// Most tickets of a sub-heap.
pub const TICKETS_MAX: u32 = 1 << 16;

/// The word of a ticket.
///
/// Bits 0 to 39: number; 40 to 55: check over it; 56 to 63: mark. A ticket that was never used is
/// zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TicketWord {
    /// Number of the use of the ticket.
    pub sequence: u64,
    /// Mark of its block.
    pub mark: u8,
}

impl TicketWord {
    const MARK_SHIFT: u32 = 56;
    /// The bits of the mark.
    pub const MARK: u64 = 0xff << Self::MARK_SHIFT;

    /// The word as it lies at the start of a ticket.
    #[must_use]
    pub fn encode(self, ticket: u32) -> u64 {
        let sequence = self.sequence & ((1 << MICRO_SEQUENCE_BITS) - 1);
        let sum = checksum(seed::TICKET, [u64::from(ticket), sequence].as_bytes());
        let check = sum & !Self::MARK & !((1 << MICRO_SEQUENCE_BITS) - 1);
        sequence | check | u64::from(self.mark) << Self::MARK_SHIFT
    }

    /// What the word says; `None`: it is damaged.
    #[must_use]
    pub fn decode(bits: u64, ticket: u32) -> Option<Self> {
        let sequence = bits & ((1 << MICRO_SEQUENCE_BITS) - 1);
        let read = Self { sequence, mark: (bits >> Self::MARK_SHIFT) as u8 };
        let is_legal = matches!(read.mark, FREE | ALLOCATED | TAKEN | HELD);
        (is_legal && read.encode(ticket) == bits).then_some(read)
    }

    /// The word of the next use of the ticket.
    #[must_use]
    pub const fn next(self, mark: u8) -> Self {
        Self { sequence: (self.sequence + 1) & ((1 << MICRO_SEQUENCE_BITS) - 1), mark }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flipped_bit_of_a_word_is_found() {
        for (sequence, mark) in [(1, ALLOCATED), (7, TAKEN), ((1 << 40) - 1, HELD), (9, FREE)] {
            let word = TicketWord { sequence, mark };
            let bits = word.encode(3);
            assert_eq!(TicketWord::decode(bits, 3), Some(word));
            assert_eq!(TicketWord::decode(bits, 4), None);
            for bit in 0..64 {
                assert_eq!(TicketWord::decode(bits ^ 1 << bit, 3), None, "{bit}");
            }
        }
    }
}

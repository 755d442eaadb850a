//! Notes stores that reach pages through another mapping, where no fault tells of them.
//!
//! Code that stores through a second mapping ([`crate::Guards`]) into a range whose stores are
//! noted makes the notes itself: [`StoreNotes::note_stored`], **after** its store and before its
//! operation returns. A psync takes notes and copies the pages then.
//!
//! # The argument
//!
//! S is a store, N its note; T takes the notes, C copies the pages. N comes after S, C after T. So
//! there are four orders, and in none does a store come to the file that no psync has:
//!
//! | order | this psync has the store | the next one |
//! | --- | --- | --- |
//! | S N T C | yes | need not |
//! | S T, then C and N in any order | yes | looks at the page again |
//! | T S C, and N anywhere behind S | perhaps | has it: the note stays |
//! | T C S N | no | has it |
//!
//! A note *before* the store would not do: N T C S is a store that no note tells of. Nor would a
//! look whether the page is noted: the processor may look before its store is seen. So N is one
//! locked instruction, which comes after S. T is one, too: if it finds the bit, C finds the store.
//!
//! *Between S and N* a crash ends the process, and all notes with it: the first psync of the next
//! session compares all pages. Of sealed memory nothing is left then. A forked child has neither
//! mapping. *A psync that fails* notes again what it took.
//!
//! *Rights.* A page that is noted so is not writable at its own address: another owner denies that
//! ([`crate::RangeKind::Metadata`]). "Noted, and protected" is a state that loses nothing
//! ([`crate::dirty_bitmap`]). When that owner ends, pages that are noted become writable, and
//! others fault at their next store.

use crate::dirty_bitmap::{DirtyBitmap, PAGE};
use crate::twin_place::TwinPlace;
use std::sync::Arc;

/// The notes of a range, for code that stores through another mapping of it.
#[derive(Clone, Debug)]
pub struct StoreNotes {
    pub(crate) base: usize,
    pub(crate) notes: Arc<DirtyBitmap>,
    /// Where a second mapping is told of whose own faults note stores; not of all memory.
    pub(crate) twin: Option<Arc<TwinPlace>>,
}

impl StoreNotes {
    /// Those of the range that begins at `base`.
    #[must_use]
    pub fn new(base: usize, notes: Arc<DirtyBitmap>) -> Self {
        Self { base, notes, twin: None }
    }

    /// This thread has stored, through another mapping, into the memory that is read at `address`.
    /// Of many stores into one page, the note after the last one counts for all.
    #[inline]
    pub fn note_stored(&self, address: usize) {
        self.notes.note_one((address.wrapping_sub(self.base) / PAGE) as u64);
    }
}

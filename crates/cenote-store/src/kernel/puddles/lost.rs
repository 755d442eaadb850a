//! Replaces pages of a heap's metadata that are lost while their puddle is in use: a file is cut
//! short, or a device fails, after the page was had.
//!
//! Only the library reads the pages before the first superblock of a heap puddle: descriptors,
//! marks, roots, heads of lists; and all of the root puddle, and of puddles of metadata, of a
//! logged heap; and header, roots and segment tables of a wear heap. An access to a lost one is a
//! bus error, and the instruction has no way to fail. So the fault handler puts memory in the place
//! of the page, whose contents no check believes, and the store is poisoned.
//!
//! A page of a protected pool that fails its check counts as lost, from the first access on.
//!
//! # States of a page
//!
//! 1. *There.*
//! 2. *Lost*: no thread has touched it since. Stores into it before are lost, as all that a medium
//!    loses after a commit.
//! 3. *Poisoned*: a thread has touched it. The store acknowledges nothing more.
//! 4. *Replaced*: memory of this process is in its place, until the puddle is unmapped.
//!
//! The thread that has the turn to map the puddle replaces the page; other threads that touch it
//! meanwhile wait for the turn, and find memory there.
//!
//! # Nothing is acknowledged that may have gone to a page that is lost
//!
//! A store into the memory that took the page's place goes to no file. It comes after state 4, and
//! so after the poison. Each transaction asks for the poison after its last access to metadata,
//! each psync after it has copied, each close before it says "clean", each sweep before it commits.
//! So each of these fails that may lack such a store. The files are as a crash of this process
//! could leave them: some pages have all stores, some lack those after some moment. No multi-step
//! update of the heap relies on one page for what it reads in another: each is undone by the log,
//! or is a free superblock. A change of a logged heap relies on its record: the heap asks for the
//! poison before it stores the record, before the cells, and before the seal. So a change is not
//! sealed if its record, or some of its cells, went to no file. The next opener undoes it, and no
//! change follows it.
//!
//! # What is read from it
//!
//! | place | contents | what a reader makes of it |
//! | --- | --- | --- |
//! | a descriptor | [`HeapOutline::fill_lost`] | its superblock is out of use |
//! | marks | [`LOST_BYTE`] | illegal: neither live nor free, so never handed out |
//! | hints | the same | candidates, which anchors refuse |
//! | a root | the same | damaged |
//! | head of a list | the same | leads nowhere: the list is dropped |
//! | state of the sweep | the same | unknown: nothing is condemned |
//! | members, and locks between them | the same | living ones, which have each lock |
//! | cells, words and tickets of a logged heap | the same | damaged: none fits its check |
//! | lines of a wear heap's segment table | the same | damaged: made anew |
//!
//! A superblock that a thread holds stays with it: it is set up, or given back, as if its
//! descriptor had been whole; the store is poisoned.
//!
//! # What is left to the signal
//!
//! Data of the program, into which references may lead. For logs see
//! [`crate::kernel::store::watch`].
//!
//! # Locks between processes
//!
//! They lie in the root puddle's metadata. In memory of one process they exclude no other one. So
//! the replaced words say that a member has the lock which is none ([`LOST_BYTE`]): each thread
//! that wants the lock waits, asks whether that member has ended, and gets the error. A thread that
//! gives a lock back there clears the name; so each asks once more when it has the lock. Other
//! processes touch the lost page too, or find the lock in it as it was.

use crate::kernel::interface::lost_page::LostPage;
use crate::kernel::superblock::poison::{Poison, Poisoned};
use cenote_layout::PAGE_SIZE;
use cenote_layout::catalog::PuddleRecord;
use cenote_layout::heap::LOST_BYTE;
use cenote_layout::outline::HeapOutline;
use cenote_layout::puddle::Role;
use cenote_medium::planted::{Bug, planted};
use cenote_sys::{bytes, memory};

/// Which pages of a puddle are metadata: only the library reads them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetadataPages {
    /// Those of a traced heap, by its geometry.
    Traced,
    /// Those of a logged heap: all of the root puddle and of puddles of metadata, none of others.
    Logged,
    /// The first so many bytes, as a wear heap has them. Its headers lie among blocks.
    Until(u64),
}

impl MetadataPages {
    pub(crate) const fn encode(self) -> u64 {
        match self {
            Self::Traced => u64::MAX,
            Self::Logged => u64::MAX - 1,
            Self::Until(bytes) => bytes,
        }
    }

    pub(crate) const fn decode(number: u64) -> Self {
        match number {
            u64::MAX => Self::Traced,
            n if n == u64::MAX - 1 => Self::Logged,
            bytes => Self::Until(bytes),
        }
    }
}

/// A page of metadata that may be replaced.
pub(crate) struct Replaceable {
    page: usize,
    /// Where it is in its puddle.
    at: u64,
    /// Where is what in the puddle of a traced heap.
    outline: Option<HeapOutline>,
    lost: LostPage,
}

impl Replaceable {
    /// The page of an address in a puddle with those pages of metadata, if it is one.
    pub(crate) fn of(record: &PuddleRecord, pages: MetadataPages, address: usize) -> Option<Self> {
        let (len, root) = (memory::page_bytes(), record.index == 0);
        let page = address & !(len - 1);
        let at = page as u64 - record.addr;
        let (metadata, outline) = match (pages, record.role) {
            // Blocks lie in puddles of role heap, but not in the root puddle.
            (MetadataPages::Logged, Role::Heap) if !root => return None,
            (MetadataPages::Logged, Role::Heap | Role::Metadata) => (record.size, None),
            (MetadataPages::Until(bytes), Role::Heap) => (bytes.min(record.size), None),
            (MetadataPages::Traced, Role::Heap) => {
                let outline = HeapOutline::new(record.size, root)?;
                (outline.metadata_len(), Some(outline))
            }
            _ => return None,
        };
        let (pool, puddle, index) = (record.pool, record.uuid, record.index);
        let lost = LostPage { pool, puddle, index, page: at / PAGE_SIZE };
        let is_metadata = at + len as u64 <= metadata;
        is_metadata.then_some(Self { page, at, outline, lost })
    }

    /// Poisons the store, and puts memory in the page's place. Whether accesses can succeed now.
    ///
    /// # Safety
    /// It lies in a mapping of the store's, which no other thread changes meanwhile.
    pub(crate) unsafe fn replace(&self, poisoned: &Poisoned) -> bool {
        let Self { page, at, outline, lost } = self;
        // Another thread may have replaced it since the fault.
        if bytes::copy_by_kernel(*page, &mut [0]).is_ok() {
            return true;
        }
        if !planted(Bug::LostPageNotPoisoned) {
            // Before the page is there. If this is not the first cause, another one is told.
            poisoned.set(Poison::Lost(*lost));
        }
        let len = memory::page_bytes();
        let fill = |to: *mut u8| {
            if planted(Bug::LostPageOfZeros) {
                return;
            }
            // SAFETY: `to` is `len` bytes of new memory, which no other code knows yet.
            let page = unsafe { core::slice::from_raw_parts_mut(to, len) };
            match outline {
                Some(outline) => outline.fill_lost(*at, page),
                None => page.fill(LOST_BYTE),
            }
        };
        // SAFETY: a page of the puddle's mapping, which the caller keeps others from changing. The
        // page's contents are lost, and all that relies on them fails (the module's page).
        unsafe { memory::replace(*page, len, fill) }.is_ok()
    }
}

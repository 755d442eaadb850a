//! Owns page rights: every change of what may be done with a page goes through here.
//!
//! A range of addresses has an [`Owner`] for each purpose that it serves. An owner says of each
//! page what it allows: nothing, loads, or loads and stores ([`Right`]). Rules:
//!
//! 1. A page has the least right that *all* its owners allow. No owner gives back what another
//!    denies.
//! 2. Nothing else changes page rights: `scripts/layers.sh` finds a call of
//!    [`cenote_sys::memory::protect`] outside this crate, `cenote-sys` and the simulated medium.
//! 3. A fault is explained from the same table ([`explain()`]): which range the address lies in.
//!
//! | range ([`RangeKind`]) | who sets it | who clears it | what a fault there means |
//! | --- | --- | --- | --- |
//! | `Tracked` | a shadowed puddle before it is mapped for writing; an object that a writer \
//! attaches, where pages are found by `mprotect` | the end of the puddle; the detach | the first \
//! store into a page since its last psync: the page is noted, and opened |
//! | `Sealed` | the memory of a sealed object or puddle (`cenote-atrest`) | its end | a page that \
//! is not filled yet, or the first store into one; of a broken page: its access is given up |
//! | `Pending` | a puddle that has moved and is not rewritten | its rewriting, or its end | the \
//! first touch: the puddle is rewritten |
//! | `ReadOnly` | a store or object that is open for reading, whose memory has records laid over \
//! it | the end of the mapping | a stray write: nothing may write there |
//! | `Metadata` | a heap that protects what describes its blocks | the close of the pool | a \
//! stray write, which would damage the heap |
//! | `Log` | a session, for its logs and its log space | the close of the store | a stray write, \
//! which would damage what undoes transactions |
//! | `Data` | a range whose data are protected ([`DeferredRange`]) | its end | the first \
//! store of a writer: the page opens; of no writer: a stray write, which would damage data |
//! | `Guard` | the same heap, on both sides of such ranges | the close of the pool | a stray load \
//! or store: a program ran over the end of its data |
//!
//! No owner is needed for a range that the kernel maps read-only with nothing laid over it, because
//! its rights never change. Nor for pages that userfaultfd protects: its marks lie in page tables
//! beside the rights, and no change here takes one away.
//!
//! # What it costs
//!
//! An owner that is alone in its range changes rights by one system call and two loads: no lock, no
//! locked instruction. Where owners overlap, a change takes the lock of rights, with signals
//! blocked, and asks each of them ([`Rights`]).
//!
//! # The argument
//!
//! *Two owners of a page.* Each changes its own state first (it takes or sets a note, say), and
//! then calls [`Owner::set`]. Under the lock, that gives the page the least of the wanted right and
//! of what the other owners' states allow. The last call has seen all states, so the page has the
//! least of them, in every order.
//!
//! *An owner B comes while A is alone.* A looks whether it is alone before its system call, and
//! again after. Calls that change rights exclude each other in the kernel. If A is still alone the
//! second time, its change came before B's first one. If not, A repeats the change under the lock.
//! In between, a page may have more than B allows. So an owner that relies on its denials from the
//! first moment must register before the range is in use by others.
//!
//! *A fault handler* may change rights and explain faults. Code that holds the lock of rights has
//! all signals blocked and touches no memory of a range. So the thread of a handler never holds the
//! lock; at most it waits for another thread. [`explain()`] takes no lock: it copies an entry, and
//! drops the copy if the entry changed meanwhile.

mod attention;
mod deferred;
pub mod dirty_bitmap;
mod explain;
mod guards;
mod hidden;
mod lock;
mod opening;
mod owner;
mod pieces;
mod protected_data;
mod right;
mod store_notes;
mod table;
mod tracked;
mod twin;
mod twin_place;

pub use attention::{Attention, is_attended};
pub use deferred::{
    DeferredOptions, DeferredRange, DeferredService, DeferredStats, DeferredTiming, Describe,
    PageWriter,
};
pub use explain::{Explained, explain};
pub use guards::{Guards, Inside, Protection};
pub use hidden::{HiddenRange, HiddenWindow};
pub use owner::{Owner, Rights, Whole};
pub use protected_data::{AttendedStores, ProtectedData};
pub use right::Right;
pub use store_notes::StoreNotes;
pub use table::RangeKind;
pub use tracked::Tracked;

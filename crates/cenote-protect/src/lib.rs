//! The one owner of page rights: every change of what may be done with a page goes through here.
//!
//! A range of addresses has an [`Owner`] for each purpose that it serves. An owner says of each
//! page what it allows: nothing, loads, or loads and stores ([`Right`]). Rules:
//!
//! 1. A page has the right that *all* its owners allow: the least of theirs. No owner gives back
//!    what another one denies.
//! 2. Nothing else changes page rights: `scripts/layers.sh` finds a call of
//!    [`cenote_sys::memory::protect`] outside this crate, `cenote-sys` and the simulated medium.
//! 3. A fault is explained from the same table ([`explain()`]): which range the address lies in.
//!
//! | range ([`Kind`]) | who sets it | who clears it | what a fault there means |
//! | --- | --- | --- | --- |
//! | `Tracked` | a shadowed puddle before it is mapped for writing; an object that a writer \
//! attaches, where pages are found by `mprotect` | the end of the puddle; the detach | the first \
//! store into a page since its last psync: the page is noted, and opened |
//! | `Sealed` | the memory of a sealed object or puddle (`cenote-sealed`) | its end | a page that \
//! is not filled yet, or the first store into one; of a broken page: its access is given up |
//! | `Pending` | a puddle that has moved and is not rewritten | its rewriting, or its end | the \
//! first touch: the puddle is rewritten |
//! | `ReadOnly` | a store or object that is open for reading, whose memory has records laid over \
//! it | the end of the mapping | a stray store: nothing may write there |
//! | `Metadata` | a heap that protects what describes its blocks | the close of the pool | a \
//! stray store, which would damage the heap |
//! | `Guard` | the same heap, on both sides of such ranges | the close of the pool | a stray load \
//! or store: a program ran over the end of its data |
//!
//! A range that the kernel maps read-only, with nothing laid over it, needs no owner: no right of
//! it changes. Nor do pages that userfaultfd protects: its marks lie in page tables beside the
//! rights, and no change here takes one away.
//!
//! # What it costs
//!
//! An owner that is alone in its range changes rights by the one system call that it takes, beside
//! two loads: no lock, no locked instruction. Only where owners overlap, a change takes the lock of
//! rights, with signals blocked, and asks each of them ([`Rights`]).
//!
//! # The argument
//!
//! *Two owners of a page.* Each changes its own state first (it takes or sets a note, say), and
//! then calls [`Owner::set`]. Under the lock, that gives the page the least of the wanted right and
//! what the other owners' states allow. Whichever comes last has seen both states: so the page has
//! the least of them, in every order.
//!
//! *An owner that comes while another one is alone.* That one looks whether it is alone before its
//! system call, and again after. Calls that change rights exclude each other in the kernel. If it
//! finds nothing the second time, its change came before the first one of the new owner. If it
//! finds the new owner, it repeats the change under the lock. In between, a page may have more than
//! the new owner allows. So register an owner before the range is in use by others, if it relies on
//! what it denies from the first moment on.
//!
//! *A fault handler* may change rights and explain faults. The lock of rights is held with all
//! signals blocked, by code that touches no memory of a range. So the thread of a handler never
//! holds it, and waits for another thread at most. [`explain()`] takes no lock: it copies an entry,
//! and drops the copy if the entry changed meanwhile.

pub mod dirty_bitmap;
mod explain;
mod guards;
mod lock;
mod owner;
mod right;
mod table;
mod tracked;

pub use explain::{Explained, explain};
pub use guards::{Guards, Inside, Protection};
pub use owner::{Owner, Rights, Whole};
pub use right::Right;
pub use table::Kind;
pub use tracked::Tracked;

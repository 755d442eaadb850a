//! Persistent collections: lists, maps and sets, ordered or hashed, a vector, a deque, a priority
//! queue and a string. They live in a [`Pool`](cenote::Pool) and change only in transactions. After
//! a restart they are as the last committed transaction left them.
//!
//! ```
//! use cenote::{Persist, Reader, Store};
//! use cenote_collections::{BTreeMap, InlineStr, List};
//!
//! #[derive(Persist)]
//! struct Index { words: BTreeMap<InlineStr<23>, List<u64>> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let pool = Store::open(directory.path())?.pool("index")?;
//! pool.write(|tx| -> cenote::Result<()> {
//!     let words = BTreeMap::new(tx)?;
//!     let positions = List::new(tx)?;
//!     positions.push_back(tx, 17)?;
//!     words.insert(tx, InlineStr::try_from("cenote").unwrap(), positions)?;
//!     let index = tx.alloc(Index { words })?;
//!     tx.set_root(index)
//! })?;
//!
//! let view = pool.read()?;
//! let index = view.get(view.root::<Index>()?.expect("set above"))?;
//! let positions = index.words.get(&view, "cenote")?.expect("inserted above");
//! assert_eq!(positions.iter(&view)?.copied().collect::<Vec<u64>>(), [17]);
//! # Ok(())
//! # }
//! ```
//!
//! # Handles
//!
//! A *handle* names a collection: 8 bytes, `Copy`, the pointer to the collection's header block. A
//! handle can be a field of a persistent type, an element of another collection, or a local
//! variable. Two copies of a handle name one collection. Methods that change a collection take the
//! transaction; methods that read take a [`Reader`](cenote::Reader): a view or a transaction.
//! References and iterators borrow from it.
//!
//! `Option` of a handle has 8 bytes too, and can be a field or an element.
//!
//! A collection lives until its `destroy`. To drop a handle, or to remove one from another
//! collection, frees nothing. `clear` and `destroy` free the collection's own nodes, and what their
//! values own, and nothing else that elements point to. All of a collection lies in one pool, that
//! of its header: [`Tx`](cenote::Tx)'s first pool with `new`, the pool of another value with
//! `new_beside`.
//!
//! A handle is stale after its collection was destroyed, or if the transaction that created it was
//! aborted. Then every method returns [`Error::Dangling`](cenote::Error::Dangling). If the place
//! has a new collection of the same type, methods work on that one. Nothing else happens.
//!
//! # Values that own
//!
//! Values of lists, vectors and maps may own blocks by [`Owned`](cenote::Owned) fields. To remove
//! or to overwrite such a value, and `clear` and `destroy`, free all that it owns, as
//! [`Tx::free`](cenote::Tx::free) does: large trees wait, and are freed later. What an operation
//! returns (`remove`, `pop`, the old value of `insert`) owns nothing any more. If one of these
//! operations fails, its transaction can only abort.
//!
//! A value comes into a collection with empty `Owned` fields. `put_owned` and `free_owned` of the
//! collection, or of the cursor of a list, fill and empty them in their place. No `&mut` to such a
//! value is given out: `get_mut`, `iter_mut`, and of entries all but `insert` of an occupied one
//! and `remove`, do not compile. Keys cannot own.
//!
//! ```
//! use cenote::{Owned, OwnedStr, Persist, Store, field};
//! use cenote_collections::{HashMap, InlineStr};
//!
//! #[derive(Persist)]
//! struct Person { name: OwnedStr, born: Option<u16>, notes: Owned<Note> }
//!
//! #[derive(Persist)]
//! #[persist(owned)]
//! struct Note { text: OwnedStr, next: Owned<Note> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let pool = Store::open(directory.path())?.pool("people")?;
//! pool.write(|tx| -> cenote::Result<()> {
//!     let people = HashMap::<InlineStr<23>, Person>::new(tx)?;
//!     let ada = Person { name: OwnedStr::EMPTY, born: Some(1815), notes: Owned::EMPTY };
//!     people.insert(tx, InlineStr::truncated("ada"), ada)?;
//!     people.put_owned(tx, "ada", field!(Person, name), "Ada Lovelace")?;
//!     let note = Note { text: OwnedStr::EMPTY, next: Owned::EMPTY };
//!     let note = people.put_owned(tx, "ada", field!(Person, notes), note)?.expect("inserted");
//!     tx.put_owned(note, field!(Note, text), "writes programs")?;
//!     // One line: she goes with her name and all of her notes.
//!     people.remove(tx, "ada")?;
//!     Ok(())
//! })
//! # }
//! ```
//!
//! ```compile_fail
//! # use cenote::{Owned, Persist, Store};
//! # use cenote_collections::HashMap;
//! # #[derive(Persist)]
//! # #[persist(owned)]
//! # struct Note { next: Owned<Note> }
//! # fn main() -> cenote::Result<()> {
//! # let pool = Store::open("/nowhere")?.pool("p")?;
//! # pool.write(|tx| -> cenote::Result<()> {
//! let people = HashMap::<u64, Owned<Note>>::new(tx)?;
//! // It could be exchanged for another one.
//! people.get_mut(tx, &1)?;
//! # Ok(())
//! # })
//! # }
//! ```
//!
//! # Why this is sound
//!
//! 1. Every public method first checks the header ([`Reader::get`](cenote::Reader::get)): it is a
//!    live block of exactly that type, in a pool that the reader holds. A collection that this
//!    transaction has destroyed has a live header until commit; a note in the header says that it
//!    is gone.
//! 2. *Invariant: as long as a header is live, the links that start at it lead to live nodes of the
//!    right types in the header's pool.* So internals follow links without a check, as fast as
//!    plain pointers. Only this crate can name headers and nodes: their types are private, and
//!    their persistent names contain a `/`, which no name given by `#[derive(Persist)]` can have.
//!    The heap frees what a transaction frees, and what no root leads to. The latter dies as a
//!    whole: a handle that a program has kept finds a leaked collection whole, or none (module
//!    `condemn` of `cenote-heap`, which reads the links from pointer maps). A node's page may be
//!    damaged, so each link is followed by a touch (`Ptr::follow`), and what is logged was touched
//!    before.
//! 3. Each operation keeps the invariant or does not happen. It reads and compares, then allocates,
//!    then logs: these steps can fail or run code of the caller (`Ord`, `Hash`, `Eq`, closures,
//!    iterators). Then it writes, which cannot fail. So after an error that the caller ignores, or
//!    a panic that the caller catches inside the transaction, the collection is as before, and the
//!    blocks that were allocated are free again. `clear`, `destroy` and removals free many blocks,
//!    and a full log has no room to undo that. They note that they are half done; then the
//!    transaction aborts, even if its body ignores the error
//!    ([`Error::HalfDone`](cenote::Error::HalfDone)). Blocks are unlinked before they are freed, so
//!    no link ever leads to a freed one.
//! 4. `Ord` and `Hash` may contradict themselves. Then lookups miss entries or find them in odd
//!    places. Every index is computed from what the node says, not from what a comparison promised.
//! 5. A value read out of a collection (`pop`, `remove`, `insert`'s old value) is a copy of its
//!    bytes, and an abort puts the bytes back. That is sound because `Persist` types have no
//!    destructor and no interior mutability, and its `Owned` fields were emptied before. Inside of
//!    a collection values move with their owners: from one node to another, which the same
//!    transaction frees or empties.
//!
//! # What an operation costs
//!
//! The table and the comments of methods count two things:
//!
//! * undo entries, without those of the allocator: two for each allocation at `power`, one at
//!   `process`, one for each free;
//! * fences of a transaction at `power` that does nothing else, where its log is the only one in
//!   use in the store. At `process` there are neither flushes nor fences.
//!
//! All ranges of one operation are logged with one fence, and a second one commits. A third is
//! needed
//!
//! * where a block is freed of which a part was logged;
//! * where more than 1 KiB is allocated;
//! * where nodes of a tree become one or a collection is destroyed: the freed blocks are logged
//!   after the ranges;
//! * where a transaction inserts several elements of which the last ones log only their allocation.
//!
//! The heap needs more where it takes a superblock. `tests/costs.rs` pins these counts.
//!
//! | operation | entries (bytes of data) | fences |
//! | --- | --- | --- |
//! | `List::push_back`, `push_front` | 2 (8 + 16); into an empty list 1 (24) | 2 |
//! | `List::pop_front`, `pop_back` | 2 (8 + 16); the last one 1 (24) | 2 |
//! | `CursorMut::remove_current` inside a list | 3 (8 + 8 + 8) | 2 |
//! | `ForwardList::push_back` | 2 (8 + 16) | 2 |
//! | `ForwardList::push_front`, `pop_front` | 1 (16) | 2 |
//! | `BTreeMap::insert` of a new key | 3 (key and value, 8, 8) | 2 |
//! | ... that splits a leaf | up to 6 (one node whole) | 2 |
//! | ... behind all others, into a leaf of its own | 4 (8, 48, key and child, 8) | 2 |
//! | `BTreeMap::insert` over an old value, `get_mut` | 1 (value) | 2 |
//! | `BTreeMap::remove` | 3 (key and value, 8, 8) | 2 |
//! | `HashMap::insert` of a new key | 3 (key and value, 8, 8) | 2 |
//! | ... that splits a bucket too | 5 (one page whole), 3 if the entry is one that moves | 2 |
//! | `HashMap::remove` | 3 (key and value, 8, 8) | 2 |
//! | `entry`, until something is changed | none | 0 |
//! | `iter_mut`, `values_mut`, `range_mut` of a map | the lesser of 1 for each value | 2, and 1 |
//! | | and 1 for each whole node | for each 256 entries more |
//! | `BTreeMap::from_sorted` | 1 (header), and 1 allocation for each 15 entries and 225 | 3 |
//! | `Vec::push`, `pop` | 2 (element, 8) | 2 |
//! | `BinaryHeap::push`, `pop` | 2, 3, and 1 for each value that moves | 2 |
//! | `VecDeque::push_back`, `pop_back` | 2 (element, 8) | 2 |
//! | `VecDeque::push_front`, `pop_front` | 2 (element, 16) | 2 |
//! | `Vec::push` that grows | 1 (24) | 2; 3 if the new array has more than 1 KiB |

#[macro_use]
mod shared;

mod binary_heap;
pub mod btree;
mod btree_set;
pub mod forward_list;
pub mod hash;
mod hash_set;
mod inline_str;
pub mod list;
pub mod relaxed;
mod string;
mod text_map;
mod vec;
mod vec_deque;

pub use binary_heap::BinaryHeap;
pub use btree::BTreeMap;
pub use btree_set::{BTreeSet, RangeOfSet};
pub use forward_list::ForwardList;
pub use hash::HashMap;
pub use hash_set::HashSet;
pub use inline_str::{InlineStr, TooLong};
pub use list::List;
pub use relaxed::RelaxedDurabilityMap;
pub use string::String;
pub use text_map::TextMap;
pub use vec::Vec;
pub use vec_deque::{DequeIter, VecDeque};

/// The programs of the README, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

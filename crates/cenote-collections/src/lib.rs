//! Persistent collections: lists, an ordered map, a hash map, a vector and a string that live in a
//! [`Pool`](cenote::Pool), change only in transactions, and are as they were after the last
//! committed one when the program starts again.
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
//! A collection is named by a *handle*: 8 bytes, `Copy`, the pointer to the collection's header
//! block. A handle can be a field of a persistent type, an element of another collection, or lie in
//! a local variable. Two copies of a handle are two names of one collection. Methods that change
//! something take the transaction; methods that read take a [`Reader`](cenote::Reader): a view or a
//! transaction. References and iterators borrow from it.
//!
//! `Option` of a handle is 8 bytes too, and can be a field or an element like the handle itself: a
//! collection that may be missing.
//!
//! A collection lives until its `destroy`; dropping a handle does nothing, and neither does
//! removing one from another collection. What elements point to is theirs: `clear` and `destroy`
//! free the collection's own nodes and nothing else. All of a collection lies in one pool, the one
//! that its header was allocated in: [`Tx`](cenote::Tx)'s first pool with `new`, a neighbour's with
//! `new_beside`.
//!
//! A handle may be stale: the collection was destroyed, or created by a transaction that was
//! aborted. Then every method returns [`Error::Dangling`](cenote::Error::Dangling), or, if the
//! place was given to another collection of the same type since, works on that one. It never does
//! anything else.
//!
//! # Why this is sound
//!
//! 1. Every public method first has the header checked ([`Reader::get`](cenote::Reader::get)): a
//!    live block of exactly that type, in a pool that the reader holds. A collection that this
//!    transaction has destroyed still has a live header until commit; its header says so, and
//!    counts as gone.
//! 2. *Invariant: as long as a header is live, the links that start at it lead to live nodes of the
//!    right types in the header's pool.* So internals follow links without a check, as fast as
//!    plain pointers. It holds because only this crate can name headers and nodes: their types are
//!    private, and their persistent names contain a `/`, which no name given by
//!    `#[derive(Persist)]` can have. The heap frees what a transaction frees, and what no root
//!    leads to. The latter dies as a whole: a handle that a program has kept finds a leaked
//!    collection whole, or none. Module `condemn` of `cenote-heap` states that and says why; links
//!    are in the pointer maps, which is what it needs. A node's page may be damaged all the same,
//!    so each link is followed by a touch (`Ptr::follow`), and what is logged was touched before.
//! 3. Each operation keeps the invariant whole or does not happen: it reads and compares first,
//!    then allocates, then logs, which are the steps that can fail or run code of the caller
//!    (`Ord`, `Hash`, `Eq`, closures, iterators); then it writes, which cannot fail. So an error
//!    that the caller ignores, or a panic that the caller catches inside the transaction, leaves
//!    the collection as it was, and what was allocated is given back. Some operations cannot
//!    be like that: `clear`, `destroy` and removals free many blocks, and a full log has no room
//!    for giving back. They note that they are half done, and then the transaction aborts, even if
//!    its body ignores the error ([`Error::HalfDone`](cenote::Error::HalfDone)). Blocks are
//!    unlinked before they are freed, so even until then no link leads to a freed one.
//! 4. Keys may lie: with an `Ord` or `Hash` that contradicts itself things are not found, or found
//!    in odd places, but every index is computed from what the node says, not from what a
//!    comparison promised.
//! 5. A value read out of a collection (`pop`, `remove`, `insert`'s old value) is a copy of its
//!    bytes. `Persist` types have no destructor and no interior mutability, and an abort puts bytes
//!    back that were read out: a persistent value is never the only one of its bytes.
//!
//! # What an operation costs
//!
//! Undo entries, without those of the allocator (two for each allocation at `power`, one at
//! `process`, one for each free), and fences of a transaction at `power` that does nothing else,
//! where its log is the only one in use in the store. At `process` there are neither flushes nor
//! fences. All ranges of one operation are logged with one fence, and a second one commits. A third
//! is needed where a block is freed of which a part was logged, where more than 1 KiB is allocated,
//! and where nodes of a tree become one or a collection is destroyed, because what is freed is
//! logged after the ranges, and where a transaction inserts several elements of which the last ones
//! log nothing but their allocation; more, where the heap takes a superblock. `tests/costs.rs` pins
//! these counts.
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
//! | `Vec::push`, `pop` | 2 (element, 8) | 2 |
//! | `Vec::push` that grows | 1 (24) | 2; 3 if the new array has more than 1 KiB |

#[macro_use]
mod shared;

pub mod btree;
pub mod forward_list;
pub mod hash;
mod inline_str;
pub mod list;
mod string;
mod vec;

pub use btree::BTreeMap;
pub use forward_list::ForwardList;
pub use hash::HashMap;
pub use inline_str::{InlineStr, TooLong};
pub use list::List;
pub use string::String;
pub use vec::Vec;

/// The programs of the README, compiled with the documentation's tests.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;

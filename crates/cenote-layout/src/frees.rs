//! Blocks that are owned no more and wait to be freed: the list of a pool.
//!
//! The list is a block of type [`FREES_TYPE`], which the named root [`FREES_ROOT`] leads to. No
//! program can give or take a name with a control character.
//!
//! ```text
//! Frees:  len | cursor | head 0 | ... | head len-1 | 0 ...
//!                                          |
//!                                          +--> block: edge 0 | edge 1 | ... --> child
//!                                                        |
//!                                                        +--> next block: edge 0 ...
//! ```
//!
//! A head leads to a block that owns others. All that it reaches by owning pointers waits, too.
//! Edge 0 of a waiting block, the first owning word of its pointer map, leads to the next one. So
//! the list needs no space of its own, however many blocks wait; the pointer there may lead to a
//! block of another type than the map says. `cursor` is a hint: the number of the edge of the last
//! head's block from which on edges may lead to a child.

/// Name of the type of the list.
pub const FREES_TYPE: &str = "cenote/Frees";

/// Name of the root that leads to it.
pub const FREES_ROOT: &str = "\u{1}frees";

/// Heads of a list: so its block has 4 KiB.
pub const HEADS: usize = 510;

//! The kernel of a store: superblock, catalog, window, puddles, pools, leases and logs.
//!
//! **No module of the kernel imports one outside it, nor the crates of sealed pages and of psyncs**
//! (`scripts/layers.sh` checks that). It knows no client, no daemon, no relocation, no psync and no
//! sealed page. Such parts keep their state with an open store in typed slots, and the kernel tells
//! them what happens (`store/extensions.rs`). What they keep with a pool or a job is opaque to it
//! (`puddles/opaque_part.rs`), and the memory of a sealed puddle is a trait
//! (`puddles/own_memory.rs`). The daemon that keeps a client's store is another
//! ([`store::Remote`]). Options and errors alone name the key and what can be wrong with it.
//!
//! A folder imports only those before it:
//!
//! | folder | what it has |
//! | --- | --- |
//! | `interface/` | what callers say and learn: errors, options, reports, rewriters of pointers |
//! | `superblock/` | the store's first file, where it lies, and who may write |
//! | `catalog/` | the catalog's two files, and how it and the journals name each other |
//! | `puddles/` | files of puddles, what marks them, and their memory in the window |
//! | `store/` | an open store: its state, and changes of the catalog |
//! | `pools/` | pools, their leases, and new puddles |
//! | `directory/` | a store's directory is formatted, and locked |
//! | `log_guards` | stray writes do not reach them |
//! | `logs` | logs of this session, and their log space |

pub(crate) mod catalog;
pub(crate) mod directory;
pub(crate) mod interface;
pub(crate) mod log_guards;
pub(crate) mod logs;
pub(crate) mod pools;
pub(crate) mod puddles;
pub(crate) mod store;
pub(crate) mod superblock;

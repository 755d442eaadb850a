//! The kernel of a store: superblock, catalog, window, puddles, pools, leases and logs.
//!
//! **No module of the kernel imports one outside it** (`scripts/layers.sh` checks that). It knows
//! no client, no daemon, no relocation, no psync and no protected file. What such parts keep with
//! an open store is in typed slots, and the kernel tells them what happens (`extensions.rs`). The
//! daemon that keeps a client's store is a trait ([`store::Remote`]).

// What is said to callers: errors, reports, options.
pub(crate) mod error;
pub(crate) mod error_text;
pub(crate) mod lost_page;
pub(crate) mod mismatch;
pub(crate) mod open_error;
pub(crate) mod options;
pub(crate) mod report;
pub(crate) mod rewriter;

// The directory, its lock, and the session that may write to it.
pub(crate) mod about;
pub(crate) mod exclusion;
pub(crate) mod fence;
pub(crate) mod format;
pub(crate) mod origin;
pub(crate) mod poison;
pub(crate) mod superblock;

// Catalog and journals, and how they name each other.
pub(crate) mod catalog;
pub(crate) mod journal_names;
pub(crate) mod journals;

// Puddles: their files, what marks these, and their memory.
pub(crate) mod due_job;
pub(crate) mod known;
pub(crate) mod locked;
pub(crate) mod lost;
pub(crate) mod notice;
pub(crate) mod place;
pub(crate) mod puddle;
pub(crate) mod stamps;
pub(crate) mod verify;
pub(crate) mod window;

// An open store: its state, and changes of the catalog.
pub(crate) mod commit;
pub(crate) mod extensions;
pub(crate) mod lease;
pub(crate) mod listing;
pub(crate) mod region;
pub(crate) mod sealing;
pub(crate) mod store;
pub(crate) mod types;
pub(crate) mod watch;

// New puddles, and spare ones.
pub(crate) mod ahead;
pub(crate) mod heap_puddle;
pub(crate) mod making;
pub(crate) mod spare;

// Logs and pools.
pub(crate) mod log_list;
pub(crate) mod logs;
pub(crate) mod pool;
pub(crate) mod pool_core;
pub(crate) mod pool_rules;

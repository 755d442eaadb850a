//! Crash enumeration of all but histories, in one program: each program is linked for itself, and
//! the tests of one run side by side. Each file's windows of addresses are its own.

mod copies;
mod dangling;
mod dropped;
mod golden_counts;
mod heap_steps;
mod hosted;
mod hosted_clients;
mod logged;
mod logged_heap;
mod logged_pools;
mod owned;
mod owned_entries;
mod planted;
mod pool_histories;
mod relaxed;
mod relocation;
mod shadowed;
mod store_updates;
mod sweeps;
mod wear;
mod wear_pools;
mod wear_transactions;

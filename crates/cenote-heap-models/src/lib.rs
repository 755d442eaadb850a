//! Runs the lock-free kernel of `cenote-heap` under a model checker, which tries every interleaving
//! of a few threads.
//!
//! All of it is `tests/kernel.rs`, which compiles the kernel's own files with the checker's
//! atomics. It is a crate of its own so that only its tests depend on the checker.

//! The lock-free kernel of `cenote-heap` under a model checker, which runs every interleaving of a
//! few threads.
//!
//! There is nothing here but `tests/kernel.rs`: it compiles the kernel's own files with the
//! checker's atomics. So it is a crate of its own, and only its tests depend on the checker.

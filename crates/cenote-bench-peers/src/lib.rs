//! Other systems, measured beside Cenote: their cases join the rows of `cenote-bench`'s figures, in the same process and in turns, and
//! ratios to them are printed.
//!
//! Each system is behind a feature, because each needs a library that nothing else of this project needs:
//!
//! | feature | system | needs |
//! | --- | --- | --- |
//! | `libpmemobj` | PMDK's libpmemobj 1.x | Debian's `libpmemobj-dev` |

#[cfg(feature = "libpmemobj")]
pub mod libpmemobj;

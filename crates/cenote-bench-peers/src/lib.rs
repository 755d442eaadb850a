//! Other systems, measured beside Cenote: their cases join the rows of `cenote-bench`'s figures, in the same process and in turns, and
//! ratios to them are printed.
//!
//! Systems that need more than the C library are behind features, because nothing else of this project needs them:
//!
//! | feature | system | needs |
//! | --- | --- | --- |
//! | - | the C library's malloc | nothing |
//! | `jemalloc` | jemalloc 5 | a C compiler and make; built from the crate `tikv-jemalloc-sys` |
//! | `mimalloc` | mimalloc | a C compiler; built from the crate `libmimalloc-sys` |
//! | `libpmemobj` | PMDK's libpmemobj 1.x | Debian's `libpmemobj-dev` |

#[cfg(feature = "libpmemobj")]
pub mod libpmemobj;
pub mod volatile;

use cenote_bench::case::{Case, Failure};
use cenote_bench::command::Peers;
use cenote_bench::figures::Figure;
use cenote_bench::place::Settings;

/// All systems that were built.
pub const PEERS: Peers = Peers { cases, reference };

const ALLOCATORS: &str = "allocators";

fn cases(figure: &Figure, settings: &Settings) -> Result<Vec<Case>, Failure> {
    #[cfg_attr(not(feature = "libpmemobj"), expect(unused_mut))]
    let mut all = if figure.name == ALLOCATORS { volatile::cases(settings) } else { Vec::new() };
    #[cfg(feature = "libpmemobj")]
    all.extend(libpmemobj::cases(figure, settings)?);
    Ok(all)
}

fn reference(figure: &Figure) -> &'static str {
    if figure.name == ALLOCATORS { volatile::REFERENCE } else { "libpmemobj" }
}

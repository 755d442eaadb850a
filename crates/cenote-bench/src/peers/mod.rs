//! Other systems beside Cenote: their cases join the rows of the figures, in the same process and
//! in turns. A figure that has one prints ratios to it.
//!
//! A system that needs more than the C library is behind a feature:
//!
//! | feature | system | needs |
//! | --- | --- | --- |
//! | - | the C library's malloc | nothing |
//! | `jemalloc` | jemalloc 5 | a C compiler and make; built from the crate `tikv-jemalloc-sys` |
//! | `mimalloc` | mimalloc | a C compiler; built from the crate `libmimalloc-sys` |
//! | `lmdb` | LMDB | a C compiler; built from the crate `lmdb-master-sys` |
//! | `libpmemobj` | PMDK's libpmemobj 1.x | Debian's `libpmemobj-dev` |

#[cfg(feature = "libpmemobj")]
pub mod libpmemobj;
#[cfg(feature = "libpmemobj")]
pub mod libpmemobj_sensors;
#[cfg(feature = "lmdb")]
pub mod lmdb;
pub mod volatile;

use crate::case::{Case, Failure};
use crate::figures::nvmalloc::table3;
use crate::figures::{Figure, pmo_kernels};
use crate::place::Settings;

const ALLOCATORS: &str = "allocators";

/// Their cases of a figure; empty if they have none.
///
/// # Errors
/// A peer that cannot be set up.
pub fn cases(figure: &Figure, settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut all = if figure.name == ALLOCATORS { volatile::cases(settings) } else { Vec::new() };
    #[cfg(feature = "mimalloc")]
    all.extend(volatile::poseidon(figure.name, settings));
    if figure.name == table3::FIGURE.name {
        all.extend(volatile::items());
    }
    #[cfg(feature = "libpmemobj")]
    all.extend(libpmemobj::cases(figure, settings)?);
    #[cfg(feature = "lmdb")]
    all.extend(lmdb::cases(figure, settings)?);
    Ok(all)
}

/// The system that ratios in a figure are to.
pub fn reference(figure: &Figure) -> &'static str {
    match figure.name {
        ALLOCATORS => volatile::REFERENCE,
        "nvmalloc-table3" => "traced",
        "pmo-kernels" | "pmo-files" => pmo_kernels::REFERENCE,
        _ => "libpmemobj",
    }
}

//! Allocators for memory that does not outlive the process: what a persistent one is compared with.
//!
//! All of them are called by address only (`malloc`, `free`), as Cenote is; jemalloc's and
//! mimalloc's own symbols, not the ones that they would put in place of the C library's, so that
//! each system of a run is itself and none serves the benchmark program, which takes the C
//! library's.

use crate::Allocator;
use crate::case::{Case, NO_LEVEL};
use crate::figures::allocators::cases_of;
use crate::figures::nvmalloc::{table2, table3};
use crate::figures::poseidon::On;
#[cfg(feature = "mimalloc")]
use crate::figures::poseidon::cases_of as cases_of_poseidon;
use crate::place::Settings;
use std::sync::Arc;

/// Names in the rows.
pub const SYSTEMS: &[&str] = &[
    "glibc",
    #[cfg(feature = "jemalloc")]
    "jemalloc",
    #[cfg(feature = "mimalloc")]
    "mimalloc",
];

/// The last of [`SYSTEMS`], which ratios are to.
pub const REFERENCE: &str = SYSTEMS[SYSTEMS.len() - 1];

macro_rules! allocator {
    ($(#[$doc:meta])* $name:ident, $malloc:path, $free:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name;

        // SAFETY: blocks as malloc gives them: at least `size` bytes, at a multiple of 16, until
        // they are freed.
        unsafe impl Allocator for $name {
            #[inline(always)]
            fn alloc(&self, size: usize) -> *mut u8 {
                // SAFETY: any size may be asked for.
                unsafe { $malloc(size) }.cast()
            }

            #[inline(always)]
            unsafe fn free(&self, block: *mut u8) -> bool {
                // SAFETY: a block of this allocator, freed once, as the caller promises.
                unsafe { $free(block.cast()) };
                true
            }
        }
    };
}

allocator!(
    /// The C library's.
    Glibc,
    libc::malloc,
    libc::free
);

#[cfg(feature = "jemalloc")]
allocator!(
    /// jemalloc, as its crate configures it.
    Jemalloc,
    tikv_jemalloc_sys::malloc,
    tikv_jemalloc_sys::free
);

#[cfg(feature = "mimalloc")]
allocator!(
    /// mimalloc, as its crate configures it.
    Mimalloc,
    libmimalloc_sys::mi_malloc,
    libmimalloc_sys::mi_free
);

/// mimalloc's rows in Poseidon's figures; none in others.
#[cfg(feature = "mimalloc")]
#[must_use]
pub fn poseidon(figure: &str, settings: &Settings) -> Vec<Case> {
    let (allocator, system) = (Arc::new(Mimalloc), "mimalloc");
    cases_of_poseidon(figure, &On { allocator, system, level: NO_LEVEL, counted: false }, settings)
}

/// The C library's and mimalloc in NVMalloc's Table 2.
pub const FRAGMENTING: &[table2::Fragmenting] = &[
    table2::Fragmenting {
        system: "glibc",
        level: NO_LEVEL,
        run: |_, allocations, operations| {
            Ok(table2::play(&Glibc, || Some(free_of_glibc()), allocations, operations)?)
        },
    },
    #[cfg(feature = "mimalloc")]
    table2::Fragmenting {
        system: "mimalloc",
        level: NO_LEVEL,
        run: |_, allocations, operations| {
            Ok(table2::play(&Mimalloc, || None, allocations, operations)?)
        },
    },
];

/// Bytes of free blocks of the C library's malloc, but for the one at the top.
fn free_of_glibc() -> u64 {
    // SAFETY: it has no precondition.
    let info = unsafe { libc::mallinfo2() };
    (info.fordblks - info.keepcost.min(info.fordblks)) as u64
}

/// The rows of the C library's and mimalloc in NVMalloc's Table 3.
#[must_use]
pub fn items() -> Vec<Case> {
    let (allocator, level) = (Arc::new(Glibc), NO_LEVEL);
    let glibc = table3::cases_of(&On { allocator, system: "glibc", level, counted: false });
    #[cfg(feature = "mimalloc")]
    let glibc = {
        let on = On { allocator: Arc::new(Mimalloc), system: "mimalloc", level, counted: false };
        let mut all = glibc;
        all.extend(table3::cases_of(&on));
        all
    };
    glibc
}

/// The rows of all of them in the figure of allocators.
#[must_use]
pub fn cases(settings: &Settings) -> Vec<Case> {
    let mut cases = Vec::new();
    for &system in SYSTEMS {
        cases.extend(match system {
            #[cfg(feature = "jemalloc")]
            "jemalloc" => cases_of(&Arc::new(Jemalloc), system, NO_LEVEL, settings),
            #[cfg(feature = "mimalloc")]
            "mimalloc" => cases_of(&Arc::new(Mimalloc), system, NO_LEVEL, settings),
            _ => cases_of(&Arc::new(Glibc), system, NO_LEVEL, settings),
        });
    }
    cases
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_system_has_every_row_and_its_blocks_are_its_own() {
        let settings = Settings { quick: true, threads: vec![2], ..Settings::default() };
        let mut cases = cases(&settings);
        for system in SYSTEMS {
            assert_eq!(cases.iter().filter(|case| case.system == *system).count(), 11, "{system}");
        }
        for case in &mut cases {
            let name = format!("{case:?}");
            let sample = (case.work)(4000).expect(&name);
            assert!(sample.operations >= 4000, "{name}");
        }
    }
    #[cfg(feature = "mimalloc")]
    #[test]
    fn mimalloc_has_every_row_of_poseidons_figures() {
        let objects = Some(1000);
        let settings = Settings { quick: true, threads: vec![2], objects, ..Settings::default() };
        for (figure, rows) in
            [("poseidon6", 7), ("poseidon7", 1), ("poseidon8", 3), ("poseidon9", 2), ("figure1", 0)]
        {
            let cases = poseidon(figure, &settings);
            assert_eq!(cases.len(), rows, "{figure}");
            for mut case in cases {
                let name = format!("{case:?}");
                let sample = (case.work)(500).expect(&name);
                assert!(sample.operations >= 500, "{name}");
            }
        }
    }
}

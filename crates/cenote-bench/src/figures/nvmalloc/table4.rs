//! NVMalloc, Table 4: insertion into an ordered map, by how data are write-protected.
//!
//! Keys are numbers in random order, values have 256 bytes or 4 KiB, in the nodes of a `BTreeMap`
//! of `cenote-collections`, with a transaction an insertion, in a pool with the logged heap at
//! `process`. A map grows to 2^14 (2^11) entries; then it is destroyed, outside the timed parts.
//! Unit: nanoseconds an insertion. Systems:
//!
//! * `none`: data are not protected;
//! * `sync`: a system call for the first and the last store into a page of a transaction;
//! * `40 ms`, `10 ms`, `1 ms`, `0 ms`: pages close in batches, so long after the first request.
//!
//! The paper's Figure 6, how long a request waits, is not here: in a kernel without the paper's
//! module, a request waits for the time that is set and for the thread to run.

use super::figure7::grow_sorted;
use crate::case::{Case, Failure};
use crate::figures::figure::{Body, Figure};
use crate::place::{BenchPlace, Settings};
use cenote::{DataProtection, Durability, HeapKind, PoolOptions};

/// The figure.
pub const FIGURE: Figure = Figure {
    name: "nvmalloc-table4",
    title: "NVMalloc, Table 4: insertion, by how data are write-protected",
    body: Body::Cases(cases),
};

const SYSTEMS: [(&str, DataProtection); 6] = [
    ("none", DataProtection::None),
    ("sync", DataProtection::Synchronous),
    ("40 ms", DataProtection::DEFERRED),
    ("10 ms", DataProtection::Deferred { wait_ms: 10 }),
    ("1 ms", DataProtection::Deferred { wait_ms: 1 }),
    ("0 ms", DataProtection::Deferred { wait_ms: 0 }),
];

fn cases(settings: &Settings) -> Result<Vec<Case>, Failure> {
    let mut cases = Vec::new();
    let (small, large) = if settings.quick { (1 << 10, 1 << 8) } else { (1 << 14, 1 << 11) };
    for (system, protect) in SYSTEMS {
        let options = PoolOptions { heap: HeapKind::Logged, protect, ..PoolOptions::default() };
        let place = || BenchPlace::open_with(settings, Durability::Process, &options);
        let (first, second) = (place()?, place()?);
        cases.push(Case::new("insert 256", system, first.level, move |count| {
            grow_sorted::<32>(&first, count, small)
        }));
        cases.push(Case::new("insert 4096", system, second.level, move |count| {
            grow_sorted::<512>(&second, count, large)
        }));
    }
    Ok(cases)
}

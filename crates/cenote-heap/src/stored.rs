//! Where guarded metadata are stored: in a second mapping, at a distance from where they are read.
//!
//! The second mapping is hidden: memory keeps no address of it. So code keeps addresses where words
//! are read, and adds the distance for the time of a store.

use core::ptr::with_exposed_provenance;

/// Where that is stored which is read at `at`. The distance is 0 where nothing is guarded.
#[inline(always)]
pub(crate) fn stored<T>(at: *const T, distance: usize) -> *const T {
    with_exposed_provenance(at.expose_provenance().wrapping_add(distance))
}

/// The other way: where that is read which is stored at `at`.
#[inline(always)]
pub(crate) fn read<T>(at: *const T, distance: usize) -> *const T {
    with_exposed_provenance(at.expose_provenance().wrapping_sub(distance))
}

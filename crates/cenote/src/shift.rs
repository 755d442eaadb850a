//! Where an access finds values: at their addresses, or at a distance from them.
//!
//! Collections follow links by [`Ptr::at`] with the shift of their reader ([`Reader::Shift`]). For
//! views and transactions it is no code: the type [`InPlace`] has no bytes. Only a snapshot's
//! readers add something.
//!
//! [`Reader::Shift`]: crate::Reader::Shift

use crate::lost::Lost;
use crate::ptr::Ptr;
use core::fmt::Debug;

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::InPlace {}
    impl Sealed for super::Shifted {}
}

/// What is to be added to an address for a load.
pub trait Shift: sealed::Sealed + Copy + Debug + Send + Sync + 'static {
    /// Whether it is nothing.
    const IS_NOTHING: bool;

    /// How much, wrapping around.
    fn bytes(self) -> usize;
}

/// Nothing: values are read where they lie.
#[derive(Clone, Copy, Debug)]
pub struct InPlace;

/// The distance of a snapshot's window.
#[derive(Clone, Copy, Debug)]
pub struct Shifted(pub(crate) usize);

impl Shift for InPlace {
    const IS_NOTHING: bool = true;

    #[inline(always)]
    fn bytes(self) -> usize {
        0
    }
}

impl Shift for Shifted {
    const IS_NOTHING: bool = false;

    #[inline(always)]
    fn bytes(self) -> usize {
        self.0
    }
}

impl<T> Ptr<T> {
    /// Where a reader with this shift finds the value. Not to be stored.
    ///
    /// # Safety
    /// As for [`Ptr::from_addr`], of the value at the distance.
    #[doc(hidden)]
    #[inline(always)]
    #[must_use]
    pub unsafe fn at<S: Shift>(self, shift: S) -> Self {
        if S::IS_NOTHING {
            return self;
        }
        let place = self.as_ptr().wrapping_byte_add(shift.bytes());
        // SAFETY: an address in a window is not 0.
        unsafe { Self::from_non_null(core::ptr::NonNull::new_unchecked(place)) }
    }

    /// As [`Ptr::follow`], where a reader with this shift finds the value.
    ///
    /// # Errors
    /// As [`Ptr::follow`].
    ///
    /// # Safety
    /// As [`Ptr::follow`], of the value at the distance.
    #[doc(hidden)]
    #[inline(always)]
    pub unsafe fn follow_at<'a, S: Shift>(self, shift: S) -> Result<&'a T, Lost> {
        // SAFETY: handed on to the caller.
        unsafe { self.at(shift).follow() }
    }
}

/// Where a reader with this shift finds what lies at a place.
#[doc(hidden)]
#[inline(always)]
#[must_use]
pub fn place_at<T, S: Shift>(place: *mut T, shift: S) -> *mut T {
    if S::IS_NOTHING { place } else { place.wrapping_byte_add(shift.bytes()) }
}

//! [`Ptr`], the pointer that lies in persistent data, and [`FieldOffset`], a place in a type.
//!
//! A `Ptr` is the plain 64-bit address of its target: no base is added and no table consulted to
//! follow it. It is written to media as it is, and stays right because a store's puddles always
//! come back to the same addresses, or the pointer is rewritten when its puddle moves. Nothing
//! about a `Ptr` says that its target is still alive: safe code follows it through a transaction or
//! a view, which check that first.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("persistent pointers are 64-bit addresses");

use core::cmp::Ordering;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;
use core::panic::{RefUnwindSafe, UnwindSafe};
use core::ptr::{NonNull, with_exposed_provenance_mut};

/// A pointer to a value of type `T` in persistent memory. Never null: a link that may be missing is
/// an `Option<Ptr<T>>`, which takes 8 bytes as well, and is zero if it is `None`.
#[repr(transparent)]
pub struct Ptr<T>(NonNull<T>);

const _: () = assert!(size_of::<Ptr<u64>>() == 8 && size_of::<Option<Ptr<u64>>>() == 8);

impl<T> Ptr<T> {
    /// The address.
    #[inline]
    #[must_use]
    pub fn addr(self) -> u64 {
        self.0.as_ptr().addr() as u64
    }

    /// The pointer as a raw one. To follow it the mapping must be there.
    #[inline]
    #[must_use]
    pub fn as_ptr(self) -> *mut T {
        // What is read from media is only an address. The mapping of a puddle is made outside the
        // language, so its provenance counts as exposed.
        with_exposed_provenance_mut(self.0.as_ptr().addr())
    }

    /// The pointer to `addr`; `None` if that is 0.
    ///
    /// # Safety
    /// `addr` is 0, or it is the address of a value of type `T` in a store, and aligned for it, or
    /// the pointer is followed only through accesses that check it.
    #[inline]
    #[must_use]
    pub unsafe fn from_addr(addr: u64) -> Option<Self> {
        NonNull::new(with_exposed_provenance_mut(addr as usize)).map(Self)
    }

    /// The pointer to `value`.
    ///
    /// # Safety
    /// As for [`Ptr::from_addr`]; nothing is read.
    #[inline]
    #[must_use]
    pub unsafe fn from_non_null(value: NonNull<T>) -> Self {
        Self(value)
    }

    /// The value.
    ///
    /// # Safety
    /// The address holds a valid value of type `T`, is mapped, and neither unmapped, freed nor
    /// changed as long as `'a` lasts.
    #[inline]
    #[must_use]
    pub unsafe fn as_ref<'a>(self) -> &'a T {
        // SAFETY: as promised by the caller.
        unsafe { &*self.as_ptr() }
    }

    /// The value, to be changed. What is changed without a log is not undone by a crash.
    ///
    /// # Safety
    /// As for [`Ptr::as_ref`]; besides, the mapping is writable, and no other code reads or changes
    /// the value as long as `'a` lasts.
    #[inline]
    #[must_use]
    pub unsafe fn as_mut<'a>(self) -> &'a mut T {
        // SAFETY: as promised by the caller.
        unsafe { &mut *self.as_ptr() }
    }

    /// The same address as a pointer to another type.
    ///
    /// # Safety
    /// As for [`Ptr::from_addr`] with type `U`.
    #[inline]
    #[must_use]
    pub unsafe fn cast<U>(self) -> Ptr<U> {
        Ptr(self.0.cast())
    }

    /// The address of a field of the value. Not a `Ptr`, as those point to whole blocks.
    #[inline]
    #[must_use]
    pub fn field<F>(self, field: FieldOffset<T, F>) -> *mut F {
        self.as_ptr().wrapping_byte_add(field.offset).cast()
    }
}

impl<T> Clone for Ptr<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Ptr<T> {}

impl<T> PartialEq for Ptr<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.addr() == other.addr()
    }
}

impl<T> Eq for Ptr<T> {}

impl<T> PartialOrd for Ptr<T> {
    #[inline]
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for Ptr<T> {
    #[inline]
    fn cmp(&self, other: &Self) -> Ordering {
        self.addr().cmp(&other.addr())
    }
}

impl<T> Hash for Ptr<T> {
    #[inline]
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.addr().hash(state);
    }
}

impl<T> fmt::Debug for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Ptr({:#x})", self.addr())
    }
}

impl<T> fmt::Pointer for Ptr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Pointer::fmt(&self.as_ptr(), f)
    }
}

// SAFETY: a `Ptr` is an address; the code that follows it, with `unsafe` or checked, answers for
// what happens then. A bound `T: Send + Sync` is impossible here: types point to themselves, and
// every `Persist` type is both anyway.
unsafe impl<T> Send for Ptr<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Ptr<T> {}

impl<T> UnwindSafe for Ptr<T> {}
impl<T> RefUnwindSafe for Ptr<T> {}

/// Where a field of type `F` lies in a value of type `T`: what the macro [`field!`](crate::field!)
/// yields.
pub struct FieldOffset<T, F> {
    offset: usize,
    value: PhantomData<fn(T) -> T>,
    field: PhantomData<fn(F) -> F>,
}

impl<T, F> FieldOffset<T, F> {
    /// # Safety
    /// At `offset` bytes in every `T` there is a field of type `F`, aligned.
    #[doc(hidden)]
    #[must_use]
    pub const unsafe fn new(offset: usize) -> Self {
        Self { offset, value: PhantomData, field: PhantomData }
    }

    /// Bytes from the start of the value to the field.
    #[inline]
    #[must_use]
    pub const fn offset(self) -> usize {
        self.offset
    }

    /// A field of this field.
    #[inline]
    #[must_use]
    pub const fn then<G>(self, inner: FieldOffset<F, G>) -> FieldOffset<T, G> {
        FieldOffset { offset: self.offset + inner.offset, value: PhantomData, field: PhantomData }
    }

    /// The field of a value.
    #[inline]
    #[must_use]
    pub fn get(self, value: &T) -> &F {
        // SAFETY: there is a field of type `F` at this offset, as promised at the construction.
        unsafe { &*core::ptr::from_ref(value).byte_add(self.offset).cast() }
    }

    /// The field of a value, to be changed.
    #[inline]
    #[must_use]
    pub fn get_mut(self, value: &mut T) -> &mut F {
        // SAFETY: there is a field of type `F` at this offset, as promised at the construction.
        unsafe { &mut *core::ptr::from_mut(value).byte_add(self.offset).cast() }
    }
}

impl<T> FieldOffset<T, T> {
    /// The value itself, as a field of itself.
    ///
    /// ```
    /// use cenote::ptr::FieldOffset;
    ///
    /// assert_eq!(*FieldOffset::whole().get(&7_u64), 7);
    /// ```
    #[inline]
    #[must_use]
    pub const fn whole() -> Self {
        FieldOffset { offset: 0, value: PhantomData, field: PhantomData }
    }
}

impl<T, E, const N: usize> FieldOffset<T, [E; N]> {
    /// An element of this array; `None` if there is none of this index.
    #[inline]
    #[must_use]
    pub const fn element(self, index: usize) -> Option<FieldOffset<T, E>> {
        if index < N {
            Some(FieldOffset {
                offset: self.offset + index * size_of::<E>(),
                value: PhantomData,
                field: PhantomData,
            })
        } else {
            None
        }
    }
}

impl<T, F> Clone for FieldOffset<T, F> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T, F> Copy for FieldOffset<T, F> {}

impl<T, F> fmt::Debug for FieldOffset<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FieldOffset({})", self.offset)
    }
}

// For the macro `field!`: a program may call another crate `core`.
#[doc(hidden)]
pub use ::core as __core;

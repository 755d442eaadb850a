//! Pointers that are no addresses: [`RelPtr`], which survives that its data moves, and
//! [`RegionPtr`], which leads into any pool of the store wherever that lies (RAL-5).
//!
//! [`Ptr`] is the rule: nothing is faster to follow. These two are for data that is to be right at
//! other addresses too.
//!
//! A `RelPtr` holds the distance from itself to its target, so it is right at its own place only.
//! So it cannot be copied, and in process memory it is null. [`Tx::get_mut`](crate::Tx::get_mut)
//! does not give out types that contain one (they are not `Unpin`): a swap would break them. Use
//! [`Tx::set`](crate::Tx::set) for their other fields and [`Tx::set_rel`](crate::Tx::set_rel) for
//! their links. If code moves such a value by other means, the pointer leads elsewhere. Following
//! it is checked, as for every pointer: it is refused, or shows another value of its type.
//!
//! ```
//! use cenote::{Persist, Ptr, Reader, RegionPtr, RelPtr, Store, field};
//!
//! #[derive(Persist)]
//! struct Node { value: u64, next: RelPtr<Node>, elsewhere: RegionPtr<u64> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let store = Store::open(directory.path())?;
//! let (here, there) = (store.pool("here")?, store.pool("there")?);
//! store.write(&[&here, &there], |tx| -> cenote::Result<()> {
//!     let number = tx.alloc_in(&there, 42u64)?;
//!     let elsewhere = tx.region_ptr(number)?;
//!     let last = tx.alloc(Node { value: 2, next: RelPtr::NULL, elsewhere })?;
//!     let first = tx.alloc(Node { value: 1, next: RelPtr::NULL, elsewhere: RegionPtr::NULL })?;
//!     tx.set_rel(first, field!(Node, next), Some(last))?;
//!     let next = tx.get(first)?.next.get().expect("just set");
//!     let number = tx.resolve(tx.get(next)?.elsewhere)?.expect("not null");
//!     assert_eq!((tx.get(next)?.value, *tx.get(number)?), (2, 42));
//!     tx.set_root(first)
//! })
//! # }
//! ```

use crate::persist::{LayoutBuilder, Persist, applied};
use crate::ptr::Ptr;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::{RegionAddress, decode_relative};
use core::fmt;
use core::marker::{PhantomData, PhantomPinned};

/// A pointer to a value of type `T` in the same pool, or null, held as the distance from itself: 8
/// bytes. See the [module](self).
#[repr(transparent)]
pub struct RelPtr<T> {
    word: u64,
    _target: PhantomData<fn() -> T>,
    _pinned: PhantomPinned,
}

impl<T> RelPtr<T> {
    /// Leads nowhere: the only one that a value can be made with.
    pub const NULL: Self = Self { word: 0, _target: PhantomData, _pinned: PhantomPinned };

    /// Whether it leads nowhere.
    #[inline]
    #[must_use]
    pub const fn is_null(&self) -> bool {
        self.word == 0
    }

    /// Where it leads; `None` if it is null. To be asked of the value in its place, as
    /// [`Reader::get`](crate::Reader::get) shows it.
    #[inline]
    #[must_use]
    pub fn get(&self) -> Option<Ptr<T>> {
        if self.is_null() {
            return None;
        }
        let place = core::ptr::from_ref(self).addr() as u64;
        // A word that is no off-holder is no address either, so following it is refused.
        let to = decode_relative(place, self.word).filter(|&to| to != 0).unwrap_or(self.word);
        // SAFETY: the pointer is followed only through accesses that check it.
        unsafe { Ptr::from_addr(to) }
    }
}

impl<T> Default for RelPtr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> fmt::Debug for RelPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(to) => write!(f, "RelPtr({:#x})", to.addr()),
            None => f.write_str("RelPtr(null)"),
        }
    }
}

// SAFETY: a word that the pointer map knows of, as an off-holder; any bits are one or are refused
// when followed. Plain data.
unsafe impl<T: Persist> Persist for RelPtr<T> {
    const TYPE_ID: TypeId = TypeId::of_name("RelPtr").apply(T::TYPE_ID.0);
    const BUILT_IN: bool = true;

    fn type_name() -> String {
        applied("RelPtr", T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.relative_pointer::<T>(0);
    }
}

/// A pointer to a value of type `T` in any pool of the store, or null: pool, puddle and offset in 8
/// bytes. Made by [`Reader::region_ptr`](crate::Reader::region_ptr), followed by
/// [`Reader::resolve`](crate::Reader::resolve). See the [module](self).
#[repr(transparent)]
pub struct RegionPtr<T> {
    word: u64,
    _target: PhantomData<fn() -> T>,
}

impl<T> RegionPtr<T> {
    /// Leads nowhere.
    pub const NULL: Self = Self { word: 0, _target: PhantomData };

    pub(crate) const fn new(word: u64) -> Self {
        Self { word, _target: PhantomData }
    }

    /// Whether it leads nowhere.
    #[inline]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.word == 0
    }

    /// What it says; `None` if it is null.
    #[inline]
    #[must_use]
    pub const fn region(self) -> Option<RegionAddress> {
        RegionAddress::decode(self.word)
    }
}

impl<T> Clone for RegionPtr<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for RegionPtr<T> {}

impl<T> Default for RegionPtr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> PartialEq for RegionPtr<T> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl<T> Eq for RegionPtr<T> {}

impl<T> fmt::Debug for RegionPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.region() {
            Some(RegionAddress { pool, puddle, offset }) => {
                write!(f, "RegionPtr(pool {pool}, puddle {puddle}, {offset:#x})")
            }
            None => f.write_str("RegionPtr(null)"),
        }
    }
}

// SAFETY: a word that the pointer map knows of, as a region pointer; any bits are one or are
// refused when followed. Plain data.
unsafe impl<T: Persist> Persist for RegionPtr<T> {
    const TYPE_ID: TypeId = TypeId::of_name("RegionPtr").apply(T::TYPE_ID.0);
    const BUILT_IN: bool = true;

    fn type_name() -> String {
        applied("RegionPtr", T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.region_pointer::<T>(0);
    }
}

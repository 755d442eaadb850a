//! [`HeapPtr`], the persistent pointer of Poseidon (POS-9; Poseidon, section 4.6): 16 bytes that
//! name a heap, a part of it, and an offset there.
//!
//! ```text
//! first word     63   56 55                                                 0
//!                | 0xf6 | id of the heap: the number of its pool            |
//!
//! second word    63                   48 47                                 0
//!                | number of the puddle | offset in the puddle              |
//! ```
//!
//! The paper's second word has the number of a sub-heap and an offset in it. Here it has the number
//! of a puddle, because every kind of heap has puddles, and each puddle belongs to one sub-heap.
//! Nothing in it depends on an address. So it stays right when the window of a store moves, and
//! when a pool is imported at another address; where an import gives the pool another number, the
//! pointers in it get that number, as region pointers do.
//!
//! It is converted in both directions by an access to the pool, which checks each time that a live
//! block of the type begins there:
//!
//! | Poseidon | here |
//! | --- | --- |
//! | `poseidon_get_nvmptr` | [`heap_ptr`], and [`heap_ptr_at`] for an address |
//! | `poseidon_get_rawptr` | [`ptr_of`], then [`Ptr::as_ptr`](crate::Ptr::as_ptr) |
//! | `poseidon_get_root` | [`heap_root`], [`heap_root_at`] |
//! | `poseidon_set_root` | [`set_heap_root`], [`set_heap_root_at`] |
//!
//! [`heap_ptr`]: crate::Reader::heap_ptr
//! [`heap_ptr_at`]: crate::Reader::heap_ptr_at
//! [`ptr_of`]: crate::Reader::ptr_of
//! [`heap_root`]: crate::Reader::heap_root
//! [`heap_root_at`]: crate::Reader::heap_root_at
//! [`set_heap_root`]: crate::Tx::set_heap_root
//! [`set_heap_root_at`]: crate::Tx::set_heap_root_at
//!
//! ```
//! use cenote::{HeapKind, HeapPtr, Persist, PoolOptions, Reader, Store};
//!
//! #[derive(Persist)]
//! struct Node { value: u64, next: HeapPtr<Node> }
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let store = Store::open(directory.path())?;
//! let options = PoolOptions { heap: HeapKind::Logged, ..PoolOptions::default() };
//! let pool = store.create_pool("list", &options)?;
//! pool.write(|tx| -> cenote::Result<()> {
//!     let last = tx.alloc(Node { value: 2, next: HeapPtr::NULL })?;
//!     let next = tx.heap_ptr(last)?;
//!     let first = tx.alloc(Node { value: 1, next })?;
//!     let root = tx.heap_ptr(first)?;
//!     tx.set_heap_root(root)
//! })?;
//! let view = pool.read()?;
//! let first = view.ptr_of(view.heap_root::<Node>()?)?.expect("set above");
//! let next = view.ptr_of(view.get(first)?.next)?.expect("not null");
//! assert_eq!((view.get(first)?.value, view.get(next)?.value), (1, 2));
//! # Ok(())
//! # }
//! ```
//!
//! A [`Ptr`](crate::Ptr) is faster to follow, and a [`RegionPtr`](crate::RegionPtr) is half as
//! large. The number of a pool means something in its own store: a heap pointer of another store is
//! refused, or leads to a live value of its type, as with every pointer that is checked.

use crate::persist::{LayoutBuilder, Persist, applied};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::RegionAddress;
use core::fmt;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

/// A pointer to a value of type `T` in any pool of the store, or null: heap, puddle and offset in
/// 16 bytes. See the [module](self).
#[repr(transparent)]
pub struct HeapPtr<T> {
    words: [u64; 2],
    _target: PhantomData<fn() -> T>,
}

const _: () = assert!(size_of::<HeapPtr<u64>>() == 16 && align_of::<HeapPtr<u64>>() == 8);

impl<T> HeapPtr<T> {
    /// Leads nowhere.
    pub const NULL: Self = Self::new([0, 0]);

    pub(crate) const fn new(words: [u64; 2]) -> Self {
        Self { words, _target: PhantomData }
    }

    /// Whether it leads nowhere.
    #[inline]
    #[must_use]
    pub const fn is_null(self) -> bool {
        self.words[0] == 0
    }

    /// The heap, the puddle and the offset that it names; `None` if it is null.
    #[inline]
    #[must_use]
    pub const fn place(self) -> Option<RegionAddress> {
        RegionAddress::from_pair(self.words)
    }
}

impl<T> Clone for HeapPtr<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for HeapPtr<T> {}

impl<T> Default for HeapPtr<T> {
    fn default() -> Self {
        Self::NULL
    }
}

impl<T> PartialEq for HeapPtr<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.words == other.words
    }
}

impl<T> Eq for HeapPtr<T> {}

impl<T> Hash for HeapPtr<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.words.hash(state);
    }
}

impl<T> fmt::Debug for HeapPtr<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place() {
            Some(RegionAddress { pool, puddle, offset }) => {
                write!(f, "HeapPtr(pool {pool}, puddle {puddle}, {offset:#x})")
            }
            None if self.is_null() => f.write_str("HeapPtr(null)"),
            None => write!(f, "HeapPtr(malformed, {:#x?})", self.words),
        }
    }
}

// SAFETY: two words that the pointer map knows of, as a heap pointer; any bits are one or are
// refused when followed. Plain data.
unsafe impl<T: Persist> Persist for HeapPtr<T> {
    const TYPE_ID: TypeId = TypeId::of_name("HeapPtr").apply(T::TYPE_ID.0);
    const BUILT_IN: bool = true;

    fn type_name() -> String {
        applied("HeapPtr", T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.heap_pointer::<T>(0);
    }
}

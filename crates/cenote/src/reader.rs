//! Reading, which a [`View`](crate::View) and a transaction ([`Tx`](crate::Tx)) have in common.

use crate::error::{Error, Result};
use crate::heap_ptr::HeapPtr;
use crate::holder::RegionPtr;
use crate::lost::{Faults, Lost};
use crate::persist::{ArrayOf, Persist, TypeId};
use crate::ptr::Ptr;
use cenote_layout::pointer::RegionAddress;
use cenote_medium::planted::{Bug, PointerBug, planted};

pub(crate) mod sealed {
    use cenote_layout::pointer::RegionAddress;

    /// Only this crate's accesses read: their locks make references sound. Any program may call
    /// these functions, through a bound on [`super::Reader`]: so none hands out the store.
    pub trait Sealed {
        /// Pool, puddle and offset of an address in an open pool of its store.
        fn region_of(&self, addr: u64) -> Option<RegionAddress>;
        /// The address of such a place.
        fn region_address(&self, region: &RegionAddress) -> Option<u64>;
    }
}

/// A root that has a name, as [`Reader::named_roots`] lists it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NamedRoot {
    /// The name.
    pub name: String,
    /// Address of the root object.
    pub addr: u64,
    /// Its type.
    pub type_id: TypeId,
}

/// Read access to pools. References live as long as the access, and nothing that they lead to
/// changes meanwhile: a view excludes writers, a transaction gives out shared references only while
/// it is not used to write.
pub trait Reader: sealed::Sealed {
    /// The value that a pointer leads to, after a check that there is a live value of this type: a
    /// few instructions.
    ///
    /// The reference is a plain one: if a page that it leads to is lost later (the file is cut
    /// short, or the device fails), a load through it is `SIGBUS`, after a message, and no error.
    ///
    /// # Errors
    /// [`crate::Error::Dangling`]; [`crate::Error::Store`] if a page of the value cannot be had.
    fn get<T: Persist>(&self, ptr: Ptr<T>) -> Result<&T>;

    /// The first `len` values of an array, for collections.
    ///
    /// # Errors
    /// [`crate::Error::Dangling`]; [`crate::Error::OutOfBounds`] if the block is shorter.
    ///
    /// # Safety
    /// The first `len` values have been written.
    #[doc(hidden)]
    unsafe fn get_array<T: Persist>(&self, ptr: Ptr<ArrayOf<T>>, len: usize) -> Result<&[T]>;

    /// Where an iterator notes what it could not read, for collections.
    #[doc(hidden)]
    fn faults(&self) -> &Faults;

    /// The error for what could not be read, for collections.
    #[doc(hidden)]
    fn unreadable(&self, lost: Lost) -> Error;

    /// Root `index` (0 to 1023) of the pool, of a transaction's first pool.
    ///
    /// # Errors
    /// [`crate::Error::RootType`] if it is of another type, [`crate::Error::RootIndex`] if there is
    /// no such root.
    fn root_at<T: Persist>(&self, index: u16) -> Result<Option<Ptr<T>>>;

    /// The root of this name, of the pool or of a transaction's first pool; `None` if there is
    /// none.
    ///
    /// # Errors
    /// [`crate::Error::NamedRootType`] if it is of another type; [`crate::Error::Dangling`] if what
    /// it led to was freed.
    fn named_root<T: Persist>(&self, name: &str) -> Result<Option<Ptr<T>>>;

    /// The roots that have names, in the order of the names, of the pool or of a transaction's
    /// first pool.
    ///
    /// # Errors
    /// As [`Reader::get`].
    fn named_roots(&self) -> Result<Vec<NamedRoot>>;

    /// A pointer to a value of these pools that can be kept in any pool of the store, and stays
    /// right when the value's puddle moves.
    ///
    /// # Errors
    /// [`crate::Error::Dangling`] if the value is not alive in the pools of this access;
    /// [`crate::Error::NoRegion`] if it lies where no region pointer leads: in the 65,536th pool
    /// of the store or a later one, or further in than 64 MiB times 65,536 puddles.
    fn region_ptr<T: Persist>(&self, ptr: Ptr<T>) -> Result<RegionPtr<T>> {
        self.get(ptr)?;
        let region = self.region_of(ptr.addr()).and_then(RegionAddress::encode);
        region
            .map(RegionPtr::new)
            .ok_or_else(|| Error::NoRegion { place: format!("{:#x}", ptr.addr()) })
    }

    /// Where a region pointer leads; `None` if it is null. Whether there is a value is checked when
    /// the pointer is followed: its pool must be part of that access.
    ///
    /// # Errors
    /// [`crate::Error::NoRegion`] if the store has no such puddle (any more).
    fn resolve<T: Persist>(&self, ptr: RegionPtr<T>) -> Result<Option<Ptr<T>>> {
        if ptr.is_null() {
            return Ok(None);
        }
        match ptr.region().and_then(|region| self.region_address(&region)) {
            // SAFETY: the pointer is followed only through accesses that check it.
            Some(addr) => Ok(unsafe { Ptr::from_addr(addr) }),
            None => Err(Error::NoRegion { place: format!("{ptr:?}") }),
        }
    }

    /// The heap pointer to a value of these pools: it stays right when the value's pool moves. See
    /// [`HeapPtr`].
    ///
    /// # Errors
    /// [`crate::Error::Dangling`] if the value is not alive in the pools of this access;
    /// [`crate::Error::NoPlace`] if its puddle is the 65,537th of its pool, or a later one.
    fn heap_ptr<T: Persist>(&self, ptr: Ptr<T>) -> Result<HeapPtr<T>> {
        self.get(ptr)?;
        let words = self.region_of(ptr.addr()).and_then(RegionAddress::to_pair);
        words.map(HeapPtr::new).ok_or_else(|| Error::NoPlace { place: format!("{ptr:?}") })
    }

    /// As [`Reader::heap_ptr`], of an address: any number, and any raw pointer as a number. Nothing
    /// is read there before the check.
    ///
    /// # Errors
    /// As [`Reader::heap_ptr`]: of the addresses of a value, only the first is one of it. The
    /// address 0 has the null pointer.
    fn heap_ptr_at<T: Persist>(&self, addr: u64) -> Result<HeapPtr<T>> {
        // SAFETY: the pointer is followed only through accesses that check it.
        match unsafe { Ptr::from_addr(addr) } {
            Some(ptr) => self.heap_ptr(ptr),
            None => Ok(HeapPtr::NULL),
        }
    }

    /// The pointer to the value that a heap pointer leads to; `None` if that is null. As with
    /// [`Reader::get`], there is a live value of this type in the pools of this access.
    ///
    /// # Errors
    /// [`crate::Error::NoPlace`] if the store has no such puddle (any more), or it ends before;
    /// [`crate::Error::Dangling`] if no live value of this type begins there in the pools of this
    /// access.
    fn ptr_of<T: Persist>(&self, ptr: HeapPtr<T>) -> Result<Option<Ptr<T>>> {
        if ptr.is_null() {
            return Ok(None);
        }
        let addr = ptr.place().and_then(|place| self.region_address(&place));
        // SAFETY: the pointer is followed only through accesses that check it.
        let found = addr.and_then(|addr| unsafe { Ptr::from_addr(addr) });
        let found = found.ok_or_else(|| Error::NoPlace { place: format!("{ptr:?}") })?;
        if !planted(Bug::Pointer(PointerBug::HeapPtrUnchecked)) {
            self.get(found)?;
        }
        Ok(Some(found))
    }

    /// Root `index` as a heap pointer; null if there is none.
    ///
    /// # Errors
    /// As [`Reader::root_at`] and [`Reader::heap_ptr`].
    fn heap_root_at<T: Persist>(&self, index: u16) -> Result<HeapPtr<T>> {
        self.root_at(index)?.map_or(Ok(HeapPtr::NULL), |root| self.heap_ptr(root))
    }

    /// Root 0 as a heap pointer; null if there is none.
    ///
    /// # Errors
    /// As [`Reader::heap_root_at`].
    fn heap_root<T: Persist>(&self) -> Result<HeapPtr<T>> {
        self.heap_root_at(0)
    }

    /// Root 0.
    ///
    /// # Errors
    /// As [`Reader::root_at`].
    fn root<T: Persist>(&self) -> Result<Option<Ptr<T>>> {
        self.root_at(0)
    }
}

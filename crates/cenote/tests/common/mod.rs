//! Looks at values as bytes.

use cenote::persist::TypeId;
use cenote::{Persist, Ptr};
use std::mem::{MaybeUninit, size_of};

/// A pointer that is never followed.
pub(crate) fn ptr<T>(addr: u64) -> Ptr<T> {
    // SAFETY: no code follows it.
    unsafe { Ptr::from_addr(addr) }.expect("an address that is not 0")
}

/// Runs the pointer map of `T` over the bytes of `value`. Offset, what stands there and target type
/// of every pointer.
pub(crate) fn pointers_in<T: Persist>(value: &T) -> Vec<(usize, u64, TypeId)> {
    let record = T::record();
    record.check().expect("a proper record");
    // Room for padding, which has no value: the copy starts as 0xAA.
    let mut block = vec![0xAA_u8; size_of::<T>()];
    for (i, byte) in block.iter_mut().enumerate() {
        // SAFETY: inside the value. What is read may be padding, so it stays `MaybeUninit`.
        let read = unsafe { *std::ptr::from_ref(value).cast::<MaybeUninit<u8>>().add(i) };
        // SAFETY: on this machine padding has some value; an optimiser that knows it for padding
        // may choose it. Tests only.
        *byte = unsafe { std::hint::black_box(read).assume_init() };
    }
    let mut out = Vec::new();
    record.for_each_pointer(&block, &mut |offset, field| {
        let word = block[offset..offset + 8].try_into().expect("8 bytes");
        out.push((offset, u64::from_le_bytes(word), field.target));
    });
    out.sort_unstable();
    out
}

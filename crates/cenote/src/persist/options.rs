//! [`Option`] of values that may lie in persistent memory.
//!
//! The language says how `Option` of a pointer and of a `NonZero` lies in memory, and says it of no
//! other. So the layouts here are Cenote's, and the compiler is asked whether it has them too, in
//! constants ([`confirm`], [`NICHES`]): a compiler that has another one does not compile the
//! program. No byte is ever read by a layout that was only assumed.
//!
//! | `T` | `Option<T>` |
//! | --- | --- |
//! | a pointer, a handle of a collection, a `NonZero` | as `T`; 0 is `None` |
//! | each bit pattern is a value | a tag as wide as the alignment of `T`, 0 or 1, then `T` |
//! | `bool` | as `T`; 2 is `None` |
//! | `char` | as `T`; 0x110000 is `None` |
//! | `Duration`, `SystemTime` | as `T`; 1,000,000,000 nanoseconds are `None` |
//!
//! Of any other type the compiler hides `None` in a value that the type leaves free: that layout is
//! not fixed, and `Option` of it does not compile.

use super::{LayoutBuilder, NoneForm, Persist, TypeId, applied};
use core::mem::MaybeUninit;

/// That the compiler lays an `Option<T>` out as this module says. Does not compile otherwise.
const fn confirm<T: Persist>() {
    assert!(!T::OWNS, "`Option` cannot own: an `Owned` may be empty, so put it there without one");
    let (size, tag_size) = (size_of::<T>(), align_of::<T>());
    let is_tagged = match T::NONE {
        NoneForm::Tagged => true,
        NoneForm::Zero | NoneForm::Niche => false,
    };
    let wanted = if is_tagged { size + tag_size } else { size };
    assert!(
        size_of::<Option<T>>() == wanted,
        "`None` of this type is one of the values that the type leaves free, which the compiler \
         chooses: use an enum with `#[repr(u8)]`, or put the value into a block of its own"
    );
    if !is_tagged {
        return;
    }
    assert!(tag_size <= 8, "the tag of this `Option` is wider than 8 bytes: use a `repr(u8)` enum");
    let none = MaybeUninit::<Option<T>>::new(None);
    let mut some = MaybeUninit::<Option<T>>::uninit();
    let mut i = 0;
    while i < tag_size {
        // SAFETY: in a constant, where reading what has no value does not compile; so the compiler
        // has written all bytes of the tag.
        let byte = unsafe { none.as_ptr().cast::<u8>().add(i).read() };
        assert!(byte == 0, "the tag of `None` is another one than 0");
        // SAFETY: inside the value.
        unsafe { some.as_mut_ptr().cast::<u8>().add(i).write((i == 0) as u8) };
        i += 1;
    }
    let start = some.as_mut_ptr();
    // SAFETY: in a constant, where reading what has no value, or is no discriminant, does not
    // compile; so the compiler reads no other bytes than those of the tag. The value is named and
    // not read.
    let offset = match unsafe { &mut *start } {
        // SAFETY: both are places in one `Option`.
        Some(value) => unsafe { (&raw mut *value).byte_offset_from(start) },
        None => -1,
    };
    assert!(offset == tag_size as isize, "the value lies at another place, or 1 is no tag of one");
}

// SAFETY: the compiler has confirmed the layout, or the language guarantees it. A pointer may be
// null, and so it is described; of a tagged one all is described under the condition of its tag.
unsafe impl<T: Persist> Persist for Option<T> {
    const TYPE_ID: TypeId = {
        confirm::<T>();
        TypeId::of_name("Option").apply(T::TYPE_ID.0)
    };
    const BUILT_IN: bool = match T::NONE {
        NoneForm::Tagged => false,
        NoneForm::Zero | NoneForm::Niche => T::BUILT_IN,
    };

    fn type_name() -> String {
        applied("Option", T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        match T::NONE {
            NoneForm::Tagged => {
                layout.variant("None", align_of::<T>(), 0, |_| {});
                layout.variant("Some", align_of::<T>(), 1, |some| some.field::<T>("0"));
            }
            NoneForm::Zero => T::describe(layout),
            // Told by its name.
            NoneForm::Niche => {}
        }
    }
}

/// The bytes of a value as a number: `size` of them, from `offset` on.
///
/// # Safety
/// They lie in the value. In a constant only, where reading what has no value does not compile.
pub(super) const unsafe fn bytes_at<T>(value: &T, offset: usize, size: usize) -> u64 {
    let (mut number, mut i) = (0, size);
    while i > 0 {
        i -= 1;
        // SAFETY: by contract.
        let byte = unsafe { core::ptr::from_ref(value).cast::<u8>().add(offset + i).read() };
        number = number << 8 | byte as u64;
    }
    number
}

/// Which of the values that `bool` and `char` leave free is `None`.
const NICHES: () = {
    // SAFETY: inside of the values, in a constant.
    unsafe {
        assert!(bytes_at(&None::<bool>, 0, 1) == 2);
        assert!(bytes_at(&Some(false), 0, 1) == 0 && bytes_at(&Some(true), 0, 1) == 1);
        assert!(bytes_at(&None::<char>, 0, 4) == 0x11_0000);
        assert!(bytes_at(&Some('\0'), 0, 4) == 0);
        assert!(bytes_at(&Some(char::MAX), 0, 4) == 0x10_ffff);
    }
};

const _: () = NICHES;

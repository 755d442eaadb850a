//! The parts of the code of `#[derive(Persist)]` and [`field!`](crate::field!).
//!
//! Both have to be true in every program that compiles, with any names of its items and crates. So
//! they ask the compiler, in constants, about memory of the type that has no value
//! ([`LayoutBuilder::__slot`]):
//!
//! * *A field* is the place that `&raw mut (*slot).field` names. Its type is inferred, its offset
//!   computed, from the same place. A place that lies behind a `Deref` or a reference is no field:
//!   to find it the constant would have to read, and reading what has no value does not compile. A
//!   place in a union is a place that safe code may not read: [`LayoutBuilder::__borrows`] borrows
//!   the same names of a reference, in safe code, where the compiler refuses unions.
//! * *Types are exact.* Both pointers are `*mut`, which is invariant: with `*const` a caller could
//!   shorten the lifetimes of one and not of the other, and read a field for longer than it lives.
//! * *A discriminant* is a candidate that [`LayoutBuilder::__tagged`] writes to the start of the
//!   memory. If the compiler then matches the variant, the candidate is the compiler's discriminant
//!   of that variant. If it matches another, or the bytes are no discriminant, or the compiler
//!   reads more bytes than were written, the constant does not compile. That it does not read fewer
//!   either follows from the size of [`Discriminant`] and from all fields lying behind the bytes.
//!
//! The functions are inherent ones of [`LayoutBuilder`], because the signature of
//! [`Persist::describe`] fixes that type: a path to another type of that name does not compile.

use crate::persist::{LayoutBuilder, Persist, TypeId, VariantBuilder};
use crate::ptr::FieldOffset;
use core::fmt::Display;
use core::mem::{Discriminant, MaybeUninit};

/// For the macros alone.
#[doc(hidden)]
impl LayoutBuilder {
    /// Memory of one `T`, without a value.
    #[must_use]
    pub const fn __slot<T>() -> MaybeUninit<T> {
        MaybeUninit::uninit()
    }

    /// Compiles if `borrow` does: with a body that borrows a place of a `T` in safe code.
    pub const fn __borrows<T>(_value: *mut T, _borrow: fn(&T)) {}

    /// Where the place `field` lies in every `T`.
    ///
    /// # Safety
    /// `value` is memory of one `T`, and `field` the place of a field of type `F` in it that safe
    /// code may borrow.
    #[must_use]
    pub const unsafe fn __place<T, F>(value: *mut T, field: *mut F) -> FieldOffset<T, F> {
        // SAFETY: both are places in one `T`, by contract; at compile time that is checked.
        let offset = unsafe { field.byte_offset_from(value) };
        assert!(offset >= 0, "the field lies outside the value");
        let offset = offset as usize;
        assert!(
            align_of::<F>() <= align_of::<T>() && offset.is_multiple_of(align_of::<F>()),
            "the type is packed: no reference to this field is aligned"
        );
        // SAFETY: by contract there is a field of type `F`; it is aligned in every aligned `T`.
        unsafe { FieldOffset::new(offset) }
    }

    /// As [`LayoutBuilder::__place`], for a field of a variant: it lies behind the discriminant.
    ///
    /// # Safety
    /// As for [`LayoutBuilder::__place`].
    #[must_use]
    pub const unsafe fn __place_in_variant<T, F>(
        value: *mut T,
        field: *mut F,
        tag_bytes: usize,
    ) -> FieldOffset<T, F> {
        // SAFETY: the caller's promise is the same.
        let place = unsafe { Self::__place(value, field) };
        assert!(
            size_of::<F>() == 0 || place.offset() >= tag_bytes,
            "the enum has another `repr` than the derive macro saw"
        );
        place
    }

    /// Whether a field's type has owning edges. Nothing is read.
    #[must_use]
    pub const fn __owns<T, F: Persist>(_value: *mut T, _field: *mut F) -> bool {
        F::OWNS
    }

    /// Memory of one enum `T`, of which the discriminant alone has a value.
    ///
    /// # Safety
    /// In a constant only. There the compiler refuses `tag` unless it is the discriminant of a
    /// variant.
    #[must_use]
    pub const unsafe fn __tagged<T>(tag: u64, tag_bytes: usize) -> MaybeUninit<T> {
        assert!(
            size_of::<Discriminant<T>>() == tag_bytes && tag_bytes <= size_of::<T>(),
            "the enum has another `repr` than the derive macro saw"
        );
        let mut slot = MaybeUninit::<T>::uninit();
        let bytes = tag.to_le_bytes();
        let mut i = 0;
        while i < tag_bytes {
            // SAFETY: inside the value, as `tag_bytes` is not more than its size.
            unsafe { slot.as_mut_ptr().cast::<u8>().add(i).write(bytes[i]) };
            i += 1;
        }
        // Reads the discriminant, also where there is one variant and a `match` would not.
        // SAFETY: in a constant, by contract, where an invalid discriminant is an error. Fields are
        // not read.
        let _ = core::mem::discriminant(unsafe { &*slot.as_ptr() });
        slot
    }

    /// The discriminant as the number that its bytes are.
    #[must_use]
    pub const fn __tag(tag: u64, tag_bytes: usize) -> u64 {
        match tag_bytes {
            8 => tag,
            _ => tag & ((1 << (8 * tag_bytes)) - 1),
        }
    }

    /// The compiler takes the discriminant for that of another variant.
    pub const fn __another_variant() -> ! {
        panic!("the discriminant of this variant is another than the derive macro saw")
    }

    /// `id` applied to a constant, of which `low` are the low 64 bits.
    #[must_use]
    pub const fn __applied<N>(id: TypeId, low: u64, _constant: &N) -> TypeId {
        assert!(size_of::<N>() <= 8, "write the type of this constant as `u128` or `i128`");
        id.apply(low)
    }

    /// The name of a type with its arguments.
    #[must_use]
    pub fn __type_name(name: &str, arguments: &[&dyn Display]) -> String {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        if arguments.is_empty() {
            name.to_string()
        } else {
            format!("{name}<{}>", arguments.join(", "))
        }
    }

    /// There is this field.
    pub fn __field<T, F: Persist>(&mut self, name: &str, place: FieldOffset<T, F>) {
        self.field::<F>(name, place.offset());
    }
}

/// For the derive macro alone.
#[doc(hidden)]
impl VariantBuilder<'_> {
    /// There is this field.
    pub fn __field<T, F: Persist>(&mut self, name: &str, place: FieldOffset<T, F>) {
        const { assert!(!F::OWNS, "an enum cannot own: put the owning edge into a structure") };
        self.field_at::<F>(name, place.offset());
    }
}

/// The [`FieldOffset`](crate::ptr::FieldOffset) of a field, or of a field of a field; also in
/// constants.
///
/// ```
/// use cenote::{Persist, Ptr, field, ptr::FieldOffset};
///
/// #[derive(Persist)]
/// struct Links { next: Option<Ptr<Node>>, previous: Option<Ptr<Node>> }
/// #[derive(Persist)]
/// struct Node { value: u64, links: Links }
///
/// const NEXT: FieldOffset<Node, Option<Ptr<Node>>> = field!(Node, links.next);
/// let node = Node { value: 1, links: Links { next: None, previous: None } };
/// assert!(NEXT.get(&node).is_none());
/// assert_eq!(*field!(Node, value).get(&node), 1);
/// ```
#[macro_export]
macro_rules! field {
    // The type is written once where it counts: a macro in its place may expand to another type
    // each time. That fields are fields, and not behind a `Deref`, follows from the constant, which
    // cannot read. `offset_of!` gives the better message. It and `&raw` take fields of unions too,
    // which hold any bytes; the closure is safe code, which does not.
    ($type:ty, $($field:tt).+) => {
        const {
            let _ = $crate::ptr::__core::mem::offset_of!($type, $($field).+);
            let mut __cenote_slot = $crate::persist::LayoutBuilder::__slot::<$type>();
            let __cenote_value = __cenote_slot.as_mut_ptr();
            $crate::persist::LayoutBuilder::__borrows(__cenote_value, |__cenote_whole| {
                let _ = &__cenote_whole.$($field).+;
            });
            // SAFETY: the place of a field in memory of the type; nothing is read. The program
            // wrote names of fields alone, and the closure has borrowed the same field in safe
            // code, so no union is on the way.
            unsafe {
                $crate::persist::LayoutBuilder::__place(
                    __cenote_value,
                    &raw mut (*__cenote_value).$($field).+,
                )
            }
        }
    };
}

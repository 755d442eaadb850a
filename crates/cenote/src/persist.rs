//! The trait [`Persist`] of types whose values may lie in persistent memory, and its
//! implementations for the language's types.
//!
//! The rule behind everything here: *bytes that were once a value of a type are a value of that
//! type in every program that calls the type the same and lays it out the same.* The name is
//! [`Persist::TYPE_ID`]; the layout is [`Persist::record`], which a store compares with the one it
//! knows before it hands out the first value. So a type need not be `repr(C)`: should another
//! compiler order its fields differently, the store refuses it, and shows both layouts.
//! `repr(C)` is advisable for data that is to outlive many compilers.
//!
//! What is never `Persist`, because the rule cannot hold:
//!
//! * references, raw pointers, `Box`, `Vec`, `String`, `Rc`: they point into the memory of one
//!   process;
//! * `Cell`, `Mutex`, atomics: persistent data changes only through transactions, which log it
//!   first;
//! * types that implement `Drop`: it does not run when the process ends;
//! * `Option` of a type that leaves values free, other than pointers, handles, `NonZero` numbers,
//!   `bool`, `char` and times: which of them is `None` is the compiler's choice. An enum with
//!   `#[repr(u8)]` does the same, and is fixed. `persist/options.rs` has the layouts of the others.

mod layout;
mod options;
mod times;
mod tuples;

use crate::ptr::Ptr;
use core::cmp::Reverse;
use core::marker::PhantomData;
use core::mem::offset_of;
use core::num::{NonZero, Saturating, Wrapping};
use layout::Outline;
pub(crate) use layout::Reach;
use std::collections::HashMap;

pub use cenote_layout::id::TypeId;
pub use cenote_layout::types::{
    Condition, FieldRecord, PointerField, TypeError, TypeRecord, VariantRecord,
};
pub use cenote_layout::values::{InvalidValue, Rule, Rules, Values};
#[doc(hidden)]
pub use core::primitive::bool as __Bool;
pub use layout::{LayoutBuilder, VariantBuilder};
#[doc(hidden)]
pub use {core::ops::Drop as __Drop, std::string::String as __String};

/// Types whose values may lie in persistent memory. Write `#[derive(Persist)]`; see the
/// [module](self) for what is allowed.
///
/// # Safety
/// * `TYPE_ID` belongs to this type alone: no other type of the program has it. (Of two types with
///   the same name and the same record, either's bytes are taken for the other's; a type whose
///   fields obey rules that unsafe code relies on therefore changes its name when it changes its
///   rules.)
/// * `describe` tells the truth: every pointer is described where it is, under the conditions under
///   which it is there, and every field with its type and place, so that equal records mean that
///   equal bytes are equally valid.
/// * Bytes once written as `Self` stay a valid `Self` in another process: no references, no
///   pointers into the memory of this process.
/// * There is no interior mutability, and dropping a value does nothing.
/// * `IS_OWNED` is part of `TYPE_ID`, as by [`owned_type_id`].
/// * `NONE` is [`NoneForm::Zero`] only if the language guarantees that, and [`NoneForm::Tagged`]
///   otherwise.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept in persistent memory",
    label = "not `Persist`",
    note = "structures and enums: add `#[derive(Persist)]`",
    note = "references, `Box`, `Rc`, `Vec` and `String` point into the memory of one process: use \
            `Ptr` or the persistent collections",
    note = "`Cell`, `Mutex` and atomics change behind the log's back: keep plain values and change \
            them in a transaction",
    note = "tuples of more than six values: use a structure"
)]
pub unsafe trait Persist: Sized + Send + Sync + 'static {
    /// The type's name as a number: a stable hash of the declared name, applied to the arguments of
    /// a generic type.
    const TYPE_ID: TypeId;

    /// Whether the layout is fixed by this crate, as with numbers and pointers, rather than
    /// declared by a program. Fields of such a type need no check of their own.
    const BUILT_IN: bool = false;

    /// Whether values have owning edges in them: an [`Owned`](crate::Owned). No operation takes
    /// such a value apart, and what frees or overwrites it frees what it owns. A store refuses a
    /// type that describes an owning edge and does not say so here.
    const OWNS: bool = false;

    /// Whether blocks of this type always have an owner: an [`Owned`](crate::Owned) makes and frees
    /// them. `#[persist(owned)]` says so.
    const IS_OWNED: bool = false;

    /// How `None` lies in an `Option` of this type.
    #[doc(hidden)]
    const NONE: NoneForm = NoneForm::Tagged;

    /// The declared name with its arguments: `list::Node<u64>`.
    fn type_name() -> String;

    /// Describes the fields and pointers of a value.
    fn describe(layout: &mut LayoutBuilder);

    /// What a store keeps about this type. It may fail [`TypeRecord::check`], when a name is too
    /// long, say.
    #[must_use]
    fn record() -> TypeRecord {
        Outline::of::<Self>().record()
    }
}

/// How `None` lies in an `Option` of a type.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoneForm {
    /// A tag of its own before the value, which the compiler confirms.
    Tagged,
    /// All bytes are 0, which are no value, as the language guarantees: [`Ptr`] and types that are
    /// transparent over one and describe it as their only field, and `NonZero` numbers.
    Zero,
    /// A value that the type leaves free, which this crate's constants confirm.
    Niche,
}

/// A type of this program together with its record.
#[derive(Clone, Debug)]
pub struct DescribedType {
    /// What a store keeps about it.
    pub record: TypeRecord,
    /// Which type of this program it is. Two types with one `record.id` must not be used in one
    /// program.
    pub rust_type: core::any::TypeId,
    /// Its Rust path, for messages.
    pub rust_name: &'static str,
    owns: bool,
    reaches: Vec<Reach>,
}

/// Describes one type. The record is not checked.
#[must_use]
pub fn described<T: Persist>() -> DescribedType {
    const { assert!(!core::mem::needs_drop::<T>(), "persistent types do not implement `Drop`") };
    let (rust_type, rust_name) = (core::any::TypeId::of::<T>(), core::any::type_name::<T>());
    Outline::of::<T>().described((T::record, T::OWNS), rust_type, rust_name)
}

/// The id of a type of which each block has an owner: another one than that of a type of the same
/// name whose blocks have none.
#[must_use]
pub const fn owned_type_id(id: TypeId) -> TypeId {
    id.apply(TypeId::of_name("cenote/owned").0)
}

/// Why the types of a program cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TypeSetError {
    /// The description of a type is refused.
    #[error(transparent)]
    Refused(#[from] TypeError),
    /// Two types of this program have one name.
    #[error(
        "types {first} and {second} have the same persistent name, `{name}`: give one of them \
         another name with #[persist(name = \"...\")]"
    )]
    SameName {
        /// Path of the one.
        first: &'static str,
        /// Path of the other.
        second: &'static str,
        /// Their persistent name.
        name: String,
    },
}

/// The name of a generic type with its argument: one function, and not one for each type.
#[inline(never)]
pub(crate) fn applied(name: &str, argument: fn() -> String) -> String {
    __applied(name, &[argument])
}

/// The same with several arguments, for the collections too.
#[doc(hidden)]
#[must_use]
#[inline(never)]
pub fn __applied(name: &str, arguments: &[fn() -> String]) -> String {
    let arguments: Vec<String> = arguments.iter().map(|argument| argument()).collect();
    format!("{name}<{}>", arguments.join(", "))
}

#[inline(never)]
fn list_name(element: fn() -> String) -> String {
    format!("[{}]", element())
}

#[inline(never)]
fn array_name(element: fn() -> String, len: usize) -> String {
    format!("[{}; {len}]", element())
}

/// All types whose layout a store must know before values of type `T` are used: `T` itself, and all
/// declared types that can be reached from it through fields and pointers, each once, `T` first.
/// All records are checked.
///
/// # Errors
/// A record does not pass its check, or two types have one name.
pub fn types_of<T: Persist>() -> Result<Vec<DescribedType>, TypeSetError> {
    types_from(described::<T>)
}

/// The types that can be reached from the one that `first` describes, which is the first of them.
pub(crate) fn types_from(first: Reach) -> Result<Vec<DescribedType>, TypeSetError> {
    let mut known: HashMap<TypeId, (core::any::TypeId, &'static str)> = HashMap::new();
    let mut types: Vec<DescribedType> = Vec::new();
    let mut waiting: Vec<Reach> = vec![first];
    let mut next = 0;
    while let Some(describe) = waiting.get(next) {
        next += 1;
        let this = describe();
        match known.get(&this.record.id) {
            Some((rust_type, _)) if *rust_type == this.rust_type => continue,
            Some((_, first)) => {
                let (second, name) = (this.rust_name, this.record.name);
                return Err(TypeSetError::SameName { first, second, name });
            }
            None => {}
        }
        this.record.check()?;
        if this.record.owns() && !this.owns {
            return Err(cannot_own(this.record.name).into());
        }
        known.insert(this.record.id, (this.rust_type, this.rust_name));
        waiting.extend_from_slice(&this.reaches);
        types.push(this);
    }
    Ok(types)
}

/// A map moves and copies its keys, say, and would leave what they own without an owner.
#[cold]
fn cannot_own(name: String) -> TypeError {
    let reason = "a value in it owns blocks, which it cannot free: a key of a map cannot own, so \
                  put what owns into the value";
    TypeError { name, reason }
}

/// The type of a block that holds an array of `T`: as many as fit, the unused ones zero. A
/// `Ptr<ArrayOf<T>>` is a pointer to such a block. As a value it is the empty beginning of the
/// array.
#[repr(transparent)]
#[derive(Debug)]
pub struct ArrayOf<T>([T; 0]);

// SAFETY: without a byte, so any bytes do; the record describes blocks, which the heap fills with
// `T`s.
unsafe impl<T: Persist> Persist for ArrayOf<T> {
    const TYPE_ID: TypeId = array_type_id::<T>();
    const BUILT_IN: bool = true;
    const OWNS: bool = T::OWNS;
    const IS_OWNED: bool = T::IS_OWNED;

    fn type_name() -> String {
        list_name(T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.elements::<T>(0, 0);
    }

    fn record() -> TypeRecord {
        array_record::<T>()
    }
}

/// The type id of blocks that hold an array of `T`.
#[must_use]
pub const fn array_type_id<T: Persist>() -> TypeId {
    TypeId::of_name("[]").apply(T::TYPE_ID.0)
}

/// The record of blocks that hold an array of `T`.
#[must_use]
pub fn array_record<T: Persist>() -> TypeRecord {
    array_of(T::record(), array_type_id::<T>(), &Outline::of::<T>())
}

fn array_of(element: TypeRecord, id: TypeId, of: &Outline) -> TypeRecord {
    TypeRecord {
        id,
        name: format!("[{}]", (of.name)()),
        repeats: element.size != 0,
        fields: vec![of.field("[]", 0)],
        variants: Vec::new(),
        ..element
    }
}

macro_rules! plain {
    ($none:ident: $($type:ty),* $(,)?) => {$(
        // SAFETY: without pointers, references or interior mutability. The language fixes which
        // bytes are valid.
        unsafe impl Persist for $type {
            const TYPE_ID: TypeId = TypeId::of_name(stringify!($type));
            const BUILT_IN: bool = true;
            const NONE: NoneForm = NoneForm::$none;
            fn type_name() -> String {
                stringify!($type).to_string()
            }
            fn describe(_: &mut LayoutBuilder) {}
        }
    )*};
}

plain!(Tagged: u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, ());
plain!(Niche: bool, char);

// On media these have 8 bytes, as on every machine that a store can be used on.
#[cfg(target_pointer_width = "64")]
plain!(Tagged: usize, isize);

macro_rules! non_zero {
    ($($number:ty, $name:literal);* $(;)?) => {$(
        // SAFETY: a plain number of which 0 is not valid; fixed by the language.
        unsafe impl Persist for NonZero<$number> {
            const TYPE_ID: TypeId = TypeId::of_name($name);
            const BUILT_IN: bool = true;
            // The language guarantees it.
            const NONE: NoneForm = NoneForm::Zero;
            fn type_name() -> String {
                $name.to_string()
            }
            fn describe(_: &mut LayoutBuilder) {}
        }
    )*};
}

non_zero!(
    u8, "NonZeroU8"; u16, "NonZeroU16"; u32, "NonZeroU32"; u64, "NonZeroU64"; u128, "NonZeroU128";
    i8, "NonZeroI8"; i16, "NonZeroI16"; i32, "NonZeroI32"; i64, "NonZeroI64"; i128, "NonZeroI128";
);

#[cfg(target_pointer_width = "64")]
non_zero!(usize, "NonZeroUsize"; isize, "NonZeroIsize");

macro_rules! wrappers {
    ($($wrapper:ident),*) => {$(
        // SAFETY: a structure with one public field, whose place is in the record.
        unsafe impl<T: Persist> Persist for $wrapper<T> {
            const TYPE_ID: TypeId = TypeId::of_name(stringify!($wrapper)).apply(T::TYPE_ID.0);
            const OWNS: bool = T::OWNS;

            fn type_name() -> String {
                applied(stringify!($wrapper), T::type_name)
            }
            fn describe(layout: &mut LayoutBuilder) {
                layout.field::<T>("0", offset_of!(Self, 0));
            }
        }
    )*};
}

wrappers!(Wrapping, Saturating, Reverse);

// SAFETY: elements lie one after the other; fixed by the language.
unsafe impl<T: Persist, const N: usize> Persist for [T; N] {
    const TYPE_ID: TypeId = TypeId::of_name("[;]").apply(T::TYPE_ID.0).apply(N as u64);
    const BUILT_IN: bool = true;
    const OWNS: bool = T::OWNS;

    fn type_name() -> String {
        array_name(T::type_name, N)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.elements::<T>(0, N);
    }
}

// SAFETY: has no bytes.
unsafe impl<T: Persist> Persist for PhantomData<T> {
    const TYPE_ID: TypeId = TypeId::of_name("PhantomData").apply(T::TYPE_ID.0);
    const BUILT_IN: bool = true;

    fn type_name() -> String {
        applied("PhantomData", T::type_name)
    }

    fn describe(_: &mut LayoutBuilder) {}
}

// SAFETY: a 64-bit address that the pointer map knows of; never null.
unsafe impl<T: Persist> Persist for Ptr<T> {
    const TYPE_ID: TypeId = TypeId::of_name("Ptr").apply(T::TYPE_ID.0);
    const BUILT_IN: bool = true;
    // It is transparent over `NonNull`, of which the language guarantees it.
    const NONE: NoneForm = NoneForm::Zero;

    fn type_name() -> String {
        applied("Ptr", T::type_name)
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.pointer::<T>(0);
    }
}

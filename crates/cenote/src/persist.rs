//! What may lie in persistent memory: the trait [`Persist`], and the types that have it.
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
//! * types that implement `Drop`: nobody runs it when the process ends;
//! * tuples and `Option` of anything but pointers, `NonZero` numbers and handles of collections:
//!   their layout is the compiler's choice, and nothing that a program could write would pin it. A
//!   structure or an enum with `#[repr(u8)]` does the same, and can be pinned.

use crate::ptr::Ptr;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{POINTER_FIELDS_MAX, RECORD_VERSION};
use core::cmp::Reverse;
use core::marker::PhantomData;
use core::mem::{offset_of, size_of};
use core::num::{NonZero, Saturating, Wrapping};
use std::collections::HashMap;

pub use cenote_layout::id::TypeId;
pub use cenote_layout::types::{
    Condition, FieldRecord, PointerField, TypeError, TypeRecord, VariantRecord,
};
pub use cenote_layout::values::{InvalidValue, Rule, Rules, Values};
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
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be kept in persistent memory",
    label = "not `Persist`",
    note = "structures and enums: add `#[derive(Persist)]`",
    note = "references, `Box`, `Rc`, `Vec` and `String` point into the memory of one process: use `Ptr` or the persistent collections",
    note = "`Cell`, `Mutex` and atomics change behind the log's back: keep plain values and change them in a transaction",
    note = "tuples, and `Option` of anything but `Ptr` and `NonZero` numbers, have no fixed layout: use a structure or a `#[repr(u8)]` enum"
)]
pub unsafe trait Persist: Sized + Send + Sync + 'static {
    /// The type's name as a number: a stable hash of the declared name, applied to the arguments of
    /// a generic type.
    const TYPE_ID: TypeId;

    /// Whether the layout is fixed by this crate, as with numbers and pointers, rather than
    /// declared by a program. Fields of such a type need no check of their own.
    const BUILT_IN: bool = false;

    /// The declared name with its arguments: `list::Node<u64>`.
    fn type_name() -> String;

    /// Describes the fields and pointers of a value.
    fn describe(layout: &mut LayoutBuilder);

    /// What a store keeps about this type. It may fail [`TypeRecord::check`], when a name is too
    /// long, say.
    #[must_use]
    fn record() -> TypeRecord {
        let mut layout = LayoutBuilder::new();
        Self::describe(&mut layout);
        layout.fields.sort_by(|a, b| (a.offset, &a.name).cmp(&(b.offset, &b.name)));
        layout.variants.sort_by_key(|variant| variant.tag.value);
        let conditions = |field: &PointerField| -> Vec<_> {
            field.conditions.iter().map(|c| (c.offset, c.size, c.value)).collect()
        };
        layout.pointers.sort_by(|a, b| {
            a.offset.cmp(&b.offset).then_with(|| conditions(a).cmp(&conditions(b)))
        });
        TypeRecord {
            version: RECORD_VERSION,
            id: Self::TYPE_ID,
            name: Self::type_name(),
            size: size_of::<Self>() as u64,
            align: align_of::<Self>() as u64,
            repeats: false,
            fields: layout.fields,
            variants: layout.variants,
            pointers: layout.pointers,
        }
    }
}

/// Collects what [`Persist::describe`] says. All offsets are in bytes from the start of the value
/// that is being described; what is nested is shifted to its place.
#[derive(Debug)]
pub struct LayoutBuilder {
    /// Where the value being described lies in the outermost one.
    base: u64,
    /// Whether it is the outermost one: only its fields are listed.
    outermost: bool,
    /// What must hold for it to be there.
    conditions: Vec<Condition>,
    fields: Vec<FieldRecord>,
    variants: Vec<VariantRecord>,
    pointers: Vec<PointerField>,
    reaches: Vec<fn() -> DescribedType>,
}

impl LayoutBuilder {
    fn new() -> Self {
        Self {
            base: 0,
            outermost: true,
            conditions: Vec::new(),
            fields: Vec::new(),
            variants: Vec::new(),
            pointers: Vec::new(),
            reaches: Vec::new(),
        }
    }

    /// There is a field of type `F` at `offset`.
    pub fn field<F: Persist>(&mut self, name: &str, offset: usize) {
        if self.outermost {
            self.fields.push(field_record::<F>(name, offset));
        }
        self.nested::<F>(offset);
    }

    /// If the `tag_size`-byte integer at the start of the value is `tag`, then the value is of this
    /// variant, and has the fields that `fields` lists. Fields are laid out as in a `repr(C)`
    /// structure that begins with the tag: so the language defines enums with `repr(u8)` and
    /// the like.
    pub fn variant(
        &mut self,
        name: &str,
        tag_size: usize,
        tag: u64,
        fields: impl FnOnce(&mut VariantBuilder<'_>),
    ) {
        // At most 8, so it fits.
        let condition = Condition { offset: self.base, size: tag_size as u8, value: tag };
        self.conditions.push(condition);
        let mut variant = VariantBuilder { end: tag_size, fields: Vec::new(), layout: self };
        fields(&mut variant);
        let fields = variant.fields;
        self.conditions.pop();
        if self.outermost {
            self.variants.push(VariantRecord { name: name.to_string(), tag: condition, fields });
        }
    }

    /// There is a pointer at `offset`, null or to a value of type `T`.
    pub fn pointer<T: Persist>(&mut self, offset: usize) {
        self.tagged_pointer::<T>(offset, 0);
    }

    /// There is a pointer at `offset`, null or to a value of type `T`, of which the bits in
    /// `tag_mask` do not belong to the address.
    pub fn tagged_pointer<T: Persist>(&mut self, offset: usize, tag_mask: u64) {
        self.reach::<T>();
        self.words(offset, 1, PointerKind::NATIVE, tag_mask, T::TYPE_ID);
    }

    /// There is a word at `offset` that is an off-holder to a value of type `T`, or 0: a
    /// [`RelPtr`](crate::RelPtr).
    pub fn relative_pointer<T: Persist>(&mut self, offset: usize) {
        self.reach::<T>();
        self.words(offset, 1, PointerKind::RELATIVE, 0, T::TYPE_ID);
    }

    /// There is a word at `offset` that is a region pointer to a value of type `T`, or 0: a
    /// [`RegionPtr`](crate::RegionPtr).
    pub fn region_pointer<T: Persist>(&mut self, offset: usize) {
        self.reach::<T>();
        self.words(offset, 1, PointerKind::REGION, 0, T::TYPE_ID);
    }

    /// From `offset` on there are `count` words that may be pointers of any kind, or not. Whoever
    /// traces looks at where they would lead, and keeps what is
    /// there; a [`filter`](crate::filter) can say better.
    pub fn possible_pointers(&mut self, offset: usize, count: usize) {
        if count > 0 {
            self.words(offset, count as u64, PointerKind::PERHAPS, 0, TypeId::UNTYPED);
        }
    }

    fn words(
        &mut self,
        offset: usize,
        count: u64,
        kind: PointerKind,
        tag_mask: u64,
        target: TypeId,
    ) {
        self.push_pointer(PointerField {
            offset: self.base + offset as u64,
            stride: 8,
            count,
            kind,
            tag_mask,
            target,
            conditions: self.conditions.clone(),
        });
    }

    /// There is a pointer at `offset`, null or to a block whose type is known only where the
    /// pointer is followed.
    pub fn untyped_pointer(&mut self, offset: usize) {
        self.words(offset, 1, PointerKind::NATIVE, 0, TypeId::UNTYPED);
    }

    /// From `offset` on there are `count` values of type `T`, one after the other.
    pub fn elements<T: Persist>(&mut self, offset: usize, count: usize) {
        if !T::BUILT_IN {
            self.reach::<T>();
        }
        let mut element = Self::new();
        element.outermost = false;
        T::describe(&mut element);
        self.reaches.append(&mut element.reaches);
        if count == 0 {
            return;
        }
        let (start, size, count) = (self.base + offset as u64, size_of::<T>() as u64, count as u64);
        for field in element.pointers {
            let copy = |by: u64, stride: u64, count: u64| {
                let shifted = field
                    .conditions
                    .iter()
                    .map(|c| Condition { offset: c.offset + start + by, ..*c });
                PointerField {
                    offset: start + by + field.offset,
                    stride,
                    count,
                    conditions: self.conditions.iter().copied().chain(shifted).collect(),
                    ..field
                }
            };
            let unconditional = field.conditions.is_empty();
            // One instruction if the pointers of all elements are evenly spaced; else one for each
            // element, or one for each pointer of an element, whatever is less.
            let copies: Box<dyn Iterator<Item = PointerField>> = if count == 1 {
                Box::new(core::iter::once(copy(0, field.stride, field.count)))
            } else if unconditional && field.count == 1 {
                Box::new(core::iter::once(copy(0, size, count)))
            } else if unconditional && field.stride * field.count == size {
                Box::new(core::iter::once(copy(0, field.stride, field.count * count)))
            } else if unconditional && field.count < count {
                Box::new((0..field.count).map(|k| copy(k * field.stride, size, count)))
            } else {
                Box::new((0..count).map(|i| copy(i * size, field.stride, field.count)))
            };
            // One too many is kept, so that the record's check notices.
            let room = (POINTER_FIELDS_MAX + 1).saturating_sub(self.pointers.len());
            let copies: Vec<_> = copies.take(room).collect();
            self.pointers.extend(copies);
        }
    }

    /// Values of type `T` can be reached from this one, though not through a field or a pointer
    /// that is described.
    pub fn reach<T: Persist>(&mut self) {
        self.reaches.push(described::<T>);
    }

    fn nested<F: Persist>(&mut self, offset: usize) {
        if !F::BUILT_IN {
            self.reach::<F>();
        }
        let outermost = core::mem::replace(&mut self.outermost, false);
        self.base += offset as u64;
        F::describe(self);
        self.base -= offset as u64;
        self.outermost = outermost;
    }

    fn push_pointer(&mut self, field: PointerField) {
        if self.pointers.len() <= POINTER_FIELDS_MAX {
            self.pointers.push(field);
        }
    }
}

/// Lists the fields of one variant of an enum, see [`LayoutBuilder::variant`].
#[derive(Debug)]
pub struct VariantBuilder<'a> {
    /// First byte behind what was listed.
    end: usize,
    fields: Vec<FieldRecord>,
    layout: &'a mut LayoutBuilder,
}

impl VariantBuilder<'_> {
    /// The next field is of type `F`.
    pub fn field<F: Persist>(&mut self, name: &str) {
        let offset = self.end.next_multiple_of(align_of::<F>());
        self.end = offset + size_of::<F>();
        self.field_at::<F>(name, offset);
    }

    /// There is a field of type `F` at `offset` from the start of the enum.
    pub(crate) fn field_at<F: Persist>(&mut self, name: &str, offset: usize) {
        if self.layout.outermost {
            self.fields.push(field_record::<F>(name, offset));
        }
        self.layout.nested::<F>(offset);
    }
}

fn field_record<F: Persist>(name: &str, offset: usize) -> FieldRecord {
    FieldRecord {
        name: name.to_string(),
        offset: offset as u64,
        size: size_of::<F>() as u64,
        type_id: F::TYPE_ID,
        type_name: F::type_name(),
    }
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
    reaches: Vec<fn() -> DescribedType>,
}

/// Describes one type. The record is not checked.
#[must_use]
pub fn described<T: Persist>() -> DescribedType {
    const { assert!(!core::mem::needs_drop::<T>(), "persistent types do not implement `Drop`") };
    let mut layout = LayoutBuilder::new();
    T::describe(&mut layout);
    DescribedType {
        record: T::record(),
        rust_type: core::any::TypeId::of::<T>(),
        rust_name: core::any::type_name::<T>(),
        reaches: layout.reaches,
    }
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
        "{first} and {second} have the same persistent name, `{name}`: give one another with #[persist(name = \"...\")]"
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

/// All types whose layout a store must know before values of type `T` are used: `T` itself, and
/// whatever declared type can be reached from it through fields and pointers, each once, `T` first.
/// All records are checked.
///
/// # Errors
/// A record does not pass its check, or two types have one name.
pub fn types_of<T: Persist>() -> Result<Vec<DescribedType>, TypeSetError> {
    let mut known: HashMap<TypeId, (core::any::TypeId, &'static str)> = HashMap::new();
    let mut types: Vec<DescribedType> = Vec::new();
    let mut waiting: Vec<fn() -> DescribedType> = vec![described::<T>];
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
        known.insert(this.record.id, (this.rust_type, this.rust_name));
        waiting.extend_from_slice(&this.reaches);
        types.push(this);
    }
    Ok(types)
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

    fn type_name() -> String {
        format!("[{}]", T::type_name())
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
    let element = T::record();
    TypeRecord {
        id: array_type_id::<T>(),
        name: format!("[{}]", T::type_name()),
        repeats: element.size != 0,
        fields: vec![field_record::<T>("[]", 0)],
        variants: Vec::new(),
        ..element
    }
}

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        // SAFETY: without pointers, references or interior mutability. Which bytes are valid is fixed by the language.
        unsafe impl Persist for $type {
            const TYPE_ID: TypeId = TypeId::of_name(stringify!($type));
            const BUILT_IN: bool = true;
            fn type_name() -> String {
                stringify!($type).to_string()
            }
            fn describe(_: &mut LayoutBuilder) {}
        }
    )*};
}

plain!(u8, u16, u32, u64, u128, i8, i16, i32, i64, i128, f32, f64, bool, char, ());

// On media these have 8 bytes, as on every machine that a store can be used on.
#[cfg(target_pointer_width = "64")]
plain!(usize, isize);

macro_rules! non_zero {
    ($($number:ty, $name:literal);* $(;)?) => {$(
        // SAFETY: a plain number of which 0 is not valid; fixed by the language.
        unsafe impl Persist for NonZero<$number> {
            const TYPE_ID: TypeId = TypeId::of_name($name);
            const BUILT_IN: bool = true;
            fn type_name() -> String {
                $name.to_string()
            }
            fn describe(_: &mut LayoutBuilder) {}
        }

        // SAFETY: the language guarantees that this is the plain number, and 0 is `None`.
        unsafe impl Persist for Option<NonZero<$number>> {
            const TYPE_ID: TypeId = TypeId::of_name("Option").apply(<NonZero<$number>>::TYPE_ID.0);
            const BUILT_IN: bool = true;
            fn type_name() -> String {
                concat!("Option<", $name, ">").to_string()
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
                    fn type_name() -> String {
                format!(concat!(stringify!($wrapper), "<{}>"), T::type_name())
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

    fn type_name() -> String {
        format!("[{}; {N}]", T::type_name())
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
        format!("PhantomData<{}>", T::type_name())
    }

    fn describe(_: &mut LayoutBuilder) {}
}

// SAFETY: a 64-bit address that the pointer map knows of; never null.
unsafe impl<T: Persist> Persist for Ptr<T> {
    const TYPE_ID: TypeId = TypeId::of_name("Ptr").apply(T::TYPE_ID.0);
    const BUILT_IN: bool = true;

    fn type_name() -> String {
        format!("Ptr<{}>", T::type_name())
    }

    fn describe(layout: &mut LayoutBuilder) {
        layout.pointer::<T>(0);
    }
}

/// [`Ptr`], and types that are one by another name, as the handles of persistent collections are:
/// `Option` of one is a pointer that may be null, and so [`Persist`].
///
/// # Safety
/// The type is [`Ptr`], or `repr(transparent)` over a type that is a `Handle`, which
/// [`Persist::describe`] lists as its only field.
#[doc(hidden)]
#[diagnostic::on_unimplemented(
    message = "`Option<{Self}>` cannot be kept in persistent memory",
    label = "not `Persist`",
    note = "`Option` of anything but `Ptr`, `NonZero` numbers and handles of collections has no fixed layout: use a `#[repr(u8)]` enum"
)]
pub unsafe trait Handle: Persist {}

// SAFETY: it is `Ptr`.
unsafe impl<T: Persist> Handle for Ptr<T> {}

// SAFETY: `Ptr` is transparent over `NonNull`, and the type over `Ptr`, so the language guarantees
// that this is an address, and that null is `None`. The pointer that the type describes may be
// null.
unsafe impl<H: Handle> Persist for Option<H> {
    const TYPE_ID: TypeId = TypeId::of_name("Option").apply(H::TYPE_ID.0);
    const BUILT_IN: bool = H::BUILT_IN;

    fn type_name() -> String {
        format!("Option<{}>", H::type_name())
    }

    fn describe(layout: &mut LayoutBuilder) {
        H::describe(layout);
    }
}

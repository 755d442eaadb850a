//! How a type is described: its fields, variants and pointers, collected from
//! [`Persist::describe`].

use super::{DescribedType, Persist, described};
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::{
    Condition, FieldRecord, POINTER_FIELDS_MAX, PointerField, RECORD_VERSION, TypeRecord,
    VariantRecord,
};

/// What the description of a type needs of the type itself. The rest is code that all types share:
/// it is compiled once, and not in each program for each type.
#[derive(Clone, Copy)]
pub(super) struct Outline {
    id: TypeId,
    size: u64,
    align: u64,
    pub(super) name: fn() -> String,
    describe: fn(&mut LayoutBuilder),
}

impl Outline {
    pub(super) fn of<T: Persist>() -> Self {
        Self {
            id: T::TYPE_ID,
            size: size_of::<T>() as u64,
            align: align_of::<T>() as u64,
            name: T::type_name,
            describe: T::describe,
        }
    }

    pub(super) fn layout(&self) -> LayoutBuilder {
        let mut layout = LayoutBuilder::new();
        (self.describe)(&mut layout);
        layout
    }

    pub(super) fn record(&self) -> TypeRecord {
        let mut layout = self.layout();
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
            id: self.id,
            name: (self.name)(),
            size: self.size,
            align: self.align,
            repeats: false,
            fields: layout.fields,
            variants: layout.variants,
            pointers: layout.pointers,
        }
    }

    /// The type with its record, which `record` makes.
    #[inline(never)]
    pub(super) fn described(
        &self,
        (record, owns): (fn() -> TypeRecord, bool),
        rust_type: core::any::TypeId,
        rust_name: &'static str,
    ) -> DescribedType {
        let reaches = self.layout().reaches;
        DescribedType { record: record(), rust_type, rust_name, owns, reaches }
    }

    /// A field of the type.
    pub(super) fn field(&self, name: &str, offset: usize) -> FieldRecord {
        FieldRecord {
            name: name.to_string(),
            offset: offset as u64,
            size: self.size,
            type_id: self.id,
            type_name: (self.name)(),
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
    pub(super) reaches: Vec<Reach>,
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
        self.field_of(&Outline::of::<F>(), reached::<F>(), name, offset);
    }

    fn field_of(&mut self, field: &Outline, reach: Option<Reach>, name: &str, offset: usize) {
        if self.outermost {
            self.fields.push(field.field(name, offset));
        }
        self.nested(field, reach, offset);
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
        let mut fields = Some(fields);
        self.variant_of(name, tag_size, tag, &mut |variant| {
            if let Some(fields) = fields.take() {
                fields(variant);
            }
        });
    }

    fn variant_of(
        &mut self,
        name: &str,
        tag_size: usize,
        tag: u64,
        list: &mut dyn FnMut(&mut VariantBuilder<'_>),
    ) {
        // At most 8, so it fits.
        let tag = Condition { offset: self.base, size: tag_size as u8, value: tag };
        self.conditions.push(tag);
        let mut variant = VariantBuilder { end: tag_size, fields: Vec::new(), layout: self };
        list(&mut variant);
        let fields = variant.fields;
        self.conditions.pop();
        if self.outermost {
            self.variants.push(VariantRecord { name: name.to_string(), tag, fields });
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

    /// There are two words at `offset` that are a heap pointer to a value of type `T`, or 0: a
    /// [`HeapPtr`](crate::HeapPtr).
    pub fn heap_pointer<T: Persist>(&mut self, offset: usize) {
        self.reach::<T>();
        self.words(offset, 1, PointerKind::HEAP, 0, T::TYPE_ID);
    }

    /// There is a word at `offset` that owns a block of type `T`, or 0: an
    /// [`Owned`](crate::Owned).
    pub fn owning_pointer<T: Persist>(&mut self, offset: usize) {
        self.reach::<T>();
        self.words(offset, 1, PointerKind::OWNED, 0, T::TYPE_ID);
    }

    /// From `offset` on there are `count` words that own blocks of any type.
    pub(crate) fn untyped_owning_pointers(&mut self, offset: usize, count: usize) {
        self.words(offset, count as u64, PointerKind::OWNED, 0, TypeId::UNTYPED);
    }

    /// From `offset` on there are `count` words that may be pointers of any kind, or not. Tracing
    /// looks at where they would lead, and keeps the blocks there. A [`filter`](crate::filter) can
    /// be more exact.
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
            stride: kind.size(),
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
        self.elements_of(&Outline::of::<T>(), reached::<T>(), offset, count);
    }

    fn elements_of(&mut self, of: &Outline, reach: Option<Reach>, offset: usize, count: usize) {
        self.reaches.extend(reach);
        let mut element = Self::new();
        element.outermost = false;
        (of.describe)(&mut element);
        self.reaches.append(&mut element.reaches);
        if count == 0 {
            return;
        }
        let (start, size, count) = (self.base + offset as u64, of.size, count as u64);
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
            // element or one for each pointer of an element: the smaller number.
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
        self.reach_of(described::<T>);
    }

    fn reach_of(&mut self, reach: Reach) {
        self.reaches.push(reach);
    }

    fn nested(&mut self, field: &Outline, reach: Option<Reach>, offset: usize) {
        self.reaches.extend(reach);
        let outermost = core::mem::replace(&mut self.outermost, false);
        self.base += offset as u64;
        (field.describe)(self);
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
        self.next_field(&Outline::of::<F>(), reached::<F>(), name);
    }

    fn next_field(&mut self, field: &Outline, reach: Option<Reach>, name: &str) {
        let offset = self.end.next_multiple_of(field.align as usize);
        self.end = offset + field.size as usize;
        self.field_of(field, reach, name, offset);
    }

    /// There is a field of type `F` at `offset` from the start of the enum.
    pub(crate) fn field_at<F: Persist>(&mut self, name: &str, offset: usize) {
        self.field_of(&Outline::of::<F>(), reached::<F>(), name, offset);
    }

    fn field_of(&mut self, field: &Outline, reach: Option<Reach>, name: &str, offset: usize) {
        if self.layout.outermost {
            self.fields.push(field.field(name, offset));
        }
        self.layout.nested(field, reach, offset);
    }
}

/// How a type that can be reached is described.
pub(crate) type Reach = fn() -> DescribedType;

/// How a field's type is described, unless this crate fixes its layout.
fn reached<F: Persist>() -> Option<Reach> {
    if F::BUILT_IN { None } else { Some(described::<F>) }
}

//! Describes persistent types as data (PUD-7): the name of a type, its size, its fields, and the
//! places of its pointers.
//!
//! A pointer map is a small program without branches: a list of [`PointerField`]s, each "under
//! these conditions, there are `count` pointers, `stride` bytes apart, from `offset` on". A program
//! that has the map can find every pointer of a block without the code that made it: tracing
//! recovery (RAL-2: maps are filter functions written as data), relocation, and `check` do.
//!
//! Fields and variants are in the record for another reason: two programs agree on a type exactly
//! if their records are equal. A compiler may lay out a plain Rust structure as it likes, and a
//! program may change a type without changing its name; either way a field moves, appears or
//! changes its type, so the records differ and the store refuses, with [`TypeRecord::differences`]
//! to say where.

use crate::id::TypeId;
use crate::pointer::PointerKind;
use serde::{Deserialize, Serialize};

extern crate alloc;
use alloc::format;
use alloc::string::{String, ToString};
use alloc::vec::Vec;
use core::fmt;

/// The version of records that this release writes and the highest that it understands.
pub const RECORD_VERSION: u32 = 1;
/// Most pointer fields that one map may have.
pub const POINTER_FIELDS_MAX: usize = 4096;
/// Most fields and variants, together, that one record may have.
pub const FIELDS_MAX: usize = 4096;
/// Most bytes of the name of a type, a field or a variant.
pub const TYPE_NAME_LEN_MAX: usize = 1024;
/// Most bytes that a record may take in the catalog, whatever its numbers are: a record that passes
/// [`TypeRecord::check`] always fits into one frame.
pub const TYPE_RECORD_LEN_MAX: usize = (1 << 20) - 64;

/// A type as a store knows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TypeRecord {
    /// [`RECORD_VERSION`] of the program that described the type. A later release that says more
    /// than this one understands counts it up.
    pub version: u32,
    /// Hash of the name, see [`TypeId`].
    pub id: TypeId,
    /// The declared name, with its arguments: `Node<u64>`.
    pub name: String,
    /// Bytes of a value.
    pub size: u64,
    /// Alignment of a value in bytes, a power of two.
    pub align: u64,
    /// Whether a block holds as many values as fit, one after the other (`[T]`), not just one.
    /// Unused ones are zero.
    pub repeats: bool,
    /// The fields that every value has, by rising offset. Empty for numbers, pointers and the
    /// like.
    pub fields: Vec<FieldRecord>,
    /// The variants of an enum, by rising tag. Empty for everything else.
    pub variants: Vec<VariantRecord>,
    /// Where the pointers are.
    pub pointers: Vec<PointerField>,
}

/// A field of a type: for agreement and for people; pointers are found through [`PointerField`]s.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FieldRecord {
    /// The declared name; `0`, `1`, ... in a tuple structure.
    pub name: String,
    /// Byte offset in the value.
    pub offset: u64,
    /// Bytes of the field.
    pub size: u64,
    /// The field's type.
    pub type_id: TypeId,
    /// The name of the field's type.
    pub type_name: String,
}

/// A variant of an enum.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct VariantRecord {
    /// The declared name.
    pub name: String,
    /// Which discriminant says that the value is of this variant.
    pub tag: Condition,
    /// The fields of this variant, by rising offset; offsets are from the start of the enum.
    pub fields: Vec<FieldRecord>,
}

/// One instruction of a pointer map.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PointerField {
    /// Byte offset of the first pointer in the value.
    pub offset: u64,
    /// Bytes from one pointer to the next.
    pub stride: u64,
    /// Number of pointers, at least 1.
    pub count: u64,
    /// How the words say where they lead.
    pub kind: PointerKind,
    /// Bits of the word that are not address but tag; 0 for plain pointers, and whatever is not
    /// native.
    pub tag_mask: u64,
    /// What the pointer points to; [`TypeId::UNTYPED`] if that is not known.
    pub target: TypeId,
    /// The pointers are there only if all of these hold (enums). Empty: always.
    pub conditions: Vec<Condition>,
}

/// "The `size`-byte little-endian integer at `offset` equals `value`."
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Condition {
    /// Byte offset in the value.
    pub offset: u64,
    /// 1, 2, 4 or 8 bytes.
    pub size: u8,
    /// What must stand there.
    pub value: u64,
}

/// Why a type is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("type {name}: {reason}")]
pub struct TypeError {
    /// The type's name.
    pub name: String,
    /// What is wrong.
    pub reason: &'static str,
}

impl TypeRecord {
    /// Checks that the record is sensible: every field, pointer and condition lies inside the
    /// value, pointers are aligned wherever the value is, nothing overflows, and the record
    /// fits into the catalog. A record that passes can be run over any block of its type. It
    /// need not be true: a pointer map may still name words that hold no pointers.
    ///
    /// # Errors
    /// The first thing that is wrong.
    pub fn check(&self) -> Result<(), TypeError> {
        let bad = |reason| Err(TypeError { name: self.name.chars().take(80).collect(), reason });
        if self.version == 0 || self.version > RECORD_VERSION {
            return bad("it was described by a later release");
        }
        if !is_name(&self.name) {
            return bad("its name is empty, too long or has control characters");
        }
        if self.id == TypeId::UNTYPED {
            return bad("its id is 0");
        }
        if !self.align.is_power_of_two() || !self.size.is_multiple_of(self.align) {
            return bad("its size is not a multiple of its alignment");
        }
        if self.repeats && self.size == 0 {
            return bad("it repeats values of no size");
        }
        if self.pointers.len() > POINTER_FIELDS_MAX {
            return bad("its pointer map is too long");
        }
        if self.field_count() > FIELDS_MAX {
            return bad("it has too many fields and variants");
        }
        if self.encoded_len_max() > TYPE_RECORD_LEN_MAX {
            return bad("its description is too long for the catalog");
        }
        if !self.pointers.is_empty() && self.align < 8 {
            return bad("it has pointers but is not aligned to 8 bytes");
        }
        for field in
            self.fields.iter().chain(self.variants.iter().flat_map(|variant| &variant.fields))
        {
            if !is_name(&field.name)
                || !is_name(&field.type_name)
                || field.type_id == TypeId::UNTYPED
            {
                return bad("a field has no proper name or type");
            }
            if field.offset.checked_add(field.size).is_none_or(|end| end > self.size) {
                return bad("a field lies outside the value");
            }
        }
        for (i, variant) in self.variants.iter().enumerate() {
            if !is_name(&variant.name) {
                return bad("a variant has no proper name");
            }
            if !variant.tag.lies_within(self.size) {
                return bad("a discriminant lies outside the value");
            }
            if i > 0 && variant.tag.value <= self.variants[i - 1].tag.value {
                return bad("its variants are not in order, or two have the same discriminant");
            }
        }
        for field in &self.pointers {
            if field.count == 0
                || !field.offset.is_multiple_of(8)
                || (field.count > 1 && (field.stride < 8 || !field.stride.is_multiple_of(8)))
            {
                return bad("a pointer is not aligned to 8 bytes, or there are none");
            }
            if !field.kind.is_known() {
                return bad("it has pointers of a kind that this release does not know");
            }
            if field.kind != PointerKind::NATIVE && field.tag_mask != 0 {
                return bad("only native pointers have tag bits");
            }
            let end = (field.count - 1)
                .checked_mul(field.stride)
                .and_then(|span| span.checked_add(field.offset))
                .and_then(|last| last.checked_add(8));
            if end.is_none_or(|end| end > self.size) {
                return bad("a pointer lies outside the value");
            }
            if !field.conditions.iter().all(|condition| condition.lies_within(self.size)) {
                return bad("a discriminant lies outside the value");
            }
        }
        Ok(())
    }

    /// Number of fields and variants, those of variants included.
    fn field_count(&self) -> usize {
        self.fields.len()
            + self.variants.iter().map(|variant| 1 + variant.fields.len()).sum::<usize>()
    }

    /// Most bytes that the record can take when encoded: a number or the length of a list takes at
    /// most 10.
    fn encoded_len_max(&self) -> usize {
        let fields = |fields: &[FieldRecord]| -> usize {
            fields.iter().map(|field| 50 + field.name.len() + field.type_name.len()).sum()
        };
        let variants: usize = self
            .variants
            .iter()
            .map(|variant| 41 + variant.name.len() + fields(&variant.fields))
            .sum();
        let pointers: usize =
            self.pointers.iter().map(|field| 61 + 21 * field.conditions.len()).sum();
        76 + self.name.len() + fields(&self.fields) + variants + pointers
    }

    /// Calls `visit` with the byte offset, in `block`, and the field of every pointer slot of the
    /// value(s) in a block of this type. Works on any bytes: nothing outside `block` is looked
    /// at. The record must have passed [`TypeRecord::check`].
    pub fn for_each_pointer(&self, block: &[u8], visit: &mut dyn FnMut(usize, &PointerField)) {
        if self.pointers.is_empty() {
            return;
        }
        let size = usize::try_from(self.size).unwrap_or(usize::MAX).max(1);
        let values =
            if self.repeats { block.len() / size } else { usize::from(block.len() >= size) };
        for value in 0..values {
            let base = value * size;
            for field in &self.pointers {
                if !field.conditions.iter().all(|c| c.holds(&block[base..base + size])) {
                    continue;
                }
                for k in 0..field.count {
                    visit(base + (field.offset + k * field.stride) as usize, field);
                }
            }
        }
    }
}

/// Whether a name may stand in a record: not empty, not too long, and fit to be printed.
fn is_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= TYPE_NAME_LEN_MAX && !name.contains(char::is_control)
}

impl Condition {
    /// Whether the integer lies in a value of `size` bytes and can have the value.
    fn lies_within(&self, size: u64) -> bool {
        matches!(self.size, 1 | 2 | 4 | 8)
            && self.offset.checked_add(u64::from(self.size)).is_some_and(|end| end <= size)
            && (self.size == 8 || self.value >> (8 * self.size) == 0)
    }

    /// Whether the condition holds of a value.
    #[must_use]
    pub fn holds(&self, value: &[u8]) -> bool {
        let (offset, size) = (self.offset as usize, usize::from(self.size));
        value.get(offset..offset + size).is_some_and(|tag| self.is_tag(tag))
    }

    /// Whether these bytes, the `size` bytes at `offset` of a value, are those that the condition
    /// asks for.
    #[must_use]
    pub fn is_tag(&self, tag: &[u8]) -> bool {
        let mut word = [0; 8];
        let Some(place) = word.get_mut(..tag.len()) else { return false };
        place.copy_from_slice(tag);
        u64::from_le_bytes(word) == self.value
    }
}

/// The layout, one line for each field:
///
/// ```text
/// list::Node<u64>: 16 bytes, aligned to 8, id 53e1f0b2c4d5a697
///        0  key: u64 (8 bytes)
///        8  next: Option<Ptr<list::Node<u64>>> (8 bytes)
///   pointer at 8 to 53e1f0b2c4d5a697
/// ```
impl fmt::Display for TypeRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} bytes, aligned to {}, id {}", self.name, self.size, self.align, self.id)?;
        if self.repeats {
            f.write_str(", as many as the block holds")?;
        }
        for field in &self.fields {
            write!(f, "\n  {field}")?;
        }
        for variant in &self.variants {
            write!(f, "\n  variant {} if {}", variant.name, variant.tag)?;
            for field in &variant.fields {
                write!(f, "\n  {field}")?;
            }
        }
        for pointer in &self.pointers {
            write!(f, "\n  {pointer}")?;
        }
        Ok(())
    }
}

impl fmt::Display for FieldRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:6}  {}: {} ({} bytes)", self.offset, self.name, self.type_name, self.size)
    }
}

impl fmt::Display for PointerField {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.count {
            1 => write!(f, "{} at {}", self.kind, self.offset)?,
            count => {
                write!(f, "{count} {}s from {}, {} apart,", self.kind, self.offset, self.stride)?
            }
        }
        match self.target {
            TypeId::UNTYPED => f.write_str(" to anything")?,
            target => write!(f, " to {target}")?,
        }
        if self.tag_mask != 0 {
            write!(f, ", tag bits {:#x}", self.tag_mask)?;
        }
        for (i, condition) in self.conditions.iter().enumerate() {
            write!(f, "{}{condition}", if i == 0 { " if " } else { " and " })?;
        }
        Ok(())
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "u{} at {} is {}", 8 * u32::from(self.size), self.offset, self.value)
    }
}

impl TypeRecord {
    /// What differs between two records, one sentence each, what `self` says first. Empty exactly
    /// if the records are equal.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let mut out = Vec::new();
        let mut compare = |what: &str, a: &dyn fmt::Display, b: &dyn fmt::Display| {
            let (a, b) = (a.to_string(), b.to_string());
            if a != b {
                out.push(format!("{what}: {a} against {b}"));
            }
        };
        compare("version of the description", &self.version, &other.version);
        compare("id", &self.id, &other.id);
        compare("name", &self.name, &other.name);
        compare("size in bytes", &self.size, &other.size);
        compare("alignment in bytes", &self.align, &other.align);
        compare("as many values as the block holds", &self.repeats, &other.repeats);
        field_differences("", &self.fields, &other.fields, &mut out);
        for a in &self.variants {
            match other.variants.iter().find(|b| b.name == a.name) {
                None => out.push(format!("variant `{}`: only in the first", a.name)),
                Some(b) => {
                    if a.tag != b.tag {
                        out.push(format!(
                            "variant `{}`: if {} against if {}",
                            a.name, a.tag, b.tag
                        ));
                    }
                    field_differences(&format!("{}.", a.name), &a.fields, &b.fields, &mut out);
                }
            }
        }
        for b in other.variants.iter().filter(|b| !self.variants.iter().any(|a| a.name == b.name)) {
            out.push(format!("variant `{}`: only in the second", b.name));
        }
        if self.pointers != other.pointers {
            let only = |a: &[PointerField], b: &[PointerField]| -> Vec<String> {
                a.iter().filter(|x| !b.contains(x)).map(ToString::to_string).collect()
            };
            for line in only(&self.pointers, &other.pointers) {
                out.push(format!("{line}: only in the first"));
            }
            for line in only(&other.pointers, &self.pointers) {
                out.push(format!("{line}: only in the second"));
            }
        }
        if out.is_empty() && self != other {
            out.push(
                "fields, variants or pointers are the same but listed in another order".to_string(),
            );
        }
        out
    }
}

/// Says what differs between the fields of two types or variants.
fn field_differences(
    prefix: &str,
    first: &[FieldRecord],
    second: &[FieldRecord],
    out: &mut Vec<String>,
) {
    let place = |field: &FieldRecord| {
        format!(
            "{} at {}, {} bytes, type id {}",
            field.type_name, field.offset, field.size, field.type_id
        )
    };
    for a in first {
        match second.iter().find(|b| b.name == a.name) {
            None => {
                out.push(format!("field `{prefix}{}`: only in the first ({})", a.name, place(a)))
            }
            Some(b) if a != b => {
                out.push(format!("field `{prefix}{}`: {} against {}", a.name, place(a), place(b)));
            }
            Some(_) => {}
        }
    }
    for b in second.iter().filter(|b| !first.iter().any(|a| a.name == b.name)) {
        out.push(format!("field `{prefix}{}`: only in the second ({})", b.name, place(b)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::catalog::{PAYLOAD_LEN_MAX, Record};
    use proptest::prelude::*;

    fn node() -> TypeRecord {
        let id = TypeId::of_name("Node");
        let field = |name: &str, offset, type_name: &str| FieldRecord {
            name: name.into(),
            offset,
            size: 8,
            type_id: TypeId::of_name(type_name),
            type_name: type_name.into(),
        };
        TypeRecord {
            version: RECORD_VERSION,
            id,
            name: "Node".into(),
            size: 24,
            align: 8,
            repeats: false,
            fields: vec![field("key", 0, "u64"), field("next", 8, "Link")],
            variants: vec![
                VariantRecord {
                    name: "A".into(),
                    tag: Condition { offset: 16, size: 1, value: 0 },
                    fields: vec![],
                },
                VariantRecord {
                    name: "B".into(),
                    tag: Condition { offset: 16, size: 1, value: 1 },
                    fields: vec![field("deep", 16, "u64")],
                },
            ],
            pointers: vec![PointerField {
                offset: 8,
                stride: 8,
                count: 1,
                kind: PointerKind::NATIVE,
                tag_mask: 0,
                target: id,
                conditions: vec![Condition { offset: 16, size: 1, value: 1 }],
            }],
        }
    }

    /// A number that is small, near a multiple of 8, or near the end of the range.
    fn number() -> impl Strategy<Value = u64> {
        prop_oneof![
            20 => (0..4u64).prop_map(|n| n * 8),
            4 => 0..40u64,
            1 => any::<u64>(),
            1 => Just(u64::MAX),
            1 => Just(u64::MAX - 7),
        ]
    }

    fn condition() -> impl Strategy<Value = Condition> {
        (
            number(),
            prop_oneof![Just(1u8), Just(2), Just(4), Just(8), any::<u8>()],
            prop_oneof![0..3u64, any::<u64>()],
        )
            .prop_map(|(offset, size, value)| Condition { offset, size, value })
    }

    fn pointer() -> impl Strategy<Value = PointerField> {
        (
            number(),
            number(),
            prop_oneof![4 => Just(1u64), 2 => 0..6u64, 1 => any::<u64>()],
            0..5u8,
            prop::collection::vec(condition(), 0..3),
        )
            .prop_map(|(offset, stride, count, kind, conditions)| PointerField {
                offset,
                stride,
                count,
                kind: PointerKind(kind),
                tag_mask: 0,
                target: TypeId::UNTYPED,
                conditions,
            })
    }

    fn field() -> impl Strategy<Value = FieldRecord> {
        ("[a-c]{1,2}", number(), 0..9u64, 0..12u64).prop_map(|(name, offset, size, id)| {
            FieldRecord { name, offset, size, type_id: TypeId(id), type_name: format!("T{id}") }
        })
    }

    fn variant() -> impl Strategy<Value = VariantRecord> {
        ("[A-C]{1,2}", condition(), prop::collection::vec(field(), 0..2))
            .prop_map(|(name, tag, fields)| VariantRecord { name, tag, fields })
    }

    prop_compose! {
        fn record()(
            size in prop_oneof![8 => (3..9u64).prop_map(|n| n * 8), 1 => number()],
            align in prop_oneof![6 => Just(8u64), 1 => Just(4u64), 1 => any::<u64>()],
            repeats in any::<bool>(),
            id in 0..20u64,
            fields in prop::collection::vec(field(), 0..2),
            variants in prop::collection::vec(variant(), 0..2),
            pointers in prop::collection::vec(pointer(), 0..3),
        ) -> TypeRecord {
            TypeRecord {
                version: RECORD_VERSION,
                id: TypeId(id),
                name: "T".into(),
                size,
                align,
                repeats,
                fields,
                pointers,
                variants,
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 20_000,
            failure_persistence: None,
            ..ProptestConfig::default()
        })]
        #[test]
        fn accepted_maps_stay_inside_the_block_and_aligned(
            record in record(),
            block in prop::collection::vec(0..3u8, 0..200),
        ) {
            if record.check().is_ok() {
                let mut visited = 0usize;
                record.for_each_pointer(&block, &mut |offset, _| {
                    let inside = offset + 8 <= block.len() && offset.is_multiple_of(8);
                    assert!(inside, "{offset} of {}", block.len());
                    visited += 1;
                });
                assert!(visited <= record.pointers.len() * 25);
            }
        }

        #[test]
        fn accepted_records_fit_into_the_catalog(record in record()) {
            if record.check().is_ok() {
                let len = postcard::to_allocvec(&Record::Type(record.clone())).unwrap().len();
                assert!(len <= record.encoded_len_max() && len <= PAYLOAD_LEN_MAX as usize);
            }
        }

        #[test]
        fn no_differences_exactly_if_equal(a in record(), b in record()) {
            assert!(a.differences(&a).is_empty());
            assert_eq!(a.differences(&b).is_empty(), a == b);
        }
    }

    #[test]
    fn the_generator_of_the_property_tests_makes_records_that_pass() {
        use proptest::strategy::ValueTree;
        let mut runner = proptest::test_runner::TestRunner::deterministic();
        let (mut passed, mut with_pointers) = (0, 0);
        for _ in 0..5000 {
            let record = record().new_tree(&mut runner).unwrap().current();
            if record.check().is_ok() {
                passed += 1;
                with_pointers += usize::from(!record.pointers.is_empty());
            }
        }
        assert!(passed > 100 && with_pointers > 50, "{passed} {with_pointers}");
    }

    #[test]
    fn check_refuses_every_kind_of_nonsense() {
        node().check().unwrap();
        let refused = |change: &dyn Fn(&mut TypeRecord)| {
            let mut record = node();
            change(&mut record);
            record.check().unwrap_err().reason
        };
        assert!(refused(&|r| r.version = 0).contains("release"));
        assert!(refused(&|r| r.version = RECORD_VERSION + 1).contains("later release"));
        assert!(refused(&|r| r.pointers[0].kind = PointerKind(4)).contains("does not know"));
        let tagged = |kind| {
            move |r: &mut TypeRecord| (r.pointers[0].kind, r.pointers[0].tag_mask) = (kind, 1)
        };
        assert!(refused(&tagged(PointerKind::RELATIVE)).contains("tag bits"));
        assert!(refused(&tagged(PointerKind::REGION)).contains("tag bits"));
        assert!(refused(&|r| r.name.clear()).contains("name"));
        assert!(refused(&|r| r.name = "a\nb".into()).contains("control"));
        assert!(refused(&|r| r.name = "x".repeat(TYPE_NAME_LEN_MAX + 1)).contains("name"));
        assert!(refused(&|r| r.id = TypeId::UNTYPED).contains("id"));
        assert!(refused(&|r| r.align = 0).contains("alignment"));
        assert!(refused(&|r| r.align = 16).contains("alignment"));
        assert!(refused(&|r| r.align = 4).contains("aligned to 8"));
        assert!(refused(&|r| (r.size, r.repeats) = (0, true)).contains("no size"));
        assert!(refused(&|r| r.fields[0].name.clear()).contains("field"));
        assert!(refused(&|r| r.fields[0].type_id = TypeId::UNTYPED).contains("field"));
        assert!(refused(&|r| r.fields[1].offset = 17).contains("field lies outside"));
        assert!(refused(&|r| r.fields[1].offset = u64::MAX).contains("field lies outside"));
        assert!(refused(&|r| r.variants[1].fields[0].size = 9).contains("field lies outside"));
        assert!(refused(&|r| r.variants[1].name.clear()).contains("variant"));
        assert!(refused(&|r| r.variants[0].tag.offset = 24).contains("discriminant"));
        assert!(refused(&|r| r.variants[1].tag.value = 256).contains("discriminant"));
        assert!(refused(&|r| r.variants[1].tag.value = 0).contains("same discriminant"));
        assert!(refused(&|r| r.pointers[0].count = 0).contains("pointer"));
        assert!(refused(&|r| r.pointers[0].count = 3).contains("pointer lies outside"));
        assert!(refused(&|r| r.pointers[0].offset = 4).contains("aligned"));
        assert!(
            refused(&|r| (r.pointers[0].count, r.pointers[0].stride) = (2, 4)).contains("aligned")
        );
        assert!(refused(&|r| r.pointers[0].offset = u64::MAX - 7).contains("pointer lies outside"));
        assert!(refused(&|r| r.pointers[0].conditions[0].size = 3).contains("discriminant"));
        assert!(refused(&|r| r.pointers[0].conditions[0].offset = 24).contains("discriminant"));
        assert!(
            refused(&|r| r.pointers = vec![r.pointers[0].clone(); POINTER_FIELDS_MAX + 1])
                .contains("too long")
        );
        assert!(
            refused(&|r| r.fields = vec![r.fields[0].clone(); FIELDS_MAX + 1]).contains("too many")
        );
        assert!(
            refused(&|r| r.pointers[0].conditions = vec![r.pointers[0].conditions[0]; 60_000])
                .contains("catalog")
        );
        assert!(
            refused(&|r| {
                r.fields[0].type_name = "x".repeat(1000);
                r.fields = vec![r.fields[0].clone(); 2000];
            })
            .contains("catalog")
        );
    }

    #[test]
    fn conditions_choose_which_pointers_are_there() {
        let record = node();
        let mut block = [0u8; 24];
        let count = |block: &[u8]| {
            let mut offsets = vec![];
            record.for_each_pointer(block, &mut |offset, _| offsets.push(offset));
            offsets
        };
        assert!(count(&block).is_empty());
        block[16] = 1;
        assert_eq!(count(&block), [8]);
        assert!(count(&block[..23]).is_empty(), "a block that is too short has no value");
    }

    #[test]
    fn layouts_and_differences_read_well() {
        let first = node();
        let id = first.id;
        assert_eq!(
            first.to_string(),
            format!(
                "Node: 24 bytes, aligned to 8, id {id}\n       0  key: u64 (8 bytes)\n       \
                 8  next: Link (8 bytes)\n  variant A if u8 at 16 is 0\n  \
                 variant B if u8 at 16 is 1\n      16  deep: u64 (8 bytes)\n  \
                 pointer at 8 to {id} if u8 at 16 is 1"
            )
        );
        let mut second = node();
        second.size = 32;
        second.fields[1].offset = 16;
        second.fields[0].name = "k".into();
        second.variants[1].tag.value = 2;
        second.variants.remove(0);
        let lines = first.differences(&second);
        let u64_id = TypeId::of_name("u64");
        let link_id = TypeId::of_name("Link");
        assert_eq!(
            lines,
            [
                "size in bytes: 24 against 32".to_string(),
                format!("field `key`: only in the first (u64 at 0, 8 bytes, type id {u64_id})"),
                format!(
                    "field `next`: Link at 8, 8 bytes, type id {link_id} against \
                     Link at 16, 8 bytes, type id {link_id}"
                ),
                format!("field `k`: only in the second (u64 at 0, 8 bytes, type id {u64_id})"),
                "variant `A`: only in the first".to_string(),
                "variant `B`: if u8 at 16 is 1 against if u8 at 16 is 2".to_string(),
            ]
        );
    }
}

//! Describes persistent types as data (PUD-7): the name of a type, its size, its fields, and the
//! places of its pointers.
//!
//! A pointer map is a small program without branches: a list of [`PointerField`]s, each "under
//! these conditions, there are `count` pointers, `stride` bytes apart, from `offset` on". With the
//! map, a program can find every pointer of a block without the code that made it. Tracing recovery
//! (RAL-2: maps are filter functions written as data), relocation and `check` do that.
//!
//! Fields and variants are in the record too: two programs agree on a type exactly if their records
//! are equal. A compiler may lay out a plain Rust structure as it likes, and a program may change a
//! type and keep its name. Either way a field moves, appears or changes its type. Then the records
//! differ and the store refuses; [`TypeRecord::differences`] says where.

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
/// Most bytes that a record may take in the catalog: a record that passes [`TypeRecord::check`]
/// always fits into one frame.
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
    /// Bits of the word that are not address but tag; 0 for plain pointers, and for all that are
    /// not native.
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
        match self.pointers.iter().find_map(|field| field.fault(self.size)) {
            Some(reason) => bad(reason),
            None => Ok(()),
        }
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

    /// Whether values of the type own blocks.
    #[must_use]
    pub fn owns(&self) -> bool {
        self.pointers.iter().any(|field| field.kind == PointerKind::OWNED)
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

impl PointerField {
    /// What is wrong with it in a value of `size` bytes.
    fn fault(&self, size: u64) -> Option<&'static str> {
        if self.count == 0
            || !self.offset.is_multiple_of(8)
            || (self.count > 1 && (self.stride < 8 || !self.stride.is_multiple_of(8)))
        {
            return Some("a pointer is not aligned to 8 bytes, or there are none");
        }
        if !self.kind.is_known() {
            return Some("it has pointers of a kind that this release does not know");
        }
        if self.kind != PointerKind::NATIVE && self.tag_mask != 0 {
            return Some("only native pointers have tag bits");
        }
        let end = (self.count - 1)
            .checked_mul(self.stride)
            .and_then(|span| span.checked_add(self.offset))
            .and_then(|last| last.checked_add(self.kind.size()));
        if end.is_none_or(|end| end > size) {
            return Some("a pointer lies outside the value");
        }
        if !self.conditions.iter().all(|condition| condition.lies_within(size)) {
            return Some("a discriminant lies outside the value");
        }
        None
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
    /// The differences between two records, one sentence each, that of `self` first. Empty exactly
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
mod tests;

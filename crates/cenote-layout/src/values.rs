//! Says which bytes are a value of a type, as far as records tell ([`TypeRecord`]).
//!
//! Some bytes are no value of their type: a `bool` is 0 or 1, a `char` a character, a `NonZero` and
//! a `Ptr` not 0, and an enum has the discriminant of one of its variants. Records say which types
//! a value is made of, down to those:
//!
//! * *A field* has a type id. Those of built-in types are fixed; a declared type has a record of
//!   its own.
//! * *An array* has no record. Its name says element and length, and its id is the hash of both.
//! * *Times*, and `Option` of `bool` and `char`, have no record either: their names say all.
//! * *A variant* has its fields only where its discriminant stands.
//! * *A block that repeats*, and an array in one of Cenote's own types (their names have a `/`,
//!   which a declared name cannot have), has places that are not in use. Those are zero, so an
//!   element of zeros counts as one.
//!
//! * *Text* is a rule of two of Cenote's own types, known by their names: the bytes of a string,
//!   which are UTF-8 and zeros behind them, and `cenote/InlineStr`, whose first byte is its length.
//!
//! Values without a record are not judged: of a type without one, or an array of such a type.
//!
//! *Bounds.* Records may be untrue, and a block may hold any bytes. Nothing outside a block is
//! read. The rules of a true record concern disjoint bytes, so a type with more rules than bytes is
//! left out, and one run over a value does at most one step a byte.

use crate::id::TypeId;
use crate::types::{FieldRecord, TypeRecord};

extern crate alloc;
use alloc::collections::BTreeMap;
use alloc::format;
use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;
use core::fmt;

mod rule;
pub mod shown;
mod structures;
pub use rule::{InvalidValue, Rule};
pub use structures::{Blocks, Structures, is_header, no_room};

/// Most types that lie inside each other, a type and its field counted as two. What is deeper is
/// not judged.
const DEPTH_MAX: u32 = 64;

/// The type of a byte of a string. No declared type has such a name.
const UTF8: &str = "cenote/Utf8";

/// How the name of a text by value begins.
const INLINE_STR: &str = "cenote/InlineStr<";

/// Bytes of a block of text that are looked at together, at least: a character may go on behind
/// them.
const PIECE: usize = 64 << 10;

/// The field of a block that repeats. No declared field has such a name.
const ELEMENT: &str = "[]";

/// Bytes of a value, with rules somewhere inside.
#[derive(Debug)]
struct Shape {
    size: u64,
    /// Rules that are looked at in a value, at most.
    rules: u64,
    /// Types inside each other.
    depth: u32,
    form: Form,
}

#[derive(Debug)]
enum Form {
    Rule(Rule),
    /// So many values of one shape. `spare`: one of zeros is not in use.
    Array {
        element: Arc<Shape>,
        count: u64,
        spare: bool,
    },
    Record(Record),
    /// A byte of a block of text.
    Text,
    /// A length of one byte, and so many bytes of text.
    InlineText,
}

/// A declared type.
#[derive(Debug)]
struct Record {
    members: Vec<ValueMember>,
    tag: Option<Tag>,
}

/// The discriminant of an enum, and what each says.
#[derive(Debug)]
struct Tag {
    offset: u64,
    size: u8,
    /// By rising discriminant.
    variants: Vec<(u64, String, Vec<ValueMember>)>,
}

#[derive(Debug)]
struct ValueMember {
    name: String,
    offset: u64,
    shape: Arc<Shape>,
}

/// Where in a value one is, from the inside to the outside.
#[derive(Clone, Copy)]
enum Path<'a> {
    Value,
    Member(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, u64),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Path::Value => Ok(()),
            Path::Member(Path::Value, name) => f.write_str(name),
            Path::Member(outer, name) => write!(f, "{outer}.{name}"),
            Path::Index(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

/// Hears of bytes that break a rule: their offset, the rule, the number, and the field.
type Visit<'v> = &'v mut dyn FnMut(u64, Rule, u128, &dyn fmt::Display);

impl Shape {
    /// `bytes` are those of one value, which stands at `at`.
    fn run(&self, bytes: &[u8], at: u64, path: Path<'_>, visit: Visit<'_>) {
        match &self.form {
            Form::Rule(rule) => {
                let found = number(bytes);
                if !rule.holds(found) {
                    visit(at, *rule, found, &path);
                }
            }
            // Its block is looked at as a whole.
            Form::Text => {}
            Form::InlineText => {
                let Some((len, text)) = bytes.split_first() else { return };
                match text.get(..usize::from(*len)).map(core::str::from_utf8) {
                    None => visit(at, Rule::Text, u128::from(*len), &path),
                    Some(Err(error)) => {
                        let from = error.valid_up_to();
                        let found = text.get(from).copied().unwrap_or_default();
                        visit(at + 1 + from as u64, Rule::Text, u128::from(found), &path);
                    }
                    Some(Ok(_)) => {}
                }
            }
            Form::Array { element, count, spare } => {
                let size = element.size as usize;
                for (index, bytes) in
                    bytes.chunks_exact(size.max(1)).take(*count as usize).enumerate()
                {
                    if !spare || bytes.iter().any(|byte| *byte != 0) {
                        let index = index as u64;
                        element.run(
                            bytes,
                            at + index * element.size,
                            Path::Index(&path, index),
                            visit,
                        );
                    }
                }
            }
            Form::Record(Record { members, tag }) => {
                run_members(members, bytes, at, path, visit);
                let Some(Tag { offset, size, variants }) = tag else { return };
                let Some(found) = part(bytes, *offset, u64::from(*size)).map(number) else {
                    return;
                };
                match variants.binary_search_by_key(&found, |(tag, ..)| u128::from(*tag)) {
                    Ok(which) => {
                        let (_, name, members) = &variants[which];
                        run_members(members, bytes, at, Path::Member(&path, name), visit);
                    }
                    Err(_) => visit(at + offset, Rule::Tag, found, &path),
                }
            }
        }
    }
}

fn run_members(members: &[ValueMember], bytes: &[u8], at: u64, path: Path<'_>, visit: Visit<'_>) {
    for ValueMember { name, offset, shape } in members {
        let Some(bytes) = part(bytes, *offset, shape.size) else { continue };
        match name.as_str() {
            ELEMENT => shape.run(bytes, at + offset, path, visit),
            name => shape.run(bytes, at + offset, Path::Member(&path, name), visit),
        }
    }
}

fn part(bytes: &[u8], offset: u64, size: u64) -> Option<&[u8]> {
    let from = usize::try_from(offset).ok()?;
    bytes.get(from..from.checked_add(usize::try_from(size).ok()?)?)
}

/// Where bytes of a text stop being UTF-8. A character may have begun before them, if there is
/// something before; and may go on behind them, if there are many.
fn where_no_text(bytes: &[u8], begun: bool) -> Option<usize> {
    let of_before = bytes.iter().take(3).take_while(|byte| begun && **byte & 0xc0 == 0x80).count();
    let error = core::str::from_utf8(bytes.get(of_before..)?).err()?;
    let goes_on = error.error_len().is_none() && bytes.len() >= PIECE;
    (!goes_on).then_some(of_before + error.valid_up_to())
}

/// The little-endian number of at most 16 bytes.
fn number(bytes: &[u8]) -> u128 {
    bytes.iter().rev().take(16).fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// What must hold of the blocks of one type.
#[derive(Clone, Debug)]
pub struct Rules {
    shape: Arc<Shape>,
    type_id: TypeId,
    type_name: String,
    repeats: bool,
}

impl Rules {
    /// Bytes of a value.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.shape.size
    }

    /// Whether a block holds as many values as fit.
    #[must_use]
    pub fn repeats(&self) -> bool {
        self.repeats
    }

    /// Calls `found` for all that breaks a rule in `bytes`, which begin `offset` bytes behind the
    /// start of the block at `block`: a multiple of a value's size, and 0 unless the type repeats.
    pub fn check(
        &self,
        block: u64,
        offset: u64,
        bytes: &[u8],
        found: &mut dyn FnMut(InvalidValue),
    ) {
        let size = self.shape.size;
        if matches!(self.shape.form, Form::Text) {
            let Some(at) = where_no_text(bytes, offset > 0) else { return };
            return found(InvalidValue {
                block,
                type_id: self.type_id,
                type_name: self.type_name.clone(),
                field: format!("[{}]", offset + at as u64),
                at: block.saturating_add(offset).saturating_add(at as u64),
                rule: Rule::Text,
                found: u128::from(bytes.get(at).copied().unwrap_or_default()),
            });
        }
        let values = if self.repeats { bytes.len() } else { size as usize };
        let first = offset / size.max(1);
        let chunks =
            bytes.chunks_exact((size as usize).max(1)).take(values / (size as usize).max(1));
        for (number, value) in chunks.enumerate() {
            if self.repeats && value.iter().all(|byte| *byte == 0) {
                continue;
            }
            let index = first + number as u64;
            let path = if self.repeats { Path::Index(&Path::Value, index) } else { Path::Value };
            self.shape.run(value, index * size, path, &mut |at, rule, number, field| {
                found(InvalidValue {
                    block,
                    type_id: self.type_id,
                    type_name: self.type_name.clone(),
                    field: format!("{field}"),
                    at: block.saturating_add(at),
                    rule,
                    found: number,
                });
            });
        }
    }
}

/// The rules of types, made from records when a type is asked for.
#[derive(Debug)]
pub struct Values {
    records: BTreeMap<TypeId, Arc<TypeRecord>>,
    names: BTreeMap<String, Vec<TypeId>>,
    shapes: BTreeMap<TypeId, Option<Arc<Shape>>>,
}

impl Values {
    /// From all records that are known. One that does not pass its check is left out.
    #[must_use]
    pub fn new(records: impl IntoIterator<Item = Arc<TypeRecord>>) -> Self {
        let mut this =
            Self { records: BTreeMap::new(), names: BTreeMap::new(), shapes: BTreeMap::new() };
        for record in records.into_iter().filter(|record| record.check().is_ok()) {
            this.names.entry(record.name.clone()).or_default().push(record.id);
            this.records.insert(record.id, record);
        }
        this
    }

    /// The rules of the blocks of a type; `None` if any bytes will do, or the type is not known.
    pub fn rules(&mut self, id: TypeId) -> Option<Rules> {
        let record = Arc::clone(self.records.get(&id)?);
        // Not through the table of shapes: a block that repeats is described by its element.
        let is_text = |field: &FieldRecord| field.name == ELEMENT && field.type_name == UTF8;
        let shape = match record.repeats {
            true if record.size == 1 && record.fields.iter().any(is_text) => {
                Some(Arc::new(Shape { size: 1, rules: 1, depth: 1, form: Form::Text }))
            }
            true => self.record(&record, 0),
            false => self.shape(id, &record.name, record.size, 0),
        };
        let (type_name, repeats) = (record.name.clone(), record.repeats);
        Some(Rules { shape: shape?, type_id: id, type_name, repeats })
    }

    /// The type with a record that a field is made of: its own, or that of an array's elements.
    #[must_use]
    pub fn declared(&self, field: &FieldRecord) -> Option<TypeId> {
        if self.records.contains_key(&field.type_id) {
            return Some(field.type_id);
        }
        let mut name = field.type_name.as_str();
        while let Some((element, _)) = array(name) {
            name = element;
        }
        self.names.get(name)?.first().copied()
    }

    /// Ids that a type of this name may have.
    fn ids(&self, name: &str) -> Vec<TypeId> {
        match array(name) {
            Some((element, count)) => {
                self.ids(element).into_iter().map(|id| array_of(id, count)).collect()
            }
            None => self.names.get(name).cloned().unwrap_or_else(|| vec![TypeId::of_name(name)]),
        }
    }

    /// The shape of a value of `size` bytes; `None` if any bytes will do.
    fn shape(&mut self, id: TypeId, name: &str, size: u64, depth: u32) -> Option<Arc<Shape>> {
        if depth > DEPTH_MAX {
            return None;
        }
        if let Some(shape) = self.shapes.get(&id) {
            return shape.clone().filter(|shape| shape.size == size);
        }
        // A type that lies inside itself finds this.
        self.shapes.insert(id, None);
        let made = self.make(id, name, size, depth);
        let shape = made.filter(|shape| {
            (1..=size).contains(&shape.rules) && shape.depth <= DEPTH_MAX && shape.size == size
        });
        self.shapes.insert(id, shape.clone());
        shape
    }

    fn make(&mut self, id: TypeId, name: &str, size: u64, depth: u32) -> Option<Arc<Shape>> {
        let leaf =
            |rule, size| Some(Arc::new(Shape { size, rules: 1, depth: 1, form: Form::Rule(rule) }));
        if let Some((rule, size)) = Rule::of(id) {
            return leaf(rule, size);
        }
        // No declared type has such a name. `None` is null, or 0.
        if name.starts_with("Ptr<") {
            return leaf(Rule::NotNull, 8);
        }
        if let Some(shape) = std_shape(name) {
            return Some(shape);
        }
        if name.starts_with("Option<") {
            // One with a tag has variants; of another one 0 is `None`.
            let record = self.records.get(&id).filter(|record| !record.variants.is_empty());
            let record = Arc::clone(record?);
            return self.record(&record, depth);
        }
        if let Some((element, count)) = array(name) {
            return self.array(id, element, count, size, depth);
        }
        let record = Arc::clone(self.records.get(&id)?);
        if record.name.starts_with(INLINE_STR) {
            return Some(Arc::new(Shape {
                size: record.size,
                rules: 1,
                depth: 1,
                form: Form::InlineText,
            }));
        }
        self.record(&record, depth)
    }

    fn array(
        &mut self,
        id: TypeId,
        element: &str,
        count: u64,
        size: u64,
        depth: u32,
    ) -> Option<Arc<Shape>> {
        if count == 0 || !size.is_multiple_of(count) {
            return None;
        }
        let known = self.ids(element).into_iter().find(|element| array_of(*element, count) == id);
        // A pointer is known by its name alone, which no declared type can have.
        let element_id = known.unwrap_or_else(|| TypeId::of_name(element));
        let shape = self.shape(element_id, element, size / count, depth + 1)?;
        Some(repeated(shape, count, false))
    }

    /// The shape of a declared type.
    fn record(&mut self, record: &TypeRecord, depth: u32) -> Option<Arc<Shape>> {
        let spare = is_own(&record.name);
        let members = self.members(&record.fields, spare, depth);
        let mut sum = Sum::default();
        sum.add(&members);
        let mut tag = None;
        if let Some(first) = record.variants.first() {
            let place = (first.tag.offset, first.tag.size);
            if record.variants.iter().any(|variant| (variant.tag.offset, variant.tag.size) != place)
            {
                return None;
            }
            let (mut variants, mut most) = (Vec::new(), 0);
            for variant in &record.variants {
                let members = self.members(&variant.fields, spare, depth);
                let mut own = Sum { rules: 0, ..sum };
                own.add(&members);
                most = most.max(own.rules);
                sum.depth = own.depth;
                variants.push((variant.tag.value, variant.name.clone(), members));
            }
            sum.rules = sum.rules.saturating_add(most).saturating_add(1);
            tag = Some(Tag { offset: place.0, size: place.1, variants });
        }
        let (rules, depth) = (sum.rules, sum.depth.saturating_add(1));
        let form = Form::Record(Record { members, tag });
        let shape = Shape { size: record.size, rules, depth, form };
        (1..=record.size).contains(&rules).then(|| Arc::new(shape))
    }

    /// The fields that have rules.
    fn members(&mut self, fields: &[FieldRecord], spare: bool, depth: u32) -> Vec<ValueMember> {
        let mut members = Vec::new();
        for field in fields {
            let Some(shape) = self.shape(field.type_id, &field.type_name, field.size, depth + 1)
            else {
                continue;
            };
            let shape = match &shape.form {
                Form::Array { element, count, .. } if spare => {
                    repeated(Arc::clone(element), *count, true)
                }
                _ => shape,
            };
            members.push(ValueMember { name: field.name.clone(), offset: field.offset, shape });
        }
        members
    }
}

/// Rules and depth of several fields.
#[derive(Clone, Copy, Default)]
struct Sum {
    rules: u64,
    depth: u32,
}

impl Sum {
    fn add(&mut self, members: &[ValueMember]) {
        for ValueMember { shape, .. } in members {
            self.rules = self.rules.saturating_add(shape.rules);
            self.depth = self.depth.max(shape.depth);
        }
    }
}

fn repeated(element: Arc<Shape>, count: u64, spare: bool) -> Arc<Shape> {
    Arc::new(Shape {
        size: element.size.saturating_mul(count),
        rules: element.rules.saturating_mul(count),
        depth: element.depth.saturating_add(1),
        form: Form::Array { element, count, spare },
    })
}

/// The shape of a type of the standard library that is told by its name.
fn std_shape(name: &str) -> Option<Arc<Shape>> {
    let leaf = |rule, size| Shape { size, rules: 1, depth: 1, form: Form::Rule(rule) };
    let (rule, size) = Rule::of_std(name)?;
    if size <= 4 {
        return Some(Arc::new(leaf(rule, size)));
    }
    let nanos = ValueMember { name: "nanos".into(), offset: 8, shape: Arc::new(leaf(rule, 4)) };
    let form = Form::Record(Record { members: vec![nanos], tag: None });
    Some(Arc::new(Shape { size, rules: 1, depth: 2, form }))
}

/// Whether a pointer in a block of type `from` to a value of type `to` is a link of one of Cenote's
/// own structures: safe code follows it without a check. Programs keep headers, and a handle is
/// checked each time; links lead to all else. A header has links alone.
#[must_use]
pub fn is_link(from: &str, to: &str) -> bool {
    let own = |name: &str| {
        is_own(name).then(|| name.split('<').next().unwrap_or_default().ends_with("Header"))
    };
    match (own(from), own(to)) {
        (Some(header), Some(to_header)) => header || !to_header,
        (header, None) => header == Some(true),
        (None, _) => false,
    }
}

/// Whether a type is one of Cenote's own.
fn is_own(name: &str) -> bool {
    let constructor = name.split('<').next().unwrap_or_default();
    constructor.contains('/') && !constructor.starts_with(['[', '('])
}

/// The field of the outermost value that lies at `offset` of a value.
#[must_use]
pub fn field_at(record: &TypeRecord, value: &[u8], offset: u64) -> Option<String> {
    let variants = record.variants.iter().filter(|variant| variant.tag.holds(value));
    let inside =
        variants.flat_map(|variant| variant.fields.iter().map(move |field| (Some(variant), field)));
    let mut all = record.fields.iter().map(|field| (None, field)).chain(inside);
    let (variant, field) = all.find(|(_, field)| {
        (field.offset..field.offset.saturating_add(field.size)).contains(&offset)
    })?;
    Some(match variant {
        Some(variant) => format!("{}.{}", variant.name, field.name),
        None => field.name.clone(),
    })
}

/// The id of an array.
fn array_of(element: TypeId, count: u64) -> TypeId {
    TypeId::of_name("[;]").apply(element.0).apply(count)
}

/// The element and the length that the name of an array says.
fn array(name: &str) -> Option<(&str, u64)> {
    let (element, count) = name.strip_prefix('[')?.strip_suffix(']')?.rsplit_once("; ")?;
    Some((element, count.parse().ok()?))
}

#[cfg(test)]
mod tests;

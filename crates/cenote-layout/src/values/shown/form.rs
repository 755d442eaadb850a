//! What the bytes of a place are, by the record or the name of its type.
//!
//! A declared type has a record. The language's types, pointers and arrays have none inside of
//! values: their names say what they are, and no declared type has such a name.

use super::{Arc, ShownPlace, String, TypeId, Values, Vec, format, vec};
use crate::pointer::PointerKind;
use crate::types::{FieldRecord, TypeRecord};
use crate::values::structures::constructor;
use crate::values::{ELEMENT, INLINE_STR, Rule, array, array_of, is_own};

/// Types that are pointers, with how they lead.
const POINTERS: [(&str, PointerKind); 5] = [
    ("Ptr", PointerKind::NATIVE),
    ("Owned", PointerKind::OWNED),
    ("RelPtr", PointerKind::RELATIVE),
    ("RegionPtr", PointerKind::REGION),
    ("HeapPtr", PointerKind::HEAP),
];

/// What 0 means in a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ZeroMeaning {
    Zero,
    Null,
    Damage,
}

/// A collection of Cenote, by its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CollectionKind {
    Vector,
    Deque,
    List,
    ForwardList,
    Ordered,
    Hashed,
    /// A hashed one from hashes to entries with texts.
    Texts,
    Relaxed,
}

impl CollectionKind {
    /// Of the type of a header.
    fn of(name: &str) -> Option<Self> {
        Some(match constructor(name) {
            "cenote/VecHeader" => Self::Vector,
            "cenote/DequeHeader" => Self::Deque,
            "cenote/ListHeader" => Self::List,
            "cenote/ForwardListHeader" => Self::ForwardList,
            "cenote/BTreeHeader" => Self::Ordered,
            "cenote/HashHeader" => Self::Hashed,
            "cenote/TextMapHeader" => Self::Texts,
            "cenote/RelaxedHeader" => Self::Relaxed,
            _ => return None,
        })
    }

    pub(super) const fn is_map(self) -> bool {
        matches!(self, Self::Ordered | Self::Hashed | Self::Texts | Self::Relaxed)
    }
}

/// How a pointer type leads to a block.
#[derive(Clone, Copy, Debug)]
pub(super) struct PointerForm {
    pub(super) kind: PointerKind,
    /// The name of the type without its argument.
    wrapper: &'static str,
    pub(super) may_be_null: bool,
    /// Its id; `UNTYPED` if that is not known.
    id: TypeId,
}

impl PointerForm {
    /// Whether a block of this type is what it should lead to.
    pub(super) fn leads_to(&self, target: TypeId) -> bool {
        let id = TypeId::of_name(self.wrapper).apply(target.0);
        let id = if self.may_be_null { TypeId::of_name("Option").apply(id.0) } else { id };
        self.id == TypeId::UNTYPED || self.id == id
    }
}

/// What the bytes of a place are.
#[derive(Debug)]
pub(super) enum TypeForm {
    Unit,
    Bool,
    Char,
    /// Seconds, with a sign or none, and nanoseconds.
    Time {
        signed: bool,
    },
    /// An option of a `bool`, a `char` or a time: if it is not missing, all of it is this value.
    Missing(ShownPlace),
    /// An option with a tag.
    Tagged(Arc<TypeRecord>),
    /// A text, or bytes, in a block that this word owns.
    OwnedBytes {
        is_text: bool,
    },
    Number {
        signed: bool,
        zero: ZeroMeaning,
    },
    Float,
    Pointer(PointerForm),
    /// All of it is this value, or null.
    Perhaps(ShownPlace),
    /// A handle: all of it is this value.
    Handle(ShownPlace),
    /// So many values; the first, with its size.
    Array {
        first: ShownPlace,
        count: u64,
    },
    InlineText,
    Collection(CollectionKind, Arc<TypeRecord>),
    Record(Arc<TypeRecord>),
    /// Bytes that nothing says anything about.
    Unknown,
    /// Its record, or the name of its type, says another size.
    OtherSize(u64),
}

/// Numbers without sign, numbers with one, and how many bytes they have.
const NUMBERS: [(&str, bool, u64); 12] = [
    ("u8", false, 1),
    ("u16", false, 2),
    ("u32", false, 4),
    ("u64", false, 8),
    ("u128", false, 16),
    ("usize", false, 8),
    ("i8", true, 1),
    ("i16", true, 2),
    ("i32", true, 4),
    ("i64", true, 8),
    ("i128", true, 16),
    ("isize", true, 8),
];

/// The argument of a type with this name.
fn argument<'n>(name: &'n str, of: &str) -> Option<&'n str> {
    name.strip_prefix(of)?.strip_prefix('<')?.strip_suffix('>')
}

/// A number type: its sign, its bytes, and what 0 means.
fn number_type(name: &str) -> Option<(bool, u64, ZeroMeaning)> {
    let (inner, is_option) = match argument(name, "Option") {
        Some(inner) => (inner, true),
        None => (name, false),
    };
    if let Some(of) = inner.strip_prefix("NonZero") {
        let is_it = |number: &&(&str, bool, u64)| number.0.eq_ignore_ascii_case(of);
        let (_, signed, size) = NUMBERS.iter().find(is_it)?;
        let zero = if is_option { ZeroMeaning::Null } else { ZeroMeaning::Damage };
        return Some((*signed, *size, zero));
    }
    let (_, signed, size) = NUMBERS.iter().find(|number| number.0 == name)?;
    Some((*signed, *size, ZeroMeaning::Zero))
}

impl ShownPlace {
    /// A field of the value.
    pub(super) fn field(&self, field: &FieldRecord) -> Self {
        let (size, type_id) = (field.size, field.type_id);
        let addr = self.addr.saturating_add(field.offset);
        Self { addr, size, type_id, type_name: field.type_name.clone(), is_block: false }
    }

    /// The element with this number, of which this is the first.
    pub(super) fn element(&self, number: u64) -> Self {
        let addr = self.addr.saturating_add(number.saturating_mul(self.size));
        Self { addr, is_block: false, ..self.clone() }
    }

    /// The same bytes as a value of another type.
    fn cast(&self, type_id: TypeId, type_name: &str) -> Self {
        Self { type_id, type_name: type_name.into(), is_block: false, ..self.clone() }
    }
}

impl Values {
    /// Ids that a type of this name may have: of a declared type as its record says.
    fn ids_of_name(&self, name: &str) -> Vec<TypeId> {
        let applied = |of: &str, inner: &str| {
            let ids = self.ids_of_name(inner).into_iter();
            ids.map(|id| TypeId::of_name(of).apply(id.0)).collect()
        };
        if let Some((element, count)) = array(name) {
            let ids = self.ids_of_name(element).into_iter();
            return ids.map(|id| array_of(id, count)).collect();
        }
        if let Some(ids) = self.names.get(name) {
            return ids.clone();
        }
        if let Some(element) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            return applied("[]", element);
        }
        for of in POINTERS.iter().map(|(of, _)| *of).chain(["Option"]) {
            if let Some(inner) = argument(name, of) {
                return applied(of, inner);
            }
        }
        vec![TypeId::of_name(name)]
    }

    /// The id of the type of this name of which `is_it` is true; `UNTYPED`: none.
    fn id_of_name(&self, name: &str, is_it: impl Fn(TypeId) -> bool) -> TypeId {
        self.ids_of_name(name).into_iter().find(|id| is_it(*id)).unwrap_or(TypeId::UNTYPED)
    }

    /// What the bytes of a place are.
    pub(super) fn form(&self, place: &ShownPlace) -> TypeForm {
        let sized = |form, size| match place.size == size {
            true => form,
            false => TypeForm::OtherSize(size),
        };
        let record = self.record_of(place.type_id);
        if let Some(inner) = argument(&place.type_name, "Option") {
            if Rule::of_std(&place.type_name).is_some() {
                return TypeForm::Missing(place.cast(TypeId::of_name(inner), inner));
            }
            match &record {
                Some(record) if !record.variants.is_empty() => {
                    return sized(TypeForm::Tagged(Arc::clone(record)), record.size);
                }
                _ => {}
            }
        }
        if let Some(handle) = self.perhaps(place) {
            return TypeForm::Perhaps(handle);
        }
        if let Some(record) = &record {
            let says_more = !record.fields.is_empty() || !record.variants.is_empty();
            if says_more || is_own(&record.name) || record.size == 0 {
                return self.declared_form(place, record);
            }
        }
        let name = place.type_name.as_str();
        if let Some((signed, size, zero)) = number_type(name) {
            return sized(TypeForm::Number { signed, zero }, size);
        }
        match name {
            "bool" => return sized(TypeForm::Bool, 1),
            "char" => return sized(TypeForm::Char, 4),
            "Duration" => return sized(TypeForm::Time { signed: false }, 16),
            "SystemTime" => return sized(TypeForm::Time { signed: true }, 16),
            "f32" => return sized(TypeForm::Float, 4),
            "f64" => return sized(TypeForm::Float, 8),
            _ => {}
        }
        if let Some((element, count)) = array(name) {
            if count == 0 || !place.size.is_multiple_of(count) {
                return if place.size == 0 { TypeForm::Unit } else { TypeForm::Unknown };
            }
            let known = self.id_of_name(element, |id| array_of(id, count) == place.type_id);
            let first = ShownPlace { size: place.size / count, ..place.cast(known, element) };
            return TypeForm::Array { first, count };
        }
        let (inner, may_be_null) = match argument(name, "Option") {
            Some(inner) => (inner, true),
            None => (name, false),
        };
        for (wrapper, kind) in POINTERS {
            if argument(inner, wrapper).is_some() {
                let form = PointerForm { kind, wrapper, may_be_null, id: place.type_id };
                return sized(TypeForm::Pointer(form), kind.size());
            }
        }
        match place.size {
            0 => TypeForm::Unit,
            _ => TypeForm::Unknown,
        }
    }

    /// The handle that an option of one is, if it is not null.
    fn perhaps(&self, place: &ShownPlace) -> Option<ShownPlace> {
        let inner = argument(&place.type_name, "Option").filter(|_| place.size == 8)?;
        let is_it = |id: TypeId| TypeId::of_name("Option").apply(id.0) == place.type_id;
        let known = self.id_of_name(inner, is_it);
        if self.records.get(&known).is_some_and(|record| record.size == 8) {
            return Some(place.cast(known, inner));
        }
        // Of a handle that occurs in options alone there is no record.
        match &self.record_of(place.type_id)?.fields[..] {
            [field] if field.size == 8 => Some(place.field(field)),
            _ => None,
        }
    }

    /// The form of a type with a record that says something.
    fn declared_form(&self, place: &ShownPlace, record: &Arc<TypeRecord>) -> TypeForm {
        if record.repeats {
            let Some(element) = record.fields.iter().find(|field| field.name == ELEMENT) else {
                return TypeForm::Unknown;
            };
            let size = record.size;
            let first = ShownPlace { addr: place.addr, size, ..place.field(element) };
            return TypeForm::Array { first, count: place.size / size.max(1) };
        }
        if place.size != record.size {
            return TypeForm::OtherSize(record.size);
        }
        if record.name.starts_with(INLINE_STR) {
            return TypeForm::InlineText;
        }
        match record.name.as_str() {
            "cenote/OwnedStr" => return TypeForm::OwnedBytes { is_text: true },
            "cenote/OwnedBytes" => return TypeForm::OwnedBytes { is_text: false },
            _ => {}
        }
        if let Some(kind) = CollectionKind::of(&record.name) {
            return TypeForm::Collection(kind, Arc::clone(record));
        }
        if let ([field], true) = (&record.fields[..], is_own(&record.name))
            && ["header", "bytes", "map", "vec"].contains(&field.name.as_str())
            && field.size == record.size
        {
            return TypeForm::Handle(place.field(field));
        }
        TypeForm::Record(Arc::clone(record))
    }

    /// A name of a type without its paths and arguments: `Vec` of `cenote/Vec<u64>`, and of its
    /// header.
    #[must_use]
    pub fn short_name(name: &str) -> String {
        if name.starts_with('(') {
            return "tuple".into();
        }
        let head = constructor(name);
        let short = head.rsplit(['/', ':']).next().unwrap_or(head);
        match (CollectionKind::of(name), short.strip_suffix("Header")) {
            (Some(kind), Some(short)) if kind.is_map() => format!("{short}Map"),
            (Some(_), Some(short)) => short.into(),
            _ => short.into(),
        }
    }
}

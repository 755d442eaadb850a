//! Steps from one place to a place inside.

use super::collections::{CollectionItem, VectorParts};
use super::form::{CollectionKind, TypeForm};
use super::path::{PathKey, PathStep};
use super::walk::key_in_path;
use super::{Arc, ShownPlace, ShownValue, String, ToString, ValueWalker, Values, Vec, format};
use crate::types::TypeRecord;

/// Keys that an error names, at most.
const KEYS_NAMED: usize = 64;

/// Bytes of a key that are compared.
const KEY_BYTES: u64 = 4096;

/// Why a step leads nowhere.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StepProblem {
    /// The type has no field and no variant of this name.
    #[error("{of} has no field `{name}`")]
    NoField {
        /// The name.
        name: String,
        /// The type.
        of: String,
        /// The fields and variants that it has.
        there: Vec<String>,
    },
    /// The value is of another variant.
    #[error("it is not `{asked}`: it is `{is}`")]
    OtherVariant {
        /// The variant that the path names.
        asked: String,
        /// The variant that the value is of.
        is: String,
    },
    /// There are fewer elements.
    #[error("there is no element {index}: {of} has {len}")]
    NoElement {
        /// The index.
        index: u64,
        /// What has elements.
        of: String,
        /// How many there are.
        len: u64,
    },
    /// There is no entry with this key.
    #[error("{of} has no key {key}")]
    NoKey {
        /// The key.
        key: String,
        /// What has keys.
        of: String,
        /// Keys that there are, some of them.
        there: Vec<String>,
        /// How many there are.
        len: u64,
    },
    /// The path goes on, and the value has no parts of that kind.
    #[error("{of} has {has}, and no {asked}")]
    NoParts {
        /// The type.
        of: String,
        /// What it has.
        has: &'static str,
        /// What the path asks for.
        asked: &'static str,
    },
    /// The way leads over a pointer that is null.
    #[error("it is null: nothing is behind it")]
    Null,
    /// The way leads over something that is damaged.
    #[error("damaged: {0}")]
    Damaged(String),
}

impl From<String> for StepProblem {
    fn from(why: String) -> Self {
        Self::Damaged(why)
    }
}

type Stepped = Result<ShownPlace, StepProblem>;

/// A number of a path, decimal or hexadecimal.
fn number_of(text: &str) -> Option<i128> {
    match text.strip_prefix("0x") {
        Some(digits) => i128::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    }
}

/// Whether a key is the one that a path names.
fn is_key(key: &ShownValue, wanted: &PathKey) -> bool {
    let (text, number) = (wanted.text.as_str(), (!wanted.is_quoted).then_some(&wanted.text));
    match key {
        ShownValue::Text { text: key, more: 0 } => key == text,
        ShownValue::Char(letter) => text.strip_prefix(*letter) == Some(""),
        ShownValue::Signed(key) => number.and_then(|text| number_of(text)) == Some(*key),
        ShownValue::Unsigned(key) => number.is_some_and(|text| {
            number_of(text).and_then(|number| u128::try_from(number).ok()) == Some(*key)
                || text.parse() == Ok(*key)
        }),
        ShownValue::Bool(key) => number.is_some_and(|text| text.parse() == Ok(*key)),
        ShownValue::Struct { variant: Some(name), fields, .. } if fields.is_empty() => name == text,
        ShownValue::Struct { variant: None, fields, .. } => match &fields[..] {
            [(_, key)] => is_key(key, wanted),
            _ => false,
        },
        _ => false,
    }
}

impl ValueWalker<'_> {
    /// The place that a step leads to. Pointers and handles on the way are followed.
    ///
    /// # Errors
    /// Why it leads nowhere, with what there is instead.
    pub fn step(&mut self, from: &ShownPlace, step: &PathStep) -> Stepped {
        let Some(place) = self.solid(from)? else { return Err(StepProblem::Null) };
        let form = self.values.form(&place);
        match (form, step) {
            (TypeForm::Record(record), PathStep::Field(name)) => {
                self.field_step(&place, &record, name)
            }
            (TypeForm::Array { first, count }, PathStep::Key(key)) => {
                let of = self.type_of(&place);
                let index = self.index(key, &of)?;
                match index < count {
                    true => Ok(first.element(index)),
                    false => Err(StepProblem::NoElement { index, of, len: count }),
                }
            }
            (TypeForm::Collection(CollectionKind::Vector, record), PathStep::Key(key)) => {
                self.vector_step(&place, &record, key)
            }
            (TypeForm::Collection(kind, _), PathStep::Key(_) | PathStep::Position(_))
                if kind.is_map() =>
            {
                self.map_step(&place, step)
            }
            (TypeForm::Collection(..), PathStep::Key(key)) => self.list_step(&place, key),
            (form, step) => Err(self.no_parts(&place, &form, step)),
        }
    }

    /// The value itself, behind pointers and handles; `None`: one of them is null.
    pub(super) fn solid(&mut self, from: &ShownPlace) -> Result<Option<ShownPlace>, String> {
        let mut place = from.clone();
        // A pointer to a pointer to itself has no end.
        for _ in 0..super::NESTED_MAX {
            let next = match self.values.form(&place) {
                TypeForm::Pointer(form) => self.target(&place, &form)?,
                TypeForm::Perhaps(handle) => (self.word(place.addr)? != 0).then_some(handle),
                TypeForm::Missing(_) | TypeForm::Tagged(_) => self.option(&place)?,
                TypeForm::Handle(inner) => Some(inner),
                _ => return Ok(Some(place)),
            };
            match next {
                Some(next) => place = next,
                None => return Ok(None),
            }
        }
        Err(format!("{:#x}: pointers lead to pointers without end", from.addr))
    }

    fn no_parts(&self, place: &ShownPlace, form: &TypeForm, step: &PathStep) -> StepProblem {
        let has = match form {
            TypeForm::Record(_) => "fields",
            TypeForm::Array { .. } => "elements by number",
            TypeForm::Collection(kind, _) if kind.is_map() => "entries by key",
            TypeForm::Collection(..) => "elements by number",
            _ => "no parts",
        };
        let asked = match step {
            PathStep::Field(_) => "fields",
            PathStep::Key(_) => "elements or entries",
            PathStep::Position(_) => "entries",
        };
        StepProblem::NoParts { of: Values::short_name(&place.type_name), has, asked }
    }

    fn field_step(&mut self, place: &ShownPlace, record: &Arc<TypeRecord>, name: &str) -> Stepped {
        let (variant, fields) = self.fields_of(place, record)?;
        if let Some(field) = fields.iter().find(|field| field.name == name) {
            return Ok(place.field(field));
        }
        match variant {
            // The same value, of which fields come next.
            Some(is) if is == name => return Ok(place.clone()),
            Some(is) if record.variants.iter().any(|variant| variant.name == name) => {
                return Err(StepProblem::OtherVariant { asked: name.into(), is });
            }
            _ => {}
        }
        let fields = fields.into_iter().map(|field| field.name);
        Err(StepProblem::NoField {
            name: name.into(),
            of: record.name.clone(),
            there: fields.chain(variant_name(record)).collect(),
        })
    }

    /// The number that a key is.
    fn index(&self, key: &PathKey, of: &str) -> Result<u64, StepProblem> {
        let number = (!key.is_quoted).then(|| number_of(&key.text)).flatten();
        match number.and_then(|number| u64::try_from(number).ok()) {
            Some(number) => Ok(number),
            None => Err(StepProblem::NoParts {
                of: Values::short_name(of),
                has: "elements by number, from 0",
                asked: "keys",
            }),
        }
    }

    fn vector_step(&mut self, header: &ShownPlace, record: &TypeRecord, key: &PathKey) -> Stepped {
        let of = Values::short_name(&header.type_name);
        let index = self.index(key, &of)?;
        match self.vector_parts(header.addr, record)? {
            Some(VectorParts { first, len, .. }) if index < len => Ok(first.element(index)),
            Some(VectorParts { wrong: Some(wrong), .. }) => Err(StepProblem::Damaged(wrong)),
            parts => {
                let len = parts.map_or(0, |parts| parts.len);
                Err(StepProblem::NoElement { index, of, len })
            }
        }
    }

    fn list_step(&mut self, header: &ShownPlace, key: &PathKey) -> Stepped {
        let of = Values::short_name(&header.type_name);
        let index = self.index(key, &of)?;
        let (mut found, mut len, mut broken) = (None, 0, None);
        self.each_item(header, &mut |_, item| {
            match item {
                CollectionItem::Element(place) => {
                    found = (len == index).then_some(place);
                    len += 1;
                }
                CollectionItem::Broken(why) => broken = Some(why),
                _ => {}
            }
            found.is_none()
        });
        match (found, broken) {
            (Some(place), _) => Ok(place),
            (None, Some(why)) => Err(StepProblem::Damaged(why)),
            (None, None) => Err(StepProblem::NoElement { index, of, len }),
        }
    }

    fn map_step(&mut self, header: &ShownPlace, step: &PathStep) -> Stepped {
        let limits = core::mem::replace(&mut self.limits.bytes, KEY_BYTES);
        let (mut found, mut broken, mut there, mut len) = (None, None, Vec::new(), 0);
        self.each_item(header, &mut |this, item| {
            match item {
                CollectionItem::Pair(key, value) => {
                    let is_it = match step {
                        PathStep::Position(number) => *number == len,
                        PathStep::Key(wanted) => {
                            let key = this.key(&key);
                            let is_it = is_key(&key, wanted);
                            if there.len() < KEYS_NAMED {
                                there.extend(key_in_path(&key));
                            }
                            is_it
                        }
                        PathStep::Field(_) => false,
                    };
                    // Of a set the value is the key.
                    let whole = if value.type_name == "()" { key } else { value };
                    found = is_it.then_some(whole);
                    len += 1;
                }
                CollectionItem::Broken(why) => broken = Some(why),
                _ => {}
            }
            found.is_none()
        });
        self.limits.bytes = limits;
        let of = Values::short_name(&header.type_name);
        match (found, broken, step) {
            (Some(place), ..) => Ok(place),
            (None, Some(why), _) => Err(StepProblem::Damaged(why)),
            (None, None, PathStep::Position(index)) => {
                Err(StepProblem::NoElement { index: *index, of, len })
            }
            (None, None, PathStep::Key(key)) => {
                Err(StepProblem::NoKey { key: key.to_string(), of, there, len })
            }
            (None, None, PathStep::Field(_)) => Err(StepProblem::Null),
        }
    }

    /// A key, which costs nothing of what may be shown.
    pub(super) fn key(&mut self, place: &ShownPlace) -> ShownValue {
        let before = (core::mem::replace(&mut self.left, 64), self.damaged, self.is_cut);
        let seen = core::mem::take(&mut self.seen);
        let key = self.value(place, (0, super::NESTED_MAX - 8));
        ((self.left, self.damaged, self.is_cut), self.seen) = (before, seen);
        key
    }
}

/// The names of an enum's variants.
fn variant_name(record: &TypeRecord) -> impl Iterator<Item = String> {
    record.variants.iter().map(|variant| variant.name.clone())
}

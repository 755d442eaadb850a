//! Makes a tree of shown values from a place.

use super::collections::CollectionItem;
use super::form::{PointerForm, TypeForm, ZeroMeaning};
use super::{
    Box, NESTED_MAX, ShownPlace, ShownValue, String, ToString, TypeId, ValueWalker, Vec, format,
    vec,
};
use crate::pointer::{PointerKind, RegionAddress, decode_relative};
use crate::types::{FieldRecord, TypeRecord};
use crate::values::structures::constructor;
use crate::values::{UTF8, number};
use core::fmt::Write as _;

/// Damage of one collection that is listed, at most; the rest is counted.
pub(super) const DAMAGE_LISTED: usize = 64;

/// What is wrong with a collection.
#[derive(Debug, Default)]
pub(super) struct DamageList {
    listed: Vec<String>,
    more: u64,
}

impl DamageList {
    pub(super) fn push(&mut self, why: String) {
        match self.listed.len() < DAMAGE_LISTED {
            true => self.listed.push(why),
            false => self.more += 1,
        }
    }

    /// All that is listed, and how much is not.
    pub(super) fn lines(mut self) -> Vec<String> {
        if self.more > 0 {
            self.listed.push(format!("and in {} more places", self.more));
        }
        self.listed
    }
}

/// How many pointers may be followed, and how often values lie inside each other here.
pub(super) type ShownDepth = (u32, u32);

/// A text in quotes, as paths have it.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            letter if letter.is_control() => {
                let _ = write!(out, "\\u{{{:x}}}", u32::from(letter));
            }
            letter => out.push(letter),
        }
    }
    out.push('"');
    out
}

/// A key in a path; `None`: it has no such form.
pub(super) fn key_in_path(key: &ShownValue) -> Option<String> {
    Some(match key {
        ShownValue::Unsigned(number) => number.to_string(),
        ShownValue::Signed(number) => number.to_string(),
        ShownValue::Bool(is) => is.to_string(),
        ShownValue::Char(letter) => quoted(&letter.to_string()),
        ShownValue::Text { text, more: 0 } => quoted(text),
        ShownValue::Struct { variant: Some(name), fields, .. } if fields.is_empty() => name.clone(),
        ShownValue::Struct { variant: None, fields, .. } => match &fields[..] {
            [(_, value)] => key_in_path(value)?,
            _ => return None,
        },
        _ => return None,
    })
}

/// How many bytes at the start of a text that was cut are whole characters.
fn whole(bytes: &[u8], is_cut: bool) -> Result<&str, usize> {
    match core::str::from_utf8(bytes) {
        Ok(text) => Ok(text),
        Err(error) if is_cut && error.error_len().is_none() => {
            let end = error.valid_up_to();
            core::str::from_utf8(&bytes[..end]).map_err(|error| error.valid_up_to())
        }
        Err(error) => Err(error.valid_up_to()),
    }
}

impl ValueWalker<'_> {
    /// The value at a place.
    pub(super) fn value(&mut self, place: &ShownPlace, depth: ShownDepth) -> ShownValue {
        if self.left == 0 || depth.1 >= NESTED_MAX {
            return self.cut();
        }
        self.left -= 1;
        if place.is_block {
            if let Some(path) = self.seen.get(&place.addr) {
                return ShownValue::Again { addr: place.addr, path: path.clone() };
            }
            self.seen.insert(place.addr, self.path.clone());
        }
        let inside = (depth.0, depth.1 + 1);
        match self.values.form(place) {
            TypeForm::Unit => ShownValue::Unit,
            TypeForm::Bool | TypeForm::Char | TypeForm::Float | TypeForm::Number { .. } => {
                self.scalar(place)
            }
            TypeForm::Pointer(form) => self.pointer(place, &form, inside),
            TypeForm::Perhaps(handle) => match self.word(place.addr) {
                Ok(0) => ShownValue::Null,
                Ok(_) => self.value(&handle, inside),
                Err(why) => self.damage(why),
            },
            TypeForm::Time { signed } => self.time(place, signed),
            TypeForm::Missing(_) | TypeForm::Tagged(_) => match self.option(place) {
                Ok(Some(there)) => self.value(&there, inside),
                Ok(None) => ShownValue::Null,
                Err(why) => self.damage(why),
            },
            TypeForm::OwnedBytes { is_text } => self.owned_bytes(place, is_text),
            TypeForm::Handle(inner) => self.value(&inner, inside),
            TypeForm::Array { first, count } => self.array(&first, count, inside),
            TypeForm::InlineText => self.inline_text(place),
            TypeForm::Collection(..) => self.collection(place, inside),
            TypeForm::Record(record) => self.record(place, &record, inside),
            TypeForm::Unknown => self.raw(place.addr, place.size),
            TypeForm::OtherSize(size) => {
                let name = &place.type_name;
                let what = format!("a value of {} bytes, and {name} has {size}", place.size);
                self.damage(what)
            }
        }
    }

    /// A number, a truth value or a character.
    fn scalar(&mut self, place: &ShownPlace) -> ShownValue {
        let bytes = match self.bytes(place.addr, place.size.min(16)) {
            Ok(bytes) => bytes,
            Err(why) => return self.damage(why),
        };
        let found = number(&bytes);
        match self.values.form(place) {
            TypeForm::Bool if found <= 1 => ShownValue::Bool(found == 1),
            TypeForm::Bool => self.damage(format!("{found} is no bool")),
            TypeForm::Char => match u32::try_from(found).ok().and_then(char::from_u32) {
                Some(letter) => ShownValue::Char(letter),
                None => self.damage(format!("{found:#x} is no character")),
            },
            TypeForm::Float if place.size == 4 => ShownValue::Float32(f32::from_bits(found as u32)),
            TypeForm::Float => ShownValue::Float64(f64::from_bits(found as u64)),
            TypeForm::Number { zero: ZeroMeaning::Null, .. } if found == 0 => ShownValue::Null,
            TypeForm::Number { zero: ZeroMeaning::Damage, .. } if found == 0 => {
                self.damage("0 in a number that is never 0")
            }
            TypeForm::Number { signed: true, .. } => {
                let shift = 128 - 8 * (bytes.len() as u32).max(1);
                ShownValue::Signed((found << shift) as i128 >> shift)
            }
            _ => ShownValue::Unsigned(found),
        }
    }

    /// Seconds and nanoseconds.
    fn time(&mut self, place: &ShownPlace, signed: bool) -> ShownValue {
        let bytes = match self.bytes(place.addr, place.size) {
            Ok(bytes) => bytes,
            Err(why) => return self.damage(why),
        };
        let (seconds, nanos) = (number(&bytes[..8]) as u64, number(&bytes[8..12]));
        if nanos >= 1_000_000_000 {
            return self.damage(format!("{nanos} nanoseconds are a second or more"));
        }
        let seconds = match signed {
            true => ShownValue::Signed(i128::from(seconds as i64)),
            false => ShownValue::Unsigned(seconds.into()),
        };
        let fields = vec![("secs".into(), seconds), ("nanos".into(), ShownValue::Unsigned(nanos))];
        ShownValue::Struct { type_name: place.type_name.clone(), variant: None, fields }
    }

    /// A text, or bytes, in a block of its own.
    fn owned_bytes(&mut self, place: &ShownPlace, is_text: bool) -> ShownValue {
        let found = self.word(place.addr).and_then(|addr| match addr {
            0 => Ok((0, 0, 0)),
            addr => {
                let block = self.block_at(addr)?;
                match block.type_name.as_str() {
                    "[cenote/OwnedByte]" if block.size >= 8 => {
                        Ok((addr + 8, self.word(addr)?, block.size - 8))
                    }
                    other => Err(format!("{addr:#x}: a block of type {other}, and no bytes")),
                }
            }
        });
        let (addr, len, room) = match found {
            Ok(found) => found,
            Err(why) => return self.damage(why),
        };
        if len > room {
            return self.damage(format!("its block says {len} bytes, and has room for {room}"));
        }
        if let Some(block) = addr.checked_sub(8) {
            if let Some(path) = self.seen.get(&block) {
                return ShownValue::Again { addr: block, path: path.clone() };
            }
            self.seen.insert(block, self.path.clone());
        }
        match is_text {
            true => self.text(addr, len),
            false => self.raw(addr, len),
        }
    }

    /// What is in an option that is no pointer; `None`: nothing.
    pub(super) fn option(&mut self, place: &ShownPlace) -> Result<Option<ShownPlace>, String> {
        match self.values.form(place) {
            TypeForm::Missing(inner) => {
                let bytes = self.bytes(place.addr, place.size.min(16))?;
                let (found, none) = match bytes.len() {
                    1 => (number(&bytes), 2),
                    4 => (number(&bytes), 0x11_0000),
                    16 => (number(&bytes[8..12]), 1_000_000_000),
                    other => return Err(format!("an option of {other} bytes")),
                };
                Ok((found != none).then_some(inner))
            }
            TypeForm::Tagged(record) => {
                let (_, fields) = self.fields_of(place, &record)?;
                Ok(fields.first().map(|field| place.field(field)))
            }
            _ => Ok(Some(place.clone())),
        }
    }

    /// Where a pointer leads; `None`: it is null.
    pub(super) fn target(
        &mut self,
        place: &ShownPlace,
        form: &PointerForm,
    ) -> Result<Option<ShownPlace>, String> {
        let word = self.word(place.addr)?;
        let addr = match form.kind {
            PointerKind::RELATIVE if word != 0 => decode_relative(place.addr, word),
            PointerKind::REGION if word != 0 => {
                RegionAddress::decode(word).and_then(|place| self.blocks.address(&place))
            }
            PointerKind::HEAP => match (word, self.word(place.addr.saturating_add(8))?) {
                (0, 0) => Some(0),
                (heap, offset) => RegionAddress::from_pair([heap, offset])
                    .and_then(|place| self.blocks.address(&place)),
            },
            _ => Some(word),
        };
        let Some(addr) = addr else {
            return Err(format!("{word:#x} is no {} of this store", form.kind));
        };
        match addr {
            0 if form.kind == PointerKind::NATIVE && !form.may_be_null => {
                return Err("null in a pointer that is never null".into());
            }
            0 => return Ok(None),
            _ => {}
        }
        let target = self.block_at(addr)?;
        if !form.leads_to(target.type_id) {
            let (is, should) = (&target.type_name, &place.type_name);
            return Err(format!("{addr:#x}: a block of type {is}, and the pointer is a {should}"));
        }
        Ok(Some(target))
    }

    fn pointer(&mut self, place: &ShownPlace, form: &PointerForm, at: ShownDepth) -> ShownValue {
        let target = match self.target(place, form) {
            Ok(Some(target)) => target,
            Ok(None) => return ShownValue::Null,
            Err(why) => return self.damage(why),
        };
        let (addr, name) = (target.addr, &target.type_name);
        if let Some(path) = self.seen.get(&addr) {
            return ShownValue::Again { addr, path: path.clone() };
        }
        // A text has no depth.
        let is_text = constructor(name) == "cenote/VecHeader" && name.contains(UTF8);
        let Some(left) = at.0.checked_sub(u32::from(!is_text)) else {
            return ShownValue::Deep { addr, type_name: name.clone() };
        };
        let is_collection = matches!(self.values.form(&target), TypeForm::Collection(..));
        match self.value(&target, (left, at.1)) {
            value if is_collection => value,
            value => ShownValue::Pointer(Box::new(value)),
        }
    }

    /// Values side by side.
    fn array(&mut self, first: &ShownPlace, count: u64, at: ShownDepth) -> ShownValue {
        if first.type_name == "u8" && first.size == 1 {
            return self.raw(first.addr, count);
        }
        let (mut items, path) = (Vec::new(), self.path.len());
        while (items.len() as u64) < count.min(self.limits.count) && self.left > 0 {
            let number = items.len() as u64;
            let _ = write!(self.path, "[{number}]");
            items.push(self.value(&first.element(number), at));
            self.path.truncate(path);
        }
        let more = count - items.len() as u64;
        self.is_cut |= (items.len() as u64) < count.min(self.limits.count);
        ShownValue::List { items, more, damage: Vec::new() }
    }

    /// Bytes as they are.
    pub(super) fn raw(&mut self, addr: u64, size: u64) -> ShownValue {
        let shown = size.min(self.limits.bytes);
        match self.bytes(addr, shown) {
            Ok(bytes) => ShownValue::Bytes { bytes, more: size - shown },
            Err(why) => self.damage(why),
        }
    }

    /// Bytes that are a text.
    pub(super) fn text(&mut self, addr: u64, size: u64) -> ShownValue {
        let shown = size.min(self.limits.bytes);
        let bytes = match self.bytes(addr, shown) {
            Ok(bytes) => bytes,
            Err(why) => return self.damage(why),
        };
        match whole(&bytes, shown < size) {
            Ok(text) => ShownValue::Text { more: size - text.len() as u64, text: text.into() },
            Err(at) => self.damage_of(format!("no UTF-8 at byte {at} of the text"), bytes),
        }
    }

    fn inline_text(&mut self, place: &ShownPlace) -> ShownValue {
        let len = match self.bytes(place.addr, 1.min(place.size)) {
            Ok(len) => u64::from(len.first().copied().unwrap_or_default()),
            Err(why) => return self.damage(why),
        };
        match len < place.size {
            true => self.text(place.addr + 1, len),
            false => self.damage(format!(
                "a text of {len} bytes in a place of {}",
                place.size.saturating_sub(1)
            )),
        }
    }

    /// The variant of an enum; `None`: it is none.
    pub(super) fn fields_of(
        &mut self,
        place: &ShownPlace,
        record: &TypeRecord,
    ) -> Result<(Option<String>, Vec<FieldRecord>), String> {
        let mut fields = record.fields.clone();
        let Some(first) = record.variants.first() else { return Ok((None, fields)) };
        let (mut known, mut tag) = ((first.tag.offset, first.tag.size), Vec::new());
        for variant in &record.variants {
            let at = (variant.tag.offset, variant.tag.size);
            if at != known || tag.is_empty() {
                tag = self.bytes(place.addr.saturating_add(at.0), u64::from(at.1.min(8)))?;
                known = at;
            }
            if variant.tag.is_tag(&tag) {
                fields.extend(variant.fields.iter().cloned());
                return Ok((Some(variant.name.clone()), fields));
            }
        }
        Err(format!("no variant has the discriminant {}", number(&tag)))
    }

    /// A declared type.
    fn record(&mut self, place: &ShownPlace, record: &TypeRecord, at: ShownDepth) -> ShownValue {
        if record.fields.is_empty() && record.variants.is_empty() && record.size > 0 {
            return self.raw(place.addr, place.size);
        }
        let (variant, fields) = match self.fields_of(place, record) {
            Ok(found) => found,
            Err(why) => return self.damage(why),
        };
        let (mut shown, path) = (Vec::new(), self.path.len());
        if let Some(variant) = variant.as_ref().filter(|_| !fields.is_empty()) {
            let _ = write!(self.path, ".{variant}");
        }
        let inner = self.path.len();
        for field in &fields {
            let _ = write!(self.path, ".{}", field.name);
            shown.push((field.name.clone(), self.value(&place.field(field), at)));
            self.path.truncate(inner);
        }
        self.path.truncate(path);
        ShownValue::Struct { type_name: record.name.clone(), variant, fields: shown }
    }

    /// A collection, by its header.
    fn collection(&mut self, header: &ShownPlace, at: ShownDepth) -> ShownValue {
        let path = self.path.len();
        let (mut items, mut entries) = (Vec::new(), Vec::new());
        let mut damage = DamageList::default();
        let (mut number, mut whole) = (0_u64, None);
        let is_map = self.each_item(header, &mut |this, item| {
            let has_room = this.left > 0 && number < this.limits.count;
            match item {
                CollectionItem::Destroyed => whole = Some(ShownValue::Destroyed),
                CollectionItem::Text(addr, size) => whole = Some(this.text(addr, size)),
                CollectionItem::Bytes(addr, size) => whole = Some(this.raw(addr, size)),
                CollectionItem::Broken(why) => {
                    this.damaged += 1;
                    damage.push(why);
                }
                CollectionItem::More(count) => number = number.saturating_add(count),
                CollectionItem::Element(_) | CollectionItem::Pair(..) if !has_room => {
                    this.is_cut |= number < this.limits.count;
                    number += 1;
                    return false;
                }
                CollectionItem::Element(place) => {
                    let _ = write!(this.path, "[{number}]");
                    items.push(this.value(&place, at));
                    this.path.truncate(path);
                    number += 1;
                }
                // A set is a map without values.
                CollectionItem::Pair(place, value) if value.type_name == "()" => {
                    let _ = write!(this.path, "[#{number}]");
                    items.push(this.value(&place, at));
                    this.path.truncate(path);
                    number += 1;
                }
                CollectionItem::Pair(key, value) => {
                    let key = this.value(&key, at);
                    match key_in_path(&key) {
                        Some(key) => write!(this.path, "[{key}]"),
                        None => write!(this.path, "[#{number}]"),
                    }
                    .unwrap_or_default();
                    entries.push((key, this.value(&value, at)));
                    this.path.truncate(path);
                    number += 1;
                }
            }
            true
        });
        let damage = damage.lines();
        let shown = (items.len() + entries.len()) as u64;
        let more = number.saturating_sub(shown);
        match whole {
            Some(whole) if damage.is_empty() => whole,
            Some(whole) => ShownValue::List { items: [whole].into(), more: 0, damage },
            None if is_map && items.is_empty() => ShownValue::Map { entries, more, damage },
            None => ShownValue::List { items, more, damage },
        }
    }

    /// The name of a type that a place of a path has.
    pub(super) fn type_of(&self, place: &ShownPlace) -> String {
        match place.type_id == TypeId::UNTYPED && place.type_name.is_empty() {
            true => "(no type)".into(),
            false => place.type_name.clone(),
        }
    }
}

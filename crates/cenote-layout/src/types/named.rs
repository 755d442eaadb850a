//! Which types of a registry depend on which: by the names that records say.
//!
//! *Invariant: the bytes of a block depend on no type but the block's own and those that
//! [`TypeNames::used`] finds from it.* A record says each type that lies in a value: as a field's
//! type, or as an argument within the name of one (`[Node; 3]`, `Option<Node>`, `(Node, u64)`).
//! Types that pointers lead to are found too, which keeps more types than values need.

use super::TypeRecord;
use crate::id::TypeId;

extern crate alloc;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::sync::Arc;
use alloc::vec::Vec;

/// The names that the records of a registry say.
#[derive(Debug)]
pub struct TypeNames<'a> {
    records: BTreeMap<TypeId, &'a TypeRecord>,
    by_name: BTreeMap<&'a str, Vec<TypeId>>,
}

impl<'a> TypeNames<'a> {
    /// Those of `records`.
    #[must_use]
    pub fn new(records: &'a [Arc<TypeRecord>]) -> Self {
        let mut by_name: BTreeMap<&str, Vec<TypeId>> = BTreeMap::new();
        for record in records {
            by_name.entry(&record.name).or_default().push(record.id);
        }
        let records = records.iter().map(|record| (record.id, &**record)).collect();
        Self { records, by_name }
    }

    /// The types of blocks, and all types that these name, over any number of steps.
    #[must_use]
    pub fn used(&self, blocks: &BTreeSet<TypeId>) -> BTreeSet<TypeId> {
        let mut used = blocks.clone();
        let mut waiting: Vec<TypeId> = blocks.iter().copied().collect();
        while let Some(id) = waiting.pop() {
            for named in self.named_by(id) {
                if used.insert(named) {
                    waiting.push(named);
                }
            }
        }
        used
    }

    /// The types that one record names, itself included.
    fn named_by(&self, id: TypeId) -> Vec<TypeId> {
        let Some(record) = self.records.get(&id) else { return Vec::new() };
        let mut named = self.within(&record.name);
        named.extend(record.pointers.iter().map(|pointer| pointer.target));
        let of_variants = record.variants.iter().flat_map(|variant| &variant.fields);
        for field in record.fields.iter().chain(of_variants) {
            named.push(field.type_id);
            named.extend(self.within(&field.type_name));
        }
        named
    }

    /// The types whose names stand within a name: each part of it that ends where a name can end.
    fn within(&self, name: &str) -> Vec<TypeId> {
        let mut found = Vec::new();
        let starts = name.char_indices().filter(|&(at, _)| {
            at == 0 || name[..at].chars().next_back().is_some_and(|before| !is_part(before))
        });
        for (start, _) in starts {
            let rest = &name[start..];
            let ends = rest.char_indices().map(|(at, _)| at).skip(1).chain([rest.len()]);
            for end in ends {
                let (this, next) = (&rest[..end], rest[end..].chars().next());
                if next.is_none_or(|next| !is_part(next))
                    && let Some(ids) = self.by_name.get(this)
                {
                    found.extend(ids);
                }
            }
        }
        found
    }
}

/// Whether a character may stand within a declared name.
fn is_part(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | ':' | '-' | '.' | '/')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::types::{FieldRecord, RECORD_VERSION};
    use alloc::string::ToString;

    fn record(name: &str, fields: &[&str]) -> Arc<TypeRecord> {
        let field = |(at, type_name): (usize, &&str)| FieldRecord {
            name: at.to_string(),
            offset: 0,
            size: 0,
            type_id: TypeId::of_name("another"),
            type_name: (*type_name).to_string(),
        };
        Arc::new(TypeRecord {
            version: RECORD_VERSION,
            id: TypeId::of_name(name),
            name: name.to_string(),
            size: 0,
            align: 1,
            repeats: false,
            fields: fields.iter().enumerate().map(field).collect(),
            variants: Vec::new(),
            pointers: Vec::new(),
        })
    }

    #[test]
    fn a_type_within_the_name_of_another_is_used_and_a_part_of_a_word_is_not() {
        let records = [
            record("a::Node", &[]),
            record("Node", &[]),
            record("Nod", &[]),
            record("Pair<Node, u64>", &[]),
            record("Outer", &["[(u8, Pair<Node, u64>); 3]"]),
            record("Other", &["Option<a::Node>"]),
        ];
        let names = TypeNames::new(&records);
        let used = |of: &str| -> Vec<&str> {
            let used = names.used(&[TypeId::of_name(of)].into());
            let of_these = records.iter().filter(|record| used.contains(&record.id));
            of_these.map(|record| record.name.as_str()).collect()
        };
        assert_eq!(used("Outer"), ["Node", "Pair<Node, u64>", "Outer"]);
        assert_eq!(used("Other"), ["a::Node", "Other"]);
        assert_eq!(used("Nod"), ["Nod"]);
        assert_eq!(used("absent"), [""; 0]);
    }
}

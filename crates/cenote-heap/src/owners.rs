//! Looks for blocks with two owners, and for owning pointers that lead to no block of their type.
//!
//! *What is read:* the owning words of all allocated blocks, by the pointer maps of their types.
//! Nothing is changed. What a list of waiting blocks ([`cenote_layout::frees`]) leads to is
//! counted; there a pointer may lead to a block of another type.

use crate::block::BlockInfo;
use crate::copied::copy_into;
use crate::heap::Heap;
use cenote_layout::frees::FREES_TYPE;
use cenote_layout::id::TypeId;
use cenote_layout::pointer::PointerKind;
use cenote_layout::types::TypeRecord;
use cenote_layout::values::{InvalidValue, Rule};
use std::collections::HashSet;
use std::sync::Arc;

/// Bytes that are copied at once of a block that holds many values.
const STEP: u64 = 64 << 10;

/// An owning word that is not null.
#[derive(Clone)]
struct OwningWord {
    /// Address of its block.
    block: u64,
    at: u64,
    to: u64,
    /// The type that the map says.
    target: TypeId,
    /// The type of its block.
    record: Arc<TypeRecord>,
}

/// The owning words of a heap.
#[derive(Default)]
pub(crate) struct Owners {
    words: Vec<OwningWord>,
    /// Blocks of the type of a list.
    lists: Vec<u64>,
    copy: Vec<u8>,
}

impl Owners {
    /// Notes what a block of a type owns.
    pub(crate) fn look(&mut self, block: &BlockInfo, record: &Arc<TypeRecord>) {
        if !record.owns() || record.check().is_err() {
            return;
        }
        if record.name == FREES_TYPE {
            self.lists.push(block.addr);
        }
        let value = record.size.max(1);
        let (step, end) = match record.repeats {
            true => ((STEP / value).max(1) * value, block.size / value * value),
            false => (value, value.min(block.size)),
        };
        let (Self { words, copy, .. }, mut from) = (self, 0);
        while from < end {
            let base = block.addr + from;
            if !copy_into(base, step.min(end - from), copy) {
                return;
            }
            record.for_each_pointer(copy, &mut |offset, field| {
                let word = copy.get(offset..).and_then(|rest| rest.first_chunk());
                let to = word.map_or(0, |word| u64::from_le_bytes(*word));
                if field.kind == PointerKind::OWNED && to != 0 {
                    let (at, target) = (base + offset as u64, field.target);
                    let record = Arc::clone(record);
                    words.push(OwningWord { block: block.addr, at, to, target, record });
                }
            });
            from += step;
        }
    }

    /// Says what is wrong. Returns how many blocks wait to be freed.
    pub(crate) fn judge<H: Heap>(mut self, heap: &H, found: &mut dyn FnMut(InvalidValue)) -> u64 {
        self.words.sort_by_key(|word| (word.to, word.at));
        for pair in self.words.windows(2) {
            if pair[0].to == pair[1].to {
                pair.iter().for_each(|word| found(word.invalid(Rule::Owner)));
            }
        }
        let waiting = self.waiting();
        for word in self.words.iter().filter(|word| !waiting.contains(&word.block)) {
            // One that leads to no block at all dangles: tracing says so.
            let Some(block) = heap.owner(word.to) else { continue };
            let is_list = word.target == TypeId::UNTYPED;
            if block.addr != word.to || !is_list && block.type_id != word.target {
                found(word.invalid(Rule::Reference));
            }
        }
        waiting.len() as u64
    }

    /// The blocks that lists lead to.
    fn waiting(&mut self) -> HashSet<u64> {
        self.words.sort_by_key(|word| (word.block, word.at));
        let words = &self.words;
        let owned_by = |block: u64| {
            let from = words.partition_point(|word| word.block < block);
            words[from..].iter().take_while(move |word| word.block == block).map(|word| word.to)
        };
        let mut waiting = HashSet::new();
        let mut next: Vec<u64> = self.lists.iter().flat_map(|list| owned_by(*list)).collect();
        while let Some(block) = next.pop() {
            if waiting.insert(block) {
                next.extend(owned_by(block));
            }
        }
        waiting
    }
}

impl OwningWord {
    fn invalid(&self, rule: Rule) -> InvalidValue {
        InvalidValue {
            block: self.block,
            type_id: self.record.id,
            type_name: self.record.name.clone(),
            field: String::new(),
            at: self.at,
            rule,
            found: self.to.into(),
        }
    }
}

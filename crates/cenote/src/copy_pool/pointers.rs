//! What becomes of the words of a block when it is copied.
//!
//! | word | in the copy |
//! | --- | --- |
//! | no pointer, null, or a pointer that leads out of the source | the same |
//! | an off-holder that leads out of the source | another word, to the same place |
//! | a pointer into a block of the source | the same kind, to the same place of its copy |
//! | each of the two words of a heap pointer | as the pointer, both in one transaction |
//! | a pointer into the source, to no block | refused |
//! | a word that may be a pointer, and is not 0 | refused: only the program's code can tell |

use super::Names;
use crate::copy_refused::CopyRefused;
use crate::error::{Error, Result};
use crate::open_pool::PoolInner;
use cenote_heap::{BlockInfo, Heap};
use cenote_layout::pointer::{PointerKind, RegionAddress, decode_relative, encode_relative};
use cenote_layout::types::TypeRecord;
use cenote_medium::planted::{Bug, CopyBug, planted};

/// How a word says where it leads.
#[derive(Clone, Copy)]
pub(super) struct Form {
    kind: PointerKind,
    tag_mask: u64,
    /// Of a heap pointer, which has two words: both, and which of them it is.
    pair: [u64; 2],
    part: usize,
}

impl Form {
    /// Whether the word before belongs to the same pointer.
    pub(super) const fn goes_on(&self) -> bool {
        self.part != 0
    }
}

/// A word that a pointer map names, in a block that is being copied.
#[derive(Clone, Copy)]
pub(super) struct Word {
    pub(super) form: Form,
    pub(super) value: u64,
    /// Where it stands in the source.
    pub(super) from: u64,
    /// Where it stands in the copy.
    pub(super) to: u64,
}

/// The pointers of a piece of values, and where each stands in it.
pub(super) fn words_of(record: &TypeRecord, bytes: &[u8]) -> Vec<(usize, Form)> {
    let mut found = Vec::new();
    // No value has more pointers than words, even if its map has.
    let most = bytes.len() / 8;
    record.for_each_pointer(bytes, &mut |offset, field| {
        let word = |part: usize| {
            let word = bytes.get(offset + part * 8..).and_then(|rest| rest.first_chunk());
            word.map_or(0, |word| u64::from_le_bytes(*word))
        };
        let pair = [word(0), word(1)];
        let (kind, tag_mask) = (field.kind.followed(), field.tag_mask);
        let parts = if kind == PointerKind::HEAP { 2 } else { 1 };
        if found.len() + parts <= most {
            let form = |part| (offset + part * 8, Form { kind, tag_mask, pair, part });
            found.extend((0..parts).map(form));
        }
    });
    found
}

/// What becomes of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fate {
    /// This word, independent of the other copied blocks.
    Stands(u64),
    /// A pointer to the copy of what is at this address of the source.
    Leads(u64),
}

/// A block that is being copied, for messages.
#[derive(Clone, Copy)]
pub(super) struct Within<'a> {
    pub(super) block: u64,
    pub(super) type_name: &'a str,
}

/// Finds out what becomes of words.
#[derive(Clone, Copy)]
pub(super) struct Pointers<'p> {
    pub(super) source: &'p PoolInner,
    pub(super) names: Names<'p>,
}

impl Pointers<'_> {
    /// Whether an address lies in a puddle of the source.
    pub(super) fn leads_inside(&self, addr: u64) -> bool {
        let puddle = self.source.store.store.puddle_of(addr);
        puddle.is_some_and(|puddle| puddle.pool() == self.source.handle.id())
    }

    pub(super) fn dangling(&self, within: Within<'_>, at: u64, to: u64) -> Error {
        let (from, type_name) = (self.names.from.into(), within.type_name.to_owned());
        CopyRefused::Dangling { from, block: within.block, type_name, at, to }.into()
    }

    fn out_of_reach(&self, within: Within<'_>, at: u64) -> Error {
        let (from, type_name) = (self.names.from.into(), within.type_name.to_owned());
        CopyRefused::OutOfReach { from, block: within.block, type_name, at }.into()
    }

    /// What becomes of a word.
    pub(super) fn fate(&self, within: Within<'_>, word: Word) -> Result<Fate> {
        let Word { form, value, from, to } = word;
        let inside = |target: u64| match self.leads_inside(target) {
            true => Fate::Leads(target),
            false => Fate::Stands(value),
        };
        if value == 0 {
            return Ok(Fate::Stands(0));
        }
        match form.kind {
            PointerKind::NATIVE => Ok(inside(value & !form.tag_mask)),
            PointerKind::RELATIVE => {
                let Some(target) = decode_relative(from, value) else {
                    return Ok(Fate::Stands(value));
                };
                if self.leads_inside(target) {
                    return Ok(Fate::Leads(target));
                }
                let there = encode_relative(to, target);
                there.map(Fate::Stands).ok_or_else(|| self.out_of_reach(within, from))
            }
            PointerKind::REGION => match RegionAddress::decode(value) {
                Some(region) if region.pool == self.source.handle.id() => {
                    let target = self.source.store.store.region_address(&region);
                    target.map(Fate::Leads).ok_or_else(|| self.dangling(within, from, value))
                }
                _ => Ok(Fate::Stands(value)),
            },
            PointerKind::HEAP => match RegionAddress::from_pair(form.pair) {
                Some(place) if place.pool == self.source.handle.id() => {
                    let target = self.source.store.store.region_address(&place);
                    target.map(Fate::Leads).ok_or_else(|| self.dangling(within, from, value))
                }
                _ => Ok(Fate::Stands(value)),
            },
            _ => {
                let (source, type_name) = (self.names.from.into(), within.type_name.to_owned());
                let block = within.block;
                Err(CopyRefused::Unclear { from: source, block, type_name, at: from }.into())
            }
        }
    }

    /// The block that an address of the source lies in.
    pub(super) fn block_at(&self, within: Within<'_>, at: u64, to: u64) -> Result<BlockInfo> {
        self.source.heap.owner(to).ok_or_else(|| self.dangling(within, at, to))
    }

    /// The word that leads to `target`, an address of the copy.
    pub(super) fn encoded(&self, within: Within<'_>, word: Word, target: u64) -> Result<u64> {
        let encoded = match word.form.kind {
            PointerKind::RELATIVE if planted(Bug::Copy(CopyBug::RelativeAsItStands)) => {
                Some(word.value)
            }
            PointerKind::RELATIVE => encode_relative(word.to, target),
            PointerKind::REGION => {
                self.source.store.store.region_of(target).and_then(RegionAddress::encode)
            }
            PointerKind::HEAP => {
                let pair =
                    self.source.store.store.region_of(target).and_then(RegionAddress::to_pair);
                pair.map(|pair| pair[word.form.part])
            }
            _ => Some(target | word.value & word.form.tag_mask),
        };
        encoded.ok_or_else(|| self.out_of_reach(within, word.from))
    }
}

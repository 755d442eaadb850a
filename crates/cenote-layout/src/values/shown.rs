//! Reads values by what type records say, for people and tools: no code of an application is
//! needed, and none runs.
//!
//! [`ValueWalker::show`] makes a tree of [`ShownValue`]s from a place: fields by their names,
//! variants by their discriminants, pointers as what they lead to, and Cenote's collections as
//! their elements. [`ValueWalker::step`] goes from one place to a place inside, by a field, an
//! index or a key.
//!
//! *Nothing is believed.* Bytes may be anything, and records may be untrue. What does not fit is
//! [`ShownValue::Damaged`] in its place, and its neighbours are shown.
//!
//! *Bounds.* A block is shown once; later it is [`ShownValue::Again`]. A walk along the nodes of a
//! collection enters each block once. [`ShownLimits`] says how far pointers are followed, and how
//! many elements and bytes are shown; [`ShownLimits::values`] bounds them all together. Values lie
//! inside each other [`NESTED_MAX`] times at most. So a walk ends, and its memory is bounded.

use super::Values;
use crate::id::TypeId;
use crate::pointer::RegionAddress;

extern crate alloc;
use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::format;
use alloc::string::{String, ToString};
use alloc::sync::Arc;
use alloc::vec;
use alloc::vec::Vec;

mod collections;
mod form;
mod maps;
mod path;
mod steps;
mod walk;

pub use path::{PathKey, PathRoot, PathStep, PathSyntax, ShownPath};
pub use steps::StepProblem;

/// How often values lie inside each other, at most: what is deeper is not shown.
pub const NESTED_MAX: u32 = 120;

/// The blocks that pointers lead to, and what is in them.
pub trait ShownBlocks {
    /// The allocated block that begins at an address: its type, and its usable bytes.
    ///
    /// # Errors
    /// Why there is none, for a message: `no block begins there`.
    fn block(&mut self, addr: u64) -> Result<(TypeId, u64), String>;

    /// Copies bytes that lie in such a block; `false` if they cannot be read.
    fn read(&mut self, addr: u64, bytes: &mut [u8]) -> bool;

    /// The address of a place that a region pointer or a heap pointer says; `None`: the store has
    /// no such place.
    fn address(&mut self, place: &RegionAddress) -> Option<u64>;
}

/// How much is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ShownLimits {
    /// How many pointers and collections are followed inside each other.
    pub depth: u32,
    /// Most elements of each array, list, vector and map.
    pub count: u64,
    /// Most bytes of each text and of each array of bytes.
    pub bytes: u64,
    /// Most values in all.
    pub values: u64,
}

impl Default for ShownLimits {
    fn default() -> Self {
        Self { depth: 4, count: 16, bytes: 256, values: 100_000 }
    }
}

/// A value of some type lies here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShownPlace {
    /// Address of its first byte.
    pub addr: u64,
    /// Bytes of it.
    pub size: u64,
    /// Its type; [`TypeId::UNTYPED`] if that is not known.
    pub type_id: TypeId,
    /// The name of its type.
    pub type_name: String,
    /// Whether it is all of a block, which is shown once.
    pub is_block: bool,
}

/// A value for people.
#[derive(Clone, Debug, PartialEq)]
pub enum ShownValue {
    /// A value without bytes: `()`.
    Unit,
    /// A pointer or an option without a value.
    Null,
    /// A `bool`.
    Bool(bool),
    /// A `char`.
    Char(char),
    /// A number without sign.
    Unsigned(u128),
    /// A number with a sign.
    Signed(i128),
    /// An `f32`.
    Float32(f32),
    /// An `f64`.
    Float64(f64),
    /// The beginning of a text, and how many bytes more it has.
    Text {
        /// What is shown of it.
        text: String,
        /// Bytes that are not shown.
        more: u64,
    },
    /// Bytes: an array or a vector of `u8`, or a value whose type says nothing about them.
    Bytes {
        /// What is shown of them.
        bytes: Vec<u8>,
        /// Bytes that are not shown.
        more: u64,
    },
    /// A structure, or a variant of an enum.
    Struct {
        /// The name of its type.
        type_name: String,
        /// The name of its variant, if it is an enum.
        variant: Option<String>,
        /// Fields by name, in the order of their places.
        fields: Vec<(String, Self)>,
    },
    /// An array, a vector or a list.
    List {
        /// The first elements.
        items: Vec<Self>,
        /// Elements that are not shown.
        more: u64,
        /// What is wrong with the collection beside its elements.
        damage: Vec<String>,
    },
    /// A map.
    Map {
        /// The first entries: keys and values.
        entries: Vec<(Self, Self)>,
        /// Entries that are not shown.
        more: u64,
        /// What is wrong with the collection beside its entries.
        damage: Vec<String>,
    },
    /// A pointer, and what it leads to.
    Pointer(Box<Self>),
    /// A pointer to a block that was shown before.
    Again {
        /// Where the block begins.
        addr: u64,
        /// The path by which it was shown.
        path: String,
    },
    /// A pointer that is not followed: [`ShownLimits::depth`].
    Deep {
        /// Where it leads.
        addr: u64,
        /// The type of what is there.
        type_name: String,
    },
    /// Not shown: [`ShownLimits::values`], or [`NESTED_MAX`].
    Cut,
    /// A handle of a collection that was destroyed.
    Destroyed,
    /// What is no value of its type.
    Damaged {
        /// What is wrong.
        what: String,
        /// What stands there, if that may tell something.
        bytes: Vec<u8>,
    },
}

/// Reads values by their records; see the [module](self).
pub struct ValueWalker<'w> {
    values: &'w Values,
    blocks: &'w mut dyn ShownBlocks,
    limits: ShownLimits,
    /// Values that may be shown.
    left: u64,
    /// Whether something was not shown because of a limit.
    is_cut: bool,
    damaged: u64,
    /// The blocks that were shown, with their paths.
    seen: BTreeMap<u64, String>,
    /// The path of what is shown now.
    path: String,
}

impl core::fmt::Debug for ValueWalker<'_> {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.debug_struct("ValueWalker").field("path", &self.path).finish_non_exhaustive()
    }
}

impl<'w> ValueWalker<'w> {
    /// Nothing was shown yet.
    pub fn new(values: &'w Values, blocks: &'w mut dyn ShownBlocks, limits: ShownLimits) -> Self {
        let (left, seen) = (limits.values, BTreeMap::new());
        Self { values, blocks, limits, left, is_cut: false, damaged: 0, seen, path: String::new() }
    }

    /// How many places were damaged, of what was shown.
    #[must_use]
    pub const fn damaged(&self) -> u64 {
        self.damaged
    }

    /// Whether [`ShownLimits::values`] or [`NESTED_MAX`] has cut off a part.
    #[must_use]
    pub const fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// The place that a root leads to. `type_id`: the type that the root says.
    ///
    /// # Errors
    /// What is there instead, for a message.
    pub fn root(&mut self, addr: u64, type_id: TypeId) -> Result<ShownPlace, String> {
        let place = self.block_at(addr)?;
        if place.type_id != type_id {
            return Err(format!(
                "it leads to a block of type {} at {addr:#x}, and says {}",
                place.type_name,
                self.name_of(type_id)
            ));
        }
        Ok(place)
    }

    /// The value at a place. `path` is where that is, for references to it.
    pub fn show(&mut self, place: &ShownPlace, path: &str) -> ShownValue {
        self.path = path.to_string();
        self.value(place, (self.limits.depth, 0))
    }

    /// The name of a type, or its number.
    fn name_of(&self, type_id: TypeId) -> String {
        match self.values.record_of(type_id) {
            Some(record) => record.name.clone(),
            None if type_id == TypeId::UNTYPED => "(no type)".into(),
            None => format!("(unknown type {type_id})"),
        }
    }

    /// The block that begins at an address, as one value.
    fn block_at(&mut self, addr: u64) -> Result<ShownPlace, String> {
        let (type_id, room) = self.blocks.block(addr).map_err(|why| format!("{addr:#x}: {why}"))?;
        let Some(record) = self.values.record_of(type_id) else {
            let type_name = self.name_of(type_id);
            return Ok(ShownPlace { addr, size: room, type_id, type_name, is_block: true });
        };
        if !record.repeats && room < record.size {
            return Err(format!(
                "{addr:#x}: a block of {room} bytes for a value of {} ({})",
                record.size, record.name
            ));
        }
        let size = if record.repeats { room } else { record.size };
        Ok(ShownPlace { addr, size, type_id, type_name: record.name.clone(), is_block: true })
    }

    /// Damage, counted.
    fn damage(&mut self, what: impl Into<String>) -> ShownValue {
        self.damage_of(what, Vec::new())
    }

    fn damage_of(&mut self, what: impl Into<String>, bytes: Vec<u8>) -> ShownValue {
        self.damaged += 1;
        ShownValue::Damaged { what: what.into(), bytes }
    }

    fn cut(&mut self) -> ShownValue {
        self.is_cut = true;
        ShownValue::Cut
    }

    /// Some bytes of a block.
    fn bytes(&mut self, addr: u64, size: u64) -> Result<Vec<u8>, String> {
        let mut bytes = vec![0; size as usize];
        if bytes.is_empty() {
            return Ok(bytes);
        }
        match self.blocks.read(addr, &mut bytes) {
            true => Ok(bytes),
            false => Err(format!("{addr:#x}: it cannot be read")),
        }
    }

    /// A word of a block.
    fn word(&mut self, addr: u64) -> Result<u64, String> {
        let mut bytes = [0; 8];
        match self.blocks.read(addr, &mut bytes) {
            true => Ok(u64::from_le_bytes(bytes)),
            false => Err(format!("{addr:#x}: it cannot be read")),
        }
    }
}

#[cfg(test)]
mod tests;

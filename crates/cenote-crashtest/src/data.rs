//! What histories change: the persistent types, and the oracle's model of them.
//!
//! Invariant: a value that a history writes differs from what is committed there, from what stood
//! there before, and (for blocks) from all others that are attached, so that a mixture of two
//! transactions never equals a state that was committed. Values are *colours*, few of them and used
//! again, so that histories that lead to the same state write the same bytes.

use cenote::{Persist, Pool, Ptr, Reader};

/// Nodes that can be attached at once.
pub const SLOTS: usize = 3;
/// Large blocks that can be attached at once.
pub const BIGS: usize = 2;
/// Words of the wide array: 2,400 bytes, more than half of the smallest log holds.
pub const WIDE: usize = 300;
/// Words of a large block: three superblocks, so that every one takes a new puddle.
pub const BIG_WORDS: usize = 3 * 8192;

/// The root object of the first pool.
#[derive(Persist)]
#[repr(C)]
pub struct Root {
    /// Attached nodes.
    pub slots: [Option<Ptr<Node>>; SLOTS],
    /// Attached large blocks.
    pub bigs: [Option<Ptr<Big>>; BIGS],
    /// Two of them are written, both by one operation; they lie on different lines.
    pub words: [u64; 11],
    /// Logged whole, written here and there.
    pub wide: [u64; WIDE],
    /// Never written after the first state: they lead to the node that is attached then, and to
    /// places where nodes were before. So they dangle whenever nothing is attached there, above
    /// all while a transaction writes there that is not committed.
    pub stale: [Option<Ptr<Node>>; SLOTS],
}

/// The root object of the second pool.
#[derive(Persist)]
#[repr(C)]
pub struct Other {
    /// Written together with the first pool.
    pub word: u64,
}

/// A small block: two words that belong together.
#[derive(Persist)]
#[repr(C)]
pub struct Node {
    /// The value.
    pub value: u64,
    /// Its complement.
    pub twin: u64,
}

/// A block of several superblocks.
#[derive(Persist)]
#[repr(C)]
pub struct Big {
    /// First, middle and last word are written.
    pub words: [u64; BIG_WORDS],
}

/// Colours of a word: after at most two steps, for each of two transactions, none has come back.
pub const COLOURS: u64 = 5;

/// The value that stands for a colour; 0 is what is there at first.
#[must_use]
pub fn value_of(colour: u64) -> u64 {
    colour * 0x1000
}

/// The colour that a word gets which has the colour `working` now and `committed` before the
/// transaction: one step on from the committed one, or two.
#[must_use]
pub fn next_colour(committed: u64, working: u64) -> u64 {
    let step = if working == (committed + 1) % COLOURS { 2 } else { 1 };
    (committed + step) % COLOURS
}

/// The colour of a fresh block: another one than that of what stood there before, and than all in
/// `used`.
#[must_use]
pub fn block_colour(before: u64, used: &[u64]) -> u64 {
    let after = |colour: u64| colour % 7 + 1;
    let mut colour = after(before);
    while used.contains(&colour) {
        colour = after(colour);
    }
    colour
}

/// The two words that "set" writes in one colour: different, unless they are as at first.
#[must_use]
pub fn words_of(colour: u64) -> [u64; 2] {
    [value_of(colour), value_of(colour) + u64::from(colour != 0)]
}

/// Words of [`Root::words`] that one operation writes.
pub const WORDS_WRITTEN: [usize; 2] = [0, 8];
/// What stands in [`Root::wide`] at first: nowhere zero, as fresh memory and fresh logs are.
pub fn wide_at_first() -> [u64; WIDE] {
    std::array::from_fn(|word| 0x1_0000 + word as u64)
}
/// Words of [`Root::wide`] that one operation writes.
pub const WIDE_WRITTEN: [usize; 3] = [0, WIDE / 2, WIDE - 1];
/// Words of [`Big`] that are written.
pub const BIG_WRITTEN: [usize; 3] = [0, BIG_WORDS / 2, BIG_WORDS - 1];

/// What the data say, without addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Model {
    /// Values of attached nodes.
    pub slots: [Option<u64>; SLOTS],
    /// Values of attached large blocks.
    pub bigs: [Option<u64>; BIGS],
    /// The written words of [`Root::words`].
    pub words: [u64; 2],
    /// The written words of [`Root::wide`].
    pub wide: [u64; 3],
    /// [`Other::word`].
    pub other: u64,
}

/// Reads the model, and start and length of every live block of the first pool, through the safe
/// interface.
///
/// # Errors
/// What cannot be: a root that is not there, a pointer to a block that is not allocated, a torn
/// node; a node that is shown through a pointer that dangles.
pub fn observe(a: &Pool, b: &Pool) -> Result<(Model, Vec<(u64, u64)>), String> {
    let text = |error: cenote::Error| error.to_string();
    let mut model = Model::default();
    let mut live = Vec::new();
    let view = a.read().map_err(text)?;
    let root = view.root::<Root>().map_err(text)?.ok_or("the first pool has lost its root")?;
    live.push((root.addr(), size_of::<Root>() as u64));
    let root = view.get(root).map_err(text)?;
    for (slot, found) in root.slots.iter().zip(&mut model.slots) {
        let Some(node) = slot else { continue };
        live.push((node.addr(), size_of::<Node>() as u64));
        let node = view.get(*node).map_err(text)?;
        if node.twin != !node.value {
            return Err(format!("a node is torn: {:#x}, {:#x}", node.value, node.twin));
        }
        *found = Some(node.value);
    }
    for stale in root.stale.iter().flatten() {
        match view.get(*stale) {
            Ok(_) if root.slots.contains(&Some(*stale)) => {}
            Ok(node) => {
                let (value, twin) = (node.value, node.twin);
                return Err(format!(
                    "a pointer that dangles leads to a value: {value:#x}, {twin:#x}"
                ));
            }
            Err(cenote::Error::Dangling { .. }) => {}
            Err(error) => return Err(text(error)),
        }
    }
    for (big, found) in root.bigs.iter().zip(&mut model.bigs) {
        let Some(big) = big else { continue };
        live.push((big.addr(), size_of::<Big>() as u64));
        let big = view.get(*big).map_err(text)?;
        let [first, middle, last] = BIG_WRITTEN.map(|word| big.words[word]);
        if first != middle || middle != last {
            return Err(format!("a large block is torn: {first:#x}, {middle:#x}, {last:#x}"));
        }
        *found = Some(first);
    }
    model.words = WORDS_WRITTEN.map(|word| root.words[word]);
    model.wide = WIDE_WRITTEN.map(|word| root.wide[word]);
    let view = b.read().map_err(text)?;
    let other = view.root::<Other>().map_err(text)?.ok_or("the second pool has lost its root")?;
    model.other = view.get(other).map_err(text)?.word;
    Ok((model, live))
}

//! [`RelaxedDurabilityMap`], an ordered map whose entries become durable later: a B+-tree on update
//! groups (NVMalloc, section 6).
//!
//! ```
//! use cenote::Store;
//! use cenote_collections::RelaxedDurabilityMap;
//!
//! # fn main() -> cenote::Result<()> {
//! # let directory = tempfile::tempdir().unwrap();
//! let pool = Store::open(directory.path())?.pool("counts")?;
//! let map = pool.write(|tx| -> cenote::Result<_> { RelaxedDurabilityMap::<u64, u64>::new(tx) })?;
//! let open = map.open(&pool)?;
//! open.insert(&7, &49)?;
//! assert_eq!(open.get(&pool.read()?, &7)?, Some(&49));
//! open.flush()?; // now the entry is durable
//! # Ok(())
//! # }
//! ```
//!
//! # What it promises
//!
//! [`OpenRelaxedMap::insert`] and [`OpenRelaxedMap::remove`] are no transactions. All threads of
//! the program see them at once. They are durable after the next [`OpenRelaxedMap::flush`] that
//! begins later, and usually before. A crash keeps or loses each of them, as a whole, until then,
//! and the order of different keys may not be kept. What one crash finds no later one loses, unless
//! it was removed meanwhile. At level `process` each is durable when it returns.
//!
//! Keys and values are any bytes without pointers: `u64`, `[u8; 256]`, structures that derive
//! zerocopy's traits. Two keys are equal if their bytes are.
//!
//! # Nodes
//!
//! ```text
//! header:  closed | epoch | first leaf | index: BTreeMap<least key, leaf> of the other leaves
//! ```
//!
//! The index, the header, and which leaves there are change in transactions: at a split. Entries
//! are appended to leaves, which are not sorted (`leaf.rs`). docs/update-groups.md has the states
//! of an entry, and the argument.

mod iter;
mod leaf;
mod open;
mod pending;
mod split;
mod writer;

pub use iter::RelaxedRange;
pub use open::OpenRelaxedMap;

use crate::BTreeMap;
use crate::shared::{Header, open as open_header};
use cenote::persist::Persist;
use cenote::{Pool, Ptr, Reader, Result, Tx};
use cenote_groups::GroupOptions;
use leaf::RelaxedLeaf;
use zerocopy::{FromBytes, Immutable, IntoBytes};

/// A key of a [`RelaxedDurabilityMap`]: any bytes are a value of its type, which has no pointers.
pub trait PlainKey: Persist + FromBytes + IntoBytes + Immutable + Copy + Ord {}

impl<K: Persist + FromBytes + IntoBytes + Immutable + Copy + Ord> PlainKey for K {}

/// What can be a value of a [`RelaxedDurabilityMap`]; at most 4 KiB.
pub trait PlainValue: Persist + FromBytes + IntoBytes + Immutable + Copy {}

impl<V: Persist + FromBytes + IntoBytes + Immutable + Copy> PlainValue for V {}

/// Changed in transactions alone.
#[repr(C)]
pub(crate) struct RelaxedHeader<K, V> {
    /// 0, or [`crate::shared::DESTROYED`].
    closed: u64,
    /// How often it was opened to be written.
    epoch: u64,
    /// The leaf of the least keys.
    first: Option<Ptr<RelaxedLeaf<K, V>>>,
    /// The others, by a key that is not greater than theirs.
    index: BTreeMap<K, Ptr<RelaxedLeaf<K, V>>>,
}

persist_block!("cenote/RelaxedHeader", RelaxedHeader<K, V> {
    closed: u64,
    epoch: u64,
    first: Option<Ptr<RelaxedLeaf<K, V>>>,
    index: BTreeMap<K, Ptr<RelaxedLeaf<K, V>>>,
});

impl<K: Persist, V: Persist> Header for RelaxedHeader<K, V> {
    fn len(&self) -> u64 {
        self.closed
    }
}

/// An ordered map of relaxed durability, by its header; see the [module](self). To read and write
/// it, [open](RelaxedDurabilityMap::open) it.
#[repr(transparent)]
pub struct RelaxedDurabilityMap<K, V> {
    header: Ptr<RelaxedHeader<K, V>>,
}

persist_handle!("cenote/RelaxedDurabilityMap", RelaxedDurabilityMap<K, V>, RelaxedHeader<K, V>);

impl<K: PlainKey, V: PlainValue> RelaxedDurabilityMap<K, V> {
    /// An empty map in the transaction's first pool.
    ///
    /// # Errors
    /// As [`Tx::alloc`].
    pub fn new(tx: &mut Tx<'_>) -> Result<Self> {
        let index = BTreeMap::new(tx)?;
        let header = RelaxedHeader { closed: 0, epoch: 0, first: None, index };
        match tx.alloc(header) {
            Ok(header) => Ok(Self { header }),
            Err(error) => {
                // If that fails too, the transaction can only abort.
                tx.all_or_abort(|tx| index.destroy(tx))?;
                Err(error)
            }
        }
    }

    /// Opens the map in its pool, once a program: clone what this returns for other threads. If the
    /// pool was opened for reading alone, so is the map.
    ///
    /// At level `power` it writes back what an earlier program has left in the cache, at the cost
    /// of 5 flushes a leaf, and a fence.
    ///
    /// # Errors
    /// [`cenote::Error::Dangling`] if it is not alive in this pool; [`cenote::Error::Store`] if it
    /// is open already, or the pool is shared with other processes, in shadowed mode, or protected
    /// at rest.
    pub fn open(self, pool: &Pool) -> Result<OpenRelaxedMap<K, V>> {
        self.open_with(pool, GroupOptions::default())
    }

    /// As [`RelaxedDurabilityMap::open`], with other counters, or another way for lines to leave
    /// the cache.
    ///
    /// # Errors
    /// As [`RelaxedDurabilityMap::open`].
    pub fn open_with(self, pool: &Pool, options: GroupOptions) -> Result<OpenRelaxedMap<K, V>> {
        OpenRelaxedMap::open(self, pool, options)
    }

    fn header(self, reader: &impl Reader) -> Result<&RelaxedHeader<K, V>> {
        open_header(reader, self.header)
    }
}

/// A leaf, and the key that the index has for it; `None`: it is the first.
type LeafOfKey<K, V> = (Option<K>, Ptr<RelaxedLeaf<K, V>>);

impl<K: PlainKey, V: PlainValue> RelaxedHeader<K, V> {
    /// The leaf where a key belongs, and the key that the index has for it.
    #[inline]
    fn leaf_for(&self, reader: &impl Reader, key: &K) -> Result<Option<LeafOfKey<K, V>>> {
        Ok(match self.index.floor(reader, key)? {
            Some((least, leaf)) => Some((Some(*least), *leaf)),
            None => self.first.map(|leaf| (None, leaf)),
        })
    }
}

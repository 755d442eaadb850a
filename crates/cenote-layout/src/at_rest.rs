//! How the pages of an object are protected while no process has it open (PMO-7 to PMO-9): the
//! header that says how, the *side data* of pages, and the tree of hashes.
//!
//! The sealed pages themselves lie wherever the object keeps its pages; a sealed page is as long as
//! a plain one. What does not fit into a page lies in three regions, one after the other:
//!
//! ```text
//! 0           4096                       + 64 x pages, rounded up      + 512 x nodes, rounded up
//! | header    | side data, 64 B a page   | tree, 512 B a node: the top |
//!             | (authenticated mode)     | first, then level by level  |
//!                                        | down (all modes but none    |
//!                                        | and encryption)             |
//! ```
//!
//! # The tree
//!
//! A *leaf digest* stands for a page: SHA-256 of the sealed page, or in authenticated mode of its
//! side data. A node of level 0 holds the leaf digests of 16 neighbouring pages. A node of level
//! `n + 1` holds the digests of 16 neighbouring nodes of level `n`. The one node of the top level
//! hashes to the root, which is in the header. A node has 512 bytes, so it is never torn. A page's
//! path is `log16(pages)` nodes long (5 for 4 GiB).
//!
//! ```text
//! leaf digest = SHA-256("CnLeaf" | kind u8 | 0 | object 16 B | page u64
//!                       | sealed page or side data)
//! node digest = SHA-256("CnNode" | level u8 | 0 | object 16 B | index u64
//!                       | the node's 512 bytes)
//! ```
//!
//! Zero bytes have the digest zero by definition: a sealed page, side data or node that is all zero
//! stands for pages that were never written, and read as zeros. So an object of any size is born
//! with an empty, sparse tree.

use crate::header::{Header, HeaderError, HeaderPrefix};
use crate::id::Uuid;
use crate::{PAGE_SIZE, round_up};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Digests in a node.
pub const ARITY: u64 = 16;
/// Bytes of a digest.
pub const DIGEST_LEN: usize = 32;
/// Bytes of a node.
pub const NODE_LEN: usize = 512;
/// Bytes of a page's side data.
pub const SIDE_LEN: usize = 64;
/// Most pages of an object: 4 PiB.
pub const PAGES_MAX: u64 = 1 << 40;
/// Most levels of a tree, at [`PAGES_MAX`].
pub const LEVELS_MAX: u8 = 10;

/// Argon2's least memory that is accepted, in KiB.
pub const ARGON2_MEMORY_KIB_MIN: u32 = 8;
/// Argon2's most memory: a header from an attacker must not take the machine's.
pub const ARGON2_MEMORY_KIB_MAX: u32 = 1 << 20;
/// Most passes.
pub const ARGON2_PASSES_MAX: u32 = 64;
/// Most lanes.
pub const ARGON2_LANES_MAX: u32 = 16;

/// What protects an object's pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Mode {
    /// Nothing.
    None = 0,
    /// A tree of SHA-256 over the pages; no key. Finds changes by accident, and changes by an
    /// attacker who did not change tree and header too.
    Integrity = 1,
    /// AES-256-XTS.
    Encryption = 2,
    /// AES-256-XTS, and the tree over the encrypted pages, its root under a key.
    EncryptionIntegrity = 3,
    /// AEGIS-256X4 with a nonce and a tag for each page, and the tree over these, its root under a
    /// key.
    Authenticated = 4,
}

impl Mode {
    /// The mode with this number.
    #[must_use]
    pub const fn from_u32(value: u32) -> Option<Self> {
        match value {
            0 => Some(Self::None),
            1 => Some(Self::Integrity),
            2 => Some(Self::Encryption),
            3 => Some(Self::EncryptionIntegrity),
            4 => Some(Self::Authenticated),
            _ => None,
        }
    }

    /// Whether the mode needs a key.
    #[must_use]
    pub const fn has_key(self) -> bool {
        matches!(self, Self::Encryption | Self::EncryptionIntegrity | Self::Authenticated)
    }

    /// Whether the mode has a tree.
    #[must_use]
    pub const fn has_tree(self) -> bool {
        matches!(self, Self::Integrity | Self::EncryptionIntegrity | Self::Authenticated)
    }

    /// Whether pages have side data.
    #[must_use]
    pub const fn has_side(self) -> bool {
        matches!(self, Self::Authenticated)
    }

    /// The cipher that belongs to the mode, and its version.
    #[must_use]
    pub const fn cipher(self) -> (u32, u32) {
        match self {
            Self::None | Self::Integrity => (CIPHER_NONE, 0),
            Self::Encryption | Self::EncryptionIntegrity => (CIPHER_AES_256_XTS, XTS_VERSION),
            Self::Authenticated => (CIPHER_AEGIS_256X4, AEGIS_VERSION),
        }
    }
}

impl core::fmt::Display for Mode {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        f.write_str(match self {
            Self::None => "none",
            Self::Integrity => "integrity",
            Self::Encryption => "encryption",
            Self::EncryptionIntegrity => "encryption and integrity",
            Self::Authenticated => "authenticated",
        })
    }
}

/// No cipher.
pub const CIPHER_NONE: u32 = 0;
/// AES-256-XTS, IEEE 1619; the data unit is a page, its number the tweak's low 64 bits, the first 8
/// bytes of the object's UUID the high ones.
pub const CIPHER_AES_256_XTS: u32 = 1;
/// AEGIS-256X4 with tags of 256 bits, draft-irtf-cfrg-aegis-aead.
pub const CIPHER_AEGIS_256X4: u32 = 2;
/// The year of the edition of IEEE 1619.
pub const XTS_VERSION: u32 = 2018;
/// The number of the draft. A draft that changes the cipher gets another number, and so another
/// format.
pub const AEGIS_VERSION: u32 = 18;

/// No tree.
pub const TREE_NONE: u32 = 0;
/// The tree of this module: SHA-256, 16 to a node.
pub const TREE_SHA256_16: u32 = 1;

/// No key.
pub const KDF_NONE: u32 = 0;
/// The caller's key has 256 bits.
pub const KDF_KEY: u32 = 1;
/// The caller's key is Argon2id of a passphrase.
pub const KDF_ARGON2ID: u32 = 2;

/// The header of an object's protection: one sector, so that it is never torn.
///
/// The data key (32 random bytes) is under `wrapped_key`, encrypted with AES-256-GCM-SIV under a
/// key derived from the caller's; everything that touches pages is derived from the data key, so
/// that another key of the caller's changes this header and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct AtRestHeader {
    /// Magic `CENATRST`, version, features, checksum.
    pub prefix: HeaderPrefix,
    /// The object.
    pub object: Uuid,
    /// Its pages.
    pub pages: u64,
    /// [`Mode`].
    pub mode: u32,
    /// [`Mode::cipher`].
    pub cipher: u32,
    /// The cipher's version.
    pub cipher_version: u32,
    /// [`TREE_SHA256_16`] or [`TREE_NONE`].
    pub tree: u32,
    /// One higher with each commit of changed pages, in modes with a tree.
    pub generation: u64,
    /// One higher with each change of the caller's key.
    pub key_epoch: u64,
    /// Digest of the tree's top node.
    pub root: [u8; 32],
    /// How the caller's key comes about.
    pub kdf: u32,
    /// Argon2's memory.
    pub argon2_memory_kib: u32,
    /// Argon2's passes.
    pub argon2_passes: u32,
    /// Argon2's lanes.
    pub argon2_lanes: u32,
    /// Argon2's salt.
    pub kdf_salt: [u8; 32],
    /// Salt of the key that wraps; new with every wrapping.
    pub wrap_salt: [u8; 32],
    /// Derived from the caller's key and `wrap_salt`: tells a wrong key from a damaged header, and
    /// binds the header to one key.
    pub key_check: [u8; 32],
    /// The data key, encrypted.
    pub wrapped_key: [u8; 32],
    /// Tag of that encryption.
    pub wrap_tag: [u8; 16],
    /// HMAC-SHA-256 of the whole header, this field and the checksum zero, under a key derived
    /// from the data key.
    pub mac: [u8; 32],
    /// With [`INCOMPAT_INHERITED`]: the key of the puddles that this one's copy was made from,
    /// encrypted under a key derived from the data key.
    pub inherited_key: [u8; 32],
    /// Tag of that encryption.
    pub inherited_tag: [u8; 16],
    /// A digest of the catalog's facts about the object beside its identity: its name and length,
    /// or the puddle's place. Zero: it is bound to nothing.
    pub binding: [u8; 32],
    /// Of a pool's root puddle, in modes with a tree: a digest of the headers of the pool's other
    /// puddles. Zero: none of them was ever written.
    pub members: [u8; 32],
    /// The digest of an earlier header, which stands in such a list: the puddle was sealed anew,
    /// and no psync has changed it since. Zero: the header stands for itself. [`NOTHING_REPLACED`]:
    /// the one before was never written, and in no list.
    pub replaced: [u8; 32],
    /// Zero.
    pub reserved: [u8; 40],
}

/// [`AtRestHeader::replaced`] of a header whose predecessor was in no list.
pub const NOTHING_REPLACED: [u8; 32] = [0xff; 32];

/// Incompatible feature of [`AtRestHeader`]: it holds the key of what its pool was copied from,
/// under which puddles may still be sealed.
pub const INCOMPAT_INHERITED: u64 = 1 << 0;

const _: () = assert!(size_of::<AtRestHeader>() == 512);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, object) == 48);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, mode) == 72);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, generation) == 88);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, root) == 104);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, kdf) == 136);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, kdf_salt) == 152);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, wrap_salt) == 184);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, key_check) == 216);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, wrapped_key) == 248);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, wrap_tag) == 280);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, mac) == 296);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, inherited_key) == 328);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, inherited_tag) == 360);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, binding) == 376);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, members) == 408);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, replaced) == 440);
const _: () = assert!(core::mem::offset_of!(AtRestHeader, reserved) == 472);

impl Header for AtRestHeader {
    const NAME: &'static str = "protection header";
    const MAGIC: [u8; 8] = *b"CENATRST";
    const SEED: u64 = crate::checksum::seed::AT_REST;
    const KNOWN_INCOMPAT: u64 = INCOMPAT_INHERITED;

    fn check_fields(&self) -> Result<(), HeaderError> {
        let bad = |field, value| Err(HeaderError::Field { what: Self::NAME, field, value });
        if self.object.is_nil() {
            return bad("object", 0);
        }
        if self.pages > PAGES_MAX {
            return bad("pages", self.pages);
        }
        let Some(mode) = Mode::from_u32(self.mode) else {
            return bad("mode", u64::from(self.mode));
        };
        if !mode.has_tree() && (self.members != [0; 32] || self.replaced != [0; 32]) {
            return bad("members", 1);
        }
        let (cipher, version) = mode.cipher();
        if self.cipher != cipher {
            return bad("cipher", u64::from(self.cipher));
        }
        if self.cipher_version != version {
            return bad("cipher_version", u64::from(self.cipher_version));
        }
        if self.tree != if mode.has_tree() { TREE_SHA256_16 } else { TREE_NONE } {
            return bad("tree", u64::from(self.tree));
        }
        if !mode.has_tree() && (self.generation != 0 || self.root != [0; 32]) {
            return bad("generation", self.generation);
        }
        let argon2 = [self.argon2_memory_kib, self.argon2_passes, self.argon2_lanes];
        match (mode.has_key(), self.kdf) {
            (false, KDF_NONE) | (true, KDF_KEY) if argon2 == [0; 3] && self.kdf_salt == [0; 32] => {
            }
            (true, KDF_ARGON2ID) => self.check_argon2()?,
            _ => return bad("kdf", u64::from(self.kdf)),
        }
        let key_fields = [&self.wrap_salt, &self.key_check, &self.wrapped_key, &self.mac];
        if !mode.has_key()
            && (key_fields.iter().any(|f| **f != [0; 32])
                || self.wrap_tag != [0; 16]
                || self.key_epoch != 0)
        {
            return bad("key fields", 1);
        }
        let inherits = self.prefix.incompat & INCOMPAT_INHERITED != 0;
        if inherits && !mode.has_key() {
            return bad("inherited key", 1);
        }
        if !inherits && (self.inherited_key != [0; 32] || self.inherited_tag != [0; 16]) {
            return bad("inherited key", 0);
        }
        if self.reserved.iter().any(|&b| b != 0) {
            return Err(HeaderError::Reserved { what: Self::NAME });
        }
        Ok(())
    }
}

impl AtRestHeader {
    /// What protects the pages.
    ///
    /// # Errors
    /// [`HeaderError::Field`] if it is none that exists; never after [`crate::header::read`].
    pub fn mode(&self) -> Result<Mode, HeaderError> {
        Mode::from_u32(self.mode).ok_or(HeaderError::Field {
            what: Self::NAME,
            field: "mode",
            value: u64::from(self.mode),
        })
    }

    fn check_argon2(&self) -> Result<(), HeaderError> {
        let bad = |field, value| {
            Err(HeaderError::Field { what: Self::NAME, field, value: u64::from(value) })
        };
        if !(1..=ARGON2_LANES_MAX).contains(&self.argon2_lanes) {
            return bad("argon2_lanes", self.argon2_lanes);
        }
        let least = ARGON2_MEMORY_KIB_MIN * self.argon2_lanes;
        if !(least..=ARGON2_MEMORY_KIB_MAX).contains(&self.argon2_memory_kib) {
            return bad("argon2_memory_kib", self.argon2_memory_kib);
        }
        if !(1..=ARGON2_PASSES_MAX).contains(&self.argon2_passes) {
            return bad("argon2_passes", self.argon2_passes);
        }
        Ok(())
    }
}

/// What authenticated mode keeps beside a page. All zero: the page was never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct PageSide {
    /// Never used again for this data key: 16 random bytes, a counter, and the page's number.
    pub nonce: [u8; 32],
    /// AEGIS-256X4's tag over the page, its number, its object and the mode.
    pub tag: [u8; 32],
}

const _: () = assert!(size_of::<PageSide>() == SIDE_LEN);
const _: () = assert!(core::mem::offset_of!(PageSide, tag) == 32);

impl PageSide {
    /// Side data of a page that was never written.
    pub const NEVER: Self = Self { nonce: [0; 32], tag: [0; 32] };
}

/// Name of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// 0: its digests stand for pages.
    pub level: u8,
    /// Number in its level.
    pub index: u64,
}

impl NodeId {
    /// The node that holds a page's leaf digest.
    #[must_use]
    pub const fn of_page(page: u64) -> Self {
        Self { level: 0, index: page / ARITY }
    }

    /// The node that holds this node's digest, where this is not the top.
    #[must_use]
    pub const fn parent(self) -> Self {
        Self { level: self.level + 1, index: self.index / ARITY }
    }

    /// First page below, and the one after the last, in a tree of any size.
    #[must_use]
    pub const fn pages(self) -> (u64, u64) {
        let width = ARITY.saturating_pow(self.level as u32 + 1);
        (self.index.saturating_mul(width), (self.index + 1).saturating_mul(width))
    }
}

/// Where the nodes of a tree over so many pages lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TreeShape {
    pages: u64,
    levels: u8,
}

impl TreeShape {
    /// `None` for more than [`PAGES_MAX`] pages.
    #[must_use]
    pub const fn new(pages: u64) -> Option<Self> {
        if pages > PAGES_MAX {
            return None;
        }
        let (mut levels, mut nodes) = ((pages > 0) as u8, pages.div_ceil(ARITY));
        while nodes > 1 {
            nodes = nodes.div_ceil(ARITY);
            levels += 1;
        }
        Some(Self { pages, levels })
    }

    /// Pages that it covers.
    #[must_use]
    pub const fn pages(&self) -> u64 {
        self.pages
    }

    /// Levels of nodes; 0 for no page.
    #[must_use]
    pub const fn levels(&self) -> u8 {
        self.levels
    }

    /// Nodes of one level.
    #[must_use]
    pub const fn nodes_in(&self, level: u8) -> u64 {
        let (mut nodes, mut at) = (self.pages.div_ceil(ARITY), 0);
        while at < level {
            nodes = nodes.div_ceil(ARITY);
            at += 1;
        }
        if level < self.levels { nodes } else { 0 }
    }

    /// The node that hashes to the root; `None` for no page.
    #[must_use]
    pub const fn top(&self) -> Option<NodeId> {
        if self.levels == 0 { None } else { Some(NodeId { level: self.levels - 1, index: 0 }) }
    }

    /// Byte of a node in the tree's region: the top is first.
    #[must_use]
    pub const fn offset(&self, node: NodeId) -> u64 {
        let (mut before, mut level) = (0, self.levels);
        while level > node.level + 1 {
            level -= 1;
            before += self.nodes_in(level);
        }
        (before + node.index) * NODE_LEN as u64
    }

    /// Bytes of all nodes.
    #[must_use]
    pub const fn len(&self) -> u64 {
        let (mut nodes, mut level) = (0, 0);
        while level < self.levels {
            nodes += self.nodes_in(level);
            level += 1;
        }
        nodes * NODE_LEN as u64
    }

    /// Whether there is no node.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.levels == 0
    }
}

/// Where the regions of an object's protection lie, in bytes from their start; see the module's
/// picture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regions {
    /// First byte of side data.
    pub side: u64,
    /// First byte of the tree.
    pub tree: u64,
    /// Bytes altogether, a multiple of [`PAGE_SIZE`].
    pub len: u64,
}

impl Regions {
    /// The regions for a mode and so many pages. `None` for more than [`PAGES_MAX`] pages.
    #[must_use]
    pub const fn new(mode: Mode, pages: u64) -> Option<Self> {
        let Some(shape) = TreeShape::new(pages) else { return None };
        let side_len = if mode.has_side() { pages * SIDE_LEN as u64 } else { 0 };
        let tree_len = if mode.has_tree() { shape.len() } else { 0 };
        let side = if matches!(mode, Mode::None) { 0 } else { PAGE_SIZE };
        let Some(tree) = round_up(side + side_len, PAGE_SIZE) else { return None };
        let Some(len) = round_up(tree + tree_len, PAGE_SIZE) else { return None };
        Some(Self { side, tree, len })
    }

    /// First byte of a page's side data.
    #[must_use]
    pub const fn side_of(&self, page: u64) -> u64 {
        self.side + page * SIDE_LEN as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_node_has_its_own_place_and_the_top_is_first() {
        for pages in [0, 1, 2, 15, 16, 17, 255, 256, 257, 4095, 4096, 4097, 70_000] {
            let shape = TreeShape::new(pages).unwrap();
            let mut places = Vec::new();
            for level in 0..shape.levels() {
                for index in 0..shape.nodes_in(level) {
                    places.push(shape.offset(NodeId { level, index }));
                }
            }
            places.sort_unstable();
            let expected: Vec<u64> = (0..places.len() as u64).map(|i| i * 512).collect();
            assert_eq!(places, expected, "{pages} pages");
            assert_eq!(shape.len(), places.len() as u64 * 512);
            match shape.top() {
                Some(top) => assert_eq!((shape.offset(top), shape.nodes_in(top.level)), (0, 1)),
                None => assert_eq!(pages, 0),
            }
        }
    }

    #[test]
    fn every_page_leads_up_to_the_top() {
        for pages in [1u64, 16, 17, 4097, 1 << 20, PAGES_MAX] {
            let shape = TreeShape::new(pages).unwrap();
            assert!(shape.levels() <= LEVELS_MAX);
            for page in [0, pages / 3, pages - 1] {
                let mut node = NodeId::of_page(page);
                let mut steps = 1;
                while Some(node) != shape.top() {
                    let (first, end) = node.pages();
                    assert!((first..end).contains(&page));
                    assert!(node.index < shape.nodes_in(node.level));
                    node = node.parent();
                    steps += 1;
                }
                assert_eq!(steps, shape.levels());
            }
        }
        assert_eq!(TreeShape::new(PAGES_MAX + 1), None);
        assert_eq!(TreeShape::new(1 << 20).unwrap().levels(), 5, "4 GiB");
    }

    #[test]
    fn regions_do_not_overlap() {
        for mode in [
            Mode::None,
            Mode::Integrity,
            Mode::Encryption,
            Mode::EncryptionIntegrity,
            Mode::Authenticated,
        ] {
            for pages in [0, 1, 100, 1 << 28] {
                let regions = Regions::new(mode, pages).unwrap();
                assert!(regions.side_of(pages) <= regions.tree || !mode.has_side());
                assert!(regions.tree <= regions.len && regions.len.is_multiple_of(PAGE_SIZE));
                assert_eq!(Mode::from_u32(mode as u32), Some(mode));
            }
        }
        // 1 TiB: 2.7 percent in authenticated mode.
        assert_eq!(Regions::new(Mode::Authenticated, 1 << 28).unwrap().len / (1 << 28), 98);
    }
}

//! Protects one object: header, keys, sealer and tree together. The interface for the objects'
//! crate.

mod keys;
mod pages;

use crate::crypto::binding::{self, HEADER_LEN};
use crate::crypto::data_key::Keys;
use crate::crypto::error::AtRestError;
use crate::crypto::key::Keyring;
use crate::crypto::seal::{Page, PageSealer};
use crate::crypto::tree::{Digest, NodeWrite, Tree, TreeChange, is_zero};
use cenote_layout::at_rest::{
    AtRestHeader, INCOMPAT_INHERITED, Mode, NOTHING_REPLACED, PageSide, Regions, TREE_NONE,
    TREE_SHA256_16, TreeShape,
};
use cenote_layout::header::{self, Header, HeaderPrefix};
use cenote_layout::id::Uuid;
use cenote_sys::secret::{Secret, wipe_bytes};
use keys::{unwrap, wrap};
use sha2::{Digest as _, Sha256};
use std::sync::{Mutex, MutexGuard, PoisonError};
use subtle::ConstantTimeEq;
use zerocopy::{FromZeros, IntoBytes};

/// The record that a user keeps elsewhere, to notice a store that was put back *whole*: the object,
/// its number of changes, and its root then. Not secret.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Anchor {
    /// The object.
    pub object: Uuid,
    /// Generation of its contents; always 0 in modes without a tree.
    pub generation: u64,
    /// Number of changes of its key.
    pub key_epoch: u64,
    /// Its tree's root.
    pub root: Digest,
}

impl Anchor {
    /// 64 bytes: object, generation, key epoch, root, numbers little endian.
    #[must_use]
    pub fn to_bytes(&self) -> [u8; 64] {
        let mut bytes = [0; 64];
        bytes[..16].copy_from_slice(&self.object.0);
        bytes[16..24].copy_from_slice(&self.generation.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.key_epoch.to_le_bytes());
        bytes[32..].copy_from_slice(&self.root);
        bytes
    }

    /// Reads what [`Anchor::to_bytes`] wrote.
    #[must_use]
    pub fn from_bytes(bytes: &[u8; 64]) -> Self {
        let number = |at: usize| u64::from_le_bytes(core::array::from_fn(|i| bytes[at + i]));
        Self {
            object: Uuid(core::array::from_fn(|i| bytes[i])),
            generation: number(16),
            key_epoch: number(24),
            root: core::array::from_fn(|i| bytes[32 + i]),
        }
    }
}

/// What the caller of [`Protection::open`] knows about the object already. Everything that it knows
/// is checked.
#[derive(Clone, Copy, Debug)]
pub struct Expect<'a> {
    /// The object.
    pub object: Uuid,
    /// Its number of pages.
    pub pages: Option<u64>,
    /// Its protection. Give it wherever it is known. (An encrypted object that an attacker replaced
    /// by a plain one is noticed without it: a key is refused where none is needed.)
    pub mode: Option<Mode>,
    /// What it has to be bound to ([`binding`]).
    pub binding: Option<Digest>,
    /// The user's record of it: an older state is refused.
    pub anchor: Option<&'a Anchor>,
}

impl Expect<'_> {
    /// Only the object.
    #[must_use]
    pub fn of(object: Uuid) -> Self {
        Self { object, pages: None, mode: None, binding: None, anchor: None }
    }
}

/// Everything that a commit of changed pages has to write beside the sealed pages and their side
/// data.
#[derive(Clone, Debug)]
pub struct Change {
    /// The object's new header; `None`: it stays (modes without a tree).
    pub header: Option<[u8; HEADER_LEN]>,
    /// Nodes of the tree to write.
    pub nodes: Vec<NodeWrite>,
    tree: Option<(TreeChange, AtRestHeader)>,
}

/// Whether a check says anything.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Checked {
    /// The page is the one that was last committed.
    Verified,
    /// The mode has no tree: any bytes are a page.
    NotCovered,
}

/// The protection of one open object. Usable from many threads at once.
#[derive(Debug)]
pub struct Protection {
    object: Uuid,
    mode: Mode,
    regions: Regions,
    sealer: PageSealer,
    tree: Option<Tree>,
    header: Mutex<AtRestHeader>,
}

impl Protection {
    /// Protection for a new object. Its pages are all never written: zeros on media, with zeros for
    /// side data and tree, read as zeros. The header is to be written before the first page.
    /// `keyring` is not asked in modes without a key.
    ///
    /// # Errors
    /// [`AtRestError::NoKey`], [`AtRestError::TooLarge`], [`AtRestError::Key`], and
    /// [`AtRestError::System`] if there are no random bytes or no memory that can be locked.
    pub fn create(
        object: Uuid,
        pages: u64,
        mode: Mode,
        keyring: Option<&Keyring>,
    ) -> Result<Self, AtRestError> {
        Self::create_by(object, pages, mode, keyring, |_, _| Ok(()))
    }

    /// Protection for what `before` protects, sealed anew as `object`: pages and mode are the same,
    /// the data key is another, so that nothing that was ever sealed under the one belongs to
    /// the other. If it is the same object, its generation goes on, so that an [`Anchor`] of an
    /// older state shows that this one is newer. With `inherits` its header also holds the key of
    /// the subordinates of `before` ([`Protection::inherited`]), whose own header may be gone
    /// before they are sealed anew.
    ///
    /// # Errors
    /// As [`Protection::create`].
    pub fn create_after(
        object: Uuid,
        before: &Self,
        inherits: bool,
        keyring: Option<&Keyring>,
    ) -> Result<Self, AtRestError> {
        let (pages, mode) = (before.pages(), before.mode);
        Self::create_by(object, pages, mode, keyring, |keys, header| {
            let old = before.locked();
            if old.object == object {
                (header.generation, header.key_epoch) = (old.generation, old.key_epoch);
            }
            if mode.has_tree() {
                header.members = old.members;
                header.replaced = binding::entry(&old).unwrap_or(NOTHING_REPLACED);
            }
            let (Some(keys), Some(before_keys)) = (keys, before.sealer.keys().filter(|_| inherits))
            else {
                return Ok(());
            };
            header.prefix.incompat |= INCOMPAT_INHERITED;
            let mut inherited = [0; 32];
            before_keys.subordinate(before.object, &mut inherited);
            let wrapped = keys.wrap_inherited(&inherited, header);
            wipe_bytes(&mut inherited);
            let what = "an inherited key cannot be wrapped";
            wrapped.map_err(|source| AtRestError::System { object, what, source })
        })
    }

    /// Binds a new object to what the catalog says of it ([`binding`]): before its header is
    /// written for the first time, or when all that it is bound to changes with it.
    pub fn bind(&self, binding: Digest) {
        let mut header = self.locked();
        header.binding = binding;
        seal_header(&mut header, self.sealer.keys());
    }

    /// The list of a pool's other puddles that a root puddle has ([`binding::members`]).
    #[must_use]
    pub fn members(&self) -> Digest {
        self.locked().members
    }

    /// Puts the list of a pool's other puddles into a change of its root puddle.
    pub fn list_members(&self, change: &mut Change, members: Digest) {
        let Some((_, header)) = &mut change.tree else { return };
        header.members = members;
        seal_header(header, self.sealer.keys());
        change.header = Some(to_bytes(header));
    }

    /// Refuses a header that is not the one that the store's list of protected things has.
    ///
    /// # Errors
    /// [`AtRestError::NotListed`]. Modes without a tree are in no list.
    pub fn check_listed(&self, listed: Option<Digest>) -> Result<(), AtRestError> {
        let header = self.locked();
        if self.mode().has_tree() && !binding::is_listed(&header, listed) {
            return Err(AtRestError::NotListed { object: header.object });
        }
        Ok(())
    }

    /// The digest of this puddle in its pool's list: of its present state, or of the state after a
    /// change. `None`: nothing was ever written.
    #[must_use]
    pub fn entry(&self, change: Option<&Change>) -> Option<Digest> {
        match change.and_then(|change| change.tree.as_ref()) {
            Some((_, header)) => binding::entry(header),
            None => binding::entry(&self.locked()),
        }
    }

    /// `more` fills in what an object is born with beside this, before the key is wrapped.
    fn create_by(
        object: Uuid,
        pages: u64,
        mode: Mode,
        keyring: Option<&Keyring>,
        more: impl FnOnce(Option<&Keys>, &mut AtRestHeader) -> Result<(), AtRestError>,
    ) -> Result<Self, AtRestError> {
        let too_large = || AtRestError::TooLarge { object, pages };
        let (cipher, cipher_version) = mode.cipher();
        let mut header = AtRestHeader::new_zeroed();
        header.prefix = HeaderPrefix::new(AtRestHeader::MAGIC, HEADER_LEN as u32);
        header.object = object;
        header.pages = pages;
        header.mode = mode as u32;
        header.cipher = cipher;
        header.cipher_version = cipher_version;
        header.tree = if mode.has_tree() { TREE_SHA256_16 } else { TREE_NONE };
        TreeShape::new(pages).ok_or_else(too_large)?;
        let mut keys = None;
        if mode.has_key() {
            let keyring = keyring.ok_or(AtRestError::NoKey { object, mode })?;
            let made =
                Keys::generate(object, mode, keyring.wanted_locking()).map_err(|source| {
                    AtRestError::System { object, what: "no key for a new object", source }
                })?;
            more(Some(&*made), &mut header)?;
            wrap(&made, keyring, &mut header)?;
            keys = Some(made);
        } else {
            more(None, &mut header)?;
        }
        Self::assemble(header, mode, keys)
    }

    /// Opens an object's protection from its header. Constant time: no page and no node is read.
    /// After a first Argon2 for a passphrase it takes microseconds.
    ///
    /// # Errors
    /// The header's own ([`AtRestError::Header`]), then what does not fit the expectations, then
    /// the key's; see [`AtRestError`] for which is told apart how.
    pub fn open(
        bytes: &[u8],
        expect: &Expect<'_>,
        keyring: Option<&Keyring>,
    ) -> Result<Self, AtRestError> {
        let object = expect.object;
        let header: AtRestHeader =
            header::read(bytes, true).map_err(|source| AtRestError::Header { object, source })?;
        if header.object != object {
            return Err(AtRestError::OtherObject { expected: object, found: header.object });
        }
        let mode = header.mode().map_err(|source| AtRestError::Header { object, source })?;
        if let Some(expected) = expect.mode.filter(|expected| *expected != mode) {
            return Err(AtRestError::WrongMode { object, expected, found: mode });
        }
        if let Some(expected) = expect.pages.filter(|expected| *expected != header.pages) {
            return Err(AtRestError::WrongSize { object, expected, found: header.pages });
        }
        let mut keys = None;
        if mode.has_key() {
            let keyring = keyring.ok_or(AtRestError::NoKey { object, mode })?;
            let opened = unwrap(&header, mode, keyring)?;
            if !bool::from(opened.header_mac(&header).ct_eq(&header.mac)) {
                return Err(AtRestError::Forged { object });
            }
            keys = Some(opened);
        } else if keyring.is_some() {
            return Err(AtRestError::KeyNotUsed { object, mode });
        }
        // Only now is the header known to be authentic, as far as it can be.
        if expect.binding.is_some_and(|binding| binding != header.binding) {
            return Err(AtRestError::Misplaced { object });
        }
        if let Some(anchor) = expect.anchor {
            check_anchor(&header, anchor)?;
        }
        Self::assemble(header, mode, keys)
    }

    fn assemble(
        mut header: AtRestHeader,
        mode: Mode,
        keys: Option<Secret<Keys>>,
    ) -> Result<Self, AtRestError> {
        let (object, pages) = (header.object, header.pages);
        let too_large = || AtRestError::TooLarge { object, pages };
        let shape = TreeShape::new(pages).ok_or_else(too_large)?;
        let regions = Regions::new(mode, pages).ok_or_else(too_large)?;
        let tree = mode.has_tree().then(|| Tree::new(object, shape, header.root));
        let sealer = PageSealer::new(object, pages, mode, keys);
        seal_header(&mut header, sealer.keys());
        Ok(Self { object, mode, regions, sealer, tree, header: Mutex::new(header) })
    }

    fn locked(&self) -> MutexGuard<'_, AtRestHeader> {
        self.header.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The object.
    #[must_use]
    pub fn object(&self) -> Uuid {
        self.object
    }

    /// What protects it.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }

    /// Its pages.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.locked().pages
    }

    /// Where header, side data and tree lie.
    #[must_use]
    pub fn regions(&self) -> Regions {
        self.regions
    }

    /// The committed header's bytes.
    #[must_use]
    pub fn header(&self) -> [u8; HEADER_LEN] {
        to_bytes(&self.locked())
    }

    /// What to remember elsewhere of the committed state.
    #[must_use]
    pub fn anchor(&self) -> Anchor {
        let header = self.locked();
        Anchor {
            object: self.object,
            generation: header.generation,
            key_epoch: header.key_epoch,
            root: header.root,
        }
    }

    /// 32 bytes that commit to the whole contents: SHA-256 over object, pages, mode, generation and
    /// root. A holder of these bytes can check any page by its path.
    #[must_use]
    pub fn commitment(&self) -> Digest {
        let header = self.locked();
        let mut hash = Sha256::new();
        hash.update(b"CnRoot\0\0");
        hash.update(header.object.0);
        hash.update(header.pages.to_le_bytes());
        hash.update(header.mode.to_le_bytes());
        hash.update(header.generation.to_le_bytes());
        hash.update(header.root);
        hash.finalize().into()
    }

    /// The page sealer, for callers that need no tree.
    #[must_use]
    pub fn sealer(&self) -> &PageSealer {
        &self.sealer
    }

    /// The tree, in modes that have one.
    #[must_use]
    pub fn tree(&self) -> Option<&Tree> {
        self.tree.as_ref()
    }

    /// Compares the committed state with what was remembered of it.
    ///
    /// # Errors
    /// [`AtRestError::RolledBack`]: this is older. [`AtRestError::Forked`]: this has another
    /// history. [`AtRestError::OtherObject`].
    pub fn check_anchor(&self, anchor: &Anchor) -> Result<(), AtRestError> {
        check_anchor(&self.locked(), anchor)
    }
}

fn check_anchor(header: &AtRestHeader, anchor: &Anchor) -> Result<(), AtRestError> {
    let object = header.object;
    if anchor.object != object {
        return Err(AtRestError::OtherObject { expected: anchor.object, found: object });
    }
    for (what, found, expected) in [
        ("its generation", header.generation, anchor.generation),
        ("its key's epoch", header.key_epoch, anchor.key_epoch),
    ] {
        if found < expected {
            return Err(AtRestError::RolledBack { object, what, found, expected });
        }
    }
    if header.generation == anchor.generation && header.root != anchor.root {
        return Err(AtRestError::Forked { object, generation: anchor.generation });
    }
    Ok(())
}

/// The HMAC, where there is a key, and the checksum: the last things to do before a header is
/// written.
fn seal_header(header: &mut AtRestHeader, keys: Option<&Keys>) {
    if let Some(keys) = keys {
        header.mac = keys.header_mac(header);
    }
    header::seal(header);
}

fn to_bytes(header: &AtRestHeader) -> [u8; HEADER_LEN] {
    let mut bytes = [0; HEADER_LEN];
    bytes.copy_from_slice(header.as_bytes());
    bytes
}

/// Whether a sealed page stands for one that was never written, in every mode.
#[must_use]
pub fn is_never_written(sealed: &Page, side: Option<&PageSide>) -> bool {
    is_zero(sealed) && side.is_none_or(|side| *side == PageSide::NEVER)
}

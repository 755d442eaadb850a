//! Sealing and opening single pages: no tree, no header, no I/O.
//!
//! | mode | sealed page | bound to its place by |
//! | --- | --- | --- |
//! | none, integrity | the page | the tree |
//! | encryption (and integrity) | AES-256-XTS | the tweak: page number and object |
//! | authenticated | AEGIS-256X4 | associated data: object, page number, mode and cipher |
//!
//! A sealed page (and side data) of zeros stands for a page that was never written, and opens as
//! zeros. Sealing never makes one: that a cipher gives 4,096 zero bytes, or a tag of 32, is as
//! likely as guessing a key. A caller that has no tree, or does not ask it, therefore cannot tell a
//! page that was wiped from one never written.
//!
//! *Freshness* is the tree's business as well: here, any page and side data that belong together
//! are good.
//!
//! # Nonces
//!
//! 16 random bytes of the kernel, fresh after every 64 pages; a counter of 8 bytes; the page's
//! number. No two are the same, also after crashes. Two copies of a running machine may make the
//! same ones until the next random bytes. A forked child cannot make any: it does not have the
//! keys.

use crate::crypto::data_key::Keys;
use crate::crypto::error::{PageError, PageFault};
use crate::crypto::tree::{self, Digest, is_zero};
use cenote_layout::at_rest::{Mode, PageSide};
use cenote_layout::id::Uuid;
use cenote_sys::secret::Secret;
use std::sync::{Mutex, PoisonError};

/// Bytes of a page, plain or sealed.
pub const PAGE_LEN: usize = 4096;
/// A page.
pub type Page = [u8; PAGE_LEN];

/// Pages that share random bytes in their nonces.
const NONCES_PER_DRAW: u64 = 64;

#[derive(Default)]
struct Nonces {
    random: [u8; 16],
    counter: u64,
}

/// The side data of a sealed page, which is stored beside it and goes under the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SealedPage {
    /// The page's number.
    pub page: u64,
    /// Nonce and tag, in modes that have them: 64 bytes to store.
    pub side: Option<PageSide>,
    /// The leaf's digest, in modes with a tree.
    pub digest: Option<Digest>,
}

/// Seals and opens pages of one object. Usable from many threads at once.
pub struct PageSealer {
    object: Uuid,
    pages: u64,
    mode: Mode,
    keys: Option<Secret<Keys>>,
    nonces: Mutex<Nonces>,
}

impl core::fmt::Debug for PageSealer {
    fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
        write!(f, "PageSealer({}, {})", self.object, self.mode)
    }
}

impl PageSealer {
    pub(crate) fn new(object: Uuid, pages: u64, mode: Mode, keys: Option<Secret<Keys>>) -> Self {
        Self { object, pages, mode, keys, nonces: Mutex::default() }
    }

    pub(crate) fn keys(&self) -> Option<&Keys> {
        self.keys.as_deref()
    }

    pub(crate) fn fail<T>(&self, page: u64, fault: PageFault) -> Result<T, PageError> {
        Err(PageError { object: self.object, page, fault })
    }

    fn check(&self, page: u64) -> Result<(), PageError> {
        if page < self.pages {
            Ok(())
        } else {
            self.fail(page, PageFault::OutOfRange { pages: self.pages })
        }
    }

    /// Seals a page into `sealed`.
    ///
    /// # Errors
    /// [`PageFault::OutOfRange`]; [`PageFault::Random`] if the kernel has no random bytes. `sealed`
    /// is then not to be used.
    pub fn seal(
        &self,
        page: u64,
        plain: &Page,
        sealed: &mut Page,
    ) -> Result<SealedPage, PageError> {
        self.seal_from(page, Some(plain), sealed).inspect_err(|_| sealed.fill(0))
    }

    /// Seals a page in place.
    ///
    /// # Errors
    /// As [`PageSealer::seal`]; the page is then still plain.
    pub fn seal_in_place(&self, page: u64, bytes: &mut Page) -> Result<SealedPage, PageError> {
        self.seal_from(page, None, bytes)
    }

    fn seal_from(
        &self,
        page: u64,
        plain: Option<&Page>,
        bytes: &mut Page,
    ) -> Result<SealedPage, PageError> {
        self.check(page)?;
        let from = plain.map(<[u8; PAGE_LEN]>::as_slice);
        let side = match (&self.keys, self.mode) {
            (Some(keys), Mode::Encryption | Mode::EncryptionIntegrity) => {
                let done = keys.encrypt(&self.tweak(page), from, bytes);
                done.or_else(|_| self.fail(page, PageFault::Cipher))?;
                None
            }
            (Some(keys), Mode::Authenticated) => {
                let nonce = self.nonce(page)?;
                let tag = keys.seal(&nonce, &self.context(page), from, bytes);
                Some(PageSide { nonce, tag })
            }
            _ => {
                if let Some(plain) = plain {
                    bytes.copy_from_slice(plain);
                }
                None
            }
        };
        Ok(SealedPage { page, side, digest: self.digest(page, bytes, side.as_ref()) })
    }

    /// Opens a page into `plain`, without asking the tree. `side` is for modes that have side data.
    ///
    /// # Errors
    /// [`PageFault::OutOfRange`]; in authenticated mode [`PageFault::NoSide`],
    /// [`PageFault::Moved`], and [`PageFault::Damaged`] for all else that is not authentic.
    /// `plain` is then all zero: nothing unverified leaves.
    pub fn open(
        &self,
        page: u64,
        sealed: &Page,
        side: Option<&PageSide>,
        plain: &mut Page,
    ) -> Result<(), PageError> {
        match self.try_open(page, Some(sealed), plain, side) {
            Ok(()) => Ok(()),
            Err(fault) => {
                let fault = self.explain(page, sealed, side, fault);
                plain.fill(0);
                self.fail(page, fault)
            }
        }
    }

    /// Opens a page in place, without asking the tree.
    ///
    /// # Errors
    /// As [`PageSealer::open`], except that a page that was moved here is only said to be damaged.
    /// The bytes are then all zero.
    pub fn open_in_place(
        &self,
        page: u64,
        bytes: &mut Page,
        side: Option<&PageSide>,
    ) -> Result<(), PageError> {
        self.try_open(page, None, bytes, side).or_else(|fault| {
            bytes.fill(0);
            self.fail(page, fault)
        })
    }

    fn try_open(
        &self,
        page: u64,
        sealed: Option<&Page>,
        bytes: &mut Page,
        side: Option<&PageSide>,
    ) -> Result<(), PageFault> {
        if page >= self.pages {
            return Err(PageFault::OutOfRange { pages: self.pages });
        }
        let from = sealed.map(<[u8; PAGE_LEN]>::as_slice);
        match (&self.keys, self.mode) {
            (Some(keys), Mode::Encryption | Mode::EncryptionIntegrity) => {
                if is_zero(from.unwrap_or(bytes)) {
                    bytes.fill(0);
                    return Ok(());
                }
                keys.decrypt(&self.tweak(page), from, bytes).map_err(|_| PageFault::Cipher)
            }
            (Some(keys), Mode::Authenticated) => {
                let side = side.ok_or(PageFault::NoSide)?;
                let open = if *side == PageSide::NEVER {
                    let never_written = is_zero(from.unwrap_or(bytes));
                    bytes.fill(0);
                    never_written
                } else {
                    let context = self.context(page);
                    keys.open(&side.nonce, &context, &side.tag, from, bytes)
                };
                if open { Ok(()) } else { Err(PageFault::Damaged) }
            }
            _ => {
                if let Some(sealed) = sealed {
                    bytes.copy_from_slice(sealed);
                }
                Ok(())
            }
        }
    }

    /// Whether a page that is not authentic here is so elsewhere in the object: the nonce names the
    /// page it was made for.
    fn explain(
        &self,
        page: u64,
        sealed: &Page,
        side: Option<&PageSide>,
        fault: PageFault,
    ) -> PageFault {
        let (PageFault::Damaged, Some(side)) = (&fault, side) else { return fault };
        let from = page_of(side);
        if from == page {
            return fault;
        }
        let mut copy = [0; PAGE_LEN];
        let authentic = self.try_open(from, Some(sealed), &mut copy, Some(side)).is_ok();
        cenote_sys::secret::wipe_bytes(&mut copy);
        if authentic && *side != PageSide::NEVER { PageFault::Moved { from } } else { fault }
    }

    /// The digest of a page's leaf; `None` in modes without a tree.
    #[must_use]
    pub fn digest(&self, page: u64, sealed: &Page, side: Option<&PageSide>) -> Option<Digest> {
        match self.mode {
            Mode::Integrity | Mode::EncryptionIntegrity => {
                Some(tree::page_digest(self.object, page, sealed))
            }
            Mode::Authenticated => side.map(|side| tree::side_digest(self.object, page, side)),
            Mode::None | Mode::Encryption => None,
        }
    }

    /// IEEE 1619: the number of the data unit, little endian. Units are numbered from an arbitrary
    /// start, here by object.
    fn tweak(&self, page: u64) -> [u8; 16] {
        let mut tweak = [0; 16];
        tweak[..8].copy_from_slice(&page.to_le_bytes());
        tweak[8..].copy_from_slice(&self.object.0[..8]);
        tweak
    }

    fn context(&self, page: u64) -> [u8; 32] {
        let (cipher, version) = self.mode.cipher();
        let mut context = [0; 32];
        context[..16].copy_from_slice(&self.object.0);
        context[16..24].copy_from_slice(&page.to_le_bytes());
        context[24..26].copy_from_slice(&(self.mode as u16).to_le_bytes());
        context[26..28].copy_from_slice(&(cipher as u16).to_le_bytes());
        context[28..].copy_from_slice(&version.to_le_bytes());
        context
    }

    fn nonce(&self, page: u64) -> Result<[u8; 32], PageError> {
        let mut nonces = self.nonces.lock().unwrap_or_else(PoisonError::into_inner);
        if nonces.counter.is_multiple_of(NONCES_PER_DRAW) {
            let mut random = [0; 16];
            if let Err(source) = cenote_sys::process::fill_random(&mut random) {
                return self.fail(page, PageFault::Random(source));
            }
            nonces.random = random;
        }
        // 2^64 pages of 4 KiB will not be written.
        nonces.counter += 1;
        let mut nonce = [0; 32];
        nonce[..16].copy_from_slice(&nonces.random);
        nonce[16..24].copy_from_slice(&nonces.counter.to_le_bytes());
        nonce[24..].copy_from_slice(&page.to_le_bytes());
        Ok(nonce)
    }
}

fn page_of(side: &PageSide) -> u64 {
    side.nonce.last_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::crypto::testing::pattern;
    use cenote_sys::secret::Locking;
    use std::collections::HashSet;

    const OBJECT: Uuid = Uuid(*b"an object's uuid");

    fn sealer(mode: Mode) -> PageSealer {
        let keys = mode.has_key().then(|| Keys::generate(OBJECT, mode, Locking::Required).unwrap());
        PageSealer::new(OBJECT, 1000, mode, keys)
    }

    #[test]
    fn pages_come_back_in_every_mode_in_place_and_not() {
        let plain: Page = pattern(PAGE_LEN).try_into().unwrap();
        for mode in [
            Mode::None,
            Mode::Integrity,
            Mode::Encryption,
            Mode::EncryptionIntegrity,
            Mode::Authenticated,
        ] {
            let sealer = sealer(mode);
            let mut sealed = [0; PAGE_LEN];
            let made = sealer.seal(7, &plain, &mut sealed).unwrap();
            assert_eq!(made.side.is_some(), mode.has_side());
            assert_eq!(made.digest.is_some(), mode.has_tree());
            assert_eq!(sealed == plain, !mode.has_key(), "{mode}");
            let mut back = [1; PAGE_LEN];
            sealer.open(7, &sealed, made.side.as_ref(), &mut back).unwrap();
            assert!(back == plain, "{mode}");
            let mut bytes = sealed;
            sealer.open_in_place(7, &mut bytes, made.side.as_ref()).unwrap();
            assert!(bytes == plain, "{mode}");
            sealer.seal_in_place(7, &mut bytes).unwrap();
            assert_eq!(
                bytes == sealed,
                !mode.has_side(),
                "a page is sealed anew only with a nonce"
            );
        }
    }

    #[test]
    fn zeros_that_were_written_do_not_look_never_written() {
        for mode in [Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated] {
            let sealer = sealer(mode);
            let mut sealed = [0; PAGE_LEN];
            let made = sealer.seal(0, &[0; PAGE_LEN], &mut sealed).unwrap();
            assert!(!is_zero(&sealed));
            let mut plain = [1; PAGE_LEN];
            sealer.open(0, &sealed, made.side.as_ref(), &mut plain).unwrap();
            assert!(is_zero(&plain));
            // And what was never written reads as zeros.
            sealer.open(1, &[0; PAGE_LEN], Some(&PageSide::NEVER), &mut plain).unwrap();
            assert!(is_zero(&plain));
        }
    }

    #[test]
    fn nonces_are_never_the_same() {
        let sealer = sealer(Mode::Authenticated);
        let seen: HashSet<[u8; 32]> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| (0..1000).map(|_| sealer.nonce(3).unwrap()).collect::<Vec<_>>())
                })
                .collect();
            threads.into_iter().flat_map(|t| t.join().unwrap()).collect()
        });
        assert_eq!(seen.len(), 4000);
        let draws: HashSet<&[u8]> = seen.iter().map(|n| &n[..16]).collect();
        assert_eq!(
            draws.len(),
            4000_usize.div_ceil(64),
            "random bytes are drawn once for 64 pages"
        );
    }

    #[test]
    fn a_moved_page_is_named_and_another_objects_is_damage() {
        let sealer = sealer(Mode::Authenticated);
        let mut sealed = [0; PAGE_LEN];
        let made = sealer.seal(7, &[9; PAGE_LEN], &mut sealed).unwrap();
        let mut plain = [1; PAGE_LEN];
        let error = sealer.open(8, &sealed, made.side.as_ref(), &mut plain).unwrap_err();
        assert!(matches!(error.fault, PageFault::Moved { from: 7 }), "{error}");
        assert!(is_zero(&plain));
        let other = self::sealer(Mode::Authenticated);
        let error = other.open(7, &sealed, made.side.as_ref(), &mut plain).unwrap_err();
        assert!(matches!(error.fault, PageFault::Damaged), "{error}");
        let error = sealer.open(7, &sealed, None, &mut plain).unwrap_err();
        assert!(matches!(error.fault, PageFault::NoSide), "{error}");
        let error = sealer.open(1000, &sealed, made.side.as_ref(), &mut plain).unwrap_err();
        assert!(matches!(error.fault, PageFault::OutOfRange { pages: 1000 }), "{error}");
        assert!(sealer.seal(1000, &plain, &mut sealed).is_err());
    }

    #[test]
    fn the_tweak_is_the_page_and_the_object() {
        let sealer = sealer(Mode::Encryption);
        let mut expected = [0; 16];
        expected[0] = 0xe7;
        expected[1] = 0x03;
        expected[8..].copy_from_slice(b"an objec");
        assert_eq!(sealer.tweak(999), expected);
    }
}

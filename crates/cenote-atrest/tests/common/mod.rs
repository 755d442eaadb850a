//! An object on a disk that anybody may change: what the tests attack.
#![allow(dead_code)] // each test binary uses a part

use cenote_atrest::{
    AtRestError, Expect, HEADER_LEN, Keyring, MasterKey, Mode, PAGE_LEN, Page, PageError, PageSide,
    Protection,
};
use cenote_layout::id::Uuid;

pub(crate) const OBJECT: Uuid = Uuid(*b"an object's uuid");
pub(crate) const MODES: [Mode; 5] =
    [Mode::None, Mode::Integrity, Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];

/// A keyring of a key that is different for each `n`.
pub(crate) fn keyring(n: u8) -> Keyring {
    Keyring::new(MasterKey::from_bytes(&mut core::array::from_fn(|i| (i as u8) ^ n)).unwrap())
}

/// A page that says which it is.
pub(crate) fn plain(page: u64, version: u64) -> Page {
    let mut bytes = [0; PAGE_LEN];
    for (at, word) in bytes.chunks_exact_mut(8).enumerate() {
        let value = (page << 40 | version << 20 | at as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        word.copy_from_slice(&value.to_le_bytes());
    }
    bytes
}

/// Everything that lies on media.
#[derive(Clone)]
pub(crate) struct Disk {
    pub(crate) header: [u8; HEADER_LEN],
    pub(crate) pages: Vec<Page>,
    pub(crate) sides: Vec<PageSide>,
    pub(crate) tree: Vec<u8>,
}

/// A disk with a new object, and its protection.
pub(crate) fn create(pages: u64, mode: Mode, keyring: &Keyring) -> (Disk, Protection) {
    create_object(OBJECT, pages, mode, keyring)
}

pub(crate) fn create_object(
    object: Uuid,
    pages: u64,
    mode: Mode,
    keyring: &Keyring,
) -> (Disk, Protection) {
    let protection = Protection::create(object, pages, mode, Some(keyring)).unwrap();
    let regions = protection.regions();
    let disk = Disk {
        header: protection.header(),
        pages: vec![[0; PAGE_LEN]; pages as usize],
        sides: vec![PageSide::NEVER; pages as usize],
        tree: vec![0; (regions.len - regions.tree) as usize],
    };
    (disk, protection)
}

impl Disk {
    /// A psync that succeeds.
    pub(crate) fn write(&mut self, protection: &Protection, pages: &[(u64, Page)]) {
        let mut made = Vec::new();
        let mut bytes = Vec::new();
        for (page, plain) in pages {
            let mut sealed = [0; PAGE_LEN];
            made.push(protection.seal(*page, plain, &mut sealed).unwrap());
            bytes.push(sealed);
        }
        let change = protection.prepare(&made, &&self.tree[..]).unwrap();
        for (page, sealed) in made.iter().zip(bytes) {
            self.pages[page.page as usize] = sealed;
            if let Some(side) = page.side {
                self.sides[page.page as usize] = side;
            }
        }
        for node in &change.nodes {
            self.tree[node.offset as usize..][..512].copy_from_slice(&node.bytes[..]);
        }
        if let Some(header) = change.header {
            self.header = header;
        }
        protection.commit(change).unwrap();
        assert_eq!(self.header, protection.header());
    }

    pub(crate) fn side(&self, protection: &Protection, page: u64) -> Option<&PageSide> {
        protection.mode().has_side().then(|| &self.sides[page as usize])
    }

    /// First touch of a page, both ways.
    pub(crate) fn read(&self, protection: &Protection, page: u64) -> Result<Page, PageError> {
        let mut plain = [0xee; PAGE_LEN];
        let side = self.side(protection, page);
        let sealed = &self.pages[page as usize];
        let outcome = protection.open_page(page, sealed, side, &&self.tree[..], &mut plain);
        let mut bytes = *sealed;
        let in_place = protection.open_page_in_place(page, &mut bytes, side, &&self.tree[..]);
        assert_eq!(outcome.is_ok(), in_place.is_ok());
        assert_eq!(plain, bytes);
        if outcome.is_err() {
            assert_eq!(plain, [0; PAGE_LEN], "something unverified came out");
        }
        outcome.map(|()| plain)
    }

    pub(crate) fn open(&self, keyring: &Keyring) -> Result<Protection, AtRestError> {
        let keyring = Some(keyring).filter(|_| self.header[72] >= 2); // the mode has a key
        Protection::open(&self.header, &Expect::of(OBJECT), keyring)
    }
}

//! Protects pages at rest (PMO-7, PMO-8, PMO-9): encryption, integrity, freshness, and their keys;
//! and memory whose file is sealed.
//!
//! | folder | what it has |
//! | --- | --- |
//! | `crypto/` | keys, ciphers, seals, and the tree over them; exported here |
//! | `view/` | the memory of a sealed file, and what a psync seals: [`view`] |
//!
//! `crypto/` imports nothing from `view/`, and does no I/O: bytes come in and go out, and the
//! caller says where they lie.
//!
//! ```
//! use cenote_atrest::{Expect, Keyring, MasterKey, Mode, Protection};
//! use cenote_layout::id::Uuid;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let mut key = [0u8; 32];
//! # cenote_sys::process::fill_random(&mut key)?;
//! let keyring = Keyring::new(MasterKey::from_bytes(&mut key)?);
//! let object = Uuid::from_random_bytes(*b"sixteen rnd byte");
//! let protection = Protection::create(object, 1000, Mode::Authenticated, Some(&keyring))?;
//! let header = protection.header();
//! // The region on media, all zero at first.
//! let mut tree = vec![0; protection.regions().len as usize];
//!
//! // psync: seal the dirty pages, put them under the tree, make all durable in one step, commit.
//! let mut sealed = [0; 4096];
//! let page = protection.seal(7, &[42; 4096], &mut sealed)?;
//! let change = protection.prepare(&[page], &&tree[..])?;
//! for node in &change.nodes {
//!     tree[node.offset as usize..][..512].copy_from_slice(&node.bytes[..]);
//! }
//! let header = change.header.unwrap_or(header);
//! protection.commit(change)?;
//!
//! // Later: first touch of one page.
//! let protection = Protection::open(&header, &Expect::of(object), Some(&keyring))?;
//! let mut plain = [0; 4096];
//! protection.open_page(7, &sealed, page.side.as_ref(), &&tree[..], &mut plain)?;
//! assert_eq!(plain, [42; 4096]);
//! # Ok(())
//! # }
//! ```
//!
//! # What each mode is good for
//!
//! The attacker of the paper (section III) reads and changes the media while no process has the
//! object open, and does not read this process's memory.
//!
//! | | none | integrity | encryption | encryption and integrity | authenticated |
//! | --- | --- | --- | --- | --- | --- |
//! | learns contents | yes | yes | no, see 1 | no, see 1 | no |
//! | accident: bits, lost, misplaced writes | unseen | found | unseen | found | found |
//! | changes a page | unseen | found, see 2 | unseen, garbles 16 bytes | found | found |
//! | moves a page | unseen | found, see 2 | unseen, garbles it | found | found, and named |
//! | rolls a page back | unseen | found, see 2 | unseen | found | found, and named |
//! | rolls everything back | unseen | see 3 | see 3 | see 3 | see 3 |
//! | space beside pages | | 0.8 % | 4 KiB | 0.8 % | 2.4 % |
//!
//! 1. XTS has no nonce and needs no space. So an attacker who sees two versions of a page sees
//!    which blocks of 16 bytes are equal.
//! 2. Unless the attacker also changes tree, root and header, which takes no key.
//! 3. Found with an [`Anchor`] of 64 bytes, which the caller keeps elsewhere and gives to
//!    [`Protection::open`].
//!
//! With a key, an HMAC in the header covers the tree's root. So modes 3 and 4 find every change
//! that leaves the newest header in place. In every mode with a key it also covers the object's
//! name and length, and the headers of a pool's puddles ([`binding`]). Pages that were never
//! written are zero on media: an attacker sees which they are.
//!
//! # Keys
//!
//! The caller's key ([`MasterKey`]) wraps a random data key. Page keys and the header's HMAC key
//! are derived from the data key (HKDF-SHA-256). [`Protection::rekey`] wraps it again: that writes
//! one header of 512 bytes for every size of object. A holder of the old key *and* of the old
//! header keeps access; to end that, make a new object. All keys live in
//! [`cenote_sys::secret::Secret`]. Round keys are made for each page, and last for one call.
//!
//! # Crash argument
//!
//! Nothing of `crypto/` is durable by itself. [`Protection::prepare`] changes no state and returns
//! all that a commit has to write: pages, side data, nodes, header. The object's journal makes
//! these durable in one record; **that record's commit is the one store that commits**. Only then
//! [`Protection::commit`] makes the new root the one that pages are checked against. If the journal
//! fails, the caller drops the change: pages, tree and header are as before. Each seal takes a new
//! nonce, so no nonce of a dropped change is used again.

mod crypto;
pub mod view;

pub use crypto::{
    Anchor, Argon2Params, AtRestError, Change, Checked, Expect, HEADER_LEN, KeyError, Keyring,
    Locking, MasterKey, Mode, PAGE_LEN, PASSPHRASE_MAX, Page, PageError, PageFault, PageSealer,
    PageSide, Protection, Regions, SealedPage, binding, is_never_written, tree,
};

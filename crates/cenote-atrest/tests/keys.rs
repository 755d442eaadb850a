//! Keys: wrong ones, changed ones, passphrases; and headers that are noise.

use crate::common::{MODES, OBJECT, create, keyring, plain};
use cenote_atrest::{Argon2Params, AtRestError, Expect, HEADER_LEN, Keyring, Mode, Protection};
use cenote_layout::at_rest::AtRestHeader;
use cenote_layout::header::{self, Header};
use cenote_layout::id::Uuid;
use cenote_sys::secret::Locking;
use proptest::prelude::*;
use zerocopy::{FromBytes, IntoBytes};

const KEYED: [Mode; 3] = [Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated];
const CHEAP: Argon2Params = Argon2Params { memory_kib: 64, passes: 1, lanes: 1 };

fn passphrase(text: &str) -> Keyring {
    Keyring::from_passphrase(&mut text.to_owned().into_bytes(), CHEAP, Locking::Required).unwrap()
}

#[test]
fn what_does_not_fit_is_told_apart() {
    for mode in KEYED {
        let (mut disk, protection) = create(3, mode, &keyring(1));
        disk.write(&protection, &[(1, plain(1, 1))]);
        let error = disk.open(&keyring(2)).unwrap_err();
        assert!(matches!(error, AtRestError::WrongKey { object: OBJECT }), "{error}");
        let error = disk.open(&passphrase("guess")).unwrap_err();
        assert!(matches!(error, AtRestError::WrongKeyKind { passphrase: false, .. }), "{error}");
        assert!(error.to_string().ends_with("by a key, and a passphrase was given"), "{error}");
        let error = Protection::open(&disk.header, &Expect::of(OBJECT), None).unwrap_err();
        assert!(matches!(error, AtRestError::NoKey { .. }), "{error}");
        for other in MODES.into_iter().filter(|m| *m != mode) {
            let expect = Expect { mode: Some(other), ..Expect::of(OBJECT) };
            let error = Protection::open(&disk.header, &expect, Some(&keyring(1))).unwrap_err();
            let AtRestError::WrongMode { expected, found, .. } = error else {
                panic!("{error}");
            };
            assert_eq!((expected, found), (other, mode));
        }
        let expect = Expect { pages: Some(4), ..Expect::of(OBJECT) };
        let error = Protection::open(&disk.header, &expect, Some(&keyring(1))).unwrap_err();
        assert!(matches!(error, AtRestError::WrongSize { expected: 4, found: 3, .. }), "{error}");
        assert!(matches!(
            Protection::create(OBJECT, 3, mode, None),
            Err(AtRestError::NoKey { .. })
        ));
    }
    for mode in [Mode::None, Mode::Integrity] {
        // An attacker replaced an encrypted object by another.
        let (disk, _) = create(3, mode, &keyring(1));
        let error =
            Protection::open(&disk.header, &Expect::of(OBJECT), Some(&keyring(1))).unwrap_err();
        assert!(matches!(error, AtRestError::KeyNotUsed { .. }), "{error}");
        Protection::open(&disk.header, &Expect::of(OBJECT), None).unwrap();
    }
    let error = Protection::create(OBJECT, (1 << 40) + 1, Mode::Integrity, None).unwrap_err();
    assert!(matches!(error, AtRestError::TooLarge { .. }), "{error}");
}

/// What is sealed anew: other keys, as the same object or another; a header that brings the key of
/// the old one's subordinates, whatever becomes of the caller's.
#[test]
fn what_is_sealed_anew_shares_no_key_with_what_it_was_and_brings_along_that_of_its_subordinates() {
    let (child, copy) = (Uuid(*b"one of its pages"), Uuid(*b"copy of object 1"));
    for mode in KEYED {
        let (mut disk, before) = create(3, mode, &keyring(1));
        disk.write(&before, &[(1, plain(1, 1))]);
        let subordinate = before.subordinate(Some(&keyring(1))).unwrap();
        let of_child = Protection::create(child, 2, mode, subordinate.as_ref()).unwrap().header();
        let opens =
            |by: Option<&Keyring>| Protection::open(&of_child, &Expect::of(child), by).map(drop);
        opens(subordinate.as_ref()).unwrap();
        for object in [OBJECT, copy] {
            let after = Protection::create_after(object, &before, true, Some(&keyring(1))).unwrap();
            let mut sealed = [0; 4096];
            let page = after.seal(1, &plain(1, 1), &mut sealed).unwrap();
            assert!(sealed != disk.pages[1], "{mode}");
            let mut out = [0; 4096];
            let opened = before.sealer().open(1, &sealed, page.side.as_ref(), &mut out);
            assert!(opened.is_err() || out != plain(1, 1), "{mode}: opened by the key of before");
            let empty = [0; 4096];
            let change = after.prepare(&[page], &&empty[..]).unwrap();
            after.commit(change).unwrap();
            if object == OBJECT {
                after.check_anchor(&before.anchor()).unwrap();
                assert!(
                    !mode.has_tree() || before.check_anchor(&after.anchor()).is_err(),
                    "it is newer"
                );
            }
            let own = after.subordinate(Some(&keyring(1))).unwrap();
            assert!(matches!(opens(own.as_ref()), Err(AtRestError::WrongKey { .. })));
            opens(after.inherited(Some(&keyring(1))).unwrap().as_ref()).unwrap();
            let header = after.rekey(&keyring(2)).unwrap();
            let rekeyed =
                Protection::open(&header, &Expect::of(object), Some(&keyring(2))).unwrap();
            opens(rekeyed.inherited(Some(&keyring(2))).unwrap().as_ref()).unwrap();
            // Once nothing needs it, it is in no further header.
            let done = Protection::open(&header, &Expect::of(object), Some(&keyring(2))).unwrap();
            done.disinherit();
            let without = done.rekey(&keyring(3)).unwrap();
            let read = AtRestHeader::read_from_bytes(&without).unwrap();
            assert_eq!((read.inherited_key, read.inherited_tag), ([0; 32], [0; 16]));
            let done = Protection::open(&without, &Expect::of(object), Some(&keyring(3))).unwrap();
            assert!(done.inherited(Some(&keyring(3))).unwrap().is_none());
            // A bit of it, and of the bit that says it is there.
            for at in [32, 330, 365] {
                let mut read = AtRestHeader::read_from_bytes(&header).unwrap();
                read.as_mut_bytes()[at] ^= 1;
                header::seal(&mut read);
                let error =
                    Protection::open(read.as_bytes(), &Expect::of(object), Some(&keyring(2)));
                let found =
                    matches!(error, Err(AtRestError::Forged { .. } | AtRestError::Header { .. }));
                assert!(found, "byte {at}: {error:?}");
            }
            let alone =
                Protection::create_after(object, &before, false, Some(&keyring(1))).unwrap();
            assert!(alone.inherited(Some(&keyring(1))).unwrap().is_none());
        }
    }
    let (_, before) = create(3, Mode::Integrity, &keyring(1));
    let after = Protection::create_after(copy, &before, true, None).unwrap();
    assert!(after.inherited(None).unwrap().is_none(), "there is no key to be inherited");
}

/// Who remembers an older state of an object knows what it is sealed anew as for a newer one, its
/// key's epoch included; another object begins at none.
#[test]
fn what_is_sealed_anew_goes_on_with_the_epoch_of_its_key() {
    let copy = Uuid(*b"copy of object 1");
    for mode in KEYED {
        let (mut disk, mut before) = create(3, mode, &keyring(0));
        disk.write(&before, &[(1, plain(1, 1))]);
        for epoch in 1..4 {
            disk.header = before.rekey(&keyring(epoch)).unwrap();
            before.rekeyed(&disk.header).unwrap();
            before = disk.open(&keyring(epoch)).unwrap();
            let remembered = before.anchor();
            assert_eq!(remembered.key_epoch, u64::from(epoch), "{mode}");
            let read = |protection: &Protection| {
                AtRestHeader::read_from_bytes(&protection.header()).unwrap()
            };
            for inherits in [false, true] {
                let by = keyring(epoch);
                let after = Protection::create_after(OBJECT, &before, inherits, Some(&by)).unwrap();
                let (old, new) = (read(&before), read(&after));
                assert_eq!(
                    (new.key_epoch, new.generation),
                    (old.key_epoch, old.generation),
                    "{mode}"
                );
                assert_eq!(after.anchor().key_epoch, u64::from(epoch), "{mode}");
                let expect = |anchor| Expect { anchor, ..Expect::of(OBJECT) };
                // With a tree its first psync makes it newer than what is remembered.
                if !mode.has_tree() {
                    Protection::open(&after.header(), &expect(Some(&remembered)), Some(&by))
                        .unwrap();
                }
                let later = after.rekey(&keyring(9)).unwrap();
                let later =
                    Protection::open(&later, &Expect::of(OBJECT), Some(&keyring(9))).unwrap();
                assert_eq!(later.anchor().key_epoch, u64::from(epoch) + 1, "{mode}");
                let forgotten =
                    Protection::open(&after.header(), &expect(Some(&later.anchor())), Some(&by));
                let found = matches!(
                    forgotten,
                    Err(AtRestError::RolledBack { what: "its key's epoch", .. })
                );
                assert!(found, "{mode}: {forgotten:?}");
                // The key is wrapped with it, so the header opens only with the one that it was
                // made with.
                for epoch in [new.key_epoch - 1, new.key_epoch + 1] {
                    let mut other = new;
                    other.key_epoch = epoch;
                    header::seal(&mut other);
                    let refused =
                        Protection::open(other.as_bytes(), &Expect::of(OBJECT), Some(&by));
                    assert!(refused.is_err(), "{mode}: an epoch that was changed");
                }
                let other = Protection::create_after(copy, &before, inherits, Some(&by)).unwrap();
                let other = read(&other);
                assert_eq!((other.key_epoch, other.generation), (0, 0), "{mode}: a copy is new");
            }
        }
    }
}

#[test]
fn rekey_changes_the_header_and_nothing_else() {
    for mode in KEYED {
        let (old_keys, new_keys) = (keyring(1), keyring(2));
        let (mut disk, protection) = create(3, mode, &old_keys);
        disk.write(&protection, &[(1, plain(1, 1))]);
        let before = disk.clone();
        let anchor = protection.anchor();
        disk.header = protection.rekey(&new_keys).unwrap();
        // Not yet taken over: a crash here leaves the old key or the new one.
        assert_eq!(before.header, protection.header());
        protection.rekeyed(&disk.header).unwrap();
        assert_eq!(disk.header, protection.header());

        assert!(matches!(disk.open(&old_keys), Err(AtRestError::WrongKey { .. })), "{mode}");
        let reopened = disk.open(&new_keys).unwrap();
        assert_eq!(disk.read(&reopened, 1).unwrap(), plain(1, 1), "{mode}");
        disk.write(&reopened, &[(2, plain(2, 1))]);
        assert_eq!(disk.read(&reopened, 2).unwrap(), plain(2, 1), "{mode}");

        // The old header under the old key is still good, which only an anchor from after the
        // change refuses.
        let expect = |anchor| Expect { anchor, ..Expect::of(OBJECT) };
        Protection::open(&before.header, &expect(Some(&anchor)), Some(&old_keys)).unwrap();
        let later = reopened.anchor();
        assert_eq!(later.key_epoch, 1);
        let error =
            Protection::open(&before.header, &expect(Some(&later)), Some(&old_keys)).unwrap_err();
        assert!(matches!(error, AtRestError::RolledBack { .. }), "{error}");
        // The old wrapping in the new header is refused.
        let mut mixed = AtRestHeader::read_from_bytes(&disk.header).unwrap();
        let old = AtRestHeader::read_from_bytes(&before.header).unwrap();
        mixed.wrap_salt = old.wrap_salt;
        mixed.key_check = old.key_check;
        mixed.wrapped_key = old.wrapped_key;
        mixed.wrap_tag = old.wrap_tag;
        header::seal(&mut mixed);
        let error =
            Protection::open(mixed.as_bytes(), &Expect::of(OBJECT), Some(&old_keys)).unwrap_err();
        assert!(matches!(error, AtRestError::WrappedKey { .. }), "{error}");
    }
    let (_, plain_object) = create(3, Mode::Integrity, &keyring(1));
    assert!(matches!(plain_object.rekey(&keyring(2)), Err(AtRestError::NothingToRekey { .. })));
}

#[test]
fn rekey_and_commit_do_not_overtake_each_other() {
    let (mut disk, protection) = create(3, Mode::Authenticated, &keyring(1));
    let prepared = protection.rekey(&keyring(2)).unwrap();
    disk.write(&protection, &[(1, plain(1, 1))]);
    // The header was prepared on what is no longer the root: writing it would roll the object back.
    assert!(matches!(protection.rekeyed(&prepared), Err(AtRestError::Stale { .. })));
    let mut sealed = [0; 4096];
    let made = protection.seal(1, &plain(1, 2), &mut sealed).unwrap();
    let change = protection.prepare(&[made], &&disk.tree[..]).unwrap();
    let rekeyed = protection.rekey(&keyring(2)).unwrap();
    protection.rekeyed(&rekeyed).unwrap();
    assert!(matches!(protection.commit(change), Err(AtRestError::Stale { .. })));
    disk.header = rekeyed;
    let reopened = disk.open(&keyring(2)).unwrap();
    assert_eq!(disk.read(&reopened, 1).unwrap(), plain(1, 1));
    let (_, other) = create(3, Mode::Authenticated, &keyring(1));
    assert!(matches!(other.rekeyed(&rekeyed), Err(AtRestError::Forged { .. })));
}

#[test]
fn passphrases_open_objects_and_their_parameters_are_the_headers() {
    let ring = passphrase("correct horse battery staple");
    let (mut disk, protection) = create(3, Mode::Authenticated, &ring);
    disk.write(&protection, &[(1, plain(1, 1))]);
    let stored = AtRestHeader::read_from_bytes(&disk.header).unwrap();
    assert_eq!((stored.argon2_memory_kib, stored.argon2_passes, stored.argon2_lanes), (64, 1, 1));
    // Another session, whose own parameters are others.
    let more = Argon2Params { memory_kib: 128, passes: 2, lanes: 2 };
    let mut text = *b"correct horse battery staple";
    let later = Keyring::from_passphrase(&mut text, more, Locking::Required).unwrap();
    assert_eq!(disk.read(&disk.open(&later).unwrap(), 1).unwrap(), plain(1, 1));
    let error = disk.open(&passphrase("correct horse battery stapler")).unwrap_err();
    assert!(matches!(error, AtRestError::WrongKey { .. }), "{error}");
    let error = disk.open(&keyring(1)).unwrap_err();
    assert!(matches!(error, AtRestError::WrongKeyKind { passphrase: true, .. }), "{error}");
    // From passphrase to key and back.
    disk.header = protection.rekey(&keyring(5)).unwrap();
    assert_eq!(disk.read(&disk.open(&keyring(5)).unwrap(), 1).unwrap(), plain(1, 1));
    // A second object of the session is under the same salt: Argon2 has run once.
    let (second, _) = create(3, Mode::Encryption, &ring);
    let second = AtRestHeader::read_from_bytes(&second.header).unwrap();
    assert_eq!(second.kdf_salt, stored.kdf_salt);
    assert_ne!(second.wrap_salt, stored.wrap_salt);
}

#[test]
fn a_header_that_asks_for_more_work_than_allowed_is_refused_before_any_is_done() {
    let ring = passphrase("x");
    let (disk, _) = create(3, Mode::Encryption, &ring);
    for (memory, passes, lanes) in
        [(u32::MAX, 1, 1), (64, u32::MAX, 1), (64, 1, u32::MAX), (0, 1, 1), (64, 0, 1)]
    {
        let mut hostile = AtRestHeader::read_from_bytes(&disk.header).unwrap();
        (hostile.argon2_memory_kib, hostile.argon2_passes, hostile.argon2_lanes) =
            (memory, passes, lanes);
        header::seal(&mut hostile);
        let error =
            Protection::open(hostile.as_bytes(), &Expect::of(OBJECT), Some(&ring)).unwrap_err();
        assert!(matches!(error, AtRestError::Header { .. }), "{error}");
    }
}

#[test]
fn two_objects_and_two_wrappings_share_no_bytes() {
    let keys = keyring(1);
    let (a, b) = (create(1, Mode::Authenticated, &keys).0, create(1, Mode::Authenticated, &keys).0);
    let (a, b) = (
        AtRestHeader::read_from_bytes(&a.header).unwrap(),
        AtRestHeader::read_from_bytes(&b.header).unwrap(),
    );
    assert!(
        a.wrap_salt != b.wrap_salt && a.key_check != b.key_check && a.wrapped_key != b.wrapped_key
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Noise, noise with the right beginning, and real headers with pieces of noise, all with
    /// fitting checksums: each is an error or a protection that answers for its pages, never a
    /// panic.
    #[test]
    fn headers_that_are_noise_never_panic(
        mode in 0usize..5,
        noise in prop::collection::vec(any::<u8>(), HEADER_LEN),
        start in 0usize..HEADER_LEN,
        len in 0usize..64,
        whole in any::<bool>(),
    ) {
        let keys = keyring(1);
        let (disk, _) = create(3, MODES[mode], &keys);
        let mut bytes = disk.header;
        let end = (start + len).min(HEADER_LEN);
        let (from, to) = if whole { (8, HEADER_LEN) } else { (start, end) };
        bytes[from..to].copy_from_slice(&noise[from..to]);
        let mut parsed = AtRestHeader::read_from_bytes(&bytes).unwrap();
        parsed.prefix.magic = AtRestHeader::MAGIC;
        parsed.prefix.version = 1;
        header::seal(&mut parsed);
        for candidate in [&noise[..], &bytes[..], parsed.as_bytes()] {
            for ring in [None, Some(&keys)] {
                let opened = Protection::open(candidate, &Expect::of(OBJECT), ring);
                let Ok(opened) = opened else { continue };
                let mut out = [0; 4096];
                let _ = opened.open_page(1, &[7; 4096], None, &&noise[..], &mut out);
                let _ = opened.prepare(&[], &&noise[..]);
            }
        }
    }
}

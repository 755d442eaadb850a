//! Every single bit of what lies on media: flipped, it is refused, and nothing that is not verified
//! comes out.

use crate::common::{MODES, OBJECT, create, keyring, plain};
use cenote_atrest::{AtRestError, Checked, Expect, HEADER_LEN, Mode, PageFault, Protection};
use cenote_layout::at_rest::AtRestHeader;
use cenote_layout::header;
use zerocopy::FromBytes;

/// Bits of the last byte of a page and of few others, where a mode has nothing to say about any;
/// else all.
#[test]
fn every_flipped_bit_of_a_page_is_refused_by_every_mode_that_says_so() {
    for mode in [Mode::Integrity, Mode::EncryptionIntegrity, Mode::Authenticated] {
        let (mut disk, protection) = create(3, mode, &keyring(1));
        disk.write(&protection, &[(0, plain(0, 1)), (1, plain(1, 1)), (2, plain(2, 1))]);
        for bit in 0..8 * 4096 {
            disk.pages[1][bit / 8] ^= 1 << (bit % 8);
            let side = disk.side(&protection, 1);
            let error =
                protection.check_page(1, &disk.pages[1], side, &&disk.tree[..]).unwrap_err();
            assert!(matches!(error.fault, PageFault::Damaged), "{mode}, bit {bit}: {error}");
            disk.pages[1][bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(
            disk.read(&protection, 1).unwrap(),
            plain(1, 1),
            "the test undid its own damage"
        );
        disk.pages[1][77] ^= 4;
        let error = disk.read(&protection, 1).unwrap_err();
        assert_eq!((error.object, error.page), (OBJECT, 1));
        assert_eq!(
            error.to_string(),
            format!("object {OBJECT}, page 1: its bytes are not those that were last written")
        );
        assert_eq!(disk.read(&protection, 0).unwrap(), plain(0, 1), "the rest stays readable");
        assert_eq!(disk.read(&protection, 2).unwrap(), plain(2, 1), "the rest stays readable");
        let pages = (0..3).map(|p| (p, &disk.pages[p as usize], disk.side(&protection, p)));
        let wrong = protection.check_pages(pages, &&disk.tree[..]);
        assert_eq!(wrong.iter().map(|e| e.page).collect::<Vec<_>>(), [1]);
    }
}

#[test]
fn every_flipped_bit_of_side_data_is_refused() {
    let (mut disk, protection) = create(3, Mode::Authenticated, &keyring(1));
    disk.write(&protection, &[(1, plain(1, 1))]);
    let bytes: [u8; 64] = zerocopy::transmute!(disk.sides[1]);
    for bit in 0..8 * 64 {
        let mut flipped = bytes;
        flipped[bit / 8] ^= 1 << (bit % 8);
        disk.sides[1] = zerocopy::transmute!(flipped);
        let error = disk.read(&protection, 1).unwrap_err();
        assert!(matches!(error.fault, PageFault::SideDamaged), "bit {bit}: {error}");
    }
    // Wiped altogether, and the page with it: not a page that was never written.
    disk.sides[1] = zerocopy::transmute!([0u8; 64]);
    let error = disk.read(&protection, 1).unwrap_err();
    assert!(matches!(error.fault, PageFault::SideDamaged), "{error}");
    disk.pages[1] = [0; 4096];
    let error = disk.read(&protection, 1).unwrap_err();
    assert!(matches!(error.fault, PageFault::RolledBack), "{error}");
}

#[test]
fn every_flipped_bit_of_a_header_is_refused() {
    for mode in MODES {
        let keyring = keyring(1);
        let (mut disk, protection) = create(3, mode, &keyring);
        disk.write(&protection, &[(1, plain(1, 1))]);
        for bit in 0..8 * HEADER_LEN {
            disk.header[bit / 8] ^= 1 << (bit % 8);
            let error = disk.open(&keyring).unwrap_err();
            assert!(matches!(error, AtRestError::Header { .. }), "{mode}, bit {bit}: {error}");
            disk.header[bit / 8] ^= 1 << (bit % 8);
        }
        disk.open(&keyring).unwrap();
        for len in 0..HEADER_LEN {
            let error = Protection::open(&disk.header[..len], &Expect::of(OBJECT), Some(&keyring))
                .unwrap_err();
            assert!(matches!(error, AtRestError::Header { .. }), "{mode}, {len} bytes: {error}");
        }
    }
}

/// An attacker who knows the format makes the checksum fit again.
#[test]
fn with_a_key_a_header_whose_checksum_was_made_to_fit_is_refused_too() {
    for mode in [Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated] {
        let keyring = keyring(1);
        let (mut disk, protection) = create(3, mode, &keyring);
        disk.write(&protection, &[(1, plain(1, 1))]);
        let mut seen = std::collections::BTreeMap::new();
        for bit in (0..8 * HEADER_LEN).filter(|bit| !(40..48).contains(&(bit / 8))) {
            let mut bytes = disk.header;
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut forged = AtRestHeader::read_from_bytes(&bytes).unwrap();
            header::seal(&mut forged);
            bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&forged));
            let error = Protection::open(&bytes, &Expect::of(OBJECT), Some(&keyring)).unwrap_err();
            let kind = match (bit / 8, &error) {
                (0..40 | 56.., AtRestError::Header { .. }) => "impossible",
                (16..40, AtRestError::Forged { .. }) => "compatible feature",
                (48..64, AtRestError::OtherObject { .. }) => "object",
                (64..72 | 96..104, AtRestError::WrappedKey { .. }) => "bound to the key",
                (88..136, AtRestError::Forged { .. }) => "generation and root",
                (184..248, AtRestError::WrongKey { .. }) => "salt and check",
                (248..296, AtRestError::WrappedKey { .. }) => "wrapped key",
                (296..328, AtRestError::Forged { .. }) => "mac",
                (376..472, AtRestError::Forged { .. }) => "binding and lists",
                _ => panic!("{mode}, bit {bit}: {error:?}"),
            };
            *seen.entry(kind).or_insert(0) += 1;
        }
        assert_eq!(seen["salt and check"], 512, "{mode}: {seen:?}");
        assert_eq!(seen["wrapped key"], 384, "{mode}: {seen:?}");
        assert_eq!(seen["mac"], 256, "{mode}: {seen:?}");
        if mode.has_tree() {
            assert_eq!(seen["generation and root"], 320, "{mode}: {seen:?}");
            assert_eq!(seen["binding and lists"], 768, "{mode}: {seen:?}");
        }
    }
}

#[test]
fn without_a_tree_nothing_is_claimed() {
    for mode in [Mode::None, Mode::Encryption] {
        let (mut disk, protection) = create(3, mode, &keyring(1));
        disk.write(&protection, &[(1, plain(1, 1))]);
        let checked = protection.check_page(1, &disk.pages[1], None, &&disk.tree[..]).unwrap();
        assert_eq!(checked, Checked::NotCovered);
        disk.pages[1][0] ^= 1;
        assert_ne!(disk.read(&protection, 1).unwrap(), plain(1, 1));
        assert!(protection.check_page(3, &disk.pages[1], None, &&disk.tree[..]).is_err());
    }
}

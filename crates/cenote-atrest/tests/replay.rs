//! Pages, side data, tree and header that are whole, and belong elsewhere or to earlier.

use crate::common::{OBJECT, create, create_object, keyring, plain};
use cenote_atrest::{Anchor, AtRestError, Expect, Mode, PageFault, Protection};
use cenote_layout::id::Uuid;

const TREES: [Mode; 3] = [Mode::Integrity, Mode::EncryptionIntegrity, Mode::Authenticated];

#[test]
fn pages_that_change_places_are_refused() {
    for mode in TREES {
        let (mut disk, protection) = create(40, mode, &keyring(1));
        disk.write(&protection, &[(3, plain(3, 1)), (30, plain(30, 1))]);
        disk.pages.swap(3, 30);
        for page in [3, 30] {
            let error = disk.read(&protection, page).unwrap_err();
            assert!(matches!(error.fault, PageFault::Damaged), "{mode}: {error}");
        }
        disk.sides.swap(3, 30);
        for (page, from) in [(3, 30), (30, 3)] {
            let side = disk.side(&protection, page);
            let mut out = [1; 4096];
            let sealed = &disk.pages[page as usize];
            let error =
                protection.open_page(page, sealed, side, &&disk.tree[..], &mut out).unwrap_err();
            match error.fault {
                PageFault::Moved { from: named } if mode.has_side() => assert_eq!(named, from),
                PageFault::Damaged if !mode.has_side() => {}
                _ => panic!("{mode}: {error}"),
            }
            assert_eq!(out, [0; 4096]);
        }
        // A page in a place that was never written.
        disk.pages[20] = disk.pages[3];
        disk.sides[20] = disk.sides[3];
        assert!(disk.read(&protection, 20).is_err(), "{mode}");
    }
}

#[test]
fn pages_that_were_rolled_back_are_refused_however_much_of_them() {
    for mode in TREES {
        let keys = keyring(1);
        let (mut disk, protection) = create(40, mode, &keys);
        disk.write(&protection, &[(3, plain(3, 1)), (30, plain(30, 1))]);
        let old = disk.clone();
        disk.write(&protection, &[(3, plain(3, 2))]);
        let fresh = |disk: &crate::common::Disk| disk.open(&keys).unwrap();

        let mut attacked = disk.clone();
        attacked.pages[3] = old.pages[3];
        let error = attacked.read(&fresh(&attacked), 3).unwrap_err();
        assert!(matches!(error.fault, PageFault::Damaged), "{mode}, page alone: {error}");

        attacked.sides[3] = old.sides[3];
        let error = attacked.read(&fresh(&attacked), 3).unwrap_err();
        match error.fault {
            PageFault::RolledBack if mode.has_side() => {}
            PageFault::Damaged if !mode.has_side() => {}
            _ => panic!("{mode}, page and side data: {error}"),
        }
        attacked.pages[3] = disk.pages[3];
        let error = attacked.read(&fresh(&attacked), 3);
        match error.map_err(|e| e.fault) {
            Err(PageFault::SideDamaged) if mode.has_side() => {}
            Ok(_) if !mode.has_side() => {}
            other => panic!("{mode}, side data alone: {:?}", other.map(|_| ())),
        }

        let mut attacked = disk.clone();
        attacked.pages[3] = old.pages[3];
        attacked.sides[3] = old.sides[3];
        attacked.tree.clone_from(&old.tree);
        let error = attacked.read(&fresh(&attacked), 3).unwrap_err();
        assert!(matches!(error.fault, PageFault::Node { .. }), "{mode}, with its tree: {error}");
        let error = fresh(&attacked).prepare(&[], &&attacked.tree[..]).map(|_| ());
        error.unwrap(); // nothing is touched, nothing is claimed

        // All of it: only an anchor tells.
        let anchor = protection.anchor();
        let open = |anchor: Option<&Anchor>| {
            Protection::open(
                &old.header,
                &Expect { anchor, ..Expect::of(OBJECT) },
                mode.has_key().then_some(&keys),
            )
        };
        assert_eq!(old.read(&open(None).unwrap(), 3).unwrap(), plain(3, 1));
        let error = open(Some(&anchor)).unwrap_err();
        let as_expected = matches!(error, AtRestError::RolledBack { found: 1, expected: 2, .. });
        assert!(as_expected, "{mode}: {error}");
        assert_eq!(Anchor::from_bytes(&anchor.to_bytes()), anchor);
    }
}

#[test]
fn an_anchor_accepts_what_came_after_it_and_no_other_history() {
    let keys = keyring(1);
    let (mut disk, protection) = create(40, Mode::Authenticated, &keys);
    let start = disk.clone();
    disk.write(&protection, &[(3, plain(3, 1))]);
    let anchor = protection.anchor();
    let check = |disk: &crate::common::Disk| {
        let expect = Expect { anchor: Some(&anchor), ..Expect::of(OBJECT) };
        Protection::open(&disk.header, &expect, Some(&keys))
    };
    check(&disk).unwrap();
    disk.write(&protection, &[(4, plain(4, 1))]);
    check(&disk).unwrap();
    // An attacker with the key goes on from the start in another way.
    let mut fork = start.clone();
    let other = start.open(&keys).unwrap();
    fork.write(&other, &[(3, plain(3, 2))]);
    let error = check(&fork).unwrap_err();
    assert!(matches!(error, AtRestError::Forked { generation: 1, .. }), "{error}");
    let foreign = Anchor { object: Uuid([1; 16]), ..anchor };
    let expect = Expect { anchor: Some(&foreign), ..Expect::of(OBJECT) };
    let error = Protection::open(&disk.header, &expect, Some(&keys)).unwrap_err();
    assert!(matches!(error, AtRestError::OtherObject { .. }), "{error}");
}

#[test]
fn nothing_of_another_object_under_the_same_key_is_accepted() {
    for mode in TREES {
        let keys = keyring(1);
        let other = Uuid([9; 16]);
        let (mut disk, protection) = create(40, mode, &keys);
        let (mut theirs, their_protection) = create_object(other, 40, mode, &keys);
        disk.write(&protection, &[(3, plain(3, 1))]);
        theirs.write(&their_protection, &[(3, plain(3, 1))]);
        let error = Protection::open(&theirs.header, &Expect::of(OBJECT), Some(&keys)).unwrap_err();
        assert!(
            matches!(error, AtRestError::OtherObject { found, .. } if found == other),
            "{error}"
        );

        let fresh = disk.open(&keys).unwrap();
        let mut attacked = disk.clone();
        attacked.pages[3] = theirs.pages[3];
        attacked.sides[3] = theirs.sides[3];
        if mode.has_key() {
            let error = attacked.read(&fresh, 3).unwrap_err();
            let plausible = matches!(error.fault, PageFault::Damaged | PageFault::SideDamaged);
            assert!(plausible, "{mode}: {error}");
        }
        attacked.tree.clone_from(&theirs.tree);
        let fresh = disk.open(&keys).unwrap();
        let error = attacked.read(&fresh, 3).unwrap_err();
        assert!(matches!(error.fault, PageFault::Node { .. }), "{mode}: {error}");
    }
}

#[test]
fn a_crash_between_any_two_steps_leaves_old_or_new() {
    for mode in TREES {
        let keys = keyring(1);
        let (mut disk, protection) = create(40, mode, &keys);
        disk.write(&protection, &[(3, plain(3, 1)), (4, plain(4, 1))]);
        let old = disk.clone();
        // Sealed and prepared, and the journal's record never made it.
        let mut sealed = [0; 4096];
        let made = protection.seal(3, &plain(3, 2), &mut sealed).unwrap();
        let change = protection.prepare(&[made], &&disk.tree[..]).unwrap();
        drop(change);
        assert_eq!(disk.read(&protection, 3).unwrap(), plain(3, 1));
        assert_eq!(disk.header, protection.header());
        // And again, as after a failed psync that is repeated.
        disk.write(&protection, &[(3, plain(3, 3))]);
        assert_eq!(disk.read(&protection, 3).unwrap(), plain(3, 3));
        // The record was durable, the process died before `commit`: the next one opens the new
        // header.
        let reopened = disk.open(&keys).unwrap();
        assert_eq!(disk.read(&reopened, 3).unwrap(), plain(3, 3));
        let before = old.open(&keys).unwrap();
        assert_eq!(old.read(&before, 3).unwrap(), plain(3, 1));
    }
}

//! The paper's own test of security at rest (section VIII.F): objects with secrets, and an attacker
//! who reads and changes all bytes on media. There: with encryption 0 % of secrets disclosed, with
//! integrity 100 % of changes found.

use crate::common::{Disk, MODES, create_object, keyring, plain};
use cenote_atrest::{Mode, Protection};
use cenote_layout::id::Uuid;
use proptest::prelude::*;
use zerocopy::IntoBytes;

const OBJECTS: u64 = 1000;
const PAGES: u64 = 2;

/// A text that occurs nowhere by chance.
fn secret(object: u64) -> [u8; 32] {
    let mut text = *b"the secret of object 0000000000!";
    text[21..31].copy_from_slice(format!("{object:010}").as_bytes());
    text
}

fn make(object: u64, mode: Mode) -> (Disk, Protection) {
    let mut id = *b"object number \0\0";
    id[14..].copy_from_slice(&(object as u16).to_le_bytes());
    let (mut disk, protection) = create_object(Uuid(id), PAGES, mode, &keyring(3));
    let mut page = [0; 4096];
    for place in page.chunks_exact_mut(64) {
        place[..32].copy_from_slice(&secret(object));
    }
    disk.write(&protection, &[(0, page), (1, page)]);
    (disk, protection)
}

/// Everything on media as one string of bytes.
fn everything(disk: &Disk) -> Vec<u8> {
    let mut all = disk.header.to_vec();
    disk.pages.iter().for_each(|page| all.extend_from_slice(page));
    disk.sides.iter().for_each(|side| all.extend_from_slice(side.as_bytes()));
    all.extend_from_slice(&disk.tree);
    all
}

fn holds(all: &[u8], needle: &[u8]) -> bool {
    all.windows(needle.len()).any(|w| w == needle)
}

#[test]
fn of_a_thousand_secrets_none_is_disclosed_with_encryption_and_all_without() {
    for mode in MODES {
        let disclosed = (0..OBJECTS)
            .filter(|&object| {
                let (disk, _) = make(object, mode);
                // Eight bytes of it are enough.
                holds(&everything(&disk), &secret(object)[21..29])
            })
            .count();
        assert_eq!(disclosed as u64, if mode.has_key() { 0 } else { OBJECTS }, "{mode}");
    }
}

#[test]
fn of_a_thousand_changes_all_are_found_wherever_they_are() {
    for mode in [Mode::Integrity, Mode::EncryptionIntegrity, Mode::Authenticated] {
        let mut found = 0;
        for object in 0..OBJECTS {
            let (mut disk, protection) = make(object, mode);
            let at = (object * 2_654_435_761 % 4096) as usize;
            disk.pages[(object % PAGES) as usize][at] ^= 1 << (object % 8);
            found += u64::from(disk.read(&protection, object % PAGES).is_err());
        }
        assert_eq!(found, OBJECTS, "{mode}");
    }
}

#[test]
fn equal_pages_look_equal_only_where_that_is_said() {
    let (disk, _) = make(1, Mode::EncryptionIntegrity);
    assert_ne!(disk.pages[0], disk.pages[1], "the tweak differs by page");
    let (other, _) = make(2, Mode::EncryptionIntegrity);
    assert_ne!(disk.pages[0], other.pages[0]);
    for mode in [Mode::Encryption, Mode::EncryptionIntegrity, Mode::Authenticated] {
        let (mut disk, protection) = make(1, mode);
        let before = disk.pages[0];
        let page = disk.read(&protection, 0).unwrap();
        disk.write(&protection, &[(0, page)]);
        assert_eq!(
            before == disk.pages[0],
            mode != Mode::Authenticated,
            "{mode}: XTS shows what stays the same"
        );
    }
}

#[test]
fn the_callers_key_is_nowhere_on_media() {
    for mode in MODES {
        let (disk, _) = make(1, mode);
        let key: [u8; 32] = core::array::from_fn(|i| (i as u8) ^ 3);
        let all = everything(&disk);
        assert!(!key.chunks_exact(8).any(|part| holds(&all, part)), "{mode}");
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// A psync of these pages, each with a version.
    Write(Vec<(u64, u64)>),
    /// One that fails in the journal.
    Fail(Vec<(u64, u64)>),
    Reopen,
    Rekey(u8),
    Trim,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let pages = prop::collection::vec((0u64..50, 1u64..1000), 0..8);
    let step = prop_oneof![
        4 => pages.clone().prop_map(Step::Write),
        1 => pages.prop_map(Step::Fail),
        1 => Just(Step::Reopen),
        1 => any::<u8>().prop_map(Step::Rekey),
        1 => Just(Step::Trim),
    ];
    prop::collection::vec(step, 1..12)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]

    #[test]
    fn any_history_reads_as_the_last_committed_writes_say(mode in 0usize..5, steps in steps()) {
        let mut key = 1;
        let (mut disk, mut protection) = crate::common::create(50, MODES[mode], &keyring(key));
        let mut model = vec![0u64; 50];
        for step in steps {
            match step {
                Step::Write(pages) => {
                    for (page, version) in &pages {
                        model[*page as usize] = *version;
                    }
                    // The last of a page that comes twice.
                    let pages: Vec<_> = pages
                        .iter()
                        .map(|(page, _)| (*page, plain(*page, model[*page as usize])))
                        .collect();
                    disk.write(&protection, &dedup(pages));
                }
                Step::Fail(pages) => {
                    let mut sealed = [0; 4096];
                    let made: Vec<_> = pages
                        .iter()
                        .map(|(p, v)| protection.seal(*p, &plain(*p, *v), &mut sealed).unwrap())
                        .collect();
                    drop(protection.prepare(&made, &&disk.tree[..]).unwrap());
                }
                Step::Reopen => protection = disk.open(&keyring(key)).unwrap(),
                Step::Rekey(new) if MODES[mode].has_key() => {
                    disk.header = protection.rekey(&keyring(new)).unwrap();
                    protection.rekeyed(&disk.header).unwrap();
                    key = new;
                }
                Step::Rekey(_) => {}
                Step::Trim => {
                    if let Some(tree) = protection.tree() {
                        tree.trim();
                    }
                }
            }
            for page in 0..50 {
                let expected = match model[page as usize] {
                    0 => [0; 4096],
                    version => plain(page, version),
                };
                prop_assert_eq!(disk.read(&protection, page).unwrap(), expected);
            }
        }
    }
}

fn dedup(mut pages: Vec<(u64, [u8; 4096])>) -> Vec<(u64, [u8; 4096])> {
    pages.sort_by_key(|(page, _)| *page);
    pages.dedup_by_key(|(page, _)| *page);
    pages
}

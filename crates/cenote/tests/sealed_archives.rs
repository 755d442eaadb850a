//! Archives of protected pools that were changed: what does not fit is refused and registers
//! nothing; what only the key can tell is found when the pool is opened.

use crate::archives::{names, puddle_files, store_with_window, window};
use crate::at_rest::{count, key, opened, with_word};
use crate::sealed_copies::closed;
use crate::support::{directory, hashes};
use cenote::{Access, AtRest, Error, ExportOptions, ImportOptions, PoolMode};
use cenote_archive::{ArchiveReader, ArchiveWriter, Codec, Manifest};
use cenote_store::StoreError;

/// A chunk of an archive, to be changed: its puddle, offset and bytes.
type Changed<'a> = &'a dyn Fn(&Manifest, &mut Vec<(u32, u64, Vec<u8>)>);

/// The archive as a forger would make it.
fn forged(
    archive: &[u8],
    manifest: impl FnOnce(&mut Manifest),
    chunks: Changed<'_>,
) -> Option<Vec<u8>> {
    let mut reader = ArchiveReader::open(archive).unwrap();
    let mut changed = reader.manifest().clone();
    let mut list = Vec::new();
    while let Some(chunk) = reader.next_chunk().unwrap() {
        for (page, bytes) in (0..).zip(chunk.bytes.chunks(4096)) {
            list.push((chunk.puddle as u32, chunk.offset + page * 4096, bytes.to_vec()));
        }
    }
    chunks(&changed, &mut list);
    manifest(&mut changed);
    let mut writer = ArchiveWriter::begin(Vec::new(), &changed, Codec::None).ok()?;
    for (puddle, offset, bytes) in &list {
        writer.chunk(*puddle, *offset, bytes).ok()?;
    }
    Some(writer.finish().unwrap().0)
}

/// Leaves the manifest as it is.
fn same(_: &mut Manifest) {}

/// Archives that were changed on purpose and do not fit the header of the protection.
fn archives_that_do_not_fit(archive: &[u8]) -> Vec<Option<Vec<u8>>> {
    let none: Changed<'_> = &|_, _| {};
    let data = |m: &Manifest, puddle: u32, offset: u64| offset < m.puddles[puddle as usize].size;
    let uuid = cenote_layout::id::Uuid([7; 16]);
    vec![
        forged(archive, |m| m.puddles[1].uuid = uuid, none),
        forged(archive, |m| m.pools[0].at_rest = AtRest::Encryption, none),
        forged(archive, |m| m.pools[0].at_rest = AtRest::None, none),
        forged(archive, |m| m.pools[0].mode = PoolMode::Direct, none),
        // Without the regions of the protection.
        forged(archive, same, &|m, list| list.retain(|(p, offset, _)| data(m, *p, *offset))),
        // A puddle's protection is another's.
        forged(archive, same, &|m, list| {
            let header = |puddle: u32| m.puddles[puddle as usize].size;
            let of = |list: &[(u32, u64, Vec<u8>)], puddle: u32| {
                list.iter()
                    .find(|(p, at, _)| (*p, *at) == (puddle, header(puddle)))
                    .unwrap()
                    .2
                    .clone()
            };
            let (zero, one) = (of(list, 0), of(list, 1));
            for (puddle, at, bytes) in list.iter_mut().filter(|(p, at, _)| *at == header(*p)) {
                let _ = at;
                bytes.clone_from(if *puddle == 0 { &one } else { &zero });
            }
        }),
    ]
}

/// Archives that were changed on purpose, which only the key can tell.
fn archives_of_which_the_key_tells(archive: &[u8]) -> Vec<Option<Vec<u8>>> {
    vec![
        forged(archive, same, &|_, list| list[2].2[100] ^= 1),
        forged(archive, same, &|_, list| {
            let bytes = list[1].2.clone();
            list[1].2 = core::mem::replace(&mut list[3].2, bytes);
        }),
        forged(archive, same, &|_, list| list[2].2.fill(0)),
        // A bit of the protection's header behind its checksum's own check.
        forged(archive, same, &|m, list| {
            let size = m.puddles[0].size;
            let header = list.iter_mut().find(|(p, at, _)| (*p, *at) == (0, size)).unwrap();
            let mut read: cenote_layout::at_rest::AtRestHeader =
                zerocopy::FromBytes::read_from_bytes(&header.2[..512]).unwrap();
            read.generation += 1;
            cenote_layout::header::seal(&mut read);
            header.2[..512].copy_from_slice(zerocopy::IntoBytes::as_bytes(&read));
        }),
    ]
}

#[test]
fn archives_of_protected_pools_that_were_changed_are_refused_or_found_out() {
    for at_rest in [AtRest::Authenticated, AtRest::EncryptionIntegrity] {
        let (here, there) = (directory(), directory());
        closed(here.path(), at_rest, 600);
        let store = opened(here.path(), Access::ReadOnly, None);
        let archive = store.export(&["p"], Vec::new(), ExportOptions::default()).unwrap().0;
        // By accident: any bit, any end.
        let other = store_with_window(there.path(), window());
        let before = hashes(there.path());
        for at in (0..archive.len()).step_by(archive.len() / 61) {
            let mut bad = archive.clone();
            bad[at] ^= 0x40;
            assert!(other.import(bad.as_slice(), ImportOptions::default()).is_err(), "byte {at}");
            assert!(other.import(&archive[..at], ImportOptions::default()).is_err(), "{at} bytes");
        }
        // On purpose: what does not fit the protection's header is refused before anything is
        // registered.
        let refused = archives_that_do_not_fit(&archive);
        for (number, bad) in refused.iter().enumerate() {
            let Some(bad) = bad else { continue };
            let imported = other.import(bad.as_slice(), ImportOptions::default());
            assert!(imported.is_err(), "{at_rest:?}, {number}: {imported:?}");
        }
        assert_eq!(hashes(there.path()), before, "what is refused leaves nothing");
        // What only the key can tell is found when the puddle is opened: nothing of it is ever
        // shown.
        let found = archives_of_which_the_key_tells(&archive);
        other.close().unwrap();
        for (number, bad) in found.iter().enumerate() {
            let other = opened(there.path(), Access::ReadWrite, Some(key(1)));
            let name = format!("{number}");
            other.import(bad.as_ref().unwrap().as_slice(), names(&[&name])).unwrap();
            let opened = other.pool(&name);
            let text = format!("{:?}", opened.as_ref().err());
            assert!(
                matches!(
                    opened,
                    Err(Error::Store(StoreError::Sealed { .. } | StoreError::AtRest { .. }))
                ),
                "{at_rest:?}, {number}: {text}"
            );
            other.close().unwrap();
            let wrote = with_word(there.path());
            assert!(wrote.is_empty(), "{wrote:?}");
        }
        // The good one still comes.
        let other = opened(there.path(), Access::ReadWrite, Some(key(1)));
        other.import(archive.as_slice(), ImportOptions::default()).unwrap();
        assert_eq!(count(&other.pool("p").unwrap()), 600);
    }
}

/// Archives that are whole and say another protection than their puddles' headers: every other
/// mode, and headers of more or fewer pages.
#[test]
fn archives_whose_protection_is_not_that_of_their_puddles_are_refused_and_nothing_is_registered() {
    const KNOWN: [AtRest; 4] =
        [AtRest::Integrity, AtRest::Encryption, AtRest::EncryptionIntegrity, AtRest::Authenticated];
    for at_rest in KNOWN {
        let (here, there) = (directory(), directory());
        closed(here.path(), at_rest, 100);
        let store = opened(here.path(), Access::ReadOnly, None);
        let archive = store.export(&["p"], Vec::new(), ExportOptions::default()).unwrap().0;
        let other = store_with_window(there.path(), window());
        let before = (hashes(there.path()), puddle_files(there.path()));
        let refused = |bad: Option<Vec<u8>>, why: &str| {
            let bad = bad.expect("it can be written");
            match other.import(bad.as_slice(), ImportOptions::default()) {
                Err(error) if error.to_string().contains(why) => {}
                found => panic!("{at_rest:?}: not \"{why}\": {found:?}"),
            }
            assert!(other.pools().is_empty(), "{at_rest:?}: {why}");
            assert_eq!(
                (hashes(there.path()), puddle_files(there.path())),
                before,
                "{at_rest:?}: {why}"
            );
        };
        for said in KNOWN.into_iter().filter(|said| *said != at_rest) {
            // With as much behind the pages as the other protection has.
            let bad = forged(&archive, |m| m.pools[0].at_rest = said, &|m, list| {
                let end = |puddle: u32| said.stored_len(m.puddles[puddle as usize].size).unwrap();
                list.retain(|(puddle, at, bytes)| at + bytes.len() as u64 <= end(*puddle));
            });
            refused(bad, "its protection is not");
        }
        for more in [1, -1i64] {
            let bad = forged(&archive, |_| {}, &|m, list| {
                let size = m.puddles[0].size;
                let header = list.iter_mut().find(|(p, at, _)| (*p, *at) == (0, size)).unwrap();
                let mut read: cenote_layout::at_rest::AtRestHeader =
                    zerocopy::FromBytes::read_from_bytes(&header.2[..512]).unwrap();
                read.pages = read.pages.strict_add_signed(more);
                cenote_layout::header::seal(&mut read);
                header.2[..512].copy_from_slice(zerocopy::IntoBytes::as_bytes(&read));
            });
            refused(bad, "its protection is of");
        }
        // Nor does what was refused stand in the way.
        other.import(archive.as_slice(), ImportOptions::default()).unwrap();
        assert_eq!(other.pools().len(), 1);
    }
}

//! An import checks the types of the program, and the end of an archive that was not read to its
//! end. For each check there is a planted bug that leaves it out.

use crate::archives::{Node, list, names, small, store_with_window, values, window};
use crate::support::{directory, hashes};
use cenote::{ArchivingError, Error, ExportOptions, ImportOptions, Persist, Result, Store};
use cenote_archive::{ArchiveReader, ArchiveWriter, Codec};
use cenote_medium::planted::{Bug, plant};

/// An archive of a list of so many nodes.
fn archive(len: u64) -> Result<Vec<u8>> {
    let here = directory();
    let store = store_with_window(here.path(), window());
    drop(list(&store, "list", &small(), len)?);
    Ok(store.export(&["list"], Vec::new(), ExportOptions::default())?.0)
}

/// The archive as another program would have made it, in which [`Node`] has one word more.
fn with_another_layout(archive: &[u8]) -> Vec<u8> {
    let mut reader = ArchiveReader::open(archive).expect("it is whole");
    let mut manifest = reader.manifest().clone();
    let node = manifest.types.iter_mut().find(|record| record.id == Node::TYPE_ID);
    node.expect("the list's nodes").size += 8;
    let mut writer = ArchiveWriter::begin(Vec::new(), &manifest, Codec::None).expect("it can be");
    while let Some(chunk) = reader.next_chunk().expect("it is whole") {
        writer.chunk(chunk.puddle as u32, chunk.offset, chunk.bytes).expect("it fits");
    }
    writer.finish().expect("memory").0
}

#[test]
fn an_archive_with_another_layout_than_the_programs_is_refused_before_it_decides_for_the_store()
-> Result<()> {
    let ours = archive(10)?;
    let theirs = with_another_layout(&ours);
    let there = directory();
    let other = store_with_window(there.path(), window());
    let before = hashes(there.path());
    let error =
        other.import(theirs.as_slice(), ImportOptions::default()).expect_err("another layout");
    let Error::Archive(ArchivingError::ProgramType(mismatch)) = &error else { panic!("{error}") };
    assert_eq!(
        (mismatch.known.size + 8, mismatch.offered.id),
        (mismatch.offered.size, Node::TYPE_ID)
    );
    let text = error.to_string();
    for part in ["archives::Node", "in this program", "known:", "offered:", "another name"] {
        assert!(text.contains(part), "{part:?} is not in {text}");
    }
    assert_eq!(hashes(there.path()), before, "nothing is registered and no file is made");
    let seen = other.inspect_archive(theirs.as_slice(), ImportOptions::default())?;
    assert!(
        matches!(seen.refused, Some(ArchivingError::ProgramType(_))),
        "a dry run says the same"
    );
    // The store is still the program's to decide.
    other.import(ours.as_slice(), ImportOptions::default())?;
    assert_eq!(values(&other.pool("list")?)?.len(), 10);

    // Where the program is not asked, its own lists cannot be in the store any more.
    let there = directory();
    let other = store_with_window(there.path(), window());
    plant(Bug::ProgramNotAsked);
    let imported = other.import(theirs.as_slice(), ImportOptions::default());
    plant(Bug::None);
    imported?;
    assert!(list(&other, "mine", &small(), 3).is_err(), "the archive has decided");
    Ok(())
}

#[test]
fn what_a_store_has_decided_is_the_stores_and_no_programs() -> Result<()> {
    let ours = archive(10)?;
    let theirs = with_another_layout(&ours);
    let there = directory();
    let other = store_with_window(there.path(), window());
    let record =
        ArchiveReader::open(theirs.as_slice()).expect("it is whole").manifest().types.clone();
    for record in &record {
        // SAFETY: that a record is not as this program has the type is what is tested; it is
        // refused.
        unsafe { crate::support::underneath(&other).register_type(record) }
            .expect("it is new there");
    }
    // It registers nothing, so there is nothing to refuse; a use of such a type is refused.
    other.import(theirs.as_slice(), ImportOptions::default())?;
    assert!(values(&other.pool("list")?).is_err());
    assert!(other.import(ours.as_slice(), names(&["ours"])).is_err());
    Ok(())
}

#[test]
fn an_archive_without_its_end_is_no_archive() -> Result<()> {
    let whole = archive(5000)?;
    let attempt = |cut: usize| -> (bool, Store, tempfile::TempDir) {
        let there = directory();
        let other = store_with_window(there.path(), window());
        (other.import(&whole[..whole.len() - cut], ImportOptions::default()).is_ok(), other, there)
    };
    for cut in [1, 60, 5000, whole.len() / 2] {
        assert!(!attempt(cut).0, "{cut}");
    }
    plant(Bug::ArchiveEndUnread);
    let (imported, other, _directory) = attempt(whole.len() / 2);
    plant(Bug::None);
    assert!(imported, "half an archive is taken for one");
    assert!(values(&other.pool("list")?).map_or(true, |values| values.len() < 5000));
    Ok(())
}

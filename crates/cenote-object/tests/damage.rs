//! Journals and primaries that are not what they were: flipped bits, other stores' files, missing
//! and shortened ones. Nothing is believed, nothing is guessed, and what is not damaged stays as it
//! is.

use crate::common::{State, Step, World, base_image, contents, history, open, options, own};
use cenote_medium::Medium;
use cenote_medium::sim::{CrashKind, Image, SimMedium};
use cenote_object::{ObjectError, Objects, ObjectsOptions, Permission, Store};
use cenote_store::OpenOptions;
use std::sync::Arc;

/// Three psyncs, then the process dies; the records lie at 8192, 12288 and 16384 of the journal.
fn crashed() -> (Image, Vec<State>) {
    let sim = SimMedium::from_image_unrecorded(&base_image(65536));
    let steps = [
        Step::Write(0, 0, 8, 1),
        Step::Psync(0),
        Step::Write(1, 0, 100, 2),
        Step::Psync(1),
        Step::Write(0, 4096, 64, 3),
        Step::Psync(0),
    ];
    let states = history(&sim, &steps, 65536).expect("history");
    (sim.image_now(CrashKind::Process), states)
}

/// An image in which no record was applied yet: the primaries are those of the beginning.
fn unapplied() -> (Image, Vec<State>) {
    let (image, states) = crashed();
    let sim = SimMedium::from_image_unrecorded(&image);
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open");
    let infos = store.objects();
    drop(store);
    for info in infos {
        let zeros = vec![0; info.record.data_len.next_multiple_of(4096) as usize];
        own(&*sim).write_at(&info.file(), info.data_offset(), &zeros).expect("write");
    }
    (sim.image_now(CrashKind::Power), states)
}

fn damaged<T: std::fmt::Debug>(result: Result<T, ObjectError>) -> String {
    match result {
        Err(error @ ObjectError::JournalDamaged { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

fn try_open(sim: &Arc<SimMedium>, accept: bool) -> Result<(Store, Objects), ObjectError> {
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("the store itself opens");
    let options = ObjectsOptions { accept_damaged_journal: accept, ..options(65536) };
    let objects = Objects::open(&store, &options);
    if objects.is_err() {
        store.clone().abandon();
    }
    objects.map(|objects| (store, objects))
}

#[test]
fn committed_records_make_primaries_whole() {
    let (image, states) = unapplied();
    let (_store, objects) = open(&SimMedium::from_image_unrecorded(&image), 65536).expect("open");
    assert_eq!(objects.recovery().records, 3);
    assert_eq!(contents(&objects).expect("contents"), states[3]);
}

/// Every bit of the three records, of both headers, and of what lies between, one at a time.
#[test]
fn no_flipped_bit_of_the_journal_is_believed() {
    let (image, states) = unapplied();
    let (mut refused, mut harmless, mut shorter) = (0, 0, 0);
    // Every byte of heads and commit records; in between every 64th.
    let interesting = |offset: u64| {
        let within = offset % 4096;
        !(400..4096 - 32).contains(&within) || offset % 64 == 5
    };
    for offset in (0..8192 + 3 * 4096 + 64).filter(|offset| interesting(*offset)) {
        let sim = SimMedium::from_image_unrecorded(&image);
        // SAFETY: the store is closed: nothing of it is mapped.
        assert!(unsafe { sim.flip_bit("journal", offset, (offset % 8) as u8) });
        match try_open(&sim, false) {
            Err(ObjectError::JournalDamaged { .. }) => refused += 1,
            Err(other) => panic!("offset {offset}: {other}"),
            Ok((store, objects)) => {
                let state = contents(&objects).expect("contents");
                let number = states.iter().position(|known| *known == state);
                // The last record cannot be told from one whose psync was in flight.
                match number {
                    Some(3) => harmless += 1,
                    Some(2) if offset >= 8192 + 2 * 4096 => shorter += 1,
                    other => panic!("offset {offset}: state {other:?}"),
                }
                objects.abandon();
                store.abandon();
            }
        }
    }
    println!("{refused} refused, {harmless} harmless, {shorter} in the last record");
    assert!(refused > 300 && shorter > 100 && harmless > 100);
}

#[test]
fn a_damaged_journal_is_accepted_only_on_demand_and_psyncs_go_on_then() {
    let (image, _) = crashed();
    let sim = SimMedium::from_image_unrecorded(&image);
    // SAFETY: the store is closed: nothing of it is mapped.
    assert!(unsafe { sim.flip_bit("journal", 8192 + 150, 1) });
    let text = damaged(try_open(&sim, false));
    assert!(text.contains("record 1"), "{text}");
    // Asked twice, answered the same: nothing was changed.
    assert_eq!(damaged(try_open(&sim, false)), text);
    {
        let (_store, objects) = try_open(&sim, true).expect("accepted");
        let mut a = objects.attach("a", Permission::ReadWrite, None).expect("attach");
        assert_eq!(a.as_slice()[0], 0, "the primary as it is: nothing was brought there");
        a.as_mut_slice().expect("writable")[9] = 9;
        a.psync().expect("psync");
    }
    let (_store, objects) = try_open(&sim, false).expect("a new journal");
    let a = objects.attach("a", Permission::Read, None).expect("attach");
    assert_eq!((a.as_slice()[0], a.as_slice()[9]), (0, 9));
}

#[test]
fn a_journal_that_is_missing_short_or_anothers_is_named() {
    let (image, _) = crashed();
    let sim = SimMedium::from_image_unrecorded(&image);
    own(&*sim).remove("journal").expect("remove");
    assert!(damaged(try_open(&sim, false)).contains("missing"));

    let sim = SimMedium::from_image_unrecorded(&image);
    own(&*sim).truncate("journal", 20000).expect("truncate");
    assert!(damaged(try_open(&sim, false)).contains("truncated"));

    for zeros in [0u64, 4096, 8192] {
        let sim = SimMedium::from_image_unrecorded(&image);
        own(&*sim).write_at("journal", 0, &vec![0; zeros as usize]).expect("write");
        let opened = try_open(&sim, false);
        match zeros {
            8192 => assert!(damaged(opened).contains("neither header")),
            _ => drop(opened.expect("one header is enough")),
        }
    }

    // A journal of a store that has another identity.
    let sim = SimMedium::from_image_unrecorded(&image);
    let mut header = vec![0; 512];
    for slot in [0, 4096] {
        sim.read_at("journal", slot, &mut header).expect("read");
        if header.iter().all(|b| *b == 0) {
            continue;
        }
        header[48..64].fill(0x77);
        let mut copy =
            <cenote_layout::object::JournalHeader as zerocopy::FromBytes>::read_from_bytes(&header)
                .unwrap();
        cenote_layout::header::seal(&mut copy);
        own(&*sim).write_at("journal", slot, zerocopy::IntoBytes::as_bytes(&copy)).expect("write");
    }
    assert!(damaged(try_open(&sim, false)).contains("journal of store 77777777"));
}

#[test]
fn a_swapped_or_missing_primary_is_refused_and_the_others_are_not() {
    let sim = SimMedium::from_image_unrecorded(&base_image(8192));
    let (store, objects) = open(&sim, 8192).expect("open");
    let file = |name: &str| objects.info(name).expect("info").object.file();
    let (b, still) = (file("b"), file("still"));
    drop(objects);
    store.close().expect("close");
    // Both have two pages: only their headers tell them apart.
    let (mine, other) = (sim.read(&b).expect("read"), sim.read(&still).expect("read"));
    assert_eq!(sim.len(&b).expect("len"), sim.len(&still).expect("len"));
    own(&*sim).write_at(&b, 0, &other).expect("write");
    own(&*sim).write_at(&still, 0, &mine).expect("write");
    {
        let (_store, objects) = open(&sim, 8192).expect("open");
        for name in ["b", "still"] {
            let error = objects.attach(name, Permission::ReadWrite, None).expect_err("swapped");
            assert!(error.to_string().contains("another puddle"), "{error}");
            // Refused is not attached.
            assert!(objects.attach(name, Permission::Read, None).is_err());
        }
        objects.attach("a", Permission::ReadWrite, None).expect("not touched");
    }
    own(&*sim).remove(&b).expect("remove");
    own(&*sim).truncate(&still, 4096).expect("truncate");
    let (_store, objects) = open(&sim, 8192).expect("open");
    let error = objects.attach("b", Permission::Read, None).expect_err("missing").to_string();
    assert!(error.contains("missing"), "{error}");
    let error = objects.attach("still", Permission::Read, None).expect_err("short").to_string();
    assert!(error.contains("truncated"), "{error}");
    objects.pdestroy("b", None).expect("what is damaged can be removed");
}

#[test]
fn a_committed_psync_whose_primary_is_missing_waits_for_it_and_removing_the_object_ends_that() {
    let (image, states) = unapplied();
    let sim = SimMedium::from_image_unrecorded(&image);
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open");
    let file = store.object("b").expect("object").file();
    drop(store);
    let kept = sim.read(&file).expect("read");
    own(&*sim).remove(&file).expect("remove");
    match try_open(&sim, false) {
        Err(ObjectError::PrimaryDamaged { name, .. }) => assert_eq!(name, "b"),
        other => panic!("{other:?}"),
    }
    let sim_without = SimMedium::from_image_unrecorded(&sim.image_now(CrashKind::Process));
    // Brought back, the psync is completed.
    sim.create(&file, kept.len() as u64).expect("create");
    own(&*sim).write_at(&file, 0, &kept).expect("write");
    {
        let (_store, objects) = try_open(&sim, false).expect("open");
        assert_eq!(contents(&objects).expect("contents"), states[3]);
    }
    drop(sim);
    // Removed, the others are completed.
    let medium: Arc<dyn Medium> = sim_without.clone();
    let (store, _) = Store::open(medium, OpenOptions::default()).expect("open");
    // SAFETY: no object of the store is attached yet.
    unsafe { store.as_raw().remove_object("b") }.expect("remove");
    let objects = Objects::open(&store, &options(65536)).expect("open");
    let a = objects.attach("a", Permission::Read, None).expect("attach");
    assert!(a.as_slice() == states[3][0]);
}

#[test]
fn a_torn_object_header_does_not_put_the_data_in_doubt() {
    let (image, states) = crashed();
    let sim = SimMedium::from_image_unrecorded(&image);
    let medium: Arc<dyn Medium> = sim.clone();
    let (store, _) = Store::open(medium, OpenOptions::read_only()).expect("open");
    let info = store.object("a").expect("object");
    drop(store);
    // SAFETY: the store is closed: nothing of it is mapped.
    assert!(unsafe { sim.flip_bit(&info.file(), info.header_offset() + 70, 0) });
    let world = World::open(&sim, 65536).expect("open");
    assert_eq!(world.attached[0].found(), cenote_object::FoundState::Unknown);
    assert!(world.attached[0].as_slice() == states[3][0]);
}

//! Objects of a daemon's clients, crashed everywhere: after each crash an object has the state of
//! the last answered psync, or of the one in flight, whole; and it is not attached.

use crate::common::{host, raw};
use cenote_journal::Transfer;
use cenote_layout::catalog::HostedClientRecord;
use cenote_layout::id::Uuid;
use cenote_medium::planted::{Bug, Step, plant, watch};
use cenote_medium::sim::{Image, Limits, SimMedium, SimOptions};
use cenote_medium::{Durability, Medium, MediumOptions, RealMedium};
use cenote_object::{Host, HostedClient, Objects, ObjectsOptions, Permission, Store, Trim};
use cenote_store::{AtRest, Credentials, FormatOptions, NewObject, OpenOptions};
use std::collections::HashSet;
use std::sync::Arc;

const PAGES: usize = 3;
const PAGE: usize = 4096;
const NAMES: [&str; 2] = ["a", "b"];

fn options() -> ObjectsOptions {
    ObjectsOptions { half_len: 16384, trim: Trim::Inline, ..ObjectsOptions::default() }
}

fn open(sim: &Arc<SimMedium>, hosting: bool) -> Result<(Store, Host), String> {
    // SAFETY: no object that a client has is attached in this process.
    let hosting = hosting.then(|| unsafe { cenote_store::Hosting::new() });
    let options_of = OpenOptions { hosting, spare_bytes_max: 0, ..OpenOptions::default() };
    let (store, report) = Store::open(sim.clone(), options_of).map_err(|e| e.to_string())?;
    if !report.damage.is_empty() {
        return Err(format!("{:?}", report.damage));
    }
    let objects = Objects::open(&store, &options()).map_err(|e| e.to_string())?;
    Ok((store, host(&objects)))
}

/// A daemon's store, with nothing in it.
fn fresh(window: u64) -> (Arc<SimMedium>, Store, Host) {
    let sim = SimMedium::new(SimOptions::new(Durability::Power));
    let format = FormatOptions { window_base: Some(window), window_len: 64 << 20, uuid: None };
    cenote_store::format(sim.clone(), &format).expect("format");
    let (store, objects) = open(&sim, true).expect("open");
    (sim, store, objects)
}

fn new_object(id: Uuid, name: &str, data_len: u64) -> NewObject {
    NewObject {
        id,
        name: name.into(),
        data_len,
        permissions: 0o666,
        at_rest: AtRest::None,
        header: Vec::new(),
    }
}

/// What each object holds of the answered psyncs, and what the one in flight makes of it.
fn allowed(done: u64) -> [[u8; 2]; 3] {
    // Psync 1: the first; 2: the second; 3: both together; 4: the first after a detach and an
    // attach.
    let after = [[0, 0], [1, 0], [1, 2], [3, 3], [4, 3], [4, 3]];
    let at = |number: usize| after[number.min(after.len() - 1)];
    [at(done as usize), at(done as usize + 1), at(done as usize)]
}

/// Runs the history, and looks at every image of every crash.
fn explore(window: u64, bug: Bug) -> (u64, Option<String>) {
    let (sim, store, objects) = fresh(window);
    let credentials = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let client = Uuid::from_random_bytes([5; 16]);
    let (pid, start_ticks) = (0x7fff_ffff, 3);
    raw(&store)
        .admit(HostedClientRecord { client, pid, start_ticks, uid: 7, gid: 7 })
        .expect("admit");
    let hosted_client = HostedClient { client, pid, start_ticks, credentials: &credentials };
    let ids: Vec<Uuid> = (0..2u8)
        .map(|number| {
            let id = Uuid::from_random_bytes([0x60 + number; 16]);
            let new = new_object(id, NAMES[usize::from(number)], (PAGES * PAGE) as u64);
            objects.create_for(&hosted_client, &new).expect("create").id()
        })
        .collect();
    for name in NAMES {
        raw(&store).client_attach_object(client, &credentials, name, true).expect("attach");
    }
    plant(bug);
    sim.forget_trace();
    let psync = |objects: &Host, which: &[Uuid], value: u8, settled: bool| {
        let shadow = vec![value; PAGES * PAGE];
        let mut transfer = Transfer::new(8).expect("transfer");
        for number in 0..which.len() {
            transfer
                .add_pages(number as u32, shadow.as_ptr().addr(), &[0..1, 1..PAGES as u64])
                .expect("pages");
        }
        let (file, runs) = transfer.finish().expect("finish");
        objects.psync_for(&hosted_client, which, (&file, runs), settled).expect("psync").seq
    };
    psync(&objects, &ids[..1], 1, false);
    sim.note(1);
    psync(&objects, &ids[1..], 2, true);
    sim.note(2);
    psync(&objects, &ids, 3, false);
    sim.note(3);
    // Asked again, because the answer was lost.
    assert_eq!(psync(&objects, &ids, 3, false), 0, "it changes nothing");
    objects.detach_for(&hosted_client, ids[0]).expect("detach");
    raw(&store).client_attach_object(client, &credentials, NAMES[0], true).expect("attach");
    psync(&objects, &ids[..1], 4, false);
    sim.note(4);
    raw(&store).client_end(client, false).expect("end");
    plant(Bug::None);
    objects.abandon();
    drop(objects);
    store.abandon();
    let (mut images, mut violation, mut seen) = (0, None, HashSet::new());
    sim.explore(.., Limits::default(), |_, image| {
        if violation.is_none() && seen.insert((image.hash(), image.note())) {
            images += 1;
            violation = look(&image).err();
        }
    });
    (images, violation)
}

fn look(image: &Image) -> Result<(), String> {
    let sim = SimMedium::from_image_unrecorded(image);
    let (store, objects) = open(&sim, false)?;
    let mut found = [0; 2];
    for (name, found) in NAMES.iter().zip(&mut found) {
        if !raw(&store).object_holders(name).is_empty() {
            return Err(format!("object {name} is attached by who has ended"));
        }
        let attached = objects.attach(name, Permission::Read, None).map_err(|e| e.to_string())?;
        let bytes = attached.as_slice();
        *found = bytes[0];
        if bytes.iter().any(|byte| byte != found) {
            return Err(format!("object {name} holds half of a psync, note {}", image.note()));
        }
    }
    let allowed = allowed(image.note());
    drop(objects);
    store.abandon();
    if allowed.contains(&found) {
        Ok(())
    } else {
        Err(format!("found is {found:?}, allowed {allowed:?}"))
    }
}

#[test]
fn what_a_daemon_answered_survives_and_what_it_did_not_is_whole_or_not_there() {
    let (images, violation) = explore(0x5400_0000_0000, Bug::None);
    println!("{images} images");
    assert_eq!(violation, None);
    assert!(images > 100, "hardly anything was looked at: {images}");
}

#[test]
fn a_daemon_that_answers_before_the_record_is_durable_is_found() {
    let (_, violation) = explore(0x3701_0000_0000, Bug::TransferNotDurable);
    println!("{}", violation.expect("it was not found"));
}

/// Records of the one that is removed may be in the journal: they would be written into the other,
/// or lie beyond its end.
#[test]
fn the_identity_of_an_object_that_is_being_removed_is_not_given_again() {
    let (_, store, objects) = fresh(0x3703_0000_0000);
    let credentials = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let client = Uuid::from_random_bytes([5; 16]);
    raw(&store)
        .admit(HostedClientRecord { client, pid: 1, start_ticks: 3, uid: 7, gid: 7 })
        .expect("admit");
    let hosted_client = HostedClient { client, pid: 1, start_ticks: 3, credentials: &credentials };
    let id = Uuid::from_random_bytes([9; 16]);
    objects.create_for(&hosted_client, &new_object(id, "large", 8 * PAGE as u64)).expect("create");
    let (here, there) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let other = objects.clone();
        let removed = scope.spawn(move || {
            there.recv().expect("told");
            other.destroy_for(&hosted_client, "large")
        });
        watch(Some(Box::new(move |step| {
            if step == Step::IdentityLookedUp {
                // It would be over long before, if it could be.
                here.send(()).expect("the test hears");
                std::thread::sleep(std::time::Duration::from_millis(200));
            }
        })));
        let again = objects.create_for(&hosted_client, &new_object(id, "small", 1));
        watch(None);
        assert!(again.is_err(), "the identity of what was removed meanwhile: {again:?}");
        removed.join().expect("no panic").expect("removed");
    });
    // Nor afterwards.
    objects
        .create_for(&hosted_client, &new_object(id, "small", 1))
        .expect_err("it is gone, and has records");
    assert!(store.objects().is_empty());
}

/// Numbers of processes are given again: a process with the number of a dead one is another.
#[test]
fn a_writer_that_died_is_not_taken_for_the_one_that_has_its_number_now() {
    let dir = tempfile::tempdir().expect("a directory");
    let medium = Arc::new(RealMedium::open(dir.path(), &MediumOptions::default()).expect("medium"));
    let format = FormatOptions { window_len: 64 << 20, ..FormatOptions::default() };
    cenote_store::format(medium.clone(), &format).expect("format");
    // SAFETY: no object is attached in this process.
    let hosting = Some(unsafe { cenote_store::Hosting::new() });
    let hosting = OpenOptions { hosting, ..OpenOptions::default() };
    let (store, _) = Store::open(medium, hosting).expect("open");
    let objects = host(&Objects::open(&store, &options()).expect("objects"));
    let credentials = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let client_of = |number: u8, start_ticks| {
        let client = Uuid::from_random_bytes([number; 16]);
        raw(&store)
            .admit(HostedClientRecord { client, pid: 1, start_ticks, uid: 7, gid: 7 })
            .expect("admit");
        HostedClient { client, pid: 1, start_ticks, credentials: &credentials }
    };
    let first = client_of(1, 100);
    objects
        .create_for(&first, &new_object(Uuid::from_random_bytes([3; 16]), "a", 9))
        .expect("create");
    let found = |hosted_client: &HostedClient<'_>| {
        let (listed, _) =
            objects.attach_for(hosted_client, "a", Permission::ReadWrite).expect("attach");
        listed.found
    };
    assert_eq!(found(&first), (0, 0), "it was not attached");
    assert_eq!(found(&first), (0, 0), "asked again: it is its own");
    raw(&store).client_end(first.client, false).expect("it died");
    let second = client_of(2, 200);
    assert_eq!(found(&second), (1, 1), "a process died that had this one's number");
    assert_eq!(found(&second), (0, 0));
}

#[test]
fn a_simulated_medium_hands_no_file_out_and_the_object_is_free_then() {
    let (sim, store, objects) = fresh(0x3702_0000_0000);
    // SAFETY: the simulation has no descriptors, and this one would be for reading.
    assert!(unsafe { sim.grant("superblock", false) }.expect("no error").is_none());
    let credentials = Credentials { uid: 7, gid: 7, groups: Vec::new() };
    let client = Uuid::from_random_bytes([5; 16]);
    raw(&store)
        .admit(HostedClientRecord { client, pid: 1, start_ticks: 3, uid: 7, gid: 7 })
        .expect("admit");
    let hosted_client = HostedClient { client, pid: 1, start_ticks: 3, credentials: &credentials };
    objects
        .create_for(&hosted_client, &new_object(Uuid::from_random_bytes([6; 16]), "a", 9))
        .expect("create");
    objects
        .attach_for(&hosted_client, "a", Permission::ReadWrite)
        .expect_err("there is no descriptor");
    assert!(raw(&store).object_holders("a").is_empty(), "and so no lease");
}

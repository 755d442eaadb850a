//! Objects through the daemon: one writer or many readers, in one or several processes; psyncs
//! that survive the processes that made them.

use crate::common::{Actor, Daemon, listen, say};
use crate::hostile::Raw;
use crate::permissions::{ALICE, BOB, STAFF, as_user, is_root};
use cenote::Store;
use cenote_medium::planted::{Step, watch};
use cenote_object::{
    Blocks, FoundState, Keyring, MasterKey, Mechanism, ObjectError, ObjectState, Objects,
    ObjectsOptions, Permission,
};
use cenote_proto::{Refusal, Reply, Request};
use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

pub(crate) const LEN: u64 = 1 << 20;

pub(crate) fn objects_of(store: &Store) -> Objects {
    Objects::open(&store.handle(), &ObjectsOptions::default()).expect("objects")
}

/// A child: attaches the object as it is told, and does what it is told with it.
pub(crate) fn obey(socket: &Path) {
    let store = Store::connect(socket).expect("connect");
    let objects = objects_of(&store);
    let permission = if listen() == "read" { Permission::Read } else { Permission::ReadWrite };
    let mut attached = objects.attach("matrix", permission, None).expect("attach");
    say("attached");
    loop {
        let order = listen();
        let mut words = order.split(' ');
        match words.next() {
            Some("store") => {
                let value: u8 = words.next().expect("a value").parse().expect("a number");
                attached.as_mut_slice().expect("for writing").fill(value);
            }
            Some("psync") => drop(attached.psync().expect("psync")),
            Some("sum") => {
                let (low, high) =
                    (attached.as_slice().iter().min(), attached.as_slice().iter().max());
                assert_eq!(low, high, "half of a psync is there");
                say(&high.expect("bytes").to_string());
                continue;
            }
            _ => break,
        }
        say("done");
    }
    attached.detach().expect("detach");
    say("detached");
}

pub(crate) fn told(actor: &mut Actor, order: &str) -> String {
    actor.tell(order);
    actor.hear()
}

pub(crate) fn start(daemon: &Daemon, how: &str) -> Actor {
    let mut actor = Actor::start("object", daemon);
    assert_eq!(told(&mut actor, how), "attached");
    actor
}

pub(crate) fn busy_by<T: std::fmt::Debug>(
    attached: Result<T, ObjectError>,
    writing: &str,
    by: u32,
) {
    match attached {
        Err(ref error @ ObjectError::Busy { what, pid, .. }) => {
            assert_eq!((what, pid, error.errno()), (writing, by, 11));
        }
        other => panic!("not refused: {other:?}"),
    }
}

#[test]
fn one_process_writes_or_many_read_and_who_is_refused_hears_by_whom() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    let info = objects.pcreate("matrix", LEN, None, 0o600).expect("create");
    assert_eq!(objects.pcreate("matrix", LEN, None, 0o600).expect_err("twice").errno(), 17);
    let mut writer = start(&daemon, "write");
    busy_by(objects.attach("matrix", Permission::Read, None), "writing", writer.pid());
    busy_by(objects.attach("matrix", Permission::ReadWrite, None), "writing", writer.pid());
    assert_eq!(objects.pdestroy("matrix", None).expect_err("it is in use").errno(), 11);
    assert_eq!(objects.info("matrix").expect("info").state, ObjectState::Write);
    for order in ["store 7", "psync", "store 8"] {
        assert_eq!(told(&mut writer, order), "done");
    }
    assert_eq!(told(&mut writer, "detach"), "detached");
    // What was not psynced is gone with the detach.
    let (mut one, mut two) = (start(&daemon, "read"), start(&daemon, "read"));
    let here = objects.attach("matrix", Permission::Read, None).expect("a third reader");
    let again = objects
        .attach("matrix", Permission::Read, None)
        .expect("and a fourth, in the same process");
    assert_eq!(here.addr(), info.data_addr(), "at its address");
    for reader in [&mut one, &mut two] {
        assert_eq!(told(reader, "sum"), "7");
    }
    assert!(here.as_slice().iter().chain(again.as_slice()).all(|byte| *byte == 7));
    let refused = objects.attach("matrix", Permission::ReadWrite, None);
    assert!(matches!(refused, Err(ObjectError::Busy { what: "reading", .. })), "{refused:?}");
    drop(here);
    assert!(
        again.as_slice().iter().all(|byte| *byte == 7),
        "the other one of the process reads on"
    );
    drop(again);
    let readers = [one.pid(), two.pid()];
    let refused = objects.attach("matrix", Permission::ReadWrite, None);
    assert!(
        matches!(refused, Err(ObjectError::Busy { pid, .. }) if readers.contains(&pid)),
        "{refused:?}"
    );
    for mut reader in [one, two] {
        assert_eq!(told(&mut reader, "detach"), "detached");
    }
    let mine = objects.attach("matrix", Permission::ReadWrite, None).expect("free");
    assert_eq!(mine.found(), FoundState::Detached);
    drop(mine);
    objects.pdestroy("matrix", None).expect("destroy");
    assert_eq!(objects.attach("matrix", Permission::Read, None).expect_err("gone").errno(), 2);
    assert!(objects.list().expect("list").is_empty());
}

/// The daemon knows processes, and not who in one of them has what.
#[test]
fn a_reader_of_the_writers_process_takes_nothing_from_the_writer() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    let key = Keyring::new(
        MasterKey::from_bytes(&mut std::array::from_fn(|at| at as u8)).expect("a key"),
    );
    for (name, key) in [("plain", None), ("sealed", Some(&key))] {
        objects.pcreate(name, LEN, key, 0o600).expect("create");
        let mut writer = objects.attach(name, Permission::ReadWrite, key).expect("attach");
        writer.as_mut_slice().expect("for writing").fill(1);
        let me = std::process::id();
        busy_by(objects.attach(name, Permission::Read, key), "writing", me);
        busy_by(objects.snapshot(name, &daemon.path("snapshot"), Blocks::Copied), "writing", me);
        assert!(objects.pdestroy(name, key).is_err(), "a writer has it");
        let done = writer.psync().expect("it has what it had");
        assert!(done.pages > 0, "{name}: {done:?}");
        writer.as_mut_slice().expect("for writing").fill(2);
        assert!(writer.psync().expect("still").pages > 0);
        writer.detach().expect("detach");
        let reader = objects.attach(name, Permission::Read, key).expect("no writer has it");
        assert_eq!(reader.found(), FoundState::Detached, "it was detached as it should be");
        assert!(reader.as_slice().iter().all(|byte| *byte == 2));
        // A snapshot has the object to itself, and no reader of the process takes its file away.
        busy_by(objects.snapshot(name, &daemon.path("snapshot"), Blocks::Copied), "reading", me);
    }
    // The daemon refuses clients that do not keep to that.
    let daemon = Daemon::start(&[]);
    objects_of(&daemon.connect()).pcreate("plain", LEN, None, 0o600).expect("create");
    let mut raw = Raw::connect(&daemon);
    let mut attach =
        |writable| raw.ask(&Request::AttachObject { name: "plain".into(), writable }).0;
    assert!(matches!(attach(true), Reply::Objects { .. }));
    assert!(
        matches!(attach(true), Reply::Objects { .. }),
        "asked again, because the answer was lost"
    );
    let reply = attach(false);
    assert!(
        matches!(reply, Reply::Refused(Refusal::ObjectBusy { writing: true, .. })),
        "{reply:?}"
    );
}

#[test]
fn a_reader_that_is_refused_during_a_snapshot_does_not_take_its_file_away() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    objects.pcreate("matrix", LEN, None, 0o600).expect("create");
    let (other, me) = (objects.clone(), std::process::id());
    watch(Some(Box::new(move |step| {
        if step == Step::SnapshotBegun {
            let other = other.clone();
            let tried = std::thread::spawn(move || {
                other.attach("matrix", Permission::Read, None).map(drop)
            });
            busy_by(tried.join().expect("no panic"), "writing", me);
        }
    })));
    let made = objects.snapshot("matrix", &daemon.path("snapshot"), Blocks::Copied);
    watch(None);
    made.expect("nothing hinders it");
    objects.attach("matrix", Permission::Read, None).expect("it is over");
}

#[test]
fn a_writer_that_is_killed_leaves_its_last_psync_and_the_next_one_hears_of_it() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    objects.pcreate("matrix", LEN, None, 0o600).expect("create");
    for round in 1..=4u8 {
        let mut writer = start(&daemon, "write");
        let pid = writer.pid();
        for order in [format!("store {round}"), "psync".into(), "store 99".into()] {
            assert_eq!(told(&mut writer, &order), "done");
        }
        writer.kill();
        // It waits until the dead one's session is over, and is never told "busy".
        let attached = objects.attach("matrix", Permission::ReadWrite, None).expect("attach");
        assert!(attached.as_slice().iter().all(|byte| *byte == round), "round {round}");
        assert_eq!(attached.found(), FoundState::ProcessDied { pid });
        attached.detach().expect("detach");
    }
    assert_eq!(objects.info("matrix").expect("info").found, FoundState::Detached);
}

#[test]
fn a_daemon_that_is_killed_is_followed_by_one_that_knows_who_has_what() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    objects.pcreate("matrix", LEN, None, 0o600).expect("create");
    let mut writer = start(&daemon, "write");
    for order in ["store 1", "psync", "store 2"] {
        assert_eq!(told(&mut writer, order), "done");
    }
    daemon.kill();
    daemon.restart();
    // Before the writer has said anything to the new one.
    busy_by(objects.attach("matrix", Permission::Read, None), "writing", writer.pid());
    for order in ["psync", "store 3"] {
        assert_eq!(told(&mut writer, order), "done");
    }
    daemon.kill();
    let pid = writer.pid();
    writer.kill();
    daemon.restart();
    let mut attached = objects.attach("matrix", Permission::ReadWrite, None).expect("attach");
    assert!(attached.as_slice().iter().all(|byte| *byte == 2));
    assert_eq!(attached.found(), FoundState::ProcessDied { pid });
    // Readers are known to the next daemon too.
    attached.as_mut_slice().expect("slice").fill(4);
    attached.psync().expect("psync");
    attached.detach().expect("detach");
    let mut reader = start(&daemon, "read");
    daemon.kill();
    daemon.restart();
    busy_by(objects.attach("matrix", Permission::ReadWrite, None), "reading", reader.pid());
    assert_eq!(told(&mut reader, "sum"), "4");
    reader.kill();
    drop((objects, store));
    // An embedded store has it all.
    daemon.wait_until("the others have gone", |stat| stat.sessions == 1);
    daemon.stop();
    let store = Store::open(daemon.store()).expect("open");
    let objects = objects_of(&store);
    let attached = objects.attach("matrix", Permission::Read, None).expect("attach");
    assert!(attached.as_slice().iter().all(|byte| *byte == 4));
}

#[test]
fn psyncs_of_every_mechanism_and_of_several_objects_go_through() {
    let daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    for name in ["a", "b"] {
        objects.pcreate(name, LEN, None, 0o600).expect("create");
    }
    for (round, mechanism) in (1u8..).zip(Mechanism::ALL) {
        let attach = |name| objects.attach_with(name, Permission::ReadWrite, None, Some(mechanism));
        let (mut a, mut b) = match (attach("a"), attach("b")) {
            (Ok(a), Ok(b)) => (a, b),
            (Err(error), _) | (_, Err(error)) => {
                println!("skipped: {mechanism}: {error}");
                continue;
            }
        };
        let nothing = a.psync().expect("psync");
        assert_eq!((nothing.seq, nothing.pages), (0, 0), "{mechanism}: nothing was stored");
        for step in 0..3u8 {
            for object in [&mut a, &mut b] {
                let bytes = object.as_mut_slice().expect("slice");
                bytes[4096 * usize::from(step) + 5] = round;
                bytes[900_000 + usize::from(step)] = 10 * round + step;
            }
            let done = cenote_object::psync_all(&mut [&mut a, &mut b]).expect("psync");
            assert!(
                done.seq > 0 && done.data_bytes <= 8 * 64,
                "{mechanism}: lines, and not pages: {done:?}"
            );
        }
        drop((a, b));
        for name in ["a", "b"] {
            let attached = objects.attach(name, Permission::Read, None).expect("attach");
            for step in 0..3u8 {
                assert_eq!(attached.as_slice()[4096 * usize::from(step) + 5], round, "{mechanism}");
                assert_eq!(
                    attached.as_slice()[900_000 + usize::from(step)],
                    10 * round + step,
                    "{mechanism}"
                );
            }
        }
    }
}

#[test]
fn keys_and_plaintext_stay_in_the_client() {
    let mut daemon = Daemon::start(&[]);
    let key = |seed: u8| {
        let mut bytes = core::array::from_fn(|at| (at as u8).wrapping_mul(37) ^ seed);
        Keyring::new(MasterKey::from_bytes(&mut bytes).expect("a key"))
    };
    let (right, new) = (key(1), key(2));
    let secret = b"only this client can read these.".repeat(64);
    {
        let store = daemon.connect();
        let objects = objects_of(&store);
        objects.pcreate("diary", 256 << 10, Some(&right), 0o600).expect("create");
        for round in 0..2usize {
            let mut attached =
                objects.attach("diary", Permission::ReadWrite, Some(&right)).expect("attach");
            attached.load(0, 256 << 10).expect("every page is whole");
            let at = 70_000 * round + 4000;
            attached.as_mut_slice().expect("slice")[at..at + secret.len()].copy_from_slice(&secret);
            assert!(attached.psync().expect("psync").seq > 0);
            attached.as_mut_slice().expect("slice")[at + 1] ^= 1;
            attached.psync().expect("a second psync, over pages that were sealed by the first");
            attached.as_mut_slice().expect("slice")[at + 1] ^= 1;
            attached.psync().expect("a third");
        }
        let wrong = objects.attach("diary", Permission::Read, Some(&new));
        assert_eq!(wrong.expect_err("another key").errno(), 13);
        objects.rekey("diary", &right, &new).expect("rekey");
        assert_eq!(
            objects.attach("diary", Permission::Read, Some(&right)).expect_err("old").errno(),
            13
        );
        let attached = objects.attach("diary", Permission::Read, Some(&new)).expect("attach");
        assert!(attached.verify(&mut |_, _| true).damaged.is_empty());
        assert_eq!(attached.as_slice()[74_000..74_000 + secret.len()], secret);
        assert_eq!(attached.as_slice()[4000..4000 + secret.len()], secret);
    }
    daemon.stop();
    let mut files = vec![daemon.store()];
    while let Some(path) = files.pop() {
        if path.is_dir() {
            files.extend(
                std::fs::read_dir(&path).expect("list").map(|entry| entry.expect("entry").path()),
            );
            continue;
        }
        let bytes = std::fs::read(&path).expect("read");
        assert!(!bytes.windows(32).any(|window| *window == secret[..32]), "plaintext in {path:?}");
    }
    let store = Store::open(daemon.store()).expect("open");
    let objects = objects_of(&store);
    let attached = objects.attach("diary", Permission::Read, Some(&new)).expect("attach");
    assert_eq!(attached.as_slice()[74_000..74_000 + secret.len()], secret);
}

#[test]
fn owner_group_and_mode_decide_who_attaches() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    let connect = || Store::connect(daemon.socket()).expect("connect");
    as_user(ALICE, STAFF, || {
        let store = connect();
        let objects = objects_of(&store);
        let info = objects.pcreate("hers", LEN, None, 0o640).expect("create");
        assert_eq!((info.record.uid, info.record.gid), (ALICE, STAFF));
        let mut attached = objects.attach("hers", Permission::ReadWrite, None).expect("attach");
        attached.as_mut_slice().expect("slice")[9] = 9;
        attached.psync().expect("psync");
    });
    let denied = |objects: &Objects, permission, why: &str| {
        let error = objects.attach("hers", permission, None).expect_err(why);
        assert!(matches!(error, ObjectError::Denied { .. }), "{error}");
        assert_eq!(error.errno(), 13, "{why}");
    };
    as_user(BOB, STAFF, || {
        let store = connect();
        let objects = objects_of(&store);
        let attached = objects.attach("hers", Permission::Read, None).expect("the group may read");
        assert_eq!(attached.as_slice()[9], 9);
        drop(attached);
        denied(&objects, Permission::ReadWrite, "and not write");
        assert_eq!(objects.pdestroy("hers", None).expect_err("nor remove").errno(), 13);
        assert_eq!(objects.set_mode("hers", 0o666).expect_err("nor help itself").errno(), 13);
    });
    as_user(BOB, BOB, || {
        let store = connect();
        denied(&objects_of(&store), Permission::Read, "others may nothing");
    });
    as_user(ALICE, STAFF, || {
        let store = connect();
        let objects = objects_of(&store);
        let give = cenote::PermissionChange { uid: Some(BOB), ..Default::default() };
        assert_eq!(objects.set_owner("hers", give).expect_err("only the superuser").errno(), 13);
        objects.set_mode("hers", 0o660).expect("chmod");
    });
    as_user(BOB, STAFF, || {
        let store = connect();
        let objects = objects_of(&store);
        objects.attach("hers", Permission::ReadWrite, None).expect("the group writes now");
    });
    {
        let store = connect();
        let give =
            cenote::PermissionChange { uid: Some(BOB), gid: Some(BOB), permissions: Some(0o600) };
        objects_of(&store).set_owner("hers", give).expect("the superuser gives it away");
    }
    as_user(ALICE, STAFF, || {
        let store = connect();
        denied(&objects_of(&store), Permission::Read, "it is not hers any more");
    });
    as_user(BOB, BOB, || {
        let store = connect();
        objects_of(&store).pdestroy("hers", None).expect("to remove, too");
    });
}

/// A run of lines of an object, as a transfer lists it.
fn run(object: u32, lines: u32, first_line: u64) -> Vec<u8> {
    let mut bytes = object.to_le_bytes().to_vec();
    bytes.extend(lines.to_le_bytes());
    bytes.extend(first_line.to_le_bytes());
    bytes
}

#[test]
fn a_client_changes_nothing_but_what_it_has_attached() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    let theirs = objects.pcreate("theirs", LEN, None, 0o600).expect("create");
    let mine = objects.pcreate("mine", LEN, None, 0o600).expect("create");
    let mut raw = Raw::connect(&daemon);
    let attach = |name: &str, writable| Request::AttachObject { name: name.into(), writable };
    let (reply, files) = raw.ask(&attach("mine", true));
    assert!(matches!(reply, Reply::Objects { .. }), "{reply:?}");
    // The descriptor of a writer is for reading as well, and stays so for others than the superuser
    // and the daemon's user.
    let file = File::from(files.into_iter().next().expect("a descriptor"));
    assert!(file.write_all_at(b"x", mine.data_offset()).is_err(), "it is for reading");
    let transfer = |runs: &[Vec<u8>], data: usize| [runs.concat(), vec![0xaa; data]].concat();
    let end = LEN / 64;
    let (me, other) = (mine.id(), theirs.id());
    for (objects, runs, data, why) in [
        (vec![other], vec![run(0, 64, 0)], 4096, "not attached"),
        (vec![me, other], vec![run(1, 64, 0)], 4096, "not attached, the second"),
        (vec![me, me], vec![run(1, 64, 0)], 4096, "twice"),
        (vec![], vec![run(0, 64, 0)], 4096, "none"),
        (vec![me], vec![run(1, 64, 0)], 4096, "another number"),
        (vec![me], vec![run(0, 64, end)], 4096, "behind its end"),
        (vec![me], vec![run(0, u32::MAX, 64)], 4096, "much too long"),
        (vec![me], vec![run(0, 64, u64::MAX - 63)], 4096, "sizes that wrap"),
        (vec![me], vec![run(0, 1, 3)], 64, "a part of a page"),
        (vec![me], vec![run(0, 64, 0), run(0, 128, 0)], 3 * 4096, "on top of each other"),
        (vec![me], vec![run(0, 128, 0)], 4096, "less than it says"),
    ] {
        let reply = raw.psync(&transfer(&runs, data), |transfer| Request::PsyncObjects {
            transfer,
            objects: objects.clone(),
            runs: runs.len() as u32,
            settled: true,
        });
        assert!(matches!(reply, Reply::Refused(_)), "{why}: {reply:?}");
    }
    let of = |object, runs, settled| {
        move |transfer| Request::PsyncObjects { transfer, objects: vec![object], runs, settled }
    };
    let reply = raw.psync(&[], of(me, 0, false));
    assert!(matches!(reply, Reply::Psynced { seq: 0, .. }), "nothing is nothing: {reply:?}");
    let reply = raw.psync(&[], of(me, u32::MAX, false));
    assert!(matches!(reply, Reply::Refused(Refusal::PsyncTooLarge { .. })), "{reply:?}");
    // And it works.
    let reply = raw.psync(&transfer(&[run(0, 64, 64)], 4096), of(me, 1, true));
    assert!(matches!(reply, Reply::Psynced { seq, .. } if seq > 0), "{reply:?}");
    // Each transfer is for one psync, and of one session.
    let (reply, files) = raw.ask(&Request::Transfer);
    let Reply::Transfer { number } = reply else { panic!("{reply:?}") };
    drop(files);
    let mut another = Raw::connect(&daemon);
    for asked in [another.ask(&of(me, 0, true)(number)).0, raw.ask(&of(me, 0, true)(number - 1)).0]
    {
        assert!(matches!(asked, Reply::Refused(Refusal::NoTransfer)), "{asked:?}");
    }
    // A reader psyncs nothing.
    assert!(matches!(raw.ask(&attach("theirs", false)).0, Reply::Objects { .. }));
    let reply = raw.psync(&transfer(&[run(0, 64, 64)], 4096), of(other, 1, true));
    assert!(matches!(reply, Reply::Refused(_)), "{reply:?}");
    assert!(matches!(raw.ask(&attach("mine", false)).0, Reply::Objects { .. } | Reply::Refused(_)));
    assert!(daemon.is_running());
    let attached = objects.attach("theirs", Permission::Read, None).expect("attach");
    assert!(attached.as_slice().iter().all(|byte| *byte == 0), "it is unchanged");
}

/// The journal may hold records of an object that is gone: its identity is not to be had again, or
/// recovery would write them into another object, or find them beyond its end.
#[test]
fn the_identity_of_an_object_that_is_gone_is_not_given_again() {
    let mut daemon = Daemon::start(&[]);
    let store = daemon.connect();
    let objects = objects_of(&store);
    let gone = objects.pcreate("gone", LEN, None, 0o600).expect("create").id();
    {
        let mut attached = objects.attach("gone", Permission::ReadWrite, None).expect("attach");
        attached.as_mut_slice().expect("for writing").fill(7);
        attached.psync().expect("psync");
        attached.detach().expect("detach");
    }
    objects.pdestroy("gone", None).expect("destroy");
    let mut raw = Raw::connect(&daemon);
    let (id, at_rest) = (gone, cenote::AtRest::None);
    let (reply, _) = raw.ask(&Request::CreateObject {
        id,
        name: "again".into(),
        data_len: 4096,
        permissions: 0o600,
        at_rest,
        header: Vec::new(),
    });
    assert!(matches!(reply, Reply::Refused(Refusal::ObjectExists)), "{reply:?}");
    drop((raw, objects));
    // And the next daemon finds nothing wrong.
    daemon.kill();
    daemon.restart();
    let objects = objects_of(&store);
    objects.pcreate("next", LEN, None, 0o600).expect("create");
    assert!(
        objects
            .attach("next", Permission::Read, None)
            .expect("attach")
            .as_slice()
            .iter()
            .all(|byte| *byte == 0)
    );
}

#[test]
fn an_objects_descriptor_cannot_be_opened_again_for_writing() {
    if !is_root() {
        return;
    }
    let daemon = Daemon::start(&[]);
    {
        let store = daemon.connect();
        objects_of(&store).pcreate("public", LEN, None, 0o666).expect("create");
    }
    as_user(BOB, BOB, || {
        let mut raw = Raw::connect(&daemon);
        for writable in [true, false] {
            let (reply, files) =
                raw.ask(&Request::AttachObject { name: "public".into(), writable });
            let Reply::Objects { items, .. } = reply else { panic!("{reply:?}") };
            let again =
                format!("/proc/self/fd/{}", files.first().expect("a descriptor").as_raw_fd());
            let opened = std::fs::OpenOptions::new().read(true).write(true).open(&again);
            assert_eq!(opened.expect_err("opened").kind(), std::io::ErrorKind::PermissionDenied);
            raw.ask(&Request::DetachObject { object: items[0].record.puddle });
        }
    });
}
